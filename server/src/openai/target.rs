//! The conversation of a response: the one that was named, the one of the response that it continues, or a
//! hidden one of its own. Also requests without any, if nothing is to be stored.

use super::ask::Ask;
use super::conversations::{HIDDEN, is_hidden, new_turn};
use super::conversion::extra;
use super::error::Refused;
use super::models::Chosen;
use super::stored::{KEY, StoredRequest};
use super::{ids, items, stored, tools};
use crate::app::blocking;
use everturn::model::{Provider, Request};
use everturn::{
    ContextOptions, GenerateOptions, Generating, HistoryEntry, HistoryQuery, NewTurn, Order, Tenant,
};
use everturn_core::Error;
use everturn_core::conversation::Settings;
use everturn_core::event::kind;
use everturn_core::id::ConversationId;
use everturn_core::json::Raw;
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_core::turn::{Role, Status, Turn};
use everturn_formats::provider::{self, Input, NoMedia, Section};
use serde_json::Value;
use std::collections::BTreeMap;

/// Number of events read at a time to find the end of a reply: usually it is among the first.
const EVENTS_PAGE: usize = 32;

/// A generation that has begun.
pub struct StartedResponse {
    pub generating: Generating,
    /// The stored part of the request.
    pub kept: StoredRequest,
    /// Whether the conversation was created for it: if there is no reply, it is of no use.
    pub own: bool,
}

/// Begins a generation that is stored.
pub async fn begin(scope: &Tenant, ask: Ask, model: &Chosen) -> Result<StartedResponse, Refused> {
    let (conversation, previous, input) = (ask.conversation, ask.previous.clone(), ask.input.clone());
    let finding = scope.clone();
    let (target, turns) = blocking(move || {
        let target = match (conversation, previous) {
            (Some(id), _) => Target { id, expected: None, after: None, own: false },
            (None, Some(previous)) => continue_after(&finding, &previous)?,
            (None, None) => Target { id: hide(&finding, None)?, expected: None, after: None, own: true },
        };
        let turns = new_input(&finding, target.id, &input)?;
        Ok((target, turns))
    })
    .await?;
    let kept = StoredRequest {
        model: model.asked.clone(),
        echo: ask.echo.clone(),
        conversation: ask.conversation,
        inputs: turns.len(),
    };
    let mut options = options(ask, model)?;
    options.metadata = BTreeMap::from([(KEY.to_string(), Raw::of(&kept)?)]);
    options.append.expected_seq = target.expected;
    options.input = turns;
    let first = scope.conversation(target.id).generate(options.clone()).await;
    let (began, own) = match (first, target.after) {
        // Another request continued it at this very moment: then this is a branch.
        (Err(Error::Conflict(_)), Some(after)) if target.expected.is_some() => {
            let forking = scope.clone();
            let id = blocking(move || hide(&forking, Some(after))).await?;
            options.append.expected_seq = None;
            (scope.conversation(id).generate(options).await, Some(id))
        }
        (first, _) => (first, target.own.then_some(target.id)),
    };
    match began {
        Ok(generating) => Ok(StartedResponse { generating, kept, own: own.is_some() }),
        Err(error) => {
            if let Some(own) = own {
                scope.conversation(own).delete("its response could not begin").await?;
            }
            Err(error.into())
        }
    }
}

struct Target {
    id: ConversationId,
    /// The `seq` at which its log must end to append the reply.
    expected: Option<u64>,
    /// The fork point, if it does not.
    after: Option<(ConversationId, u64)>,
    /// Whether it was created for this response.
    own: bool,
}

/// Options of the generation, apart from the input.
fn options(ask: Ask, model: &Chosen) -> Result<GenerateOptions, Refused> {
    let to = model.provider();
    let mut context = ContextOptions::new(0);
    let whole = ask.whole;
    context.instructions = ask.instructions;
    context.tools = tools::convert(Provider::OpenaiResponses, to, ask.tools)?;
    Ok(GenerateOptions {
        model: Some(model.name.clone()),
        served_model: model.served.clone(),
        max_output_tokens: ask.max_output_tokens,
        temperature: ask.temperature,
        extra: fields(to, ask.rest, !context.tools.is_empty())?,
        context,
        whole,
        ..GenerateOptions::default()
    })
}

fn fields(
    to: Provider,
    mut rest: BTreeMap<String, Raw>,
    tools: bool,
) -> Result<BTreeMap<String, Raw>, Refused> {
    if !tools {
        // Providers refuse a choice among no tools.
        rest.retain(|name, _| name != "tool_choice" && name != "parallel_tool_calls");
    }
    // Requested wherever it is needed, and refused by models without reasoning.
    let sealed = |raw: &Raw| {
        raw.read::<Vec<String>>().is_none_or(|list| list.iter().all(|i| i == "reasoning.encrypted_content"))
    };
    rest.retain(|name, raw| name != "include" || !sealed(raw));
    extra(Provider::OpenaiResponses, to, &rest)
}

/// A hidden conversation: new, or a fork.
fn hide(scope: &Tenant, after: Option<(ConversationId, u64)>) -> Result<ConversationId, Error> {
    let metadata = BTreeMap::from([(HIDDEN.to_string(), Raw::of(&"responses")?)]);
    let settings = Settings { metadata, ..Settings::default() };
    match after {
        None => Ok(scope.create(settings).wait()?.id()),
        Some((id, seq)) => {
            let fork = scope.conversation(id).fork(seq).wait()?;
            Ok(fork.update(settings).wait()?.id)
        }
    }
}

/// After a response: in its own conversation, if that is hidden and ends with it; else in a fork from there.
fn continue_after(scope: &Tenant, previous: &str) -> Result<Target, Error> {
    let (turn, end) = end_of(scope, previous)?;
    let conversation = scope.conversation(turn.conversation).get()?;
    let later = HistoryQuery {
        after: Some(turn.seq),
        include_superseded: true,
        // Its other items, and one more.
        limit: items::generation(&turn).items.unwrap_or(1).clamp(1, PAGE_ENTRIES_MAX),
        ..HistoryQuery::default()
    };
    let mut later = scope.conversation(turn.conversation).history(later)?.data.into_iter();
    let follows = |entry: HistoryEntry| match entry {
        HistoryEntry::Turn(later) => items::generation(&later).answer != Some(turn.id),
        HistoryEntry::Event(_) => false,
    };
    if is_hidden(&conversation) && !later.any(follows) {
        let expected = Some(conversation.head.seq);
        return Ok(Target { id: conversation.id, expected, after: Some((conversation.id, end)), own: false });
    }
    let id = hide(scope, Some((turn.conversation, end)))?;
    Ok(Target { id, expected: None, after: None, own: true })
}

/// The turn of a complete response, and the `seq` of its end.
pub fn end_of(scope: &Tenant, response: &str) -> Result<(Turn, u64), Error> {
    let (turn, _) = match stored::find(scope, response) {
        Err(Error::NotFound(_)) => {
            let text = format!(
                "the response {:?} to continue does not exist; it was deleted, or never stored",
                everturn_core::id::clip(response)
            );
            return Err(Error::not_found("previous_response_not_found", text));
        }
        found => found?,
    };
    if turn.status != Status::Complete {
        let text = format!("{response} is {}; only a completed one can be continued", turn.status);
        return Err(Error::invalid("previous_response_not_completed", text));
    }
    let mut left = items::generation(&turn).items.unwrap_or(1);
    let mut after = turn.seq;
    loop {
        let events = scope.conversation(turn.conversation).log().read(after, EVENTS_PAGE)?;
        for event in &events {
            after = event.seq;
            let committed = event.turn == Some(turn.id) && event.kind == kind::COMMITTED;
            let item = event.kind == kind::MESSAGE
                && Turn::begun(event).is_some_and(|item| items::generation(&item).answer == Some(turn.id));
            left -= usize::from(committed || item);
            if left == 0 {
                return Ok((turn, after));
            }
        }
        if events.is_empty() {
            return Err(Error::internal(
                "response.endless",
                format!("the end of {response} is not in the log"),
            ));
        }
    }
}

/// The turns of the input. What a failed request left at the end is not appended twice, so that clients may
/// retry.
fn new_input(scope: &Tenant, id: ConversationId, input: &[Raw]) -> Result<Vec<NewTurn>, Error> {
    let mut turns = turns_of(scope, Some(id), input)?;
    let query = HistoryQuery {
        order: Order::Descending,
        include_superseded: true,
        limit: (turns.len() + 1).min(PAGE_ENTRIES_MAX),
        ..HistoryQuery::default()
    };
    let last = stored::turns(scope, id, query)?;
    let failed = last.first().is_some_and(|turn| {
        turn.status == Status::Aborted && turn.role == Role::Assistant && turn.metadata.contains_key(KEY)
    });
    let same = |(turn, new): (&Turn, &NewTurn)| {
        turn.superseded_by.is_none() && turn.message.as_ref().is_some_and(|raw| raw.get() == new.message)
    };
    if failed && last.len() == turns.len() + 1 && last[1..].iter().zip(turns.iter().rev()).all(same) {
        turns.clear();
    }
    Ok(turns)
}

/// The turns of items; references are resolved, unless the conversation has the item already.
fn turns_of(scope: &Tenant, id: Option<ConversationId>, input: &[Raw]) -> Result<Vec<NewTurn>, Error> {
    let mut turns = Vec::with_capacity(input.len());
    for item in input {
        match referred(item) {
            None => turns.push(new_turn(item)?),
            Some(reference) => turns.extend(fetch(scope, id, &reference)?),
        }
    }
    Ok(turns)
}

fn referred(item: &Raw) -> Option<String> {
    let value: Value = item.read()?;
    let fields = value.as_object()?;
    let bare = fields.len() == 1 && fields.contains_key("id");
    let refers = bare || fields.get("type").is_some_and(|kind| kind == "item_reference");
    fields.get("id").filter(|_| refers)?.as_str().map(str::to_string)
}

/// The turn of an item reference; `None` if the conversation has it already.
fn fetch(scope: &Tenant, id: Option<ConversationId>, item: &str) -> Result<Option<NewTurn>, Error> {
    let absent = || {
        Error::not_found("item_not_found", format!("there is no item {:?}", everturn_core::id::clip(item)))
    };
    let turn = ids::turn_of_item(item).ok_or_else(absent)?;
    if id.is_some_and(|id| scope.conversation(id).turn(turn).is_ok()) {
        return Ok(None);
    }
    let said = scope.turn(turn).map_err(|_| absent())?;
    let at = super::item_routes::locate(scope, said.conversation, item)?;
    Ok(at.turn.message.map(|raw| NewTurn::message(raw.get())))
}

/// The request for a reply that is not stored. Earlier turns are read, and nothing is written.
pub async fn unstored_request(scope: &Tenant, ask: Ask, model: &Chosen) -> Result<Request, Refused> {
    let (input, previous) = (ask.input.clone(), ask.previous.clone());
    let GenerateOptions { mut context, extra, temperature, max_output_tokens, whole, .. } =
        options(ask, model)?;
    let (provider, served) = (model.provider(), model.served_name().to_string());
    let most = model.configured.context_tokens;
    let tools = context.tools.clone();
    let reading = scope.clone();
    let (system, messages) = blocking(move || {
        let before = previous.map(|previous| end_of(&reading, &previous)).transpose()?;
        let target = before.as_ref().map(|(turn, _)| turn.conversation);
        let turns = turns_of(&reading, target, &input)?.into_iter();
        let messages = turns.map(|turn| Raw::new(turn.message)).collect::<Result<Vec<_>, _>>()?;
        let Some((turn, end)) = before else {
            return render(provider, context.instructions.as_deref(), &messages);
        };
        context.token_budget = most.saturating_sub(max_output_tokens.unwrap_or(most / 4)).max(1);
        context.at_seq = Some(end);
        context.input = messages;
        context.provider = provider;
        context.model = Some(served);
        let built = reading.conversation(turn.conversation).contexts().build(&context)?;
        if whole {
            built.check_whole()?;
        }
        Ok((built.system, built.messages))
    })
    .await?;
    Ok(Request {
        model: model.served.clone(),
        system,
        messages,
        tools,
        max_output_tokens,
        temperature,
        json: false,
        extra,
    })
}

/// Messages of any shape for a provider, with instructions before them.
pub fn render(
    provider: Provider,
    instructions: Option<&str>,
    messages: &[Raw],
) -> Result<(Option<Raw>, Vec<Raw>), Error> {
    let system: Vec<Section<'_>> =
        instructions.map(|text| Section { name: "instructions", text }).into_iter().collect();
    let rendered = provider::render(provider, &Input { system: &system, messages, media: &NoMedia })?;
    Ok((rendered.system, rendered.messages))
}
