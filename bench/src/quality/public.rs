//! Public sets of questions about long conversations, read from files. Nothing of them is kept here: their
//! licences forbid it.
//!
//! - **LoCoMo** (Maharana et al., 2024): chats of two people over months, in sessions; a question names the
//!   turns that answer it.
//! - **BEAM** (Tavakoli et al., 2025): long technical conversations with a model; a session is a batch of
//!   messages.

use super::{DialogueTurn, Set};
use crate::Result;
use everturn_core::time::Timestamp;
use everturn_core::turn::Role;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Names of LoCoMo's categories, by their numbers.
const LOCOMO_CATEGORIES: [&str; 6] =
    ["", "multi-hop", "temporal", "open-domain", "single-hop", "adversarial"];

#[derive(Deserialize)]
struct Sample {
    conversation: serde_json::Map<String, Value>,
    qa: Vec<Asked>,
}

#[derive(Deserialize)]
struct Asked {
    question: String,
    category: usize,
    #[serde(default)]
    evidence: Vec<String>,
}

#[derive(Deserialize)]
struct Line {
    speaker: String,
    dia_id: String,
    text: String,
    blip_caption: Option<String>,
}

/// The conversations and questions of a file in the format of `locomo10.json`.
pub fn locomo(path: &Path) -> Result<Set> {
    let samples: Vec<Sample> = serde_json::from_slice(&std::fs::read(path)?)?;
    let mut set = Set::new("LoCoMo");
    for Sample { conversation, qa } in samples {
        let first_speaker = conversation.get("speaker_a").and_then(Value::as_str).unwrap_or_default();
        let (mut said, mut by_id) = (Vec::new(), HashMap::new());
        for session in 1.. {
            let Some(lines) = conversation.get(&format!("session_{session}")) else {
                // A date may come without any turns.
                if conversation.contains_key(&format!("session_{session}_date_time")) {
                    continue;
                }
                break;
            };
            let date = conversation.get(&format!("session_{session}_date_time")).and_then(Value::as_str);
            let at = date.and_then(locomo_time);
            for line in Vec::<Line>::deserialize(lines)? {
                by_id.insert(line.dia_id, said.len());
                let caption = line.blip_caption.map_or(String::new(), |caption| format!("\n{caption}"));
                let role = if line.speaker == first_speaker { Role::User } else { Role::Assistant };
                let text = format!("{}{caption}", line.text);
                said.push(DialogueTurn { role, actor: Some(line.speaker), text, at, session });
            }
        }
        let conversation = set.say(said);
        for Asked { question, category, evidence } in qa {
            // Some cells hold several ids.
            let ids = evidence.iter().flat_map(|cell| cell.split([';', ',', ' ']));
            let answers = ids.filter_map(|id| by_id.get(id).copied());
            let class = LOCOMO_CATEGORIES.get(category).copied().unwrap_or_default();
            set.ask(class, question, conversation, answers);
        }
    }
    Ok(set)
}

/// `4:05 pm on 3 March, 2031`.
fn locomo_time(text: &str) -> Option<Timestamp> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (time, date) = text.split_once(" on ")?;
    let (clock, half) = time.split_once(' ')?;
    let (hour, minute) = clock.split_once(':')?;
    let hour = hour.parse::<u8>().ok()? % 12 + if half == "pm" { 12 } else { 0 };
    let (day, date) = date.split_once(' ')?;
    let (month, year) = date.split_once(", ")?;
    let month = MONTHS.iter().position(|name| month.starts_with(name))? + 1;
    format!("{year}-{month:02}-{:02}T{hour:02}:{minute}:00Z", day.parse::<u8>().ok()?).parse().ok()
}

#[derive(Deserialize)]
struct Batch {
    turns: Vec<Vec<Message>>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    id: u64,
    content: String,
}

/// Every conversation below a folder: `chat.json`, and its questions in `probing_questions/probing_questions.json`.
pub fn beam(folder: &Path) -> Result<Set> {
    let mut set = Set::new("BEAM");
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let chat = folder.join("chat.json");
        if chat.exists() {
            beam_chat(&mut set, &chat, &folder.join("probing_questions/probing_questions.json"))?;
            continue;
        }
        let mut within: Vec<PathBuf> = std::fs::read_dir(&folder)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<std::io::Result<_>>()?;
        within.retain(|path| path.is_dir());
        within.sort();
        folders.extend(within);
    }
    Ok(set)
}

fn beam_chat(set: &mut Set, chat: &Path, questions: &Path) -> Result<()> {
    let batches: Vec<Batch> = serde_json::from_slice(&std::fs::read(chat)?)?;
    let (mut said, mut by_id) = (Vec::new(), HashMap::new());
    for (session, batch) in batches.into_iter().enumerate() {
        for message in batch.turns.into_iter().flatten() {
            by_id.insert(message.id, said.len());
            let role = message.role.parse()?;
            said.push(DialogueTurn { role, actor: None, text: message.content, at: None, session });
        }
    }
    let conversation = set.say(said);
    let questions: BTreeMap<String, Vec<Value>> = serde_json::from_slice(&std::fs::read(questions)?)?;
    for (class, asked) in questions {
        for asked in asked {
            let mut ids = Vec::new();
            numbers(&asked["source_chat_ids"], &mut ids);
            let answers = ids.iter().filter_map(|id| by_id.get(id).copied());
            set.ask(&class, asked["question"].as_str().unwrap_or_default().into(), conversation, answers);
        }
    }
    Ok(())
}

/// Every number in a value, at any depth.
fn numbers(value: &Value, found: &mut Vec<u64>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| numbers(item, found)),
        Value::Object(fields) => fields.values().for_each(|field| numbers(field, found)),
        value => found.extend(value.as_u64().or_else(|| value.as_str()?.parse().ok())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_sessions() {
        for (text, time) in [
            ("4:05 pm on 3 March, 2031", Some("2031-03-03T16:05:00Z")),
            ("12:30 am on 21 October, 2031", Some("2031-10-21T00:30:00Z")),
            ("sometime", None),
        ] {
            assert_eq!(locomo_time(text), time.map(|time| time.parse().expect("a time")), "{text}");
        }
    }
}
