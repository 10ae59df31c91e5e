//! Recall into a prompt: turns older than the tail, and facts.
//!
//! Recalled text enters the prompt with its speaker and time, and with its ids in the receipt. It is appended
//! nowhere, so it is never recalled as if it had been said.

use crate::context::{ContextOptions, RecallRequest, Receipt, erased};
use crate::conversation::ConversationHandle;
use crate::recall::Hit;
use crate::tenant::page_limit;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::event::Visibility;
use everturn_core::fact::Fact;
use everturn_core::id::{EventId, TurnId};
use everturn_core::turn::{Role, Turn};
use everturn_core::viewer::{is_for_everyone, without_private};
use everturn_store::TurnQuery;
use everturn_views::context::{BlockSource, ContextBlock, ContextText, Material, Section, Seen, seen_by};
use everturn_views::recall::{Filter, RecallKind, RecallMode, recalled_stretches, recalled_text_of, text_of};
use everturn_views::speech;
use std::borrow::Cow;

/// Most bytes of a recalled turn in a prompt. Frozen: receipts are replayed with it.
const RECALLED_BYTES_MAX: usize = 2 * 1024;

impl ConversationHandle {
    /// Recalls turns before a place, and facts as of a `seq`, that help with the input. Returns whether all of it is
    /// for everyone.
    pub(crate) fn recalled_now(
        &self,
        options: &ContextOptions,
        request: &RecallRequest,
        (begins, through): (u64, u64),
        material: &mut Material,
    ) -> Result<bool, Error> {
        let Some(query) = request.query.clone().or_else(|| asked(material)) else { return Ok(true) };
        let mut is_public = true;
        let filter = |kind, before_seq| Filter {
            conversation: Some(self.key().id),
            kinds: vec![kind],
            through_seq: Some(through),
            before_seq,
            viewer: self.tenant.viewer().clone(),
            ..Filter::default()
        };
        if options.sections.has(Section::Recalled) && request.turns > 0 {
            let limit = page_limit(request.turns)?;
            let mut hits = self
                .tenant
                .find(&query, &filter(RecallKind::Turn, Some(begins)), RecallMode::Hybrid, limit)?
                .0;
            // The index knows each turn by its `seq`; one that was edited since is read further up.
            if self.has_edits_before(begins, through)? {
                let later =
                    self.tenant.find(&query, &filter(RecallKind::Turn, None), RecallMode::Hybrid, limit)?.0;
                let moved = |hit: &Hit| hit.seq >= begins && hit.place.is_some_and(|place| place < begins);
                hits.extend(later.into_iter().filter(moved));
                hits.sort_by(|a, b| b.score.total_cmp(&a.score));
                hits.truncate(limit);
            }
            for hit in hits {
                let Some(id) = hit.turn else { continue };
                let turn = self.turn(id)?;
                let piece = turn_piece(&turn, &options.participants);
                is_public &= piece.is_none() || is_for_everyone(&turn);
                material.recalled.extend(piece);
            }
        }
        if options.sections.has(Section::Facts) && request.facts > 0 {
            let limit = page_limit(request.facts)?;
            for hit in self.tenant.find(&query, &filter(RecallKind::Fact, None), RecallMode::Hybrid, limit)?.0
            {
                material.facts.extend(hit.fact.as_ref().map(fact_piece));
            }
        }
        Ok(is_public && self.are_for_everyone(&material.facts, through)?)
    }

    /// Whether these are facts that everyone may see.
    fn are_for_everyone(&self, facts: &[ContextText], through: u64) -> Result<bool, Error> {
        if facts.is_empty() {
            return Ok(true);
        }
        let public = self.for_everyone().facts_at(through)?;
        Ok(facts.iter().all(|piece| public.iter().any(|fact| fact_piece(fact) == *piece)))
    }

    /// Whether a turn that is read before a place was said after it.
    fn has_edits_before(&self, place: u64, through: u64) -> Result<bool, Error> {
        let query = TurnQuery {
            before: Some(place),
            moved_after: Some(place),
            as_of: Some(through),
            limit: 1,
            ..TurnQuery::default()
        };
        Ok(!self.shared().journal.index.turns(self.key(), &query)?.is_empty())
    }

    /// The recalled parts of a receipt, in its order; refused where a fact has changed since.
    pub(crate) fn recalled_before(&self, receipt: &Receipt, material: &mut Material) -> Result<bool, Error> {
        let mut is_public = true;
        for block in receipt.blocks.iter().filter(|block| block.section == Section::Recalled) {
            let BlockSource::Ids(ids) = &block.source else { continue };
            let Some(event) = ids.first().and_then(|id| id.parse::<EventId>().ok()) else { continue };
            let turn = self.turn(TurnId(event.0))?;
            let piece = turn_piece(&turn, &receipt.policy.participants);
            is_public &= piece.is_none() || is_for_everyone(&turn);
            material.recalled.extend(piece);
        }
        let facts: Vec<&ContextBlock> =
            receipt.blocks.iter().filter(|block| block.section == Section::Facts).collect();
        // As they stood then: facts that were corrected or retracted since are still read.
        let known = match facts.is_empty() {
            true => Vec::new(),
            false => self.facts_at(receipt.through_seq)?,
        };
        for block in facts {
            let BlockSource::Ids(ids) = &block.source else { continue };
            let fact = known.iter().find(|fact| ids.contains(&fact.id.to_string())).map(fact_piece);
            match fact.filter(|piece| Hash::of(piece.text.as_bytes()) == block.sha256) {
                Some(piece) => material.facts.push(piece),
                None => return Err(erased(&ids.join(", "))),
            }
        }
        Ok(is_public && self.are_for_everyone(&material.facts, receipt.through_seq)?)
    }
}

/// The input, else the last user turn.
fn asked(material: &Material) -> Option<String> {
    let of_user = |message: &serde_json::Value| {
        let role = everturn_core::message::role(message).ok()?;
        (speech::of_message(role, message).role == Role::User).then(|| text_of(message))
    };
    let input: Vec<String> = material.input.iter().map(|said| text_of(&said.message)).collect();
    let input = Some(input.join("\n")).filter(|text| !text.trim().is_empty());
    input.or_else(|| {
        let said = material.tail.iter().rev().filter_map(|said| of_user(&said.message));
        said.into_iter().find(|text| !text.trim().is_empty())
    })
}

/// A turn as a text: when, who, what. `None` if these participants do not see it. Frozen: receipts are replayed with it.
pub(crate) fn turn_piece(turn: &Turn, participants: &[String]) -> Option<ContextText> {
    let message = turn.value()?;
    let is_own = turn.actor.as_ref().is_some_and(|actor| participants.contains(actor));
    let message = match turn.message.as_ref().filter(|_| !is_own).map(|raw| without_private(raw.get())) {
        Some(None) if turn.visibility != Visibility::Private => return None,
        Some(Some(Cow::Owned(public))) => serde_json::from_str(&public).ok()?,
        _ => message,
    };
    if seen_by(participants, &[(turn, Some(&message))]) == [Seen::Hidden] {
        return None;
    }
    let speech = speech::of_said(turn, Some(&message));
    let stretches = if speech.role == Role::User {
        recalled_stretches(&message)
    } else {
        vec![(None, recalled_text_of(&message))]
    };
    let name = speech.name();
    let author = turn.actor.as_ref().map_or(name.to_string(), |actor| format!("{actor} ({name})"));
    let at = turn.occurred_at.unwrap_or(turn.created).to_string();
    // To the second: more precision means nothing to a reader.
    let at = at.split('.').next().unwrap_or_default();
    let mut text = format!("[{at}Z] ");
    let mut room = RECALLED_BYTES_MAX;
    for (index, (other, said)) in stretches.iter().enumerate() {
        let end = said.floor_char_boundary(room);
        room -= end;
        let gap = if index > 0 { "\n\n" } else { "" };
        let who = other.unwrap_or(&author);
        let more = if end < said.len() { " …" } else { "" };
        text += &format!("{gap}{who}:\n{}{more}", &said[..end]);
        if end < said.len() {
            break;
        }
    }
    Some(ContextText { source: BlockSource::Ids(vec![EventId(turn.id.0).to_string()]), text })
}

/// A fact as a text. Frozen: receipts are replayed with it.
fn fact_piece(fact: &Fact) -> ContextText {
    let text = format!("{} {} {}", fact.subject, fact.predicate, fact.object);
    ContextText { source: BlockSource::Ids(vec![fact.id.to_string()]), text }
}
