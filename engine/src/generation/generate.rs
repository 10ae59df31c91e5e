//! Generation: the input is made durable, a context is built for it, a model is asked, and its reply is appended as
//! it arrives.
//!
//! Disk access runs on threads of its own; the reply is read on the runtime of the model clients.

use super::account::{
    Generated, Generating, GenerationState, GenerationStatus, Halt, News, Seat, absent_generation,
};
use super::options::{GenerateOptions, Regenerate};
use crate::caller::mask_name;
use crate::context::{Context, ContextOptions};
use crate::conversation::{AppendOptions, ConversationHandle, UNANSWERED, idempotency, repeat_or};
use crate::ingest::{DraftKind, NewTurn};
use crate::model::runtime::runtime;
use crate::model::{
    Configured, Delta, Finish, GenerationStep, ModelReply, ModelRequest, ModelSummarizer, Summarizer,
};
use crate::streaming::turn::NewStream;
use crate::tenant::Tenant;
use crate::writer::{Commit, closed};
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::error::code;
use everturn_core::event::{Draft, Visibility, kind};
use everturn_core::id::{ConversationId, EventId, FactId, GenerationId, TurnId, clip};
use everturn_core::json::Raw;
use everturn_core::pairing;
use everturn_core::policy::OnOverflow;
use everturn_core::turn::{Role, Status, Tokens, Turn, reason};
use everturn_core::viewer::{Viewer, common_audience};
use everturn_core::write::{Idempotency, SupersededBody, absent, not_open};
use everturn_formats::provider::{self, NoMedia};
use everturn_formats::wire::ANTHROPIC_OUTPUT_TOKENS_DEFAULT;
use everturn_store::{Committed, TurnQuery};
use everturn_views::context::{BlockSource, ContextBlock};
use futures_util::future::{BoxFuture, Either, select};
use futures_util::{FutureExt, StreamExt};
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tracing::field::Empty;
use tracing::{Instrument, Span};

/// Name of the default model.
const DEFAULT: &str = "default";

/// Tokens reserved for the reply by default, and at most a quarter of the model's context.
const OUTPUT_TOKENS_DEFAULT: u64 = ANTHROPIC_OUTPUT_TOKENS_DEFAULT;

/// Most turns read to find the parts of a request. Where tools ran for it, their results are the newest.
const LOOK_BACK: usize = 16;

/// Most items of a reply that are looked for on either side of one.
const ITEMS_MAX: usize = 64;

impl Tenant {
    /// Generations of the tenant, and the models that they can ask.
    pub fn generations(&self) -> TenantGenerations<'_> {
        TenantGenerations(self)
    }
}

/// The generations of a tenant.
pub struct TenantGenerations<'a>(&'a Tenant);

impl TenantGenerations<'_> {
    /// Asks a generation to stop. Its turn ends as interrupted, and what was said so far stays part of the
    /// conversation; if nothing was said, it ends as aborted.
    pub fn stop(&self, id: GenerationId) -> Result<GenerationStatus, Error> {
        self.status(id)?;
        let status = self.0.shared().generations.stop(self.0.name(), id)?;
        self.shown(status)?.ok_or_else(|| absent_generation(id))
    }

    /// Status of a generation. Ended ones are remembered for a while.
    pub fn status(&self, id: GenerationId) -> Result<GenerationStatus, Error> {
        let status = self.0.shared().generations.status(self.0.name(), id)?;
        self.shown(status)?.ok_or_else(|| absent_generation(id))
    }

    /// A generation as the caller may see it: without approvals that are hidden from it. `None` if the reply is a private turn of
    /// actors that the caller is not bound to.
    fn shown(&self, mut status: GenerationStatus) -> Result<Option<GenerationStatus>, Error> {
        let chat = self.0.conversation(status.conversation);
        if let GenerationState::Waiting { waits_for } = &mut status.state {
            let pending = chat.state().read()?.pending_approvals;
            waits_for.retain(|id| pending.iter().any(|approval| approval.approval_id == *id));
        }
        let Some(turn) = status.turn.filter(|_| !self.0.caller().actors().is_empty()) else {
            return Ok(Some(status));
        };
        match chat.visible_turn(turn) {
            Err(Error::NotFound(_)) => Ok(None),
            turn => turn.map(|_| Some(status)),
        }
    }

    /// The generations that run in a conversation, oldest first.
    pub fn running(&self, conversation: ConversationId) -> Result<Vec<GenerationStatus>, Error> {
        let running = self.0.shared().generations.running(&self.0.key(conversation));
        running.into_iter().filter_map(|status| self.shown(status).transpose()).collect()
    }

    /// Configured models: their names, and their names at the servers.
    pub fn models(&self) -> Vec<(String, String)> {
        let models = self.0.shared().options.models.iter();
        models.map(|(name, model)| (name.clone(), model.client.model().to_string())).collect()
    }

    /// The model that the caller brings, or the summarizer that a policy names; without a name the default.
    pub(crate) fn summarizer(&self, name: Option<&str>) -> Option<Arc<dyn Summarizer>> {
        match self.0.caller().model() {
            Some(model) => Some(Arc::new(ModelSummarizer::new(model.client.clone()))),
            None => self.0.shared().options.summarizers.get(name.unwrap_or(DEFAULT)).cloned(),
        }
    }

    /// A configured model, for use without a conversation; without a name the one that `generate` would use.
    pub fn model(&self, name: Option<&str>) -> Result<Configured, Error> {
        let brought = self.0.caller().model().filter(|_| name.is_none_or(|name| name == DEFAULT));
        if let Some(model) = brought {
            return Ok(model.clone());
        }
        let models = &self.0.shared().options.models;
        if models.is_empty() {
            let text = "no model is configured; add one to the settings, under [models.NAME] with base_url, api_key_env and model";
            return Err(Error::invalid(code::MODEL_NONE, text));
        }
        let found = match name {
            Some(name) => models.get(name),
            None => models.get(DEFAULT).or_else(|| models.values().next().filter(|_| models.len() == 1)),
        };
        found.cloned().ok_or_else(|| {
            let names: Vec<&str> = models.keys().map(String::as_str).collect();
            let text = match name {
                Some(name) => format!("{:?} is not one of {}", clip(name), names.join(", ")),
                None => format!("none of the models is called {DEFAULT}; name one of {}", names.join(", ")),
            };
            Error::invalid(code::MODEL_UNKNOWN, text)
        })
    }
}

/// Fills in options that follow from the model, and refuses invalid ones.
fn complete(model: &Configured, options: &mut GenerateOptions) -> Result<(), Error> {
    let context = &mut options.context;
    if options.regenerate.is_some() && !(options.input.is_empty() && context.input.is_empty()) {
        let text = "an answer is generated anew from what was said before it; leave the input out, or edit that turn first";
        return Err(Error::invalid("generate.regenerate_input", text));
    }
    if context.at_seq.is_some() || context.input_from.is_some() || context.before.is_some() {
        let text = "a generation goes on from the end of the log; leave at_seq, input_from and before out, or fork there first";
        return Err(Error::invalid("generate.at_seq", text));
    }
    context.provider = model.client.provider();
    context.model = Some(options.served_model.clone().unwrap_or_else(|| model.client.model().to_string()));
    let most = model.context_tokens;
    let output = options.max_output_tokens.unwrap_or(OUTPUT_TOKENS_DEFAULT.min(most / 4));
    if context.token_budget == 0 {
        context.token_budget = most.checked_sub(output).filter(|left| *left > 0).ok_or_else(|| {
            let text = format!(
                "max_output_tokens is {output} and the model takes {most} with the prompt; ask for less"
            );
            Error::too_large("generate.max_output_tokens", text)
        })?;
    }
    Ok(())
}

impl ConversationHandle {
    /// Appends the input, asks a model, and appends its reply. Begins at once and continues whether or not anybody
    /// waits; the future resolves once the input is durable, the receipt of the prompt is recorded, and the turn of
    /// the reply is open. A sync caller passes it to [`model::wait`](crate::model::wait).
    ///
    /// While approvals are pending, the model is not asked: the status of the generation names them, and it goes on when the
    /// last one is resolved or expires.
    ///
    /// A later failure ends that turn as aborted, with the reason and the text so far; the input stays. If the
    /// provider reports that the prompt is too long, the conversation is compacted and the model asked once more,
    /// unless the policy forbids it or tools already ran for this request: a tool result is in the input, or after
    /// the last user turn.
    pub fn generate(&self, options: GenerateOptions) -> BoxFuture<'static, Result<Generating, Error>> {
        match self.begin_generation(options) {
            Ok(begun) => async { begun.await.unwrap_or_else(|_| Err(closed())) }.boxed(),
            Err(error) => std::future::ready(Err(error)).boxed(),
        }
    }

    fn begin_generation(
        &self,
        mut options: GenerateOptions,
    ) -> Result<oneshot::Receiver<Result<Generating, Error>>, Error> {
        self.shared().journal.writable()?;
        let model = self.tenant.generations().model(options.model.as_deref())?;
        complete(&model, &mut options)?;
        options.actor.as_ref().map_or(Ok(()), |actor| self.tenant.caller().check(actor))?;
        self.shared().journal.conversation(self.key())?;
        let runtime = runtime()?;
        let generation = GenerationId(self.shared().journal.source.ulid()?);
        let (seat, mut halted) =
            self.shared().generations.begin(generation, self.key().clone(), options.parallel)?;
        let asking = Tenant::within(self.shared().clone(), self.key().tenant.clone())
            .called_by(self.tenant.caller().clone())
            .conversation(self.id());
        let conversation = asking.replying_as(options.actor.as_ref(), &options.context.participants)?;
        let mode = self.redaction()?;
        options.actor.iter_mut().for_each(|actor| mask_name(actor, mode));
        let (id, (tell, begun)) = (self.id(), oneshot::channel());
        let span = tracing::info_span!(
            "chat",
            gen_ai.operation.name = "chat",
            gen_ai.conversation.id = %self.id(),
            gen_ai.request.model = options.context.model.as_deref(),
            gen_ai.response.model = Empty,
            gen_ai.usage.input_tokens = Empty,
            gen_ai.usage.output_tokens = Empty,
            everturn.generation.id = %generation,
            "error.type" = Empty,
        );
        let (news, within) = (Arc::default(), span.clone());
        let work = Arc::new(Work { asking, conversation, generation, options, model, news, span });
        let run = async move {
            match work.prepared(&mut halted).await {
                Err(end) => {
                    let error = work.not_begun(end);
                    drop((work, seat));
                    let _ = tell.send(Err(error));
                }
                Ok((input, ready)) => {
                    let generating = Generating {
                        id: generation,
                        conversation: id,
                        input,
                        turn: ready.turn,
                        receipt_seq: ready.receipt_seq,
                        news: work.news.clone(),
                    };
                    // The caller may be gone; the reply is wanted all the same.
                    let _ = tell.send(Ok(generating));
                    follow(work, ready, halted, seat).await;
                }
            }
        };
        runtime.spawn(run.instrument(within));
        Ok(begun)
    }
}

/// A generation: its request and its model.
struct Work {
    /// For the input, in the name of the caller. Does not keep the store open.
    asking: ConversationHandle,
    /// For everything else, as the actor of the reply sees it: the prompt holds no private turns of others.
    conversation: ConversationHandle,
    generation: GenerationId,
    options: GenerateOptions,
    model: Configured,
    news: Arc<News>,
    span: Span,
}

/// A prepared model call.
#[derive(Clone)]
struct Ready {
    /// The open turn of the reply.
    turn: TurnId,
    receipt_seq: u64,
    /// Options with which the context was built.
    built: ContextOptions,
    used: u64,
    /// Whether tools already ran for this request.
    tools_ran: bool,
    /// The items of the answer that the reply replaces, in reading order.
    replaces: Vec<Turn>,
    /// The actors that the reply is for; `None` if everyone.
    audience: Option<Vec<String>>,
    system: Option<Raw>,
    messages: Vec<Raw>,
}

/// Reason why there is no reply.
enum End {
    Failed(Error),
    Halted(Halt),
}

impl From<Error> for End {
    fn from(error: Error) -> End {
        End::Failed(error)
    }
}

/// Follows a reply to its end. Releases the store before the registration.
async fn follow(work: Arc<Work>, ready: Ready, mut halted: oneshot::Receiver<Halt>, seat: Seat) {
    let (turn, replaces, last) = (ready.turn, ready.replaces.clone(), EndReport(work.news.clone()));
    let (receipt_seq, outcome) = work.clone().answered(ready, &mut halted).await;
    let finishing = work.clone();
    let ended = aside(move || finishing.finish(turn, &replaces, receipt_seq, outcome)).await.flatten();
    drop(work);
    drop(seat);
    last.0.end(ended);
}

/// Reports an end to the reader even if the generation broke off without one.
struct EndReport(Arc<News>);

impl Drop for EndReport {
    fn drop(&mut self) {
        self.0.end(Err(broken()));
    }
}

impl Work {
    /// Prepares everything up to the open turn. While approvals are pending, the model is not asked.
    async fn prepared(
        self: &Arc<Self>,
        halted: &mut oneshot::Receiver<Halt>,
    ) -> Result<(Vec<Turn>, Ready), End> {
        let work = self.clone();
        let (input, asked) = aside(move || work.append_input()).await.flatten()?;
        self.approved(halted).await?;
        let work = self.clone();
        Ok(aside(move || work.prepare(input, asked)).await.flatten()?)
    }

    /// Waits until no approval is pending: each is resolved, or expires.
    async fn approved(self: &Arc<Self>, halted: &mut oneshot::Receiver<Halt>) -> Result<(), End> {
        let generations = &self.conversation.shared().generations;
        let mut resolutions = generations.resolutions();
        loop {
            let work = self.clone();
            let (waits_for, left) = aside(move || work.pending_approvals()).await.flatten()?;
            let is_clear = waits_for.is_empty();
            generations.waits(self.generation, waits_for);
            if is_clear {
                return Ok(());
            }
            let expiry = async {
                match left {
                    Some(left) => tokio::time::sleep(left).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                why = &mut *halted => return Err(End::Halted(why.unwrap_or(Halt::Closed))),
                _ = resolutions.changed() => {}
                () = expiry => {}
            }
        }
    }

    /// Ids of all approvals that are pending, and the time until the first of them expires. Records those that have.
    fn pending_approvals(&self) -> Result<(Vec<String>, Option<Duration>), Error> {
        let chat = &self.conversation;
        chat.settle_if_due()?;
        let now = chat.shared().now();
        let fold =
            chat.shared().fold(chat.key(), chat.shared().journal.conversation(chat.key())?.head.seq)?;
        let pending: Vec<_> = fold.approvals.iter().filter(|waiting| !waiting.is_due(now)).collect();
        let left = pending.iter().filter_map(|waiting| waiting.deadline).min().map(|deadline| {
            Duration::from_micros(u64::try_from(deadline.0.saturating_sub(now.0)).unwrap_or(0))
        });
        Ok((pending.into_iter().map(|waiting| waiting.id.clone()).collect(), left))
    }

    /// Records the end of a generation whose turn was never open.
    fn not_begun(&self, end: End) -> Error {
        let error = match &end {
            End::Failed(error) => error.clone(),
            End::Halted(Halt::Closed) => closed(),
            End::Halted(Halt::TurnEnded) => absent(self.conversation.key()),
            End::Halted(Halt::Stopped) => {
                let text = format!("{} was stopped before the model was asked", self.generation);
                Error::conflict(code::GENERATION_STOPPED, text)
            }
        };
        self.note(&Err(end));
        error
    }

    /// Builds the context, records its receipt and opens the turn of the reply.
    fn prepare(&self, input: Vec<Turn>, asked: Option<Idempotency>) -> Result<(Vec<Turn>, Ready), Error> {
        if !self.options.whole {
            self.conversation.compact_before_call()?;
        }
        let replaces = self.replaced()?;
        let before = replaces.first().map(|turn| turn.place);
        // The question of a private answer is private too, and the caller sees both.
        let is_private = |turn: &&Turn| turn.visibility == Visibility::Private;
        let reader =
            if replaces.iter().any(|turn| is_private(&turn)) { &self.asking } else { &self.conversation };
        let recent = recent(reader, before)?;
        let from = input.first().or(recent.first()).map(|turn| turn.place);
        let said = if input.is_empty() { &recent[..recent.len().min(1)] } else { &input[..] };
        let questions: Vec<Turn> = said.iter().filter(is_private).cloned().collect();
        let viewer = self.conversation.tenant.viewer();
        let built = ContextOptions {
            input_from: from,
            before,
            replies_as: self.options.actor.clone().filter(|actor| viewer.is(Some(actor))),
            asked: questions.iter().map(|turn| turn.id).collect(),
            ..self.options.context.clone()
        };
        let context = self.conversation.contexts().build(&built)?;
        context.check_asks()?;
        if self.options.whole {
            context.check_whole()?;
        }
        let audience = self.audience(&context, &built, questions)?;
        let receipt_seq = self.conversation.contexts().record(&context)?.seq;
        let new = NewStream {
            actor: self.options.actor.clone(),
            role: Some(Role::Assistant),
            visibility: audience.as_ref().map(|_| Visibility::Private),
            audience: audience.clone().unwrap_or_default(),
            model: built.model.clone(),
            metadata: self.metadata(self.begun(receipt_seq))?,
            idempotency_key: None,
        };
        let opened = self.conversation.open_once(new, asked, |turn, is_repeated| match is_repeated {
            true => Err(being_answered(turn.id)),
            false => Ok(turn.id),
        });
        let turn = opened.wait()?;
        self.conversation.shared().generations.opened(self.generation, turn);
        let tools_ran = tools_ran(&input, &recent);
        let ready = Ready::new(turn, receipt_seq, built, tools_ran, context);
        Ok((input, Ready { replaces, audience, ..ready }))
    }

    /// Audience of the reply; `None` if it is public. A model may repeat its prompt, so a reply to private turns, or to a
    /// prompt with private content of other actors, is visible only to actors that may see all of that content.
    fn audience(
        &self,
        context: &Context,
        built: &ContextOptions,
        asked: Vec<Turn>,
    ) -> Result<Option<Vec<String>>, Error> {
        let is_own = |name: &&String| built.replies_as.as_ref() == Some(*name);
        let others: Vec<&String> = built.participants.iter().filter(|name| !is_own(name)).collect();
        if context.receipt.audience.is_none() || others.is_empty() {
            return Ok((!asked.is_empty()).then(|| common_audience(&asked)));
        }
        // A projector may have put anybody's words into messages of its own.
        let is_made = |block: &ContextBlock| block.source == BlockSource::Made;
        let is_rewritten = context.receipt.projection.is_some() && context.receipt.blocks.iter().any(is_made);
        let chat = &self.conversation;
        let own = Viewer::actors(built.replies_as.clone());
        let (mut private, mut facts) = (asked, Vec::new());
        for block in &context.receipt.blocks {
            let BlockSource::Ids(ids) = &block.source else { continue };
            for id in ids {
                if let Ok(EventId(id)) = id.parse() {
                    match chat.shared().journal.index.turn_in(chat.key(), TurnId(id)) {
                        Ok(turn) if private.iter().any(|known| known.id == turn.id) => {}
                        Ok(turn) if own.turn(turn.clone()).hidden => private.push(turn),
                        // Checkpoints, pins and the like are for everyone.
                        Ok(_) | Err(Error::NotFound(_)) => {}
                        Err(error) => return Err(error),
                    }
                } else {
                    facts.extend(id.parse::<FactId>());
                }
            }
        }
        let knows = |viewer: &Viewer| -> Result<bool, Error> {
            if facts.is_empty() {
                return Ok(true);
            }
            let known = chat.shared().facts_at(chat.key(), context.receipt.through_seq, viewer)?;
            Ok(facts.iter().all(|id| known.iter().any(|fact| fact.id == *id)))
        };
        let mut audience = match (private.is_empty(), knows(&own)?) {
            (true, true) if !is_rewritten => return Ok(None),
            (true, _) => others.iter().copied().cloned().collect(),
            (false, _) => common_audience(&private),
        };
        let mut seeing = Vec::new();
        for name in audience.drain(..) {
            if knows(&Viewer::actors(built.replies_as.iter().chain([&name]).cloned()))? {
                seeing.push(name);
            }
        }
        if seeing.is_empty() || is_rewritten && others.len() > 1 {
            let text = "the prompt has private turns of several participants, and no actor may see all of them, so no actor could see the reply; name one participant";
            return Err(Error::forbidden("generate.audience", text));
        }
        Ok(Some(seeing))
    }

    /// The input as turns, and the attempt at the request.
    fn append_input(&self) -> Result<(Vec<Turn>, Option<Idempotency>), Error> {
        let GenerateOptions { input, append, .. } = &self.options;
        if input.is_empty() {
            let attempt = self.attempt()?;
            let head =
                self.conversation.shared().journal.index.conversation(self.conversation.key())?.head.seq;
            if let Some(expected) = append.expected_seq.filter(|expected| *expected != head) {
                let text = format!("head is {head}, you expected {expected}; read on and ask again");
                return Err(Error::conflict(code::STALE_SEQ, text));
            }
            return Ok((Vec::new(), attempt));
        }
        self.check_first()?;
        let appended = self.asking.append_all(input.clone()).with(append.clone()).wait()?;
        let attempt = match appended.repeated {
            true => self.attempt()?,
            false => self.nth_attempt(0)?,
        };
        Ok((appended.turns, attempt))
    }

    /// The next attempt at this request, if it has a key. Refused if an earlier one was answered, or is under way.
    fn attempt(&self) -> Result<Option<Idempotency>, Error> {
        for nth in 0.. {
            let attempt = self.nth_attempt(nth)?;
            if attempt.is_none() {
                return Ok(None);
            }
            let unanswered = Error::not_found(UNANSWERED, "this attempt was not made before");
            let begun = |committed: Committed| Ok(committed.events.last().and_then(Turn::begun));
            let turn = match self.conversation.write(repeat_or(unanswered, attempt.clone()), begun).wait() {
                Err(error) if error.is(UNANSWERED) => return Ok(attempt),
                begun => begun?,
            };
            let Some(Turn { id, .. }) = turn else { continue };
            let conversation = &self.conversation;
            match conversation.shared().journal.index.turn_in(conversation.key(), id)?.status {
                Status::Complete => return Err(was_answered(id)),
                Status::Pending => return Err(being_answered(id)),
                Status::Aborted | Status::Interrupted => {}
            }
        }
        Ok(None)
    }

    /// An attempt at this request, if it has a key: what opens the turn of its reply.
    fn nth_attempt(&self, nth: u32) -> Result<Option<Idempotency>, Error> {
        let key = self.options.append.idempotency_key.clone();
        let asked = idempotency(self.asking.tenant.caller(), key, Some(Hash::of(b"reply")))?;
        // No key of a client has a line break.
        Ok(asked.map(|asked| Idempotency { key: format!("{}\nreply {nth}", asked.key), ..asked }))
    }

    /// Refuses an input that says nothing where nothing was said before, so that it is not appended.
    fn check_first(&self) -> Result<(), Error> {
        let conversation = self.conversation.shared().journal.conversation(self.conversation.key())?;
        if conversation.turns > 0 {
            return Ok(());
        }
        let messages = self.options.input.iter().map(|turn| Raw::new(turn.message.clone()));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        let input = provider::Input { system: &[], messages: &messages, media: &NoMedia };
        let rendered = provider::render(self.options.context.provider, &input)?;
        if rendered.is_empty() { Err(provider::nothing_to_reply_to()) } else { Ok(()) }
    }

    /// Turns that the reply supersedes, in reading order: the answer to regenerate, and interrupted attempts.
    fn replaced(&self) -> Result<Vec<Turn>, Error> {
        let cut_off = self.cut_off()?;
        let mut replaced = match self.options.regenerate {
            Some(regenerate) => self.answer_to_replace(regenerate, &cut_off)?,
            None => Vec::new(),
        };
        replaced.extend(cut_off);
        replaced.sort_by_key(|turn| turn.place);
        Ok(replaced)
    }

    /// The items of the answer to generate anew, in reading order.
    fn answer_to_replace(&self, regenerate: Regenerate, cut_off: &[Turn]) -> Result<Vec<Turn>, Error> {
        let (shared, key) = (self.conversation.shared(), self.conversation.key());
        let named = match regenerate {
            Regenerate::Turn(id) => self.asking.visible_turn(id)?,
            Regenerate::Last => {
                let is_cut_off = |turn: &Turn| cut_off.iter().any(|cut_off| cut_off.id == turn.id);
                let recent = recent(&self.asking, None)?.into_iter().filter(|turn| !is_cut_off(turn));
                let mut since = recent.take_while(|turn| turn.role != Role::User || answers_call(turn));
                since.find(|turn| turn.role == Role::Assistant).ok_or_else(|| {
                    let text = format!(
                        "{} does not end with an answer; generate one without `regenerate`",
                        self.conversation.id()
                    );
                    Error::invalid("generate.nothing_to_regenerate", text)
                })?
            }
        };
        let said =
            matches!(named.status, Status::Complete | Status::Interrupted) && named.superseded_by.is_none();
        if named.role != Role::Assistant || !said {
            let text = format!("{} is not an answer that stands; name one that history shows", named.id);
            return Err(Error::invalid("generate.not_an_answer", text));
        }
        let conversation = shared.journal.index.conversation(key)?;
        if named.place <= conversation.view_start().0 {
            let text = format!(
                "{} is covered by a summary, so that it cannot be generated anew in its place; branch from it instead",
                named.id
            );
            return Err(Error::conflict("generate.summarized", text));
        }
        let Some(answer) = answer_of(&named) else { return Ok(vec![named]) };
        // The items of a reply follow each other.
        let around = |query: TurnQuery| {
            let query = TurnQuery { limit: ITEMS_MAX, ..query };
            shared.journal.index.turns(key, &query)
        };
        let belongs = |turn: &Turn| turn.role == Role::Assistant && answer_of(turn) == Some(answer);
        let before =
            around(TurnQuery { before: Some(named.place), descending: true, ..TurnQuery::default() })?;
        let after = around(TurnQuery { after: Some(named.place), ..TurnQuery::default() })?;
        let mut items: Vec<Turn> = before.into_iter().take_while(belongs).collect();
        items.reverse();
        items.push(named);
        items.extend(after.into_iter().take_while(belongs));
        Ok(items)
    }

    /// Interrupted turns of earlier attempts at the same request, whose process died before the reply was complete. The new
    /// reply replaces them.
    fn cut_off(&self) -> Result<Vec<Turn>, Error> {
        let Some(request) = self.request() else { return Ok(Vec::new()) };
        let (index, key) = (&self.conversation.shared().journal.index, self.conversation.key());
        let view_start = index.conversation(key)?.view_start().0;
        // Also a private one, which a caller that names its actor in each request does not see.
        let query = TurnQuery { descending: true, limit: LOOK_BACK, ..TurnQuery::default() };
        let mut turns = index.turns(key, &query)?;
        let caller = &self.asking.tenant;
        turns.retain(|turn| {
            turn.status == Status::Interrupted
                && turn.message.is_some()
                && turn.place > view_start
                && request_of(turn) == Some(request)
                && (caller.caller().actors().is_empty() || !caller.viewer().turn(turn.clone()).hidden)
        });
        turns.reverse();
        Ok(turns)
    }

    /// Identity of the request, by its idempotency key.
    fn request(&self) -> Option<Hash> {
        let key = self.options.append.idempotency_key.as_ref()?;
        Some(Hash::of(self.asking.tenant.caller().own_key(key).as_bytes()))
    }

    /// The `generation` metadata of the reply's turn while it is open.
    fn begun(&self, receipt_seq: u64) -> serde_json::Value {
        let mut begun = json!({ "id": self.generation, "receipt_seq": receipt_seq });
        if let Some(request) = self.request() {
            begun["request"] = json!(request);
        }
        begun
    }

    /// Metadata of a turn of the reply.
    fn metadata(&self, generation: serde_json::Value) -> Result<BTreeMap<String, Raw>, Error> {
        let mut metadata = self.options.metadata.clone();
        metadata.entry("generation".to_string()).or_insert(Raw::of(&generation)?);
        Ok(metadata)
    }

    /// The reply, and the receipt of its prompt. A prompt that is too long is shortened once.
    async fn answered(
        self: Arc<Self>,
        ready: Ready,
        halted: &mut oneshot::Receiver<Halt>,
    ) -> (u64, Result<ModelReply, End>) {
        let mut shown = false;
        let first = self.ask(&ready, halted, &mut shown).await;
        let receipt_seq = ready.receipt_seq;
        let too_long =
            matches!(&first, Err(End::Failed(error)) if error.is(code::CONTEXT_OVERFLOW) && !shown);
        if !too_long || self.options.whole {
            return (receipt_seq, first);
        }
        let work = self.clone();
        match aside(move || work.shorter(ready)).await.flatten() {
            Ok(Some(shorter)) => {
                let receipt_seq = shorter.receipt_seq;
                (receipt_seq, self.ask(&shorter, halted, &mut shown).await)
            }
            Ok(None) => (receipt_seq, first),
            Err(error) => {
                tracing::warn!(code = error.code(), "the prompt was too long and could not be made shorter");
                (receipt_seq, first)
            }
        }
    }

    /// Asks once. Text goes to the open turn, everything goes to the reader.
    async fn ask(
        &self,
        ready: &Ready,
        halted: &mut oneshot::Receiver<Halt>,
        shown: &mut bool,
    ) -> Result<ModelReply, End> {
        let request = ModelRequest {
            model: self.options.served_model.clone(),
            system: ready.system.clone(),
            messages: ready.messages.clone(),
            tools: self.options.context.tools.clone(),
            max_output_tokens: self.options.max_output_tokens,
            temperature: self.options.temperature,
            json: false,
            extra: self.options.extra.clone(),
        };
        let mut steps = self.model.client.generate(request);
        let (shared, key) = (self.conversation.shared(), self.conversation.key());
        loop {
            // A stop is seen before the next piece, however fast pieces arrive.
            let step = match select(&mut *halted, steps.next()).await {
                Either::Left((why, _)) => return Err(End::Halted(why.unwrap_or(Halt::Closed))),
                Either::Right((step, _)) => step,
            };
            match step {
                Some(Ok(GenerationStep::Done(answer))) => return Ok(*answer),
                Some(Ok(GenerationStep::Delta(delta))) => {
                    *shown = true;
                    match &delta {
                        Delta::Text(text) => {
                            self.conversation.open_turn(ready.turn).chunk(None, text).map(drop)?
                        }
                        _ => shared.streams.touch(key, ready.turn, shared.now()),
                    }
                    self.news.tell(delta);
                }
                Some(Err(error)) => return Err(End::Failed(error)),
                None => {
                    let text = "the model's reply is incomplete; ask again";
                    return Err(End::Failed(Error::internal("model.no_answer", text)));
                }
            }
        }
    }

    /// A shorter prompt for the same input: older turns are compacted, and the tail gets half the room that the
    /// prompt had. `None` if that is not allowed, or would not make it shorter.
    fn shorter(&self, ready: Ready) -> Result<Option<Ready>, Error> {
        let policy = self.conversation.get()?.compaction();
        if policy.on_overflow != OnOverflow::CompactAndRetry || ready.tools_ran {
            return Ok(None);
        }
        if let Some(from) = ready.built.input_from {
            match self.conversation.compact_before(from) {
                // Somebody else has just compacted, which is as good.
                Ok(_) | Err(Error::Conflict(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let half = (ready.used / 2).max(1);
        let mut built = ready.built.clone();
        built.token_budget = built.token_budget.min(half);
        let context = match self.conversation.contexts().build(&built) {
            // The fixed parts need more than that: use the smallest budget that fits them.
            Err(error) if error.is(code::BUDGET_TOO_SMALL) => {
                built.token_budget = ready.built.token_budget;
                self.conversation.contexts().build(&built)?
            }
            other => other?,
        };
        let asked =
            built.asked.iter().map(|turn| self.asking.visible_turn(*turn)).collect::<Result<_, _>>()?;
        // The turn of the reply is open for those who see all of the first prompt.
        if context.tokens.used >= ready.used || self.audience(&context, &built, asked)? != ready.audience {
            return Ok(None);
        }
        let receipt_seq = self.conversation.contexts().record(&context)?.seq;
        let shorter = Ready::new(ready.turn, receipt_seq, built, ready.tools_ran, context);
        Ok(Some(Ready { replaces: ready.replaces, audience: ready.audience, ..shorter }))
    }

    /// Ends the turn and reports the outcome.
    fn finish(
        &self,
        turn: TurnId,
        replaces: &[Turn],
        receipt_seq: u64,
        outcome: Result<ModelReply, End>,
    ) -> Result<Generated, Error> {
        let outcome = outcome.and_then(|answer| {
            let turns = self.commit(turn, replaces, receipt_seq, &answer)?;
            Ok(Generated { turns, answer, receipt_seq })
        });
        match &outcome {
            Err(End::Halted(Halt::Stopped)) => {
                self.note_end(turn, self.conversation.open_turn(turn).stop(reason::STOPPED));
            }
            Err(End::Failed(error)) => {
                let about =
                    json!({ "id": self.generation, "receipt_seq": receipt_seq, "error": error.code() });
                let reason = reason::failed(error);
                let last =
                    NewTurn { metadata: self.metadata(about).unwrap_or_default(), ..NewTurn::default() };
                let turn_open = self.conversation.open_turn(turn);
                self.note_end(turn, turn_open.end(last, kind::ABORTED, Some(reason), None));
            }
            Ok(_) | Err(End::Halted(_)) => {}
        }
        self.note(&outcome);
        outcome.map_err(|end| match end {
            End::Failed(error) => error,
            End::Halted(Halt::Closed) => closed(),
            End::Halted(Halt::Stopped) => {
                let text = format!("{} was stopped; {turn} keeps its text so far", self.generation);
                Error::conflict(code::GENERATION_STOPPED, text)
            }
            End::Halted(Halt::TurnEnded) => match self.conversation.turn(turn) {
                Ok(ended) => not_open(turn, ended.status),
                Err(error) => error,
            },
        })
    }

    /// Appends the reply: its first item ends the open turn, the others follow in the same batch. A turn has the
    /// `seq` at which it was opened, so this is the only order in which the next prompt returns them as they came.
    /// The items of an answer that it replaces are superseded in that batch, each by the item that takes its place.
    fn commit(
        &self,
        turn: TurnId,
        replaces: &[Turn],
        receipt_seq: u64,
        answer: &ModelReply,
    ) -> Result<Vec<Turn>, Error> {
        let said = json!({
            "id": self.generation,
            "receipt_seq": receipt_seq,
            "finish": finish_word(&answer.finish),
            "response_id": answer.id,
            "usage": answer.usage,
            "items": answer.messages.len().max(1),
        });
        let mut items: Vec<String> = answer.messages.iter().map(|item| item.get().to_string()).collect();
        if items.is_empty() {
            items.push(NewTurn::assistant(&answer.text).message);
        }
        if !replaces.is_empty() && items.len() > replaces.len() {
            self.check_last(turn, replaces)?;
        }
        let served = || self.options.context.model.clone();
        let model = Some(answer.model.clone()).filter(|model| !model.is_empty()).or_else(served);
        let mut first = Some((
            DraftKind::End(turn, Role::Assistant, kind::COMMITTED, None),
            self.metadata(said)?,
            Some(Tokens { prompt: answer.tokens.prompt, completion: answer.tokens.completion }),
        ));
        let kinds: Vec<Option<String>> = items.iter().map(|item| item_kind(item)).collect();
        let opened = self.conversation.shared().journal.index.turn_in(self.conversation.key(), turn)?;
        let mut place = 0;
        let appended =
            self.conversation.append_with(AppendOptions::default(), Ok(None), |conversation, ingested| {
                items.into_iter().try_for_each(|message| {
                    let (at, metadata, tokens) = match first.take() {
                        Some(first) => first,
                        None => {
                            place += 1;
                            // Number of the item among those of its kind: with the open turn, it identifies the item
                            // before it exists.
                            let nth = kinds[..place].iter().filter(|kind| **kind == kinds[place]).count();
                            let belongs =
                                Raw::of(&json!({ "id": self.generation, "answer": turn, "nth": nth }))?;
                            let metadata = BTreeMap::from([("generation".to_string(), belongs)]);
                            (DraftKind::Said(Role::Assistant), metadata, None)
                        }
                    };
                    let (actor, model) = (self.options.actor.clone(), model.clone());
                    let new = NewTurn {
                        message,
                        actor,
                        model,
                        metadata,
                        tokens,
                        visibility: Some(opened.visibility),
                        audience: opened.audience.clone(),
                        ..NewTurn::default()
                    };
                    self.conversation.shared().ingest(conversation, new, at, ingested)
                })?;
                let said = ingested.drafts.iter().filter(|draft| kind::is_of_turn(&draft.kind));
                let new: Vec<TurnId> = said.filter_map(|draft| draft.turn).collect();
                for (n, old) in replaces.iter().enumerate() {
                    let by = new[n.min(new.len() - 1)];
                    let draft = self.conversation.shared().draft(kind::SUPERSEDED, &SupersededBody { by })?;
                    ingested.drafts.push(Draft { turn: Some(old.id), ..draft });
                }
                Ok(())
            });
        let followed = appended.wait()?.turns;
        let said = [turn].into_iter().chain(followed.iter().map(|turn| turn.id));
        said.map(|turn| self.asking.turn(turn)).collect()
    }

    /// Refuses to replace an answer by one with more items where other turns follow: there is no place for the rest.
    fn check_last(&self, turn: TurnId, replaces: &[Turn]) -> Result<(), Error> {
        let after = replaces.last().map(|old| old.place);
        let query = TurnQuery { after, limit: 2, ..TurnQuery::default() };
        let next = self.conversation.shared().journal.index.turns(self.conversation.key(), &query)?;
        match next.iter().any(|next| next.id != turn) {
            false => Ok(()),
            true => Err(Error::conflict(
                "generate.more_items",
                "the new answer has more parts than the old one, and other turns follow it; branch from there instead",
            )),
        }
    }

    fn note_end(&self, turn: TurnId, end: Commit<Turn>) {
        match end.wait() {
            // Somebody else ended it first.
            Ok(_) | Err(Error::Conflict(_) | Error::NotFound(_)) => {}
            Err(error) => {
                tracing::warn!(code = error.code(), %turn, "the turn of a failed reply could not be ended")
            }
        }
    }

    /// Records the outcome for status requests and for tracing.
    fn note(&self, outcome: &Result<Generated, End>) {
        let failed = |code: &'static str, text: &str| {
            self.span.record("error.type", code);
            GenerationState::Failed { code: code.into(), text: text.to_string() }
        };
        let state = match outcome {
            Ok(Generated { answer, .. }) => {
                self.span.record("gen_ai.response.model", answer.model.as_str());
                self.span.record("gen_ai.usage.input_tokens", answer.tokens.prompt);
                self.span.record("gen_ai.usage.output_tokens", answer.tokens.completion);
                GenerationState::Done
            }
            Err(End::Halted(Halt::Stopped)) => GenerationState::Stopped,
            Err(End::Halted(Halt::Closed)) => failed(closed().code(), closed().text()),
            Err(End::Halted(Halt::TurnEnded)) => {
                failed("turn.not_open", "its turn was ended by somebody else")
            }
            Err(End::Failed(error)) => failed(error.code(), error.text()),
        };
        self.conversation.shared().generations.ended(self.generation, state);
    }
}

impl Ready {
    fn new(
        turn: TurnId,
        receipt_seq: u64,
        built: ContextOptions,
        tools_ran: bool,
        context: Context,
    ) -> Ready {
        let Context { system, messages, tokens, .. } = context;
        Ready {
            turn,
            receipt_seq,
            built,
            used: tokens.used,
            tools_ran,
            replaces: Vec::new(),
            audience: None,
            system,
            messages,
        }
    }
}

/// The last turns that are neither superseded nor aborted, newest first.
fn recent(conversation: &ConversationHandle, before: Option<u64>) -> Result<Vec<Turn>, Error> {
    let query = TurnQuery { before, descending: true, limit: LOOK_BACK, ..TurnQuery::default() };
    let mut turns = conversation.turns(&query)?;
    turns.retain(|turn| turn.status != Status::Pending && turn.message.is_some());
    Ok(turns)
}

/// Whether tools already ran for this request: a tool result is in the input, or after the last user turn. `recent`
/// is newest first.
fn tools_ran(input: &[Turn], recent: &[Turn]) -> bool {
    let since = recent.iter().take_while(|turn| turn.role != Role::User || answers_call(turn));
    input.iter().chain(since).any(answers_call)
}

/// Whether a turn holds the result of a tool.
fn answers_call(turn: &Turn) -> bool {
    turn.role == Role::Tool
        || turn.value().is_some_and(|message| !pairing::pair([&message]).results.is_empty())
}

/// The generation whose reply a turn is part of.
fn answer_of(turn: &Turn) -> Option<GenerationId> {
    #[derive(Deserialize)]
    struct Told {
        id: GenerationId,
    }
    turn.metadata.get("generation")?.read::<Told>().map(|told| told.id)
}

fn was_answered(turn: TurnId) -> Error {
    let text = format!(
        "this request was sent before, with the same idempotency key, and answered by {turn}; read that turn"
    );
    Error::conflict("generation.repeated", text)
}

fn being_answered(turn: TurnId) -> Error {
    let text = format!(
        "this request was sent before, with the same idempotency key, and is being answered by {turn}; follow that turn"
    );
    Error::conflict("generation.running", text)
}

/// The request whose reply a turn was to become.
fn request_of(turn: &Turn) -> Option<Hash> {
    #[derive(Deserialize)]
    struct Told {
        request: Hash,
    }
    turn.metadata.get("generation")?.read::<Told>().map(|told| told.request)
}

/// Kind of an item of a reply, where the provider has several.
fn item_kind(item: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Item {
        #[serde(rename = "type")]
        kind: Option<String>,
    }
    serde_json::from_str::<Item>(item).ok()?.kind
}

fn finish_word(finish: &Finish) -> &str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::ToolCalls => "tool_calls",
        Finish::ContentFilter => "content_filter",
        Finish::Other(word) => word,
    }
}

fn on_a_thread(work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let builder = std::thread::Builder::new().name("everturn-generate".into());
    let spawned = builder.spawn(work);
    spawned.map(drop).map_err(|e| Error::internal("thread", format!("cannot start a thread: {e}")))
}

/// Runs blocking work beside the runtime, whose single thread is shared.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    let (done, answer) = oneshot::channel();
    let span = Span::current();
    on_a_thread(move || drop(done.send(span.in_scope(work))))?;
    answer.await.map_err(|_| broken())
}

fn broken() -> Error {
    Error::internal(
        "generation.broken",
        "the generation failed unexpectedly; its text so far is kept, ask again",
    )
}
