//! Logs in a message: lines of a program, not words of the person who pasted them.

use super::prose::is_code;
use std::borrow::Cow;

/// Minimum number of lines of a program that make a log. A single one is a quotation.
const LINES_MIN: usize = 2;

/// Splits a message into the words of its author and the logs in it. In each paragraph, a log reaches from the first line of a
/// program to the last one.
pub(super) fn split(text: &str) -> (Cow<'_, str>, Option<String>) {
    if !text.contains('\n') {
        return (Cow::Borrowed(text), None);
    }
    let lines: Vec<&str> = text.lines().collect();
    let mut printed: Vec<bool> = lines.iter().map(|line| is_printed(line)).collect();
    for at in 1..lines.len() {
        printed[at] |= printed[at - 1] && goes_on(lines[at]);
    }
    let is_log = printed.iter().filter(|printed| **printed).count() >= LINES_MIN;
    if !is_log && !lines.iter().any(|line| is_of_diff(line)) {
        return (Cow::Borrowed(text), None);
    }
    let (mut words, mut log) = (String::new(), String::new());
    let mut from = 0;
    while from < lines.len() {
        let blank = lines[from..].iter().position(|line| line.trim().is_empty());
        let to = blank.map_or(lines.len(), |at| from + at);
        let first = printed[from..to].iter().position(|printed| *printed).map_or(to, |at| from + at);
        let last = printed[from..to].iter().rposition(|printed| *printed).map_or(to, |at| from + at + 1);
        for (index, line) in lines.iter().enumerate().take(to).skip(from) {
            let target = if (first..last).contains(&index) { &mut log } else { &mut words };
            target.push_str(line);
            target.push('\n');
        }
        words.push('\n');
        from = to + 1;
    }
    (Cow::Owned(words), Some(log))
}

/// Whether this is a line of a diff with its number, as some agents show them: "+314 - Tips for". A person writes none.
fn is_of_diff(line: &str) -> bool {
    let first = line.split_whitespace().next().unwrap_or_default();
    let number = first.strip_prefix(['+', '-']).unwrap_or_default();
    number.len() > 1 && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a line goes on with what a program printed before it: "Waiting for the debugger to disconnect...".
fn goes_on(line: &str) -> bool {
    line.trim_end().ends_with("...")
}

/// Whether a line looks like the output of a program.
fn is_printed(line: &str) -> bool {
    const BEGINNINGS: [&str; 22] = [
        "error:",
        "error[",
        "warning:",
        "fatal:",
        "hint:",
        "panic:",
        "traceback (",
        "caused by",
        "at ",
        "-->",
        "= help",
        "= note",
        "npm err",
        "make:",
        "thread '",
        "exception in",
        "test result:",
        "--- fail",
        "node.js v",
        "$ ",
        "➜ ",
        "❯ ",
    ];
    const LEVELS: [&str; 10] =
        ["ERROR", "WARN", "WARNING", "INFO", "DEBUG", "TRACE", "FATAL", "CRITICAL", "FAIL", "FAILED"];
    let trimmed = line.trim();
    let Some(first) = trimmed.split_whitespace().next() else { return false };
    if is_of_diff(line) {
        return true;
    }
    let is_item = first.len() <= 2 && first.starts_with(['-', '*', '+', '•']);
    if is_item || trimmed.starts_with("```") {
        return false;
    }
    let begins = |word: &&str| {
        trimmed.as_bytes().get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word.as_bytes()))
    };
    let is_frame = || !begins(&"at ") || trimmed.contains([':', '(']);
    let mut words = trimmed.split_whitespace();
    line.starts_with("  ")
        || line.contains('\t')
        || !trimmed.contains(char::is_alphanumeric)
        || LEVELS.contains(&first.trim_matches(|c: char| !c.is_ascii_alphanumeric()))
        || (BEGINNINGS.iter().any(begins) && is_frame())
        || first.strip_prefix('#').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        || words.clone().take(4).any(is_clock)
        || words.clone().take(2).any(|word| word.ends_with("Error:") || word.ends_with("Exception:"))
        || words.clone().filter(|word| is_field(word)).count() >= 2
        || is_place(first)
        || words.any(|word| word == "...") && LEVELS.iter().any(|level| trimmed.ends_with(level))
        || is_code(trimmed)
}

/// A time of day with its seconds, with or without a date: `2026-11-12T08:14:02Z`, `[08:14:02]`.
fn is_clock(word: &str) -> bool {
    word.as_bytes().windows(8).any(|at| {
        at.iter()
            .enumerate()
            .all(|(n, byte)| if n == 2 || n == 5 { *byte == b':' } else { byte.is_ascii_digit() })
    })
}

/// `level=info`.
fn is_field(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, value)| {
        !value.is_empty()
            && !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
    })
}

/// `Dockerfile:31`, `src/a.rs:10:5:`.
fn is_place(word: &str) -> bool {
    let mut parts = word.trim_end_matches(':').split(':');
    let name = parts.next().unwrap_or_default();
    let mut numbers = parts.clone();
    name.starts_with(|c: char| c.is_alphabetic() || c == '/')
        && numbers.next().is_some()
        && parts.all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pasted_log_is_not_what_its_author_says() {
        for (text, words) in [
            (
                "It fails again:\n\n2026-11-12T08:14:02Z WARN operators must acknowledge\nERROR giving up\ntest a ... FAILED\n\nWhy?",
                "It fails again: Why?",
            ),
            (
                "See the log.\n#9 0.4 Updating the index\n#9 3.2 warning: profiles will be ignored\nYou must set DIR\n------",
                "See the log.",
            ),
            (
                "java.lang.IllegalStateException: closed\n\tat a.b.C.d(C.java:12)\nNever seen before.",
                "Never seen before.",
            ),
            ("level=warn msg=slow took=3s\nlevel=info msg=done", ""),
            ("+314 - Tips for themes\n\nkill this.", "kill this."),
            (
                "It crashed.\n\n/a/theme.ts:213\n    throw new Error();\n\n    at main (/a/main.ts:5:2)\nWaiting for the debugger to \
                 disconnect...\n\nNode.js v23.4.0\nWaiting for the debugger to disconnect...",
                "It crashed.",
            ),
            // A single line is a quotation, a list is what its author says.
            ("I get this:\nerror: no such file", "I get this: error: no such file"),
            (
                "Rules:\n- never push\n- always test\n- keep it small",
                "Rules: - never push - always test - keep it small",
            ),
            ("One.\nTwo.", "One. Two."),
        ] {
            let said = split(text).0;
            assert_eq!(said.split_whitespace().collect::<Vec<_>>().join(" "), words, "{text}");
        }
    }
}
