//! Deriving facts from statements.

use everturn_core::event::{Event, kind};
use everturn_core::fact::{
    CorrectedBody, Fact, FactSource, FactStatus, RetractedBody, Retraction, StatedBody, normal,
};
use everturn_core::id::FactId;
use std::collections::{HashMap, HashSet};

/// Derives the facts of a conversation from its events, in the order in which they were first stated.
///
/// `events` are the current statements, corrections and retractions, by `seq`; one whose body is erased states
/// nothing. What a model learned is dated by its turn, everything else by its own event: so it does not matter
/// in which order the turns were read.
///
/// - The same subject, predicate and object again, from another turn: the fact gains confidence and a source.
/// - Another object for the same subject and predicate supersedes the older fact.
/// - A correction supersedes the fact that it names, and has no effect without it.
/// - A retraction ends a fact. A later statement can restore it.
pub fn add_up<'a>(events: impl IntoIterator<Item = &'a Event>) -> Vec<Fact> {
    let mut entries: Vec<Statement<'_>> = events.into_iter().filter_map(Statement::read).collect();
    entries.sort_by_key(|entry| (entry.said, entry.event.seq));
    let made = entries.iter().map(|entry| FactId(entry.event.id.0)).collect();
    let mut facts = Facts { made, ..Facts::default() };
    for Statement { event, body, .. } in entries {
        match body {
            Body::Stated(body) => facts.state(event, body),
            Body::Corrected(body) => facts.correct(event, body),
            Body::Retracted(body) => facts.retract(event, body),
        }
    }
    facts.all
}

struct Statement<'a> {
    event: &'a Event,
    /// `seq` at which it was said.
    said: u64,
    body: Body,
}

enum Body {
    Stated(StatedBody),
    Corrected(CorrectedBody),
    Retracted(RetractedBody),
}

impl Statement<'_> {
    fn read(event: &Event) -> Option<Statement<'_>> {
        let mut said = event.seq;
        let body = match event.kind.as_str() {
            kind::FACT_EXTRACTED | kind::FACT_ADDED => {
                let body: StatedBody = event.read()?;
                if event.kind == kind::FACT_EXTRACTED {
                    // An imported statement may claim to have been said after it was written.
                    said = body.turn_seq.map_or(said, |turn| turn.min(said));
                }
                Body::Stated(body)
            }
            kind::FACT_CORRECTED => Body::Corrected(event.read()?),
            kind::FACT_RETRACTED => Body::Retracted(event.read()?),
            _ => return None,
        };
        Some(Statement { event, said, body })
    }
}

#[derive(Default)]
struct Facts {
    all: Vec<Fact>,
    /// Ids created by an event here. Another event with one of them confirms a fact, and cannot take over its
    /// id.
    made: HashSet<FactId>,
    /// Ids under which a fact was stated: two concurrent readers may have given it one each.
    ids: HashMap<FactId, usize>,
    /// The current fact for a subject and a predicate.
    current: HashMap<(String, String), usize>,
}

impl Facts {
    fn state(&mut self, event: &Event, body: StatedBody) {
        let confidence = body.confidence.clamp(0.0, 1.0);
        let source = event.turn.map(|turn| FactSource { turn, seq: body.turn_seq, quote: body.quote });
        let key = (normal(&body.subject), normal(&body.predicate));
        if let Some(index) = self.current.get(&key).copied()
            && normal(&self.all[index].object) == normal(&body.object)
        {
            self.ids.entry(body.fact).or_insert(index);
            let fact = &mut self.all[index];
            let heard = |source: &FactSource| fact.sources.iter().any(|known| known.turn == source.turn);
            if !source.as_ref().is_some_and(heard) {
                fact.confidence = surer(fact.confidence, confidence);
                fact.sources.extend(source);
            }
            return;
        }
        let by = body.model.or_else(|| event.actor.clone());
        let words = [body.subject, body.predicate, body.object];
        let fact =
            Fact { sources: source.into_iter().collect(), by, ..fact(event, body.fact, words, confidence) };
        self.add(event, fact, key);
    }

    fn correct(&mut self, event: &Event, body: CorrectedBody) {
        let Some(wrong) = self.ids.get(&body.corrects).copied() else { return };
        let old = &self.all[wrong];
        let words = [
            body.subject.unwrap_or_else(|| old.subject.clone()),
            body.predicate.unwrap_or_else(|| old.predicate.clone()),
            body.object.unwrap_or_else(|| old.object.clone()),
        ];
        let key = (normal(&words[0]), normal(&words[1]));
        if let Some(right) = self.current.get(&key).copied().filter(|right| *right != wrong)
            && normal(&self.all[right].object) == normal(&words[2])
        {
            self.ids.entry(body.fact).or_insert(right);
            return self.supersede(wrong, right);
        }
        let corrects = Some(old.id);
        let fact = Fact {
            corrects,
            by: event.actor.clone(),
            ..fact(event, body.fact, words, body.confidence.clamp(0.0, 1.0))
        };
        let right = self.add(event, fact, key);
        self.supersede(wrong, right);
    }

    fn retract(&mut self, event: &Event, body: RetractedBody) {
        let Some(index) = self.ids.get(&body.fact).copied() else { return };
        self.end(index);
        let fact = &mut self.all[index];
        fact.status = FactStatus::Retracted;
        let by = event.actor.clone();
        fact.retracted = Some(Retraction { seq: event.seq, at: event.at, by, reason: body.reason });
    }

    /// Adds a new fact, which supersedes the current one for its subject and predicate.
    fn add(&mut self, event: &Event, mut fact: Fact, key: (String, String)) -> usize {
        let index = self.all.len();
        // One fact may have become two by now, because something else was said in between.
        let own = FactId(event.id.0);
        if fact.id != own && (self.ids.contains_key(&fact.id) || self.made.contains(&fact.id)) {
            fact.id = own;
        }
        self.ids.insert(fact.id, index);
        self.all.push(fact);
        if let Some(older) = self.current.insert(key, index) {
            self.supersede(older, index);
        }
        index
    }

    fn supersede(&mut self, older: usize, newer: usize) {
        let (by, seq) = (self.all[newer].id, self.all[newer].seq);
        self.end(older);
        let older = &mut self.all[older];
        if older.status == FactStatus::Current {
            older.status = FactStatus::Superseded;
            older.superseded_by = Some(by);
            older.superseded_seq = Some(seq.max(older.seq));
        }
    }

    /// Ends a current fact.
    fn end(&mut self, index: usize) {
        let fact = &self.all[index];
        let key = (normal(&fact.subject), normal(&fact.predicate));
        if self.current.get(&key) == Some(&index) {
            self.current.remove(&key);
        }
    }
}

fn fact(event: &Event, id: FactId, [subject, predicate, object]: [String; 3], confidence: f64) -> Fact {
    Fact {
        id,
        conversation: event.conversation,
        seq: event.seq,
        subject,
        predicate,
        object,
        confidence,
        status: FactStatus::Current,
        sources: Vec::new(),
        created: event.at,
        by: None,
        corrects: None,
        superseded_by: None,
        superseded_seq: None,
        retracted: None,
    }
}

/// Combined confidence: two statements of the same are wrong only if both are. Rounded, because further digits
/// mean nothing.
fn surer(one: f64, other: f64) -> f64 {
    ((1.0 - (1.0 - one) * (1.0 - other)) * 10_000.0).round() / 10_000.0
}
