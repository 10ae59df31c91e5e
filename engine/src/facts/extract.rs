//! Facts that a model learns from turns: asked for by hand, or in the background where the policy says so.
//!
//! Only turns of the log are read. What was recalled into a prompt is none, and what an answer repeats of it is no
//! evidence (see `views::facts::news`). Which parts were read is in the log, so that nothing is read twice.

use super::ConversationFacts;
use super::statements::Extraction;
use crate::conversation::ConversationHandle;
use crate::model::{self, Summarize, Summarizer};
use crate::tenant::Tenant;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::event::{Draft, Visibility, kind};
use everturn_core::fact::{Dropped, Fact, ReadBody, StatedBody, limits};
use everturn_core::id::{EventId, FactId, Key};
use everturn_core::policy::FactsPolicy;
use everturn_core::turn::{Role, Status, Turn};
use everturn_core::write::Action;
use everturn_store::TurnQuery;
use everturn_views::compaction::{Candidate, Prompt};
use everturn_views::facts::{self, Learned, Origin, Redactor};
use everturn_views::speech;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// How often a model is asked before it is left at that.
const ATTEMPTS: usize = 2;
/// So many unread turns are read also when nobody has answered yet.
const DUE_TURNS: usize = 16;

/// Which turns to read for facts.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExtractOptions {
    /// The first place; without one, only what was not read before.
    pub from: Option<u64>,
    /// The last place; by default the end.
    pub to: Option<u64>,
}

impl Tenant {
    /// The model that reads: one that writes checkpoints, or one that conversations are continued with.
    fn fact_model(&self, policy: &FactsPolicy) -> Result<Arc<dyn Summarize>, Error> {
        let name = policy.model.as_deref();
        match self.shared().options.summarizers.get(name.unwrap_or("default")) {
            Some(summarizer) => Ok(summarizer.clone()),
            None => self
                .generations()
                .model(name)
                .map(|model| Arc::new(Summarizer::new(model.client)) as Arc<dyn Summarize>),
        }
    }
}

impl ConversationFacts<'_> {
    /// Lets a model read turns and keeps the facts that they support. Blocks while it answers. If it gives no usable answer
    /// twice, that is the error, and nothing is written for those turns.
    pub fn extract(&self, options: ExtractOptions) -> Result<Extraction, Error> {
        let conversation = self.0.shared().journal.index.conversation(self.0.key())?;
        let policy = conversation.facts();
        let reader = Reader { conversation: self.0, model: self.0.tenant.fact_model(&policy)?, policy };
        let end = reader.end(conversation.head.seq)?;
        let to = options.to.unwrap_or(end).min(end);
        let parts = match options.from {
            Some(from) => vec![(from.max(1), to)],
            None => self.0.shared().fold(self.0.key(), conversation.head.seq)?.unread(to),
        };
        let mut all = Extraction {
            model: reader.model.name(),
            turns: 0,
            from_seq: None,
            to_seq: None,
            facts: Vec::new(),
            dropped: Dropped::default(),
        };
        for (mut from, to) in parts {
            while from <= to {
                let batch = reader.batch(from, to)?;
                if batch.turns.is_empty() {
                    from = batch.to + 1;
                    continue;
                }
                let (facts, dropped) = reader.keep(&batch, reader.learn(&batch)?)?;
                all.dropped.add(dropped);
                let Some(facts) = facts else { continue };
                from = batch.to + 1;
                all.turns += batch.turns.len() as u64;
                all.from_seq = all.from_seq.or(Some(batch.from));
                all.to_seq = Some(batch.to);
                all.facts.retain(|known| !facts.iter().any(|fact| fact.id == known.id));
                all.facts.extend(facts);
            }
        }
        Ok(all)
    }
}

impl ConversationHandle {
    /// Reads what is new, if the policy says so and an exchange is complete. Says whether something was read.
    pub(crate) fn extract_if_due(&self) -> Result<bool, Error> {
        let conversation = self.shared().journal.conversation(self.key())?;
        let policy = conversation.facts();
        if !policy.extract {
            return Ok(false);
        }
        // Without a model there is nothing to try, and nothing to complain about with every append.
        let Ok(model) = self.tenant.fact_model(&policy) else { return Ok(false) };
        let reader = Reader { conversation: self, model, policy };
        let head = self.shared().journal.index.conversation(self.key())?.head.seq;
        let end = reader.end(head)?;
        for (from, to) in self.shared().fold(self.key(), head)?.unread(end) {
            let batch = reader.batch(from, to)?;
            let answered = batch.turns.last().is_some_and(|turn| turn.role == Role::Assistant);
            if batch.turns.is_empty() || !(answered || batch.turns.len() >= DUE_TURNS) {
                continue;
            }
            match reader.learn(&batch).and_then(|learned| reader.keep(&batch, learned)) {
                Ok(_) => {}
                // It would answer the same with the next look, and with every look after that.
                Err(error) if error.code() == "facts.answer" => {
                    tracing::warn!(%error, conversation = %self.id(), "no facts from these turns");
                    reader.give_up(&batch, &error)?;
                }
                Err(error) => return Err(error),
            }
            return Ok(true);
        }
        Ok(false)
    }
}

/// Who reads what, and how.
struct Reader<'a> {
    conversation: &'a ConversationHandle,
    model: Arc<dyn Summarize>,
    policy: FactsPolicy,
}

/// Turns that are read at once.
struct Batch {
    from: u64,
    to: u64,
    /// Erasures before they were read.
    mark: u64,
    turns: Vec<Turn>,
}

/// What a model found in them.
struct Found {
    learned: Vec<Learned>,
    dropped: Dropped,
    prompt_hash: Hash,
    input_hash: Hash,
}

impl Reader<'_> {
    fn key(&self) -> &Key {
        self.conversation.key()
    }

    /// How far can be read: up to what is still being said.
    fn end(&self, head: u64) -> Result<u64, Error> {
        let fold = self.conversation.shared().fold(self.key(), head)?;
        Ok(fold.open.iter().map(|place| place.seq - 1).min().unwrap_or(head).min(head))
    }

    /// The next turns of a part of the log.
    fn batch(&self, from: u64, to: u64) -> Result<Batch, Error> {
        let query = TurnQuery {
            after: Some(from.saturating_sub(1)),
            before: Some(to.saturating_add(1)),
            ..TurnQuery::default()
        };
        let mark = self.conversation.shared().journal.index.erasures(&self.key().tenant)?;
        let mut batch = Batch { from, to, mark, turns: Vec::new() };
        self.conversation.each_turn(query, |turn| {
            let stands = matches!(turn.status, Status::Complete | Status::Interrupted) && !turn.erased;
            // Instructions say what is to be done, not what is so; what is private is not for everybody who recalls.
            if stands && turn.role != Role::System && turn.visibility != Visibility::Private {
                if batch.turns.len() == limits::TURNS_MAX {
                    batch.to = turn.seq - 1;
                    return Ok(ControlFlow::Break(()));
                }
                batch.turns.push(turn);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(batch)
    }

    /// Asks the model, and drops what the turns do not support and what must not be kept.
    fn learn(&self, batch: &Batch) -> Result<Found, Error> {
        let messages: Vec<Option<Value>> = batch.turns.iter().map(Turn::value).collect();
        let candidates: Vec<Candidate<'_>> = batch.turns.iter().zip(&messages).map(candidate).collect();
        let head = self.conversation.shared().journal.index.conversation(self.key())?.head.seq;
        let known = self.conversation.facts_at(head)?;
        let prompt = facts::prompt(&known, &candidates);
        let (prompt_hash, input_hash) =
            (Hash::of(prompt.system.as_bytes()), Hash::of(prompt.user.as_bytes()));
        let (learned, mut dropped) = self.ask(&prompt, |answer| facts::read(answer, &candidates))?;
        let mut redactor = Redactor { personal: self.policy.redact, named: Vec::new() };
        // What has a shape goes first: the model that decides about the rest does not get to see it.
        let mut learned = redactor.redact(learned, &mut dropped);
        if let Some(rule) = self.policy.redact_prompt.as_deref().filter(|_| !learned.is_empty()) {
            redactor.named = self.ask(&facts::redaction_prompt(rule, &learned), facts::read_redaction)?;
            learned = redactor.redact(learned, &mut dropped);
        }
        Ok(Found { learned, dropped, prompt_hash, input_hash })
    }

    /// The model's answer as `read` takes it; asked again, with what was wrong, if it does not.
    fn ask<T>(&self, prompt: &Prompt, read: impl Fn(&str) -> Result<T, Error>) -> Result<T, Error> {
        let time = Duration::from_secs(self.policy.timeout_s);
        let mut system = prompt.system.clone();
        let mut attempt = 1;
        loop {
            let answer = model::wait_for(self.model.summarize(&system, &prompt.user), Some(time))
                .unwrap_or_else(|| {
                    let text =
                        format!("{} gave no answer within {} s", self.model.name(), self.policy.timeout_s);
                    Err(Error::busy("model.timeout", text))
                });
            match answer.and_then(|answer| read(&answer)) {
                Ok(read) => return Ok(read),
                Err(error) if attempt == ATTEMPTS => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, attempt, model = self.model.name(), "no facts from the model");
                    system =
                        format!("{}\n\nYour previous answer was refused: {}", prompt.system, error.text());
                }
            }
            attempt += 1;
        }
    }

    /// Writes down what is news, and that these turns were read, in one step. If something was erased since they were
    /// read, nothing is written and no facts are given: what is left has to be read again.
    fn keep(&self, batch: &Batch, found: Found) -> Result<(Option<Vec<Fact>>, Dropped), Error> {
        let Found { learned, mut dropped, prompt_hash, input_hash } = found;
        let conversation = self.conversation;
        let (_, head) = conversation.room_for_facts(learned.len())?;
        let known = conversation.facts_at(head)?;
        let mut standing = Vec::new();
        let mut gone = Dropped::default();
        for learned in learned {
            // It was read a while ago.
            let turn = conversation.shared().journal.index.turn_in(self.key(), learned.turn)?;
            if turn.erased || turn.superseded_by.is_some() {
                gone.no_such_turn += 1;
            } else {
                standing.push(learned);
            }
        }
        dropped.add(gone);
        let mut ids: Vec<FactId> = Vec::new();
        let mut drafts = Vec::new();
        for facts::News { learned, origin } in facts::news(&known, standing, &mut dropped) {
            let ulid = conversation.shared().journal.source.ulid()?;
            let id = match origin {
                Origin::New => FactId(ulid),
                Origin::Known(id) => id,
                Origin::Earlier(index) => ids[index],
            };
            ids.push(id);
            let body = StatedBody {
                fact: id,
                subject: learned.subject,
                predicate: learned.predicate,
                object: learned.object,
                confidence: learned.confidence,
                quote: Some(learned.quote),
                turn_seq: Some(learned.turn_seq),
                model: Some(self.model.name()),
            };
            let draft = conversation.shared().draft(kind::FACT_EXTRACTED, &body)?;
            drafts.push(Draft { id: EventId(ulid), turn: Some(learned.turn), ..draft });
        }
        let body = ReadBody {
            stated: drafts.len() as u64,
            prompt_hash,
            input_hash,
            ..self.read_body(batch, dropped)
        };
        drafts.push(conversation.shared().draft(kind::FACTS_READ, &body)?);
        drafts.iter().try_for_each(Draft::check)?;
        let action = Action::Derive { drafts, mark: batch.mark };
        match conversation.write(Ok(action), |_| Ok(())).wait() {
            Err(error) if error.code() == "derive.erased" => return Ok((None, gone)),
            written => written?,
        }
        metrics::counter!("everturn_facts_total", "what" => "stated").increment(body.stated);
        metrics::counter!("everturn_facts_total", "what" => "dropped").increment(dropped.total());
        let head = conversation.shared().journal.index.conversation(self.key())?.head.seq;
        let mut facts = conversation.facts_at(head)?;
        facts.retain(|fact| ids.contains(&fact.id));
        Ok((Some(facts), dropped))
    }

    /// Notes that these turns were read to no avail.
    fn give_up(&self, batch: &Batch, error: &Error) -> Result<(), Error> {
        let failed = Some(error.code().to_string());
        let body = ReadBody { failed, ..self.read_body(batch, Dropped::default()) };
        self.append(vec![self.conversation.shared().draft(kind::FACTS_READ, &body)?])
    }

    fn read_body(&self, batch: &Batch, dropped: Dropped) -> ReadBody {
        ReadBody {
            from_seq: batch.from,
            to_seq: batch.to,
            turns: batch.turns.len() as u64,
            model: self.model.name(),
            prompt_hash: Hash::of(b""),
            input_hash: Hash::of(b""),
            stated: 0,
            dropped,
            failed: None,
        }
    }

    fn append(&self, drafts: Vec<Draft>) -> Result<(), Error> {
        drafts.iter().try_for_each(Draft::check)?;
        let action = Action::Append { drafts, expected_seq: None, idempotency: None };
        self.conversation.write(Ok(action), |_| Ok(())).wait()
    }
}

fn candidate<'a>((turn, message): (&'a Turn, &'a Option<Value>)) -> Candidate<'a> {
    Candidate {
        turn: turn.id,
        seq: turn.seq,
        role: speech::of_turn(turn).role,
        actor: turn.actor.as_deref(),
        at: turn.occurred_at.unwrap_or(turn.created),
        message: message.as_ref(),
        tokens: 0,
    }
}
