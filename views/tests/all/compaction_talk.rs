//! Conversations for compaction tests: written as short tables, numbered like a log.

use crate::sample::{START, turn_id};
use everturn_core::message;
use everturn_core::turn::Role;
use everturn_views::compaction::Candidate;
use serde_json::{Value, json};

/// Owned turns; [`Talk::candidates`] borrows them for the code under test.
#[derive(Clone, Debug, Default)]
pub struct Talk {
    pub turns: Vec<(Option<String>, Option<Value>, u64)>,
}

impl Talk {
    /// From `(actor or role, text)`; a name that is not a role speaks as a user.
    pub fn of(lines: &[(&str, &str)]) -> Talk {
        let mut talk = Talk::default();
        for (who, text) in lines {
            let role = who.parse::<Role>().unwrap_or(Role::User);
            talk.say(Some(who), json!({"role": role.as_str(), "content": text}));
        }
        talk
    }

    pub fn say(&mut self, actor: Option<&str>, message: Value) -> &mut Talk {
        let tokens = message.to_string().len() as u64 / 4;
        self.turns.push((actor.map(str::to_string), Some(message), tokens));
        self
    }

    /// A call and its result, in OpenAI's shape.
    pub fn tool(&mut self, name: &str, arguments: Value, result: &str) -> &mut Talk {
        let id = format!("call_{}", self.turns.len());
        self.say(
            None,
            json!({"role":"assistant","content":null,
                "tool_calls":[{"id":id,"type":"function","function":{"name":name,"arguments":arguments.to_string()}}]}),
        );
        self.say(None, json!({"role":"tool","tool_call_id":id,"content":result}))
    }

    pub fn candidates(&self) -> Vec<Candidate<'_>> {
        self.turns
            .iter()
            .enumerate()
            .map(|(index, (actor, message, tokens))| Candidate {
                turn: turn_id(index as u64 + 1),
                // There are other events between turns, so `seq` has gaps.
                seq: 2 * index as u64 + 1,
                role: message.as_ref().map_or(Role::User, |message| message::role(message).unwrap()),
                actor: actor.as_deref(),
                at: START.plus_s(60 * index as u64),
                message: message.as_ref(),
                tokens: *tokens,
            })
            .collect()
    }
}
