//! Streaming: [`turn`] opens and ends streamed turns, [`open_turns`] holds their text until they end, [`hub`]
//! publishes updates to subscribers.

pub mod hub;
pub mod open_turns;
pub mod turn;
