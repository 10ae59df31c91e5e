//! The signs of vectors in memory, with what filters ask for: about 80 bytes for each entry of the usual length. Read
//! from the file when the first question comes, and caught up before each one.

use everturn_core::vectors::{Codes, WEIGHED};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rusqlite::{Connection, OptionalExtension};
use std::collections::{HashMap, HashSet};
use std::panic::resume_unwind;
use std::sync::{Arc, LazyLock};
use std::thread;

/// Rows that a thread looks through for a question: with fewer, starting it takes longer than it helps.
const ROWS_EACH: usize = 200_000;
/// Threads for one question: never all of a large machine, since others ask too.
static THREADS: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, |cores| cores.get().min(4)));

/// Signs by the number of their model.
#[derive(Default)]
pub struct Signs(Mutex<HashMap<i64, Arc<RwLock<Loaded>>>>);

impl Signs {
    /// Forgets everything.
    pub fn clear(&self) {
        self.0.lock().clear();
    }

    /// The signs of a model as the file has them.
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

/// Signs that others may read as well.
pub struct Shared(Arc<RwLock<Loaded>>);

impl Shared {
    /// Nothing changes while this is held.
    pub fn read(&self) -> RwLockReadGuard<'_, Loaded> {
        self.0.read()
    }
}

/// What has been read: up to which code, and up to which removal.
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

/// Which rows a filter leaves, as far as it can be told from memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rows {
    /// In which conversations; `None` for any.
    pub conversations: Option<Vec<i64>>,
    /// Whose words; empty for anybody's.
    pub actors: Vec<i64>,
    /// In which roles; empty for any.
    pub roles: Vec<String>,
    /// Of which kinds; empty for any.
    pub kinds: Vec<i64>,
    /// Not before this time.
    pub after: Option<i64>,
    /// Before this time.
    pub before: Option<i64>,
}

struct Row {
    no: i64,
    at: i64,
    conversation: u32,
    /// 0 for nobody, which is no actor's number.
    actor: u32,
    /// Place in `roles`.
    role: u8,
    kind: u8,
}

/// The signs of one model.
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
            // Some removals are not remembered any more, or this is another file.
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
        let mut statement = db.prepare_cached(
            "SELECT no, at, conversation, coalesce(actor, 0), role, kind, code FROM codes
             WHERE no > ? AND model = ? AND code IS NOT NULL ORDER BY no",
        )?;
        let mut found = statement.query([self.mark.code, model])?;
        while let Some(row) = found.next()? {
            if self.codes.push(row.get_ref(6)?.as_blob()?) {
                let role = self.role(row.get_ref(4)?.as_str_or_null()?);
                self.rows.push(Row {
                    no: row.get(0)?,
                    at: row.get(1)?,
                    conversation: row.get(2)?,
                    actor: row.get(3)?,
                    role,
                    kind: row.get(5)?,
                });
            }
        }
        self.mark = now;
        Ok(())
    }

    fn role(&mut self, role: Option<&str>) -> u8 {
        let known = self.roles.iter().position(|known| known.as_deref() == role);
        let at = known.unwrap_or_else(|| {
            self.roles.push(role.map(String::from));
            self.roles.len() - 1
        });
        u8::try_from(at).unwrap_or(u8::MAX)
    }

    /// The numbers of the codes that a filter leaves, if they are no more than `most`.
    pub fn few(&self, filter: &Rows, most: usize) -> Option<Vec<i64>> {
        let takes = self.takes(filter);
        let rows = (0..self.rows.len()).filter(|row| takes(*row));
        let few: Vec<i64> = rows.take(most + 1).map(|row| self.rows[row].no).collect();
        (few.len() <= most).then_some(few)
    }

    /// The numbers of the nearest codes that a filter leaves.
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
    /// Whether a row is among them. `roles` says of each role that occurs whether it is.
    fn takes(&self, row: &Row, roles: &[bool]) -> bool {
        self.conversations.as_ref().is_none_or(|some| some.contains(&row.conversation.into()))
            && (self.actors.is_empty() || self.actors.contains(&row.actor.into()))
            && (self.roles.is_empty() || roles.get(usize::from(row.role)).copied().unwrap_or(false))
            && (self.kinds.is_empty() || self.kinds.contains(&i64::from(row.kind)))
            && self.after.is_none_or(|after| row.at >= after)
            && self.before.is_none_or(|before| row.at < before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everturn_core::vectors::code;

    /// However many threads look, what is found is what one would find, wherever the parts end.
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
