//! Formatting conversations, turns and events for people.

use crate::dates;
use anstyle::{AnsiColor, Style};
use everturn_core::Error;
use everturn_core::asset::Asset;
use everturn_core::conversation::{Conversation, Lifecycle};
use everturn_core::event::{Event, Visibility};
use everturn_core::fact::Fact;
use everturn_core::id::TurnId;
use everturn_core::message::{self, MessagePart};
use everturn_core::misleading::visible;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Status, Turn};
use everturn_views::context::GivenUp;
use everturn_views::speech::{self, Speech};
use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Write;
use std::str::FromStr;

const DIM: Style = Style::new().dimmed();
const BOLD: Style = Style::new().bold();

/// Number of characters shown of a folded part that is cut.
const FOLDED_CHARS: usize = 100;

/// A count and its noun.
pub fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// The title of a conversation, or the beginning of what was said.
pub fn title(conversation: &Conversation) -> &str {
    let title = conversation.title.as_deref().or(conversation.preview.as_deref());
    title.unwrap_or("(no title)")
}

/// A conversation on one line.
pub fn conversation(conversation: &Conversation) -> String {
    let turns = count(conversation.turns, "turn");
    let state = match conversation.state {
        Lifecycle::Active => String::new(),
        state => format!("  {state}"),
    };
    let said = dates::to_second(conversation.said());
    format!(
        "{}  {DIM}{said}{DIM:#}  {turns:>10}  {BOLD}{}{BOLD:#}{DIM}{state}{DIM:#}",
        conversation.id,
        one_line(title(conversation))
    )
}

/// Details shown of a turn beside its text.
#[derive(Clone, Copy, Default)]
pub struct Detail {
    /// Tool calls, their results and reasoning in full.
    pub full: bool,
    pub ids: bool,
}

/// Calls of the turns that are shown.
#[derive(Default)]
pub struct ShownCalls {
    /// Tools, by the ids of the calls: most results do not name theirs.
    pub tools: HashMap<String, String>,
    /// Calls that were given up.
    pub given_up: Vec<GivenUp>,
}

impl ShownCalls {
    /// A line about a call that was given up.
    fn given_up(&self, turn: TurnId, id: Option<&str>, name: &str) -> Option<String> {
        let given_up = self.given_up.iter().find(|given_up| given_up.is_of(Some(turn), id, name))?;
        let why = given_up.reason.as_ref().map(|reason| format!(": {}", one_line(reason)));
        Some(format!("  {DIM}✗ given up{}{DIM:#}\n", why.unwrap_or_default()))
    }
}

/// A turn: actor, time, content.
pub fn turn(turn: &Turn, assets: &[Asset], detail: Detail, called: &mut ShownCalls) -> String {
    let speech = speech::of_turn(turn);
    let mut out = head(speech, turn.actor.as_deref(), turn.occurred_at.unwrap_or(turn.created), turn.seq);
    if detail.ids {
        let _ = write!(out, "  {DIM}{}{DIM:#}", turn.id);
    }
    let mut notes: Vec<String> = Vec::new();
    if turn.status != Status::Complete {
        notes.push(match &turn.reason {
            Some(reason) => format!("{}: {reason}", turn.status),
            None => turn.status.to_string(),
        });
    }
    if turn.visibility == Visibility::Private {
        notes.push(match turn.audience.is_empty() {
            true => "private".to_string(),
            false => format!("private, for {}", turn.audience.join(", ")),
        });
    }
    notes.extend(turn.model.clone());
    notes.extend(turn.superseded_by.map(|by| format!("superseded by {by}")));
    if turn.metadata.contains_key("secrets") {
        notes.push("contains secrets".into());
    }
    if !notes.is_empty() {
        let _ = write!(out, "  {DIM}({}){DIM:#}", notes.join(", "));
    }
    out.push('\n');
    if turn.erased {
        let _ = writeln!(out, "  {DIM}‹erased›{DIM:#}");
    } else if turn.hidden && turn.message.is_none() {
        let _ = writeln!(out, "  {DIM}‹private›{DIM:#}");
    } else if let Some(value) = turn.value() {
        out.push_str(&body(turn, &value, speech.role, assets, detail.full, called));
    } else if let Some(raw) = &turn.message {
        out.push_str(&indented(raw.get()));
    } else if let Some(partial) = &turn.partial {
        out.push_str(&indented(&partial.text));
    }
    out
}

/// The first line of a turn.
pub fn head(speech: Speech, actor: Option<&str>, at: Timestamp, seq: u64) -> String {
    let name = speech.name();
    let color = match speech.role {
        Role::User => AnsiColor::Cyan,
        Role::Assistant => AnsiColor::Green,
        Role::System => AnsiColor::Magenta,
        Role::Tool => AnsiColor::Yellow,
    };
    let style = color.on_default().bold();
    let who = actor.map_or(name.to_string(), |actor| format!("{} ({name})", one_line(actor)));
    format!("{style}{who}{style:#}  {DIM}#{seq}  {}{DIM:#}", dates::to_second(at))
}

fn body(
    turn: &Turn,
    message: &Value,
    role: Role,
    assets: &[Asset],
    full: bool,
    called: &mut ShownCalls,
) -> String {
    let mut out = String::new();
    let result = |called: &ShownCalls, id: Option<&str>, name: Option<&str>, text: &str| {
        let tool = id.and_then(|id| called.tools.get(id)).map(String::as_str).or(name);
        // The head of the turn names the actor.
        let tool = tool.filter(|tool| turn.actor.as_deref() != Some(*tool));
        folded("←", &tool.map(|tool| format!("{tool}: ")).unwrap_or_default(), text, full)
    };
    let mut texts = speech::Texts::default();
    let blocks = message["content"].as_array();
    for (at, part) in message::parts(message).into_iter().enumerate() {
        let block = blocks.and_then(|blocks| blocks.get(at)).unwrap_or(message);
        match part {
            // It was written by a program in the name of a person.
            MessagePart::Text(text) if role == Role::Tool && message["role"] == "user" => {
                out.push_str(&folded("←", "", &speech::without_tags(text), full));
            }
            MessagePart::Text(text) if role == Role::Tool => {
                let (id, name) = (message["tool_call_id"].as_str(), message["name"].as_str());
                out.push_str(&result(called, id, name, &output(text)));
            }
            MessagePart::Text(text) if role == Role::User => {
                for stretch in texts.stretches(text) {
                    out.push_str(&match stretch.notice {
                        Some(kind) => {
                            folded("←", &format!("{kind}: "), &speech::without_tags(stretch.text), full)
                        }
                        None => indented(stretch.text),
                    });
                }
            }
            MessagePart::Text(text) => out.push_str(&indented(text)),
            MessagePart::Thinking { text, .. } => {
                out.push_str(&folded("✻", "", text.unwrap_or("(hidden reasoning)"), full))
            }
            MessagePart::Call { id, name, arguments } => {
                if let Some(id) = id {
                    called.tools.insert(id.to_string(), name.to_string());
                }
                // A search by the provider itself has its query there.
                let arguments = arguments.or_else(|| block.get("action"));
                out.push_str(&call(name, arguments, full));
                out.extend(called.given_up(turn.id, id, name));
            }
            MessagePart::Result { id, name, content } => {
                let text = content.map(|value| value.as_str().map_or_else(|| plain(value), output));
                out.push_str(&result(called, id, name, &text.unwrap_or_default()));
            }
            MessagePart::Media { kind, label, asset_id } => {
                let asset = asset_id.and_then(|id| assets.iter().find(|asset| asset.id == id));
                let label = label
                    .map(str::to_string)
                    .or_else(|| asset.map(Asset::label))
                    .or(asset_id.map(str::to_string));
                let size = asset.and_then(|asset| asset.bytes).map(|bytes| format!(", {}", size(bytes)));
                let named: String = label.iter().map(|label| format!(" {}", printable(label))).collect();
                let _ = writeln!(out, "  {DIM}▣ {kind}{named}{}{DIM:#}", size.unwrap_or_default());
                let text = message::text_within(block);
                if !text.is_empty() {
                    out.push_str(&folded("│", "", &text, full));
                }
            }
            // Tools that the provider ran itself.
            MessagePart::Other(kind) if kind.ends_with("tool_use") && block["name"].is_string() => {
                let name = block["name"].as_str().unwrap_or(kind);
                if let Some(id) = block["id"].as_str() {
                    called.tools.insert(id.to_string(), name.to_string());
                }
                out.push_str(&call(name, block.get("input"), full));
            }
            MessagePart::Other(kind) if kind.ends_with("tool_result") => {
                let name = kind.strip_suffix("_tool_result");
                let text = block.get("content").map(plain).unwrap_or_default();
                out.push_str(&result(called, block["tool_use_id"].as_str(), name, &text));
            }
            MessagePart::Other(kind) => match message::in_words(block) {
                Some(words) => out.push_str(&folded("▣", "", &words, full)),
                None => {
                    let _ = writeln!(out, "  {DIM}<{}>{DIM:#}", printable(kind));
                }
            },
        }
    }
    out
}

/// A tool and the arguments of its call.
fn call(name: &str, arguments: Option<&Value>, full: bool) -> String {
    let arguments = arguments.map(|value| value.as_str().map_or(value.to_string(), str::to_string));
    folded("→", &format!("{name} "), &arguments.unwrap_or_default(), full)
}

/// The text in a result's blocks; anything else as JSON.
fn plain(value: &Value) -> String {
    let is_block = |block: &Value| block.is_string() || block["type"].is_string();
    let is_known = |block: &Value| !matches!(message::block(block), MessagePart::Other(_));
    let blocks = match value {
        Value::Array(blocks) => blocks.as_slice(),
        one => std::slice::from_ref(one),
    };
    match blocks.iter().all(is_block) && (blocks.is_empty() || blocks.iter().any(is_known)) {
        true => message::render(&serde_json::json!({"role": "tool", "content": blocks}), |_| None),
        false => output(&value.to_string()),
    }
}

/// The text of a tool result. Output that is wrapped in JSON is shown without the wrapping.
fn output(text: &str) -> String {
    match message::json_output(text) {
        Some(Value::String(output)) => output,
        _ => text.to_string(),
    }
}

/// A part on one line, or in full, behind its mark and its label.
fn folded(mark: &str, label: &str, text: &str, full: bool) -> String {
    if full {
        return indented(format!("{mark} {label}{text}").trim_end());
    }
    let line: Vec<String> = text.lines().map(one_line).filter(|line| !line.is_empty()).collect();
    let line = line.join(" ⏎ ");
    let size = format!("({}, {})", count(text.lines().count() as u64, "line"), size(text.len() as u64));
    let cut = format!("{} {size}", clipped(&line, FOLDED_CHARS));
    // A part that is no longer than its cut form is shown whole.
    let shown = if line.chars().count() <= cut.chars().count() { line } else { cut };
    let shown = format!("{mark} {}{shown}", printable(label));
    format!("  {DIM}{}{DIM:#}\n", shown.trim_end())
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {}\n", printable(line))).collect()
}

/// A fact on one line.
pub fn fact(fact: &Fact) -> String {
    let mut notes = vec![format!("confidence {}", fact.confidence)];
    if !fact.sources.is_empty() {
        let places: Vec<String> =
            fact.sources.iter().filter_map(|source| source.seq).map(|seq| format!("#{seq}")).collect();
        notes.push(format!("from {}", places.join(", ")));
    }
    notes.extend(fact.superseded_by.map(|by| format!("superseded by {by}")));
    if let Some(retracted) = &fact.retracted {
        let why = retracted.reason.as_deref().map(|why| format!(": {}", one_line(why))).unwrap_or_default();
        notes.push(format!("retracted{why}"));
    }
    format!("{}  {BOLD}{}{BOLD:#}  {DIM}({}){DIM:#}", fact.id, one_line(&fact.text()), notes.join(", "))
}

/// An event that is not a turn, on one line.
pub fn event(event: &Event) -> String {
    let what = match event.text() {
        Some("{}") => String::new(),
        Some(text) => format!("  {}", clipped(text, FOLDED_CHARS)),
        None if event.hidden => "  ‹private›".to_string(),
        None => "  ‹erased›".to_string(),
    };
    format!("{DIM}· {}  #{}  {}{what}{DIM:#}", event.kind, event.seq, dates::to_second(event.at))
}

/// The value of an option; its error names the option.
pub fn option<T: FromStr<Err = Error>>(option: &str, value: &str) -> Result<T, Error> {
    value.parse().map_err(|error: Error| error.at(option))
}

/// `#3 to #7`, or `#3` if both are the same.
pub fn range(from: u64, to: u64) -> String {
    if from == to { format!("#{from}") } else { format!("#{from} to #{to}") }
}

/// A word of a command line, quoted if a shell would split or change it.
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_string(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// `12 KiB`.
pub fn size(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

pub fn one_line(text: &str) -> String {
    printable(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The beginning of a text on one line; `…` marks omitted text.
pub fn clipped(text: &str, chars: usize) -> String {
    let line = one_line(text);
    match line.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", line[..end].trim_end()),
        None => line,
    }
}

/// Escapes control characters, so that content cannot control the reader's terminal, and characters that mislead the
/// reader.
pub fn printable(text: &str) -> String {
    visible(text).chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// Several untrusted lines, made safe for a terminal.
pub fn printable_lines(text: &str) -> String {
    text.lines().map(printable).collect::<Vec<_>>().join("\n")
}
