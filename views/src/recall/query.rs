//! Search queries. Any text is a valid query.

use super::language::Language;
use super::terms::terms;

/// Maximum number of words to search for; further ones are ignored.
pub const QUERY_WORDS_MAX: usize = 64;
/// Maximum length of a query; longer ones are truncated.
pub const QUERY_BYTES_MAX: usize = 16 * 1024;
/// A shorter prefix is searched as a whole word, because too many words begin with it.
pub const PREFIX_CHARS_MIN: usize = 3;

/// Longer runs of a script without spaces are searched by their pairs of characters, because a sentence is
/// hardly ever repeated.
const RUN_CHARS_MAX: usize = 3;

/// A parsed query.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TextQuery {
    /// Optional terms; the more of them and the rarer, the better.
    pub any: Vec<Wanted>,
    /// Required phrases, given in quotation marks.
    pub all: Vec<Wanted>,
}

/// A word, a name or a phrase to search for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Consecutive words.
    pub words: Vec<String>,
    /// The same words as one name.
    pub name: Option<String>,
    /// Whether the last word is a prefix.
    pub prefix: bool,
    /// For a single word that is not a name: its stem in each language that it may be in.
    pub stems: Vec<String>,
    /// Whether nearly every text has it, so that it carries little weight.
    pub common: bool,
}

impl TextQuery {
    /// Parses `words`, `"phrases in quotation marks"` and `prefix*`.
    pub fn parse(text: &str) -> TextQuery {
        let end = text.floor_char_boundary(QUERY_BYTES_MAX);
        let mut query = TextQuery::default();
        for (index, piece) in text[..end].split('"').enumerate() {
            // Between an odd and an even mark; one that is never closed is ignored.
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
        query.read_as(Language::of(&terms(&text[..end])));
        query
    }

    /// Adds stems to words, and marks common ones unless there are no others.
    fn read_as(&mut self, language: Option<Language>) {
        let common = |wanted: &Wanted| match &wanted.words[..] {
            [word] => language.unwrap_or(Language::English).is_common(word),
            _ => false,
        };
        let all_common = self.all.is_empty() && self.any.iter().all(common);
        for wanted in &mut self.any {
            wanted.common = !all_common && common(wanted);
            if let ([word], None, false) = (&wanted.words[..], &wanted.name, wanted.prefix)
                && word.chars().all(char::is_alphabetic)
            {
                let stem = |language: Language| language.stem(word).unwrap_or_else(|| word.clone());
                wanted.stems =
                    language.map_or_else(|| Language::all().map(stem).collect(), |one| vec![stem(one)]);
                wanted.stems.sort_unstable();
                wanted.stems.dedup();
            }
        }
    }

    /// Whether there is nothing to search for.
    pub fn is_empty(&self) -> bool {
        self.any.is_empty() && self.all.is_empty()
    }

    /// Terms that are not common.
    pub fn telling(&self) -> impl Iterator<Item = &Wanted> {
        self.wanted().filter(|wanted| !wanted.common)
    }

    /// All terms.
    pub fn wanted(&self) -> impl Iterator<Item = &Wanted> {
        self.all.iter().chain(&self.any)
    }
}

impl Wanted {
    /// Whether it names one thing, as `build_context`, `OPS-4417` and `E0716` do: then it is the subject of the
    /// query.
    pub fn is_name(&self) -> bool {
        let mixed =
            |word: &String| word.contains(|c: char| c.is_ascii_digit()) && word.contains(char::is_alphabetic);
        self.name.is_some() || self.words.iter().any(mixed)
    }

    fn words(words: Vec<String>) -> Wanted {
        Wanted { words, name: None, prefix: false, stems: Vec::new(), common: false }
    }
}

fn phrase(text: &str) -> Option<Wanted> {
    let words: Vec<String> = terms(text).words.into_iter().map(|(word, _)| word).collect();
    (!words.is_empty()).then(|| Wanted::words(words))
}

/// Terms of a piece without spaces: a word, a name, or words with punctuation between them.
fn loose(piece: &str) -> Vec<Wanted> {
    let found = terms(piece);
    let mut wanted: Vec<Wanted> = Vec::new();
    let mut from = 0;
    while from < found.words.len() {
        let start = found.words[from].1.start;
        // The longest name that begins here; or, in a script without spaces, everything up to the next
        // punctuation mark.
        let name =
            found.names.iter().filter(|(_, place)| place.start == start).max_by_key(|(_, place)| place.end);
        let end = name.map_or(found.words[from].1.end, |(_, place)| place.end);
        let mut to = from + 1;
        while to < found.words.len()
            && (found.words[to].1.end <= end || touches(piece, &found.words[to - 1..=to]))
        {
            to += 1;
        }
        let words: Vec<String> = found.words[from..to].iter().map(|(word, _)| word.clone()).collect();
        if name.is_none() && words.len() > RUN_CHARS_MAX {
            wanted.extend(words.windows(2).map(|pair| Wanted::words(pair.to_vec())));
        } else {
            wanted.push(Wanted { name: name.map(|(name, _)| name.clone()), ..Wanted::words(words) });
        }
        from = to;
    }
    if piece.ends_with('*')
        && let Some(last) = wanted.last_mut()
    {
        last.prefix = last.words.last().is_some_and(|word| word.chars().nth(PREFIX_CHARS_MIN - 1).is_some());
    }
    wanted
}

/// Whether the words are adjacent characters of a script without spaces.
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
            ("数据库锁住了", "数_据 据_库 库_锁 锁_住 住_了"),
            ("it's", "it s"),
            ("*", ""),
            ("'; DROP TABLE x; --", "drop table x"),
        ] {
            assert_eq!(shown(typed), read, "{typed}");
        }
    }

    #[test]
    fn words_have_stems_and_names_have_none() {
        let stems = |text: &str, of: &str| {
            let query = TextQuery::parse(text);
            query.any.into_iter().find(|wanted| wanted.words == [of]).map(|wanted| wanted.stems)
        };
        let some = |stems: &[&str]| Some(stems.iter().map(|stem| stem.to_string()).collect::<Vec<_>>());
        assert_eq!(stems("who is locking the writer?", "locking"), some(&["lock"]));
        assert_eq!(stems("welche Häuser sind das?", "hauser"), some(&["haus"]));
        assert_eq!(stems("Häuser", "hauser"), some(&["haus", "hauser"]), "in any language");
        assert_eq!(stems("error E0716", "e0716"), some(&[]));
        assert_eq!(stems("locking*", "locking"), some(&[]), "a beginning");
        assert!(TextQuery::parse("lock_files").any[0].stems.is_empty(), "a name");
    }

    #[test]
    fn common_words_say_little_unless_there_are_no_others() {
        let telling = |text: &str| -> Vec<String> {
            TextQuery::parse(text).telling().map(|wanted| wanted.words.join(" ")).collect()
        };
        assert_eq!(telling("what is the lock of the writer?"), ["lock", "writer"]);
        assert_eq!(telling("wer hat den Schlüssel?"), ["schlussel"]);
        assert_eq!(telling("who is it"), ["who", "is", "it"]);
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
