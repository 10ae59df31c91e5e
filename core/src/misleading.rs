//! Invisible and bidirectional characters, which make a text read differently from its bytes.

use std::borrow::Cow;

/// A text with such characters shown by their number: `‹U+202E›`. Joiners stay where scripts and emoji need them. Control
/// characters stay, too: each output has its own rule for them.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_misleading) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut before = None;
    for c in text.chars() {
        let joins = matches!(c, '\u{200c}' | '\u{200d}') && before.is_some_and(|c: char| !c.is_ascii());
        match is_misleading(c) && !joins {
            true => out.push_str(&format!("‹U+{:04X}›", u32::from(c))),
            false => out.push(c),
        }
        before = Some(c);
    }
    Cow::Owned(out)
}

fn is_misleading(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_misleads_is_shown_by_its_number() {
        for (text, expected) in [
            ("plain, 東京, мир", "plain, 東京, мир"),
            ("mal\u{202e}lory", "mal‹U+202E›lory"),
            ("pay\u{200b}pal\u{ad}", "pay‹U+200B›pal‹U+00AD›"),
            ("a\u{200d}b", "a‹U+200D›b"),
            ("👩\u{200d}💻 می\u{200c}خواهم", "👩\u{200d}💻 می\u{200c}خواهم"),
            ("\u{e0041}", "‹U+E0041›"),
            ("a\u{1b}b", "a\u{1b}b"),
        ] {
            assert_eq!(visible(text), expected);
        }
    }
}
