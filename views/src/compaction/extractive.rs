//! The summarizer that needs no model: it extracts a checkpoint from the turns, sentence by sentence.
//!
//! [`spoken`] splits turns into sentences, without the logs that [`pasted`] finds; [`cues`] and [`terms`] classify them,
//! [`tools`] summarizes tool calls, [`earlier`] carries summaries of other programs over, [`files`] and [`identifiers`] collect names, [`pending`] finds unfinished work;
//! [`extract`] chooses, and [`lists`] brings the lists within their
//! limits, including those that a model wrote. The word lists are data, beside the code: `cues.txt` and
//! `stop_words.txt`.

mod cues;
mod earlier;
mod extract;
mod files;
mod identifiers;
mod lists;
mod pasted;
mod pending;
mod prose;
mod spoken;
mod terms;
mod tools;

pub use extract::{extract, extract_before};
pub use lists::complete;
pub(super) use spoken::{Source, texts, texts_of};
pub(super) use tools::RAN;
