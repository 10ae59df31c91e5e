//! What is said while it is said: [`hub`] shows it to those who follow, [`open_turns`] keeps the text of turns that have not ended.

pub mod hub;
pub mod open_turns;
pub mod turn;
