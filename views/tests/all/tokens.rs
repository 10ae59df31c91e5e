//! Token counts, compared with another implementation.

use everturn_views::tokens::TokenizerFamily;
use proptest::prelude::*;
use tiktoken_rs::{cl100k_base_singleton, o200k_base_singleton};

fn assert_same(text: &str) {
    let counts = (TokenizerFamily::Cl100k.count(text), TokenizerFamily::O200k.count(text));
    let expected =
        (cl100k_base_singleton().count_ordinary(text), o200k_base_singleton().count_ordinary(text));
    assert_eq!(counts, (expected.0 as u64, expected.1 as u64), "{text:?}");
}

proptest! {
    #[test]
    fn any_text(text in r"\PC{0,80}") {
        assert_same(&text);
    }

    /// Boundaries at which vocabularies split texts: letters of both cases, marks, digits, white space, line
    /// ends, apostrophes.
    #[test]
    fn texts_with_many_edges(text in r"([ \t\n\r\u{a0}\u{3000}]{1,3}|[a-zA-Z]{1,9}|'(s|LL|re|ſ)|[0-9]{1,5}|[ÀéßǅªɐΩж漢字カナमि́]{1,4}|[.,;:/\\(){}=_-]{1,4}|[😀👩🏽‍🚀]{1,3}){0,24}") {
        assert_same(&text);
    }
}

/// `examples/write-vocabularies.rs` writes the files.
#[test]
fn the_vocabularies_are_those_of_the_package() {
    for (name, vocabulary) in
        [("cl100k_base", cl100k_base_singleton()), ("o200k_base", o200k_base_singleton())]
    {
        let path = format!("{}/data/{name}.tokens", env!("CARGO_MANIFEST_DIR"));
        let file = std::fs::read(path).expect("it is in the package");
        let (mut rest, mut rank) = (&file[..], 0);
        while let Some((length, after)) = rest.split_first() {
            let (token, after) = after.split_at(usize::from(*length));
            assert!(
                vocabulary.decode_bytes(&[rank]).is_ok_and(|expected| expected == token),
                "{name} {rank}"
            );
            (rest, rank) = (after, rank + 1);
        }
        assert!(vocabulary.decode_bytes(&[rank]).is_err(), "{name} goes on after {rank}");
    }
}

#[test]
fn long_pieces_and_real_text() {
    for text in [
        "x".repeat(3000),
        "ab".repeat(1500),
        " ".repeat(3000) + "end",
        "\n".repeat(500),
        "=".repeat(500) + "\r\n\r\n  \n",
        "aGVsbG8gd29ybGQ".repeat(60),
        include_str!("tokens.rs").into(),
        include_str!("../../../README.md").into(),
    ] {
        assert_same(&text);
    }
}

/// Hostile text takes time proportional to its length: a piece of a million bytes would otherwise take hours.
#[test]
fn a_piece_of_a_million_bytes_is_counted() {
    assert_eq!(TokenizerFamily::O200k.count(&"x".repeat(1 << 20)), 1 << 17);
}
