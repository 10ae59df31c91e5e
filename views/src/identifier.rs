//! Names found in text: paths, symbols, ids.
//!
//! A hand-written scan, without a regular expression and without allocating, because projection and compaction
//! run it over every tool result of a conversation. Letters of scripts that do not put spaces between words end
//! a name, so that a path in the middle of a Chinese sentence is found.

use std::cell::LazyCell;

/// Category of a name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IdentifierKind {
    /// `core/src/lib.rs`, `/tmp/x`, `C:\logs\a.txt`.
    Path,
    /// `Cargo.toml`: no folder, a known file extension.
    FileName,
    /// `a::b`, `CamelCase`, `Widget4`, `snake_case`.
    Symbol,
    /// `#123`.
    Issue,
    /// The id of an object: 7 to 64 hexadecimal digits, including a letter and a digit.
    Hex,
    /// `123e4567-e89b-12d3-a456-426614174000`.
    Uuid,
    /// `https://…`.
    Url,
    /// A number with a unit: `250ms`, `8 KiB`, `12%`.
    Quantity,
}

/// A name in a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identifier<'a> {
    /// Category.
    pub kind: IdentifierKind,
    /// The name without a leading `./`, a trailing `:line` or `:line:column`, or surrounding punctuation.
    pub text: &'a str,
}

/// Calls back for every name, in order. For `a::snake_case`, both the whole and its meaningful parts are names.
pub fn scan<'a>(text: &'a str, mut found: impl FnMut(Identifier<'a>)) {
    words(
        text,
        &mut Every(|kind: Option<IdentifierKind>, text| {
            if let Some(kind) = kind {
                found(Identifier { kind, text });
            }
            true
        }),
    );
}

/// Receiver of words.
pub(crate) trait Reader<'a> {
    /// Whether the word is wanted at all. Only then is its kind determined, which takes longer than reading it.
    fn wants(&self, word: &'a str) -> bool;

    /// Receives a word, with its kind if it is a name. Returns whether to continue.
    fn found(&mut self, kind: Option<IdentifierKind>, word: &'a str) -> bool;

    /// Receives a word of prose or a whole number. Neither is a name by itself.
    fn plain(&mut self, _word: &'a str) {}
}

/// Receives every word that is not plain.
pub(crate) struct Every<F>(pub(crate) F);

impl<'a, F: FnMut(Option<IdentifierKind>, &'a str) -> bool> Reader<'a> for Every<F> {
    fn wants(&self, _: &'a str) -> bool {
        true
    }

    fn found(&mut self, kind: Option<IdentifierKind>, word: &'a str) -> bool {
        (self.0)(kind, word)
    }
}

// Character classes of a word. Most words of prose consist of letters only and are skipped at once.
const LOWER: u8 = 1;
const UPPER: u8 = 2;
const DIGIT: u8 = 4;
const UNDERSCORE: u8 = 8;
const SLASH: u8 = 16;
const MARK: u8 = 32;
const WIDE: u8 = 64;
const COLONS: u8 = 128;

const CLASS: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b'a'..=b'z' => LOWER,
            b'A'..=b'Z' => UPPER,
            b'0'..=b'9' => DIGIT,
            b'_' => UNDERSCORE,
            b'/' => SLASH,
            b'.' | b'-' | b'@' | b'~' | b'+' => MARK,
            0x80..=0xff => WIDE,
            _ => 0,
        };
        byte += 1;
    }
    table
};

/// Passes every word to the reader, without surrounding punctuation. Continues as long as the reader does, and
/// returns whether it reached the end.
pub(crate) fn words<'a>(text: &'a str, reader: &mut impl Reader<'a>) -> bool {
    let bytes = text.as_bytes();
    let at_byte = |at: usize| bytes.get(at).copied().unwrap_or(b' ');
    let (mut at, mut more) = (0, true);
    while more && at < bytes.len() {
        // There is often more than a space between words.
        while CLASS[at_byte(at) as usize] == 0 && at_byte(at) != b'#' && at < bytes.len() {
            at += 1;
        }
        let start = at;
        let mut made_of = 0;
        loop {
            // Most of a word consists of these, and most words end where they do.
            for byte in &bytes[at..] {
                let class = CLASS[*byte as usize];
                if class & !WIDE == 0 {
                    break;
                }
                made_of |= class;
                at += 1;
            }
            let class = CLASS[at_byte(at) as usize];
            if class == WIDE {
                match text[at..].chars().next() {
                    Some(char) if char.is_alphanumeric() && char < '\u{2e80}' => at += char.len_utf8(),
                    _ => break,
                }
            } else if at_byte(at) == b':'
                && at_byte(at + 1) == b':'
                && made_of & (SLASH | MARK) == 0
                && at > start
                && CLASS[at_byte(at + 2) as usize] & (LOWER | UPPER | UNDERSCORE) != 0
            {
                at += 2;
                made_of |= COLONS;
                continue;
            } else {
                break;
            }
            made_of |= class;
        }
        if at == start {
            if at_byte(at) == b'#' && at_byte(at + 1).is_ascii_digit() {
                at = run(bytes, at + 1, |byte| byte.is_ascii_digit());
                if CLASS[at_byte(at) as usize] & !MARK == 0 {
                    more = reader.found(Some(IdentifierKind::Issue), &text[start..at]);
                }
            } else {
                at += text[at..].chars().next().map_or(1, char::len_utf8);
            }
            continue;
        }
        if made_of == LOWER && at_byte(at) != b':' {
            reader.plain(&text[start..at]);
            continue;
        }
        if at_byte(at) == b':' && made_of & !(LOWER | UPPER) == 0 {
            if bytes[at..].starts_with(b"://") {
                at = run(bytes, at, |byte| {
                    !byte.is_ascii_whitespace() && !b"\"'<>`()[]{}|\\^".contains(&byte)
                });
                let url = text[start..at].trim_end_matches(['.', ',', ';', ':', '!', '?', '*', '_']);
                more = reader.found(Some(IdentifierKind::Url), url);
                continue;
            }
            if at - start == 1 && matches!(at_byte(at + 1), b'\\' | b'/') {
                at = run(bytes, at + 1, |byte| byte == b'\\' || CLASS[byte as usize] != 0);
                let path = text[start..at].trim_end_matches(['.', '\\', '/']);
                // A drive alone is not a name.
                more = path.len() <= "C:".len() || reader.found(Some(IdentifierKind::Path), path);
                continue;
            }
        }
        let word = &text[start..at];
        if made_of & DIGIT != 0
            && (word.as_bytes()[0].is_ascii_digit() || word.starts_with(['-', '+']))
            && !is_hex(word)
            && let Some(end) = quantity(text, start, at)
        {
            at = end;
            more = reader.found(Some(IdentifierKind::Quantity), &text[start..end]);
            continue;
        }
        if made_of == LOWER || made_of == DIGIT {
            reader.plain(word);
            continue;
        }
        let closing_tag = start > 0 && bytes[start - 1] == b'<' && bytes[start] == b'/';
        more = name(if closing_tag { &word[1..] } else { word }, made_of, reader);
    }
    more
}

/// The end of the run of bytes that pass.
fn run(bytes: &[u8], from: usize, pass: impl Fn(u8) -> bool) -> usize {
    bytes[from..].iter().position(|byte| !pass(*byte)).map_or(bytes.len(), |n| from + n)
}

/// The end of a number with its unit, if the word is one.
fn quantity(text: &str, start: usize, end: usize) -> Option<usize> {
    #[rustfmt::skip]
    const UNITS: &[&str] = &[
        "ns", "us", "µs", "μs", "ms", "s", "sec", "secs", "second", "seconds", "min", "mins", "minute",
        "minutes", "h", "hr", "hrs", "hour", "hours", "d", "day", "days", "week", "weeks", "B", "b",
        "bytes", "KB", "kB", "kb", "MB", "mb", "GB", "gb", "TB", "KiB", "MiB", "GiB", "TiB", "k", "K", "M",
        "px", "pt", "em", "rem", "Hz", "kHz", "MHz", "GHz", "rps", "qps", "fps", "tokens", "x", "mm", "cm",
        "m", "km", "kg", "g", "mg",
    ];
    let word = text[start..end].trim_end_matches(['.', '-', '+', '/', '@', '~']);
    let digits = word.trim_start_matches(['-', '+']);
    let number = run(digits.as_bytes(), 0, |byte| byte.is_ascii_digit() || byte == b'.');
    if number == 0 || digits.starts_with('.') {
        return None;
    }
    let unit = &digits[number..];
    if !unit.is_empty() {
        return UNITS.contains(&unit).then_some(start + word.len());
    }
    if word.len() < end - start || word.ends_with('.') {
        return None;
    }
    if text[end..].starts_with('%') {
        return Some(end + 1);
    }
    let rest = text[end..].strip_prefix(' ')?;
    let unit = rest.find(|char: char| !char.is_alphanumeric()).unwrap_or(rest.len());
    // A single letter after a space is more often a word or a list than a unit.
    (unit > 1 && UNITS.contains(&&rest[..unit])).then_some(end + 1 + unit)
}

fn name<'a>(word: &'a str, made_of: u8, reader: &mut impl Reader<'a>) -> bool {
    let word = if made_of & (SLASH | MARK) == 0 { word } else { trimmed(word) };
    // Prose has neither underscores nor colons.
    if made_of & (UNDERSCORE | COLONS) == 0 && is_plain(word) {
        reader.plain(word);
        return true;
    }
    let kind = LazyCell::new(|| kind(word));
    if reader.wants(word) && !reader.found(*kind, word) {
        return false;
    }
    let is_scoped = made_of & COLONS != 0;
    let separator = match is_scoped {
        // Colons come in pairs, with nothing between them.
        true => b':',
        false if made_of & MARK != 0 && word.contains('.') && !word.contains('/') => b'.',
        false => return true,
    };
    let (bytes, mut from) = (word.as_bytes(), 0);
    while from < bytes.len() {
        let end = run(bytes, from, |byte| byte != separator);
        let part = &word[from..end];
        from = end + 1;
        if part.is_empty() || part.len() == word.len() {
            continue;
        }
        let is_name =
            reader.wants(part) && is_symbol(part) && *kind == is_scoped.then_some(IdentifierKind::Symbol);
        if is_name && !reader.found(Some(IdentifierKind::Symbol), part) {
            return false;
        }
    }
    true
}

fn trimmed(word: &str) -> &str {
    let mut word = word.trim_end_matches(['.', '-', '+', '~', '@', '/']).trim_start_matches(['-', '+']);
    while let Some(rest) = word.strip_prefix("./") {
        word = rest.trim_start_matches('/');
    }
    if word.starts_with("//") {
        word = word.trim_start_matches('/');
    }
    if word.starts_with("..") && !word.starts_with("../") {
        word = word.trim_start_matches('.');
    }
    word
}

/// Whether a word is prose: letters without an inner capital, or just a number.
fn is_plain(word: &str) -> bool {
    let bytes = word.as_bytes();
    bytes.iter().all(u8::is_ascii_digit)
        || bytes.iter().all(u8::is_ascii_uppercase)
        || bytes[0].is_ascii_alphabetic()
            && bytes[1..].iter().all(|byte| byte.is_ascii_lowercase() || *byte >= 0x80)
}

fn kind(word: &str) -> Option<IdentifierKind> {
    let bytes = word.as_bytes();
    if word.contains('/') {
        return is_path(word).then_some(IdentifierKind::Path);
    }
    if bytes.len() == 36
        && bytes.iter().enumerate().all(|(i, byte)| match i {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
    {
        return Some(IdentifierKind::Uuid);
    }
    if is_hex(word) {
        return Some(IdentifierKind::Hex);
    }
    if word.contains("::") {
        return Some(IdentifierKind::Symbol);
    }
    if has_file_ending(word) {
        return Some(IdentifierKind::FileName);
    }
    is_symbol(word).then_some(IdentifierKind::Symbol)
}

fn is_hex(word: &str) -> bool {
    let bytes = word.as_bytes();
    (7..=64).contains(&bytes.len())
        && bytes.iter().all(u8::is_ascii_hexdigit)
        && bytes.iter().any(u8::is_ascii_digit)
        && bytes.iter().any(u8::is_ascii_alphabetic)
}

/// A slash alone does not make a path: "and/or" and "text/html" are not paths.
fn is_path(word: &str) -> bool {
    const MEDIA: [&str; 5] = ["text/", "application/", "image/", "audio/", "video/"];
    let last = word.rsplit('/').next().unwrap_or_default();
    word.chars().any(char::is_alphabetic)
        && (word.starts_with(['/', '.', '~', '@'])
            || has_file_ending(last)
            || word.matches('/').count() > 1
            || (word.split('/').all(|part| part.len() > 2)
                && !MEDIA.iter().any(|kind| word.starts_with(kind))))
}

/// Uses a list, because `self.name` and `example.com` have a dot as well.
pub(crate) fn has_file_ending(word: &str) -> bool {
    #[rustfmt::skip]
    const ENDINGS: &[&str] = &[
        "avif", "bak", "bash", "bat", "bin", "bmp", "c", "cc", "cfg", "cjs", "clj", "cmake", "cmd", "conf",
        "cpp", "crt", "cs", "css", "csv", "cts", "cu", "cxx", "d", "dart", "db", "diff", "dll", "doc",
        "docx", "el", "env", "erl", "ex", "exe", "exs", "fish", "flac", "fs", "gif", "go", "gql", "gradle",
        "graphql", "groovy", "gz", "h", "hcl", "hh", "hpp", "hs", "htm", "html", "hxx", "ico", "ini",
        "ipynb", "jar", "java", "jl", "jpeg", "jpg", "js", "json", "json5", "jsonc", "jsonl", "jsx", "key",
        "kt", "kts", "less", "lock", "log", "lua", "m", "map", "md", "mdx", "mjs", "mk", "ml", "mod", "mov",
        "mp3", "mp4", "mts", "ndjson", "nim", "nix", "npy", "o", "odt", "ogg", "parquet", "patch", "pdf",
        "pem", "php", "pkl", "pl", "plist", "png", "pptx", "properties", "proto", "ps1", "pub", "py", "pyc",
        "pyi", "r", "rb", "rlib", "rs", "rst", "sass", "scala", "scss", "service", "sh", "snap", "so",
        "sol", "sql", "sqlite", "sum", "svelte", "svg", "swift", "tar", "tex", "tf", "tfvars", "tgz",
        "toml", "ts", "tsv", "tsx", "ttf", "txt", "vue", "wasm", "wav", "webm", "webp", "whl", "woff",
        "woff2", "xls", "xlsx", "xml", "xz", "yaml", "yml", "zig", "zip", "zsh", "zst",
    ];
    let Some((stem, ending)) = word.rsplit_once('.') else { return false };
    if stem.is_empty() {
        // `.collect` at the start of a line is a call; these are endings of hidden files.
        return ["env", "ignore", "rc", "config", "attributes"].iter().any(|last| ending.ends_with(last));
    }
    let mut lower = [0; 10];
    let Some(lower) = lower.get_mut(..ending.len()) else { return false };
    lower.copy_from_slice(ending.as_bytes());
    lower.make_ascii_lowercase();
    ENDINGS.binary_search_by(|known| known.as_bytes().cmp(lower)).is_ok()
}

/// `CamelCase`, `camelCase`, `HTTPServer`, `Widget4` or `snake_case`.
fn is_symbol(word: &str) -> bool {
    let bytes = word.as_bytes();
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
    if !bytes.iter().all(fits) || bytes.first().is_none_or(u8::is_ascii_digit) {
        return false;
    }
    let inner = word.trim_matches('_');
    if inner.contains('_') {
        return inner.bytes().any(|byte| byte.is_ascii_alphabetic() || byte >= 0x80);
    }
    let has = |is: fn(&u8) -> bool| bytes.iter().any(is);
    bytes.windows(2).any(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase())
        || bytes[0].is_ascii_uppercase() && has(u8::is_ascii_lowercase) && has(u8::is_ascii_digit)
        || bytes.windows(4).any(|four| {
            // The plural of an abbreviation ("URLs") is not a symbol.
            four[..2].iter().all(u8::is_ascii_uppercase) && four[2..].iter().all(u8::is_ascii_lowercase)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(text: &str) -> Vec<(IdentifierKind, &str)> {
        let mut found = Vec::new();
        scan(text, |name| found.push((name.kind, name.text)));
        found
    }

    #[test]
    fn finds_each_kind_and_cleans_it() {
        use IdentifierKind::*;
        for (text, expected) in [
            ("see ./core/src/lib.rs:12:5, please.", vec![(Path, "core/src/lib.rs")]),
            ("src/a.rs:10:use std", vec![(Path, "src/a.rs")]),
            ("src/a.rs:10-20", vec![(Path, "src/a.rs")]),
            ("(`/tmp/x/`)", vec![(Path, "/tmp/x")]),
            ("in ~/.config/nvim.", vec![(Path, "~/.config/nvim")]),
            ("../up/x", vec![(Path, "../up/x")]),
            (r"C:\logs\a.txt.", vec![(Path, r"C:\logs\a.txt")]),
            ("\u{201c}src/b.rs\u{201d}", vec![(Path, "src/b.rs")]),
            ("请看src/a.rs文件", vec![(Path, "src/a.rs")]),
            (
                "Cargo.toml, .gitignore and café.md",
                vec![(FileName, "Cargo.toml"), (FileName, ".gitignore"), (FileName, "café.md")],
            ),
            ("tests/x.py::test_y", vec![(Path, "tests/x.py"), (Symbol, "test_y")]),
            ("alloc::fmt::from_slice(", vec![(Symbol, "alloc::fmt::from_slice"), (Symbol, "from_slice")]),
            ("self.user_name", vec![(Symbol, "user_name")]),
            (
                "UserService getUser HTTPServer Widget4 snake_case __init__",
                vec![
                    (Symbol, "UserService"),
                    (Symbol, "getUser"),
                    (Symbol, "HTTPServer"),
                    (Symbol, "Widget4"),
                    (Symbol, "snake_case"),
                ],
            ),
            ("fixes #123, acme/web#7", vec![(Issue, "#123"), (Path, "acme/web"), (Issue, "#7")]),
            ("commit 1a2b3c4 sha256:1234567d", vec![(Hex, "1a2b3c4"), (Hex, "1234567d")]),
            ("123e4567-e89b-12d3-a456-426614174000", vec![(Uuid, "123e4567-e89b-12d3-a456-426614174000")]),
            ("(https://a.b/c?d=e&f).", vec![(Url, "https://a.b/c?d=e&f")]),
            (
                "took 250ms, 8 KiB, 12% of 1.5 GiB and 3 days.",
                vec![
                    (Quantity, "250ms"),
                    (Quantity, "8 KiB"),
                    (Quantity, "12%"),
                    (Quantity, "1.5 GiB"),
                    (Quantity, "3 days"),
                ],
            ),
        ] {
            assert_eq!(names(text), expected, "{text}");
        }
    }

    #[test]
    fn prose_has_no_names() {
        for text in [
            "This is and/or that; text/html, e.g. example.com, 1.2.3, 12:30, 2024/01/02, URLs, I/O, A4, UTF8. End.",
            "<div>one</div> // comment /// doc #fff ... - -- .collect() self.name 1/2 decade 1234567 deadbeef a: b",
            "",
        ] {
            assert_eq!(names(text), [], "{text}");
        }
    }

    #[test]
    fn words_that_are_not_plain_are_seen_too() {
        let mut seen = Vec::new();
        let mut reader = Every(|kind, word| {
            seen.push((kind, word));
            seen.len() < 3
        });
        words("fix ABC-123 in my-crate v1.2 then core/src", &mut reader);
        assert_eq!(seen, [(None, "ABC-123"), (None, "my-crate"), (None, "v1.2")]);
    }

    #[test]
    fn file_endings_are_sorted() {
        // Only then does the binary search find each of them.
        for name in ["a.avif", "a.zst", "a.C", "a.TOML", "a.json", "a.h", "a.properties", "a.woff2"] {
            assert!(has_file_ending(name), "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_scanned(text in "\\PC{0,80}|[a-zA-Z0-9_./:#%<\\\\ µ文-]{0,80}") {
            words(&text, &mut Every(|_, word: &str| !word.is_empty() && text.contains(word) || panic!("{word:?}")));
        }

        /// A name scanned alone is found again as itself.
        #[test]
        fn a_name_scanned_alone_is_itself(text in "[a-zA-Z0-9_./:#% -]{0,60}") {
            for (kind, name) in names(&text) {
                prop_assert!(names(name).contains(&(kind, name)), "{} in {}", name, text);
            }
        }
    }
}
