//! Sessions that `opencode export` writes: `{"info": {…}, "messages": [{"info": {…}, "parts": […]}]}`.
//!
//! One message of opencode holds all steps of an answer, with the result of each call in the call itself. Here a step
//! is a turn, and the results of its calls are the next one. What the program adds to a prompt is a turn of its own, and a
//! summary that it goes on from is a compaction. What is no text, thought or call stays in the metadata of
//! the message's first turn.

use super::line::{Line, made, words};
use super::reader::Mapper;
use super::{
    AgentEntry, AgentFormat, EntryContent, ImportOrigin, OtherState, ParsedTurn, Thread, conversation_id,
    name_of, nth, prompt_title, title,
};
use everturn_core::json::{Raw, quote};
use everturn_core::time::Timestamp;
use everturn_core::turn::Tokens;
use std::borrow::Cow;

/// The metadata of a turn that the program wrote in the name of the user.
const SYNTHETIC: &str = "{\"synthetic\":true}";

/// Reads one file.
pub struct Opencode {
    threads: Vec<Thread>,
    fallback: Option<String>,
    /// The session's own fields.
    info: String,
    titled: bool,
    kept: u64,
    /// The first message that the next summary does not replace.
    tail: Option<String>,
}

/// A turn of a message.
#[derive(Default)]
struct Step {
    /// Whether the program wrote it in the name of the user.
    synthetic: bool,
    blocks: Vec<String>,
    results: Vec<String>,
}

impl Opencode {
    /// For a file with this name.
    pub fn new(fallback: Option<String>) -> Opencode {
        Opencode { threads: Vec::new(), fallback, info: "{}".to_string(), titled: false, kept: 0, tail: None }
    }

    fn begin(&mut self, message: &Line<'_>) {
        if !self.threads.is_empty() {
            return;
        }
        let own = |line: &Line<'_>, name: &str| {
            line.text(name).filter(|text| !text.is_empty()).map(Cow::into_owned)
        };
        let info = Line::parse(&self.info).unwrap_or_default();
        let format = AgentFormat::Opencode.name();
        let session = own(&info, "id").or_else(|| own(message, "sessionID"));
        let id = match (&session, &self.fallback) {
            (Some(session), _) => conversation_id(&[format, session]),
            (None, Some(name)) => conversation_id(&[format, "file", name]),
            (None, None) => conversation_id(&[format, "info", &self.info]),
        };
        let parent = own(&info, "parentID").map(|parent| conversation_id(&[format, &parent]));
        let (cwd, version) = (own(&info, "directory"), own(&info, "version"));
        self.threads.push(Thread {
            id,
            origin: ImportOrigin { format, session, parent, cwd, version, ..ImportOrigin::default() },
            branch: None,
        });
    }

    /// The title that a person or the program chose, otherwise the first prompt.
    fn title(&mut self, message: &str) -> Option<String> {
        if self.titled {
            return None;
        }
        let info = Line::parse(&self.info).unwrap_or_default();
        let given = info.text("title").filter(|given| !given.starts_with("New session"));
        let found = given.as_deref().and_then(title).or_else(|| {
            let message = Line::parse(message)?;
            let said = message.text("role").as_deref() == Some("user");
            said.then(|| prompt_title(&words(message.raw("content")?))).flatten()
        });
        self.titled = found.is_some();
        found
    }
}

impl Mapper for Opencode {
    fn threads(&self) -> &[Thread] {
        &self.threads
    }

    fn field(&mut self, name: &str, text: &str) {
        if name == "info" && text.starts_with('{') {
            self.info = text.to_string();
        }
    }

    fn take(&mut self, number: u64, text: &str, out: &mut Vec<AgentEntry>) {
        let line = Line::parse(text).unwrap_or_default();
        let info = line.object("info").unwrap_or_default();
        self.begin(&info);
        let (role, parts) = (info.text("role"), line.list("parts"));
        let (Some(role), Some(parts)) =
            (role.filter(|role| matches!(role.as_ref(), "user" | "assistant")), parts)
        else {
            return self.keep(number, "message", made(text.to_string()), None, out);
        };
        let mut lines = parts.iter().filter_map(|part| Line::parse(part.get()));
        if let Some(part) = lines.find(|part| part.text("type").as_deref() == Some("compaction")) {
            self.tail = part.text("tail_start_id").map(Cow::into_owned);
        }
        let raws: Vec<&str> = parts.iter().map(|part| part.get()).collect();
        let (steps, rest) = steps(&raws, role == "user");
        let at = info.object("time").and_then(|time| time.number("created")).and_then(at);
        let id = info.text("id").unwrap_or_default();
        let mut turns: Vec<ParsedTurn> = Vec::new();
        let is_first_synthetic = steps.first().is_some_and(|step| step.synthetic);
        for step in steps {
            if !step.blocks.is_empty() {
                let message =
                    format!("{{\"role\":{},\"content\":[{}]}}", quote(&role), step.blocks.join(","));
                let mut turn = ParsedTurn { message, ..ParsedTurn::default() };
                if step.synthetic {
                    turn.metadata.insert("opencode".to_string(), made(SYNTHETIC.to_string()));
                }
                turns.push(turn);
            }
            if !step.results.is_empty() {
                let message = format!("{{\"role\":\"tool\",\"content\":[{}]}}", step.results.join(","));
                turns.push(ParsedTurn { message, ..ParsedTurn::default() });
            }
        }
        if turns.is_empty() {
            return self.keep(number, "message", made(text.to_string()), None, out);
        }
        // What the program asked its model to sum up, to go on from there.
        let mut summary = match turns.as_slice() {
            [only] if info.is("summary") && role == "assistant" => {
                let said = Line::parse(&only.message).and_then(|said| Some(words(said.raw("content")?)));
                said.filter(|summary| !summary.trim().is_empty())
            }
            _ => None,
        };
        let model =
            info.text("modelID").or_else(|| info.object("model").and_then(|model| model.text("modelID")));
        let is_answer = |turn: &ParsedTurn| turn.message.starts_with("{\"role\":\"assistant\"");
        for turn in turns.iter_mut().filter(|turn| is_answer(turn)) {
            turn.model = model.clone().map(Cow::into_owned);
        }
        let last_answer = turns.iter().rposition(is_answer);
        if let Some(turn) = last_answer.and_then(|last| turns.get_mut(last)) {
            turn.tokens = info.object("tokens").map(|tokens| tokens_of(&tokens));
        }
        let mark = if is_first_synthetic { ",\"synthetic\":true" } else { "" };
        let kept =
            format!("{{\"info\":{},\"parts\":[{}]{mark}}}", line.raw("info").unwrap_or("{}"), rest.join(","));
        turns[0].metadata.insert("opencode".to_string(), made(kept));
        for (index, mut turn) in turns.into_iter().enumerate() {
            let name = match id.is_empty() {
                true => name_of(&["line", &turn.message, &number.to_string()]),
                false => name_of(&["id", &id, &index.to_string()]),
            };
            // A message that was exported before it was whole has a newer version later. Its tokens are with its last step:
            // one that was the last is another version once it is followed by more.
            let followed = nth(name, name_of(&[&turn.message, "followed"]));
            let mut key = nth(name, name_of(&[&turn.message]));
            if is_answer(&turn) {
                let is_followed = Some(index) < last_answer;
                let other = if is_followed { std::mem::replace(&mut key, followed) } else { followed };
                turn.other_state = Some(OtherState { key: other, lost_tokens: is_followed });
            }
            let is_synthetic =
                if index == 0 { is_first_synthetic } else { turn.metadata.contains_key("opencode") };
            let title = if is_synthetic { None } else { self.title(&turn.message) };
            let step = match summary.take_if(|_| index == 0) {
                Some(summary) => EntryContent::Compaction {
                    what: "summary".into(),
                    summary,
                    tokens_before: None,
                    kept: self.tail.take().map(|id| name_of(&["id", &id, "0"])),
                    body: made(text.to_string()),
                },
                None => EntryContent::Turn(Box::new(turn)),
            };
            out.push(AgentEntry { thread: 0, line: number, name, key, at, title, step });
        }
    }

    fn keep(&mut self, number: u64, what: &str, body: Raw, _taken: Option<&str>, out: &mut Vec<AgentEntry>) {
        self.begin(&Line::default());
        self.kept += 1;
        let name = name_of(&["kept", body.get(), &self.kept.to_string()]);
        let step = EntryContent::Event { what: what.into(), body };
        out.push(AgentEntry { thread: 0, line: number, name, key: name, at: None, title: None, step });
    }

    fn settle(&mut self, _out: &mut Vec<AgentEntry>) {}
}

/// The steps of a message, and its parts that are in none of them. A step ends where something follows its calls, and
/// where the words of the user and of the program meet.
fn steps<'a>(parts: &[&'a str], of_user: bool) -> (Vec<Step>, Vec<&'a str>) {
    let (mut steps, mut step, mut rest) = (Vec::new(), Step::default(), Vec::new());
    let mut called = false;
    for raw in parts {
        let part = Line::parse(raw).unwrap_or_default();
        let text = part.raw("text").filter(|text| text.len() > 2 && text.starts_with('"'));
        let (block, result) = match (part.text("type").as_deref(), text) {
            (Some("text"), Some(text)) => (format!("{{\"type\":\"text\",\"text\":{text}}}"), None),
            (Some("reasoning"), Some(text)) => {
                (format!("{{\"type\":\"thinking\",\"thinking\":{text}}}"), None)
            }
            (Some("tool"), _) => {
                let (call, result) = call(&part);
                (call, Some(result))
            }
            _ => {
                rest.push(*raw);
                continue;
            }
        };
        let synthetic = of_user && part.is("synthetic");
        if called && result.is_none() || !step.blocks.is_empty() && step.synthetic != synthetic {
            steps.push(std::mem::take(&mut step));
            called = false;
        }
        step.synthetic = synthetic;
        called |= result.is_some();
        step.blocks.push(block);
        step.results.extend(result.flatten());
    }
    steps.push(step);
    (steps, rest)
}

/// A call and, if there is one, its result.
fn call(part: &Line<'_>) -> (String, Option<String>) {
    let state = part.object("state").unwrap_or_default();
    let (id, name) = (part.raw("callID").unwrap_or("null"), part.raw("tool").unwrap_or("\"tool\""));
    let input = state.raw("input").filter(|input| input.starts_with('{')).unwrap_or("{}");
    let call = format!("{{\"type\":\"tool_call\",\"id\":{id},\"name\":{name},\"arguments\":{input}}}");
    let (content, failed) = match state.text("status").as_deref() {
        Some("completed") => (state.raw("output").unwrap_or("\"\""), ""),
        Some("error") => (state.raw("error").unwrap_or("\"\""), ",\"is_error\":true"),
        _ => return (call, None),
    };
    let result = format!(
        "{{\"type\":\"tool_result\",\"tool_use_id\":{id},\"name\":{name},\"content\":{content}{failed}}}"
    );
    (call, Some(result))
}

fn tokens_of(tokens: &Line<'_>) -> Tokens {
    let cache = tokens.object("cache").unwrap_or_default();
    let sum = |counts: [Option<u64>; 3]| counts.into_iter().flatten().reduce(u64::saturating_add);
    Tokens {
        prompt: sum([tokens.number("input"), cache.number("read"), cache.number("write")]),
        completion: sum([tokens.number("output"), tokens.number("reasoning"), None]),
    }
}

/// A time in milliseconds since 1970.
pub fn at(millis: u64) -> Option<Timestamp> {
    let time = Timestamp(i64::try_from(millis).ok()?.checked_mul(1000)?);
    time.check().is_ok().then_some(time)
}
