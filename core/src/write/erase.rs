//! Erasing: the bodies and rows that are removed with a turn or an event.

use super::lookup::{EventRef, Level, Lookup, Statement, StatementsOf, owner};
use super::{EventAddress, Learned, fold, refusal};
use crate::Error;
use crate::chain::Hash;
use crate::conversation::{CheckpointRef, Settings};
use crate::event::{Event, kind};
use crate::id::{FactId, TurnId};
use crate::turn::{Status, TurnBody, TurnRow};
use std::collections::{BTreeMap, BTreeSet};

/// Bodies and rows that an erasure removes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Erasure {
    /// Events whose bodies are removed, with their rows among summaries and echoes. Each has a body now.
    pub bodies: Vec<EventRef>,
    /// Events among `bodies` that lose their row among the assets.
    pub assets: Vec<EventRef>,
    /// Events among `bodies` that lose their row among the facts.
    pub facts: Vec<EventRef>,
    /// Turns that lose their references to assets.
    pub references: Vec<EventRef>,
    /// Folds to remove: those of each conversation from `seq` on, and those of its forks that see this event.
    pub folds: Vec<EventRef>,
    /// Checkpoints in force afterwards, by the conversation's number.
    pub checkpoints: Vec<(u64, Option<CheckpointRef>)>,
    /// Hashes of bytes that no asset of the tenant uses afterwards.
    pub released: Vec<Hash>,
}

impl Erasure {
    /// The checkpoint of the conversation itself, if it changes.
    pub(super) fn own_checkpoint(&self, lineage: &[Level]) -> Option<Option<CheckpointRef>> {
        let own = lineage.first()?.conversation;
        self.checkpoints.iter().find(|(conversation, _)| *conversation == own).map(|(_, now)| *now)
    }
}

/// Statements to remove when a turn is erased, as a store finds them.
pub fn learned<E>(
    turn: TurnId,
    mut statements: impl FnMut(StatementsOf) -> Result<Vec<Statement>, E>,
) -> Result<Vec<Learned>, E> {
    let learned = statements(StatementsOf::Source(turn))?;
    let gone = with_corrections(learned, &mut BTreeSet::new(), statements)?;
    Ok(gone.iter().map(|one| Learned { conversation: one.conversation, fact: one.row.id }).collect())
}

/// Copies of a turn in branches, and of an open one in forks, in all conversations that share a history with this one. They
/// are at the beginning.
pub fn copies(turn: TurnId, lookup: &dyn Lookup) -> Result<Vec<Event>, Error> {
    let mut found = Vec::new();
    let mut family: Vec<u64> =
        lookup.lineage()?.last().map(|oldest| oldest.conversation).into_iter().collect();
    while let Some(conversation) = family.pop() {
        for fork in lookup.forks(conversation)? {
            family.push(fork.conversation);
            for seq in fork.at_seq + 1.. {
                let Some(event) = lookup.event(EventRef { conversation: fork.conversation, seq })? else {
                    break;
                };
                match event.read::<TurnBody>().filter(|_| kind::is_of_turn(&event.kind)) {
                    Some(body) if body.copy_of.contains(&turn) => found.push(event),
                    Some(body) if !body.copy_of.is_empty() => {}
                    Some(_) => break,
                    // An erased turn may be a copy.
                    None if kind::is_of_turn(&event.kind) => {}
                    None if kind::is_settings(&event.kind) || event.kind == kind::SUPERSEDED => {}
                    None => break,
                }
            }
        }
    }
    Ok(found)
}

/// Adds corrections and retractions of facts that have no other statement left. `gone` are statements removed
/// anyway.
fn with_corrections<E>(
    mut going: Vec<Statement>,
    gone: &mut BTreeSet<EventRef>,
    mut statements: impl FnMut(StatementsOf) -> Result<Vec<Statement>, E>,
) -> Result<Vec<Statement>, E> {
    gone.extend(going.iter().map(|one| one.at));
    let mut facts: Vec<FactId> = going.iter().map(|one| one.row.id).collect();
    while let Some(id) = facts.pop() {
        let mut left = statements(StatementsOf::Fact(id))?;
        left.retain(|one| !gone.contains(&one.at));
        if left.iter().any(|one| one.row.id == id && one.row.corrects != Some(id)) {
            continue;
        }
        left.retain(|one| one.row.corrects == Some(id));
        facts.extend(left.iter().map(|one| one.row.id).filter(|fact| *fact != id));
        gone.extend(left.iter().map(|one| one.at));
        going.append(&mut left);
    }
    Ok(going)
}

/// Whether a conversation sees any of these events. `None` stands for events that are no longer recorded.
pub(super) fn is_seen(erased: Option<Vec<EventRef>>, lineage: &[Level]) -> bool {
    let sees = |at: &EventRef| {
        lineage.iter().any(|level| level.conversation == at.conversation && at.seq <= level.cap)
    };
    erased.is_none_or(|erased| erased.iter().any(sees))
}

/// The rows of turns to erase. All must exist, and none may be open.
pub(super) fn turns(ids: &[TurnId], lookup: &dyn Lookup) -> Result<Vec<TurnRow>, Error> {
    let find = |id: &TurnId| lookup.turn(*id)?.ok_or_else(|| refusal::absent_turn(*id));
    let rows = ids.iter().map(find).collect::<Result<Vec<TurnRow>, Error>>()?;
    match rows.iter().find(|row| row.status == Status::Pending) {
        Some(open) => Err(refusal::still_open(open.id)),
        None => Ok(rows),
    }
}

/// Plans an erasure.
pub(super) fn erasure(
    turns: &[TurnRow],
    events: &[EventAddress],
    summaries: bool,
    lookup: &dyn Lookup,
) -> Result<Erasure, Error> {
    let mut erasing = Erasing {
        lookup,
        lineage: lookup.lineage()?,
        bodies: BTreeMap::new(),
        turns: BTreeSet::new(),
        statements: BTreeSet::new(),
    };
    turns.iter().try_for_each(|row| erasing.turn(row, summaries))?;
    events.iter().try_for_each(|place| erasing.event(*place, summaries))?;
    erasing.unshown_assets()?;
    erasing.finish()
}

struct Erasing<'a> {
    lookup: &'a dyn Lookup,
    lineage: Vec<Level>,
    /// Kinds of the events whose bodies are removed.
    bodies: BTreeMap<EventRef, String>,
    /// Erased turns, located where they were written.
    turns: BTreeSet<EventRef>,
    /// Statements to remove.
    statements: BTreeSet<EventRef>,
}

impl Erasing<'_> {
    fn body(&mut self, at: EventRef) -> Result<(), Error> {
        if !self.bodies.contains_key(&at)
            && let Some(kind) = self.lookup.body_kind(at)?
        {
            self.bodies.insert(at, kind);
        }
        Ok(())
    }

    /// Erases a turn with everything learned from it; with `summaries`, also everything that summarizes it.
    fn turn(&mut self, row: &TurnRow, summaries: bool) -> Result<(), Error> {
        for seq in row.bodies() {
            if let Some(at) = owner(&self.lineage, seq) {
                self.body(at)?;
            }
        }
        self.statements(StatementsOf::Source(row.id))?;
        // A turn refers to its assets in the conversation where it was written. An ancestor may have a turn of
        // its own at the same `seq`.
        if let Some(at) = owner(&self.lineage, row.seq) {
            self.turns.insert(at);
            if summaries {
                // A checkpoint covers an edit by its place, not by its `seq`.
                self.summaries(EventRef { seq: row.place, ..at })?;
            }
        }
        Ok(())
    }

    /// Erases another event, with everything that follows from it. A copy of a turn is erased like a turn.
    fn event(&mut self, place: EventAddress, summaries: bool) -> Result<(), Error> {
        let Some(conversation) = self.lookup.number(place.conversation)? else { return Ok(()) };
        let at = EventRef { conversation, seq: place.seq };
        self.body(at)?;
        let kind = self.bodies.get(&at).map_or("", String::as_str);
        let is_projection = kind == kind::PROJECTION;
        if kind::begins_turn(kind)
            && let Some(turn) = self.lookup.event(at)?.and_then(|event| event.turn)
        {
            self.turns.insert(at);
            self.statements(StatementsOf::Source(turn))?;
            if summaries {
                // A copy is read before everything of its branch.
                self.summaries(EventRef { conversation, seq: 1 })?;
            }
        }
        for row in self.lookup.summaries(conversation, at.seq..=at.seq)? {
            // Later checkpoints build on this one, but not on a projection.
            if row.through_seq > 0 && !is_projection {
                self.summaries(EventRef { conversation, seq: row.through_seq })?;
            }
        }
        self.statements(StatementsOf::Event(at))
    }

    fn summaries(&mut self, at: EventRef) -> Result<(), Error> {
        self.lookup.summaries_reaching(at)?.into_iter().try_for_each(|summary| self.body(summary))
    }

    fn statements(&mut self, of: StatementsOf) -> Result<(), Error> {
        let lookup = self.lookup;
        let going = lookup.statements(of)?;
        let going = with_corrections(going, &mut self.statements, |of| lookup.statements(of))?;
        going.into_iter().try_for_each(|statement| self.body(statement.at))
    }

    /// Erases assets that only erased turns refer to. A fork may refer to an asset of its parent.
    fn unshown_assets(&mut self) -> Result<(), Error> {
        for turn in self.turns.clone() {
            for asset in self.lookup.shown_by(turn)? {
                let showing = self.lookup.showing(turn.conversation, &asset.id)?;
                if showing.iter().all(|turn| self.turns.contains(turn)) {
                    self.body(EventRef { conversation: turn.conversation, seq: asset.seq })?;
                }
            }
        }
        Ok(())
    }

    /// Collects the rows that are removed with the bodies.
    fn finish(self) -> Result<Erasure, Error> {
        let mut erasure = Erasure {
            bodies: self.bodies.keys().copied().collect(),
            references: self.turns.iter().copied().collect(),
            ..Erasure::default()
        };
        let mut hashes = Vec::new();
        // In ascending order, so the first event of a conversation determines from where its folds are wrong.
        let mut folds: BTreeMap<u64, EventRef> = BTreeMap::new();
        let mut unsummarized = BTreeSet::new();
        for (at, kind) in &self.bodies {
            let rows = at.seq..=at.seq;
            if !kind::is_of_turn(kind) && kind != kind::IMPORT_LINE {
                folds.entry(at.conversation).or_insert(*at);
            }
            if kind == kind::ASSET_ADDED {
                let assets = self.lookup.assets(at.conversation, rows)?;
                hashes.extend(assets.iter().filter_map(|asset| asset.sha256));
                erasure.assets.push(*at);
            } else if kind::is_fact(kind) {
                erasure.facts.push(*at);
            } else if (kind == kind::COMPACTION || kind::is_settings(kind))
                && !self.lookup.summaries(at.conversation, rows)?.is_empty()
            {
                unsummarized.insert(at.conversation);
            }
        }
        erasure.folds = folds.into_values().collect();
        // A fork may have the checkpoint from where it began.
        let mut family: Vec<u64> = unsummarized.iter().copied().collect();
        while let Some(conversation) = family.pop() {
            let forks = self.lookup.forks(conversation)?.into_iter().map(|fork| fork.conversation);
            family.extend(forks.filter(|fork| unsummarized.insert(*fork)));
        }
        for conversation in unsummarized {
            let gone = |at: EventRef| self.bodies.contains_key(&at);
            let left = checkpoint_at(conversation, u64::MAX, &gone, self.lookup)?;
            erasure.checkpoints.push((conversation, left));
        }
        erasure.released = super::delete::released(hashes, self.lookup)?;
        Ok(erasure)
    }
}

/// The checkpoint in force according to the events that have their body: that of a fork may be inherited, and erased in the
/// parent since.
pub fn checkpoint(conversation: u64, lookup: &dyn Lookup) -> Result<Option<CheckpointRef>, Error> {
    checkpoint_at(conversation, u64::MAX, &|_| false, lookup)
}

/// The checkpoint in force at a `seq`, without the events that are about to be erased (`gone`).
fn checkpoint_at(
    conversation: u64,
    through: u64,
    gone: &dyn Fn(EventRef) -> bool,
    lookup: &dyn Lookup,
) -> Result<Option<CheckpointRef>, Error> {
    let (mut checkpoint, mut budget) = (None, None);
    for row in lookup.summaries(conversation, 0..=through)? {
        let at = EventRef { conversation, seq: row.seq };
        let Some(event) = lookup.event(at)?.filter(|_| !gone(at)) else { continue };
        if !kind::is_settings(&event.kind) {
            fold::move_view(&event, &mut checkpoint, &mut budget);
            continue;
        }
        let Some(settings) = event.read::<Settings>() else { continue };
        let parent = match settings.parent {
            Some(parent) => lookup.number(parent.conversation)?.zip(Some(parent.at_seq)),
            None => None,
        };
        checkpoint = match parent {
            Some((parent, at_seq)) => checkpoint_at(parent, at_seq, gone, lookup)?,
            None => settings.checkpoint.or(checkpoint),
        };
    }
    Ok(checkpoint)
}

#[cfg(test)]
mod tests {
    use super::super::FactRow;
    use super::*;
    use crate::id::ConversationId;

    fn turn(n: u8) -> TurnId {
        TurnId::from_bytes([n; 16])
    }

    fn fact(n: u8) -> FactId {
        FactId::from_bytes([n; 16])
    }

    /// Statements by seq, fact, source turn and the fact that they correct; 0 for none.
    fn statements(rows: &[(u64, u8, u8, u8)]) -> impl FnMut(StatementsOf) -> Result<Vec<Statement>, ()> {
        let statement = |(seq, id, source, corrects): (u64, u8, u8, u8)| Statement {
            conversation: ConversationId::from_bytes([1; 16]),
            at: EventRef { conversation: 1, seq },
            row: FactRow {
                id: fact(id),
                seq,
                source_turn: (source > 0).then(|| turn(source)),
                corrects: (corrects > 0).then(|| fact(corrects)),
            },
        };
        let all: Vec<Statement> = rows.iter().copied().map(statement).collect();
        move |of| {
            let asked = |one: &&Statement| match of {
                StatementsOf::Source(turn) => one.row.source_turn == Some(turn),
                StatementsOf::Fact(fact) => one.row.id == fact || one.row.corrects == Some(fact),
                StatementsOf::Event(at) => one.at == at,
            };
            Ok(all.iter().filter(asked).cloned().collect())
        }
    }

    #[test]
    fn corrections_go_with_the_last_statement_of_their_fact() {
        let learned_from_1 = |rows: &[(u64, u8, u8, u8)]| -> Vec<FactId> {
            learned(turn(1), statements(rows)).unwrap().iter().map(|learned| learned.fact).collect()
        };
        assert_eq!(learned_from_1(&[(1, 1, 1, 0), (2, 2, 2, 0)]), [fact(1)]);
        // Corrected by a new fact, which is corrected in turn.
        assert_eq!(learned_from_1(&[(1, 1, 1, 0), (2, 2, 0, 1), (3, 3, 0, 2)]), [fact(1), fact(2), fact(3)]);
        // Another turn states the same: its correction stays.
        assert_eq!(learned_from_1(&[(1, 1, 1, 0), (2, 1, 2, 0), (3, 2, 0, 1)]), [fact(1)]);
        // A retraction refers to the fact itself and keeps nothing alive.
        assert_eq!(learned_from_1(&[(1, 1, 1, 0), (2, 1, 0, 1)]), [fact(1), fact(1)]);
    }

    #[test]
    fn two_sources_erased_together_leave_no_source() {
        let rows = [(1, 1, 1, 0), (2, 1, 2, 0), (3, 2, 0, 1)];
        let mut gone = BTreeSet::new();
        let mut places = Vec::new();
        for n in [1, 2] {
            let going = statements(&rows)(StatementsOf::Source(turn(n))).unwrap();
            let going = with_corrections(going, &mut gone, statements(&rows)).unwrap();
            places.extend(going.iter().map(|one| one.at.seq));
        }
        assert_eq!(places, [1, 2, 3]);
    }
}
