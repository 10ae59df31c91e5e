//! Content of the stores: words in sentences, the same in every run.

use crate::Result;
use everturn_core::conversation::Settings;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::limits::{BATCH_EVENTS_MAX, PAGE_ENTRIES_MAX};
use everturn_core::turn::Role;
use everturn_engine::{Everturn, HistoryQuery, NewConversation, NewTurn, Options, Tenant};
use serde_json::json;
use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

pub struct Corpus {
    pub conversations: usize,
    pub turns: u64,
    /// Sizes of texts in bytes, used in rotation.
    pub text_bytes: Vec<usize>,
    /// Number of turns in one append.
    pub batch: usize,
}

impl Corpus {
    /// One conversation of equal turns, appended in the largest batches.
    pub fn one(turns: u64, text_bytes: usize) -> Corpus {
        Corpus { conversations: 1, turns, text_bytes: vec![text_bytes], batch: BATCH_EVENTS_MAX }
    }
}

/// A store that was filled and closed.
pub struct Filled {
    pub url: String,
    pub conversations: Vec<ConversationId>,
    pub turns: u64,
}

/// Maximum number of pending appends while the next one is prepared.
const UNDER_WAY_MAX: usize = 4;

/// Creates a store, fills it and closes it.
pub fn fill(url: &str, corpus: &Corpus) -> Result<Filled> {
    let store = open(url)?;
    let scope = store.tenant("bench")?;
    let conversations: Vec<ConversationId> = begin(&scope, corpus.conversations)?;
    let mut words = Words::default();
    let mut under_way = VecDeque::new();
    let (started, mut told, mut done) = (Instant::now(), 0, 0);
    let mut next = conversations.iter().cycle();
    while done < corpus.turns {
        let Some(id) = next.next() else { return Err("a corpus has at least one conversation".into()) };
        let turns: Vec<NewTurn> = (done..corpus.turns)
            .take(corpus.batch)
            .map(|number| {
                let role = if number % 2 == 0 { Role::User } else { Role::Assistant };
                let length = corpus.text_bytes[number as usize % corpus.text_bytes.len()];
                NewTurn::text(role, &words.text(length))
            })
            .collect();
        done += turns.len() as u64;
        under_way.push_back(scope.conversation(*id).append_all(turns));
        if under_way.len() > UNDER_WAY_MAX.max(corpus.conversations)
            && let Some(oldest) = under_way.pop_front()
        {
            oldest.wait()?;
        }
        if done * 10 / corpus.turns > told && corpus.turns >= 100_000 {
            told = done * 10 / corpus.turns;
            eprintln!("  {done} of {} turns, {:.0} s", corpus.turns, started.elapsed().as_secs_f64());
        }
    }
    under_way.into_iter().try_for_each(|append| append.wait().map(drop))?;
    Ok(Filled { url: url.to_string(), conversations, turns: corpus.turns })
}

/// New conversations: without limits or compaction, so that exactly what was appended is measured.
pub fn begin(scope: &Tenant, count: usize) -> Result<Vec<ConversationId>> {
    let mut settings = Settings::default();
    let compaction = json!({"auto": false});
    let budget = json!({"max_messages": null, "max_events": null});
    for (name, policy) in [("compaction", compaction), ("budget", budget)] {
        settings.policy.insert(name.into(), Raw::of(&policy)?);
    }
    let new = NewConversation { settings, ..NewConversation::default() };
    (0..count).map(|_| Ok(scope.create(new.clone()).wait()?.id())).collect()
}

/// Opens a store without a running sweeper, which would disturb measurements.
pub fn open(url: &str) -> Result<Everturn> {
    Ok(Everturn::open_with(url, options())?)
}

pub fn options() -> Options {
    // Nor does the indexer run, which `recall` measures.
    let sweep_every = std::time::Duration::from_secs(24 * 60 * 60);
    Options { sweep_every, index: false, ..Options::default() }
}

impl Filled {
    /// The size of the turns as JSON, one a line, as `everturn history --json` prints them.
    pub fn json_bytes(&self) -> Result<u64> {
        let store = open(&self.url)?;
        let scope = store.tenant("bench")?;
        let mut bytes = 0;
        for id in &self.conversations {
            let mut after = Some(0);
            while after.is_some() {
                let page = scope.conversation(*id).history(HistoryQuery {
                    after,
                    limit: PAGE_ENTRIES_MAX,
                    ..HistoryQuery::default()
                })?;
                for entry in &page.data {
                    bytes += serde_json::to_string(entry)?.len() as u64 + 1;
                }
                after = page.next;
            }
        }
        Ok(bytes)
    }

    /// The file of a store in SQLite.
    pub fn path(&self) -> &Path {
        Path::new(self.url.trim_start_matches("sqlite:"))
    }

    /// Bytes on disk, everything included.
    pub fn disk_bytes(&self) -> Result<u64> {
        let name = self.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut bytes = 0;
        for file in self.path().parent().unwrap_or(Path::new(".")).read_dir()? {
            let file = file?;
            // The database, and the files beside it: a leftover write-ahead log, the lock.
            if file.file_name().to_string_lossy().starts_with(&name) && file.file_type()?.is_file() {
                bytes += file.metadata()?.len();
            }
        }
        Ok(bytes)
    }
}

/// Generates ASCII text; the same from the same seed.
#[derive(Default)]
pub struct Words {
    state: u64,
}

const WORDS: [&str; 32] = [
    "the",
    "turn",
    "of",
    "a",
    "conversation",
    "is",
    "kept",
    "and",
    "model",
    "reads",
    "what",
    "it",
    "needs",
    "tool",
    "answer",
    "file",
    "error",
    "because",
    "summary",
    "to",
    "function",
    "in",
    "budget",
    "token",
    "later",
    "user",
    "asked",
    "for",
    "plain",
    "\"quoted\"",
    "context",
    "again",
];

/// SplitMix64, written by hand because texts must stay the same from one release to the next for rows to be
/// comparable.
pub fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Words {
    /// Starts at a different state for every number.
    pub fn from(number: u64) -> Words {
        Words { state: number << 32 }
    }

    pub fn number(&mut self) -> u64 {
        split_mix(&mut self.state)
    }

    /// A text of this many bytes.
    pub fn text(&mut self, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 16);
        while text.len() < bytes {
            let number = self.number();
            text.push_str(WORDS[number as usize % WORDS.len()]);
            text.push_str(match (number >> 32) % 24 {
                0 => ".\n",
                1..=3 => ", ",
                _ => " ",
            });
        }
        text.truncate(bytes);
        text
    }
}
