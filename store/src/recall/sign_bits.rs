//! The sign bits of embeddings in memory, with what filters need: about 80 bytes for each entry of the usual
//! length. Read from the file at the first query, and caught up before each one.

use everturn_views::vectors::{Codes, WEIGHED};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::panic::resume_unwind;
use std::sync::{Arc, LazyLock};
use std::thread;

/// Number of codes in a block.
const BLOCK_CODES: i64 = 4096;
/// Number of rows per thread of a query: with fewer, starting a thread takes longer than it helps.
const ROWS_EACH: usize = 200_000;
/// Number of threads for one query: never all of a large machine, since there are other queries.
static THREADS: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, |cores| cores.get().min(4)));

/// Sign bits by the number of their model.
#[derive(Default)]
pub struct SignBits(Mutex<HashMap<i64, Arc<RwLock<Loaded>>>>);

impl SignBits {
    pub fn clear(&self) {
        self.0.lock().clear();
    }

    /// The sign bits of a model as in the file.
    pub fn of(&self, db: &Connection, model: i64, dimensions: usize) -> rusqlite::Result<Shared> {
        let loaded = {
            let mut all = self.0.lock();
            all.entry(model).or_insert_with(|| Arc::new(RwLock::new(Loaded::new(dimensions)))).clone()
        };
        let now = Mark::read(db)?;
        let known = loaded.read().mark;
        if known != now {
            loaded.write().catch_up(db, model, now)?;
        }
        Ok(Shared(loaded))
    }
}

/// Sign bits shared with other readers.
pub struct Shared(Arc<RwLock<Loaded>>);

impl Shared {
    /// Locks them against changes.
    pub fn read(&self) -> RwLockReadGuard<'_, Loaded> {
        self.0.read()
    }
}

/// Position up to which codes and removals have been read.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Mark {
    code: i64,
    gone: i64,
}

impl Mark {
    fn read(db: &Connection) -> rusqlite::Result<Mark> {
        let mut last = db.prepare_cached("SELECT seq FROM sqlite_sequence WHERE name = ?")?;
        let mut last = |table: &str| -> rusqlite::Result<i64> {
            Ok(last.query_row([table], |row| row.get(0)).optional()?.unwrap_or(0))
        };
        Ok(Mark { code: last("codes")?, gone: last("codes_gone")? })
    }
}

/// A filter of rows, as far as it can be evaluated in memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rows {
    /// Conversations, in ascending order; `None` for any.
    pub conversations: Option<Vec<i64>>,
    /// Actors; empty for any.
    pub actors: Vec<i64>,
    /// Roles; empty for any.
    pub roles: Vec<String>,
    /// Kinds; empty for any.
    pub kinds: Vec<i64>,
    /// Earliest time.
    pub after: Option<i64>,
    /// Time before which it must be.
    pub before: Option<i64>,
}

struct Row {
    no: i64,
    at: i64,
    conversation: u32,
    /// 0 for none, which is not an actor's number.
    actor: u32,
    /// Index in `roles`.
    role: u8,
    kind: u8,
}

/// Codes of a model in a range of numbers, with a limit. Searched by number: the plus sign keeps SQLite from
/// visiting all codes of the model instead.
const CODES: &str = "SELECT no, at, conversation, coalesce(actor, 0), kind, role, code FROM codes
    WHERE +model = ? AND no BETWEEN ? AND ? AND code IS NOT NULL ORDER BY no LIMIT ?";

/// A row of `codes`, in the file by itself or in a block.
struct Code<'a> {
    no: i64,
    at: i64,
    conversation: u32,
    actor: u32,
    kind: u8,
    role: Option<&'a str>,
    signs: &'a [u8],
}

impl<'a> Code<'a> {
    fn of(row: &'a rusqlite::Row<'_>) -> rusqlite::Result<Code<'a>> {
        Ok(Code {
            no: row.get(0)?,
            at: row.get(1)?,
            conversation: row.get(2)?,
            actor: row.get(3)?,
            kind: row.get(4)?,
            role: row.get_ref(5)?.as_str_or_null()?,
            signs: row.get_ref(6)?.as_blob()?,
        })
    }

    /// Appends it to a block. Numbers are little-endian; a role and sign bits follow their lengths.
    fn write(&self, block: &mut Vec<u8>) {
        let Code { no, at, conversation, actor, kind, role, signs } = self;
        block.extend_from_slice(&no.to_le_bytes());
        block.extend_from_slice(&at.to_le_bytes());
        block.extend_from_slice(&conversation.to_le_bytes());
        block.extend_from_slice(&actor.to_le_bytes());
        let role = role.unwrap_or_default();
        block.extend_from_slice(&[*kind, role.len() as u8]);
        block.extend_from_slice(&(signs.len() as u16).to_le_bytes());
        block.extend_from_slice(role.as_bytes());
        block.extend_from_slice(signs);
    }

    /// Takes the first one off a block; `None` if the block is damaged.
    fn split_off(block: &mut &'a [u8]) -> Option<Code<'a>> {
        fn number<const BYTES: usize>(block: &mut &[u8]) -> Option<[u8; BYTES]> {
            let (number, rest) = block.split_first_chunk()?;
            *block = rest;
            Some(*number)
        }
        let (no, at) = (i64::from_le_bytes(number(block)?), i64::from_le_bytes(number(block)?));
        let (conversation, actor) = (u32::from_le_bytes(number(block)?), u32::from_le_bytes(number(block)?));
        let [kind, role] = number(block)?;
        let signs = u16::from_le_bytes(number(block)?);
        let role = block.split_off(..usize::from(role))?;
        let role = Some(std::str::from_utf8(role).ok()?).filter(|role| !role.is_empty());
        Some(Code { no, at, conversation, actor, kind, role, signs: block.split_off(..usize::from(signs))? })
    }
}

/// Copies codes into blocks once there are enough for one, including those of dropped blocks.
pub fn gather(db: &Connection) -> rusqlite::Result<()> {
    let newest = Mark::read(db)?.code;
    let models = db
        .prepare_cached("SELECT no, (SELECT max(last) FROM blocks WHERE model = m.no) FROM models m")?
        .query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?.unwrap_or(0))))?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    for (model, last) in models.into_iter().filter(|(_, last)| newest - last >= BLOCK_CODES) {
        let blocks = db
            .prepare_cached("SELECT first, last FROM blocks WHERE model = ? ORDER BY first")?
            .query_map([model], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<Vec<(i64, i64)>>>()?;
        let mut from = 1;
        for (first, last) in blocks {
            while from < first {
                from = make_block(db, model, from, first - 1)? + 1;
            }
            from = last + 1;
        }
        debug_assert_eq!(from, last + 1);
        while newest - from >= BLOCK_CODES {
            from = make_block(db, model, from, newest)? + 1;
        }
    }
    Ok(())
}

/// Makes a block of the codes in a range, or of the first of them. Returns the last number in it.
fn make_block(db: &Connection, model: i64, first: i64, most: i64) -> rusqlite::Result<i64> {
    let mut statement = db.prepare_cached(CODES)?;
    let mut found = statement.query(params![model, first, most, BLOCK_CODES])?;
    let (mut rows, mut codes, mut last) = (Vec::new(), 0, most);
    while let Some(row) = found.next()? {
        let code = Code::of(row)?;
        code.write(&mut rows);
        codes += 1;
        if codes == BLOCK_CODES {
            last = code.no;
        }
    }
    db.prepare_cached("INSERT INTO blocks (model, first, last, rows) VALUES (?, ?, ?, ?)")?
        .execute(params![model, first, last, rows])?;
    Ok(last)
}

/// Drops the block that holds a code: its codes are read one by one until they are gathered again.
pub fn drop_block(db: &Connection, code: i64) -> rusqlite::Result<()> {
    db.prepare_cached(
        "DELETE FROM blocks WHERE last >= ?1 AND (model, first) IN
             (SELECT m.no, (SELECT max(first) FROM blocks WHERE model = m.no AND first <= ?1) FROM models m)",
    )?
    .execute([code])
    .map(drop)
}

/// The sign bits of one model.
pub struct Loaded {
    mark: Mark,
    codes: Codes,
    rows: Vec<Row>,
    /// Roles that occur. There are few.
    roles: Vec<Option<String>>,
}

impl Loaded {
    fn new(dimensions: usize) -> Loaded {
        Loaded { mark: Mark::default(), codes: Codes::new(dimensions), rows: Vec::new(), roles: Vec::new() }
    }

    fn catch_up(&mut self, db: &Connection, model: i64, now: Mark) -> rusqlite::Result<()> {
        let first: Option<i64> =
            db.prepare_cached("SELECT min(no) FROM codes_gone")?.query_row([], |row| row.get(0))?;
        let missed = now.gone > self.mark.gone && first.is_none_or(|first| first > self.mark.gone + 1);
        if missed || now.code < self.mark.code || now.gone < self.mark.gone {
            // Some removals are no longer recorded, or this is another file.
            *self = Loaded::new(self.codes.dimensions());
        } else if now.gone > self.mark.gone {
            let gone: HashSet<i64> = db
                .prepare_cached("SELECT code FROM codes_gone WHERE no > ?")?
                .query_map([self.mark.gone], |row| row.get(0))?
                .collect::<Result<_, _>>()?;
            let stays = |row: usize| !gone.contains(&self.rows[row].no);
            self.codes.retain(stays);
            self.rows.retain(|row| !gone.contains(&row.no));
        }
        let mut read = self.mark.code;
        let new = usize::try_from(now.code - read).unwrap_or(0);
        self.rows.reserve(new);
        self.codes.reserve(new);
        let mut blocks = db.prepare_cached(
            "SELECT first, last, rows FROM blocks WHERE model = ? AND first > ? ORDER BY first",
        )?;
        let mut blocks = blocks.query([model, read])?;
        while let Some(block) = blocks.next()? {
            let first: i64 = block.get(0)?;
            self.read_codes(db, model, read + 1..=first - 1)?;
            let mut rows = block.get_ref(2)?.as_blob()?;
            while !rows.is_empty() {
                let code = Code::split_off(&mut rows).ok_or(rusqlite::Error::InvalidQuery)?;
                self.add(&code);
            }
            read = block.get(1)?;
        }
        self.read_codes(db, model, read + 1..=i64::MAX)?;
        self.mark = now;
        Ok(())
    }

    fn read_codes(
        &mut self,
        db: &Connection,
        model: i64,
        numbers: RangeInclusive<i64>,
    ) -> rusqlite::Result<()> {
        if numbers.is_empty() {
            return Ok(());
        }
        let mut statement = db.prepare_cached(CODES)?;
        let mut found = statement.query(params![model, numbers.start(), numbers.end(), -1])?;
        while let Some(row) = found.next()? {
            self.add(&Code::of(row)?);
        }
        Ok(())
    }

    fn add(&mut self, code: &Code<'_>) {
        let Code { no, at, conversation, actor, kind, role, signs } = *code;
        if self.codes.push(signs) {
            let role = self.role(role);
            self.rows.push(Row { no, at, conversation, actor, role, kind });
        }
    }

    fn role(&mut self, role: Option<&str>) -> u8 {
        let known = self.roles.iter().position(|known| known.as_deref() == role);
        let at = known.unwrap_or_else(|| {
            self.roles.push(role.map(String::from));
            self.roles.len() - 1
        });
        u8::try_from(at).unwrap_or(u8::MAX)
    }

    /// The numbers of the codes that pass a filter, if they are no more than `most`.
    pub fn few(&self, filter: &Rows, most: usize) -> Option<Vec<i64>> {
        let takes = self.takes(filter);
        let rows = (0..self.rows.len()).filter(|row| takes(*row));
        let few: Vec<i64> = rows.take(most + 1).map(|row| self.rows[row].no).collect();
        (few.len() <= most).then_some(few)
    }

    /// The numbers of the nearest codes that pass a filter.
    pub fn nearest(&self, query: &[f32], count: usize, filter: &Rows) -> Vec<i64> {
        let takes = self.takes(filter);
        let find = |rows| self.codes.nearest(rows, query, count.saturating_mul(WEIGHED), &takes);
        let parts = (self.rows.len() / ROWS_EACH).clamp(1, *THREADS);
        let part = self.rows.len().div_ceil(parts);
        let part = |n: usize| n * part..self.rows.len().min((n + 1) * part);
        let near = thread::scope(|threads| {
            let find = &find;
            let others: Vec<_> = (1..parts).map(|n| threads.spawn(move || find(part(n)))).collect();
            let mut near = find(part(0));
            for other in others {
                near.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
            }
            near
        });
        self.codes.likeliest(query, near, count).into_iter().map(|row| self.rows[row].no).collect()
    }

    fn takes<'a>(&'a self, filter: &'a Rows) -> impl Fn(usize) -> bool + 'a {
        let roles: Vec<bool> = self
            .roles
            .iter()
            .map(|role| role.as_ref().is_some_and(|role| filter.roles.contains(role)))
            .collect();
        let anything = Rows::default() == *filter;
        move |row: usize| anything || filter.takes(&self.rows[row], &roles)
    }
}

impl Rows {
    /// Whether a row passes the filter. `roles` says for each role that occurs whether it passes.
    fn takes(&self, row: &Row, roles: &[bool]) -> bool {
        self.conversations.as_ref().is_none_or(|some| some.binary_search(&row.conversation.into()).is_ok())
            && (self.actors.is_empty() || self.actors.contains(&row.actor.into()))
            && (self.roles.is_empty() || roles.get(usize::from(row.role)).copied().unwrap_or(false))
            && (self.kinds.is_empty() || self.kinds.contains(&i64::from(row.kind)))
            && self.after.is_none_or(|after| row.at >= after)
            && self.before.is_none_or(|before| row.at < before)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on should stop here")]
mod tests {
    use super::*;
    use crate::recall::open::{Derived, open_derived};
    use crate::recall::vectors;
    use everturn_views::recall::EntryNo;
    use everturn_views::vectors::code;

    const MODEL: &str = "made up";

    /// Adds entries and their embeddings, as the indexer does.
    fn add(db: &Connection, entries: RangeInclusive<i64>) {
        let role = |no: i64| ["user", "assistant", "tool"].get(no as usize % 4);
        for no in entries.clone() {
            db.prepare_cached(
                "INSERT INTO entries (no, conversation, seq, kind, id, role, actor, at, prose, length)
                 VALUES (?1, 1 + ?1 % 7, ?1, ?1 % 2, ?1, ?2, nullif(?1 % 3, 0), -?1, 1, 1)",
            )
            .unwrap()
            .execute(params![no, role(no)])
            .unwrap();
        }
        let vectors: Vec<_> = entries
            .map(|no| match no % 100 {
                0 => (EntryNo(no), Vec::new()),
                _ => (EntryNo(no), (0..64).map(|bit| (no >> bit & 1) as f32 - 0.5).collect()),
            })
            .collect();
        vectors.chunks(1000).for_each(|some| vectors::put(db, MODEL, some).unwrap());
    }

    /// The rows read by a process at its first query, and the same without blocks.
    fn read(db: &Connection) -> [Vec<String>; 2] {
        let read = || {
            let signs = SignBits::default().of(db, 1, 64).unwrap();
            let signs = signs.read();
            let roles = &signs.roles;
            let row = |Row { no, at, conversation, actor, role, kind }: &Row| {
                format!("{no} {at} {conversation} {actor} {:?} {kind}", roles[usize::from(*role)])
            };
            let codes = signs.codes.nearest(0..signs.rows.len(), &[1.0; 64], usize::MAX, |_| true);
            let mut codes: Vec<_> = codes.into_iter().map(|(differing, row)| (row, differing)).collect();
            codes.sort_unstable();
            signs.rows.iter().map(row).zip(codes).map(|(row, code)| format!("{row} {code:?}")).collect()
        };
        let with_blocks = read();
        db.execute_batch("SAVEPOINT blocks; DELETE FROM blocks").unwrap();
        let without = read();
        db.execute_batch("ROLLBACK TO blocks; RELEASE blocks").unwrap();
        [with_blocks, without]
    }

    #[test]
    fn blocks_say_what_the_codes_say_whatever_was_removed() {
        let db = open_derived(None, Derived::Index).unwrap();
        db.execute_batch("INSERT INTO actors VALUES (1, 'ada'), (2, 'bob')").unwrap();
        db.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
        let blocks = || -> i64 {
            let count = "SELECT count(*) FROM blocks WHERE length(rows) > 0";
            db.query_row(count, [], |row| row.get(0)).unwrap()
        };
        add(&db, 1..=10_000);
        assert_eq!(blocks(), 2);
        let [with, without] = read(&db);
        assert_eq!((with.len(), &with), (9900, &without));
        // A process that has read before continues from there.
        let signs = SignBits::default();
        assert_eq!(signs.of(&db, 1, 64).unwrap().read().rows.len(), 9900);
        for gone in [1, 3999, 9999] {
            vectors::remove(&db, gone).unwrap();
            let [with, without] = read(&db);
            assert_eq!(with, without, "without {gone}");
        }
        assert_eq!(blocks(), 1, "no block keeps what was removed");
        add(&db, 10_001..=14_100);
        let [with, without] = read(&db);
        assert_eq!((with.len(), &with), (9900 - 3 + 4059, &without));
        assert_eq!(blocks(), 3, "the block that was dropped is made again");
        assert_eq!(signs.of(&db, 1, 64).unwrap().read().rows.len(), with.len());
    }

    #[test]
    fn a_damaged_block_is_an_error() {
        let db = open_derived(None, Derived::Index).unwrap();
        db.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
        add(&db, 1..=5_000);
        db.execute_batch("UPDATE blocks SET rows = substr(rows, 1, 1000)").unwrap();
        assert!(SignBits::default().of(&db, 1, 64).is_err());
    }

    /// Several threads find the same as one, wherever the parts end.
    #[test]
    fn many_rows_are_looked_through_in_parts() {
        let mut loaded = Loaded::new(64);
        let vector = |seed: usize| -> Vec<f32> {
            let mixed = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (0..64).map(|bit| if mixed >> bit & 1 == 1 { 1.0 } else { -1.0 }).collect()
        };
        for row in 0..2 * ROWS_EACH + 1 {
            assert!(loaded.codes.push(&code(&vector(row))));
            let (no, conversation) = (row as i64 + 1, 1 + (row % 2) as u32);
            loaded.rows.push(Row { no, at: 0, conversation, actor: 0, role: 0, kind: 0 });
        }
        for asked in [0, ROWS_EACH, 2 * ROWS_EACH] {
            let (filter, query) = (Rows { conversations: Some(vec![1]), ..Rows::default() }, vector(asked));
            let rows = 0..loaded.rows.len();
            let near = loaded.codes.nearest(rows, &query, 20 * WEIGHED, |row| row % 2 == 0);
            let alone: Vec<i64> =
                loaded.codes.likeliest(&query, near, 20).into_iter().map(|row| row as i64 + 1).collect();
            let found = loaded.nearest(&query, 20, &filter);
            assert_eq!(found, alone);
            assert_eq!(found[0], asked as i64 + 1, "itself");
        }
    }
}
