//! Import of the files that agents and chat programs leave on disk.
//!
//! Entries are imported in batches, each one transaction with a marker at its end that lists them. The next
//! import of the same session, from this file or another, after a crash or a year, reads the markers and adds the rest.

mod batch;
mod markers;
mod parents;

use super::{Imported, in_short};
use crate::conversation::ConversationHandle;
use crate::ingest::NewTurn;
use crate::tenant::Tenant;
use batch::Batch;
use everturn_core::Error;
use everturn_core::chain::{Hash, Head};
use everturn_core::conversation::{CheckpointRef, Conversation, Lifecycle, Settings, SystemPrompt};
use everturn_core::error::code;
use everturn_core::event::{Draft, kind};
use everturn_core::id::{ConversationId, Key, TurnId};
use everturn_core::json::Raw;
use everturn_core::limits::{BODY_BYTES_MAX, METADATA_BYTES_MAX};
use everturn_core::message;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Successor, Turn};
use everturn_core::write::{Summarized, SupersededBody};
use everturn_formats::agents::{AgentEntry, EntryContent, ParsedTurn, Reader, Thread};
use everturn_store::TurnQuery;
use everturn_views::compaction::{self, Checkpoint, CompactionBody, Covers};
use everturn_views::speech;
use everturn_views::state::Tool;
use everturn_views::tokens::TokenizerFamily;
use markers::Writing;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::BufRead;
use std::ops::ControlFlow;

/// Bytes that may wait in all batches together.
const WAITING_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Conversations of a file that are at work at the same time.
const OPEN_MAX: usize = 200;
/// Entries in which turns of an earlier import are looked for.
const AHEAD_MAX: usize = 50;
/// Problems that are told one by one.
const PROBLEMS_MAX: usize = 100;
/// Types of lines that are named where a file has no turns.
const KINDS_SHOWN: usize = 5;
/// Turns that are superseded in the same transaction as the turn that takes their place.
const SUPERSEDED_AT_ONCE: usize = 200;

impl Tenant {
    /// Takes over everything that a reader finds.
    pub(super) fn import_agent<R: BufRead>(
        &self,
        mut reader: Reader<R>,
        watched: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Imported, Error> {
        let format = reader.format().name();
        let mut import = Import {
            tenant: self,
            format,
            targets: BTreeMap::new(),
            other: None,
            met: BTreeSet::new(),
            brought: BTreeSet::new(),
            left_out: BTreeMap::new(),
            has_deleted: false,
            waiting: 0,
            turns: 0,
            late: 0,
            changed_here: 0,
            added: 0,
            kept: BTreeMap::new(),
        };
        let ahead: Vec<Result<AgentEntry, Error>> = reader.by_ref().take(AHEAD_MAX).collect();
        let running = &self.shared().imports;
        let _right = match reader.threads().first() {
            Some(thread) => Some(running.begin(self.key(thread.id)).ok_or_else(at_once)?),
            None => None,
        };
        let read = (|| {
            import.tell_apart(reader.threads(), &ahead)?;
            for entry in ahead {
                import.take(reader.threads(), entry?)?;
            }
            while let Some(entry) = reader.next() {
                import.take(reader.threads(), entry?)?;
                progress(reader.lines());
            }
            Ok(())
        })();
        // Entries read before a failure are kept.
        let flushed = import.flush_all();
        read.and(flushed).map_err(|error| match error.code() {
            // Another process does so.
            code::CONVERSATION_EXISTS => at_once(),
            _ => error,
        })?;
        let told = reader.problems();
        let more = told.len().saturating_sub(PROBLEMS_MAX);
        let mut problems: Vec<String> = told
            .iter()
            .take(PROBLEMS_MAX)
            .map(|problem| format!("line {}: {}", problem.line, problem.text))
            .collect();
        if more > 0 {
            problems.push(format!("and {more} more of the same kind"));
        }
        problems.extend(import.left_out.values().cloned());
        if import.changed_here > 0 {
            let count = import.changed_here;
            problems.push(format!("{count} turns of the file were erased or edited here; that stays"));
        }
        let hollow = import.leave_hollow();
        let met = import.met.iter().filter(|at| !hollow.contains(at));
        let met: Vec<ConversationId> = met.map(|at| import.id(reader.threads(), *at)).collect();
        if met.is_empty() && !hollow.is_empty() && import.left_out.is_empty() {
            let kinds: Vec<&str> = import.kept.keys().take(KINDS_SHOWN).map(String::as_str).collect();
            let text = format!(
                "a file of {format} without turns; nothing was imported ({}: {})",
                match (reader.lines(), reader.unit()) {
                    (1, unit) => format!("1 {unit}"),
                    (count, unit) => format!("{count} {unit}s"),
                },
                kinds.join(", ")
            );
            return Err(Error::invalid("import.no_turns", text));
        }
        let Some((first, linked)) = met.split_first() else {
            if !import.left_out.is_empty() {
                let code = if import.has_deleted { "import.deleted" } else { "import.archived" };
                return Err(Error::conflict(code, in_short(&problems)));
            }
            let text = format!("nothing in the file could be read; {}", in_short(&problems));
            return Err(Error::invalid("import.nothing", text));
        };
        for id in &met {
            self.conversation(*id).abandon_unanswered(watched)?;
        }
        self.link_parents(&met, &import.brought)?;
        let conversation = self.shared().journal.index.conversation(&self.key(*first))?;
        Ok(Imported {
            format: format.into(),
            conversation,
            linked: linked.to_vec(),
            events: reader.lines(),
            turns: import.turns,
            late: import.late,
            added: import.added,
            kept: import.kept,
            problems,
        })
    }
}

fn at_once() -> Error {
    let text =
        "another request is importing the same session; import it again later: existing turns are skipped";
    Error::conflict("import.at_once", text)
}

impl ConversationHandle {
    /// Gives up the tool calls that will not get a result: a user's prompt follows them or, unless the file is watched,
    /// the file ends without one. Those of earlier imports are among them.
    fn abandon_unanswered(&self, watched: bool) -> Result<(), Error> {
        let head = self.shared().journal.index.conversation(self.key())?.head.seq;
        let fold = self.shared().fold(self.key(), head)?;
        let Some(first) = fold.tools.iter().map(|tool| tool.seq).min() else { return Ok(()) };
        let mut prompted = 0;
        let query = TurnQuery { after: Some(first), ..TurnQuery::default() };
        self.each_turn(query, |turn| {
            if speech::of_turn(&turn).role == Role::User {
                prompted = turn.seq;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let (over, last): (Vec<Tool>, Vec<Tool>) =
            fold.tools.iter().cloned().partition(|tool| tool.seq < prompted);
        let last = if watched { Vec::new() } else { last };
        for (tools, reason) in
            [(over, "the session went on without a result"), (last, "the session ends without a result")]
        {
            if !tools.is_empty() {
                match self.abandon(&tools, None, Some(reason)) {
                    // A conversation that was archived meanwhile is left as it is.
                    Ok(_) | Err(Error::Conflict(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

impl ConversationHandle {
    /// Tokens of a checkpoint and of the turns from a `seq` on, where the file does not say.
    fn tokens_since(&self, checkpoint: Option<CheckpointRef>, from_seq: u64) -> Result<u64, Error> {
        let family = TokenizerFamily::default();
        let summary =
            self.checkpoint(checkpoint)?.map(|checkpoint| family.count(&compaction::render(&checkpoint)));
        let mut tokens = summary.unwrap_or_default();
        self.each_turn(TurnQuery { after: Some(from_seq - 1), ..TurnQuery::default() }, |turn| {
            tokens += turn.value().map_or(0, |message| family.message(&message));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(tokens)
    }
}

/// An import on its way.
struct Import<'a> {
    tenant: &'a Tenant,
    format: &'static str,
    /// One for each thread that is at work.
    targets: BTreeMap<usize, Target>,
    /// The conversation of the first thread, if it is not the one that was imported from the file before.
    other: Option<ConversationId>,
    /// The threads that have entries.
    met: BTreeSet<usize>,
    /// Conversations that were not in the store.
    brought: BTreeSet<ConversationId>,
    /// The threads whose conversation was deleted or does not accept turns, and what is said of that. It stays as it is.
    left_out: BTreeMap<usize, String>,
    has_deleted: bool,
    /// Bytes in all batches.
    waiting: usize,
    turns: u64,
    late: u64,
    /// Turns that were erased or edited here, and have a newer version in the file.
    changed_here: u64,
    added: u64,
    kept: BTreeMap<String, u64>,
}

/// Whether an entry of the first thread is a turn that somebody said: many chats begin with the same instructions.
fn is_speech(entry: &AgentEntry) -> bool {
    let EntryContent::Turn(said) = &entry.step else { return false };
    let message: Value = serde_json::from_str(&said.message).unwrap_or_default();
    entry.thread == 0 && message::role(&message).is_ok_and(|role| role != Role::System)
}

/// The conversation that a thread becomes.
struct Target {
    key: Key,
    thread: Thread,
    /// Conversation that turn ids are derived from: a branch inherits turns of the conversation that it left.
    root: ConversationId,
    /// The conversation in the store; `None` if nothing was written yet.
    conversation: Option<Conversation>,
    /// The time of its latest turn before this import.
    last_said: Option<Timestamp>,
    /// Newest version of every imported entry, by name.
    known: HashMap<u64, u64>,
    /// First version of entries with several.
    first: HashMap<u64, u64>,
    /// Place of the last marker.
    marker: Option<u64>,
    /// Mark of the last title that an import gave.
    titled: Option<String>,
    batch: Batch,
    /// Full batches before it, as long as it has had no turn.
    held: Vec<Batch>,
    has_turns: bool,
    /// The previous batch, while the writer thread writes it.
    writing: Option<Writing>,
}

impl Target {
    /// Whether it has had no turn so far, and is no conversation yet.
    fn is_hollow(&self) -> bool {
        !self.has_turns && self.conversation.is_none() && self.writing.is_none()
    }

    /// Whether an entry is a turn behind the beginning of a titled conversation: its words are the first of a file, and not
    /// of the session. Unless they took the place of the first.
    fn goes_on(&self, entry: &AgentEntry) -> bool {
        let began = self.conversation.as_ref().filter(|it| it.title.is_some()).and_then(|it| it.began);
        matches!(&entry.step, EntryContent::Turn(said) if said.supersedes.is_empty())
            && entry.at.zip(began).is_some_and(|(at, began)| at >= began)
    }
}

impl Import<'_> {
    fn id(&self, threads: &[Thread], at: usize) -> ConversationId {
        self.other.filter(|_| at == 0).unwrap_or(threads[at].id)
    }

    /// The conversation that a thread is a branch of, in the end.
    fn root(&self, threads: &[Thread], at: usize) -> ConversationId {
        match threads[at].branch {
            Some(branch) => self.root(threads, branch.of),
            None => self.id(threads, at),
        }
    }

    /// The path of a file stands for a session that has no id. Where none of the file's first turns was imported from there
    /// before, it is another conversation, which those turns identify.
    fn tell_apart(&mut self, threads: &[Thread], ahead: &[Result<AgentEntry, Error>]) -> Result<(), Error> {
        let is_named = threads.first().is_none_or(|thread| thread.origin.session.is_some());
        let names: Vec<u64> =
            ahead.iter().flatten().filter(|entry| is_speech(entry)).map(|e| e.name).collect();
        let Some(first) = names.first().filter(|_| !is_named) else { return Ok(()) };
        self.open(threads, 0)?;
        let Some(target) = self.targets.get(&0).filter(|target| target.conversation.is_some()) else {
            return Ok(());
        };
        if !names.iter().any(|name| target.known.contains_key(name)) {
            let mut bytes = [0; 16];
            bytes.copy_from_slice(&Hash::of(format!("{}/{first:016x}", target.key.id).as_bytes()).0[..16]);
            self.other = Some(ConversationId::from_bytes(bytes));
            self.targets.remove(&0);
            self.met.remove(&0);
        }
        Ok(())
    }

    fn take(&mut self, threads: &[Thread], entry: AgentEntry) -> Result<(), Error> {
        self.open(threads, entry.thread)?;
        let at = entry.thread;
        if self.left_out.contains_key(&at) {
            return Ok(());
        }
        match &entry.step {
            EntryContent::Turn(said) => {
                self.target(at)?.has_turns = true;
                if said.bytes() > BODY_BYTES_MAX / 2 {
                    // One that does not is kept as a line.
                    let (thread, key) = (entry.thread, entry.key);
                    self.take_new(entry)?;
                    let id = self.turn_id(thread, key)?;
                    match self.stands(thread, id)? {
                        Some(_) => self.turns += 1,
                        None => *self.kept.entry("oversized".into()).or_default() += 1,
                    }
                    return Ok(());
                }
                self.turns += 1;
            }
            EntryContent::System(_) => {}
            EntryContent::Event { what, .. } | EntryContent::Compaction { what, .. } => {
                *self.kept.entry(what.clone()).or_default() += 1;
            }
        }
        self.take_new(entry)
    }

    /// Takes an entry, unless it is there already.
    fn take_new(&mut self, entry: AgentEntry) -> Result<(), Error> {
        let at = entry.thread;
        let before = self.target(at)?.known.get(&entry.name).copied();
        if matches!(entry.step, EntryContent::Turn(_)) {
            self.leave_to_branch(at, entry.key)?;
        }
        if before == Some(entry.key) {
            return Ok(());
        }
        let goes_on = self.target(at)?.goes_on(&entry);
        let (name, key, title) = (entry.name, entry.key, entry.title.filter(|_| !goes_on));
        let waiting = self.target(at)?.batch.bytes;
        match entry.step {
            EntryContent::Turn(said) => {
                let id = self.turn_id(at, key)?;
                if let Some(before) = before {
                    // An older version than what is here: the file is a copy from before.
                    let is_older =
                        self.stands(at, id)?.is_some() || self.is_other_state(at, &said, before)?;
                    if is_older {
                        return Ok(());
                    }
                    if self.is_changed_here(at, before)? {
                        self.changed_here += 1;
                        return Ok(());
                    }
                }
                self.turn(at, entry.line, id, *said, entry.at, before)?;
                // A newer version of a turn belongs where the older one is.
                let last_said = self.target(at)?.last_said;
                if before.is_none() && entry.at.zip(last_said).is_some_and(|(now, last)| now < last) {
                    self.late += 1;
                }
            }
            EntryContent::System(prompt) => {
                let batch = &mut self.target(at)?.batch;
                batch.bytes += prompt.len();
                batch.prompt = Some(prompt);
            }
            EntryContent::Event { body, .. } => self.event(at, entry.line, body, entry.at)?,
            EntryContent::Compaction { summary, tokens_before, kept, body, .. } => {
                self.event(at, entry.line, body, entry.at)?;
                self.compaction(at, summary, tokens_before, kept, entry.at)?;
            }
        }
        self.added += 1;
        let target = self.target(at)?;
        if let Some(before) = target.known.insert(name, key) {
            target.first.entry(name).or_insert(before);
        }
        target.batch.names.push((name, key));
        target.batch.title = title.or(target.batch.title.take());
        let (full, grown) = (target.batch.is_full(), target.batch.bytes.saturating_sub(waiting));
        self.waiting += grown;
        if self.waiting > WAITING_BYTES_MAX {
            return self.flush_all();
        }
        if full { self.begin(at) } else { Ok(()) }
    }

    /// A turn of a branch is none of the conversation that it leaves, where an earlier import put it: the other branch was not
    /// in its files.
    fn leave_to_branch(&mut self, at: usize, key: u64) -> Result<(), Error> {
        let Some(branch) = self.target(at)?.thread.branch else { return Ok(()) };
        let id = self.turn_id(at, key)?;
        let Some(first) = self.first(branch.of, branch.before) else { return Ok(()) };
        let by = self.turn_id(branch.of, first)?;
        let both_stand =
            self.stands(branch.of, id)? == Some(true) && self.stands(branch.of, by)? == Some(true);
        if both_stand { self.supersede(branch.of, &[id], by) } else { Ok(()) }
    }

    fn target(&mut self, at: usize) -> Result<&mut Target, Error> {
        let missing = || Error::internal("import.thread", "an entry of a thread that was not opened");
        self.targets.get_mut(&at).ok_or_else(missing)
    }

    /// Finds out what is in the store of a thread.
    fn open(&mut self, threads: &[Thread], at: usize) -> Result<(), Error> {
        if self.targets.contains_key(&at) || self.left_out.contains_key(&at) {
            return Ok(());
        }
        let missing =
            || Error::internal("import.thread", "an entry of a thread that the reader does not know");
        let mut thread = threads.get(at).ok_or_else(missing)?.clone();
        thread.id = self.id(threads, at);
        let key = self.tenant.key(thread.id);
        let mut conversation = match self.tenant.shared().journal.index.conversation(&key) {
            Ok(Conversation { id, state, .. }) if state != Lifecycle::Active => {
                let text = format!("conversation {id} is {state}; left out");
                self.left_out.insert(at, text);
                return Ok(());
            }
            Ok(conversation) => Some(conversation),
            Err(Error::NotFound(_)) => {
                let stones = self.tenant.tombstones()?;
                if let Some(stone) = stones.iter().find(|stone| stone.id == thread.id) {
                    let text =
                        format!("conversation {} was deleted on {}; left out", stone.id, stone.deleted);
                    self.left_out.insert(at, text);
                    self.has_deleted = true;
                    return Ok(());
                }
                None
            }
            Err(error) => return Err(error),
        };
        let root = self.root(threads, at);
        if let Some(branch) = thread.branch {
            self.open(threads, branch.of)?;
            if let Some(text) = self.left_out.get(&branch.of).filter(|_| conversation.is_none()) {
                self.left_out.insert(at, text.clone());
                return Ok(());
            }
            self.flush(branch.of)?;
            if conversation.is_none() {
                conversation = Some(self.fork(&thread, branch.of, branch.before)?);
            }
        }
        let mut target = Target {
            key,
            thread,
            root,
            last_said: conversation.as_ref().and_then(|conversation| conversation.last_said),
            conversation,
            known: HashMap::new(),
            first: HashMap::new(),
            marker: None,
            titled: None,
            batch: Batch::default(),
            held: Vec::new(),
            has_turns: false,
            writing: None,
        };
        self.remember(&mut target)?;
        self.met.insert(at);
        if target.conversation.is_none() {
            self.brought.insert(target.key.id);
        }
        self.rest(threads)?;
        self.targets.insert(at, target);
        Ok(())
    }

    /// Forgets conversations that are not at work, where there are many: what they know is in the store.
    fn rest(&mut self, threads: &[Thread]) -> Result<(), Error> {
        let branches = threads.iter().any(|thread| thread.branch.is_some());
        if self.targets.values().filter(|target| !target.is_hollow()).count() < OPEN_MAX || branches {
            return Ok(());
        }
        self.flush_all()?;
        self.targets.retain(|_, target| target.is_hollow());
        Ok(())
    }

    /// A branch begins where the other conversation was before it left that branch.
    fn fork(&mut self, thread: &Thread, of: usize, before: u64) -> Result<Conversation, Error> {
        let left = self.first(of, before);
        let parent = self.target(of)?.key.clone();
        let missing = || Error::internal("import.branch", "a branch of a turn that was not taken over");
        let turn = self.turn_id(of, left.ok_or_else(missing)?)?;
        let at_seq = self.tenant.shared().journal.index.turn_in(&parent, turn)?.seq.saturating_sub(1);
        let fork = self.tenant.conversation(parent.id).fork_as(thread.id, at_seq.into()).wait()?;
        self.tenant.shared().journal.index.conversation(fork.key())
    }

    /// The version of a turn that was taken over first, also in a conversation that this one left: that one took the place
    /// of the turns that a branch goes on from.
    fn first(&self, at: usize, name: u64) -> Option<u64> {
        let target = self.targets.get(&at)?;
        let above = || self.first(target.thread.branch?.of, name);
        target.first.get(&name).or(target.known.get(&name)).copied().or_else(above)
    }

    /// Every version of a turn that may stand here. A branch has the markers of before it left, which may not say all: the
    /// batch in which the newest version came is marked behind the place where the branch begins.
    fn versions(&self, at: usize, name: u64) -> BTreeSet<u64> {
        let Some(target) = self.targets.get(&at) else { return BTreeSet::new() };
        let above = target.thread.branch.map(|branch| self.versions(branch.of, name));
        above.into_iter().flatten().chain(target.known.get(&name).copied()).collect()
    }

    /// The id of a turn: the same whenever it is imported here.
    fn turn_id(&mut self, at: usize, key: u64) -> Result<TurnId, Error> {
        let Target { root, key: Key { tenant, .. }, .. } = self.target(at)?;
        let name = format!("{tenant}/{root}/{key:016x}");
        let mut bytes = root.to_bytes();
        bytes[6..].copy_from_slice(&Hash::of(name.as_bytes()).0[..10]);
        Ok(TurnId::from_bytes(bytes))
    }

    /// Whether a turn is there, and then whether nothing took its place.
    fn stands(&mut self, at: usize, id: TurnId) -> Result<Option<bool>, Error> {
        if let Some(stands) = self.target(at)?.batch.turns.get(&id) {
            return Ok(Some(*stands));
        }
        let turn = self.stored(at, id)?;
        Ok(turn.map(|turn| !matches!(turn.superseded_by, Some(Successor::Turn(_)))))
    }

    /// Whether the version that is here says the same, and is at least as far.
    fn is_other_state(&mut self, at: usize, said: &ParsedTurn, here: u64) -> Result<bool, Error> {
        let Some(other) = said.other_state.filter(|other| other.key == here) else { return Ok(false) };
        let here = self.turn_id(at, here)?;
        Ok(!other.lost_tokens || self.stored(at, here)?.is_none_or(|turn| turn.tokens.is_none()))
    }

    /// Whether somebody erased a version here or replaced it by hand: then that stays, whatever the file says since.
    fn is_changed_here(&mut self, at: usize, version: u64) -> Result<bool, Error> {
        let id = self.turn_id(at, version)?;
        if self.target(at)?.batch.turns.contains_key(&id) {
            return Ok(false);
        }
        let Some(turn) = self.stored(at, id)? else { return Ok(false) };
        let by_hand = match turn.superseded_by {
            Some(Successor::Turn(by)) => {
                self.stored(at, by)?.is_some_and(|by| by.adapter.as_deref() != Some(self.format))
            }
            _ => false,
        };
        Ok(turn.erased || by_hand)
    }

    /// A turn that was written before.
    fn stored(&mut self, at: usize, id: TurnId) -> Result<Option<Turn>, Error> {
        self.finish(at)?;
        let target = self.target(at)?;
        if target.conversation.is_none() {
            return Ok(None);
        }
        let key = target.key.clone();
        match self.tenant.shared().journal.index.turn_in(&key, id) {
            Ok(turn) => Ok(Some(turn)),
            Err(Error::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn turn(
        &mut self,
        at: usize,
        line: u64,
        id: TurnId,
        said: ParsedTurn,
        occurred_at: Option<Timestamp>,
        before: Option<u64>,
    ) -> Result<(), Error> {
        let versions = before.into_iter();
        let left: Vec<u64> = said.supersedes.iter().flat_map(|name| self.versions(at, *name)).collect();
        let mut superseded = Vec::new();
        for key in versions.chain(left) {
            let old = self.turn_id(at, key)?;
            if old != id && self.stands(at, old)? == Some(true) {
                superseded.push(old);
            }
        }
        // Too many for one transaction go first. After a crash in between the next import finds the rest standing.
        while superseded.len() > SUPERSEDED_AT_ONCE {
            let some = superseded.split_off(superseded.len() - SUPERSEDED_AT_ONCE);
            self.supersede(at, &some, id)?;
            self.flush(at)?;
        }
        let turn = NewTurn {
            model: said.model,
            tokens: said.tokens,
            visibility: said.visibility,
            metadata: said.metadata,
            occurred_at,
            adapter: Some(self.format.into()),
            ..NewTurn::message(said.message)
        };
        let tenant = self.tenant;
        let target = self.target(at)?;
        let fresh;
        let conversation = match &target.conversation {
            Some(conversation) => conversation,
            None => {
                let genesis = Head::genesis(target.key.id);
                fresh =
                    Conversation::new(target.key.id, tenant.name().clone(), tenant.shared().now(), genesis);
                &fresh
            }
        };
        target.batch.turn(tenant.shared(), conversation, id, turn, line)?;
        self.supersede(at, &superseded, id)
    }

    fn supersede(&mut self, at: usize, turns: &[TurnId], by: TurnId) -> Result<(), Error> {
        let shared = self.tenant.shared();
        for turn in turns {
            let draft = shared.draft(kind::SUPERSEDED, &SupersededBody { by })?;
            let batch = &mut self.target(at)?.batch;
            batch.push(Draft { turn: Some(*turn), ..draft });
            batch.turns.insert(*turn, false);
        }
        Ok(())
    }

    fn event(
        &mut self,
        at: usize,
        line: u64,
        body: Raw,
        occurred_at: Option<Timestamp>,
    ) -> Result<(), Error> {
        let shared = self.tenant.shared();
        let tenant = self.tenant.name().clone();
        self.target(at)?.batch.line(shared, &tenant, line, body, occurred_at)
    }

    /// The program summarized what came before, up to the turns that it kept: the same happens here, with its words.
    fn compaction(
        &mut self,
        at: usize,
        summary: String,
        tokens_before: Option<u64>,
        kept: Option<u64>,
        occurred_at: Option<Timestamp>,
    ) -> Result<(), Error> {
        self.flush(at)?;
        let shared = self.tenant.shared();
        let kept = match kept.and_then(|name| self.targets.get(&at)?.known.get(&name).copied()) {
            Some(version) => Some(self.turn_id(at, version)?),
            None => None,
        };
        let target = self.target(at)?;
        let Some(conversation) = &target.conversation else { return Ok(()) };
        let before = match kept.map(|turn| shared.journal.index.turn_in(&target.key, turn)) {
            Some(Ok(first)) => Some(first.place),
            // A line that is too long for a turn was kept aside.
            None | Some(Err(Error::NotFound(_))) => None,
            Some(Err(error)) => return Err(error),
        };
        let query = TurnQuery { before, limit: 1, descending: true, whole_log: true, ..TurnQuery::default() };
        let Some(last) = shared.journal.index.turns(&target.key, &query)?.pop() else { return Ok(()) };
        let previous = conversation.checkpoint;
        if previous.is_some_and(|previous| previous.through_seq >= last.seq) {
            return Ok(());
        }
        let (from_seq, before) = previous.map_or((1, 0), |at| (at.through_seq + 1, at.turns_before));
        let mut turns = conversation.turns;
        let id = target.key.id;
        let chat = self.tenant.conversation(id);
        let after = TurnQuery { after: Some(last.seq), whole_log: true, ..TurnQuery::default() };
        chat.each_turn(after, |_| {
            turns = turns.saturating_sub(1);
            Ok(ControlFlow::Continue(()))
        })?;
        let tokens_before = tokens_before.map_or_else(|| chat.tokens_since(previous, from_seq), Ok)?;
        let input_hash = Hash::of(summary.as_bytes());
        let checkpoint = Checkpoint { handoff_md: summary, ..Checkpoint::default() };
        let tokens_after = TokenizerFamily::default().count(&compaction::render(&checkpoint));
        let body = CompactionBody {
            checkpoint: Some(checkpoint),
            covers: Covers { from_seq, to_seq: last.seq, turns: turns.saturating_sub(before) },
            summarized: Some(Summarized { through: last.id, through_seq: last.seq, turns_before: turns }),
            previous,
            summarizer: self.format.into(),
            prompt_hash: None,
            input_hash,
            tokens_before,
            tokens_after,
            reverts: None,
            restores: None,
        };
        let draft = Draft { occurred_at, ..shared.draft(kind::COMPACTION, &body)? };
        draft.check()?;
        self.target(at)?.batch.push(draft);
        Ok(())
    }

    /// Leaves out the threads without a turn: nobody would look for them. Returns them.
    fn leave_hollow(&mut self) -> Vec<usize> {
        let hollow: Vec<(&usize, &Target)> =
            self.targets.iter().filter(|(_, target)| target.is_hollow()).collect();
        for batch in hollow.iter().flat_map(|(_, target)| target.held.iter().chain([&target.batch])) {
            self.tenant.shared().journal.uploaded(&batch.ingested.uploads);
            self.added = self.added.saturating_sub(batch.names.len() as u64);
        }
        hollow.into_iter().map(|(at, _)| *at).collect()
    }

    fn flush_all(&mut self) -> Result<(), Error> {
        let open: Vec<usize> = self.targets.keys().copied().collect();
        open.into_iter().try_for_each(|at| self.flush(at))
    }

    /// Initial settings of a new conversation. An imported conversation is a record: it is neither compacted
    /// automatically nor trimmed by the default budget.
    fn settings(&self, target: &Target) -> Result<Settings, Error> {
        let prompt = target.batch.prompt.clone().map(SystemPrompt::new);
        let mut settings = Settings {
            title: target.batch.title.clone().map(Some),
            system_prompt: prompt.map(Some),
            ..Settings::default()
        };
        let arrives = target.thread.origin.parent.is_some_and(|parent| self.brought.contains(&parent));
        let origin = self.tenant.origin_metadata(&target.thread.origin, arrives)?;
        if origin.get().len() <= METADATA_BYTES_MAX / 2 {
            settings.metadata.insert("import".into(), origin);
        }
        settings.policy.insert("compaction".into(), Raw::new(r#"{"auto":false}"#.into())?);
        let unbounded = r#"{"max_messages":null,"max_events":null}"#;
        settings.policy.insert("budget".into(), Raw::new(unbounded.into())?);
        settings.normalise()
    }
}
