//! What one projection leaves for the next one.

use super::edit::Edit;
use super::hash::Chain;
use super::pointer::Pointer;
use super::{Message, Options, Shown, View, made};
use crate::Error;
use crate::pairing::Place;
use serde_json::Value;
use std::collections::HashMap;

/// Makes the views of a transcript that grows, one after the other: an agent projects before every request, and most
/// of what it shows is what it showed before.
///
/// It remembers how far the last view's hash had come behind each message, and the messages that were changed. Nothing
/// has to be told to it when the transcript changes: it goes by which [`Message`] it saw, so the transcript must be
/// kept as such (or as clones), and another one is only slower. A view is the same with a memo as without.
///
/// It holds the messages of the last view; whoever erases something drops it.
#[derive(Clone, Debug, Default)]
pub struct Memo {
    chain: Chain,
    /// The changed messages by their index: those of the view before, and those of this one.
    before: HashMap<usize, Changed>,
    now: HashMap<usize, Changed>,
}

#[derive(Clone, Debug)]
struct Changed {
    source: Message,
    edit: Edit,
    message: Message,
}

impl Memo {
    /// Makes a view, as [`project_after`](super::project_after) does.
    pub fn project<'a>(
        &mut self,
        messages: &'a [Message],
        summary: Option<&str>,
        options: &Options,
        previous: Option<&Value>,
    ) -> Result<View<'a>, Error> {
        self.before = std::mem::take(&mut self.now);
        made(messages, summary, options, previous, self)
    }

    pub(super) fn hash(&mut self, shown: &[Shown<'_>]) -> String {
        self.chain.hash(shown.iter().map(|shown| &*shown.message))
    }

    /// The pointer to a body that was reclaimed before.
    pub(super) fn pointer(&self, index: usize, source: &Message, place: Place) -> Option<&Pointer> {
        let pointers = &self.changed(index, source)?.edit.pointers;
        pointers.iter().find(|pointer| pointer.place == place && !pointer.is_input())
    }

    /// The message with the edit, if that was made before; and the edit with what it took out counted.
    pub(super) fn edited(&mut self, index: usize, source: &Message, edit: &Edit) -> Option<(Message, usize)> {
        let changed = self.changed(index, source).filter(|changed| changed.edit.is_same(edit))?;
        let known = (changed.message.clone(), changed.edit.removed_chars);
        if let Some(changed) = self.before.remove(&index) {
            self.now.insert(index, changed);
        }
        Some(known)
    }

    pub(super) fn keep(&mut self, index: usize, source: &Message, edit: &Edit, message: &Message) {
        let (source, edit, message) = (source.clone(), edit.clone(), message.clone());
        self.now.insert(index, Changed { source, edit, message });
    }

    fn changed(&self, index: usize, source: &Message) -> Option<&Changed> {
        let changed = self.now.get(&index).or_else(|| self.before.get(&index))?;
        changed.source.is(source).then_some(changed)
    }
}
