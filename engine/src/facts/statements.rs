//! Facts: listing, and adding, correcting and retracting by hand. `extract` extracts them with a model.

use crate::conversation::ConversationHandle;
use crate::everturn::Shared;
use crate::facts::ConversationFacts;
use crate::tenant::{Page, Tenant, more, page_limit};
use everturn_core::Error;
use everturn_core::event::{Draft, Event, Visibility, kind};
use everturn_core::fact::{self, CorrectedBody, Fact, FactStatus, RetractedBody, StatedBody, absent, limits};
use everturn_core::id::{ConversationId, EventId, FactId, Key, TurnId};
use everturn_core::turn::Turn;
use everturn_core::viewer::Viewer;
use everturn_core::write::{Action, no_such_seq};
use everturn_views::facts::{self, Redactor, add_up};
use everturn_views::speech;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Facts to list, in the order in which they were recorded.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FactQuery {
    /// Facts as of this `seq`.
    pub as_of: Option<u64>,
    /// Include superseded facts.
    pub include_superseded: bool,
    /// Include retracted facts.
    pub include_retracted: bool,
    /// Only those recorded after this `seq`: the `next` of the previous page.
    #[serde(deserialize_with = "everturn_core::json::place")]
    pub after: Option<u64>,
    /// Most facts of a page.
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
    /// The person or thing that the fact is about.
    pub subject: String,
    /// Property of the subject, such as `lives in`.
    pub predicate: String,
    /// Value of the property, such as `Oslo`.
    pub object: String,
    /// Confidence from 0 to 1; 1 by default.
    pub confidence: Option<f64>,
    /// Source turn. Erasing it erases the fact.
    pub source_turn: Option<TurnId>,
    /// Words of that turn that support the fact.
    pub quote: Option<String>,
    /// Author of the fact.
    pub by: Option<String>,
}

/// Changes to a fact.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Correction {
    /// The person or thing that the fact is about.
    pub subject: Option<String>,
    /// Property of the subject.
    pub predicate: Option<String>,
    /// Value of the property.
    pub object: Option<String>,
    /// Confidence from 0 to 1; 1 by default.
    pub confidence: Option<f64>,
    /// Author of the correction.
    pub by: Option<String>,
}

impl Shared {
    /// All facts as of a `seq` that a viewer may see. Their text is read from the log each time, so erased text cannot
    /// survive here.
    pub fn facts_at(&self, key: &Key, through: u64, viewer: &Viewer) -> Result<Vec<Fact>, Error> {
        let statements = self.statements_at(key, through)?;
        let seen: Vec<Event> = statements.into_iter().map(|statement| viewer.event(statement)).collect();
        Ok(add_up(&seen))
    }

    /// Statements, corrections and retractions as of a `seq`.
    pub fn statements_at(&self, key: &Key, through: u64) -> Result<Vec<Event>, Error> {
        let fold = self.fold(key, through)?;
        let mut events = Vec::with_capacity(fold.facts.len());
        // Statements from the same turns are adjacent: each run is one read.
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
    /// Facts of a conversation, including those inherited from its ancestors.
    pub fn list(&self, query: FactQuery) -> Result<Page<Fact>, Error> {
        let limit = page_limit(query.limit)?;
        let conversation = self.0.shared().journal.index.conversation(self.0.key())?;
        let through = query.as_of.unwrap_or(conversation.head.seq);
        if through == 0 || through > conversation.head.seq {
            return Err(no_such_seq(&conversation, through));
        }
        let mut data = self.0.facts_at(through)?;
        data.retain(|fact| match fact.status {
            FactStatus::Current => true,
            FactStatus::Superseded => query.include_superseded,
            FactStatus::Retracted => query.include_retracted,
        });
        data.sort_by_key(|fact| fact.seq);
        data.retain(|fact| query.after.is_none_or(|after| fact.seq > after));
        let next = more(&mut data, limit, |fact: &Fact| fact.seq);
        Ok(Page { data, next })
    }

    /// Adds a fact by hand. A known fact gains confidence or stays as it is; another object for the same subject and
    /// predicate supersedes the older fact.
    pub fn add(&self, new: NewFact) -> Result<Fact, Error> {
        let redactor = self.0.redactor()?;
        let [subject, predicate, object] = redacted(&redactor, [&new.subject, &new.predicate, &new.object])?;
        let confidence = fact::check_confidence(new.confidence.unwrap_or(1.0))?;
        let source = new.source_turn.map(|turn| self.0.visible_turn(turn)).transpose()?;
        let audience = source.as_ref().and_then(|turn| audience(turn, new.quote.as_deref()));
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
            .find(|known| known.status == FactStatus::Current && known.says(&subject, &predicate, &object));
        if let Some(same) = same.as_ref().filter(|same| {
            let heard = |turn| same.sources.iter().any(|source| source.turn == turn);
            same.confidence >= confidence && new.source_turn.is_none_or(heard)
        }) {
            return Ok(same.clone());
        }
        let fact = same.map_or(FactId(ulid), |same| same.id);
        let turn_seq = source.as_ref().map(|turn| turn.seq);
        let visibility = if audience.is_some() { Visibility::Private } else { Visibility::Internal };
        let body = StatedBody {
            fact,
            subject,
            predicate,
            object,
            confidence,
            quote,
            turn_seq,
            model: None,
            audience: audience.unwrap_or_default(),
        };
        let turn = new.source_turn;
        self.0.append_fact(Draft {
            id: EventId(ulid),
            actor: new.by,
            turn,
            visibility,
            ..self.0.shared().draft(kind::FACT_ADDED, &body)?
        })?;
        self.0.forget_if_erased(turn)?;
        self.0.facts().get(fact)
    }

    /// Corrects a fact: a new one supersedes it, and the old one stays readable. The correction depends on the fact
    /// that it corrects: once every source turn of that is erased, so is the correction.
    pub fn correct(&self, wrong: FactId, correction: Correction) -> Result<Fact, Error> {
        let mark = self.0.shared().journal.index.erasures(&self.0.key().tenant)?;
        let old = self.0.facts().get(wrong)?;
        if old.status == FactStatus::Retracted {
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
        let audience = self.0.fact_audience(wrong)?;
        let body = CorrectedBody {
            fact: FactId(ulid),
            corrects: wrong,
            subject: Some(subject).filter(|subject| *subject != old.subject),
            predicate: Some(predicate).filter(|predicate| *predicate != old.predicate),
            object: Some(object).filter(|object| *object != old.object),
            confidence: fact::check_confidence(correction.confidence.unwrap_or(1.0))?,
            audience: audience.clone().unwrap_or_default(),
        };
        let draft = Draft {
            id: EventId(ulid),
            actor: correction.by,
            visibility: if audience.is_some() { Visibility::Private } else { Visibility::Internal },
            ..self.0.shared().draft(kind::FACT_CORRECTED, &body)?
        };
        draft.check()?;
        let action = Action::Derive { drafts: vec![draft], mark };
        self.0.write(Ok(action), |_| Ok(())).wait()?;
        self.0.facts().get(body.fact)
    }

    /// Retracts a fact. It stays readable with `include_retracted`; erasing its turns removes its text.
    pub fn retract(&self, fact: FactId, by: Option<String>, reason: Option<String>) -> Result<Fact, Error> {
        if self.0.facts().get(fact)?.status == FactStatus::Retracted {
            return Err(taken_back(fact));
        }
        let audience = self.0.fact_audience(fact)?;
        let visibility = if audience.is_some() { Visibility::Private } else { Visibility::Internal };
        let body = RetractedBody { fact, reason, audience: audience.unwrap_or_default() };
        let draft = self.0.shared().draft(kind::FACT_RETRACTED, &body)?;
        self.0.append_fact(Draft { actor: by, visibility, ..draft })?;
        self.0.facts().get(fact)
    }

    /// A fact as the conversation sees it, including inherited ones.
    pub fn get(&self, fact: FactId) -> Result<Fact, Error> {
        let head = self.0.shared().journal.index.conversation(self.0.key())?.head.seq;
        find(self.0.facts_at(head)?, fact)
    }
}

impl ConversationHandle {
    pub(crate) fn facts_at(&self, through: u64) -> Result<Vec<Fact>, Error> {
        self.shared().facts_at(self.key(), through, self.tenant.viewer())
    }

    /// The actors that may see a fact; `None` for everyone.
    fn fact_audience(&self, fact: FactId) -> Result<Option<Vec<String>>, Error> {
        let head = self.shared().journal.index.conversation(self.key())?.head.seq;
        if self.for_everyone().facts_at(head)?.iter().any(|known| known.id == fact) {
            return Ok(None);
        }
        let statements = self.shared().statements_at(self.key(), head)?;
        let states = |event: &&Event| fact::stated_by(event) == Some(fact) || FactId(event.id.0) == fact;
        Ok(statements.iter().find(states).map(addressed))
    }

    /// Redactor of text that must not be kept in a conversation's facts, as far as it is known by its shape.
    fn redactor(&self) -> Result<Redactor, Error> {
        let conversation = self.shared().journal.conversation(self.key())?;
        Ok(Redactor { personal: conversation.facts().redact, ..Redactor::default() })
    }

    /// A statement id and the end of the log; refused if there are too many facts.
    pub(crate) fn room_for_facts(&self, count: usize) -> Result<(ulid::Ulid, u64), Error> {
        let head = self.shared().journal.index.conversation(self.key())?.head.seq;
        let statements = self.shared().fold(self.key(), head)?.facts.len() + count;
        if statements > limits::STATEMENTS_MAX {
            let advice = "begin a new conversation for more facts";
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
        let action = Action::append(vec![draft]);
        self.write(Ok(action), |_| Ok(())).wait()
    }

    /// Erases facts of a turn that was erased while they were extracted.
    pub(crate) fn forget_if_erased(&self, turns: impl IntoIterator<Item = TurnId>) -> Result<(), Error> {
        for turn in turns {
            if self.shared().journal.index.turn_in(self.key(), turn)?.erased {
                self.erase(turn, None, "erased while something was learned from it").wait()?;
            }
        }
        Ok(())
    }
}

/// The actors that may see a fact from a turn; `None` for everyone. Without a quote it may come from any of its blocks.
fn audience(turn: &Turn, quote: Option<&str>) -> Option<Vec<String>> {
    let public = Viewer::everyone().turn(turn.clone());
    let is_public = match (quote, public.value()) {
        (Some(quote), Some(said)) => facts::quotes(&said, speech::of_turn(turn).role, quote),
        _ => public.message == turn.message,
    };
    (!is_public).then(|| turn.actor.iter().chain(&turn.audience).cloned().collect())
}

/// The actors that may see a private statement.
pub(super) fn addressed(statement: &Event) -> Vec<String> {
    #[derive(Default, Deserialize)]
    struct Addressed {
        #[serde(default)]
        audience: Vec<String>,
    }
    let body: Addressed = statement.read().unwrap_or_default();
    statement.actor.iter().cloned().chain(body.audience).collect()
}

fn find(facts: Vec<Fact>, id: FactId) -> Result<Fact, Error> {
    facts.into_iter().find(|fact| fact.id == id).ok_or_else(|| absent(id))
}

fn taken_back(id: FactId) -> Error {
    Error::conflict("fact.retracted", format!("{id} is retracted already; add it again if it holds"))
}

/// Redacts the text of a fact. Refused if nothing is left of it.
fn redacted(redactor: &Redactor, words: [&str; 3]) -> Result<[String; 3], Error> {
    let [subject, predicate, object] = words;
    let (Some(subject), Some(object)) = (redactor.clean_name(subject), redactor.clean_name(object)) else {
        let text = "redaction leaves nothing of this fact: its subject or object is a secret (policy.redaction) or personal \
                    (policy.facts.redact)";
        return Err(Error::invalid("fact.redacted", text));
    };
    let predicate = redactor.clean(predicate);
    fact::check(&subject, &predicate, &object)
}

/// Result of extracting facts.
#[derive(Clone, Debug, Serialize, serde::Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Extraction {
    /// Model that read the turns.
    pub model: String,
    /// Number of turns read.
    pub turns: u64,
    /// First `seq` read; absent if nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_seq: Option<u64>,
    /// Last `seq` read; absent if nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_seq: Option<u64>,
    /// New facts, and known ones with a new source.
    pub facts: Vec<Fact>,
    /// Facts that were found but not kept, counted by reason.
    pub dropped: fact::FactsDropped,
}
