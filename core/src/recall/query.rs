//! What somebody looks for. Whatever is typed is a question; none is an error.

use super::terms::{Terms, terms};

/// More words than this are not looked for: the first ones count.
pub const QUERY_WORDS_MAX: usize = 64;
/// Longer questions are cut.
pub const QUERY_BYTES_MAX: usize = 16 * 1024;
/// A shorter beginning is looked for as a whole word: it would be the beginning of too many.
pub const PREFIX_CHARS_MIN: usize = 3;

/// Words that questions are asked with and nearly every text has.
const EMPTY: [&str; 64] = [
    "a", "after", "an", "and", "are", "as", "at", "be", "been", "before", "by", "can", "could", "did", "do",
    "does", "for", "from", "had", "has", "have", "how", "i", "if", "in", "is", "it", "its", "me", "may",
    "my", "not", "of", "on", "or", "our", "should", "than", "that", "the", "their", "them", "then", "there",
    "these", "they", "this", "to", "was", "we", "were", "what", "when", "where", "which", "who", "whose",
    "why", "will", "with", "would", "you", "your", "s",
];

/// A question, as words.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TextQuery {
    /// Any of these; the more and the rarer, the better.
    pub any: Vec<Wanted>,
    /// All of these: what stood in quotation marks.
    pub all: Vec<Wanted>,
}

/// A word, a name or a phrase.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// These words, one right after the other.
    pub words: Vec<String>,
    /// The same as one name.
    pub name: Option<String>,
    /// The last word only has to begin so.
    pub prefix: bool,
}

impl TextQuery {
    /// Reads `words`, `"phrases in quotation marks"` and `begin*`.
    pub fn parse(text: &str) -> TextQuery {
        let mut end = text.len().min(QUERY_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut query = TextQuery::default();
        for (index, piece) in text[..end].split('"').enumerate() {
            // Between an odd and an even mark; one that is never closed is not a mark.
            let quoted = index % 2 == 1 && index < text[..end].matches('"').count();
            if quoted {
                query.all.extend(phrase(piece));
            } else {
                query.any.extend(piece.split_whitespace().flat_map(loose));
            }
        }
        let mut seen: Vec<Wanted> = Vec::new();
        query.any.retain(|wanted| {
            let new = !seen.contains(wanted) && seen.len() < QUERY_WORDS_MAX;
            seen.extend(new.then(|| wanted.clone()));
            new
        });
        query.all.truncate(QUERY_WORDS_MAX);
        query
    }

    /// Whether there is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.any.is_empty() && self.all.is_empty()
    }

    /// How much of the question a text says, from 0 to 1: the part of its telling words that are there, or of its names if
    /// that is more.
    pub fn told_by(&self, told: &Terms) -> f64 {
        // A question has few words, so comparing them with each of the text's is quicker than putting those into a set.
        // A single word may be a name that is split in the text, as the index sees it too.
        let has = |word: &str, prefix: bool| {
            let mut all = told.words.iter().chain(&told.names);
            all.any(|(told, _)| if prefix { told.starts_with(word) } else { told == word })
        };
        let telling = self.telling();
        let is_there = |wanted: &Wanted| {
            let last = wanted.words.len().saturating_sub(1);
            wanted.name.as_ref().is_some_and(|name| told.names.iter().any(|(told, _)| told == name))
                || wanted.words.iter().enumerate().all(|(at, word)| has(word, wanted.prefix && at == last))
        };
        let (mut there, mut names, mut names_there) = (0, 0, 0);
        for wanted in &telling {
            let (is_there, is_name) = (usize::from(is_there(wanted)), usize::from(wanted.is_name()));
            there += is_there;
            names += is_name;
            names_there += is_there * is_name;
        }
        let part = |there: usize, of: usize| there as f64 / of.max(1) as f64;
        part(there, telling.len()).max(part(names_there, names))
    }

    /// Words that are in nearly every English text tell nothing, unless there are no others.
    pub fn telling(&self) -> Vec<&Wanted> {
        let tells = |wanted: &&Wanted| {
            wanted.words.len() > 1 || !wanted.words.iter().all(|word| EMPTY.contains(&word.as_str()))
        };
        let telling: Vec<&Wanted> = self.wanted().filter(tells).collect();
        if telling.is_empty() { self.wanted().collect() } else { telling }
    }

    /// Everything that is wanted.
    pub fn wanted(&self) -> impl Iterator<Item = &Wanted> {
        self.all.iter().chain(&self.any)
    }
}

impl Wanted {
    /// Whether it names one thing, as `build_context`, `OPS-4417` and `E0716` do: then it is what a question is about.
    fn is_name(&self) -> bool {
        let mixed =
            |word: &String| word.contains(|c: char| c.is_ascii_digit()) && word.contains(char::is_alphabetic);
        self.name.is_some() || self.words.iter().any(mixed)
    }
}

fn phrase(text: &str) -> Option<Wanted> {
    let words: Vec<String> = terms(text).words.into_iter().map(|(word, _)| word).collect();
    (!words.is_empty()).then_some(Wanted { words, name: None, prefix: false })
}

/// What is written without a space: a word, a name, or words with marks between them.
fn loose(piece: &str) -> Vec<Wanted> {
    let found = terms(piece);
    let mut wanted: Vec<Wanted> = Vec::new();
    let mut from = 0;
    while from < found.words.len() {
        let start = found.words[from].1.start;
        // The longest name that begins here; or, in a script without spaces, everything up to the next mark.
        let name =
            found.names.iter().filter(|(_, place)| place.start == start).max_by_key(|(_, place)| place.end);
        let end = name.map_or(found.words[from].1.end, |(_, place)| place.end);
        let mut to = from + 1;
        while to < found.words.len()
            && (found.words[to].1.end <= end || touches(piece, &found.words[to - 1..=to]))
        {
            to += 1;
        }
        let words = found.words[from..to].iter().map(|(word, _)| word.clone()).collect();
        wanted.push(Wanted { words, name: name.map(|(name, _)| name.clone()), prefix: false });
        from = to;
    }
    if piece.ends_with('*')
        && let Some(last) = wanted.last_mut()
    {
        last.prefix = last.words.last().is_some_and(|word| word.chars().nth(PREFIX_CHARS_MIN - 1).is_some());
    }
    wanted
}

/// Characters of a script without spaces, one right after the other.
fn touches(piece: &str, words: &[(String, std::ops::Range<usize>)]) -> bool {
    words[0].1.end == words[1].1.start
        && !piece[words[1].1.clone()].is_ascii()
        && words[0].0.chars().count() == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(text: &str) -> String {
        let show = |wanted: &Wanted| {
            let name = wanted.name.as_ref().map_or(String::new(), |name| format!("={name}"));
            format!("{}{name}{}", wanted.words.join("_"), if wanted.prefix { "*" } else { "" })
        };
        let query = TextQuery::parse(text);
        let any: Vec<String> = query.any.iter().map(show).collect();
        let all: Vec<String> = query.all.iter().map(|wanted| format!("[{}]", show(wanted))).collect();
        [any, all].concat().join(" ")
    }

    #[test]
    fn what_people_type() {
        for (typed, read) in [
            ("", ""),
            ("where is the Lock?", "where is the lock"),
            ("lock lock LOCK", "lock"),
            ("\"write ahead log\" size", "size [write_ahead_log]"),
            ("say \"never closed", "say never closed"),
            ("\"\" x", "x"),
            ("sql* ab*", "sql* ab"),
            ("build_con*", "build_con=buildcon*"),
            ("BuildContext", "build_context=buildcontext"),
            ("src/store/sqlite.rs:42", "src_store_sqlite_rs_42=srcstoresqliters42"),
            ("1.2.3", "1 2 3"),
            ("AND OR NOT NEAR(a b) col:x ^y -z", "and or not near a b col_x=colx y z"),
            ("数据库 锁", "数_据_库 锁"),
            ("it's", "it s"),
            ("*", ""),
            ("'; DROP TABLE x; --", "drop table x"),
        ] {
            assert_eq!(shown(typed), read, "{typed}");
        }
    }

    #[test]
    fn how_much_of_a_question_a_text_tells() {
        let told = |question: &str, text: &str| TextQuery::parse(question).told_by(&terms(text));
        assert_eq!(told("what is wrong with the header?", "the fault is in the header"), 0.5);
        assert_eq!(told("what is wrong in parse_header?", "the fault is in `parseHeader`"), 1.0, "a name");
        assert_eq!(told("ticket OPS-4417", "closed OPS-4417 today"), 1.0, "a number of something");
        assert_eq!(told("ticket OPS-4417", "which ticket was it?"), 0.5);
        assert_eq!(told("borrow error E0716 in src/a.rs", "error[E0716]"), 0.5, "one of two names");
        assert_eq!(told("parseHeader", "parse the header"), 1.0, "by its parts");
        assert_eq!(told("why did compilation stop", "the build broke"), 0.0);
        assert_eq!(told("the lock of the writer", "a writer held the lock"), 1.0);
        assert_eq!(told("sqlit*", "in SQLite"), 1.0);
        assert_eq!(told("who is it", "it is me"), 2.0 / 3.0, "with nothing else, these count");
        assert_eq!(told("", "anything"), 0.0);
    }

    #[test]
    fn long_questions_are_cut() {
        let many: String = (0..1000).map(|n| format!("word{n} ")).collect();
        assert_eq!(TextQuery::parse(&many).any.len(), QUERY_WORDS_MAX);
        assert!(TextQuery::parse(&"é".repeat(QUERY_BYTES_MAX)).wanted().count() <= QUERY_WORDS_MAX);
    }

    proptest! {
        #[test]
        fn nothing_that_is_typed_fails(text in ".{0,300}") {
            let query = TextQuery::parse(&text);
            prop_assert!(query.wanted().all(|wanted| !wanted.words.is_empty()));
        }
    }
}
