//! Reading and rebuilding derived rows.

use super::lookup::InDatabase;
use super::read;
use super::recent::Recent;
use super::rows::{self, Bytes, CONVERSATION_COLUMNS, signed};
use super::{Sqlite, derived, door, erase, explain, failed};
use crate::index::id_range;
use crate::{
    AssetIndex, ConversationIndex, ConversationQuery, FoldCache, ListOrder, Log, Maintenance, ProblemKind,
    Provenance, RecallIndex, StoreProblem, StoredTurn, TenantUsage, TurnIndex, TurnQuery, WrittenPage,
};
use everturn_core::Error;
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::{Conversation, Tombstone};
use everturn_core::echo::Words;
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, FactId, Key, TenantName, TurnId};
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_core::write::{Learned, absent_turn, copies, learned};
use rusqlite::{OptionalExtension, params};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl ConversationIndex for Sqlite {
    fn conversation(&self, key: &Key) -> Result<Conversation, Error> {
        match self.recent(key) {
            Some(recent) => Ok(Arc::unwrap_or_clone(recent.conversation)),
            None => self.reading_in(key, |_, _, conversation, _| Ok(conversation)),
        }
    }

    fn conversations(
        &self,
        tenant: &TenantName,
        query: &ConversationQuery,
    ) -> Result<Vec<Conversation>, Error> {
        let (at, id) = match query.after {
            Some((at, id)) => (at.0, id.to_bytes()),
            None => (i64::MAX, [0xff; 16]),
        };
        let position = match query.order {
            ListOrder::Said => "c.said",
            ListOrder::Changed => "c.updated",
        };
        self.settled_first()?;
        let list = || {
            self.reading(|db| {
            let mut statement = db.prepare_cached(&format!(
                "SELECT {CONVERSATION_COLUMNS} FROM conversation_rows c
                 WHERE c.tenant = ?1 AND c.deleted IS NULL AND ({position}, c.id) < (?2, ?3) AND {position} >= ?6
                   AND (?4 IS NULL OR instr(lower(c.title), lower(?4)) > 0) AND (?5 IS NULL OR c.state = ?5)
                   AND (?7 IS NULL OR c.parent IN (SELECT p.no FROM conversation_rows p WHERE p.tenant = ?1 AND p.id = ?7))
                 ORDER BY {position} DESC, c.id DESC"
            ))?;
            let asked = params![
                tenant.as_str(),
                at,
                Bytes(id),
                query.text,
                query.state.map(|state| state.as_str()),
                query.since.map_or(i64::MIN, |since| since.0),
                query.parent.map(|parent| Bytes(parent.to_bytes()))
            ];
            let found = statement
                .query_map(asked, |row| Ok(rows::conversation(row)?.1))?
                .filter(|found| found.as_ref().map_or(true, |conversation| query.takes(conversation)))
                .take(query.limit)
                .collect::<Result<Vec<_>, _>>()?;
            if self.remembers() {
                return Ok(found);
            }
            // Beside a writer, each is shown in its current state; the order may be slightly outdated.
            let mut recent = Recent::load(db)?.conversations;
            let now = |c: Conversation| {
                let key = Key { tenant: c.tenant.clone(), id: c.id };
                recent.remove(&key).map_or(c, |entry| Arc::unwrap_or_clone(entry.conversation))
            };
            Ok(found.into_iter().map(now).collect())
        })
        };
        self.mending_all(list)
    }

    fn starting_with(
        &self,
        tenant: &TenantName,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<ConversationId>, Error> {
        let Some((low, high)) = id_range(prefix) else { return Ok(Vec::new()) };
        self.reading(|db| {
            let found = db
                .prepare_cached(
                    "SELECT id FROM conversation_rows WHERE tenant = ? AND id BETWEEN ? AND ? AND deleted IS NULL ORDER BY id LIMIT ?",
                )?
                .query_map(params![tenant.as_str(), Bytes(low), Bytes(high), signed(limit as u64)], |row| {
                    Ok(ConversationId::from_bytes(row.get::<_, Bytes<16>>(0)?.0))
                })?
                .collect::<Result<_, _>>()?;
            Ok(found)
        })
    }

    fn expired(&self, now: Timestamp, limit: usize) -> Result<Vec<Key>, Error> {
        self.settled_first()?;
        self.reading(|db| {
            let found = db
                .prepare_cached(
                    "SELECT tenant, id FROM conversation_rows WHERE expires IS NOT NULL AND expires <= ? AND deleted IS NULL
                     ORDER BY expires LIMIT ?",
                )?
                .query_map(params![now.0, signed(limit as u64)], |row| Ok(key(row).ok()))?
                .collect::<Result<Vec<_>, _>>()?;
            Ok(found.into_iter().flatten().collect())
        })
    }

    fn tombstones(&self, tenant: &TenantName) -> Result<Vec<Tombstone>, Error> {
        self.reading(|db| {
            let found = db
                .prepare_cached(
                    "SELECT id, head_seq, head_hash, deleted, deleted_reason FROM conversation_rows
                     WHERE tenant = ? AND deleted IS NOT NULL ORDER BY deleted DESC",
                )?
                .query_map([tenant.as_str()], |row| {
                    Ok(Tombstone {
                        id: ConversationId::from_bytes(row.get::<_, Bytes<16>>("id")?.0),
                        head: Head {
                            seq: rows::unsigned(row, "head_seq")?,
                            hash: Hash(row.get::<_, Bytes<32>>("head_hash")?.0),
                        },
                        deleted: Timestamp(row.get("deleted")?),
                        reason: row.get("deleted_reason")?,
                    })
                })?
                .collect::<Result<_, _>>()?;
            Ok(found)
        })
    }

    fn tenants(&self) -> Result<Vec<TenantName>, Error> {
        self.reading(|db| {
            // From one to the next by the index: one step for each tenant, not for each conversation.
            let names = db
                .prepare_cached(
                    "WITH RECURSIVE t (name) AS (SELECT min(tenant) FROM conversation_rows UNION ALL
                        SELECT (SELECT min(tenant) FROM conversation_rows WHERE tenant > t.name) FROM t WHERE t.name IS NOT NULL)
                     SELECT name FROM t WHERE typeof(name) = 'text'",
                )?
                .query_map([], |row| row.get::<_, String>(0))?
                .collect::<Result<Vec<_>, _>>()?;
            // The tenant of a buried tombstone has a slash and a suffix.
            let mut tenants: Vec<TenantName> =
                names.iter().filter_map(|name| TenantName::new(name.split('/').next()?).ok()).collect();
            tenants.sort();
            tenants.dedup();
            Ok(tenants)
        })
    }

    fn usage(&self, tenant: &TenantName) -> Result<TenantUsage, Error> {
        self.settled_first()?;
        self.reading(|db| {
            let one = |sql: &str| -> rusqlite::Result<(u64, u64)> {
                db.prepare_cached(sql)?.query_row([tenant.as_str()], |row| {
                    Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get::<_, i64>(1)?.unsigned_abs()))
                })
            };
            // `octet_length` of a column does not read the text.
            let (_, bytes) = one("SELECT count(*), ifnull(sum(octet_length(e.body)), 0) FROM conversation_rows c
                 JOIN places p ON p.conversation = c.no JOIN events e ON e.no = p.event
                 WHERE c.tenant = ? AND c.deleted IS NULL AND e.salt <> zeroblob(16)")?;
            let (conversations, turns) = one("SELECT count(*), ifnull(sum((SELECT count(*) FROM turn_rows t
                 WHERE t.conversation = c.no AND t.seq > ifnull(c.parent_seq, 0))), 0) FROM conversation_rows c
                 WHERE c.tenant = ? AND c.deleted IS NULL")?;
            let (assets, asset_bytes) = one("SELECT count(*), ifnull(sum(iif(json_valid(e.body), e.body ->> 'bytes', 0)), 0)
                 FROM conversation_rows c JOIN assets a ON a.conversation = c.no
                 JOIN places p ON p.conversation = c.no AND p.seq = a.seq JOIN events e ON e.no = p.event
                 WHERE c.tenant = ? AND c.deleted IS NULL AND a.sha256 IS NOT NULL AND e.salt <> zeroblob(16)")?;
            Ok(TenantUsage { conversations, turns, bytes, assets, asset_bytes })
        })
    }
}

impl TurnIndex for Sqlite {
    fn stored_turns(&self, key: &Key, query: &TurnQuery) -> Result<Vec<StoredTurn>, Error> {
        self.reading_in(key, |db, _, _, lineage| Ok(read::turns(db, &lineage, query)?))
    }

    fn stored_turn(&self, tenant: &TenantName, id: TurnId) -> Result<StoredTurn, Error> {
        let waits = |recent: &Recent| {
            let mut own = recent.conversations.iter().filter(|(key, _)| key.tenant == *tenant);
            own.find(|(_, entry)| entry.events.iter().any(|event| event.id.0 == id.0))
                .map(|(key, _)| key.clone())
        };
        let recent = match self.remembers() {
            true => waits(&self.recent.read()),
            false => self.reading(|db| Ok(waits(&Recent::load(db)?)))?,
        };
        if let Some(key) = recent {
            return self.stored_turn_in(&key, id);
        }
        self.reading(|db| {
            // The conversation that it was written in. A fork that changed it has a row too, but from before
            // its fork point.
            let said: Option<(i64, Bytes<16>)> = db
                .prepare_cached(
                    "SELECT c.no, c.id FROM turn_rows t JOIN conversation_rows c ON c.no = t.conversation
                     WHERE t.id = ? AND c.tenant = ? AND c.deleted IS NULL AND t.seq > ifnull(c.parent_seq, 0)",
                )?
                .query_row(params![Bytes(id.to_bytes()), tenant.as_str()], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })
                .optional()?;
            let (no, conversation) = said.ok_or_else(|| absent_turn(id))?;
            let lineage = read::lineage(db, no, ConversationId::from_bytes(conversation.0))?;
            let row = read::turn_row(db, &lineage, id)?.ok_or_else(|| absent_turn(id))?;
            Ok(read::stored(db, &lineage, row, &mut None)?)
        })
    }

    fn stored_turn_in(&self, key: &Key, id: TurnId) -> Result<StoredTurn, Error> {
        self.reading_in(key, |db, _, _, lineage| {
            let row = read::turn_row(db, &lineage, id)?.ok_or_else(|| absent_turn(id))?;
            Ok(read::stored(db, &lineage, row, &mut None)?)
        })
    }

    fn fallen_after(&self, key: &Key, seq: u64) -> Result<u64, Error> {
        self.reading_in(key, |db, _, _, lineage| Ok(read::fallen_after(db, &lineage, seq)?))
    }

    fn open_turns(&self) -> Result<Vec<(Key, TurnId)>, Error> {
        let list = || {
            self.reading(|db| {
                let found = db
                    .prepare_cached(
                        "SELECT c.tenant, c.id, t.id FROM turn_rows t JOIN conversation_rows c ON c.no = t.conversation
                         WHERE t.status = 'pending' AND c.deleted IS NULL",
                    )?
                    .query_map([], |row| {
                        let turn = row.get::<_, Bytes<16>>(2).map_err(|e| rows::malformed("the row of a turn", &e))?;
                        Ok(key(row).ok().map(|key| (key, TurnId::from_bytes(turn.0))))
                    })?
                    .collect::<Result<Vec<_>, _>>()?;
                // A conversation with an invalid tenant belongs to nobody; the others are listed.
                Ok(found.into_iter().flatten().collect())
            })
        };
        self.mending_all(list)
    }
}

impl AssetIndex for Sqlite {
    fn stored_assets(&self, key: &Key) -> Result<Vec<Event>, Error> {
        self.reading_in(key, |db, _, _, lineage| {
            let mut found = Vec::new();
            for level in lineage.levels.iter().rev() {
                let places: Vec<i64> = db
                    .prepare_cached(
                        "SELECT seq FROM assets WHERE conversation = ? AND seq <= ? ORDER BY seq",
                    )?
                    .query_map(params![level.no, signed(level.cap)], |row| row.get(0))?
                    .collect::<Result<_, _>>()?;
                for seq in places {
                    found.extend(read::event_at(db, &lineage, seq as u64)?);
                }
            }
            Ok(found)
        })
    }

    fn stored_asset(&self, key: &Key, id: &str) -> Result<Option<Event>, Error> {
        self.reading_in(key, |db, _, _, lineage| {
            for level in &lineage.levels {
                let seq: Option<i64> = db
                    .prepare_cached("SELECT seq FROM assets WHERE conversation = ? AND id = ? AND seq <= ?")?
                    .query_row(params![level.no, id, signed(level.cap)], |row| row.get(0))
                    .optional()?;
                if let Some(seq) = seq {
                    return Ok(read::event_at(db, &lineage, seq as u64)?);
                }
            }
            Ok(None)
        })
    }

    fn stored_assets_with_id(
        &self,
        tenant: &TenantName,
        id: &str,
        limit: usize,
    ) -> Result<Vec<(ConversationId, Event)>, Error> {
        self.reading(|db| {
            // The row with the smallest id of each group: SQLite returns the other columns of that same row.
            let places: Vec<(i64, Bytes<16>, i64)> = db
                .prepare_cached(
                    "SELECT c.no, min(c.id), a.seq FROM assets a JOIN conversation_rows c ON c.no = a.conversation
                     WHERE a.id = ? AND c.tenant = ? AND c.deleted IS NULL GROUP BY a.sha256 ORDER BY 2 LIMIT ?",
                )?
                .query_map(params![id, tenant.as_str(), signed(limit as u64)], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                })?
                .collect::<Result<_, _>>()?;
            let mut found = Vec::new();
            for (no, conversation, seq) in places {
                let conversation = ConversationId::from_bytes(conversation.0);
                let lineage = read::lineage(db, no, conversation)?;
                let event = read::event_at(db, &lineage, seq as u64)?;
                found.extend(event.map(|event| (conversation, event)));
            }
            Ok(found)
        })
    }

    fn asset_in_use(&self, tenant: &TenantName, sha256: Hash) -> Result<bool, Error> {
        self.reading(|db| Ok(read::asset_count(db, tenant, sha256)? > 0))
    }
}

impl Provenance for Sqlite {
    fn fact(&self, tenant: &TenantName, id: FactId) -> Result<Option<ConversationId>, Error> {
        self.reading(|db| {
            let found: Option<Bytes<16>> = db
                .prepare_cached(
                    "SELECT c.id FROM fact_rows f JOIN conversation_rows c ON c.no = f.conversation
                     WHERE f.id = ? AND f.corrects IS NOT f.id AND c.tenant = ? AND c.deleted IS NULL ORDER BY c.no LIMIT 1",
                )?
                .query_row(params![Bytes(id.to_bytes()), tenant.as_str()], |row| row.get(0))
                .optional()?;
            Ok(found.map(|id| ConversationId::from_bytes(id.0)))
        })
    }

    fn learned_from(&self, tenant: &TenantName, turn: TurnId) -> Result<Vec<Learned>, Error> {
        self.reading(|db| Ok(learned(turn, |of| read::statements(db, tenant, of))?))
    }

    fn echoes(&self, key: &Key, turn: TurnId) -> Result<Vec<Event>, Error> {
        self.reading_in(key, |db, no, _, lineage| {
            let row = read::turn_row(db, &lineage, turn)?.ok_or_else(|| absent_turn(turn))?;
            let message = read::stored(db, &lineage, row.clone(), &mut None)?.message();
            let lookup = InDatabase::new(db, key, Some(no), None);
            let mut found = lookup.answer(copies(turn, &lookup))?;
            if let Some(message) = message {
                found.extend(erase::echoes(db, &lineage, &row, &Words::of(&message))?);
            }
            Ok(found)
        })
    }

    fn written_by(&self, tenant: &TenantName, actor: &str, after: u64) -> Result<Option<WrittenPage>, Error> {
        self.reading(|db| Ok(read::written_by(db, tenant, actor, after)?))
    }

    fn erasures(&self, _: &TenantName) -> Result<u64, Error> {
        Ok(self.erasures.load(Ordering::SeqCst))
    }
}

impl FoldCache for Sqlite {
    fn fold(&self, key: &Key, at_or_before: u64) -> Result<Option<(u64, Raw)>, Error> {
        self.reading_in(key, |db, _, _, lineage| {
            for level in &lineage.levels {
                let fold: Option<(u64, String)> = db
                    .prepare_cached(
                        "SELECT seq, fold FROM folds WHERE conversation = ? AND seq <= ? ORDER BY seq DESC LIMIT 1",
                    )?
                    .query_row(params![level.no, signed(at_or_before.min(level.cap))], |row| {
                        Ok(rows::unsigned(row, 0).and_then(|seq| Ok((seq, row.get(1)?))).ok())
                    })
                    .optional()?
                    .flatten();
                // An unreadable fold is ignored: it is rebuilt from the log.
                if let Some(fold) = fold.and_then(|(seq, fold)| Some((seq, Raw::new(fold).ok()?))) {
                    return Ok(Some(fold));
                }
            }
            Ok(None)
        })
    }

    fn keep_fold(&self, key: &Key, seq: u64, fold: &Raw) -> Result<(), Error> {
        // Turns up to it are counted by their rows.
        self.settle()?;
        self.writing(|db| {
            let Some(no) = read::number(db, key)? else { return Ok(()) };
            let turns = read::own_turns(db, no, seq)?;
            db.prepare_cached("INSERT OR REPLACE INTO folds VALUES (?, ?, ?, ?)")?.execute(params![
                no,
                signed(seq),
                fold.get(),
                signed(turns)
            ])?;
            Ok(())
        })
    }
}

impl Maintenance for Sqlite {
    fn check(&self) -> Result<Vec<StoreProblem>, Error> {
        let damaged = |text: String| StoreProblem { key: None, kind: ProblemKind::Damaged, text };
        let mut problems: Vec<StoreProblem> = self.reading(|db| {
            let mut wrong: Vec<String> = db
                .prepare("PRAGMA integrity_check(20)")?
                .query_map([], |row| row.get::<_, String>(0))?
                .collect::<Result<_, _>>()?;
            wrong.retain(|line| line != "ok");
            let dangling =
                db.prepare("PRAGMA foreign_key_check")?.query_map([], |row| row.get::<_, String>(0))?.count();
            if dangling > 0 {
                wrong.push(format!("{dangling} rows refer to missing rows"));
            }
            Ok(wrong.into_iter().map(damaged).collect())
        })?;
        let mut connection = door::open_for_reading(&self.path)?;
        let compared = (|| {
            // The rows of the store need not fit into memory.
            connection.execute_batch("PRAGMA temp_store = FILE")?;
            derived::check(&*connection.transaction()?)
        })();
        match compared.map_err(|failure| failed(&self.path, failure)) {
            Ok(found) => problems.extend(found),
            Err(error) => problems.push(damaged(error.text().to_string())),
        }
        Ok(problems)
    }

    fn rebuild(&self) -> Result<(), Error> {
        let mut guard = self.writer()?;
        self.settle_as(&mut guard)?;
        guard.known.forget();
        self.writing_as(&mut guard, derived::rebuild)?;
        drop(guard);
        self.forget()
    }

    fn compact(&self) -> Result<(), Error> {
        let mut guard = self.writer()?;
        // This transaction also detects whether the store was overtaken: a VACUUM cannot be part of one. A
        // process that opens it in between loses nothing, because a VACUUM changes no row.
        self.settle_as(&mut guard)?;
        guard.connection.execute_batch("VACUUM").map_err(|e| explain(&self.path, &e))?;
        drop(guard);
        self.scrub_log()?;
        self.scrub(None, None).map(drop)
    }
}

fn key(row: &rusqlite::Row<'_>) -> rusqlite::Result<Key> {
    let tenant: String = row.get(0)?;
    Ok(Key {
        tenant: TenantName::new(tenant).map_err(|e| rusqlite::types::FromSqlError::Other(Box::new(e)))?,
        id: ConversationId::from_bytes(row.get::<_, Bytes<16>>(1)?.0),
    })
}
