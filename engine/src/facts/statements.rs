//! Facts: listed, and stated, corrected and taken back by hand. What a model learns is in `learning`.

use crate::conversation::ConversationHandle;
use crate::everturn::Shared;
use crate::facts::ConversationFacts;
use crate::tenant::{Page, Tenant, more, page_limit};
use everturn_core::Error;
use everturn_core::event::{Draft, Event, kind};
use everturn_core::fact::{self, CorrectedBody, Fact, RetractedBody, StatedBody, Status, absent, limits};
use everturn_core::id::{ConversationId, EventId, FactId, Key, TurnId};
use everturn_core::write::{Action, no_such_seq};
use everturn_views::facts::{self, Redactor, add_up};
use everturn_views::speech;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which facts to list: in the order in which they were taken down.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FactQuery {
    /// As they were when the log ended here.
    pub as_of: Option<u64>,
    /// Also superseded ones.
    pub include_superseded: bool,
    /// Also those that were taken back.
    pub include_retracted: bool,
    /// Only those that were taken down after this place: the `next` of the page before.
    #[serde(deserialize_with = "everturn_core::json::place")]
    pub after: Option<u64>,
    /// At most this many.
    #[schemars(range(min = 1, max = 1000))]
    pub limit: usize,
}

impl Default for FactQuery {
    fn default() -> FactQuery {
        FactQuery { as_of: None, include_superseded: false, include_retracted: false, after: None, limit: 50 }
    }
}

/// A fact to add by hand.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewFact {
    /// About whom or what.
    pub subject: String,
    /// What is said of it.
    pub predicate: String,
    /// What it is said to be.
    pub object: String,
    /// How sure, from 0 to 1; certain by default.
    pub confidence: Option<f64>,
    /// The turn that says so. When it is erased, so is the fact.
    pub source_turn: Option<TurnId>,
    /// The words of that turn that say so.
    pub quote: Option<String>,
    /// Who adds it.
    pub by: Option<String>,
}

/// What is to be different about a fact.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Correction {
    /// About whom or what.
    pub subject: Option<String>,
    /// What is said of it.
    pub predicate: Option<String>,
    /// What it is said to be.
    pub object: Option<String>,
    /// How sure, from 0 to 1; certain by default.
    pub confidence: Option<f64>,
    /// Who corrects it.
    pub by: Option<String>,
}

impl Shared {
    /// Everything that is known of facts at a place. The words are read from the log each time: nothing that is erased
    /// there can be left over here.
    pub fn facts_at(&self, key: &Key, through: u64) -> Result<Vec<Fact>, Error> {
        Ok(add_up(&self.statements_at(key, through)?))
    }

    /// What was stated, corrected and retracted up to a place, as far as it stands there.
    pub fn statements_at(&self, key: &Key, through: u64) -> Result<Vec<Event>, Error> {
        let fold = self.fold(key, through)?;
        let mut events = Vec::with_capacity(fold.facts.len());
        // Statements of the same turns stand next to each other: each run is one read.
        for run in fold.facts.chunk_by(|one, next| one.seq + 1 == next.seq) {
            events.extend(self.journal.events_between(
                key,
                run[0].seq - 1,
                run[0].seq - 1 + run.len() as u64,
            )?);
        }
        Ok(events)
    }
}

impl Tenant {
    /// A fact of any conversation, by its id.
    pub fn fact(&self, id: FactId) -> Result<Fact, Error> {
        let home = self.fact_home(id)?;
        let head = self.shared().journal.index.conversation(&self.key(home))?.head.seq;
        find(self.conversation(home).facts_at(head)?, id)
    }

    /// The conversation in which a fact was first stated.
    pub fn fact_home(&self, id: FactId) -> Result<ConversationId, Error> {
        self.shared().journal.index.fact(self.name(), id)?.ok_or_else(|| absent(id))
    }
}

impl ConversationFacts<'_> {
    /// Facts of a conversation, those of its ancestors up to where it left them included.
    pub fn list(&self, query: FactQuery) -> Result<Page<Fact>, Error> {
        let limit = page_limit(query.limit)?;
        let conversation = self.0.shared().journal.index.conversation(self.0.key())?;
        let through = query.as_of.unwrap_or(conversation.head.seq);
        if through == 0 || through > conversation.head.seq {
            return Err(no_such_seq(&conversation, through));
        }
        let mut data = self.0.facts_at(through)?;
        data.retain(|fact| match fact.status {
            Status::Current => true,
            Status::Superseded => query.include_superseded,
            Status::Retracted => query.include_retracted,
        });
        data.sort_by_key(|fact| fact.seq);
        data.retain(|fact| query.after.is_none_or(|after| fact.seq > after));
        let next = more(&mut data, limit, |fact: &Fact| fact.seq);
        Ok(Page { data, next })
    }

    /// Adds a fact by hand. One that is known is made surer, or stays as it is; one that says something else of the same
    /// subject and predicate takes the older one's place.
    pub fn add(&self, new: NewFact) -> Result<Fact, Error> {
        let redactor = self.0.redactor()?;
        let [subject, predicate, object] = redacted(&redactor, [&new.subject, &new.predicate, &new.object])?;
        let confidence = fact::check_confidence(new.confidence.unwrap_or(1.0))?;
        let source = new
            .source_turn
            .map(|turn| self.0.shared().journal.index.turn_in(self.0.key(), turn))
            .transpose()?;
        let quote = match (new.quote, &source) {
            (None, _) => None,
            (Some(_), None) => {
                let text = "a quote without source_turn supports nothing; name the turn that it is from";
                return Err(Error::invalid("fact.quote", text));
            }
            (Some(quote), Some(turn)) => {
                let said = turn.value().unwrap_or_default();
                if !facts::quotes(&said, speech::of_turn(turn).role, &quote) {
                    let text = format!("{} does not say {:?}", turn.id, everturn_core::id::clip(&quote));
                    return Err(Error::invalid("fact.ungrounded", format!("{text}; copy its words exactly")));
                }
                Some(redactor.clean(&quote))
            }
        };
        let (ulid, head) = self.0.room_for_facts(1)?;
        let known = self.0.facts_at(head)?;
        let same = known
            .into_iter()
            .find(|known| known.status == Status::Current && known.says(&subject, &predicate, &object));
        if let Some(same) = same.as_ref().filter(|same| {
            let heard = |turn| same.sources.iter().any(|source| source.turn == turn);
            same.confidence >= confidence && new.source_turn.is_none_or(heard)
        }) {
            return Ok(same.clone());
        }
        let fact = same.map_or(FactId(ulid), |same| same.id);
        let turn_seq = source.as_ref().map(|turn| turn.seq);
        let body = StatedBody { fact, subject, predicate, object, confidence, quote, turn_seq, model: None };
        let turn = new.source_turn;
        self.0.append_fact(Draft {
            id: EventId(ulid),
            actor: new.by,
            turn,
            ..self.0.shared().draft(kind::FACT_ADDED, &body)?
        })?;
        self.0.forget_if_erased(turn)?;
        self.0.facts().get(fact)
    }

    /// Corrects a fact: a new one takes its place, and the old one stays readable. It goes with the fact that it corrects:
    /// once every turn that this was learned from is erased, so is the correction.
    pub fn correct(&self, wrong: FactId, correction: Correction) -> Result<Fact, Error> {
        let mark = self.0.shared().journal.index.erasures(&self.0.key().tenant)?;
        let old = self.0.facts().get(wrong)?;
        if old.status == Status::Retracted {
            return Err(taken_back(wrong));
        }
        let redactor = self.0.redactor()?;
        let new = |field: &Option<String>, old: &String| field.clone().unwrap_or_else(|| old.clone());
        let words = [
            new(&correction.subject, &old.subject),
            new(&correction.predicate, &old.predicate),
            new(&correction.object, &old.object),
        ];
        let [subject, predicate, object] = redacted(&redactor, [&words[0], &words[1], &words[2]])?;
        if old.subject == subject
            && old.predicate == predicate
            && old.object == object
            && correction.confidence.is_none()
        {
            let text =
                format!("{wrong} says that already; give another subject, predicate, object or confidence");
            return Err(Error::invalid("fact.unchanged", text));
        }
        let (ulid, _) = self.0.room_for_facts(1)?;
        let body = CorrectedBody {
            fact: FactId(ulid),
            corrects: wrong,
            subject: Some(subject).filter(|subject| *subject != old.subject),
            predicate: Some(predicate).filter(|predicate| *predicate != old.predicate),
            object: Some(object).filter(|object| *object != old.object),
            confidence: fact::check_confidence(correction.confidence.unwrap_or(1.0))?,
        };
        let draft = Draft {
            id: EventId(ulid),
            actor: correction.by,
            ..self.0.shared().draft(kind::FACT_CORRECTED, &body)?
        };
        draft.check()?;
        let action = Action::Derive { drafts: vec![draft], mark };
        self.0.write(Ok(action), |_| Ok(())).wait()?;
        self.0.facts().get(body.fact)
    }

    /// Takes a fact back. It stays readable for whoever asks for those too; erasing its turns removes its words.
    pub fn retract(&self, fact: FactId, by: Option<String>, reason: Option<String>) -> Result<Fact, Error> {
        if self.0.facts().get(fact)?.status == Status::Retracted {
            return Err(taken_back(fact));
        }
        let draft = self.0.shared().draft(kind::FACT_RETRACTED, &RetractedBody { fact, reason })?;
        self.0.append_fact(Draft { actor: by, ..draft })?;
        self.0.facts().get(fact)
    }

    /// A fact as a conversation sees it: what it inherited, as it stands here.
    pub fn get(&self, fact: FactId) -> Result<Fact, Error> {
        let head = self.0.shared().journal.index.conversation(self.0.key())?.head.seq;
        find(self.0.facts_at(head)?, fact)
    }
}

impl ConversationHandle {
    pub(crate) fn facts_at(&self, through: u64) -> Result<Vec<Fact>, Error> {
        self.shared().facts_at(self.key(), through)
    }

    /// What must not be kept in facts of a conversation, as far as it is known by its shape.
    fn redactor(&self) -> Result<Redactor, Error> {
        let conversation = self.shared().journal.conversation(self.key())?;
        Ok(Redactor { personal: conversation.facts().redact, ..Redactor::default() })
    }

    /// An id for a statement, and where the log ends; refuses when there are too many.
    pub(crate) fn room_for_facts(&self, count: usize) -> Result<(ulid::Ulid, u64), Error> {
        let head = self.shared().journal.index.conversation(self.key())?.head.seq;
        let statements = self.shared().fold(self.key(), head)?.facts.len() + count;
        if statements > limits::STATEMENTS_MAX {
            let advice = "begin a new conversation; this one knows enough";
            return Err(Error::limit(
                "STATEMENTS_MAX",
                limits::STATEMENTS_MAX as u64,
                statements as u64,
                advice,
            ));
        }
        Ok((self.shared().journal.source.ulid()?, head))
    }

    fn append_fact(&self, draft: Draft) -> Result<(), Error> {
        draft.check()?;
        let action = Action::Append { drafts: vec![draft], expected_seq: None, idempotency: None };
        self.write(Ok(action), |_| Ok(())).wait()
    }

    /// A turn may have been erased while something was learned from it: then that goes as well.
    pub(crate) fn forget_if_erased(&self, turns: impl IntoIterator<Item = TurnId>) -> Result<(), Error> {
        for turn in turns {
            if self.shared().journal.index.turn_in(self.key(), turn)?.erased {
                self.erase(turn, None, "erased while something was learned from it").wait()?;
            }
        }
        Ok(())
    }
}

fn find(facts: Vec<Fact>, id: FactId) -> Result<Fact, Error> {
    facts.into_iter().find(|fact| fact.id == id).ok_or_else(|| absent(id))
}

fn taken_back(id: FactId) -> Error {
    Error::conflict("fact.retracted", format!("{id} was taken back already; add it anew if it holds"))
}

/// The words of a fact without what must not be kept. Nothing may be left of them: then there is no fact.
fn redacted(redactor: &Redactor, words: [&str; 3]) -> Result<[String; 3], Error> {
    let [subject, predicate, object] = words;
    let (Some(subject), Some(object)) = (redactor.clean_name(subject), redactor.clean_name(object)) else {
        let text = "nothing is left of it without what must not be kept in facts; see policy.facts.redact";
        return Err(Error::invalid("fact.redacted", text));
    };
    let predicate = redactor.clean(predicate);
    fact::check(&subject, &predicate, &object)
}

/// What reading turns for facts brought.
#[derive(Clone, Debug, Serialize, serde::Deserialize, JsonSchema)]
pub struct Extraction {
    /// Who read.
    pub model: String,
    /// How many turns were read.
    pub turns: u64,
    /// The first place that was read; absent if nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_seq: Option<u64>,
    /// The last place that was read; absent if nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_seq: Option<u64>,
    /// The facts that are new, or have another source now.
    pub facts: Vec<Fact>,
    /// What the model found that was not kept, counted by why.
    pub dropped: fact::Dropped,
}
