//! Claude Code: one line for every block of a message, linked into a tree.
//!
//! Lines with the same `message.id` are one turn. Tool results and other lines in between wait until the message is
//! whole (a [`Bundle`]), because a result must not come before its call. Where a file ends in the middle of a message, the
//! turn is emitted as far as it goes; later lines make a newer version of it.

mod bundle;

use super::line::{Line, made, words};
use super::reader::Mapper;
use super::tree::{ParentAt, Said, Tree};
use super::{
    AgentEntry, AgentFormat, BranchPoint, EntryContent, ImportOrigin, ParsedTurn, Thread, conversation_id,
    detect, name_of, nth, prompt_title, title,
};
use bundle::Bundle;
use everturn_core::event::Visibility;
use everturn_core::json::{Raw, quote};
use everturn_core::turn::Tokens;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::BufRead;

/// Lines that may come before one that names the session.
const WAITING_MAX: usize = 1000;
/// Most conversations in one file; lines of further ones go into the first.
const THREADS_MAX: usize = 10_000;
/// Bytes of a file in which its first line with a parent is searched.
const CONTINUES_BYTES: u64 = 1024 * 1024;
/// Messages that may be open side by side: one for each subagent that works.
const OPEN_MAX: usize = 32;

const NAME: &str = "claude-code";
/// Key of a turn's metadata that has the rest of its line.
const METADATA: &str = "claude_code";

/// Reads the lines of one file.
pub struct ClaudeCode {
    threads: Vec<Thread>,
    notes: Vec<Notes>,
    tree: Tree,
    /// Ids of lines that are no turns.
    silent: HashSet<u64>,
    /// The thread of a session, or of a subagent in it.
    homes: HashMap<(String, Option<String>), usize>,
    session: Option<String>,
    waiting: Vec<Waiting>,
    /// Stands for the session in a file where no line names one.
    fallback: Option<String>,
    /// Session that the file is named after. Lines that it copied from another session are a part of it.
    own: Option<String>,
    /// Sessions that continue from the same message as another session.
    forks: HashMap<String, Fork>,
}

/// The thread of such a session, and the place where it begins: another thread, and a depth in that.
struct Fork {
    thread: usize,
    from: (usize, u32),
}

/// State of a thread.
struct Notes {
    /// The thread that it is, or is a branch of.
    home: usize,
    bundle: Option<Bundle>,
    /// Rank of its title; a better one replaces it.
    rank: u8,
    /// Tokens before the last boundary.
    tokens_before: Option<u64>,
    /// The first turn before that boundary that was kept as it was.
    kept: Option<u64>,
}

enum Waiting {
    Line(u64, String),
    Unreadable(u64, Raw),
}

/// Kind of a line.
enum Kind<'a> {
    /// A part of a message of the model, and the message's id.
    ToolResult(Line<'a>, Option<Cow<'a, str>>),
    /// Tool results only.
    Results(Line<'a>),
    Prompt(Line<'a>),
    Summary(Line<'a>),
    Other,
}

impl<'a> Kind<'a> {
    fn of(line: &Line<'a>) -> Kind<'a> {
        let Some(message) = line.object("message").filter(|message| message.raw("content").is_some()) else {
            return Kind::Other;
        };
        match (line.text("type").as_deref(), message.text("role").as_deref()) {
            (Some("user"), Some("user")) if line.is("isCompactSummary") => Kind::Summary(message),
            (Some("user"), Some("user")) => match only_results(&message) {
                true => Kind::Results(message),
                false => Kind::Prompt(message),
            },
            (Some("assistant"), Some("assistant")) => {
                let id = message.text("id").filter(|id| !id.is_empty());
                Kind::ToolResult(message, id)
            }
            _ => Kind::Other,
        }
    }
}

fn only_results(message: &Line<'_>) -> bool {
    let Some(blocks) = message.list("content") else { return false };
    let is_result = |block: &&serde_json::value::RawValue| {
        Line::parse(block.get()).is_some_and(|block| block.text("type").as_deref() == Some("tool_result"))
    };
    !blocks.is_empty() && blocks.iter().all(is_result)
}

impl ClaudeCode {
    /// For a file with this name that begins with these bytes.
    pub fn new(fallback: Option<String>, head: &[u8]) -> ClaudeCode {
        let name = fallback.as_deref().and_then(|name| name.rsplit(['/', '\\']).next());
        let stem = name.and_then(|name| name.split('.').next()).filter(|stem| !stem.is_empty());
        let head = String::from_utf8_lossy(head);
        let named = |stem: &&str| {
            let spelt = quote(stem);
            [":", ": "].iter().any(|colon| head.contains(&format!("\"sessionId\"{colon}{spelt}")))
        };
        let own = stem.filter(named).map(str::to_string);
        ClaudeCode {
            threads: Vec::new(),
            notes: Vec::new(),
            tree: Tree::default(),
            silent: HashSet::new(),
            homes: HashMap::new(),
            session: None,
            waiting: Vec::new(),
            fallback,
            own,
            forks: HashMap::new(),
        }
    }

    fn begin(&mut self, session: String, out: &mut Vec<AgentEntry>) {
        self.session = Some(session);
        for waiting in std::mem::take(&mut self.waiting) {
            match waiting {
                Waiting::Line(number, text) => self.take(number, &text, out),
                Waiting::Unreadable(number, body) => self.keep(number, "unreadable", body, None, out),
            }
        }
    }

    /// Begins without a line that names the session and its folder.
    fn begin_without(&mut self, out: &mut Vec<AgentEntry>) {
        let texts = self.waiting.iter().map(|waiting| match waiting {
            Waiting::Line(_, text) => text.as_str(),
            Waiting::Unreadable(_, body) => body.get(),
        });
        let texts: Vec<&str> = texts.collect();
        let Some(first) = texts.first() else { return };
        let named = texts.iter().find_map(|text| session_of(&Line::parse(text)?).map(Cow::into_owned));
        let stand_in = || format!("file:{:016x}", name_of(&[self.fallback.as_deref().unwrap_or(first)]));
        let session = named.unwrap_or_else(stand_in);
        self.begin(session, out);
    }

    /// The thread of the session, or of a subagent.
    fn home(&mut self, session: &str, agent: Option<String>, line: &Line<'_>) -> usize {
        let key = (session.to_string(), agent);
        if let Some(thread) = self.homes.get(&key) {
            return *thread;
        }
        if self.threads.len() >= THREADS_MAX {
            return 0;
        }
        let (session, agent) = key.clone();
        let own = |line: &Line<'_>, name: &str| line.text(name).map(Cow::into_owned);
        let fork = self.forks.get(&session).map(|fork| fork.thread);
        let main = fork.or_else(|| self.homes.get(&(session.clone(), None)).copied());
        let main = main.map(|thread| self.threads[thread].id);
        let main = main.unwrap_or_else(|| conversation_id(&[NAME, self.own.as_deref().unwrap_or(&session)]));
        let origin = ImportOrigin {
            format: AgentFormat::ClaudeCode.name(),
            cwd: own(line, "cwd"),
            git_branch: own(line, "gitBranch").filter(|branch| !branch.is_empty()),
            version: own(line, "version"),
            parent: agent.is_some().then_some(main),
            session: Some(session.clone()),
            agent: agent.clone(),
        };
        let id = match &agent {
            Some(agent) => conversation_id(&[NAME, &session, "agent", agent]),
            None => conversation_id(&[NAME, &session]),
        };
        let thread = self.tree.chain();
        self.threads.push(Thread { id, origin, branch: None });
        self.notes.push(Notes { home: thread, bundle: None, rank: 0, tokens_before: None, kept: None });
        self.homes.insert(key, thread);
        thread
    }

    /// A thread for a branch that is taken up again.
    fn branch(&mut self, of: usize, segment: u32, line: &str, out: &mut Vec<AgentEntry>) -> Option<usize> {
        // The turns that it branches from must be emitted first.
        self.close(of, out);
        let (thread, before) = self.tree.fork(segment)?;
        self.forked(of, before, line, u8::MAX);
        Some(thread)
    }

    /// The thread of a line behind a depth of another one, and its depth there. Where another session went on from there
    /// before, both are to stay. Lines that a session's own file has of others are a part of it.
    fn beside(
        &mut self,
        (of, depth): (usize, u32),
        session: &str,
        line: &str,
        out: &mut Vec<AgentEntry>,
    ) -> (usize, u32) {
        if let Some(fork) = self.forks.get(session).filter(|fork| fork.from == (of, depth)) {
            return (fork.thread, depth);
        }
        let is_other = self.own.as_deref() != Some(session);
        let forked = is_other.then(|| self.tree.beside(of, depth, session_name(session))).flatten();
        let Some((thread, before)) = forked else { return (of, depth) };
        self.close(of, out);
        self.forked(of, before, line, PROMPT);
        self.threads[thread].origin.session = Some(session.to_string());
        self.forks.insert(session.to_string(), Fork { thread, from: (of, depth) });
        (thread, depth)
    }

    /// Adds the thread of a chain that branched.
    fn forked(&mut self, of: usize, before: u64, line: &str, rank: u8) {
        let home = self.notes[of].home;
        let origin = ImportOrigin { parent: Some(self.threads[of].id), ..self.threads[of].origin.clone() };
        let (session, agent) = (origin.session.clone(), origin.agent.clone());
        let parts = [
            NAME,
            session.as_deref().unwrap_or_default(),
            "branch",
            agent.as_deref().unwrap_or_default(),
            line,
        ];
        self.threads.push(Thread {
            id: conversation_id(&parts),
            origin,
            branch: Some(BranchPoint { of, before }),
        });
        self.notes.push(Notes { home, bundle: None, rank, tokens_before: None, kept: None });
    }

    /// Thread of a line, and the position of its parent there.
    fn place(&mut self, line: &Line<'_>, session: &str, parent: Option<u64>) -> (usize, Option<ParentAt>) {
        let found = parent.and_then(|parent| self.tree.find(parent));
        let of = |found: &ParentAt| match found {
            ParentAt::On { chain, .. } | ParentAt::Left { chain, .. } => *chain,
        };
        let home = match line.is("isSidechain") {
            false if self.forks.contains_key(session) => self.forks[session].thread,
            false => match (&self.own, found.as_ref().map(of)) {
                (Some(own), _) => self.home(&own.clone(), None, line),
                // A session that goes on in another one is one conversation.
                (None, Some(thread)) if self.threads[thread].origin.agent.is_none() => {
                    let home = self.notes[thread].home;
                    *self.homes.entry((session.to_string(), None)).or_insert(home)
                }
                (None, _) => self.home(session, None, line),
            },
            true => {
                let agent = line.text("agentId").filter(|agent| !agent.is_empty()).map(Cow::into_owned);
                let known =
                    found.as_ref().map(of).filter(|thread| self.threads[*thread].origin.agent.is_some());
                match (agent, known) {
                    (Some(agent), _) => self.home(session, Some(agent), line),
                    // Older files name no agent: a subagent's lines hang together.
                    (None, Some(thread)) => self.notes[thread].home,
                    (None, None) => {
                        let root = line.text("uuid").unwrap_or_default().into_owned();
                        self.home(session, Some(root), line)
                    }
                }
            }
        };
        (home, found.filter(|found| self.notes[of(found)].home == self.notes[home].home))
    }

    /// Records the position of a line, also under the id that it shares with one before it.
    fn note(&mut self, name: u64, second: Option<u64>, thread: usize, depth: Option<u32>) {
        self.tree.note(name, thread, depth);
        if let Some(own) = second {
            self.tree.moves(own, name);
        }
    }

    fn event(&mut self, thread: usize, entry: AgentEntry, out: &mut Vec<AgentEntry>) {
        match &mut self.notes[thread].bundle {
            Some(bundle) => bundle.also(entry),
            None => out.push(entry),
        }
    }

    fn close(&mut self, thread: usize, out: &mut Vec<AgentEntry>) {
        if let Some(mut bundle) = self.notes[thread].bundle.take() {
            bundle.give(out);
        }
    }

    /// Title of the conversation, if this is better than the one it has.
    fn call(&mut self, thread: usize, rank: u8, text: Option<Cow<'_, str>>) -> Option<String> {
        let notes = &mut self.notes[thread];
        let (better, title): (_, fn(&str) -> _) = match rank {
            PROMPT => (notes.rank < rank, prompt_title),
            _ => (notes.rank <= rank, title),
        };
        let title = text.filter(|_| better).and_then(|text| title(&text))?;
        notes.rank = rank;
        Some(title)
    }

    /// The title that a line gives.
    fn titled(&mut self, thread: usize, line: &Line<'_>) -> Option<String> {
        match line.text("type")?.as_ref() {
            "custom-title" => self.call(thread, 4, line.text("customTitle")),
            "ai-title" => self.call(thread, 3, line.text("aiTitle")),
            // At the beginning of a file there are summaries of other sessions.
            "summary" if line.text("leafUuid").is_some_and(|leaf| self.tree.has(uuid(&leaf))) => {
                self.call(thread, 2, line.text("summary"))
            }
            _ => None,
        }
    }
}

/// Rank of a title from the first prompt.
const PROMPT: u8 = 1;

/// The line of another file that a session goes on from: the parent of its first line. Subagents that older versions kept in
/// the session's file name no agent, and are a part of it; those with a file of their own are not.
pub fn continues(source: impl BufRead) -> Option<String> {
    for text in source.take(CONTINUES_BYTES).lines().map_while(Result::ok) {
        let text = text.trim_start_matches('\u{feff}');
        let line = Line::parse(text).unwrap_or_default();
        if line.text("uuid").is_some() {
            // Qwen Code's lines are linked in the same way.
            if detect::detect(text.as_bytes()) != Some(AgentFormat::ClaudeCode) {
                return None;
            }
            let parent = ["parentUuid", "logicalParentUuid"].iter().find_map(|name| line.text(name));
            let is_agent = line.is("isSidechain") && line.text("agentId").is_some();
            return parent.filter(|id| !id.is_empty() && !is_agent).map(Cow::into_owned);
        }
    }
    None
}

/// A line with a prompt that a person typed while the agent worked, in the form of any other prompt.
fn queued(line: &Line<'_>) -> Option<String> {
    let attachment =
        line.object("attachment").filter(|_| line.text("type").as_deref() == Some("attachment"))?;
    let is = |line: &Line<'_>, name: &str, wanted: &str| line.text(name).is_none_or(|text| text == wanted);
    let is_prompt = attachment.text("type").as_deref() == Some("queued_command")
        && is(&attachment, "commandMode", "prompt")
        && attachment.object("origin").is_none_or(|origin| is(&origin, "kind", "human"));
    let prompt = attachment.raw("prompt").filter(|prompt| is_prompt && prompt.starts_with(['"', '[']))?;
    let message = format!("{{\"role\":\"user\",\"content\":{prompt}}}");
    let rest = line.with("attachment", Some(&attachment.without("prompt")));
    let rest = Line::parse(&rest)?.with("type", Some("\"user\""));
    Some(format!("{},\"message\":{message}}}", rest.strip_suffix('}')?))
}

fn session_of<'a>(line: &Line<'a>) -> Option<Cow<'a, str>> {
    ["sessionId", "session_id"].iter().find_map(|name| line.text(name)).filter(|id| !id.is_empty())
}

fn session_name(id: &str) -> u64 {
    name_of(&["session", id])
}

fn uuid(text: &str) -> u64 {
    name_of(&["uuid", text])
}

impl Mapper for ClaudeCode {
    fn threads(&self) -> &[Thread] {
        &self.threads
    }

    fn take(&mut self, number: u64, text: &str, out: &mut Vec<AgentEntry>) {
        let queued = Line::parse(text).and_then(|line| queued(&line));
        let text = queued.as_deref().unwrap_or(text);
        let line = Line::parse(text).unwrap_or_default();
        let named = session_of(&line);
        let session = match (named, &self.session) {
            (Some(named), Some(_)) => named.into_owned(),
            (None, Some(session)) => session.clone(),
            // Lines before the first message tell little about the session.
            (Some(named), None) if line.raw("cwd").is_some() || line.raw("message").is_some() => {
                if !line.is("isSidechain") {
                    let session = self.own.clone().unwrap_or(named.to_string());
                    self.home(&session, None, &line);
                }
                self.begin(named.to_string(), out);
                named.into_owned()
            }
            (_, None) => {
                self.waiting.push(Waiting::Line(number, text.to_string()));
                if self.waiting.len() == WAITING_MAX {
                    self.begin_without(out);
                }
                return;
            }
        };
        let own = line.text("uuid").filter(|id| !id.is_empty()).map(|id| uuid(&id));
        let parent = ["parentUuid", "logicalParentUuid"].iter().find_map(|name| line.text(name));
        let parent = parent.map(|id| uuid(&id));
        let (home, found) = self.place(&line, &session, parent);
        let at = line.time("timestamp");
        let kind = Kind::of(&line);
        // The id of a line that is no turn is still free for one that is.
        let second = own.filter(|_| !matches!(kind, Kind::Other)).filter(|own| self.silent.remove(own));
        let repeated = second.is_none() && own.is_some_and(|own| self.tree.has(own));
        let name = match second.map(|own| nth(own, 1)).or(own.filter(|_| !repeated)) {
            Some(name) => name,
            None => {
                let spelt = name_of(&["line", text]);
                nth(spelt, self.tree.count(spelt))
            }
        };
        let kind = if repeated { Kind::Other } else { kind };
        let found = match found {
            Some(ParentAt::On { chain, depth })
                if !line.is("isSidechain") && !matches!(kind, Kind::Other | Kind::Results(_)) =>
            {
                let (chain, depth) = self.beside((chain, depth), &session, &format!("{name:016x}"), out);
                Some(ParentAt::On { chain, depth })
            }
            found => found,
        };
        let on = |found: Option<ParentAt>| match found {
            Some(ParentAt::On { chain, depth }) => Some((chain, Some(depth))),
            _ => None,
        };
        let (message, id, result, prompt) = match kind {
            Kind::ToolResult(message, id) => (message, id, false, false),
            Kind::Results(message) => (message, None, true, false),
            Kind::Prompt(message) => (message, None, false, true),
            Kind::Summary(message) => {
                let (thread, _) = on(found).unwrap_or((home, None));
                self.close(thread, out);
                self.note(name, second, thread, None);
                let step = EntryContent::Compaction {
                    what: "user/compact_summary".into(),
                    summary: words(message.raw("content").unwrap_or_default()),
                    tokens_before: self.notes[thread].tokens_before.take(),
                    kept: self.notes[thread].kept.take(),
                    body: made(text.to_string()),
                };
                out.push(AgentEntry { thread, line: number, name, key: name, at, title: None, step });
                return;
            }
            Kind::Other => {
                let (thread, _) = on(found).unwrap_or((home, None));
                let what = if repeated { "duplicate uuid".into() } else { what(&line) };
                if own.is_some() && !repeated {
                    self.silent.insert(name);
                    match parent.filter(|_| found.is_some()) {
                        Some(parent) => self.tree.alias(name, parent),
                        None => self.tree.note(name, thread, None),
                    }
                }
                if let Some(data) = line.object("compactMetadata") {
                    let head = data.object("preservedSegment").and_then(|segment| segment.text("headUuid"));
                    self.notes[thread].tokens_before = data.number("preTokens");
                    self.notes[thread].kept = head.and_then(|head| self.tree.turn_at(uuid(&head)));
                }
                let title = self.titled(thread, &line);
                let step = EntryContent::Event { what, body: made(text.to_string()) };
                self.event(
                    thread,
                    AgentEntry { thread, line: number, name, key: name, at, title, step },
                    out,
                );
                return;
            }
        };
        let (thread, depth) = match (on(found), found) {
            (Some(on), _) => on,
            (None, Some(ParentAt::Left { chain, segment, depth })) => {
                match self.branch(chain, segment, &format!("{name:016x}"), out) {
                    Some(thread) => (thread, Some(depth)),
                    None => (home, None),
                }
            }
            _ => (home, None),
        };
        let spoken = Said { result, session: session_name(&session) };
        if let Some(bundle) = self.notes[thread].bundle.as_mut().filter(|bundle| !bundle.is_full()) {
            if id.as_deref().is_some_and(|id| bundle.is(id)) {
                let depth = bundle.depth();
                bundle.block(&line, &message, at);
                self.note(name, second, thread, depth);
                return;
            }
            if result {
                self.tree.append(thread, depth, name, spoken);
                bundle.result(entry(thread, number, name, at, said(&line, &message, Vec::new())));
                self.note(name, second, thread, None);
                return;
            }
        }
        self.close(thread, out);
        let supersedes = self.tree.append(thread, depth, name, spoken);
        self.note(name, second, thread, None);
        let said = said(&line, &message, supersedes);
        let mut entry = entry(thread, number, name, at, said);
        if prompt && !line.is("isMeta") {
            let text = words(message.raw("content").unwrap_or_default());
            entry.title = self.call(thread, PROMPT, Some(text.into()));
        }
        match id {
            None => out.push(entry),
            Some(id) => {
                if self.notes.iter().filter(|notes| notes.bundle.is_some()).count() >= OPEN_MAX {
                    (0..self.notes.len()).for_each(|thread| self.close(thread, out));
                }
                let depth = self.tree.find(name).and_then(|found| match found {
                    ParentAt::On { depth, .. } => Some(depth),
                    ParentAt::Left { .. } => None,
                });
                self.notes[thread].bundle = Some(Bundle::new(entry, &id, depth, &line, &message));
            }
        }
    }

    fn keep(&mut self, number: u64, what: &str, body: Raw, taken: Option<&str>, out: &mut Vec<AgentEntry>) {
        let Some(session) = self.session.clone() else {
            self.waiting.push(Waiting::Unreadable(number, body));
            return;
        };
        let own = taken.and_then(Line::parse).and_then(|line| Some(uuid(&line.text("uuid")?)));
        let thread = match own.and_then(|own| self.tree.find(own)) {
            Some(ParentAt::On { chain, .. } | ParentAt::Left { chain, .. }) => chain,
            None => self.home(&session, None, &Line::default()),
        };
        let spelt = name_of(&["line", body.get()]);
        let name = nth(spelt, self.tree.count(spelt));
        let step = EntryContent::Event { what: what.into(), body };
        self.event(
            thread,
            AgentEntry { thread, line: number, name, key: name, at: None, title: None, step },
            out,
        );
    }

    fn settle(&mut self, out: &mut Vec<AgentEntry>) {
        if self.session.is_none() {
            self.begin_without(out);
        }
        for notes in &mut self.notes {
            if let Some(bundle) = &mut notes.bundle {
                bundle.give(out);
            }
        }
    }
}

fn entry(
    thread: usize,
    line: u64,
    name: u64,
    at: Option<everturn_core::time::Timestamp>,
    said: ParsedTurn,
) -> AgentEntry {
    AgentEntry { thread, line, name, key: name, at, title: None, step: EntryContent::Turn(Box::new(said)) }
}

fn said(line: &Line<'_>, message: &Line<'_>, supersedes: Vec<u64>) -> ParsedTurn {
    let internal = line.is("isMeta") || only_results(message);
    ParsedTurn {
        message: line.raw("message").unwrap_or_default().to_string(),
        model: message.text("model").filter(|model| model != "<synthetic>").map(Cow::into_owned),
        tokens: tokens(message),
        visibility: internal.then_some(Visibility::Internal),
        metadata: BTreeMap::from([(METADATA.to_string(), made(line.without("message")))]),
        supersedes,
        other_state: None,
    }
}

/// Prompt tokens include those read from and written to a cache.
fn tokens(message: &Line<'_>) -> Option<Tokens> {
    let usage = message.object("usage")?;
    let counted = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
    let counted: Vec<u64> = counted.iter().filter_map(|name| usage.number(name)).collect();
    let prompt = (!counted.is_empty()).then(|| counted.iter().fold(0, |sum: u64, n| sum.saturating_add(*n)));
    Some(Tokens { prompt, completion: usage.number("output_tokens") })
}

fn what(line: &Line<'_>) -> String {
    let kind = line.text("type").unwrap_or("no type".into());
    let inner = || line.object("attachment")?.text("type");
    match line.text("subtype").or_else(inner) {
        Some(subtype) => format!("{kind}/{subtype}"),
        None => kind.into_owned(),
    }
}
