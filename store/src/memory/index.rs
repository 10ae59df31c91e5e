//! Reading and rebuilding derived rows.

use super::lookup::InMemory;
use super::{Level, Memory, StoredConversation, fork_point, owner, stored, turn_row, turn_rows};
use crate::{
    AssetIndex, ConversationIndex, ConversationQuery, FoldCache, Maintenance, Provenance, RecallIndex,
    StoreProblem, StoredTurn, TenantUsage, TurnIndex, TurnQuery, Written, WrittenPage,
};
use everturn_core::Error;
use everturn_core::asset::Asset;
use everturn_core::chain::Hash;
use everturn_core::conversation::{Conversation, Tombstone};
use everturn_core::echo::Words;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, FactId, Key, TenantName, TurnId};
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Status, TurnRow};
use everturn_core::write::{self, Changes, EventAddress, Learned, Lookup, Traces, absent_turn};

impl ConversationIndex for Memory {
    fn conversation(&self, key: &Key) -> Result<Conversation, Error> {
        self.kept().living(key).map(|entry| entry.conversation.clone())
    }

    fn conversations(
        &self,
        tenant: &TenantName,
        query: &ConversationQuery,
    ) -> Result<Vec<Conversation>, Error> {
        let kept = self.kept();
        let mut found: Vec<&Conversation> = kept
            .all_living()
            .filter(|(key, _)| key.tenant == *tenant)
            .map(|(_, entry)| &entry.conversation)
            .filter(|c| query.after.is_none_or(|after| query.order.position(c) < after))
            .filter(|c| query.takes(c))
            .filter(|c| query.state.is_none_or(|state| c.state == state))
            .filter(|c| {
                query.parent.is_none_or(|id| c.parent.is_some_and(|parent| parent.conversation == id))
            })
            .filter(|c| {
                query.text.as_ref().is_none_or(|text| {
                    c.title
                        .as_ref()
                        .is_some_and(|title| title.to_ascii_lowercase().contains(&text.to_ascii_lowercase()))
                })
            })
            .collect();
        found.sort_by_key(|c| std::cmp::Reverse(query.order.position(c)));
        Ok(found.into_iter().take(query.limit).cloned().collect())
    }

    fn starting_with(
        &self,
        tenant: &TenantName,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<ConversationId>, Error> {
        let prefix = prefix.strip_prefix(ConversationId::PREFIX).unwrap_or(prefix).to_ascii_uppercase();
        let kept = self.kept();
        let ids = kept.all_living().filter(|(key, _)| key.tenant == *tenant).map(|(key, _)| key.id);
        Ok(ids
            .filter(|id| id.to_string()[ConversationId::PREFIX.len()..].starts_with(&prefix))
            .take(limit)
            .collect())
    }

    fn expired(&self, now: Timestamp, limit: usize) -> Result<Vec<Key>, Error> {
        let kept = self.kept();
        let mut due: Vec<(Timestamp, Key)> = kept
            .all_living()
            .filter_map(|(key, entry)| Some((entry.conversation.expires()?, key.clone())))
            .filter(|(at, _)| *at <= now)
            .collect();
        due.sort();
        Ok(due.into_iter().map(|(_, key)| key).take(limit).collect())
    }

    fn tombstones(&self, tenant: &TenantName) -> Result<Vec<Tombstone>, Error> {
        let kept = self.kept();
        let mut found: Vec<Tombstone> = kept
            .places
            .iter()
            .filter(|(key, _)| key.tenant == *tenant)
            .filter_map(|(_, place)| kept.entries[*place].deleted.clone())
            .collect();
        found.sort_by_key(|tombstone| std::cmp::Reverse(tombstone.deleted));
        Ok(found)
    }

    fn tenants(&self) -> Result<Vec<TenantName>, Error> {
        let mut tenants: Vec<TenantName> = self.kept().places.keys().map(|key| key.tenant.clone()).collect();
        tenants.dedup();
        Ok(tenants)
    }

    fn usage(&self, tenant: &TenantName) -> Result<TenantUsage, Error> {
        let kept = self.kept();
        let mut usage = TenantUsage::default();
        for (_, entry) in kept.all_living().filter(|(key, _)| key.tenant == *tenant) {
            usage.conversations += 1;
            // An inherited turn has a row here if the fork changed it.
            let inherited = entry.conversation.parent.as_ref().map_or(0, |parent| parent.at_seq);
            usage.turns += entry.turns.values().filter(|row| row.seq > inherited).count() as u64;
            usage.bytes +=
                entry.events.iter().filter_map(Event::text).map(|text| text.len() as u64).sum::<u64>();
            for asset in entry.assets.iter().filter(|asset| asset.sha256.is_some()) {
                let descriptor = entry.at(asset.seq).and_then(Event::read::<Asset>);
                usage.assets += 1;
                usage.asset_bytes += descriptor.and_then(|asset| asset.bytes).unwrap_or(0);
            }
        }
        Ok(usage)
    }
}

impl TurnIndex for Memory {
    fn stored_turns(&self, key: &Key, query: &TurnQuery) -> Result<Vec<StoredTurn>, Error> {
        let kept = self.kept();
        kept.living(key)?;
        let levels = kept.lineage(key)?;
        let (low, high) = query.range();
        let through = query.as_of.unwrap_or(u64::MAX);
        let rows = turn_rows(&levels).into_values().filter(|row| row.seq <= through);
        let asked = |row: &TurnRow| (low..=high).contains(&query.position(row)) && query.takes(row);
        let mut rows: Vec<TurnRow> = rows.map(|row| query.seen(row)).filter(asked).collect();
        rows.sort_by_key(|row| query.position(row));
        if query.descending {
            rows.reverse();
        }
        let (mut page, mut bytes) = (Vec::new(), 0);
        for row in rows.into_iter().take(query.limit) {
            page.push(stored(&levels, row));
            if query.is_full(&page, &mut bytes) {
                break;
            }
        }
        Ok(page)
    }

    fn stored_turn(&self, tenant: &TenantName, id: TurnId) -> Result<StoredTurn, Error> {
        let said = {
            let kept = self.kept();
            let mut living = kept.all_living().filter(|(key, _)| key.tenant == *tenant);
            let own = |entry: &StoredConversation| entry.events.iter().any(|event| event.id.0 == id.0);
            living.find(|(_, entry)| own(entry)).map(|(key, _)| key.clone()).ok_or_else(|| absent_turn(id))?
        };
        self.stored_turn_in(&said, id)
    }

    fn stored_turn_in(&self, key: &Key, id: TurnId) -> Result<StoredTurn, Error> {
        let kept = self.kept();
        kept.living(key)?;
        let levels = kept.lineage(key)?;
        Ok(stored(&levels, turn_row(&levels, id).ok_or_else(|| absent_turn(id))?))
    }

    fn fallen_after(&self, key: &Key, seq: u64) -> Result<u64, Error> {
        let kept = self.kept();
        kept.living(key)?;
        InMemory { kept: &kept, key, parent: None }.fallen_after(seq)
    }

    fn open_turns(&self) -> Result<Vec<(Key, TurnId)>, Error> {
        let kept = self.kept();
        Ok(kept
            .all_living()
            .flat_map(|(key, entry)| entry.turns.values().map(move |row| (key, row)))
            .filter(|(_, row)| row.status == Status::Pending)
            .map(|(key, row)| (key.clone(), row.id))
            .collect())
    }
}

impl AssetIndex for Memory {
    fn stored_assets(&self, key: &Key) -> Result<Vec<Event>, Error> {
        let kept = self.kept();
        kept.living(key)?;
        let levels = kept.lineage(key)?;
        let mut found = Vec::new();
        for level in levels.iter().rev() {
            for asset in level.entry.assets.iter().filter(|asset| asset.seq <= level.cap) {
                found.extend(level.entry.at(asset.seq).cloned());
            }
        }
        Ok(found)
    }

    fn stored_asset(&self, key: &Key, id: &str) -> Result<Option<Event>, Error> {
        let kept = self.kept();
        kept.living(key)?;
        for level in &kept.lineage(key)? {
            if let Some(row) = level.entry.assets.iter().find(|a| a.id == id && a.seq <= level.cap) {
                return Ok(level.entry.at(row.seq).cloned());
            }
        }
        Ok(None)
    }

    fn stored_assets_with_id(
        &self,
        tenant: &TenantName,
        id: &str,
        limit: usize,
    ) -> Result<Vec<(ConversationId, Event)>, Error> {
        let kept = self.kept();
        let mut contents = Vec::new();
        let mut found = Vec::new();
        for (key, entry) in kept.all_living().filter(|(key, _)| key.tenant == *tenant) {
            let Some(row) = entry.assets.iter().find(|asset| asset.id == id) else { continue };
            let Some(event) = entry.at(row.seq) else { continue };
            if found.len() < limit && !contents.contains(&row.sha256) {
                contents.push(row.sha256);
                found.push((key.id, event.clone()));
            }
        }
        Ok(found)
    }

    fn asset_in_use(&self, tenant: &TenantName, sha256: Hash) -> Result<bool, Error> {
        Ok(self.kept().asset_count(tenant, sha256) > 0)
    }
}

impl Provenance for Memory {
    fn fact(&self, tenant: &TenantName, id: FactId) -> Result<Option<ConversationId>, Error> {
        let kept = self.kept();
        let living = kept.entries.iter().filter(|entry| entry.deleted.is_none());
        let mut ours = living.filter(|entry| entry.conversation.tenant == *tenant);
        let states = |entry: &&StoredConversation| {
            entry.facts.iter().any(|fact| fact.id == id && fact.corrects != Some(id))
        };
        Ok(ours.find(states).map(|entry| entry.conversation.id))
    }

    fn learned_from(&self, tenant: &TenantName, turn: TurnId) -> Result<Vec<Learned>, Error> {
        let kept = self.kept();
        write::learned(turn, |of| Ok(kept.statements(tenant, of)))
    }

    fn echoes(&self, key: &Key, turn: TurnId) -> Result<Vec<Event>, Error> {
        let kept = self.kept();
        kept.living(key)?;
        let levels = kept.lineage(key)?;
        let row = turn_row(&levels, turn).ok_or_else(|| absent_turn(turn))?;
        let message = stored(&levels, row.clone()).message();
        let mut found = Vec::new();
        if let (Some(message), Some(level)) = (message, owner(&levels, row.seq)) {
            kept.echoes(level.place, row.seq, &Words::of(&message), &mut found);
        }
        found.extend(write::copies(turn, &InMemory { kept: &kept, key, parent: None })?);
        Ok(found)
    }

    fn written_by(&self, tenant: &TenantName, actor: &str, after: u64) -> Result<Option<WrittenPage>, Error> {
        let kept = self.kept();
        let through = kept.arrived.len();
        let Some(rest) = kept.arrived.get(after as usize..).filter(|rest| !rest.is_empty()) else {
            return Ok(None);
        };
        let mut events = Vec::new();
        for (place, seq, _) in rest {
            let entry = &kept.entries[*place];
            let event = entry.at(*seq).filter(|event| event.body.is_some());
            let Some(event) = event.filter(|event| event.actor.as_deref() == Some(actor)) else { continue };
            let Some(seen_in) = kept.living_reader(*place, *seq) else { continue };
            if entry.conversation.tenant == *tenant {
                let place = EventAddress { conversation: entry.conversation.id, seq: *seq };
                events.push(Written { place, seen_in, kind: event.kind.clone(), turn: event.turn });
            }
        }
        Ok(Some(WrittenPage { events, through: through as u64 }))
    }

    fn erasures(&self, _: &TenantName) -> Result<u64, Error> {
        Ok(self.kept().erasures.count())
    }
}

impl FoldCache for Memory {
    fn fold(&self, key: &Key, at_or_before: u64) -> Result<Option<(u64, Raw)>, Error> {
        let kept = self.kept();
        kept.living(key)?;
        let newest = |level: &Level<'_>| {
            let kept = level.entry.folds.range(..=at_or_before.min(level.cap)).next_back();
            kept.map(|(seq, fold)| (*seq, fold.clone()))
        };
        Ok(kept.lineage(key)?.iter().find_map(newest))
    }

    fn keep_fold(&self, key: &Key, seq: u64, fold: &Raw) -> Result<(), Error> {
        let mut kept = self.kept();
        kept.living(key)?;
        kept.entry(key)?.folds.insert(seq, fold.clone());
        Ok(())
    }
}

impl Maintenance for Memory {
    fn check(&self) -> Result<Vec<StoreProblem>, Error> {
        Ok(Vec::new())
    }

    fn rebuild(&self) -> Result<(), Error> {
        let mut kept = self.kept();
        let keys: Vec<Key> = kept.all_living().map(|(key, _)| key.clone()).collect();
        kept.entries.iter_mut().for_each(|entry| entry.folds.clear());
        for key in keys {
            let entry = kept.entry(&key)?;
            let (own, old) = (entry.events.clone(), entry.conversation.clone());
            (entry.turns, entry.assets, entry.references) = Default::default();
            entry.facts.clear();
            entry.summaries.clear();
            let fork = match old.parent {
                None => None,
                Some(parent) => {
                    let point = fork_point(&kept.lineage(&key)?[1..], parent.at_seq).ok_or_else(|| {
                        Error::corrupt("fork.parent", format!("the parent of {} is damaged", key.id))
                    })?;
                    Some((parent, point))
                }
            };
            let mut fresh = write::new_conversation(&key, old.created, fork);
            for event in &own {
                let mut changes = Changes::default();
                write::fold(
                    &mut fresh,
                    event,
                    &mut changes,
                    &InMemory { kept: &kept, key: &key, parent: None },
                )?;
                kept.entry(&key)?.apply(changes);
            }
            if fresh.parent.is_some() && fresh.checkpoint.is_some() {
                let lookup = InMemory { kept: &kept, key: &key, parent: None };
                let no = lookup.number(key.id)?.unwrap_or_default();
                fresh.set_checkpoint(write::checkpoint(no, &lookup)?);
            }
            kept.entry(&key)?.conversation = fresh;
        }
        drop(kept);
        self.forget()
    }

    fn compact(&self) -> Result<(), Error> {
        self.scrub(None, None).map(drop)
    }
}
