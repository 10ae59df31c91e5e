//! Answers from their bytes, wherever they are cut or broken.

use super::text;
use crate::wire::*;

fn read(kind: Protocol, bytes: &[u8], pieces: usize) -> (Vec<Delta>, Result<ModelReply, Failure>) {
    let mut reader = Reader::new(kind, MODEL_ANSWER_BYTES_MAX);
    let mut deltas = Vec::new();
    for piece in bytes.chunks(pieces) {
        if let Err(failure) = reader.feed(piece, &mut deltas) {
            return (deltas, Err(failure));
        }
    }
    let answer = reader.finish(&mut deltas);
    (deltas, answer)
}

#[test]
fn bytes_are_read_for_what_they_are() {
    let events = "data: {\"choices\":[{\"delta\":{\"content\":\"é😀\"}}]}\n\ndata: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n";
    let whole = r#"{"choices":[{"message":{"role":"assistant","content":"é😀"},"finish_reason":"stop"}]}"#;
    for bytes in [
        format!("{events}data: [DONE]\n\n"),
        format!("\u{feff}: hello\n\n{events}"),
        format!("\r\n\r\n{}", events.replace('\n', "\r\n")),
        // The last empty line is missing, or the end came in the middle of what is not needed any more.
        events.trim_end().to_string(),
        format!("{events}data: [DO"),
        whole.to_string(),
        format!("\u{feff} \n{whole}\n"),
    ] {
        for pieces in [1, 2, 3, 7, 1000] {
            let (deltas, answer) = read(Protocol::OpenaiChat, bytes.as_bytes(), pieces);
            assert_eq!(deltas, [text("é😀")], "{bytes}");
            assert_eq!(answer.unwrap().text, "é😀");
        }
    }
}

#[test]
fn a_broken_body_is_told_from_one_of_another_kind() {
    let word = "data: {\"choices\":[{\"delta\":{\"content\":\"é\"}}]}\n\n";
    for (bytes, code) in [
        (String::new(), "model.stream_cut"),
        ("  \n".to_string(), "model.stream_cut"),
        (word.to_string(), "model.stream_cut"),
        (format!("{word}data: {{\"choices\":[{{\"fini"), "model.stream_cut"),
        ("hello world".to_string(), "model.garbage"),
        (": just a comment\n\n".to_string(), "model.garbage"),
        ("<!DOCTYPE html><p>hello".to_string(), "model.garbage"),
        ("{\"choices\":".to_string(), "model.garbage"),
        ("[]".to_string(), "model.garbage"),
        (format!("{word}data: nonsense\n\n"), "model.garbage"),
    ] {
        let (_, answer) = read(Protocol::OpenaiChat, bytes.as_bytes(), 5);
        assert_eq!(answer.unwrap_err().error(None).code(), code, "{bytes}");
    }
    // Everything before the break was returned.
    assert_eq!(
        read(Protocol::OpenaiChat, format!("{word}data: nonsense\n\n").as_bytes(), 1000).0,
        [text("é")]
    );
    // In the middle of a character.
    assert_eq!(
        read(Protocol::OpenaiChat, &word.as_bytes()[..45], 9).1.unwrap_err().error(None).code(),
        "model.garbage"
    );
    assert_eq!(
        read(Protocol::OpenaiChat, &[word.as_bytes(), &word.as_bytes()[..45]].concat(), 9)
            .1
            .unwrap_err()
            .error(None)
            .code(),
        "model.stream_cut"
    );
}

#[test]
fn an_answer_above_the_limit_is_refused_with_both_numbers() {
    for bytes in ["data: {}\n\n", "{\"a\":[", "  "] {
        let mut reader = Reader::new(Protocol::Anthropic, 1000);
        let failure = (0..1000).find_map(|_| reader.feed(bytes.as_bytes(), &mut Vec::new()).err()).unwrap();
        let error = failure.error(None);
        assert!(
            error.code() == "limit.exceeded"
                && error.text().contains("MODEL_ANSWER_BYTES_MAX is 1000, this is 10"),
            "{error}"
        );
    }
}
