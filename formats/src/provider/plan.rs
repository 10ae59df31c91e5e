//! Content, order and ids of the rendered messages.
//!
//! Everything that makes a list of messages valid is decided here, once for all providers: pairs, pending calls, signed
//! turns, ids, joined messages. The writers only spell it out.

use super::ids::{Ids, Taken, is_actor_name};
use super::read::{ContentPart, Item, Kind};
use super::{Provider, UnrenderedPart, responses};
use everturn_core::message;
use everturn_core::pairing::Pairs;
use everturn_core::turn::Role;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::HashSet;

/// One step of the rendered list. Numbers are places in the list of items.
pub enum RenderStep {
    /// The content of these messages without their results. Several become one message of the assistant.
    Say(Vec<usize>),
    /// Results, as item and piece, of the calls of the step before.
    Answers(Vec<(usize, usize)>),
    /// A message that is nothing but the results of the step before, or begins with all of them and is written whole.
    Whole(usize),
}

/// Position of these messages in the whole list.
pub struct Stretch<'t> {
    /// Whether the list ends with them.
    pub last: bool,
    /// Ids of the calls before them.
    pub taken: &'t mut Taken,
}

/// Plans the steps, and marks the pieces accordingly.
pub fn plan<'a>(
    provider: Provider,
    items: &mut [Item<'a>],
    pairs: &Pairs<'a>,
    stretch: Stretch<'_>,
    fits: &dyn Fn(&Item<'a>) -> bool,
    left_out: &mut Vec<UnrenderedPart>,
) -> Vec<RenderStep> {
    for item in items.iter_mut() {
        usable(provider, item, left_out);
    }
    let responses = provider == Provider::OpenaiResponses;
    if responses {
        forget_ids_after_dropped_reasoning(items, left_out);
    }
    let table = Table::new(items, pairs);
    table.drop_orphans(items, left_out);
    let (lost, pending) = table.drop_unanswered(provider, items, stretch.last, left_out);
    drop_broken_turns(provider, items, &lost, left_out);
    table.drop_orphans(items, &mut Vec::new());
    table.name(provider, items, stretch.taken);
    for item in items.iter_mut() {
        say_name(provider, item);
    }
    if responses {
        // Again, for the turns that were left out since.
        forget_ids_after_dropped_reasoning(items, left_out);
        keep_kinds_together(items, &table);
    }
    let steps = table.steps(provider, items, pending, fits);
    if let (Provider::Anthropic, true, Some(RenderStep::Say(group))) = (provider, stretch.last, steps.last())
    {
        trim_last_words(&mut items[group[group.len() - 1]]);
    }
    steps
}

impl Item<'_> {
    /// Rendered pieces other than results.
    pub fn said(&self) -> impl Iterator<Item = &ContentPart<'_>> {
        self.pieces.iter().filter(|piece| piece.keep && !matches!(piece.kind, Kind::ToolResult { .. }))
    }

    /// Whether a call in it is rendered.
    pub fn calls(&self) -> bool {
        self.said().any(|piece| matches!(piece.kind, Kind::Call { .. }))
    }

    /// Whether a result in it is rendered, which happens elsewhere than the rest.
    pub fn answers(&self) -> bool {
        self.pieces.iter().any(|piece| piece.keep && matches!(piece.kind, Kind::ToolResult { .. }))
    }

    /// Whether all of it is rendered unchanged.
    pub fn is_whole(&self) -> bool {
        self.pieces.iter().all(|piece| piece.keep && !piece.fresh)
    }

    /// Whether nothing of it is rendered, so that the messages around it become neighbours.
    fn is_silent(&self) -> bool {
        !self.pieces.iter().any(|piece| piece.keep)
    }

    /// Whether it is an item of a Responses list, or a message in that form.
    fn is_responses(&self) -> bool {
        self.own.get("type").is_some()
    }
}

fn leave(left_out: &mut Vec<UnrenderedPart>, item: &Item<'_>, what: impl Into<String>) {
    left_out.push(UnrenderedPart { message: item.source, what: what.into(), unread: false });
}

/// Leaves out everything that this provider cannot take at all, regardless of its neighbours. What it does not know, and has
/// text in it, becomes that text.
fn usable(provider: Provider, item: &mut Item<'_>, left_out: &mut Vec<UnrenderedPart>) {
    let mut dropped = Vec::new();
    let paired = paired_by_server(item);
    for piece in &mut item.pieces {
        let why = match &piece.kind {
            // An empty text carries nothing, unless its provider hung a signature on it.
            Kind::Text(text) => {
                let blank =
                    if provider == Provider::Anthropic { text.trim().is_empty() } else { text.is_empty() };
                piece.keep = !blank || piece.seal == Some(provider);
                continue;
            }
            Kind::Reasoning { text, signed } => match piece.seal {
                _ if item.role != Role::Assistant => "reasoning that is not the assistant's".into(),
                Some(owner) if owner == provider => continue,
                None if provider == Provider::Neutral && !signed && !text.trim().is_empty() => continue,
                Some(owner) if owner != provider => format!("reasoning that only {owner} can verify"),
                _ => "reasoning without a signature that can be verified".into(),
            },
            Kind::Call { name, .. } if item.role != Role::Assistant => {
                format!("call of {name} that the assistant did not make")
            }
            Kind::Hosted(owner) if *owner != provider => format!("something that only {owner} understands"),
            Kind::Hosted(Provider::Anthropic) => {
                let kind = piece.own.get("type").and_then(Value::as_str).unwrap_or_default();
                let by_user = matches!(kind, "search_result" | "container_upload");
                let id = piece
                    .own
                    .get("tool_use_id")
                    .or_else(|| piece.own.get("id").filter(|_| kind.ends_with("_tool_use")));
                match id {
                    _ if by_user == (item.role == Role::Assistant) => {
                        format!("{kind} in a message that cannot hold it")
                    }
                    Some(id) if !id.as_str().is_some_and(|id| paired.contains(id)) => {
                        format!("{kind} without its other half")
                    }
                    _ => continue,
                }
            }
            Kind::Unknown(kind) => format!("block of the unknown type {kind}"),
            Kind::Call { .. } | Kind::ToolResult { .. } | Kind::Media(_) | Kind::Hosted(_) => continue,
        };
        let words = match &piece.kind {
            Kind::Hosted(_) | Kind::Unknown(_) => message::in_words(piece.own),
            _ => None,
        };
        if let Some(words) = words {
            // Texts of the assistant may be joined.
            piece.kind = Kind::Text(Cow::Owned(words + "\n"));
            (piece.fresh, piece.seal) = (true, None);
            item.lost = true;
            continue;
        }
        let unread = match &piece.kind {
            Kind::Unknown(_) => !piece.own.is_null(),
            Kind::Hosted(_) => {
                // Of what a provider made itself, only a summary stands for something else.
                item.role != Role::Assistant || piece.own.get("type").is_some_and(|kind| kind == "compaction")
            }
            _ => item.role != Role::Assistant,
        };
        piece.keep = false;
        dropped.push((why, unread, !matches!(piece.kind, Kind::Reasoning { .. })));
    }
    for (what, unread, is_part_of_turn) in dropped {
        item.lost |= is_part_of_turn;
        left_out.push(UnrenderedPart { message: item.source, what, unread });
    }
}

/// The ids of calls that a server answered itself, inside the same message: it wants both back or neither.
fn paired_by_server<'a>(item: &Item<'a>) -> HashSet<&'a str> {
    let (mut asked, mut paired) = (HashSet::new(), HashSet::new());
    for piece in item.pieces.iter().filter(|piece| matches!(piece.kind, Kind::Hosted(_))) {
        let id = |key: &str| piece.own.get(key).and_then(Value::as_str);
        match (id("tool_use_id"), id("id")) {
            (Some(id), _) if asked.contains(id) => drop(paired.insert(id)),
            (None, Some(id)) => drop(asked.insert(id)),
            _ => {}
        }
    }
    paired
}

/// Positions of calls and results, as item and piece.
struct Table<'p, 'a> {
    pairs: &'p Pairs<'a>,
    calls: Vec<Option<(usize, usize)>>,
    answers: Vec<Option<(usize, usize)>>,
}

impl<'p, 'a> Table<'p, 'a> {
    fn new(items: &[Item<'_>], pairs: &'p Pairs<'a>) -> Self {
        let mut table =
            Table { pairs, calls: vec![None; pairs.calls.len()], answers: vec![None; pairs.results.len()] };
        for (i, item) in items.iter().enumerate() {
            for (p, piece) in item.pieces.iter().enumerate() {
                match piece.kind {
                    Kind::Call { call, .. } => table.calls[call] = Some((i, p)),
                    Kind::ToolResult { answer, .. } => table.answers[answer] = Some((i, p)),
                    _ => {}
                }
            }
        }
        table
    }

    /// The result of a call, if both are rendered.
    fn answer_of(&self, items: &[Item<'_>], call: usize) -> Option<(usize, usize)> {
        let (i, p) = self.answers[self.pairs.calls[call].result?]?;
        items[i].pieces[p].keep.then_some((i, p))
    }

    /// Leaves out results whose call is not rendered.
    fn drop_orphans(&self, items: &mut [Item<'_>], left_out: &mut Vec<UnrenderedPart>) {
        for (n, place) in self.answers.iter().enumerate() {
            let Some((i, p)) = *place else { continue };
            let call = self.pairs.results[n].call.and_then(|call| self.calls[call]);
            if items[i].pieces[p].keep && !call.is_some_and(|(i, p)| items[i].pieces[p].keep) {
                items[i].pieces[p].keep = false;
                leave(left_out, &items[i], "tool result without its call");
            }
        }
    }

    /// Leaves out calls without a result, unless the list ends with them. Tells for each item whether it lost
    /// one, and the first item whose calls wait for their results.
    fn drop_unanswered(
        &self,
        provider: Provider,
        items: &mut [Item<'_>],
        last: bool,
        left_out: &mut Vec<UnrenderedPart>,
    ) -> (Vec<bool>, usize) {
        let mut lost = vec![false; items.len()];
        let end =
            items.iter().rposition(|item| item.pieces.iter().any(|piece| piece.keep)).map_or(0, |n| n + 1);
        let last_said = items[..end].last().and_then(|item| item.said().last());
        let ends_with_call = last_said.is_some_and(|piece| matches!(piece.kind, Kind::Call { .. }));
        let waits = |item: &Item<'_>| match provider {
            // The calls of a reply may have other items of it between them.
            Provider::OpenaiResponses => ends_with_call && item.role == Role::Assistant,
            _ => item.calls(),
        };
        let start = match last {
            true => items[..end].iter().rposition(|item| !waits(item) && !item.is_silent()),
            false => items.len().checked_sub(1),
        };
        let start = start.map_or(0, |n| n + 1);
        let answered = |items: &[Item<'_>], call: usize| self.answer_of(items, call).is_some();
        // If one of parallel calls has its result, the others cannot wait: a provider wants all or none.
        let waits = !(0..self.calls.len())
            .any(|call| self.calls[call].is_some_and(|(i, _)| i >= start) && answered(items, call));
        for (call, place) in self.calls.iter().enumerate() {
            let Some((i, p)) = *place else { continue };
            if !items[i].pieces[p].keep || answered(items, call) || waits && i >= start {
                continue;
            }
            items[i].pieces[p].keep = false;
            lost[i] = true;
            leave(left_out, &items[i], format!("call of {} without its result", self.pairs.calls[call].name));
        }
        (lost, if waits { start } else { items.len() })
    }

    /// Gives every call and its result the id under which they are written.
    fn name(&self, provider: Provider, items: &mut [Item<'a>], taken: &mut Taken) {
        let kept =
            |items: &[Item<'_>], call: usize| self.calls[call].filter(|(i, p)| items[*i].pieces[*p].keep);
        let given = |call: usize| self.pairs.calls[call].id.filter(|id| !id.is_empty());
        let all: Vec<usize> = (0..self.calls.len()).filter(|call| kept(items, *call).is_some()).collect();
        let mut ids = Ids::new(provider, taken, all.iter().filter_map(|call| given(*call)));
        for call in all {
            let Some((i, p)) = kept(items, call) else { continue };
            let id = ids.next(given(call));
            let piece = &mut items[i].pieces[p];
            piece.fresh |= id.as_deref() != given(call);
            piece.id = id.clone();
            if let Some((i, p)) = self.answer_of(items, call) {
                let own = self.pairs.calls[call].result.and_then(|answer| self.pairs.results[answer].id);
                let piece = &mut items[i].pieces[p];
                piece.fresh |= id.as_deref() != own;
                if let Kind::ToolResult { name, .. } = &mut piece.kind {
                    // A result is identified by the name of its call, regardless of its own.
                    piece.fresh |= provider == Provider::Gemini && *name != self.pairs.calls[call].name;
                    *name = self.pairs.calls[call].name;
                }
                piece.id = id;
            }
        }
    }

    /// Order of the steps: messages in the order of the items, results right after their calls.
    fn steps(
        &self,
        provider: Provider,
        items: &[Item<'a>],
        pending: usize,
        fits: &dyn Fn(&Item<'a>) -> bool,
    ) -> Vec<RenderStep> {
        let mut steps = Vec::new();
        let mut group: Vec<usize> = Vec::new();
        let mut done = vec![false; items.len()];
        let (mut parted, mut answered) = (false, false);
        for i in 0..=items.len() {
            let next = items.get(i).filter(|item| item.said().next().is_some());
            let joins = match (group.last(), next) {
                (Some(last), Some(next)) if joins(provider, &items[*last], next) => {
                    // Results may have stood between the two; if none will, they are neighbours now. Calls that wait are
                    // never beside answered ones, also if all that stood between them was left out.
                    !(parted || *last < pending && pending <= i) || !answered
                }
                _ => false,
            };
            let ends = i == items.len() || next.is_some() && !joins;
            if ends && !group.is_empty() {
                let group = std::mem::take(&mut group);
                answered = false;
                let answers = self.answers_to(provider, items, &group);
                let after = group.last().map_or(0, |last| last + 1);
                steps.push(RenderStep::Say(group));
                match whole(provider, items, after, &answers).filter(|m| fits(&items[*m])) {
                    Some(m) => {
                        done[m] = true;
                        steps.push(RenderStep::Whole(m));
                    }
                    None if answers.is_empty() => {}
                    None => steps.push(RenderStep::Answers(answers)),
                }
            }
            if next.is_some() && !done[i] {
                group.push(i);
                answered |= !self.answers_to(provider, items, &[i]).is_empty();
                parted = items[i].answers();
            } else {
                parted |= items.get(i).is_some_and(|item| !item.is_silent());
            }
        }
        steps
    }

    /// Results of the calls in these messages, in their original order.
    fn answers_to(&self, provider: Provider, items: &[Item<'_>], group: &[usize]) -> Vec<(usize, usize)> {
        let pieces = group.iter().flat_map(|i| items[*i].said());
        let calls = pieces.filter_map(|piece| match piece.kind {
            Kind::Call { call, .. } => Some(call),
            _ => None,
        });
        let mut answers: Vec<_> = calls.filter_map(|call| self.answer_of(items, call)).collect();
        // Gemini tells results without an id by name and order, so there the order is that of the calls.
        let by_order = |(i, p): &(usize, usize)| items[*i].pieces[*p].id.is_none();
        if provider != Provider::Gemini || !answers.iter().any(by_order) {
            answers.sort_unstable();
        }
        answers
    }
}

/// The message that holds exactly these results and can be written as it is, if the provider puts them into one, which
/// is never one of the assistant.
fn whole(provider: Provider, items: &[Item<'_>], after: usize, answers: &[(usize, usize)]) -> Option<usize> {
    let (m, _) = *answers.first()?;
    let item = &items[m];
    let between = items[after..m.max(after)].iter().any(|item| item.pieces.iter().any(|piece| piece.keep));
    let leads = answers.iter().enumerate().all(|(n, place)| *place == (m, n));
    let rest = &item.pieces[answers.len().min(item.pieces.len())..];
    let fine = match provider {
        Provider::Anthropic => !rest.iter().any(|piece| matches!(piece.kind, Kind::ToolResult { .. })),
        Provider::Gemini => rest.is_empty(),
        Provider::OpenaiChat | Provider::OpenaiResponses | Provider::Neutral => false,
    };
    (m >= after && item.role != Role::Assistant && fine && leads && !between && item.is_whole()).then_some(m)
}

/// Whether two neighbouring messages are written as one, so that parallel calls stay together, reasoning stays with what
/// it led to, and the items of one Responses turn become one message.
fn joins(provider: Provider, last: &Item<'_>, next: &Item<'_>) -> bool {
    if last.role != Role::Assistant || next.role != Role::Assistant {
        return false;
    }
    let thinks = last.said().last().is_some_and(|piece| matches!(piece.kind, Kind::Reasoning { .. }));
    match provider {
        // A list of items has no messages to join; its turn is the whole run.
        Provider::OpenaiResponses => true,
        // Here a call must not follow words of the model in a content of their own.
        Provider::Gemini => next.calls() || !last.calls(),
        _ => thinks || next.calls() && (last.calls() || last.is_responses() && next.is_responses()),
    }
}

/// Leaves out whole turns whose signed reasoning cannot be shown with everything that it led to: a provider refuses
/// reasoning that stands alone, and may refuse it beside a turn that was changed.
///
/// A turn is a run of neighbouring messages of the assistant; a message that begins with reasoning begins a new one,
/// unless the one before it is nothing but reasoning, and so does one that results will part from the one before it.
fn drop_broken_turns(
    provider: Provider,
    items: &mut [Item<'_>],
    lost: &[bool],
    left_out: &mut Vec<UnrenderedPart>,
) {
    let is_thought = |piece: &ContentPart<'_>| matches!(piece.kind, Kind::Reasoning { .. });
    let speaks = |item: &Item<'_>| item.said().next().is_some();
    let mut start = 0;
    while start < items.len() {
        let (mut end, mut last) = (start + 1, start);
        while end < items.len() && items[start].role == Role::Assistant && items[end].role == Role::Assistant
        {
            let (before, next) = (&items[last], &items[end]);
            let begins = next.said().next().is_some_and(is_thought) && !before.said().all(is_thought);
            let parted = before.calls() && speaks(next) && !joins(provider, before, next);
            // A message that holds results itself is parted from the next one by them.
            if begins || parted || items[end - 1].answers() {
                break;
            }
            if speaks(next) {
                last = end;
            }
            end += 1;
        }
        let turn = &items[start..end];
        let signed = turn.iter().any(|item| item.said().any(|piece| piece.seal == Some(provider)));
        let changed = (start..end).any(|i| lost[i] || items[i].lost);
        let last = turn.iter().flat_map(|item| item.said()).last();
        let dangles = last.is_some_and(is_thought) && provider != Provider::Neutral;
        if signed && changed || dangles {
            for item in &mut items[start..end] {
                if item.said().next().is_none() {
                    continue;
                }
                leave(left_out, item, "signed turn that cannot be shown as a whole");
                for piece in &mut item.pieces {
                    piece.keep &= matches!(piece.kind, Kind::ToolResult { .. });
                }
            }
        }
        start = end;
    }
}

/// Puts the speaker's name before the words where the message cannot carry it. A message with signed parts stays as it
/// is, and so does one in which the assistant says nothing.
fn say_name(provider: Provider, item: &mut Item<'_>) {
    let carries = match provider {
        Provider::OpenaiChat => item.name.is_none_or(is_actor_name),
        Provider::Neutral => true,
        Provider::OpenaiResponses | Provider::Anthropic | Provider::Gemini => item.name.is_none(),
    };
    let signed = item.said().any(|piece| piece.seal == Some(provider));
    let (Some(name), false, true, false) = (item.name, carries, item.said().next().is_some(), signed) else {
        return;
    };
    let name = name.trim();
    let words = item.pieces.iter_mut().filter(|piece| piece.keep).find_map(|piece| match &mut piece.kind {
        Kind::Text(text) => Some((text, &mut piece.fresh)),
        _ => None,
    });
    match words {
        Some((text, fresh)) => {
            *text = Cow::Owned(format!("{name}: {text}"));
            *fresh = true;
        }
        None if item.role == Role::Assistant => {}
        None => item.pieces.insert(0, ContentPart::words(format!("{name}:"))),
    }
}

/// Items that followed a reasoning item which is not sent must not name themselves: the server would look up that
/// reasoning and miss it. What has nothing but its name is left out, which may leave an earlier reasoning item without
/// anything that follows it, so this comes before [`drop_broken_turns`].
///
/// Reasoning in a block is another provider's, of which this server knows nothing.
fn forget_ids_after_dropped_reasoning(items: &mut [Item<'_>], left_out: &mut Vec<UnrenderedPart>) {
    let mut missing = false;
    for item in items {
        missing &= item.role == Role::Assistant;
        let is_item = item.own.get("role").is_none();
        if let (true, [ContentPart { kind: Kind::Reasoning { .. }, keep, .. }]) =
            (is_item, item.pieces.as_slice())
        {
            missing = !keep;
            continue;
        }
        if !missing || item.own.get("id").is_none() {
            continue;
        }
        let mut dropped = false;
        for piece in &mut item.pieces {
            dropped |= piece.keep && matches!(piece.kind, Kind::Hosted(_));
            piece.keep &= !matches!(piece.kind, Kind::Hosted(_));
            piece.fresh = true;
        }
        if dropped {
            leave(left_out, item, "something that belongs to reasoning which is left out");
        }
    }
}

/// A call of a special kind wants a result of that kind; where there is none, both are written as plain functions.
fn keep_kinds_together(items: &mut [Item<'_>], table: &Table<'_, '_>) {
    for call in 0..table.calls.len() {
        let (Some((ci, cp)), Some((ai, ap))) = (table.calls[call], table.answer_of(items, call)) else {
            continue;
        };
        let kind = |i: usize| items[i].own.get("type").and_then(|kind| kind.as_str()).unwrap_or_default();
        if kind(ci) == "function_call" && kind(ai) == "function_call_output" {
            continue;
        }
        let goes = |i: usize, p: usize| !items[i].pieces[p].fresh && responses::takes(&items[i].pieces[p]);
        let special = kind(ci) != "function_call";
        let pair = format!("{}_output", kind(ci)) == kind(ai) && goes(ci, cp) && goes(ai, ap);
        items[ai].pieces[ap].fresh |= !pair;
        items[ci].pieces[cp].fresh |= !pair && special;
    }
}

/// Anthropic refuses words that end in white space where its answer would continue them.
fn trim_last_words(item: &mut Item<'_>) {
    let said = |piece: &&mut ContentPart<'_>| piece.keep && !matches!(piece.kind, Kind::ToolResult { .. });
    let Some(piece) = item.pieces.iter_mut().rfind(said) else { return };
    if let (Kind::Text(text), Role::Assistant) = (&mut piece.kind, item.role)
        && text.trim_end().len() < text.len()
    {
        *text = Cow::Owned(text.trim_end().to_string());
        piece.fresh = true;
    }
}
