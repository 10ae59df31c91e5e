//! The ids and names of calls, as each provider accepts them. The same input gives the same ids.

use super::Provider;
use everturn_core::chain::Hash;
use std::collections::{HashMap, HashSet};

/// The ids that calls have so far; kept from one stretch of a long list to the next.
#[derive(Default)]
pub struct Taken {
    ids: HashSet<String>,
    repeats: HashMap<String, usize>,
    made: usize,
}

/// Gives ids to calls, in the order in which they are written.
pub struct Ids<'a> {
    provider: Provider,
    given: HashSet<&'a str>,
    taken: &'a mut Taken,
}

impl<'a> Ids<'a> {
    /// `given` are the ids that calls of this list came with; none is made up that would collide with one.
    pub fn new(provider: Provider, taken: &'a mut Taken, given: impl Iterator<Item = &'a str>) -> Ids<'a> {
        Ids { provider, given: given.collect(), taken }
    }

    /// The id of the next call. One that is given stays unless the provider would refuse it or an earlier call has it.
    pub fn next(&mut self, given: Option<&str>) -> Option<String> {
        let id = match given {
            // Gemini goes by name and order, and does without.
            None if self.provider == Provider::Gemini => return None,
            None => loop {
                self.taken.made += 1;
                let id = format!("call_{}", self.taken.made);
                if !self.given.contains(&*id) && !self.taken.ids.contains(&id) {
                    break id;
                }
            },
            Some(given) => {
                let wanted = accepted(self.provider, given);
                match self.taken.ids.contains(&wanted) || wanted != given && self.given.contains(&*wanted) {
                    false => wanted,
                    true => self.another(&wanted),
                }
            }
        };
        self.taken.ids.insert(id.clone());
        Some(id)
    }

    fn another(&mut self, wanted: &str) -> String {
        let count = self.taken.repeats.entry(wanted.to_string()).or_insert(1);
        loop {
            *count += 1;
            let id = accepted(self.provider, &format!("{wanted}_{count}"));
            if !self.given.contains(&*id) && !self.taken.ids.contains(&id) {
                return id;
            }
        }
    }
}

/// The id itself, or one made from it that the provider accepts.
fn accepted(provider: Provider, id: &str) -> String {
    let limit = match provider {
        Provider::OpenaiChat => 40,
        Provider::OpenaiResponses => 64,
        Provider::Anthropic | Provider::Gemini | Provider::Neutral => usize::MAX,
    };
    let plain = id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if (plain || provider != Provider::Anthropic) && id.len() <= limit {
        return id.to_string();
    }
    let hash = Hash::of(id.as_bytes()).to_string();
    let head: String = id.chars().map(|c| if is_word(c) { c } else { '_' }).take(limit.min(64) - 9).collect();
    format!("{head}_{}", &hash[..8])
}

/// A tool's name as the provider accepts it.
pub fn tool_name(provider: Provider, name: &str) -> String {
    let fits = |c: char| is_word(c) || provider == Provider::Gemini && c == '.';
    if provider == Provider::Neutral {
        return name.to_string();
    }
    let mut out: String = name.chars().map(|c| if fits(c) { c } else { '_' }).take(64).collect();
    if out.is_empty() {
        out.push_str("tool");
    }
    if provider == Provider::Gemini && !out.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        out.insert(0, '_');
        out.truncate(64);
    }
    out
}

/// Whether the name of an actor can stand in OpenAI's `name`.
pub fn is_actor_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.chars().all(is_word)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}
