//! Journals of Kimi Code: `{"type": "context.append_message", …}` and other changes of the context, one a line.
//!
//! A step of the model is spread over several lines: its parts, its calls and their results, and last its tokens. Here it is a
//! turn, and each result is one. The path names the session: `<session>/agents/<agent>/wire.jsonl`.

use super::line::{Line, made, words};
use super::opencode::at;
use super::reader::Mapper;
use super::{
    AgentEntry, AgentFormat, EntryContent, ImportOrigin, OtherState, ParsedTurn, Thread, conversation_id,
    name_of, nth, prompt_title,
};
use everturn_core::json::{Raw, quote};
use everturn_core::message;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Tokens};
use std::borrow::Cow;
use std::collections::HashMap;

/// Reads one file.
pub struct KimiCode {
    threads: Vec<Thread>,
    fallback: Option<String>,
    seen: HashMap<u64, u64>,
    titled: bool,
    model: Option<String>,
    step: Option<Step>,
}

/// A step of the model so far.
struct Step {
    id: String,
    line: u64,
    at: Option<Timestamp>,
    blocks: Vec<String>,
    /// Each with its line, its time and the id of its call.
    results: Vec<(u64, Option<Timestamp>, String, String)>,
    /// Names of the tools, by call.
    tools: HashMap<String, String>,
    tokens: Option<Tokens>,
}

impl KimiCode {
    /// For a file with this name.
    pub fn new(fallback: Option<String>) -> KimiCode {
        KimiCode {
            threads: Vec::new(),
            fallback,
            seen: HashMap::new(),
            titled: false,
            model: None,
            step: None,
        }
    }

    fn begin(&mut self, text: &str) {
        if !self.threads.is_empty() {
            return;
        }
        let format = AgentFormat::KimiCode.name();
        let path: Vec<&str> =
            self.fallback.as_deref().map(|path| path.rsplit(['/', '\\']).collect()).unwrap_or_default();
        let (id, origin) = match (path.as_slice(), &self.fallback) {
            // Copies under other names may stand side by side in a folder of any name.
            ([file, agent, "agents", session, ..], _) if file.starts_with("wire.") => {
                let main = conversation_id(&[format, session]);
                let agent = Some(agent.to_string()).filter(|agent| agent != "main");
                let id = agent.as_ref().map_or(main, |agent| conversation_id(&[format, session, agent]));
                let (session, parent) = (Some(session.to_string()), agent.is_some().then_some(main));
                (id, ImportOrigin { format, session, agent, parent, ..ImportOrigin::default() })
            }
            (_, Some(name)) => {
                (conversation_id(&[format, "file", name]), ImportOrigin { format, ..ImportOrigin::default() })
            }
            (_, None) => {
                (conversation_id(&[format, "line", text]), ImportOrigin { format, ..ImportOrigin::default() })
            }
        };
        self.threads.push(Thread { id, origin, branch: None });
    }

    /// The name of a line that has no id, and that may be there twice.
    fn name(&mut self, text: &str) -> u64 {
        let spelt = name_of(&["line", text]);
        let count = self.seen.entry(spelt).or_default();
        *count += 1;
        nth(spelt, *count - 1)
    }

    fn event(
        &mut self,
        number: u64,
        what: &str,
        text: String,
        at: Option<Timestamp>,
        out: &mut Vec<AgentEntry>,
    ) {
        let name = self.name(&text);
        let step = EntryContent::Event { what: what.to_string(), body: made(text) };
        out.push(AgentEntry { thread: 0, line: number, name, key: name, at, title: None, step });
    }

    fn message(&mut self, number: u64, text: &str, line: &Line<'_>, out: &mut Vec<AgentEntry>) -> Option<()> {
        let message = line.object("message")?;
        let role = serde_json::json!({"role": message.text("role")?});
        let role = message::role(&role).ok()?;
        let by_person = message.object("origin").is_none_or(|by| by.text("kind").as_deref() == Some("user"));
        let mut title = None;
        if role == Role::User && by_person && !self.titled {
            title = prompt_title(&words(message.raw("content").unwrap_or_default()));
            self.titled = title.is_some();
        }
        let name = self.name(text);
        let said = ParsedTurn { message: line.raw("message")?.to_string(), ..ParsedTurn::default() };
        let (at, step) = (time(line), EntryContent::Turn(Box::new(said)));
        out.push(AgentEntry { thread: 0, line: number, name, key: name, at, title, step });
        Some(())
    }

    /// A line about a step of the model.
    fn loop_event(
        &mut self,
        number: u64,
        line: &Line<'_>,
        event: &Line<'_>,
        out: &mut Vec<AgentEntry>,
    ) -> Option<()> {
        let own = |name: &str| event.text(name).map(Cow::into_owned);
        match event.text("type")?.as_ref() {
            "step.begin" => {
                self.flush(false, out);
                let (at, id) = (time(line), own("uuid")?);
                self.step = Some(Step {
                    id,
                    line: number,
                    at,
                    blocks: Vec::new(),
                    results: Vec::new(),
                    tools: HashMap::new(),
                    tokens: None,
                });
            }
            "content.part" => {
                let part = event.object("part")?;
                let block = match (part.text("type").as_deref(), part.raw("think")) {
                    (Some("think"), Some(think)) => format!("{{\"type\":\"thinking\",\"thinking\":{think}}}"),
                    _ => event.raw("part")?.to_string(),
                };
                self.step.as_mut()?.blocks.push(block);
            }
            "tool.call" => {
                let (id, name) = (event.raw("toolCallId")?, event.raw("name")?);
                let input = event.raw("args").filter(|input| input.starts_with('{')).unwrap_or("{}");
                let step = self.step.as_mut()?;
                step.tools.insert(own("toolCallId")?, name.to_string());
                step.blocks.push(format!(
                    "{{\"type\":\"tool_call\",\"id\":{id},\"name\":{name},\"arguments\":{input}}}"
                ));
            }
            "tool.result" => {
                let (id, result) = (own("toolCallId")?, event.object("result")?);
                let step = self.step.as_mut()?;
                let name = step.tools.get(&id).map(|name| format!(",\"name\":{name}")).unwrap_or_default();
                let content = result.raw("output").unwrap_or("\"\"");
                let failed = if result.is("isError") { ",\"is_error\":true" } else { "" };
                let message = format!(
                    "{{\"role\":\"tool\",\"content\":[{{\"type\":\"tool_result\",\"tool_use_id\":{}{name},\"content\":{content}{failed}}}]}}",
                    quote(&id)
                );
                step.results.push((number, time(line), id, message));
            }
            "step.end" => {
                let usage = event.object("usage").map(|usage| tokens(&usage));
                self.step.as_mut()?.tokens = usage;
                self.flush(false, out);
            }
            _ => return None,
        }
        Some(())
    }

    /// Emits the step. One that the file ends in has a newer version later, if only for its tokens.
    fn flush(&mut self, goes_on: bool, out: &mut Vec<AgentEntry>) {
        let Some(step) = self.step.take() else { return };
        let mut push = |name: u64, version: u64, line: u64, at: Option<Timestamp>, turn: ParsedTurn| {
            let key = nth(name, version);
            let step = EntryContent::Turn(Box::new(turn));
            out.push(AgentEntry { thread: 0, line, name, key, at, title: None, step });
        };
        if !step.blocks.is_empty() {
            let message = format!("{{\"role\":\"assistant\",\"content\":[{}]}}", step.blocks.join(","));
            let (model, tokens) = (self.model.clone(), step.tokens);
            let name = name_of(&["step", &step.id]);
            let ended = name_of(&[&message]);
            let version = if goes_on { name_of(&[&message, "goes on"]) } else { ended };
            let other_state = goes_on.then(|| OtherState { key: nth(name, ended), lost_tokens: false });
            let said = ParsedTurn { message, model, tokens, other_state, ..ParsedTurn::default() };
            push(name, version, step.line, step.at, said);
        }
        for (line, at, call, message) in step.results {
            let (name, version) = (name_of(&["result", &step.id, &call]), name_of(&[&message]));
            push(name, version, line, at, ParsedTurn { message, ..ParsedTurn::default() });
        }
    }
}

impl Mapper for KimiCode {
    fn threads(&self) -> &[Thread] {
        &self.threads
    }

    fn take(&mut self, number: u64, text: &str, out: &mut Vec<AgentEntry>) {
        self.begin(text);
        let line = Line::parse(text).unwrap_or_default();
        let what = line.text("type").unwrap_or("no type".into()).into_owned();
        let taken = match what.as_str() {
            "context.append_message" => {
                self.flush(false, out);
                self.message(number, text, &line, out)
            }
            "context.append_loop_event" => {
                line.object("event").and_then(|event| self.loop_event(number, &line, &event, out))
            }
            "context.apply_compaction" => {
                self.flush(false, out);
                line.text("summary").map(|summary| {
                    let name = self.name(text);
                    let step = EntryContent::Compaction {
                        what: what.clone(),
                        summary: summary.into_owned(),
                        tokens_before: line.number("tokensBefore"),
                        kept: None,
                        body: made(text.to_string()),
                    };
                    let at = time(&line);
                    out.push(AgentEntry { thread: 0, line: number, name, key: name, at, title: None, step });
                })
            }
            _ => None,
        };
        if taken.is_some() {
            return;
        }
        if what == "llm.request" {
            self.model = line.text("model").map(Cow::into_owned).or(self.model.take());
        }
        let prompt = line.text("systemPrompt").filter(|prompt| !prompt.is_empty());
        let rest = if prompt.is_some() { line.without("systemPrompt") } else { text.to_string() };
        if let Some(prompt) = prompt {
            let name = name_of(&["system"]);
            let key = nth(name, name_of(&[&prompt]));
            let (at, step) = (time(&line), EntryContent::System(prompt.into_owned()));
            out.push(AgentEntry { thread: 0, line: number, name, key, at, title: None, step });
        }
        self.event(number, &what, rest, time(&line), out);
    }

    fn keep(&mut self, number: u64, what: &str, body: Raw, _taken: Option<&str>, out: &mut Vec<AgentEntry>) {
        self.begin(body.get());
        self.event(number, what, body.get().to_string(), None, out);
    }

    fn settle(&mut self, out: &mut Vec<AgentEntry>) {
        self.flush(true, out);
    }
}

fn time(line: &Line<'_>) -> Option<Timestamp> {
    line.number("time").and_then(at)
}

fn tokens(usage: &Line<'_>) -> Tokens {
    let prompt = ["inputOther", "inputCacheRead", "inputCacheCreation"].iter();
    let prompt = prompt.filter_map(|name| usage.number(name)).reduce(u64::saturating_add);
    Tokens { prompt, completion: usage.number("output") }
}
