//! Agents that write one line for each message, linked to the line before it: pi, Droid, Qwen Code and Copilot CLI.
//!
//! The first line names the session. A message whose parent is not the newest one leaves what is behind its parent, as with
//! Claude Code; Copilot CLI's parents are other events, so its messages simply follow each other, until an event
//! takes some of them back. Droid's and Qwen's messages are in shapes of providers and stay as they are; those of pi and
//! Copilot CLI are written as blocks, with the rest of the line in the turn's metadata.

use super::line::{Line, made, words};
use super::reader::Mapper;
use super::tree::{ParentAt, Said, Tree};
use super::{
    AgentEntry, AgentFormat, BranchPoint, EntryContent, ImportOrigin, ParsedTurn, Thread, conversation_id,
    name_of, nth, prompt_title, title,
};
use everturn_core::json::{Raw, quote};
use everturn_core::time::Timestamp;
use everturn_core::turn::Tokens;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

/// Reads the lines of one file.
pub struct Linked {
    format: AgentFormat,
    threads: Vec<Thread>,
    tree: Tree,
    fallback: Option<String>,
    model: Option<String>,
    /// Ids of lines that are no turns.
    silent: HashSet<u64>,
    /// Whether the conversation has a title, and whether a person chose it.
    titled: (bool, bool),
    /// A message of Qwen Code, of which further lines may follow.
    open: Option<Open>,
    /// Lines of pi, whose first versions had no ids and counted lines: the turn of each, and whether it is a tool result.
    order: Vec<Option<(u64, bool)>>,
    /// Events of Copilot CLI that stand, each with its turn.
    events: Vec<(u64, Option<u64>)>,
    /// Turns of Copilot CLI that were rewound; the next one takes their place.
    left: Vec<u64>,
    /// The turn whose words are the title.
    title_turn: Option<u64>,
}

/// A message whose parts come line by line.
struct Open {
    entry: AgentEntry,
    lines: u64,
    parts: Vec<String>,
}

/// Kind of a line.
enum What {
    Turn(Box<ParsedTurn>, Speaker),
    /// A summary, and the id of the first line that was kept as it was.
    Compaction {
        summary: String,
        tokens_before: Option<u64>,
        kept: Option<u64>,
    },
    Other,
}

#[derive(Clone, Copy, PartialEq)]
enum Speaker {
    Person,
    Model,
    Tool,
}

impl Linked {
    /// For a file with this name.
    pub fn new(format: AgentFormat, fallback: Option<String>) -> Linked {
        Linked {
            format,
            threads: Vec::new(),
            tree: Tree::default(),
            fallback,
            model: None,
            silent: HashSet::new(),
            titled: (false, false),
            open: None,
            order: Vec::new(),
            events: Vec::new(),
            left: Vec::new(),
            title_turn: None,
        }
    }

    /// The turn at, or next after, a line that pi counts, the header being the first. It is no tool result, whose call would
    /// be missing.
    fn counted(&self, index: u64) -> Option<u64> {
        let index = usize::try_from(index).ok()?;
        let first = index + self.order.get(index..)?.iter().position(Option::is_some)?;
        let turns = self.order[..=first].iter().rev().flatten();
        turns.into_iter().find(|(_, result)| !result).map(|(name, _)| *name)
    }

    /// Copilot CLI took events back: from one of them on, or those of a list, where others in between stay.
    fn rewind(&mut self, data: &Line<'_>) {
        let id = |text: &str| name_of(&["id", text]);
        let first = data.text("upToEventId").map(|text| id(&text));
        let first = self.events.iter().position(|(event, _)| Some(*event) == first);
        let listed = data.list("eventIds").map(|ids| {
            let texts = ids.iter().filter_map(|id| serde_json::from_str::<String>(id.get()).ok());
            texts.map(|text| id(&text)).collect::<HashSet<u64>>()
        });
        let mut at = 0;
        self.events.retain(|(event, turn)| {
            let is_taken_back = match &listed {
                Some(ids) => ids.contains(event),
                None => first.is_some_and(|first| at >= first),
            };
            at += 1;
            self.left.extend(turn.filter(|_| is_taken_back));
            !is_taken_back
        });
        if self.title_turn.is_some_and(|turn| self.left.contains(&turn)) {
            self.titled.0 = self.titled.1;
        }
    }

    fn begin(&mut self, text: &str, line: &Line<'_>) {
        if !self.threads.is_empty() {
            return;
        }
        let own = |line: &Line<'_>, name: &str| {
            line.text(name).filter(|text| !text.is_empty()).map(Cow::into_owned)
        };
        let data = line.object("data").unwrap_or_default();
        let context = data.object("context").unwrap_or_default();
        let header = matches!(line.text("type").as_deref(), Some("session" | "session_start"));
        let session = own(line, "sessionId")
            .or_else(|| own(&data, "sessionId"))
            .or_else(|| own(line, "id").filter(|_| header));
        let format = self.format.name();
        let id = match (&session, &self.fallback) {
            (Some(session), _) => conversation_id(&[format, session]),
            (None, Some(name)) => conversation_id(&[format, "file", name]),
            (None, None) => conversation_id(&[format, "line", text]),
        };
        let version = own(line, "version").or_else(|| own(&data, "copilotVersion"));
        let origin = ImportOrigin {
            format,
            session,
            cwd: own(line, "cwd").or_else(|| own(&context, "cwd")),
            git_branch: own(line, "gitBranch").or_else(|| own(&context, "branch")),
            version,
            ..ImportOrigin::default()
        };
        self.tree.chain();
        self.threads.push(Thread { id, origin, branch: None });
    }

    /// The id of a line and of its parent.
    fn ids(&self, line: &Line<'_>) -> (Option<u64>, Option<u64>) {
        let id = |name: &str| line.text(name).filter(|id| !id.is_empty()).map(|id| name_of(&["id", &id]));
        match self.format {
            AgentFormat::Qwen => (id("uuid"), id("parentUuid")),
            AgentFormat::Copilot => (id("id"), None),
            _ => (id("id"), id("parentId")),
        }
    }

    /// Chain of a line with this parent, and its depth there.
    fn place(&mut self, parent: Option<u64>, name: u64) -> (usize, Option<u32>) {
        match parent.and_then(|parent| self.tree.find(parent)) {
            Some(ParentAt::On { chain, depth }) => (chain, Some(depth)),
            Some(ParentAt::Left { chain, segment, depth }) => match self.tree.fork(segment) {
                Some((thread, before)) => {
                    let origin = &self.threads[chain].origin;
                    let (format, session) = (origin.format, origin.session.clone().unwrap_or_default());
                    let parts = [format, &session, "branch", &format!("{name:016x}")];
                    self.threads.push(Thread {
                        id: conversation_id(&parts),
                        origin: ImportOrigin { parent: Some(self.threads[chain].id), ..origin.clone() },
                        branch: Some(BranchPoint { of: chain, before }),
                    });
                    (thread, Some(depth))
                }
                None => (0, None),
            },
            None => (0, None),
        }
    }

    fn what(&self, line: &Line<'_>) -> What {
        match self.format {
            AgentFormat::Copilot => copilot(line, self.model.as_deref()),
            AgentFormat::Qwen => qwen(line),
            _ => entry(line, self.format),
        }
    }

    /// The title in a line. A name that a person chose stays until the next one.
    fn call(&mut self, line: &Line<'_>, what: &What) -> Option<String> {
        let payload = line.object("systemPayload").unwrap_or_default();
        let named = match line.text("type").as_deref() {
            Some("session_info") => line.text("name"),
            Some("session_start") => line.text("sessionTitle").or_else(|| line.text("title")),
            Some("system") if line.text("subtype").as_deref() == Some("custom_title") => {
                payload.text("customTitle")
            }
            _ => None,
        };
        if let Some(name) = named.as_deref().filter(|name| *name != "New Session").and_then(title) {
            self.titled = (true, true);
            return Some(name);
        }
        let What::Turn(said, Speaker::Person) = what else { return None };
        if self.format == AgentFormat::Qwen && line.text("subtype").as_deref() == Some("notification") {
            return None;
        }
        let message = Line::parse(&said.message).filter(|_| !self.titled.0)?;
        let content = ["content", "parts"].iter().find_map(|name| message.raw(name));
        // Hooks add to what was typed.
        let typed = payload.text("displayText").map(Cow::into_owned);
        let prompt = prompt_title(&typed.unwrap_or_else(|| words(content.unwrap_or_default())))?;
        self.titled.0 = true;
        Some(prompt)
    }

    fn close(&mut self, out: &mut Vec<AgentEntry>) {
        out.extend(self.open.take().map(|open| open.entry));
    }
}

impl Mapper for Linked {
    fn threads(&self) -> &[Thread] {
        &self.threads
    }

    fn take(&mut self, number: u64, text: &str, out: &mut Vec<AgentEntry>) {
        let line = Line::parse(text).unwrap_or_default();
        self.begin(text, &line);
        if let Some(model) = line.object("data").and_then(|data| data.text("newModel").map(Cow::into_owned)) {
            self.model = Some(model);
        }
        let at = line.time("timestamp");
        let (own, parent) = self.ids(&line);
        let mut what = self.what(&line);
        if let (Some(open), What::Turn(said, Speaker::Model)) = (&mut self.open, &what)
            && own == Some(open.entry.name)
        {
            return open.push(&line, said);
        }
        self.close(out);
        let has_turn = !matches!(what, What::Other);
        // The id of a line that is no turn is still free for one that is.
        let second = own.filter(|own| has_turn && self.silent.remove(own));
        let repeated = second.is_none() && own.is_some_and(|own| self.tree.has(own));
        if repeated {
            what = What::Other;
        }
        let name = second.map(|own| nth(own, 1)).or(own.filter(|_| !repeated)).unwrap_or_else(|| {
            let spelt = name_of(&["line", text]);
            nth(spelt, self.tree.count(spelt))
        });
        if self.format == AgentFormat::Pi {
            self.order.push(match &what {
                What::Turn(_, speaker) => Some((name, *speaker == Speaker::Tool)),
                _ => None,
            });
        }
        let title = self.call(&line, &what);
        if title.is_some() && has_turn {
            self.title_turn = Some(name);
        }
        if let Some(own) = own.filter(|_| self.format == AgentFormat::Copilot) {
            let is_turn = matches!(what, What::Turn(..));
            self.events.push((own, is_turn.then_some(name)));
        }
        let mut entry = AgentEntry {
            thread: 0,
            line: number,
            name,
            key: name,
            at,
            title,
            step: EntryContent::System(String::new()),
        };
        let body = || made(text.to_string());
        match what {
            What::Turn(mut said, speaker) => {
                let (thread, depth) = self.place(parent, name);
                let spoken = Said { result: speaker == Speaker::Tool, ..Said::default() };
                said.supersedes = self.tree.append(thread, depth, name, spoken);
                said.supersedes.append(&mut self.left);
                self.tree.note(name, thread, None);
                if let Some(own) = second {
                    self.tree.moves(own, name);
                }
                entry.thread = thread;
                let parts = parts(&said.message).filter(|_| {
                    self.format == AgentFormat::Qwen && speaker == Speaker::Model && own.is_some()
                });
                entry.step = EntryContent::Turn(said);
                match parts {
                    Some(parts) => self.open = Some(Open { entry, lines: 1, parts: vec![parts] }),
                    None => out.push(entry),
                }
            }
            What::Compaction { summary, tokens_before, kept } => {
                (entry.thread, _) = self.place(parent, name);
                self.tree.note(name, entry.thread, None);
                let counted = || self.counted(line.number("firstKeptEntryIndex")?);
                let kept = kept.and_then(|line| self.tree.turn_at(line)).or_else(counted);
                let (what, body) = (kind(&line), body());
                entry.step = EntryContent::Compaction { what, summary, tokens_before, kept, body };
                out.push(entry);
            }
            What::Other => {
                if self.format == AgentFormat::Copilot && kind(&line) == "session.snapshot_rewind" {
                    self.rewind(&line.object("data").unwrap_or_default());
                }
                if let Some(ParentAt::On { chain, .. }) = parent.and_then(|parent| self.tree.find(parent)) {
                    entry.thread = chain;
                }
                if let Some(own) = own.filter(|_| !repeated) {
                    self.silent.insert(own);
                    match parent.filter(|parent| self.tree.has(*parent)) {
                        Some(parent) => self.tree.alias(own, parent),
                        None => self.tree.note(own, 0, None),
                    }
                }
                entry.step = EntryContent::Event { what: kind(&line), body: body() };
                out.push(entry);
            }
        }
    }

    fn keep(&mut self, number: u64, what: &str, body: Raw, taken: Option<&str>, out: &mut Vec<AgentEntry>) {
        self.begin(body.get(), &Line::default());
        let own = taken.and_then(Line::parse).and_then(|line| self.ids(&line).0);
        let thread = match own.and_then(|own| self.tree.find(own)) {
            Some(ParentAt::On { chain, .. } | ParentAt::Left { chain, .. }) => chain,
            None => 0,
        };
        let spelt = name_of(&["line", body.get()]);
        let name = nth(spelt, self.tree.count(spelt));
        let step = EntryContent::Event { what: what.into(), body };
        let at: Option<Timestamp> = None;
        out.push(AgentEntry { thread, line: number, name, key: name, at, title: None, step });
    }

    fn settle(&mut self, out: &mut Vec<AgentEntry>) {
        self.close(out);
    }
}

impl Open {
    /// A further line of the message: a newer version of the turn, with the parts of all lines.
    fn push(&mut self, line: &Line<'_>, said: &ParsedTurn) {
        let EntryContent::Turn(turn) = &mut self.entry.step else { return };
        self.parts.extend(parts(&said.message));
        self.lines += 1;
        self.entry.key = nth(self.entry.name, self.lines - 1);
        if let Some(message) = Line::parse(&said.message) {
            turn.message = message.with("parts", Some(&format!("[{}]", self.parts.join(","))));
        }
        turn.tokens = said.tokens.or(turn.tokens);
        turn.model = said.model.clone().or(turn.model.take());
        turn.metadata.extend(beside(AgentFormat::Qwen, &line.without("message")));
    }
}

/// The parts of a message in Gemini's shape, without the brackets around them.
fn parts(message: &str) -> Option<String> {
    let raw = Line::parse(message)?.raw("parts")?;
    let inner = raw.strip_prefix('[')?.strip_suffix(']')?.trim();
    (!inner.is_empty()).then(|| inner.to_string())
}

fn kind(line: &Line<'_>) -> String {
    let kind = line.text("type").unwrap_or("no type".into());
    match line.text("subtype") {
        Some(subtype) => format!("{kind}/{subtype}"),
        None => kind.into_owned(),
    }
}

/// The metadata that keeps the rest of a line.
fn beside(format: AgentFormat, rest: &str) -> BTreeMap<String, Raw> {
    BTreeMap::from([(format.name().replace('-', "_"), made(rest.to_string()))])
}

/// A line of pi or Droid.
fn entry(line: &Line<'_>, format: AgentFormat) -> What {
    if line.text("type").as_deref() == Some("compaction")
        && let Some(summary) = line.text("summary").filter(|summary| !summary.trim().is_empty())
    {
        return What::Compaction {
            summary: summary.into_owned(),
            tokens_before: line.number("tokensBefore"),
            kept: line.text("firstKeptEntryId").map(|id| name_of(&["id", &id])),
        };
    }
    let message = line.object("message").filter(|_| line.text("type").as_deref() == Some("message"));
    if let Some(message) = message.as_ref().filter(|_| format == AgentFormat::Pi)
        && let Some(said) = shell(message)
    {
        let metadata = beside(format, &line.with("message", Some(&message.without("output"))));
        let said = ParsedTurn { message: said, metadata, ..ParsedTurn::default() };
        return What::Turn(Box::new(said), Speaker::Person);
    }
    let Some((message, content)) =
        message.and_then(|message| Some((message.clone(), message.raw("content")?)))
    else {
        return What::Other;
    };
    let speaker = match message.text("role").as_deref() {
        Some("user") if answers(content) => Speaker::Tool,
        Some("user") => Speaker::Person,
        Some("assistant") => Speaker::Model,
        Some("toolResult") => Speaker::Tool,
        _ => return What::Other,
    };
    let usage = message.object("usage");
    let mut said = ParsedTurn {
        model: message.text("model").map(Cow::into_owned).filter(|_| speaker == Speaker::Model),
        tokens: usage.map(|usage| Tokens {
            prompt: sum(&usage, &["input", "cacheRead", "cacheWrite"]),
            completion: usage.number("output"),
        }),
        ..ParsedTurn::default()
    };
    if format == AgentFormat::Droid {
        said.message = line.raw("message").unwrap_or_default().to_string();
        said.metadata = beside(format, &line.without("message"));
        return What::Turn(Box::new(said), speaker);
    }
    said.message = match message.text("role").as_deref() {
        Some("toolResult") => result(
            message.raw("toolCallId"),
            message.raw("toolName"),
            &blocks(content),
            message.is("isError"),
        ),
        role => format!("{{\"role\":{},\"content\":{}}}", quote(role.unwrap_or_default()), blocks(content)),
    };
    said.metadata = beside(format, &line.with("message", Some(&message.without("content"))));
    What::Turn(Box::new(said), speaker)
}

/// A command that a person ran in pi, with its output: in the elements that other agents use for that. One that was kept from
/// the model is none.
fn shell(message: &Line<'_>) -> Option<String> {
    let is_shell =
        message.text("role").as_deref() == Some("bashExecution") && !message.is("excludeFromContext");
    let command = message.text("command").filter(|_| is_shell)?;
    let output = message.text("output").unwrap_or_default();
    let text = format!("<bash-input>{command}</bash-input>\n<bash-stdout>{output}</bash-stdout>");
    Some(format!("{{\"role\":\"user\",\"content\":{}}}", quote(&text)))
}

/// Whether a message is nothing but tool results.
fn answers(content: &str) -> bool {
    let blocks: Vec<Line<'_>> = serde_json::from_str(content).unwrap_or_default();
    !blocks.is_empty() && blocks.iter().all(|block| block.text("type").as_deref() == Some("tool_result"))
}

fn sum(usage: &Line<'_>, names: &[&str]) -> Option<u64> {
    names.iter().filter_map(|name| usage.number(name)).reduce(u64::saturating_add)
}

/// A message with one tool result.
fn result(id: Option<&str>, name: Option<&str>, content: &str, failed: bool) -> String {
    let mut fields = vec![("type", "\"tool_result\""), ("tool_use_id", id.unwrap_or("null"))];
    fields.extend(name.map(|name| ("name", name)));
    fields.push(("content", content));
    fields.extend(failed.then_some(("is_error", "true")));
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{\"role\":\"tool\",\"content\":[{{{}}}]}}", fields.join(","))
}

/// Content of pi with its calls and pictures in names that are known here; anything else as it is.
fn blocks(content: &str) -> String {
    let Ok(blocks) = serde_json::from_str::<Vec<&serde_json::value::RawValue>>(content) else {
        return content.to_string();
    };
    let block = |raw: &str| {
        let Some(block) = Line::parse(raw) else { return raw.to_string() };
        match (block.text("type").as_deref(), block.raw("data"), block.raw("mimeType")) {
            (Some("toolCall"), ..) => block.with("type", Some("\"tool_call\"")),
            (Some("image"), Some(data), Some(mime)) => format!(
                "{{\"type\":\"image\",\"source\":{{\"type\":\"base64\",\"media_type\":{mime},\"data\":{data}}}}}"
            ),
            _ => raw.to_string(),
        }
    };
    let blocks: Vec<String> = blocks.iter().map(|raw| block(raw.get())).collect();
    format!("[{}]", blocks.join(","))
}

/// A line of Qwen Code.
fn qwen(line: &Line<'_>) -> What {
    if line.text("subtype").as_deref() == Some("chat_compression") {
        return compression(line).unwrap_or(What::Other);
    }
    let message =
        line.object("message").filter(|message| message.list("parts").is_some_and(|p| !p.is_empty()));
    let (Some(kind), Some(_)) = (line.text("type"), message) else { return What::Other };
    let speaker = match kind.as_ref() {
        "user" => Speaker::Person,
        "assistant" => Speaker::Model,
        "tool_result" => Speaker::Tool,
        _ => return What::Other,
    };
    let usage = line.object("usageMetadata");
    let said = ParsedTurn {
        message: line.raw("message").unwrap_or_default().to_string(),
        model: line.text("model").map(Cow::into_owned),
        tokens: usage.map(|usage| Tokens {
            prompt: usage.number("promptTokenCount"),
            completion: sum(&usage, &["candidatesTokenCount", "thoughtsTokenCount"]),
        }),
        metadata: beside(AgentFormat::Qwen, &line.without("message")),
        ..ParsedTurn::default()
    };
    What::Turn(Box::new(said), speaker)
}

/// After a compaction, the history of Qwen Code begins with the summary.
fn compression(line: &Line<'_>) -> Option<What> {
    let payload = line.object("systemPayload")?;
    let first = Line::parse(payload.list("compressedHistory")?.first()?.get())?;
    let summary = Some(words(first.raw("parts")?)).filter(|summary| !summary.is_empty())?;
    let tokens_before = payload.object("info").and_then(|info| info.number("originalTokenCount"));
    Some(What::Compaction { summary, tokens_before, kept: None })
}

/// A line of Copilot CLI.
fn copilot(line: &Line<'_>, model: Option<&str>) -> What {
    let (Some(kind), Some(data)) = (line.text("type"), line.object("data")) else { return What::Other };
    let content = data.raw("content").filter(|content| content.starts_with('"'));
    let mut rest = data.without("content");
    let mut said = ParsedTurn::default();
    let speaker = match (kind.as_ref(), content) {
        ("user.message", Some(content)) => {
            said.message = format!("{{\"role\":\"user\",\"content\":{content}}}");
            Speaker::Person
        }
        ("assistant.message", content) => {
            let mut blocks = Vec::new();
            let thought = data.raw("reasoningText").filter(|text| text.len() > 2 && text.starts_with('"'));
            blocks.extend(thought.map(|text| format!("{{\"type\":\"thinking\",\"thinking\":{text}}}")));
            let text = content.filter(|text| text.len() > 2);
            blocks.extend(text.map(|text| format!("{{\"type\":\"text\",\"text\":{text}}}")));
            for call in data.list("toolRequests").unwrap_or_default() {
                let Some(call) = Line::parse(call.get()) else { continue };
                let (id, name) = (call.raw("toolCallId"), call.raw("name"));
                let arguments = call.raw("arguments").unwrap_or("{}");
                blocks.push(format!(
                    "{{\"type\":\"tool_call\",\"id\":{},\"name\":{},\"arguments\":{arguments}}}",
                    id.unwrap_or("null"),
                    name.unwrap_or("\"tool\"")
                ));
            }
            if blocks.is_empty() {
                return What::Other;
            }
            said.message = format!("{{\"role\":\"assistant\",\"content\":[{}]}}", blocks.join(","));
            said.model = data.text("model").map(Cow::into_owned).or(model.map(str::to_string));
            said.tokens = data.number("outputTokens").map(|n| Tokens { prompt: None, completion: Some(n) });
            Speaker::Model
        }
        ("tool.execution_complete", _) => {
            let answer = data.object("result").unwrap_or_default();
            let content = answer.raw("content").or(data.raw("error")).unwrap_or("\"\"");
            said.message =
                result(data.raw("toolCallId"), None, content, data.raw("success") == Some("false"));
            rest = data.with("result", Some(&answer.without("content")));
            Speaker::Tool
        }
        ("session.compaction_complete", _) => {
            return match data.text("summaryContent").filter(|summary| !summary.trim().is_empty()) {
                Some(summary) => What::Compaction {
                    summary: summary.into_owned(),
                    tokens_before: data.number("preCompactionTokens"),
                    kept: None,
                },
                None => What::Other,
            };
        }
        _ => return What::Other,
    };
    said.metadata = beside(AgentFormat::Copilot, &line.with("data", Some(&rest)));
    What::Turn(Box::new(said), speaker)
}
