//! Record of earlier imports: markers in the log, each with the place of the one before it.

use super::{Import, Target, WAITING_BYTES_MAX};
use crate::ingest::redaction_mode;
use crate::writer::Commit;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::Settings;
use everturn_core::error::code;
use everturn_core::event::{Draft, Event, kind};
use everturn_core::id::TenantName;
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_core::write::Action;
use everturn_store::Committed;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Body of `import.finished` after each batch. Names and versions are 16 hexadecimal digits each; an entry with only
/// one version is listed by name alone. Stored in the log, so its fields are frozen.
#[derive(Serialize, Deserialize)]
struct Marker {
    format: String,
    /// Names of entries with one version.
    keys: String,
    /// Pairs of name and version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    versions: String,
    /// Place of the marker before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous: Option<u64>,
    /// Mark of the title that the batch gave the conversation: see [`title_mark`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    title: Option<String>,
}

/// Start of a title's hash: enough to know it again, and not its words.
fn title_mark(title: &str) -> String {
    Hash::of(title.as_bytes()).to_string()[..DIGITS].to_string()
}

/// A batch that is being written.
pub(super) struct Writing {
    commit: Commit<Committed>,
    /// Kept to try again.
    drafts: Vec<Draft>,
    uploads: Vec<(TenantName, Hash)>,
}

/// Digits of a name.
const DIGITS: usize = 16;
/// Attempts to append while others write into the same conversation.
const ATTEMPTS: usize = 5;

impl Marker {
    fn new(format: &str, names: &[(u64, u64)], previous: Option<u64>, title: Option<String>) -> Marker {
        let (mut keys, mut versions) = (String::new(), String::new());
        for (name, key) in names {
            match name == key {
                true => keys += &format!("{name:016x}"),
                false => versions += &format!("{name:016x}{key:016x}"),
            }
        }
        Marker { format: format.to_string(), keys, versions, previous, title }
    }

    /// Notes what it says. Newer markers were read before.
    fn read(&self, target: &mut Target) {
        let mut note = |name: u64, key: u64| {
            if *target.known.entry(name).or_insert(key) != key {
                target.first.insert(name, key);
            }
        };
        let number = |digits: &[u8]| {
            std::str::from_utf8(digits).ok().and_then(|text| u64::from_str_radix(text, 16).ok())
        };
        // The newest first here, too: a name that is its own key is that of a first version.
        for pair in self.versions.as_bytes().chunks_exact(2 * DIGITS).rev() {
            if let (Some(name), Some(key)) = (number(&pair[..DIGITS]), number(&pair[DIGITS..])) {
                note(name, key);
            }
        }
        for name in self.keys.as_bytes().chunks_exact(DIGITS).filter_map(number) {
            note(name, name);
        }
        target.titled = target.titled.take().or_else(|| self.title.clone());
    }
}

impl Import<'_> {
    fn marker(&self, event: &Event) -> Option<Marker> {
        let marker = event.read::<Marker>().filter(|_| event.kind == kind::IMPORT_FINISHED)?;
        (marker.format == self.format).then_some(marker)
    }

    /// Reads all markers of a conversation, the newest first.
    pub(super) fn remember(&self, target: &mut Target) -> Result<(), Error> {
        const PAGE: u64 = 100;
        let Some(conversation) = &target.conversation else { return Ok(()) };
        let log = &self.tenant.shared().journal.log;
        let mut end = conversation.head.seq;
        let mut next = None;
        while end > 0 && next.is_none() {
            let after = end.saturating_sub(PAGE);
            let page = self.tenant.shared().journal.events_between(&target.key, after, end)?;
            next = page.iter().rev().find_map(|event| Some((event.seq, self.marker(event)?)));
            end = after;
        }
        target.marker = next.as_ref().map(|(seq, _)| *seq);
        while let Some((seq, marker)) = next {
            marker.read(target);
            // A marker that was made up could lead in a circle.
            let previous = marker.previous.filter(|previous| (1..seq).contains(previous));
            next = match previous {
                Some(previous) => {
                    let event = log.events(&target.key, previous - 1, 1)?.pop();
                    event.and_then(|event| Some((event.seq, self.marker(&event)?)))
                }
                None => None,
            };
        }
        Ok(())
    }

    /// Writes what waits of a conversation.
    pub(super) fn flush(&mut self, at: usize) -> Result<(), Error> {
        self.begin(at)?;
        self.finish(at)
    }

    /// Has a batch written, and the marker behind it, while the next one is read.
    pub(super) fn begin(&mut self, at: usize) -> Result<(), Error> {
        self.finish(at)?;
        let Some(mut target) = self.targets.remove(&at) else { return Ok(()) };
        // Without turns it is to leave no conversation.
        let hollow = target.is_hollow() && self.waiting <= WAITING_BYTES_MAX;
        if hollow && target.batch.is_full() {
            target.held.push(std::mem::take(&mut target.batch));
        }
        let held = if hollow { Vec::new() } else { std::mem::take(&mut target.held) };
        self.targets.insert(at, target);
        for batch in held {
            let newest = std::mem::replace(&mut self.target(at)?.batch, batch);
            self.begin_batch(at)?;
            self.finish(at)?;
            self.target(at)?.batch = newest;
        }
        if hollow { Ok(()) } else { self.begin_batch(at) }
    }

    fn begin_batch(&mut self, at: usize) -> Result<(), Error> {
        let Some(mut target) = self.targets.remove(&at) else { return Ok(()) };
        let begun = self.write(&mut target);
        self.targets.insert(at, target);
        begun
    }

    /// Waits until the batch before is written.
    pub(super) fn finish(&mut self, at: usize) -> Result<(), Error> {
        let Some(target) = self.targets.get_mut(&at) else { return Ok(()) };
        let Some(writing) = target.writing.take() else { return Ok(()) };
        let written = self.written(&self.targets[&at], writing.commit, writing.drafts);
        // Whether it was written or not: from here on the events keep the bytes, or nobody does.
        self.tenant.shared().journal.uploaded(&writing.uploads);
        let committed = written?;
        let target = self.target(at)?;
        target.marker = committed.events.last().map(|event| event.seq);
        target.conversation = Some(Arc::unwrap_or_clone(committed.conversation));
        Ok(())
    }

    fn write(&mut self, target: &mut Target) -> Result<(), Error> {
        if target.batch.ingested.drafts.is_empty() && target.batch.names.is_empty() {
            return Ok(());
        }
        let shared = self.tenant.shared();
        let prepared = (|| {
            let mode = target.conversation.as_ref().map(redaction_mode).unwrap_or_default();
            let mut settings = self.settings(target)?.redacted(mode)?;
            let first = match &target.conversation {
                None => self.tenant.setting_drafts(kind::CREATED, &settings)?,
                Some(conversation) => {
                    // A title that somebody else gave stays.
                    let here = conversation.title.as_deref().map(title_mark);
                    let is_ours = here.is_none() || here == target.titled;
                    let title = settings.title.take().filter(|title| is_ours && *title != conversation.title);
                    let here = conversation.system_prompt.map(|prompt| prompt.sha256);
                    let system_prompt = settings.system_prompt.take();
                    let system_prompt =
                        system_prompt.filter(|new| new.as_ref().map(|new| new.sha256) != here);
                    settings = Settings { title, system_prompt, ..Settings::default() };
                    let changed = settings.title.is_some() || settings.system_prompt.is_some();
                    let drafts = changed.then(|| self.tenant.setting_drafts(kind::UPDATED, &settings));
                    drafts.transpose()?.unwrap_or_default()
                }
            };
            if let Some(title) = settings.title.as_ref().and_then(Option::as_deref) {
                target.titled = Some(title_mark(title));
            }
            let title = settings.title.as_ref().and_then(|_| target.titled.clone());
            let marker = Marker::new(self.format, &target.batch.names, target.marker, title);
            Ok((first, shared.draft(kind::IMPORT_FINISHED, &marker)?))
        })();
        let batch = std::mem::take(&mut target.batch);
        self.waiting = self.waiting.saturating_sub(batch.bytes);
        let (first, marker) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                shared.journal.uploaded(&batch.ingested.uploads);
                return Err(error);
            }
        };
        let drafts: Vec<Draft> = first.into_iter().chain(batch.ingested.drafts).chain([marker]).collect();
        let uploads = batch.ingested.uploads;
        let (commit, drafts) = match &target.conversation {
            None => {
                (self.submit(target, Action::Create { drafts, parent: None, idempotency: None }), Vec::new())
            }
            Some(conversation) => (self.append(target, drafts.clone(), conversation.head.seq), drafts),
        };
        commit.begin();
        target.writing = Some(Writing { commit, drafts, uploads });
        Ok(())
    }

    fn submit(&self, target: &Target, action: Action) -> Commit<Committed> {
        Commit::new(self.tenant.submit(target.key.clone(), action, Vec::new()), Ok)
    }

    fn append(&self, target: &Target, drafts: Vec<Draft>, head: u64) -> Commit<Committed> {
        self.submit(
            target,
            Action::Append { drafts, expected_seq: Some(head), prepared_for: None, idempotency: None },
        )
    }

    /// The answer to a batch, which is tried again where others write into the conversation.
    fn written(
        &self,
        target: &Target,
        mut commit: Commit<Committed>,
        drafts: Vec<Draft>,
    ) -> Result<Committed, Error> {
        let mut head = target.conversation.as_ref().map_or(0, |conversation| conversation.head.seq);
        for _ in 1..ATTEMPTS {
            match commit.wait() {
                Err(error) if error.is(code::STALE_SEQ) => {
                    head = self.stepped_aside(target, head)?;
                    commit = self.append(target, drafts.clone(), head);
                }
                written => return written,
            }
        }
        commit.wait()
    }

    /// Somebody else wrote into the conversation. That is none of our business, unless it is the same import.
    fn stepped_aside(&self, target: &Target, mut head: u64) -> Result<u64, Error> {
        loop {
            let page = self.tenant.shared().journal.log.events(&target.key, head, PAGE_ENTRIES_MAX)?;
            if page.iter().any(|event| self.marker(event).is_some()) {
                let text = "another process is importing the same session; import it again later: existing turns are skipped";
                return Err(Error::conflict("import.concurrent", text));
            }
            match page.last() {
                Some(last) => head = last.seq,
                None => return Ok(head),
            }
        }
    }
}
