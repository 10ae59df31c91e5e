//! Messages as lines: the transport of MCP over standard input and output.
//!
//! The SDK's own transport does not answer a line that it cannot read, so the client waits forever. This one answers, with the
//! id of the request wherever that can be read, and keeps tool calls in the order of their arrival.

use futures_util::StreamExt;
use parking_lot::Mutex;
use rmcp::RoleServer;
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, ErrorCode, JsonRpcMessage, RequestId};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use serde_json::value::RawValue;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio_util::bytes::BytesMut;
use tokio_util::codec::{Decoder, FramedRead};

/// Maximum length of a message, in bytes.
const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Reads and writes messages, one in a line.
pub struct Lines<R, W> {
    read: FramedRead<R, LineDecoder>,
    write: Arc<tokio::sync::Mutex<Option<W>>>,
    /// Resolves when the last tool call is over.
    last_call: Option<oneshot::Receiver<()>>,
}

impl<R: AsyncRead, W> Lines<R, W> {
    pub fn new((read, write): (R, W)) -> Lines<R, W> {
        let write = Arc::new(tokio::sync::Mutex::new(Some(write)));
        Lines { read: FramedRead::new(read, LineDecoder::default()), write, last_call: None }
    }
}

impl<R, W> Transport<RoleServer> for Lines<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let write = self.write.clone();
        async move { write_line(&write, serde_json::to_vec(&item)?).await }
    }

    /// Dropping the future loses nothing.
    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            let heard = match self.read.next().await?.ok()? {
                Some(line) => read(&line),
                None => {
                    let text = format!("a message has at most {LINE_BYTES_MAX} bytes; send less at a time");
                    ParsedLine::Refused(refusal(ErrorCode::INVALID_REQUEST, None, &text))
                }
            };
            match heard {
                ParsedLine::Message(mut message) => {
                    if let JsonRpcMessage::Request(request) = &mut *message
                        && let ClientRequest::CallToolRequest(call) = &mut request.request
                    {
                        let (done, over) = oneshot::channel();
                        let before = self.last_call.replace(over);
                        call.extensions.insert(CallOrder(Arc::new(Mutex::new(Some((before, done))))));
                    }
                    return Some(*message);
                }
                ParsedLine::Nothing => {}
                ParsedLine::Refused(answer) => {
                    // In a task of its own: this future may be dropped in the middle of a line.
                    let write = self.write.clone();
                    let written = tokio::spawn(async move { write_line(&write, answer.into_bytes()).await });
                    written.await.ok()?.ok()?;
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.write.lock().await.take();
        Ok(())
    }
}

async fn write_line<W: AsyncWrite + Unpin>(
    write: &tokio::sync::Mutex<Option<W>>,
    mut line: Vec<u8>,
) -> Result<(), io::Error> {
    line.push(b'\n');
    let mut write = write.lock().await;
    let write = write.as_mut().ok_or(io::ErrorKind::NotConnected)?;
    write.write_all(&line).await?;
    write.flush().await
}

type CallEnds = (Option<oneshot::Receiver<()>>, oneshot::Sender<()>);

/// Position of a tool call among those of its connection.
#[derive(Clone)]
pub struct CallOrder(Arc<Mutex<Option<CallEnds>>>);

impl CallOrder {
    /// Waits until the calls before it are over. The next call waits until the returned sender is dropped.
    pub async fn wait(&self) -> Option<oneshot::Sender<()>> {
        let (before, done) = self.0.lock().take()?;
        if let Some(before) = before {
            // It ends by being dropped.
            let _ = before.await;
        }
        Some(done)
    }
}

/// Content of a line.
enum ParsedLine {
    Message(Box<ClientJsonRpcMessage>),
    /// Not a request: the client does not wait for an answer.
    Nothing,
    /// Not a message; the answer to it.
    Refused(String),
}

/// Fields of any message. They can be read even if another field contains half of a surrogate pair.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<IgnoredAny>,
    result: Option<IgnoredAny>,
    error: Option<IgnoredAny>,
}

fn read(line: &[u8]) -> ParsedLine {
    let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return ParsedLine::Nothing;
    }
    let refused = |code, id: Option<&RawValue>, text: &str| ParsedLine::Refused(refusal(code, id, text));
    let Some(text) =
        std::str::from_utf8(line).ok().filter(|line| serde_json::from_str::<&RawValue>(line).is_ok())
    else {
        let text = "this line is not JSON; send each message as a line of UTF-8";
        return refused(ErrorCode::PARSE_ERROR, None, text);
    };
    let Ok(Envelope { id, method, result, error: failure }) = serde_json::from_str(text) else {
        let text = "a message is an object with `jsonrpc`, `id` and `method`; send one in each line";
        return refused(ErrorCode::INVALID_REQUEST, None, text);
    };
    let error = match serde_json::from_str(text) {
        Ok(message) => return ParsedLine::Message(Box::new(message)),
        Err(error) => error,
    };
    let is_answer = method.is_none() && (result.is_some() || failure.is_some());
    match (id, method) {
        (None, Some(_)) => ParsedLine::Nothing,
        _ if is_answer => ParsedLine::Nothing,
        // The object as a whole is JSON.
        (id, Some(_)) if error.is_syntax() => {
            refused(ErrorCode::INVALID_PARAMS, id, &format!("a text cannot be read: {error}"))
        }
        (id, _) => {
            let text = "not a message of this protocol; a request has `jsonrpc`, `id`, `method` and `params`";
            refused(ErrorCode::INVALID_REQUEST, id, text)
        }
    }
}

fn refusal(code: ErrorCode, id: Option<&RawValue>, text: &str) -> String {
    let id: Option<RequestId> = id.and_then(|id| serde_json::from_str(id.get()).ok());
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code.0, "message": text}}).to_string()
}

/// Splits at newlines. `None` is a line that is too long.
#[derive(Default)]
struct LineDecoder {
    /// Number of bytes that hold no newline.
    seen: usize,
    /// Whether the rest of a line is skipped.
    skips: bool,
}

impl Decoder for LineDecoder {
    type Item = Option<BytesMut>;
    type Error = io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Option<BytesMut>>, io::Error> {
        loop {
            match buffer[self.seen..].iter().position(|byte| *byte == b'\n') {
                Some(at) => {
                    let line = buffer.split_to(self.seen + at + 1);
                    self.seen = 0;
                    if !std::mem::take(&mut self.skips) {
                        return Ok(Some(Some(line).filter(|line| line.len() <= LINE_BYTES_MAX)));
                    }
                }
                None if buffer.len() > LINE_BYTES_MAX => {
                    buffer.clear();
                    self.seen = 0;
                    return Ok(if std::mem::replace(&mut self.skips, true) { None } else { Some(None) });
                }
                None => {
                    self.seen = buffer.len();
                    return Ok(None);
                }
            }
        }
    }

    fn decode_eof(&mut self, buffer: &mut BytesMut) -> Result<Option<Option<BytesMut>>, io::Error> {
        match self.decode(buffer)? {
            None if !buffer.is_empty() && !self.skips => {
                self.seen = 0;
                Ok(Some(Some(buffer.split())))
            }
            None => {
                buffer.clear();
                Ok(None)
            }
            line => Ok(line),
        }
    }
}
