//! Building the context of a model call, and rebuilding it from its receipt.

use super::ConversationContexts;
use super::options::ContextOptions;
use super::projecting::{ProjectionBody, prompt_hash};
use super::receipts::{Receipt, ReceiptPolicy};
use super::render::{mark_cache, rendered_cost};
use crate::conversation::ConversationHandle;
use crate::conversation::due::too_late;
use crate::recall::turn_piece;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::{Settings, view_start};
use everturn_core::error::code;
use everturn_core::event::Visibility;
use everturn_core::id::{EventId, TurnId};
use everturn_core::json::Raw;
use everturn_core::limits::{PAGE_BYTES_MAX, PAGE_ENTRIES_MAX};
use everturn_core::pairing::{self, CallRef};
use everturn_core::redaction::RedactionMode;
use everturn_core::turn::{Status, Turn};
use everturn_core::viewer::{Viewer, common_audience, is_for_everyone};
use everturn_formats::provider::{self, Provider};
use everturn_store::TurnQuery;
use everturn_views::compaction::{self, Checkpoint};
use everturn_views::context::{
    self, Assembled, BlockSource, Cache, ContextBlock, ContextMessage, ContextSelection, ContextText,
    ContextTokens, FREE_PART, GivenUp, LeftOut, Material, Section, Seen, Unshown, answer_abandoned,
    drop_unanswered, drop_unpaired, seen_by,
};
use everturn_views::projection::{self, Message, Shown};
use everturn_views::state::{Abandoned, AbandonedBody, Fold, State, Tool};
use everturn_views::tokens::{PART_TOKENS, TokenizerFamily};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

/// Turns of the tail read at a time.
const PAGE: usize = 64;
/// With a projection, the tail is gathered up to this many times the budget: hidden messages make room for more.
const PROJECTED_BUDGETS: u64 = 4;
/// Most budgets' worth of the tail that is read where turns that are too large leave room for older ones; and the part of the
/// budget that is so left free.
const READ_BUDGETS_MAX: u64 = 16;
const SPARSE_PART: u64 = 4;
/// Most turns of the tail that are read although they will not fit.
const SKIPPED_MAX: usize = 64;
/// Rendering may cost a little more than was counted; the budget is lowered by the difference and the build repeated. A
/// smaller budget may let in turns that cost more again, so after this many times it is lowered by twice as much each time.
const EXACT_ATTEMPTS: u32 = 4;
/// Version of the renderers; a change of their output changes it. A receipt of another version cannot be replayed.
pub(super) const RENDERER_VERSION: u32 = 1;
/// Most edits looked at beside a checkpoint that covers the turns that they replace. Frozen: receipts are replayed with it.
const EDITS_MAX: usize = 16;
/// Bytes after which no more edits are shown: nothing makes them shorter where room is scarce. Frozen as well.
const EDITS_BYTES: usize = 4 * 1024;

/// Context of a model call.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Context {
    /// Messages in the provider's shape.
    pub messages: Vec<Raw>,
    /// System prompt for the provider's field; absent if it is the first message, or there is none.
    pub system: Option<Raw>,
    /// Token counts.
    pub tokens: ContextTokens,
    /// Included blocks, in order.
    pub included: Vec<ContextBlock>,
    /// Blocks left out, with the reasons.
    pub left_out: Vec<LeftOut>,
    /// Hash of system prompt and messages: the same log and the same options give the same hash.
    pub prefix_hash: String,
    /// Part of the context that a prompt cache still covers, compared with the last recorded call.
    pub cache: Cache,
    /// Proof of the context, to be recorded when it is used.
    pub receipt: Receipt,
    /// Whether no turn and no input is left in the provider's shape.
    #[serde(skip)]
    pub(super) is_empty: bool,
    #[serde(skip)]
    pub(super) given: Vec<(Hash, String)>,
    /// The event of its projection, recorded with the receipt.
    #[serde(skip)]
    pub(super) projection: Option<ProjectionBody>,
}

impl Context {
    /// Refuses a context without anything to reply to, or with a tool call at its end: no provider accepts that.
    pub fn check_asks(&self) -> Result<(), Error> {
        let said = |block: &ContextBlock| matches!(block.section, Section::Tail | Section::Input);
        if self.is_empty || !self.included.iter().any(said) {
            return Err(provider::nothing_to_reply_to());
        }
        let last = self.messages.last().and_then(Raw::read::<Value>);
        let pairs = pairing::pair(&last);
        match pairs.calls.iter().find(|call| call.result.is_none()) {
            Some(call) => Err(Error::conflict(
                "generate.call_waits",
                format!(
                    "the conversation ends with the call {} of {}, which has no result yet; append its result, give it up \
                     (`abandon-call`), or say something that the model is to answer",
                    call.id.unwrap_or("without an id"),
                    call.name
                ),
            )),
            None => Ok(()),
        }
    }

    /// Whether a good part of the budget is free although there are turns that were not read.
    fn has_room_for_older(&self) -> bool {
        let is_unread = |left: &LeftOut| left.section == Section::Tail && left.is_unread();
        self.tokens.used < self.tokens.budget - self.tokens.budget / SPARSE_PART
            && self.left_out.iter().any(is_unread)
    }

    /// Refuses a context that leaves turns out for lack of room.
    pub fn check_whole(&self) -> Result<(), Error> {
        match self.left_out.iter().any(LeftOut::lacked_room) {
            false => Ok(()),
            true => Err(Error::too_large(
                "context.truncated",
                format!(
                    "the conversation does not fit into {} tokens; compact it, take a model with more room, or let the oldest \
                     turns be left out",
                    self.tokens.budget
                ),
            )),
        }
    }
}

/// Material gathered before it is decided what fits.
#[derive(Default)]
struct Gathered {
    material: Material,
    /// The projection of the tail.
    projection: Option<ProjectionBody>,
    /// Whether all of it is for everyone.
    is_public: bool,
    /// Parts of the tail that no renderer shows, by the `seq` of their messages.
    left_out: Vec<Unshown>,
}

impl ConversationContexts<'_> {
    /// Builds the context of a model call within the budget. Reads the checkpoint and the tail, not the history.
    pub fn build(&self, options: &ContextOptions) -> Result<Context, Error> {
        if options.at_seq.is_none() {
            // The prompt is the same whenever it is replayed, so what has expired is recorded first.
            self.0.settle_if_due()?;
        }
        let mut actors = options.participants.clone();
        actors
            .extend(options.replies_as.iter().filter(|actor| !options.participants.contains(actor)).cloned());
        let (options, mode) = (options.clone(), self.0.redaction()?);
        let mut options = if mode == RedactionMode::Mask { options.masked()? } else { options };
        let has_private_input = options.open_private()?;
        if !self.0.tenant.caller().actors().is_empty() {
            options.asked.iter().try_for_each(|turn| self.0.visible_turn(*turn).map(drop))?;
        }
        let mut context = self.0.claiming(&actors)?.context_with(&options, None)?;
        if has_private_input {
            let names = || self.0.tenant.viewer().names().unwrap_or_default();
            context.receipt.audience.get_or_insert_with(names);
        }
        Ok(context)
    }
}

impl ConversationHandle {
    pub(super) fn context_with(
        &self,
        options: &ContextOptions,
        recorded: Option<&Receipt>,
    ) -> Result<Context, Error> {
        let key = self.key();
        let conversation = self.shared().journal.index.conversation(key)?;
        let through = options.at_seq.unwrap_or(conversation.head.seq);
        if through == 0 || through > conversation.head.seq {
            return Err(everturn_core::write::no_such_seq(&conversation, through));
        }
        let fold = match options.at_seq {
            None if self.is_still(&conversation) => self.fold_now(&conversation)?,
            _ => self.shared().fold(key, through)?,
        };
        let mut read_budgets = recorded.map_or(1, |receipt| receipt.policy.read_budgets);
        loop {
            let context = self.context_reading(&fold, options, recorded, read_budgets);
            let is_last = recorded.is_some() || read_budgets >= READ_BUDGETS_MAX;
            let may_have_older = match &context {
                Ok(context) => context.has_room_for_older(),
                Err(error) => error.is(code::BUDGET_TOO_SMALL),
            };
            if is_last || !may_have_older {
                return context;
            }
            read_budgets *= 4;
        }
    }

    /// The context, of a tail that is worth so many budgets.
    fn context_reading(
        &self,
        fold: &Fold,
        options: &ContextOptions,
        recorded: Option<&Receipt>,
        read_budgets: u64,
    ) -> Result<Context, Error> {
        let (family, through) = (options.family(), fold.through_seq);
        let projection = match (&options.projection, recorded) {
            (None, None) => self.contexts().default_projection()?,
            (given, _) => given.clone(),
        };
        let Gathered { mut material, projection, mut is_public, left_out } =
            self.gather(fold, options, projection.as_ref(), recorded, read_budgets)?;
        let tools = options.tools.iter().map(|tool| family.count(tool.get()) + PART_TOKENS).sum();
        let mut request = ContextSelection {
            token_budget: options.token_budget,
            last_n: options.last_n,
            sections: options.sections.clone(),
            family,
            tools_tokens: tools,
            begins: None,
        };
        let mut checkpoint = None;
        let mut is_shortened = self.fit_checkpoint(fold, &request, &mut checkpoint, &mut material)?;
        let asked = self.audience_of(&options.asked)?;
        let mut begins = through + 1;
        if options.recall.is_some() {
            // The reach of the tail decides which turns are older than it; recalled text only makes it shorter.
            let alone = context::assemble(&request, &material)?;
            begins = alone.messages.iter().filter_map(|said| said.seq).min().unwrap_or(begins);
            request.begins = Some(begins);
        }
        match (recorded, &options.recall) {
            (Some(receipt), _) => is_public &= self.recalled_before(receipt, &mut material)?,
            (None, Some(recall)) => {
                is_public &= self.recalled_now(options, recall, (begins, through), &mut material)?;
            }
            (None, None) => {}
        }
        for attempt in 1_u32.. {
            is_shortened |= self.fit_checkpoint(fold, &request, &mut checkpoint, &mut material)?;
            let assembled = match context::assemble(&request, &material) {
                Err(error) if attempt > 1 && error.is(code::BUDGET_TOO_SMALL) => break,
                assembled => assembled?,
            };
            if recorded.is_none() {
                context::check_newest(options.token_budget, &request, &material, &assembled)?;
            }
            let mut rendered = self.render(options.provider, &assembled, &asked)?;
            if options.provider == Provider::Anthropic {
                mark_cache(options, &assembled, &mut rendered)?;
            }
            let used = rendered_cost(family, &rendered) + tools + everturn_views::tokens::PROMPT_TOKENS;
            if let Some(over) = used.checked_sub(options.token_budget).filter(|over| *over > 0) {
                if request.token_budget == 0 {
                    break;
                }
                let step = over.saturating_mul(1_u64 << attempt.saturating_sub(EXACT_ATTEMPTS).min(32));
                request.token_budget = request.token_budget.saturating_sub(step);
                continue;
            }
            // Joined sections cost a little less than each by itself; the reported counts add up.
            let used = used.max(assembled.tokens.used);
            let assembled = Assembled { tokens: ContextTokens { used, ..assembled.tokens }, ..assembled };
            let is_cut = material.more || assembled.tail < material.tail.len();
            let shown_from = assembled.messages.iter().filter_map(|said| said.seq).min();
            let is_told = |seq: &Option<u64>| !is_cut || *seq >= shown_from;
            let mut context = self.finish(fold, options, assembled, rendered, projection)?;
            context.receipt.policy.read_budgets = read_budgets;
            let told = left_out.into_iter().filter(|(seq, _)| is_told(seq)).map(|(_, left)| left);
            context.left_out.splice(..0, told);
            if is_shortened {
                let reason = "the checkpoint is shortened to fit".to_string();
                context.left_out.push(LeftOut { section: Section::State, source: None, turns: None, reason });
            }
            context.receipt.audience = (!is_public).then(|| match self.tenant.viewer().names() {
                None => Vec::new(),
                // Nothing but the question is private.
                Some(names) if names.is_empty() => asked.clone(),
                Some(names) if options.asked.is_empty() => names,
                Some(names) => names.into_iter().filter(|name| asked.contains(name)).collect(),
            });
            return Ok(context);
        }
        Err(Error::too_large(
            code::BUDGET_TOO_SMALL,
            format!(
                "token_budget is {}, and the fixed parts do not fit once rendered; raise it",
                options.token_budget
            ),
        ))
    }

    /// Actors that see all of these private turns.
    fn audience_of(&self, turns: &[TurnId]) -> Result<Vec<String>, Error> {
        let turn = |id: &TurnId| self.shared().journal.index.turn_in(self.key(), *id);
        Ok(common_audience(&turns.iter().map(turn).collect::<Result<Vec<_>, _>>()?))
    }

    /// Shortens the checkpoint until everything that is never left out fits. `checkpoint` is what is left of it, if it was
    /// shortened before.
    fn fit_checkpoint(
        &self,
        fold: &Fold,
        request: &ContextSelection,
        checkpoint: &mut Option<Checkpoint>,
        material: &mut Material,
    ) -> Result<bool, Error> {
        if !context::lacks_room(request, material)? {
            return Ok(false);
        }
        let edits = self.edits(fold)?;
        let rendered = |shown: &Checkpoint| match &edits {
            Some((note, _)) => compaction::render(&with_note(shown.clone(), note)),
            None => compaction::render(shown),
        };
        let shown = match checkpoint.take() {
            Some(shown) => Some(shown),
            None => self.checkpoint(fold.checkpoint)?,
        };
        let (Some(shown), Some(state)) = (shown, &material.state) else { return Ok(false) };
        let old = rendered(&shown);
        let with = |left: &Checkpoint| ContextText {
            text: state.text.replacen(&old, &rendered(left), 1),
            ..state.clone()
        };
        let fitted = |tail: u64| {
            let room = context::room_for_state(request, material, tail);
            let fits = |left: &Checkpoint| context::state_tokens(request.family, &with(left)) <= room;
            compaction::fitted(&shown, fits)
        };
        let mut left = fitted(context::newest_tokens(request, material)?);
        if left.is_none() {
            // The newest turn is left out in any case; the checkpoint need not be.
            left = context::least_older(request, material).and_then(fitted);
        }
        // The error says how little is enough.
        let left = left.unwrap_or_else(|| Checkpoint { goal: shown.goal.clone(), ..Checkpoint::default() });
        let is_shortened = left != shown;
        material.state = Some(with(&left));
        *checkpoint = Some(left);
        Ok(is_shortened)
    }

    fn finish(
        &self,
        fold: &Fold,
        options: &ContextOptions,
        assembled: Assembled<'_>,
        rendered: provider::Rendered,
        projection: Option<ProjectionBody>,
    ) -> Result<Context, Error> {
        let before = match fold.receipt {
            Some(seq) => self.event_at(seq)?.and_then(|event| event.read::<Receipt>()),
            None => None,
        };
        let Assembled { mut tokens, blocks, mut left_out, tail, .. } = assembled;
        tokens.budget = options.token_budget;
        left_out.extend(rendered.left_out.iter().map(|left| LeftOut {
            section: if left.message < tail { Section::Tail } else { Section::Input },
            source: None,
            turns: None,
            reason: left.what.clone(),
        }));
        for (section, used) in &tokens.by_section {
            metrics::counter!("everturn_context_tokens_total", "section" => section.as_str())
                .increment(*used);
        }
        let prefix_hash = format!("sha256:{}", prompt_hash(rendered.system.as_ref(), &rendered.messages));
        let receipt = Receipt {
            version: context::VERSION,
            renderer: options.provider.to_string(),
            renderer_version: RENDERER_VERSION,
            model: options.model.clone(),
            tokenizer: options.family().as_str().into(),
            policy: ReceiptPolicy {
                token_budget: options.token_budget,
                last_n: options.last_n,
                participants: options.participants.clone(),
                viewer: self.tenant.viewer().names(),
                sections: json!(options.sections),
                input_from: options.input_from,
                before: options.before,
                replies_as: options.replies_as.clone(),
                asked: options.asked.clone(),
                whole_view: projection.as_ref().is_some_and(|body| !body.of_receipt),
                read_budgets: 1,
                recall: options.recall.clone(),
            },
            through_seq: fold.through_seq,
            blocks: blocks.clone(),
            tools: options.tools.iter().map(|tool| Hash::of(tool.get().as_bytes())).collect(),
            projection: projection.as_ref().map(|body| body.metadata.clone()),
            used: tokens.used,
            prefix_hash: prefix_hash.clone(),
            audience: None,
        };
        Ok(Context {
            cache: before.map(|before| Cache::compare(&before.blocks, &blocks)).unwrap_or_default(),
            is_empty: rendered.is_empty(),
            given: options.given(),
            projection,
            messages: rendered.messages,
            system: rendered.system,
            included: blocks,
            tokens,
            left_out,
            prefix_hash,
            receipt,
        })
    }

    fn gather(
        &self,
        fold: &Fold,
        options: &ContextOptions,
        how: Option<&projection::ViewOptions>,
        receipt: Option<&Receipt>,
        read_budgets: u64,
    ) -> Result<Gathered, Error> {
        let recorded = receipt.and_then(|receipt| receipt.projection.as_ref());
        let family = options.family();
        let mut material = Material::default();
        let mut is_public = true;
        if options.sections.has(Section::System) {
            material.system.extend(self.prompt_piece(fold)?);
        }
        let instructions = options.instructions.iter().map(|text| given_piece(text.clone()));
        material.system.extend(instructions);
        if options.sections.has(Section::State) {
            material.state = self.state_piece(fold)?;
            // Of the state, only calls, what asks about them, and edits in turns can be private.
            if fold.checkpoint.is_some()
                || !fold.approvals.is_empty()
                || fold.tools.iter().any(|tool| tool.turn.is_some())
            {
                is_public = self.for_everyone().state_piece(fold)? == material.state;
            }
        }
        if options.sections.has(Section::Digests) {
            material.digests = options.digests.iter().map(|digest| given_piece(digest.piece())).collect();
        }
        for raw in options.input_messages()? {
            let message = Message::read(raw)?;
            let tokens = family.message(message.value());
            let (raw, message) = (message.raw().clone(), message.value().clone());
            material.input.push(ContextMessage {
                source: BlockSource::Given,
                seq: None,
                raw,
                message,
                tokens,
            });
        }
        let mut projection = None;
        if options.sections.has(Section::Tail) || options.input_from.is_some() {
            let how = match (how, recorded) {
                (_, Some(recorded)) => Some(How::Recorded(recorded)),
                (Some(how), None) => {
                    let how = how.clone().redacted(self.redaction()?)?;
                    let how = how.with_scratchpads(&self.scratchpads(fold)?);
                    Some(How::Now(Box::new(how), self.public_summary(fold)?))
                }
                (None, None) => None,
            };
            let whole = match receipt {
                Some(receipt) => receipt.policy.whole_view,
                None => options.participants.is_empty() && options.asked.is_empty(),
            };
            let projected = match &how {
                Some(how) if whole => self.projected_view(fold, options, how, receipt.is_some())?,
                _ => None,
            };
            (material.tail, projection) = match projected {
                Some((tail, body)) => (tail, Some(body)),
                None => {
                    let budgets = if how.is_some() { PROJECTED_BUDGETS } else { 1 };
                    let largest = options.token_budget.saturating_mul(budgets);
                    let room = Room { tokens: largest.saturating_mul(read_budgets), largest };
                    let (turns, more) = self.tail(fold, options, room)?;
                    material.more = more;
                    is_public &= turns.iter().all(|turn| turn.is_public);
                    self.projected_tail(fold, options, turns, how.as_ref())?
                }
            };
        }
        is_public &= projection.as_ref().is_none_or(|body| body.audience.is_none());
        material.tail = answer_abandoned(material.tail, &self.given_up(fold)?, family)?;
        if let Some(from) = options.input_from {
            material.input.splice(..0, take_input(&mut material.tail, from));
        }
        let waits = |call: &CallRef<'_>| fold.tools.iter().any(|tool| is_it(tool, call));
        let left_out;
        (material.tail, left_out) = drop_unpaired(material.tail, &material.input, waits, family)?;
        if !options.sections.has(Section::Tail) {
            (material.tail, material.more) = (Vec::new(), false);
        }
        Ok(Gathered { material, projection, is_public, left_out })
    }

    /// The tail as a projection of the whole messages view. `None` if that is too large to be held at once: then the end
    /// of it is projected.
    fn projected_view(
        &self,
        fold: &Fold,
        options: &ContextOptions,
        how: &How<'_>,
        replayed: bool,
    ) -> Result<Option<(Vec<ContextMessage>, ProjectionBody)>, Error> {
        let previous = self.previous_projection(fold)?;
        let projected = self.with_transcript(fold, |transcript| {
            let (after_seq, is_public) = (transcript.after_seq, transcript.is_public);
            let (view, turns) = match (how, options.before) {
                (How::Recorded(recorded), before) => transcript.replay(before, recorded)?,
                (How::Now(how, summary), Some(before)) => {
                    transcript.project_before(before, summary.as_deref(), how)?
                }
                (How::Now(how, summary), None) => {
                    transcript.project(summary.as_deref(), how, previous.as_ref())?
                }
            };
            let said =
                view.messages.iter().map(|shown| self.shown(options.family(), shown, |index| turns[index]));
            let body = ProjectionBody {
                text: view.reason.clone(),
                metadata: view.event()["metadata"].take(),
                after_seq,
                through_seq: fold.through_seq,
                before: options.before,
                of_receipt: false,
                viewer: self.tenant.viewer().names(),
                audience: (!is_public).then(|| self.tenant.viewer().names().unwrap_or_default()),
            };
            Ok((said.collect(), body))
        });
        match projected {
            Err(error) if error.is(code::LIMIT_EXCEEDED) && !replayed => Ok(None),
            projected => projected.map(Some),
        }
    }

    /// The tail as a projection of its own turns, or as it is.
    fn projected_tail(
        &self,
        fold: &Fold,
        options: &ContextOptions,
        turns: Vec<Tailed>,
        how: Option<&How<'_>>,
    ) -> Result<(Vec<ContextMessage>, Option<ProjectionBody>), Error> {
        let Some(how) = how else { return Ok((turns.into_iter().map(Tailed::said).collect(), None)) };
        let messages: Vec<Message> = turns.iter().map(|turn| turn.message.clone()).collect();
        let view = match how {
            How::Recorded(recorded) => projection::replay(&messages, recorded)?,
            How::Now(how, summary) => {
                let previous = self.previous_projection(fold)?;
                projection::project_after(&messages, summary.as_deref(), how, previous.as_ref())?
            }
        };
        let is_public = turns.iter().all(|turn| turn.is_public);
        let place = |index: usize| (turns[index].turn, turns[index].place);
        let said = view.messages.iter().map(|shown| self.shown(options.family(), shown, place)).collect();
        let body = ProjectionBody {
            text: view.reason.clone(),
            metadata: view.event()["metadata"].take(),
            after_seq: turns.first().map_or(0, |turn| turn.place - 1),
            through_seq: fold.through_seq,
            before: options.before,
            of_receipt: true,
            viewer: self.tenant.viewer().names(),
            audience: (!is_public).then(|| self.tenant.viewer().names().unwrap_or_default()),
        };
        Ok((said, Some(body)))
    }

    /// A message of a projection.
    fn shown(
        &self,
        family: TokenizerFamily,
        shown: &Shown<'_>,
        turn: impl Fn(usize) -> (TurnId, u64),
    ) -> ContextMessage {
        let turn = shown.source().map(turn);
        // Counts are cached for whole messages only, which others than the owner may not see.
        let is_whole = shown.is_unchanged() && *self.tenant.viewer() == Viewer::Owner;
        let tokens = match turn.filter(|_| is_whole) {
            Some((id, _)) => self.shared().count(family, id, shown.value()),
            None => family.message(shown.value()),
        };
        ContextMessage {
            source: turn.map_or(BlockSource::Made, |(id, _)| source(id)),
            seq: turn.map(|(_, place)| place),
            raw: shown.raw().clone(),
            message: shown.value().clone(),
            tokens,
        }
    }

    /// Abandoned calls of the messages view.
    fn given_up(&self, fold: &Fold) -> Result<Vec<GivenUp>, Error> {
        let (start, _) = view_start(fold.checkpoint, fold.budget);
        let shown = fold
            .abandoned
            .iter()
            .filter(|abandoned| abandoned.tool.place > start && abandoned.tool.turn.is_some());
        shown.map(|abandoned| self.read_given_up(abandoned)).collect()
    }

    /// An abandoned call, with the reason.
    pub(crate) fn read_given_up(&self, Abandoned { tool, seq }: &Abandoned) -> Result<GivenUp, Error> {
        let body = self.abandoned_body(*seq)?;
        let reason = body.and_then(|body| body.reason);
        Ok(GivenUp { turn: tool.turn, id: tool.id.clone(), name: tool.name.clone(), reason })
    }

    /// The event that gave a call up; the one that is due where there is none yet.
    pub(crate) fn abandoned_body(&self, seq: Option<u64>) -> Result<Option<AbandonedBody>, Error> {
        let Some(seq) = seq else {
            let conversation = self.shared().journal.index.conversation(self.key())?;
            let reason = conversation.abandon_tools_after_s().map(too_late);
            return Ok(Some(AbandonedBody { reason, ..AbandonedBody::default() }));
        };
        Ok(self.event_at(seq)?.and_then(|event| event.read::<AbandonedBody>()))
    }

    fn prompt_piece(&self, fold: &Fold) -> Result<Option<ContextText>, Error> {
        let Some(seq) = fold.prompt else { return Ok(None) };
        let event = self.event_at(seq)?;
        let id = event.as_ref().map(|event| event.id.to_string());
        let prompt = event.and_then(|e| e.read::<Settings>()).and_then(|s| s.system_prompt.flatten());
        Ok(prompt.map(|prompt| ContextText {
            source: BlockSource::Ids(id.into_iter().collect()),
            text: prompt.content,
        }))
    }

    /// The checkpoint in force, whose note says what was edited since; and the ids of these edits.
    pub(crate) fn checkpoint_with_edits(
        &self,
        fold: &Fold,
    ) -> Result<Option<(Checkpoint, Vec<String>)>, Error> {
        let checkpoint = self.checkpoint(fold.checkpoint)?;
        Ok(match self.edits(fold)? {
            Some((note, ids)) => Some((with_note(checkpoint.unwrap_or_default(), &note), ids)),
            None => checkpoint.map(|checkpoint| (checkpoint, Vec::new())),
        })
    }

    /// The transcript's summary: the handoff note of the checkpoint in force, with what was edited since.
    pub(crate) fn summary(&self, fold: &Fold) -> Result<Option<String>, Error> {
        Ok(self.checkpoint_with_edits(fold)?.map(|(checkpoint, _)| checkpoint.handoff_md))
    }

    /// The same as everyone may read it: a projection is recorded for all.
    pub(super) fn public_summary(&self, fold: &Fold) -> Result<Option<String>, Error> {
        self.for_everyone().summary(fold)
    }

    fn state_piece(&self, fold: &Fold) -> Result<Option<ContextText>, Error> {
        let mut state: State = self.read_state(fold, fold.updated)?;
        let mut edits = Vec::new();
        if let Some((checkpoint, ids)) = self.checkpoint_with_edits(fold)? {
            (state.checkpoint, edits) = (Some(checkpoint), ids);
        }
        let text = state.render_for_prompt();
        if text.is_empty() {
            return Ok(None);
        }
        let mut ids: Vec<String> = fold.checkpoint.map(|at| at.event.to_string()).into_iter().collect();
        ids.extend(edits);
        let places = state.pins.values().map(|pin| pin.seq);
        let places = places.chain(state.scratchpads.values().map(|scratchpad| scratchpad.seq));
        let places = places.chain(state.pending_approvals.iter().map(|waiting| waiting.requested_seq));
        for seq in places.chain(state.pending_tools.iter().map(|tool| tool.since_seq)) {
            ids.extend(self.event_at(seq)?.map(|event| event.id.to_string()));
        }
        ids.dedup();
        Ok(Some(ContextText { source: BlockSource::Ids(ids), text }))
    }

    /// Note on the turns that replace some that the checkpoint still tells of, and their ids.
    fn edits(&self, fold: &Fold) -> Result<Option<(String, Vec<String>)>, Error> {
        let Some(at) = fold.checkpoint else { return Ok(None) };
        let edits = self.edits_since(at, Some(fold.through_seq), EDITS_MAX)?;
        let pieces = edits.iter().filter_map(|turn| turn_piece(turn, &[]));
        let (mut ids, mut text) = (Vec::new(), String::new());
        for piece in pieces {
            if text.len() > EDITS_BYTES {
                text.push_str("\n\n… and other edits.");
                break;
            }
            if let BlockSource::Ids(turn) = piece.source {
                ids.extend(turn);
            }
            text = format!("{text}\n\n{}", piece.text);
        }
        let note = format!("Edited since this summary; these replace what it says of them:{text}");
        Ok((!text.is_empty()).then_some((note, ids)))
    }

    /// The newest turns, first one first, as many as could fit; and whether there are more.
    fn tail(&self, fold: &Fold, options: &ContextOptions, room: Room) -> Result<(Vec<Tailed>, bool), Error> {
        let gathered = self.tail_of(fold, options, room, None)?;
        let pairs = pairing::pair(gathered.0.iter().map(|turn| turn.message.value()));
        let is_paired = pairs.calls.iter().all(|call| call.result.is_some())
            && pairs.results.iter().all(|result| result.call.is_some());
        // Others can be told in words of a result that is no part any more.
        if is_paired && options.participants.is_empty() {
            return Ok(gathered);
        }
        match self.messages_after_edits(fold)? {
            None => Ok(gathered),
            read => self.tail_of(fold, options, room, read.as_ref()),
        }
    }

    /// The messages of the view as they read after edits, without calls and results that lost each other. `None` if nothing
    /// was edited.
    fn messages_after_edits(&self, fold: &Fold) -> Result<Option<HashMap<TurnId, Raw>>, Error> {
        let (start, _) = view_start(fold.checkpoint, fold.budget);
        let page = |after: u64, whole_log: bool| {
            self.turns(&TurnQuery {
                after: Some(after),
                before: Some(fold.through_seq + 1),
                as_of: Some(fold.through_seq),
                whole_log,
                limit: PAGE_ENTRIES_MAX,
                bytes_max: Some(PAGE_BYTES_MAX),
                ..TurnQuery::default()
            })
        };
        let read = self.edited_view(start, &page)?;
        Ok(read.map(|turns| turns.into_iter().filter_map(|turn| Some((turn.id, turn.message?))).collect()))
    }

    /// The tail, given the messages as they read where turns were edited.
    fn tail_of(
        &self,
        fold: &Fold,
        options: &ContextOptions,
        room: Room,
        read: Option<&HashMap<TurnId, Raw>>,
    ) -> Result<(Vec<Tailed>, bool), Error> {
        let family = options.family();
        let (start, _) = view_start(fold.checkpoint, fold.budget);
        // Counts are cached for whole messages only.
        let mut partial = HashSet::new();
        let mut turns: Vec<(Turn, Message)> = Vec::new();
        let mut private = HashSet::new();
        let (mut tokens, mut skipped) = (0, 0);
        let mut more = false;
        let mut before = options.before.unwrap_or(u64::MAX).min(fold.through_seq + 1);
        'pages: loop {
            let query = TurnQuery {
                after: Some(start),
                before: Some(before),
                as_of: Some(fold.through_seq),
                descending: true,
                limit: PAGE,
                ..TurnQuery::default()
            };
            let page = self.shared().journal.index.turns(self.key(), &query)?;
            let full = page.len() == PAGE;
            for turn in page {
                let is_asked = options.asked.contains(&turn.id);
                let mut turn = if is_asked { turn } else { self.tenant.viewer().turn(turn) };
                before = turn.place;
                if !is_for_everyone(&turn) {
                    private.insert(turn.id);
                }
                let is_for =
                    |actor: &String| turn.actor.as_ref() == Some(actor) || turn.audience.contains(actor);
                if is_asked || options.replies_as.as_ref().is_some_and(is_for) {
                    turn.visibility = Visibility::Public;
                }
                let stands = turn.status != Status::Pending && turn.superseded_by.is_none();
                let Some(mut raw) = turn.message.take().filter(|_| stands) else {
                    continue;
                };
                if let Some(read) = read.filter(|_| !is_asked) {
                    let Some(left) = read.get(&turn.id) else { continue };
                    if *left != raw {
                        partial.insert(turn.id);
                        raw = left.clone();
                    }
                }
                // One group more than asked for, so that the first one is complete.
                let enough = options.last_n.is_some_and(|n| turns.len() >= n.saturating_add(PAGE));
                let asked = options.input_from.is_some_and(|from| turn.place >= from);
                if (tokens > room.tokens || enough) && !asked {
                    more = true;
                    break 'pages;
                }
                let message = Message::read(raw)?;
                let cost = match partial.contains(&turn.id) {
                    true => family.message(message.value()),
                    false => self.count(family, &turn, message.value()),
                };
                let left = room.tokens.saturating_sub(tokens);
                let fits = cost <= left.min(room.largest);
                // If a turn does not fit, older ones may.
                if !fits && left >= room.tokens / FREE_PART && skipped < SKIPPED_MAX {
                    skipped += 1;
                } else {
                    tokens += cost;
                }
                turns.push((turn, message));
            }
            if !full {
                break;
            }
        }
        turns.reverse();
        if !options.participants.is_empty() {
            turns = self.without_unanswered(fold, options, turns)?;
        }
        let said: Vec<(&Turn, Option<&Value>)> =
            turns.iter().map(|(turn, message)| (turn, Some(message.value()))).collect();
        let seen = seen_by(&options.participants, &said);
        let mut tail = Vec::new();
        for ((turn, message), seen) in turns.into_iter().zip(seen) {
            let (message, tokens) = match seen {
                Seen::Hidden => continue,
                Seen::Own => {
                    let tokens = match partial.contains(&turn.id) {
                        true => family.message(message.value()),
                        false => self.count(family, &turn, message.value()),
                    };
                    (message, tokens)
                }
                Seen::Told(told) => {
                    let tokens = family.message(&told);
                    (Message::of(told)?, tokens)
                }
            };
            let is_public = !private.contains(&turn.id);
            tail.push(Tailed { turn: turn.id, place: turn.place, tokens, message, is_public });
        }
        Ok((tail, more))
    }

    /// Turns of others than the participants without calls whose result is gone, as after an edit of it.
    fn without_unanswered(
        &self,
        fold: &Fold,
        options: &ContextOptions,
        turns: Vec<(Turn, Message)>,
    ) -> Result<Vec<(Turn, Message)>, Error> {
        let input =
            options.input_messages()?.into_iter().map(Message::read).collect::<Result<Vec<_>, _>>()?;
        let (mut said, messages): (Vec<Option<Turn>>, Vec<Message>) =
            turns.into_iter().map(|(turn, message)| (Some(turn), message)).unzip();
        let is_told = |index: usize| {
            let actor = said[index].as_ref().and_then(|turn| turn.actor.as_ref());
            actor.is_none_or(|actor| !options.participants.contains(actor))
        };
        let given_up = fold.abandoned.iter().map(|abandoned| &abandoned.tool);
        let unanswered: Vec<&Tool> = fold.tools.iter().chain(given_up).collect();
        let waits = |call: &CallRef<'_>| unanswered.iter().any(|tool| is_it(tool, call));
        let left = drop_unanswered(&messages, &input, is_told, waits)?;
        Ok(left.into_iter().filter_map(|(index, message)| Some((said[index].take()?, message))).collect())
    }

    /// Tokens of a turn's message. Counts are cached for whole messages only.
    fn count(&self, family: TokenizerFamily, turn: &Turn, message: &Value) -> u64 {
        if turn.hidden { family.message(message) } else { self.shared().count(family, turn.id, message) }
    }
}

fn with_note(checkpoint: Checkpoint, note: &str) -> Checkpoint {
    let handoff_md = match checkpoint.handoff_md.as_str() {
        "" => note.to_string(),
        told => format!("{told}\n\n{note}"),
    };
    Checkpoint { handoff_md, ..checkpoint }
}

/// Whether this is the call that waits.
fn is_it(tool: &Tool, call: &CallRef<'_>) -> bool {
    tool.id.as_deref() == call.id && tool.name == call.name
}

/// Splits the input off the end of the tail, with the tool calls that it answers.
fn take_input(tail: &mut Vec<ContextMessage>, from: u64) -> Vec<ContextMessage> {
    let first = tail.iter().position(|said| said.seq.is_some_and(|seq| seq >= from)).unwrap_or(tail.len());
    let first = pairing::pair(tail.iter().map(|said| &said.message)).cut_at_or_before(first);
    tail.split_off(first)
}

/// Limits on reading the tail.
#[derive(Clone, Copy)]
struct Room {
    /// Tokens of all turns that may fit.
    tokens: u64,
    /// Most tokens of one of them.
    largest: u64,
}

/// A turn of the tail.
#[derive(Clone)]
struct Tailed {
    turn: TurnId,
    place: u64,
    tokens: u64,
    message: Message,
    /// Whether all of it is for everyone.
    is_public: bool,
}

/// A turn as a source.
fn source(turn: TurnId) -> BlockSource {
    BlockSource::Ids(vec![EventId(turn.0).to_string()])
}

/// The projection to make.
enum How<'a> {
    /// As recorded.
    Recorded(&'a Value),
    /// With these options and this summary.
    Now(Box<projection::ViewOptions>, Option<String>),
}

impl Tailed {
    fn said(self) -> ContextMessage {
        ContextMessage {
            source: source(self.turn),
            seq: Some(self.place),
            raw: self.message.raw().clone(),
            message: self.message.value().clone(),
            tokens: self.tokens,
        }
    }
}

fn given_piece(text: String) -> ContextText {
    ContextText { source: BlockSource::Given, text }
}
