//! Streaming: [`turn`] opens and ends streamed turns, [`open_turns`] holds their text until they end, [`hub`]
//! publishes updates of a conversation to its subscribers, [`changes`] those of a tenant's conversations.

pub mod changes;
pub mod hub;
pub mod open_turns;
pub mod turn;
