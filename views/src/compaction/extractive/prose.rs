//! Sentences in a text that people or models wrote: Markdown without its code, tables, quotes and markup.

use super::cues::{Cues, Group};

/// One sentence, or one item of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sentence {
    /// One line, without list marker and emphasis.
    pub text: String,
    /// Group announced by the heading or by the line before its list: "Next steps:".
    pub lead: Option<Group>,
    /// Whether it is an item of a list.
    pub listed: bool,
    /// `[x]` or `[ ]`, if it is an item with a box.
    pub ticked: Option<bool>,
}

/// Maximum number of tags searched for in one text: each search may scan all of it.
const TAG_SEARCHES_MAX: usize = 50;

/// The sentences of a text, in order.
pub(super) fn sentences(text: &str) -> Vec<Sentence> {
    let mut reader = ProseReader { out: Vec::new(), paragraph: String::new(), lead: None, after_list: false };
    let mut fence: Option<&str> = None;
    let mut tag: Option<&str> = None;
    let mut searches = TAG_SEARCHES_MAX;
    for line in text.lines() {
        let trimmed = line.trim();
        if let Some(mark) = fence {
            if trimmed.starts_with(mark) {
                fence = None;
            }
        } else if let Some(name) = tag {
            if trimmed.ends_with('>') && closes(trimmed, name) {
                tag = None;
            }
        } else if let Some(mark) = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark)) {
            reader.end_paragraph();
            fence = Some(mark);
        } else if let Some(name) = opened_tag(trimmed).filter(|_| searches > 0) {
            reader.end_paragraph();
            // Skip only a block that is closed again; otherwise one stray tag would hide the rest.
            if !closes(trimmed, name) {
                searches -= 1;
                tag = closes(text, name).then_some(name);
            }
        } else {
            reader.line(line, trimmed);
        }
    }
    reader.end_paragraph();
    reader.out
}

struct ProseReader {
    out: Vec<Sentence>,
    paragraph: String,
    lead: Option<Group>,
    after_list: bool,
}

impl ProseReader {
    fn line(&mut self, line: &str, trimmed: &str) {
        if trimmed.is_empty() {
            return self.end_paragraph();
        }
        if let Some(heading) = trimmed.strip_prefix('#') {
            self.end_paragraph();
            self.lead = lead_of(heading.trim_start_matches('#'));
            self.after_list = false;
            return;
        }
        if let Some((item, ticked)) = list_item(trimmed) {
            self.end_paragraph();
            self.after_list = true;
            let lead = self.lead;
            if !is_code(item) {
                split(&plain(item), |text| self.out.push(Sentence { text, lead, listed: true, ticked }));
            }
            return;
        }
        let indented = line.starts_with("    ") || line.starts_with('\t');
        if trimmed.starts_with(['|', '>']) || (indented && !self.after_list) || is_code(trimmed) {
            return self.end_paragraph();
        }
        if self.after_list && !indented {
            // A paragraph after the list: the list's introduction does not apply to it.
            self.lead = None;
            self.after_list = false;
        }
        if trimmed.ends_with(':') || trimmed.ends_with('：') {
            self.end_paragraph();
            self.lead = lead_of(trimmed);
            // "The plan is to move to SQLite, in three steps:" is a statement by itself.
            let text = plain(trimmed.trim_end_matches([':', '：']));
            if self.lead.is_none() && text.split_whitespace().count() > 6 {
                split(&text, |text| {
                    self.out.push(Sentence { text, lead: None, listed: false, ticked: None })
                });
            }
            return;
        }
        if !self.paragraph.is_empty() {
            self.paragraph.push(' ');
        }
        self.paragraph.push_str(&plain(trimmed));
    }

    fn end_paragraph(&mut self) {
        let paragraph = std::mem::take(&mut self.paragraph);
        if !paragraph.is_empty() {
            split(&paragraph, |text| {
                self.out.push(Sentence { text, lead: None, listed: false, ticked: None })
            });
        }
    }
}

/// The group that a heading or an introduction announces for the list below it, if it has no other content.
fn lead_of(text: &str) -> Option<Group> {
    let text = plain(text.trim());
    if text.split_whitespace().count() > 8 {
        return None;
    }
    let cues = Cues::of(&text);
    [Group::Open, Group::Pending, Group::Decision, Group::Constraint, Group::Completed, Group::Discovery]
        .into_iter()
        .find(|group| cues.weight(*group) > 0)
}

/// The text of a list item and its box.
fn list_item(line: &str) -> Option<(&str, Option<bool>)> {
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let rest = ["- ", "* ", "+ ", "• "].iter().find_map(|mark| line.strip_prefix(mark)).or_else(|| {
        (1..=3).contains(&digits).then(|| &line[digits..])?.strip_prefix(['.', ')'])?.strip_prefix(' ')
    })?;
    let rest = rest.trim_start();
    for (mark, ticked) in [("[ ] ", false), ("[x] ", true), ("[X] ", true)] {
        if let Some(item) = rest.strip_prefix(mark) {
            return Some((item.trim_start(), Some(ticked)));
        }
    }
    Some((rest, None))
}

/// The name of the tag with which a line begins; programs put their notes between such tags.
fn opened_tag(line: &str) -> Option<&str> {
    let rest = line.strip_prefix('<')?;
    let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'))?;
    (end > 1 && (rest[end..].starts_with('>') || rest[end..].starts_with(' ')) && rest.contains('>'))
        .then(|| &rest[..end])
}

fn closes(text: &str, name: &str) -> bool {
    text.match_indices("</").any(|(at, _)| {
        text[at + 2..].strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with('>'))
    })
}

/// The text without emphasis marks.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut before = ' ';
    while let Some(c) = chars.next() {
        if (c == '*' || c == '_') && chars.peek() == Some(&c) {
            chars.next();
            // `__init__` is a name, not emphasis.
            let inside = !before.is_whitespace() || chars.peek().is_some_and(char::is_ascii_lowercase);
            if c == '_' && inside {
                out.push_str("__");
            }
        } else {
            out.push(c);
        }
        before = c;
    }
    out
}

/// Whether a line is not prose: code, a log line, a prompt, a stack frame.
pub(super) fn is_code(line: &str) -> bool {
    let bytes = line.as_bytes();
    let last = bytes.last().copied().unwrap_or_default();
    if matches!(last, b'{' | b'}' | b';')
        || line.starts_with("$ ")
        || line.starts_with("at ") && line.contains(':')
    {
        return true;
    }
    // Mostly punctuation: separators, diffs, JSON, tables drawn with characters.
    let signs = line
        .chars()
        .filter(|c| c.is_ascii_punctuation() && !matches!(c, '`' | '*' | '-' | '.' | ',' | '/' | '!' | '?'))
        .count();
    let chars = line.chars().count();
    chars > 3 && signs * 4 > chars
}

/// Calls back for every sentence of one paragraph.
fn split(paragraph: &str, mut found: impl FnMut(String)) {
    let mut start = 0;
    let mut coded = false;
    let mut chars = paragraph.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if c == '`' {
            coded = !coded;
        }
        if coded {
            continue;
        }
        let ends = match c {
            '。' | '！' | '？' | '｡' => true,
            '.' | '!' | '?' | '…' | '؟' => {
                // Quotes and brackets after the full stop still belong to the sentence.
                while chars.peek().is_some_and(|(_, c)| {
                    matches!(c, '.' | '!' | '?' | '"' | '\'' | ')' | '”' | '’' | '“' | '*')
                }) {
                    chars.next();
                }
                let end = chars.peek().map_or(paragraph.len(), |(at, _)| *at);
                let mut behind = paragraph[end..].chars();
                let gap = behind.next().is_none_or(char::is_whitespace);
                let next = paragraph[end..].trim_start().chars().next();
                gap && (c != '.'
                    || (!next.is_some_and(char::is_lowercase) && !is_abbreviation(&paragraph[start..at])))
            }
            _ => false,
        };
        if ends {
            let end = chars.peek().map_or(paragraph.len(), |(at, _)| *at);
            emit(&paragraph[start..end], &mut found);
            start = end;
        }
    }
    emit(&paragraph[start..], &mut found);
}

fn emit(text: &str, found: &mut impl FnMut(String)) {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.chars().any(char::is_alphanumeric) {
        found(text);
    }
}

/// Whether the dot after this text ends an abbreviation ("e.g.", "Dr.", "z. B.", "3.") and not a sentence.
fn is_abbreviation(before: &str) -> bool {
    const SHORT: [&str; 26] = [
        "e.g", "i.e", "etc", "vs", "cf", "mr", "mrs", "ms", "dr", "prof", "st", "no", "fig", "approx", "inc",
        "z.b", "d.h", "u.a", "bzw", "ca", "usw", "nr", "str", "evtl", "ggf", "inkl",
    ];
    // "am 3. Mai", "in der 3. Klasse", but not "see chapter 3. Then".
    const BEFORE_ORDINALS: [&str; 16] = [
        "am", "der", "die", "das", "dem", "den", "des", "im", "zum", "zur", "vom", "beim", "bis", "ab",
        "und", "oder",
    ];
    let mut words = before.rsplit(|c: char| c.is_whitespace() || c == '(');
    let word = words.next().unwrap_or_default();
    let lower = word.to_lowercase();
    let mut is_ordinal = || {
        let number = !word.is_empty() && word.len() <= 2 && word.bytes().all(|b| b.is_ascii_digit());
        let before = words.find(|word| !word.is_empty()).unwrap_or_default().to_lowercase();
        number
            && (before.is_empty()
                || before.ends_with([',', ':'])
                || BEFORE_ORDINALS.contains(&before.as_str()))
    };
    SHORT.contains(&lower.as_str())
        || (word.chars().count() == 1 && word.chars().all(char::is_alphabetic))
        || is_ordinal()
}

/// The text, or its beginning up to the last word that fits, with an ellipsis.
pub(super) fn clip(text: &str, chars_max: usize) -> String {
    let Some((end, _)) = text.char_indices().nth(chars_max) else { return text.to_string() };
    // One character less than allowed, to leave room for the ellipsis.
    let end = text[..end].char_indices().next_back().map_or(0, |(at, _)| at);
    let head = &text[..end];
    let cut = match head.rfind(char::is_whitespace) {
        // A word longer than half of the room is cut, because otherwise next to nothing would be shown.
        Some(space) if space * 2 > end => space,
        _ => end,
    };
    format!("{}…", head[..cut].trim_end_matches(|c: char| c.is_whitespace() || ",;:-–(".contains(c)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        sentences(text).into_iter().map(|sentence| sentence.text).collect()
    }

    #[test]
    fn prose_is_split_into_whole_sentences() {
        for (text, expected) in [
            ("One. Two! Three? Four", vec!["One.", "Two!", "Three?", "Four"]),
            (
                "Use e.g. main.rs, v1.2.3 or `a. B`. Then stop.",
                vec!["Use e.g. main.rs, v1.2.3 or `a. B`.", "Then stop."],
            ),
            ("Am 3. Mai kommt Dr. Weiß. Gut.", vec!["Am 3. Mai kommt Dr. Weiß.", "Gut."]),
            ("It is in chapter 4. The rest is open.", vec!["It is in chapter 4.", "The rest is open."]),
            ("a line\nthat wraps.\n\nNew paragraph", vec!["a line that wraps.", "New paragraph"]),
            ("她来了。真的吗？好！", vec!["她来了。", "真的吗？", "好！"]),
            ("He said \"stop!\" Then left.", vec!["He said \"stop!\"", "Then left."]),
            ("see https://example.org/a?b=c. Done.", vec!["see https://example.org/a?b=c.", "Done."]),
            ("...", vec![]),
        ] {
            assert_eq!(texts(text), expected, "{text}");
        }
    }

    #[test]
    fn code_tables_quotes_and_machine_notes_are_not_prose() {
        let text = "Before.\n```rust\nfn main() {}\nnot a sentence.\n```\n| a | b |\n> quoted words\n<note>\nhidden\n</note>\n\
                    let x = 1;\n    indented code\n$ cargo test\nAfter.";
        assert_eq!(texts(text), ["Before.", "After."]);
        assert_eq!(texts("<note> never closed\nshown"), ["shown"]);
        assert_eq!(texts("a < b and c > d"), ["a < b and c > d"]);
    }

    #[test]
    fn a_heading_says_what_its_list_is() {
        let found = sentences(
            "## Next steps\n- Write docs\n- [x] Ship it\n\nOther.\n\nOpen questions:\n1. Which port?\n",
        );
        let seen: Vec<_> = found.iter().map(|s| (s.text.as_str(), s.lead, s.ticked)).collect();
        assert_eq!(
            seen,
            [
                ("Write docs", Some(Group::Pending), None),
                ("Ship it", Some(Group::Pending), Some(true)),
                ("Other.", None, None),
                ("Which port?", Some(Group::Open), None),
            ]
        );
    }

    #[test]
    fn clipping_ends_at_a_word() {
        assert_eq!(clip("short", 10), "short");
        assert_eq!(clip("alpha beta, gamma", 13), "alpha beta…");
        assert_eq!(clip("ééééééééééé", 5), "éééé…");
        assert!(clip(&"word ".repeat(100), 50).chars().count() <= 50);
    }

    #[test]
    fn emphasis_goes_and_names_stay() {
        assert_eq!(plain("**Bold** move in __init__.py"), "Bold move in __init__.py");
        assert_eq!(plain("call __init__ now"), "call __init__ now");
    }
}
