//! Recording calls of clients that store the conversation themselves and send all of it every time.
//!
//! New messages are found by comparison: the longest beginning of the sent messages that equals the end of the
//! conversation is known, and what follows it is appended. So a client may send everything, the last part, or
//! only the new message. Messages are compared by their content, in any shape. Leading system messages are
//! treated separately: each is appended once, and again when it changes. Some clients leave out the replies of this
//! server: see [`Resend`].

use super::chat::ReplyFormat;
use super::error::RequestError;
use super::{completions, stored};
use crate::app::blocking;
use axum::http::HeaderMap;
use everturn_core::Error;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::message::{self, MessagePart};
use everturn_core::turn::{Role, Status, Tokens, Turn};
use everturn_engine::model::ModelReply;
use everturn_engine::{HistoryQuery, NewTurn, Order, Tenant};
use serde_json::Value;

/// The header that names the conversation.
pub const HEADER: &str = "everturn-conversation";

/// Number of turns at the end of a conversation that are compared with the request.
pub const COMPARED_TURNS_MAX: usize = 1000;

/// Part of the conversation that a client sends again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Resend {
    Everything,
    /// The model's turns and the results of its calls may be missing: the client knows that their items are stored.
    WithoutReplies,
}

#[derive(Clone)]
pub struct Recorder {
    tenant: Tenant,
    id: ConversationId,
    adapter: &'static str,
    /// The reply is stored as this completion as well, in a conversation of its own.
    completion: Option<ReplyFormat>,
}

impl Recorder {
    /// A recorder for a conversation.
    pub fn new(tenant: &Tenant, id: ConversationId, adapter: &'static str) -> Recorder {
        Recorder { tenant: tenant.clone(), id, adapter, completion: None }
    }

    pub fn for_completion(self, shown: ReplyFormat) -> Recorder {
        Recorder { completion: Some(shown), ..self }
    }

    pub fn conversation(&self) -> ConversationId {
        self.id
    }

    /// Deletes a completion that has no reply. A named conversation keeps its input.
    pub async fn forget(&self) -> Result<(), Error> {
        if self.completion.is_some() {
            self.tenant.conversation(self.id).delete("its completion failed").await?;
        }
        Ok(())
    }

    /// A recorder for the conversation that the header or the metadata names, if any.
    pub fn named(
        tenant: &Tenant,
        headers: &HeaderMap,
        metadata: Option<&str>,
        adapter: &'static str,
    ) -> Result<Option<Recorder>, RequestError> {
        let header = headers.get(HEADER).map(|value| value.to_str().unwrap_or_default());
        let Some(name) = header.or(metadata) else { return Ok(None) };
        let id = super::request::ConversationRef::Id(name.to_string()).id()?;
        Ok(Some(Recorder::new(tenant, id, adapter)))
    }

    /// Appends the new messages.
    pub async fn input(&self, messages: &[Raw]) -> Result<(), Error> {
        let (this, messages) = (self.clone(), messages.to_vec());
        blocking(move || {
            let new = this.new_of(messages)?;
            if !new.is_empty() {
                let turns = new.iter().map(|raw| this.turn(raw));
                this.tenant.conversation(this.id).append_all(turns).wait()?;
            }
            Ok(())
        })
        .await
    }

    pub async fn answer(&self, answer: &ModelReply) -> Result<(), Error> {
        let mut turns: Vec<NewTurn> = answer.messages.iter().map(|raw| self.turn(raw)).collect();
        if turns.is_empty() {
            turns.push(NewTurn::assistant(&answer.text));
        }
        for turn in &mut turns {
            turn.model = Some(answer.model.clone()).filter(|model| !model.is_empty());
        }
        if let (Some(shown), Some(last)) = (&self.completion, turns.last_mut()) {
            last.metadata.insert(completions::KEY.to_string(), Raw::of(&shown.whole(answer))?);
        }
        turns[0].tokens = Some(Tokens { prompt: answer.tokens.prompt, completion: answer.tokens.completion });
        self.tenant.conversation(self.id).append_all(turns).await.map(drop)
    }

    fn turn(&self, raw: &Raw) -> NewTurn {
        NewTurn { adapter: Some(self.adapter.to_string()), ..NewTurn::message(raw.get()) }
    }

    fn new_of(&self, messages: Vec<Raw>) -> Result<Vec<Raw>, Error> {
        let known = last_turns(&self.tenant, self.id, None)?;
        let new = new_messages(&messages, &known, Resend::Everything);
        Ok(new.into_iter().map(|at| messages[at].clone()).collect())
    }
}

/// The last turns of a conversation before this `seq`, oldest first.
pub fn last_turns(tenant: &Tenant, id: ConversationId, before: Option<u64>) -> Result<Vec<Turn>, Error> {
    let order = Order::Descending;
    let query = HistoryQuery { before, limit: COMPARED_TURNS_MAX, order, ..HistoryQuery::default() };
    let mut turns = stored::turns(tenant, id, query)?;
    turns.retain(|turn| turn.status != Status::Pending);
    turns.reverse();
    Ok(turns)
}

/// The indexes of the messages that are new after these turns.
pub fn new_messages(messages: &[Raw], known: &[Turn], resend: Resend) -> Vec<usize> {
    let say = |role: fn(Role) -> bool| -> Vec<String> {
        let said = known.iter().filter(|turn| role(turn.role)).filter_map(Turn::value);
        said.flat_map(|message| gist(&message)).collect()
    };
    let (system, spoken) = (say(|role| role == Role::System), say(|role| role != Role::System));
    new(messages, &system, &spoken, resend)
}

/// The indexes of the new messages, given the known system messages and the known messages, oldest first.
fn new(messages: &[Raw], system: &[String], spoken: &[String], resend: Resend) -> Vec<usize> {
    let values: Vec<Value> = messages.iter().map(|raw| raw.read().unwrap_or_default()).collect();
    let gists: Vec<Vec<String>> = values.iter().map(gist).collect();
    let is_system = |at: usize| message::role(&values[at]).is_ok_and(|role| role == Role::System);
    let lead = (0..values.len()).take_while(|at| is_system(*at)).count();
    // The last message up to which everything is at the end of the conversation. System messages in between are
    // not compared.
    let is_end = |through: &usize| {
        let sent: Vec<&String> =
            (lead..*through).filter(|at| !is_system(*at)).flat_map(|at| &gists[at]).collect();
        // A single message that equals an earlier one is new, unless it still waits for its reply.
        let next = gists.get(*through).map(|gists| gists.first());
        let gaps = resend == Resend::WithoutReplies
            && next.is_some_and(|gist| gist.is_none_or(|gist| !is_reply(gist)));
        // Sealed reasoning has no text to compare: it belongs to what follows.
        let ends = *through == lead || !is_system(through - 1) && !gists[through - 1].is_empty();
        ends && is_end_of(spoken, &sent, gaps)
    };
    let said = (lead..=messages.len()).rev().find(is_end).unwrap_or(lead);
    let known =
        |at: usize| if at < lead { gists[at].iter().all(|gist| system.contains(gist)) } else { at < said };
    (0..messages.len()).filter(|at| !known(*at)).collect()
}

/// Whether `sent` is the end of what was said; with `gaps`, pieces that clients leave out may be missing in it.
fn is_end_of(said: &[String], sent: &[&String], gaps: bool) -> bool {
    let mut said = said.iter().rev();
    sent.iter().rev().all(|piece| {
        said.by_ref()
            .find(|known| known == piece || !(gaps && (is_reply(known) || known.starts_with("result "))))
            .is_some_and(|known| known == *piece)
    })
}

fn is_reply(gist: &str) -> bool {
    gist.starts_with("assistant ") || gist.starts_with("call ")
}

/// The content of a message, piece by piece, in one spelling for all shapes: one message of one provider is
/// several of another.
fn gist(message: &Value) -> Vec<String> {
    let role = message::role(message).unwrap_or(Role::User);
    let mut out = Vec::new();
    let results = everturn_core::pairing::pair([message]).results;
    for result in &results {
        let content = match result.content() {
            Some(Value::Array(blocks)) => blocks.iter().filter_map(|block| block["text"].as_str()).collect(),
            Some(Value::String(text)) => text.clone(),
            other => other.map(Value::to_string).unwrap_or_default(),
        };
        out.push(format!("result {} {content}", result.id.unwrap_or_default()));
    }
    // A message with the role `tool` is a result as a whole.
    if !results.is_empty() && role == Role::Tool {
        return out;
    }
    let mut words = String::new();
    let mut others = Vec::new();
    for part in message::parts(message) {
        match part {
            MessagePart::Text(text) => words.push_str(text),
            MessagePart::Call { id, name, arguments } => {
                let arguments = match arguments {
                    Some(Value::String(text)) => {
                        serde_json::from_str(text).unwrap_or(Value::String(text.clone()))
                    }
                    other => other.cloned().unwrap_or_default(),
                };
                others.push(format!("call {} {name} {arguments}", id.unwrap_or_default()));
            }
            MessagePart::Media { kind, .. } => others.push(format!("{role} {kind}")),
            MessagePart::Thinking { .. } | MessagePart::Result { .. } | MessagePart::Other(_) => {}
        }
    }
    if !words.trim().is_empty() {
        out.push(format!("{role} says {}", words.trim()));
    }
    out.append(&mut others);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn raws(messages: &[Value]) -> Vec<Raw> {
        messages.iter().map(|message| Raw::of(message).unwrap()).collect()
    }

    #[test]
    fn only_what_follows_the_known_end_is_new() {
        let user = |text: &str| json!({"role": "user", "content": text});
        let model = |text: &str| json!({"role": "assistant", "content": text});
        let system = json!({"role": "system", "content": "Be brief."});
        let known = [
            user("a"),
            model("b"),
            user("a"),
            json!({"role": "assistant", "content": [{"type": "text", "text": "b"}]}),
        ];
        let spoken: Vec<String> = known.iter().flat_map(gist).collect();
        let said = gist(&system);
        for (sent, fresh) in [
            (vec![user("a"), model("b"), user("a"), model("b"), user("c")], vec![user("c")]),
            (vec![system.clone(), user("a"), model("b"), user("c")], vec![user("c")]),
            (vec![system.clone(), user("c")], vec![user("c")]),
            (vec![user("c")], vec![user("c")]),
            (vec![user("a"), model("other"), user("c")], vec![user("a"), model("other"), user("c")]),
            (
                vec![json!({"role": "system", "content": "Be long."}), user("a"), model("b")],
                vec![json!({"role": "system", "content": "Be long."})],
            ),
        ] {
            let messages = raws(&sent);
            for resend in [Resend::Everything, Resend::WithoutReplies] {
                let new = new(&messages, &said, &spoken, resend).into_iter().map(|at| messages[at].clone());
                assert_eq!(new.collect::<Vec<_>>(), raws(&fresh), "{sent:?}");
            }
        }
    }

    /// Vercel's SDK with `conversation` leaves out the items that it knows the ids of.
    #[test]
    fn replies_may_be_missing_in_what_is_sent_again() {
        let user = |text: &str| json!({"role": "user", "content": text});
        let call = json!({"type": "function_call", "call_id": "t", "name": "f", "arguments": "{}"});
        let result = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "4"});
        let known = [user("a"), call.clone(), result("t"), json!({"role": "assistant", "content": "b"})];
        let spoken = |count: usize| -> Vec<String> { known[..count].iter().flat_map(gist).collect() };
        for (count, sent, fresh) in [
            (2, vec![user("a"), result("t")], vec![1]),
            (2, vec![user("a"), call.clone(), result("t")], vec![2]),
            (4, vec![user("a"), result("t"), user("c")], vec![2]),
            (4, vec![result("t"), user("c")], vec![1]),
            (4, vec![user("a")], vec![0]),
            (4, vec![user("a"), user("c")], vec![1]),
            (4, vec![user("b"), user("c")], vec![0, 1]),
            (1, vec![user("a")], vec![]),
        ] {
            let got = new(&raws(&sent), &[], &spoken(count), Resend::WithoutReplies);
            assert_eq!(got, fresh, "{count} known: {sent:?}");
        }
    }

    #[test]
    fn sealed_reasoning_goes_with_what_follows_it() {
        let user = json!({"role": "user", "content": "a"});
        let sealed = json!({"type": "reasoning", "summary": [], "encrypted_content": "c2VhbGVk"});
        let sent = [user.clone(), sealed, json!({"role": "assistant", "content": "b"})];
        let spoken = |count: usize| -> Vec<String> { sent[..count].iter().flat_map(gist).collect() };
        for (said, from, fresh) in [(0, 1, vec![0, 1]), (1, 0, vec![1, 2]), (3, 0, vec![])] {
            assert_eq!(new(&raws(&sent[from..]), &[], &spoken(said), Resend::Everything), fresh, "{said}");
        }
    }

    #[test]
    fn calls_and_results_are_known_again_in_another_shape() {
        let chat = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]});
        let blocks = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}]});
        assert_eq!(gist(&chat), gist(&blocks));
        let chat = json!({"role": "tool", "tool_call_id": "t", "content": "4"});
        let blocks =
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "4"}]});
        assert_eq!(gist(&chat), gist(&blocks));
    }
}
