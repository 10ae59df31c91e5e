//! Facts that a model extracts from turns: on request, or in the background where the policy asks for it.
//!
//! Only turns of the log are read. Text recalled into a prompt is not a turn, and a reply that repeats it is no
//! evidence (see `views::facts::news`). The log records which parts were read, so that nothing is read twice.

use super::ConversationFacts;
use super::statements::Extraction;
use crate::conversation::ConversationHandle;
use crate::model::{self, ModelSummarizer, Summarizer};
use crate::tenant::Tenant;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::error::code;
use everturn_core::event::{Draft, kind};
use everturn_core::fact::{Fact, FactsDropped, ReadBody, StatedBody, limits};
use everturn_core::id::{EventId, FactId, Key};
use everturn_core::policy::FactsPolicy;
use everturn_core::turn::{Role, Status, Turn};
use everturn_core::write::Action;
use everturn_store::TurnQuery;
use everturn_views::compaction::{Candidate, Prompt};
use everturn_views::facts::{self, ExtractedFact, Origin, Redactor};
use everturn_views::speech;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// Most requests to a model for one batch.
const ATTEMPTS: usize = 2;
/// Number of unread turns that are read even if nobody has replied yet.
const DUE_TURNS: usize = 16;

/// Turns to extract facts from.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExtractOptions {
    /// First `seq`; by default only turns that were not read before.
    pub from: Option<u64>,
    /// Last `seq`; by default the end.
    pub to: Option<u64>,
}

impl Tenant {
    /// The model that extracts facts: a summarizer, or a model that continues conversations.
    fn fact_model(&self, policy: &FactsPolicy) -> Result<Arc<dyn Summarizer>, Error> {
        let name = policy.model.as_deref();
        match self.generations().summarizer(name) {
            Some(summarizer) => Ok(summarizer),
            None => self
                .generations()
                .model(name)
                .map(|model| Arc::new(ModelSummarizer::new(model.client)) as Arc<dyn Summarizer>),
        }
    }
}

impl ConversationFacts<'_> {
    /// Extracts facts from turns with a model, and keeps those that the turns support. Blocks meanwhile. Two unusable
    /// replies are an error, and nothing is written for those turns.
    pub fn extract(&self, options: ExtractOptions) -> Result<Extraction, Error> {
        let conversation = self.0.shared().journal.index.conversation(self.0.key())?;
        let policy = conversation.facts();
        let reader = FactReader {
            conversation: self.0.for_everyone(),
            model: self.0.tenant.fact_model(&policy)?,
            policy,
        };
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
            dropped: FactsDropped::default(),
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
    /// Extracts facts from new turns, if the policy asks for it and an exchange is complete. Returns whether any were
    /// read.
    pub(crate) fn extract_if_due(&self) -> Result<bool, Error> {
        let conversation = self.shared().journal.conversation(self.key())?;
        let policy = conversation.facts();
        if !policy.extract {
            return Ok(false);
        }
        // Without a model there is nothing to try, and nothing to log after every append.
        let Ok(model) = self.tenant.fact_model(&policy) else { return Ok(false) };
        let reader = FactReader { conversation: self.for_everyone(), model, policy };
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
                // The model would reply the same at every later attempt.
                Err(error) if error.is(code::FACTS_ANSWER) => {
                    tracing::warn!(code = error.code(), conversation = %self.id(), "no facts from these turns");
                    reader.give_up(&batch, &error)?;
                }
                Err(error) => return Err(error),
            }
            return Ok(true);
        }
        Ok(false)
    }
}

/// An extraction: the conversation, the model and the policy.
struct FactReader {
    /// As everyone may see it: facts are for everyone who recalls.
    conversation: ConversationHandle,
    model: Arc<dyn Summarizer>,
    policy: FactsPolicy,
}

/// Turns read at once.
struct Batch {
    from: u64,
    to: u64,
    /// Number of erasures before they were read.
    mark: u64,
    turns: Vec<Turn>,
}

/// Facts that a model found in a batch.
struct LearnedFacts {
    learned: Vec<ExtractedFact>,
    dropped: FactsDropped,
    prompt_hash: Hash,
    input_hash: Hash,
}

impl FactReader {
    fn key(&self) -> &Key {
        self.conversation.key()
    }

    /// End of the readable part, before any open turn.
    fn end(&self, head: u64) -> Result<u64, Error> {
        let fold = self.conversation.shared().fold(self.key(), head)?;
        Ok(fold.open.iter().map(|place| place.seq - 1).min().unwrap_or(head).min(head))
    }

    /// The next turns in a range of `seq`.
    fn batch(&self, from: u64, to: u64) -> Result<Batch, Error> {
        let query = TurnQuery {
            after: Some(from.saturating_sub(1)),
            before: Some(to.saturating_add(1)),
            whole_log: true,
            ..TurnQuery::default()
        };
        let mark = self.conversation.shared().journal.index.erasures(&self.key().tenant)?;
        let mut batch = Batch { from, to, mark, turns: Vec::new() };
        self.conversation.each_turn(query, |turn| {
            let stands = matches!(turn.status, Status::Complete | Status::Interrupted)
                && turn.superseded_by.is_none()
                && !turn.erased;
            // Instructions are no statements of fact.
            if stands && turn.role != Role::System && turn.message.is_some() {
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

    /// Asks the model, and drops facts that the turns do not support or that must not be kept.
    fn learn(&self, batch: &Batch) -> Result<LearnedFacts, Error> {
        let messages: Vec<Option<Value>> = batch.turns.iter().map(Turn::value).collect();
        let candidates: Vec<Candidate<'_>> = batch.turns.iter().zip(&messages).map(candidate).collect();
        let head = self.conversation.shared().journal.index.conversation(self.key())?.head.seq;
        let known = self.conversation.facts_at(head)?;
        let prompt = facts::prompt(&known, &candidates);
        let (prompt_hash, input_hash) =
            (Hash::of(prompt.system.as_bytes()), Hash::of(prompt.user.as_bytes()));
        let (learned, mut dropped) = self.ask(&prompt, |answer| facts::read(answer, &candidates))?;
        let mut redactor = Redactor { personal: self.policy.redact, named: Vec::new() };
        // Secrets of a known shape are removed first, so that the model that judges the rest does not see them.
        let mut learned = redactor.redact(learned, &mut dropped);
        if let Some(rule) = self.policy.redact_prompt.as_deref().filter(|_| !learned.is_empty()) {
            redactor.named = self.ask(&facts::redaction_prompt(rule, &learned), facts::read_redaction)?;
            learned = redactor.redact(learned, &mut dropped);
        }
        Ok(LearnedFacts { learned, dropped, prompt_hash, input_hash })
    }

    /// The model's reply as parsed by `read`; if that fails, the model is asked again with the error.
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
                    tracing::warn!(
                        code = error.code(),
                        attempt,
                        model = self.model.name(),
                        "no facts from the model"
                    );
                    system =
                        format!("{}\n\nYour previous answer was refused: {}", prompt.system, error.text());
                }
            }
            attempt += 1;
        }
    }

    /// Writes the new facts, and that these turns were read, in one batch. If something was erased since they were
    /// read, writes nothing and returns no facts: the rest has to be read again.
    fn keep(&self, batch: &Batch, found: LearnedFacts) -> Result<(Option<Vec<Fact>>, FactsDropped), Error> {
        let LearnedFacts { learned, mut dropped, prompt_hash, input_hash } = found;
        let conversation = &self.conversation;
        let (_, head) = conversation.room_for_facts(learned.len())?;
        let known = conversation.facts_at(head)?;
        let mut standing = Vec::new();
        let mut gone = FactsDropped::default();
        for learned in learned {
            // It may have changed since it was read.
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
        for facts::FactUpdate { learned, origin } in facts::news(&known, standing, &mut dropped) {
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
                audience: Vec::new(),
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
            Err(error) if error.is(code::SOURCE_ERASED) => return Ok((None, gone)),
            written => written?,
        }
        metrics::counter!("everturn_facts_total", "what" => "stated").increment(body.stated);
        metrics::counter!("everturn_facts_total", "what" => "dropped").increment(dropped.total());
        let head = conversation.shared().journal.index.conversation(self.key())?.head.seq;
        let mut facts = conversation.facts_at(head)?;
        facts.retain(|fact| ids.contains(&fact.id));
        Ok((Some(facts), dropped))
    }

    /// Records that these turns were read without a result.
    fn give_up(&self, batch: &Batch, error: &Error) -> Result<(), Error> {
        let failed = Some(error.code().to_string());
        let body = ReadBody { failed, ..self.read_body(batch, FactsDropped::default()) };
        self.append(vec![self.conversation.shared().draft(kind::FACTS_READ, &body)?])
    }

    fn read_body(&self, batch: &Batch, dropped: FactsDropped) -> ReadBody {
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
        let action = Action::append(drafts);
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
