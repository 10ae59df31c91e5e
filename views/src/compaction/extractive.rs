//! The summarizer that needs no model: it takes a checkpoint out of the turns, sentence by sentence.
//!
//! [`spoken`] reads turns into sentences, [`cues`] and [`terms`] tell what each is about, [`tools`] what tools did, [`identifiers`] which names matter;
//! [`extract`] chooses, and [`lists`] brings the lists within their limits, also those that a model wrote. The words that it goes by are
//! data, beside the code: `cues.txt` and `stop_words.txt`.

mod cues;
mod extract;
mod identifiers;
mod lists;
mod prose;
mod spoken;
mod terms;
mod tools;

pub use extract::extract;
pub use lists::complete;
pub(super) use spoken::{Source, texts, texts_of};
pub(super) use tools::RAN;
