//! `everturn record`

use crate::args::Args;
use crate::client::Client;
use crate::open;
use crate::output::Failure;
use crate::relay::{self, NextLine, PassedLine, PassedLines};
use crate::verbs::session::uuid;
use clap::Args as ClapArgs;
use everturn_api::sessions::{EndSession, LogSession, StartSession};
use everturn_core::Error;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::redaction::without_secrets;
use everturn_core::time::Timestamp;
use everturn_engine::{SystemWorld, World};
use everturn_formats::session::{
    CALL, Dispatches, Entry, NewSession, Sender, Session, SessionFields, SessionOptions, Sink, ToolResult,
};
use everturn_server::Proxy;
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(ClapArgs)]
#[command(
    after_help = "An MCP client starts this command instead of the server; the server's own command follows --. \
    With --to, the client connects to this proxy instead of the server. Messages pass unchanged, even if they cannot be \
    recorded.\n\nExamples:\n  \
    everturn record -- npx -y @modelcontextprotocol/server-filesystem .\n  \
    everturn record --session photos/img_1 -- python server.py\n  \
    everturn record --to http://127.0.0.1:3001/mcp --listen 127.0.0.1:3002"
)]
pub struct Record {
    /// Command that runs the MCP server
    #[arg(value_name = "COMMAND", required_unless_present = "to", last = true)]
    command: Vec<OsString>,
    /// URL of an MCP server over streamable HTTP, instead of a command
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    to: Option<String>,
    /// Address to listen on, with --to
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7318", requires = "to")]
    listen: SocketAddr,
    /// Write a session file into `sessions` of this folder, instead of a conversation
    #[arg(long, value_name = "FOLDER")]
    session: Option<PathBuf>,
    /// Add to this conversation instead of starting one: id, beginning of an id, or @last
    #[arg(long, value_name = "CONV", conflicts_with = "session")]
    conversation: Option<String>,
}

/// Pause between attempts to begin the recording: another program may use the store.
const RETRY: Duration = Duration::from_secs(1);

pub fn run(args: &Args, verb: &Record) -> Result<(), Failure> {
    let (subject, transport) = match (&verb.to, verb.command.first()) {
        (Some(url), _) => (without_secrets(url), "http"),
        (None, Some(program)) => (program.to_string_lossy().into_owned(), "stdio"),
        (None, None) => (String::new(), "stdio"),
    };
    let scribe = RecordWriter {
        args: args.for_thread(),
        folder: verb.session.clone(),
        conversation: verb.conversation.clone(),
        subject,
        transport,
        dispatches: Dispatches::default(),
        began: Instant::now(),
        record: None,
        tried: None,
        calls: BTreeMap::new(),
        has_complained: false,
    };
    match &verb.to {
        Some(url) => serve(scribe, verb.listen, url),
        None => relay::end_as(relay::run(&verb.command, move |lines, _| scribe.run(&lines))?),
    }
}

fn serve(scribe: RecordWriter, listen: SocketAddr, to: &str) -> Result<(), Failure> {
    let lines = Arc::new(PassedLines::default());
    let tap = {
        let lines = lines.clone();
        move |passed: everturn_server::PassedMessage| {
            let from = if passed.from_client { Sender::Client } else { Sender::Server };
            lines.push(PassedLine { channel: passed.channel, from, at: passed.at, bytes: passed.text });
        }
    };
    let proxy = Proxy::bind(listen, to, tap)?;
    let (address, to) = (proxy.address, without_secrets(to));
    eprintln!("everturn records what passes on http://{address} to {to}\nCtrl-C stops it.");
    let written = relay::on_thread({
        let lines = lines.clone();
        move || scribe.run(&lines)
    })?;
    let served = proxy.run();
    lines.close();
    let _ = written.recv_timeout(relay::LISTENER_PATIENCE);
    Ok(served?)
}

/// Records the messages that pass. A failure is reported once and does not stop them.
struct RecordWriter {
    args: Args,
    /// Folder of the session file.
    folder: Option<PathBuf>,
    /// Conversation to add to.
    conversation: Option<String>,
    /// Name of the server.
    subject: String,
    transport: &'static str,
    dispatches: Dispatches,
    began: Instant,
    /// Begins with the first entry, once the client has given its name.
    record: Option<Result<Destination, Error>>,
    tried: Option<Instant>,
    /// Tools that were called and whose result is not recorded, by the number of the call.
    calls: BTreeMap<u64, String>,
    has_complained: bool,
}

/// Output of the recording.
enum Destination {
    File(Sink),
    Store { store: Box<Client>, conversation: ConversationId, is_ours: bool },
}

impl RecordWriter {
    fn run(mut self, lines: &PassedLines) {
        while let NextLine::Line(line) = lines.next(None) {
            let elapsed = line.at.saturating_duration_since(self.began);
            let entries =
                self.dispatches.hear(&line.channel, line.from, &line.bytes, SystemWorld.now(), elapsed);
            for entry in entries {
                let written = entry.and_then(|entry| self.write(entry));
                self.complain(written);
            }
            if lines.take_lost() > 0 {
                let text = "messages are too large, or come faster than they can be written";
                self.complain(Err(Error::busy("record.lost", text)));
            }
        }
        let ended = self.end();
        self.complain(ended);
    }

    /// Writes an entry, and remembers calls until their result is written.
    fn write(&mut self, entry: Entry) -> Result<(), Error> {
        let text = |name: &str| entry.fields.get(name).and_then(Raw::read::<String>);
        let (kind, tool) = (entry.kind.clone(), text("tool").unwrap_or_default());
        let call = text("call_id").and_then(|id| id.strip_prefix(CALL)?.parse().ok());
        let written = self.write_entry(entry);
        match (kind.as_str(), call) {
            ("agent_tool_call", Some(call)) => drop(self.calls.insert(call, tool)),
            // A file returns its first failure for every later entry.
            ("tool_result", Some(call)) if written.is_ok() || self.folder.is_some() => {
                self.calls.remove(&call);
            }
            _ => {}
        }
        written
    }

    fn write_entry(&mut self, entry: Entry) -> Result<(), Error> {
        let is_time = self.tried.is_none_or(|tried| tried.elapsed() >= RETRY);
        if is_time && !matches!(self.record, Some(Ok(_))) {
            self.record = Some(self.begin(entry.at));
            self.tried = Some(Instant::now());
        }
        match self.record.as_ref() {
            Some(Ok(Destination::File(sink))) => {
                sink.record(Ok(entry));
                sink.last_error().map_or(Ok(()), Err)
            }
            Some(Ok(Destination::Store { store, conversation, .. })) => {
                let Entry { kind, at, fields } = entry;
                let log = LogSession {
                    conversation: (*conversation).into(),
                    r#type: kind,
                    fields,
                    timestamp: Some(at),
                    idempotency_key: None,
                };
                store.call(log).map(drop)
            }
            Some(Err(error)) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// `at` is the time of the first entry: nothing is recorded before the beginning.
    fn begin(&self, at: Timestamp) -> Result<Destination, Error> {
        let client = self.dispatches.client().map(str::to_string);
        let extra = SessionFields::of(&json!({"program": "everturn record", "transport": self.transport}))?;
        if let Some(folder) = &self.folder {
            let subject = folder.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
                let text = format!("{} names no folder; write it as photos/img_1", folder.display());
                Error::invalid("session.subject", text)
            })?;
            let extra =
                SessionFields([extra.0, SessionFields::of(&json!({"server": self.subject}))?.0].concat());
            let new = NewSession { agent_provider: client, extra, ..NewSession::about(subject, uuid()?, at) };
            let root = folder.parent().unwrap_or(Path::new(""));
            let session = Session::start(root, &new, SessionOptions::default());
            return Ok(Destination::File(Sink::new(Ok(session?), |_| {})));
        }
        let open = |failure| match failure {
            Failure::Error(error) => error,
            Failure::Reported | Failure::PipeClosed => {
                Error::internal("record.store", "the store cannot be opened")
            }
        };
        let store = Box::new(open::sharing(&self.args).map_err(open)?);
        let (conversation, is_ours) = match &self.conversation {
            Some(name) => (store.resolve(name)?, false),
            None => {
                let start = StartSession {
                    subject: self.subject.clone(),
                    subject_key: Some("server".into()),
                    agent_provider: client,
                    timestamp: Some(at),
                    fields: extra,
                    ..StartSession::default()
                };
                (store.call(start)?.id, true)
            }
        };
        Ok(Destination::Store { store, conversation, is_ours })
    }

    fn end(&mut self) -> Result<(), Error> {
        for (call, tool) in std::mem::take(&mut self.calls) {
            let failed = ToolResult::missing(tool, format!("{CALL}{call}"));
            let written = failed.and_then(|failed| Entry::of(SystemWorld.now(), &failed));
            let written = written.and_then(|entry| self.write_entry(entry));
            self.complain(written);
        }
        match self.record.take() {
            Some(Ok(Destination::File(sink))) => {
                sink.end(SystemWorld.now(), &SessionFields::default());
                Ok(())
            }
            Some(Ok(Destination::Store { store, conversation, is_ours: true })) => {
                let (conversation, fields) = (conversation.into(), SessionFields::default());
                store.call(EndSession { conversation, fields, idempotency_key: None }).map(drop)
            }
            _ => Ok(()),
        }
    }

    fn complain(&mut self, done: Result<(), Error>) {
        if let Err(error) = done
            && !std::mem::replace(&mut self.has_complained, true)
        {
            eprintln!("everturn: calls go on, but are not recorded completely: {error}");
        }
    }
}
