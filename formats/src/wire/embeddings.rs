//! Embeddings, as OpenAI and the servers compatible with it speak them.

use super::{Failure, parse};
use everturn_core::Error;
use everturn_core::json::Raw;
use serde::Deserialize;
use serde_json::{Value, json};

/// The last part of the URL that embeddings are asked from.
pub const PATH: &str = "embeddings";

/// The body of a request. `dimensions` asks the server to shorten its vectors, which few models can.
pub fn body(model: &str, texts: &[String], dimensions: Option<usize>) -> Result<String, Error> {
    let mut body = json!({"model": model, "input": texts});
    if let Some(dimensions) = dimensions {
        body["dimensions"] = dimensions.into();
    }
    Ok(Raw::of(&body)?.get().to_string())
}

#[derive(Deserialize)]
struct Reply {
    data: Option<Vec<Item>>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Item {
    index: Option<usize>,
    embedding: Vec<f32>,
}

/// The vectors, in the order of the texts; all of one length, all of them numbers.
pub fn read(body: &str, texts: usize) -> Result<Vec<Vec<f32>>, Failure> {
    let answer: Reply = parse(body)?;
    if let Some(error) = answer.error {
        return Err(Failure::of_object(&json!({ "error": error })));
    }
    let items = answer.data.ok_or_else(|| Failure::garbage("it holds no data"))?;
    if items.len() != texts {
        return Err(Failure::garbage(format!("{} vectors for {texts} texts", items.len())));
    }
    let mut vectors = vec![Vec::new(); texts];
    let length = items.first().map_or(0, |item| item.embedding.len());
    for (place, item) in items.into_iter().enumerate() {
        let index = item.index.unwrap_or(place);
        if item.embedding.len() != length || length == 0 {
            return Err(Failure::garbage(format!(
                "vectors of {length} and of {} numbers",
                item.embedding.len()
            )));
        }
        if !item.embedding.iter().all(|number| number.is_finite()) {
            return Err(Failure::garbage("a vector with a number that is none"));
        }
        match vectors.get_mut(index) {
            Some(vector) if vector.is_empty() => *vector = item.embedding,
            _ => return Err(Failure::garbage(format!("index {index} twice, or past the end"))),
        }
    }
    Ok(vectors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_come_in_the_order_of_the_texts() {
        let body = r#"{"data":[{"index":1,"embedding":[3,4]},{"index":0,"embedding":[1,2.5]}]}"#;
        assert_eq!(read(body, 2).unwrap(), [vec![1.0, 2.5], vec![3.0, 4.0]]);
        let unnumbered = r#"{"data":[{"embedding":[1]},{"embedding":[2]}]}"#;
        assert_eq!(read(unnumbered, 2).unwrap(), [vec![1.0], vec![2.0]]);
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        for (body, says) in [
            (r#"{"data":[{"index":0,"embedding":[1]}]}"#, "1 vectors for 2 texts"),
            (r#"{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[2]}]}"#, "index 0 twice"),
            (r#"{"data":[{"index":0,"embedding":[1]},{"index":7,"embedding":[2]}]}"#, "index 7"),
            (
                r#"{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[2,3]}]}"#,
                "vectors of 1 and of 2",
            ),
            (r#"{"data":[{"index":0,"embedding":[]},{"index":1,"embedding":[]}]}"#, "vectors of 0"),
            (
                r#"{"data":[{"index":0,"embedding":[1e300]},{"index":1,"embedding":[1]}]}"#,
                "number that is none",
            ),
            (r#"{"data":[{"index":0,"embedding":"AAAA"},{"index":1,"embedding":[1]}]}"#, "another shape"),
            ("{}", "no data"),
            ("<html>", "not JSON"),
        ] {
            let error = read(body, 2).unwrap_err().error(None);
            assert!(error.code() == "model.garbage" && error.text().contains(says), "{body}: {error:?}");
        }
        let refused = read(r#"{"error":{"code":429,"message":"slow"}}"#, 1).unwrap_err();
        assert_eq!(refused.error(None).code(), "model.rate_limited");
    }
}
