//! Erasing: [`erase`] removes text from the log, [`erasures`] finds recorded erasures, [`records`] and [`copies`]
//! reach files outside the store.

pub mod copies;
mod erase;
pub mod erasures;
pub mod records;

pub use erase::ErasedActor;
pub use records::Records;
