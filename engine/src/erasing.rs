//! Erasing: [`erase`] takes words out of the log, [`erasures`] says which were, [`records`] and [`copies`] reach files outside the store.

pub mod copies;
mod erase;
pub mod erasures;
pub mod records;

pub use erase::ErasedActor;
pub use records::Records;
