//! A conversation store in the plainest words: lists and maps, everything copied, nothing shared with `core::write`.
//!
//! It knows what was said and in which order, and what must be refused. It knows no hashes: those the two backends
//! prove to each other and to the verifier.

use everturn_core::id::{ConversationId, TurnId};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The code of a refusal.
pub type Refused = &'static str;

#[derive(Default)]
pub struct Model {
    pub conversations: BTreeMap<ConversationId, Talk>,
    /// Events whose bodies are gone: where they were written, and at which place.
    pub erased: HashSet<(ConversationId, u64)>,
    /// From which conversation each fork left, deleted ones included.
    pub parents: HashMap<ConversationId, ConversationId>,
    /// Deleted, last one first.
    pub tombstones: Vec<(ConversationId, u64)>,
}

#[derive(Clone, Default)]
pub struct Talk {
    /// Kind, and the conversation that it was written in, for every place from 1 on.
    pub log: Vec<(String, ConversationId)>,
    pub said: Vec<Said>,
    pub state: &'static str,
    pub title: Option<String>,
    pub metadata: BTreeMap<String, String>,
    pub prompt: Option<String>,
    pub participants: Vec<String>,
    pub created: i64,
    pub updated: i64,
    /// When each turn was said, by its place in the log; and the latest of these times. A fork before the end has that of
    /// its first or its last turn: the clock may go back.
    pub times: Vec<(u64, i64)>,
    pub last_said: Option<i64>,
    pub parent: Option<(ConversationId, u64)>,
    pub predecessor: Option<ConversationId>,
    /// Key, what was sent, the place of the first event and the turns that came of it.
    pub requests: HashMap<String, (String, u64, Vec<TurnId>)>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Said {
    pub id: TurnId,
    pub seq: u64,
    pub actor: Option<String>,
    pub role: &'static str,
    pub status: &'static str,
    /// What it says; `None` while it is open.
    pub text: Option<String>,
    /// What came in chunks, while it is open.
    pub open: Option<String>,
    /// The place of the event with its content.
    pub content: u64,
    /// What took its place, and where that was said.
    pub by: Option<(String, u64)>,
    /// Where it is read, and the event that moved it there.
    pub place: u64,
    pub placed: Option<u64>,
}

pub const ACTIVE: &str = "active";

impl Talk {
    pub fn head(&self) -> u64 {
        self.log.len() as u64
    }

    pub fn turn(&mut self, id: TurnId) -> Option<&mut Said> {
        self.said.iter_mut().find(|said| said.id == id)
    }

    /// Has a turn replace another: it, and whatever replaced it before, is read where that was.
    pub fn replace(&mut self, old: TurnId, by: TurnId, at: u64) {
        let old = self.turn(old).unwrap();
        old.by = Some((by.to_string(), at));
        let place = old.place;
        let mut next = Some(by.to_string());
        while let Some(said) = next.and_then(|id| self.said.iter_mut().find(|said| said.id.to_string() == id))
            && place < said.place
        {
            (said.place, said.placed) = (place, Some(at));
            next = said.by.as_ref().map(|(by, _)| by.clone());
        }
    }

    /// What must be refused because of the state that the conversation is in.
    pub fn takes_turns(&self) -> Result<(), Refused> {
        if self.state == ACTIVE { Ok(()) } else { Err("conversation.not_active") }
    }

    pub fn write(&mut self, id: ConversationId, kinds: &[&str], now: i64) {
        for kind in kinds {
            self.log.push((kind.to_string(), id));
            self.updated = self.updated.max(now);
            if ["message", "tool_result", "turn.opened"].contains(kind) {
                self.times.push((self.head(), now));
                self.last_said = self.last_said.max(Some(now));
            }
        }
    }

    pub fn join(&mut self, actor: &Option<String>) {
        if let Some(actor) = actor
            && !self.participants.contains(actor)
        {
            self.participants.push(actor.clone());
        }
    }

    /// As it was when its log ended at `seq`: what a fork starts with. What was open then stays unfinished there.
    pub fn as_of(&self, seq: u64) -> Talk {
        let mut copy = self.clone();
        copy.log.truncate(seq as usize);
        copy.said.retain(|said| said.seq <= seq);
        for said in &mut copy.said {
            if said.open.take().is_some() || said.content > seq {
                (said.status, said.text, said.content) = ("interrupted", None, said.seq);
            }
            said.by.take_if(|(_, at)| *at > seq);
            if said.placed.take_if(|at| *at > seq).is_some() {
                said.place = said.seq;
            }
        }
        copy.requests.clear();
        copy.state = ACTIVE;
        copy.times.retain(|(at, _)| *at <= seq);
        if seq < self.head() {
            let ends = [copy.times.first(), copy.times.last()];
            copy.last_said = ends.into_iter().flatten().map(|(_, at)| *at).max();
        }
        copy.predecessor = None;
        copy
    }

    /// The answer to a repeated key: its turns, or a refusal; `None` if the key is new.
    pub fn repeated(
        &self,
        key: Option<&String>,
        sent: &str,
        erased: &HashSet<(ConversationId, u64)>,
    ) -> Option<Result<Vec<TurnId>, Refused>> {
        let (first_sent, first, turns) = self.requests.get(key?)?;
        // Once the first event is erased nothing is left to compare with.
        let gone = erased.contains(&(self.log[*first as usize - 1].1, *first));
        Some(if gone || first_sent == sent { Ok(turns.clone()) } else { Err("idempotency.reused") })
    }
}

impl Model {
    pub fn is_erased(&self, talk: &Talk, said: &Said) -> bool {
        self.erased.contains(&(talk.log[said.content as usize - 1].1, said.content))
    }

    /// Forgets what a turn says, here and wherever else these very words are kept.
    pub fn erase(&mut self, id: ConversationId, turn: TurnId) {
        let talk = &self.conversations[&id];
        let said = talk.said.iter().find(|said| said.id == turn).unwrap();
        for seq in [said.seq, said.content] {
            self.erased.insert((talk.log[seq as usize - 1].1, seq));
        }
    }

    pub fn delete(&mut self, id: ConversationId) {
        let talk = self.conversations.remove(&id).unwrap();
        self.tombstones.insert(0, (id, talk.head()));
    }
}
