//! The conversation of a response: the one that was named, the one of the response that it continues, or a
//! hidden one of its own. Also requests without any, if nothing is to be stored.

use super::conversations::message_of;
use super::conversion::extra;
use super::error::RequestError;
use super::item_routes::ItemLocation;
use super::models::SelectedModel;
use super::recorded::{self, COMPARED_TURNS_MAX, Resend};
use super::request::ResponseRequest;
use super::stored::{KEY, StoredRequest};
use super::{ids, items, stored, tools};
use crate::app::blocking;
use everturn_core::Error;
use everturn_core::conversation::{HIDDEN, Settings};
use everturn_core::event::Visibility;
use everturn_core::id::{ConversationId, clip};
use everturn_core::json::Raw;
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_core::message::{self, MessagePart};
use everturn_core::pairing;
use everturn_core::turn::{Status, Turn};
use everturn_engine::model::{ModelRequest, Provider};
use everturn_engine::{
    ContextOptions, GenerateOptions, Generating, HistoryEntry, HistoryQuery, NewTurn, Tenant,
};
use everturn_formats::provider::{self, Input, NoMedia, Rendered, SystemSection};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A generation that has begun.
pub struct StartedResponse {
    pub generating: Generating,
    /// The stored part of the request.
    pub kept: StoredRequest,
    /// Whether the conversation was created for it, and is deleted if there is no reply.
    pub own: bool,
}

/// Begins a generation that is stored.
pub async fn begin(
    tenant: &Tenant,
    ask: ResponseRequest,
    model: &SelectedModel,
) -> Result<StartedResponse, RequestError> {
    let (conversation, previous, input) = (ask.conversation, ask.previous.clone(), ask.input.clone());
    let (finding, provider, echo) = (tenant.clone(), model.provider(), ask.echo.clone());
    let mut options = options(ask, model)?;
    let (target, turns) = blocking(move || {
        let target = match (conversation, previous) {
            (Some(id), _) => Target { id, expected: None, after: None, own: false },
            (None, Some(previous)) => continue_after(&finding, &previous)?,
            (None, None) => {
                let turns = new_input(&finding, None, &input)?;
                render(provider, None, &messages_of(&turns)?)?;
                let id = hide(&finding, None)?;
                return Ok((Target { id, expected: None, after: None, own: true }, turns));
            }
        };
        let turns = new_input(&finding, Some((target.id, None)), &input)
            .and_then(|turns| check_read(provider, &messages_of(&turns)?).map(|()| turns));
        match turns {
            Ok(turns) => Ok((target, turns)),
            Err(error) => {
                if target.own {
                    finding.conversation(target.id).delete("its response could not begin").wait()?;
                }
                Err(error)
            }
        }
    })
    .await?;
    let kept = StoredRequest { model: model.asked.clone(), echo, conversation, inputs: turns.len() };
    options.metadata = BTreeMap::from([(KEY.to_string(), Raw::of(&kept)?)]);
    options.append.expected_seq = target.expected;
    options.input = turns;
    let first = tenant.conversation(target.id).generate(options.clone()).await;
    let (began, own) = match (first, target.after) {
        // Another request has continued it meanwhile: this one becomes a branch.
        (Err(Error::Conflict(_)), Some(after)) if target.expected.is_some() => {
            let forking = tenant.clone();
            let id = blocking(move || hide(&forking, Some(after))).await?;
            options.append.expected_seq = None;
            (tenant.conversation(id).generate(options).await, Some(id))
        }
        (first, _) => (first, target.own.then_some(target.id)),
    };
    match began {
        Ok(generating) => Ok(StartedResponse { generating, kept, own: own.is_some() }),
        Err(error) => {
            if let Some(own) = own {
                tenant.conversation(own).delete("its response could not begin").await?;
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
fn options(ask: ResponseRequest, model: &SelectedModel) -> Result<GenerateOptions, RequestError> {
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
) -> Result<BTreeMap<String, Raw>, RequestError> {
    if !tools {
        // Providers refuse a tool choice without tools.
        rest.retain(|name, _| name != "tool_choice" && name != "parallel_tool_calls");
    }
    if to != Provider::OpenaiResponses {
        let wanted = |name: &str, word: &str| rest.get(name).is_some_and(|raw| raw.get().contains(word));
        let number: Option<u64> = rest.get("top_logprobs").and_then(Raw::read);
        if number.is_some_and(|number| number > 0) || wanted("include", "message.output_text.logprobs") {
            let text = "log probabilities are not supported with this model; leave them out, or choose a model whose server \
                        speaks Responses";
            return Err(RequestError::field("top_logprobs", text));
        }
    }
    // Requested wherever it is needed, and refused by models without reasoning.
    let sealed = |raw: &Raw| {
        raw.read::<Vec<String>>().is_none_or(|list| list.iter().all(|i| i == "reasoning.encrypted_content"))
    };
    rest.retain(|name, raw| name != "include" || !sealed(raw));
    extra(Provider::OpenaiResponses, to, &rest)
}

/// A hidden conversation: new, or a fork.
fn hide(tenant: &Tenant, after: Option<(ConversationId, u64)>) -> Result<ConversationId, Error> {
    let metadata = BTreeMap::from([(HIDDEN.to_string(), Raw::of(&"responses")?)]);
    let settings = Settings { metadata, ..Settings::default() };
    match after {
        None => Ok(tenant.create(settings).wait()?.id()),
        Some((id, seq)) => {
            let fork = tenant.conversation(id).fork(seq).wait()?;
            Ok(fork.update(settings).wait()?.id)
        }
    }
}

/// After a response: in its own conversation, if that is hidden and ends with it; else in a fork from there.
fn continue_after(tenant: &Tenant, previous: &str) -> Result<Target, Error> {
    let (turn, end) = end_of(tenant, previous)?;
    let conversation = tenant.conversation(turn.conversation).get()?;
    let later = HistoryQuery {
        after: Some(turn.seq),
        include_superseded: true,
        // Its other items, and one more.
        limit: items::generation(&turn).items.unwrap_or(1).clamp(1, PAGE_ENTRIES_MAX),
        ..HistoryQuery::default()
    };
    let mut later = tenant.conversation(turn.conversation).history(later)?.data.into_iter();
    let follows = |entry: HistoryEntry| match entry {
        HistoryEntry::Turn(later) => items::generation(&later).answer != Some(turn.id),
        HistoryEntry::Event(_) => false,
    };
    if conversation.is_hidden() && !later.any(follows) {
        let expected = Some(conversation.head.seq);
        return Ok(Target { id: conversation.id, expected, after: Some((conversation.id, end)), own: false });
    }
    let id = hide(tenant, Some((turn.conversation, end)))?;
    Ok(Target { id, expected: None, after: None, own: true })
}

/// The turn of a response that has ended, and the `seq` of its end.
pub fn end_of(tenant: &Tenant, response: &str) -> Result<(Turn, u64), Error> {
    let (turn, _) = match stored::find(tenant, response) {
        Err(Error::NotFound(_)) => {
            let text = format!(
                "the response {:?} to continue does not exist; it was deleted, or never stored",
                clip(response)
            );
            return Err(Error::not_found("previous_response_not_found", text));
        }
        found => found?,
    };
    if !matches!(turn.status, Status::Complete | Status::Interrupted) {
        let text =
            format!("{response} is {}; only one that has ended with a reply can be continued", turn.status);
        return Err(Error::invalid("previous_response_not_completed", text));
    }
    let (end, _) = stored::ended(tenant, &turn)?;
    Ok((turn, end))
}

/// The turns of the input that are new after the end of a conversation; `until` is its last `seq` that counts.
///
/// Clients may send again what is there already. What is new is found by comparison, so a request that is repeated
/// after a failure appends nothing, and a client may leave out items whose ids it knows.
fn new_input(
    tenant: &Tenant,
    place: Option<(ConversationId, Option<u64>)>,
    input: &[Raw],
) -> Result<Vec<NewTurn>, Error> {
    let known = match place {
        Some((id, until)) => recorded::last_turns(tenant, id, until.map(|seq| seq + 1))?,
        None => Vec::new(),
    };
    let (messages, here) = resolve(tenant, place.map(|(id, _)| id), input)?;
    let new = recorded::new_messages(&messages, &known, Resend::WithoutReplies);
    let new: Vec<&Raw> = new.into_iter().filter(|at| !here[*at]).map(|at| &messages[at]).collect();
    if known.len() < COMPARED_TURNS_MAX {
        check_results(&known, &new)?;
    }
    Ok(new.into_iter().map(|raw| NewTurn::message(raw.get())).collect())
}

fn messages_of(turns: &[NewTurn]) -> Result<Vec<Raw>, Error> {
    turns.iter().map(|turn| Raw::new(turn.message.clone())).collect()
}

/// Refuses a tool result without its call: no provider accepts one, and the model would never see it.
pub fn check_results(known: &[Turn], new: &[&Raw]) -> Result<(), Error> {
    let said = known.iter().filter_map(Turn::value);
    let all: Vec<Value> = said.chain(new.iter().filter_map(|raw| raw.read())).collect();
    let from = all.len() - new.len().min(all.len());
    let pairs = pairing::pair(&all);
    let known = |id: Option<&str>| pairs.calls.iter().any(|call| call.id == id);
    let lost = pairs
        .results
        .iter()
        .find(|result| result.message >= from && result.call.is_none() && !known(result.id));
    match lost.map(|result| result.id.unwrap_or_default()) {
        None => Ok(()),
        Some(id) => {
            let text = format!(
                "no tool call found for the output with call_id {:?}; send the call before it, or continue \
                 where it was made",
                clip(id)
            );
            Err(Error::invalid("tool_call_not_found", text))
        }
    }
}

/// The messages of items. References are resolved item by item, each once: those that cover a turn become its
/// message, as its provider expects it; others become the items alone. Also whether each is already in the
/// conversation.
fn resolve(
    tenant: &Tenant,
    id: Option<ConversationId>,
    input: &[Raw],
) -> Result<(Vec<Raw>, Vec<bool>), Error> {
    let (mut messages, mut here) = (Vec::new(), Vec::new());
    let mut seen = BTreeSet::new();
    let mut references: Vec<ItemLocation> = Vec::new();
    let flush = |references: &mut Vec<ItemLocation>, messages: &mut Vec<Raw>, here: &mut Vec<bool>| {
        for of_turn in std::mem::take(references).chunk_by(|a, b| a.turn.id == b.turn.id) {
            let turn = &of_turn[0].turn;
            let said = match of_turn.len() == of_turn[0].items.len() {
                true => vec![Raw::new(items::restored(tenant, turn))?],
                false => {
                    of_turn.iter().filter_map(ItemLocation::item).map(alone).collect::<Result<Vec<_>, _>>()?
                }
            };
            here.extend(
                said.iter().map(|_| id.is_some_and(|id| tenant.conversation(id).turn(turn.id).is_ok())),
            );
            messages.extend(said);
        }
        Ok::<_, Error>(())
    };
    for item in input {
        match referred(item) {
            Some(reference) => {
                if seen.insert(reference.clone()) {
                    references.push(find_item(tenant, &reference)?);
                }
            }
            None => {
                flush(&mut references, &mut messages, &mut here)?;
                messages.push(Raw::new(message_of(item)?)?);
                here.push(false);
            }
        }
    }
    flush(&mut references, &mut messages, &mut here)?;
    Ok((messages, here))
}

/// The message of an item without the others of its turn. Its id is known here only.
fn alone(item: &Value) -> Result<Raw, Error> {
    let mut item = item.clone();
    if let Value::Object(fields) = &mut item {
        fields.shift_remove("id");
    }
    Raw::new(message_of(&Raw::of(&item)?)?)
}

fn referred(item: &Raw) -> Option<String> {
    let value: Value = item.read()?;
    let fields = value.as_object()?;
    let bare = fields.len() == 1 && fields.contains_key("id");
    let refers = bare || fields.get("type").is_some_and(|kind| kind == "item_reference");
    fields.get("id").filter(|_| refers)?.as_str().map(str::to_string)
}

/// The item of a reference, in any conversation.
fn find_item(tenant: &Tenant, item: &str) -> Result<ItemLocation, Error> {
    let absent = || Error::not_found("item_not_found", format!("there is no item {:?}", clip(item)));
    let turn = ids::turn_of_item(item).ok_or_else(absent)?;
    let said = tenant.turn(turn).map_err(|_| absent())?;
    let at = super::item_routes::locate(tenant, said.conversation, item)?;
    if at.index.is_none() || at.turn.visibility == Visibility::Private {
        return Err(absent());
    }
    Ok(at)
}

/// The request for a reply that is not stored. Earlier turns are read, and nothing is written.
pub async fn unstored_request(
    tenant: &Tenant,
    ask: ResponseRequest,
    model: &SelectedModel,
) -> Result<ModelRequest, RequestError> {
    let (input, previous) = (ask.input.clone(), ask.previous.clone());
    let GenerateOptions { mut context, extra, temperature, max_output_tokens, whole, .. } =
        options(ask, model)?;
    let (provider, served) = (model.provider(), model.served_name().to_string());
    let most = model.configured.context_tokens;
    let tools = context.tools.clone();
    let reading = tenant.clone();
    let (system, messages) = blocking(move || {
        let before = previous.map(|previous| end_of(&reading, &previous)).transpose()?;
        let place = before.as_ref().map(|(turn, end)| (turn.conversation, Some(*end)));
        let messages = messages_of(&new_input(&reading, place, &input)?)?;
        let Some((turn, end)) = before else {
            return render(provider, context.instructions.as_deref(), &messages);
        };
        check_read(provider, &messages)?;
        context.token_budget = most.saturating_sub(max_output_tokens.unwrap_or(most / 4)).max(1);
        context.at_seq = Some(end);
        context.input = messages;
        context.provider = provider;
        context.model = Some(served);
        let built = reading.conversation(turn.conversation).contexts().build(&context)?;
        built.check_asks()?;
        if whole {
            built.check_whole()?;
        }
        Ok((built.system, built.messages))
    })
    .await?;
    Ok(ModelRequest {
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

/// Refuses messages without any content, where they are passed on as they came.
pub fn check_content(messages: &[Raw]) -> Result<(), Error> {
    let is_empty = |raw: &Raw| {
        let message: Value = raw.read().unwrap_or_default();
        message::parts(&message)
            .iter()
            .all(|part| matches!(part, MessagePart::Text(text) if text.trim().is_empty()))
    };
    if messages.iter().all(is_empty) { Err(provider::nothing_to_reply_to()) } else { Ok(()) }
}

/// Messages of any shape for a provider, with instructions before them. Refused if nothing of them is left, or if the model
/// would not see a part of them, because it cannot be read: an unknown role or type.
pub fn render(
    provider: Provider,
    instructions: Option<&str>,
    messages: &[Raw],
) -> Result<(Option<Raw>, Vec<Raw>), Error> {
    let system: Vec<SystemSection<'_>> =
        instructions.map(|text| SystemSection { name: "instructions", text }).into_iter().collect();
    let rendered = provider::render(provider, &Input { system: &system, messages, media: &NoMedia })?;
    all_read(&rendered, messages)?;
    if rendered.is_empty() {
        return Err(provider::nothing_to_reply_to());
    }
    Ok((rendered.system, rendered.messages))
}

/// Refuses messages with a part that the model would not see, because it cannot be read.
fn check_read(provider: Provider, messages: &[Raw]) -> Result<(), Error> {
    let input = Input { system: &[], messages, media: &NoMedia };
    all_read(&provider::render(provider, &input)?, messages)
}

fn all_read(rendered: &Rendered, messages: &[Raw]) -> Result<(), Error> {
    match rendered.left_out.iter().find(|left| left.unread) {
        None => Ok(()),
        Some(left) => {
            let message = messages.get(left.message).map_or("", Raw::get);
            let text = format!("the model would not see {}: {}", clip(message), left.what);
            Err(Error::invalid("message.unreadable", text))
        }
    }
}
