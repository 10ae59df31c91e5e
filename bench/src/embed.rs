//! The built-in embedding model: bytes of text per second on one core, against only splitting the same text
//! into words.

use crate::figures::Samples;
use crate::processor;
use crate::report::Row;
use crate::{Result, Scale};
use everturn_engine::model::{BuiltinEmbedder, EmbedAtOnce};
use std::hint::black_box;

/// Minimum rate of one core.
const BAR_MB: f64 = 4.0;
/// Size of a text in bytes: about that of a turn.
const TEXT_BYTES: usize = 1_000;
/// Total size of the texts of one kind, in bytes.
const ALL_BYTES: usize = 2_000_000;

const PROSE: &str = include_str!("../../docs/recall.md");
const CODE: &str = include_str!("../../views/src/recall/terms.rs");
const RUSSIAN: &str =
    "Где находится сервер базы данных и почему он не отвечает, если два процесса пишут одновременно? ";
const CHINESE: &str = "数据库在两个进程同时写入时会挂起，我们昨天决定把锁改成一个写者。";

pub fn run(scale: Scale) -> Result<Vec<Row>> {
    let kinds = [("prose", PROSE), ("code", CODE), ("Russian", RUSSIAN), ("Chinese", CHINESE)];
    Ok(kinds.into_iter().map(|(kind, text)| measure(kind, text, scale.rounds)).collect())
}

fn measure(kind: &str, text: &str, rounds: usize) -> Row {
    let embedder = BuiltinEmbedder::new();
    embedder.vector("the table is read when the first text comes");
    let texts = texts(text);
    let bytes: usize = texts.iter().map(String::len).sum();
    let (mut embedded, mut split) = (Samples::default(), Samples::default());
    for _ in 0..rounds {
        let (took, _) =
            processor::once(|| texts.iter().for_each(|text| drop(black_box(embedder.vector(text)))));
        embedded.push(took);
        let words = |text: &String| text.split_whitespace().map(|word| black_box(word).len()).sum::<usize>();
        let (took, _) = processor::once(|| texts.iter().map(words).sum::<usize>());
        split.push(took);
    }
    // Bytes per microsecond are megabytes per second.
    let rate = |took: &Samples| bytes as f64 / took.median();
    let measured = format!("{:.0} MB/s of a core", rate(&embedded));
    Row::new(
        format!("the built-in embedder reads {kind}, in texts of {TEXT_BYTES} bytes"),
        measured,
        format!("{:.0} MB/s splitting at white space", rate(&split)),
    )
    .ratios(&embedded.over(&split))
    .bar(&format!("≥ {BAR_MB} MB/s"), rate(&embedded) >= BAR_MB)
}

/// A text repeated, in pieces with different beginnings.
fn texts(text: &str) -> Vec<String> {
    let mut chars = text.chars().cycle();
    let mut piece = |_| {
        let mut piece = String::new();
        while piece.len() < TEXT_BYTES {
            piece.extend(chars.next());
        }
        piece
    };
    (0..ALL_BYTES / TEXT_BYTES).map(&mut piece).collect()
}
