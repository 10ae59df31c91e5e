//! Facts: listed, and stated, corrected and taken back by hand. What a model learns is in `learning`.

use crate::Shared;
use crate::scope::{Page, Tenant, more, page_limit};
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
            events.extend(self.events_between(key, run[0].seq - 1, run[0].seq - 1 + run.len() as u64)?);
        }
        Ok(events)
    }
}

impl Tenant {
    /// Facts of a conversation, those of its ancestors up to where it left them included.
    pub fn facts(&self, id: ConversationId, query: FactQuery) -> Result<Page<Fact>, Error> {
        let limit = page_limit(query.limit)?;
        let conversation = self.shared().index.conversation(&self.key(id))?;
        let through = query.as_of.unwrap_or(conversation.head.seq);
        if through == 0 || through > conversation.head.seq {
            return Err(no_such_seq(&conversation, through));
        }
        let mut data = self.facts_at(&self.key(id), through)?;
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

    /// A fact of any conversation, by its id.
    pub fn fact(&self, id: FactId) -> Result<Fact, Error> {
        let home = self.fact_home(id)?;
        let head = self.shared().index.conversation(&self.key(home))?.head.seq;
        find(self.facts_at(&self.key(home), head)?, id)
    }

    /// The conversation in which a fact was first stated.
    pub fn fact_home(&self, id: FactId) -> Result<ConversationId, Error> {
        self.shared().index.fact(&self.tenant, id)?.ok_or_else(|| absent(id))
    }

    pub(crate) fn facts_at(&self, key: &Key, through: u64) -> Result<Vec<Fact>, Error> {
        self.shared().facts_at(key, through)
    }

    /// Adds a fact by hand. One that is known is made surer, or stays as it is; one that says something else of the same
    /// subject and predicate takes the older one's place.
    pub fn add_fact(&self, id: ConversationId, new: NewFact) -> Result<Fact, Error> {
        let redactor = self.redactor(id)?;
        let [subject, predicate, object] = redacted(&redactor, [&new.subject, &new.predicate, &new.object])?;
        let confidence = fact::check_confidence(new.confidence.unwrap_or(1.0))?;
        let source =
            new.source_turn.map(|turn| self.shared().index.turn_in(&self.key(id), turn)).transpose()?;
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
        let (ulid, head) = self.room_for_facts(id, 1)?;
        let known = self.facts_at(&self.key(id), head)?;
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
        self.append_fact(
            id,
            Draft { id: EventId(ulid), actor: new.by, turn, ..self.shared().draft(kind::FACT_ADDED, &body)? },
        )?;
        self.forget_if_erased(id, turn)?;
        self.fact_in(id, fact)
    }

    /// Corrects a fact: a new one takes its place, and the old one stays readable. It goes with the fact that it corrects:
    /// once every turn that this was learned from is erased, so is the correction.
    pub fn correct_fact(
        &self,
        id: ConversationId,
        wrong: FactId,
        correction: Correction,
    ) -> Result<Fact, Error> {
        let mark = self.shared().index.erasures(&self.tenant)?;
        let old = self.fact_in(id, wrong)?;
        if old.status == Status::Retracted {
            return Err(taken_back(wrong));
        }
        let redactor = self.redactor(id)?;
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
        let (ulid, _) = self.room_for_facts(id, 1)?;
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
            ..self.shared().draft(kind::FACT_CORRECTED, &body)?
        };
        draft.check()?;
        let action = Action::Derive { drafts: vec![draft], mark };
        self.write(id, Ok(action), |_| Ok(())).wait()?;
        self.fact_in(id, body.fact)
    }

    /// Takes a fact back. It stays readable for whoever asks for those too; erasing its turns removes its words.
    pub fn retract_fact(
        &self,
        id: ConversationId,
        fact: FactId,
        by: Option<String>,
        reason: Option<String>,
    ) -> Result<Fact, Error> {
        if self.fact_in(id, fact)?.status == Status::Retracted {
            return Err(taken_back(fact));
        }
        let draft = self.shared().draft(kind::FACT_RETRACTED, &RetractedBody { fact, reason })?;
        self.append_fact(id, Draft { actor: by, ..draft })?;
        self.fact_in(id, fact)
    }

    /// A fact as a conversation sees it: what it inherited, as it stands here.
    pub fn fact_in(&self, id: ConversationId, fact: FactId) -> Result<Fact, Error> {
        let head = self.shared().index.conversation(&self.key(id))?.head.seq;
        find(self.facts_at(&self.key(id), head)?, fact)
    }

    /// What must not be kept in facts of a conversation, as far as it is known by its shape.
    fn redactor(&self, id: ConversationId) -> Result<Redactor, Error> {
        let conversation = self.shared().conversation(&self.key(id))?;
        Ok(Redactor { personal: conversation.facts().redact, ..Redactor::default() })
    }

    /// An id for a statement, and where the log ends; refuses when there are too many.
    pub(crate) fn room_for_facts(
        &self,
        id: ConversationId,
        count: usize,
    ) -> Result<(ulid::Ulid, u64), Error> {
        let head = self.shared().index.conversation(&self.key(id))?.head.seq;
        let statements = self.shared().fold(&self.key(id), head)?.facts.len() + count;
        if statements > limits::STATEMENTS_MAX {
            let advice = "begin a new conversation; this one knows enough";
            return Err(Error::limit(
                "STATEMENTS_MAX",
                limits::STATEMENTS_MAX as u64,
                statements as u64,
                advice,
            ));
        }
        Ok((self.shared().source.ulid()?, head))
    }

    fn append_fact(&self, id: ConversationId, draft: Draft) -> Result<(), Error> {
        draft.check()?;
        let action = Action::Append { drafts: vec![draft], expected_seq: None, idempotency: None };
        self.write(id, Ok(action), |_| Ok(())).wait()
    }

    /// A turn may have been erased while something was learned from it: then that goes as well.
    pub(crate) fn forget_if_erased(
        &self,
        id: ConversationId,
        turns: impl IntoIterator<Item = TurnId>,
    ) -> Result<(), Error> {
        for turn in turns {
            if self.shared().index.turn_in(&self.key(id), turn)?.erased {
                self.erase(id, turn, None, "erased while something was learned from it").wait()?;
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
