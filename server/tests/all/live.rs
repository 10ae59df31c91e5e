//! A reader of server-sent events, frame by frame.

use reqwest::{RequestBuilder, Response};
use serde_json::Value;
use std::time::Duration;
use tokio::time::timeout;

pub struct Live {
    response: Response,
    unread: Vec<u8>,
    /// No frame ends before this offset.
    searched: usize,
    /// Number of comments so far.
    pub comments: usize,
    /// The last value of `retry:`.
    pub retry: Option<String>,
}

#[derive(Debug)]
pub struct Seen {
    pub name: String,
    pub id: String,
    pub data: Value,
}

impl Live {
    pub async fn connect(request: RequestBuilder) -> Live {
        let response = request.header("accept", "text/event-stream").send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert!(response.headers().get("content-encoding").is_none());
        Live { response, unread: Vec::new(), searched: 0, comments: 0, retry: None }
    }

    /// The next frame; `None` at the end.
    pub async fn next(&mut self) -> Option<Seen> {
        loop {
            let from = self.searched;
            let end = self.unread[from..].windows(2).position(|pair| pair == b"\n\n");
            self.searched = self.unread.len().saturating_sub(1);
            if let Some(end) = end.map(|end| end + from) {
                self.searched = 0;
                let block: Vec<u8> = self.unread.drain(..end + 2).collect();
                match self.read(std::str::from_utf8(&block).unwrap()) {
                    Some(seen) => return Some(seen),
                    None => continue,
                }
            }
            let more = timeout(Duration::from_secs(30), self.response.chunk()).await;
            match more.expect("nothing came for half a minute").unwrap() {
                Some(more) => self.unread.extend_from_slice(&more),
                None => return None,
            }
        }
    }

    /// The next frame, which must have this name.
    pub async fn expect(&mut self, name: &str) -> Seen {
        let seen = self.next().await.expect("the stream goes on");
        assert_eq!(seen.name, name, "{seen:?}");
        seen
    }

    pub async fn heartbeat(&mut self) {
        while self.comments == 0 {
            let more = timeout(Duration::from_secs(30), self.response.chunk()).await;
            self.unread.extend_from_slice(&more.expect("a heartbeat").unwrap().expect("the stream goes on"));
            let text = String::from_utf8_lossy(&self.unread).into_owned();
            self.comments += text.lines().filter(|line| line.starts_with(':')).count();
        }
    }

    fn read(&mut self, block: &str) -> Option<Seen> {
        let mut seen = Seen { name: String::new(), id: String::new(), data: Value::Null };
        let mut data = Vec::new();
        for line in block.lines() {
            match line.split_once(": ") {
                _ if line.starts_with(':') => self.comments += 1,
                Some(("event", name)) => seen.name = name.into(),
                Some(("id", id)) => seen.id = id.into(),
                Some(("data", text)) => data.push(text),
                Some(("retry", text)) => self.retry = Some(text.into()),
                _ => assert!(line.is_empty(), "{line:?}"),
            }
        }
        if seen.name.is_empty() {
            return None;
        }
        seen.data = serde_json::from_str(&data.join("\n")).unwrap();
        Some(seen)
    }
}
