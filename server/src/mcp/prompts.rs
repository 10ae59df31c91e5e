//! Continuing a conversation, as a prompt: its turns are the prompt's messages.

use super::resources::words;
use everturn_core::Error;
use everturn_core::id::clip;
use everturn_engine::{ContextOptions, ListQuery, Tenant};
use rmcp::model::{CompletionInfo, GetPromptResult, JsonObject, Prompt, PromptArgument, PromptMessage, Role};
use serde_json::Value;

pub const CONTINUE: &str = "continue_conversation";
/// Default number of tokens.
const BUDGET: u64 = 8000;
/// Number of conversations that are searched for a completion.
const COMPLETED_FROM: usize = 1000;

pub fn list() -> Vec<Prompt> {
    let conversation = PromptArgument::new("conversation")
        .with_title("Conversation")
        .with_description("Its id, the beginning of one, or @last for the one with the latest turn or a fork made of it since")
        .with_required(true);
    let budget = PromptArgument::new("budget")
        .with_title("Token budget")
        .with_description(format!("Maximum number of tokens; {BUDGET} by default"))
        .with_required(false);
    let text = "Continues a conversation: its summary, pins and newest turns, inside a token budget";
    vec![
        Prompt::new(CONTINUE, Some(text), Some(vec![conversation, budget]))
            .with_title("Continue a conversation"),
    ]
}

/// The messages of a prompt. Blocks.
pub fn get(tenant: &Tenant, name: &str, arguments: &JsonObject) -> Result<GetPromptResult, Error> {
    if name != CONTINUE {
        let text = format!("there is no prompt {:?}; there is {CONTINUE}", clip(name));
        return Err(Error::invalid("prompt.absent", text));
    }
    let wrong = |text: &str| Error::invalid("prompt.arguments", text);
    let conversation = arguments.get("conversation").and_then(Value::as_str).ok_or_else(|| {
        wrong("the argument conversation is missing; give an id, the beginning of one, or @last for the one with the latest turn or a fork made of it since")
    })?;
    let budget = match arguments.get("budget") {
        None => BUDGET,
        // The protocol has strings here; some clients send numbers all the same.
        Some(Value::String(text)) if text.trim().is_empty() => BUDGET,
        Some(given) => given
            .as_u64()
            .or_else(|| given.as_str()?.trim().parse().ok())
            .ok_or_else(|| wrong("budget must be a number of tokens, such as 8000"))?,
    };
    let id = tenant.resolve(conversation)?;
    let context = tenant.conversation(id).contexts().build(&ContextOptions::new(budget))?;
    let mut messages = Vec::new();
    // Prompts have no system messages: they become user messages.
    if let Some(system) = context.system.as_ref().and_then(|raw| raw.read::<Value>()) {
        let text = words(&serde_json::json!({"role": "system", "content": system}));
        messages.push(PromptMessage::new_text(Role::User, text));
    }
    for message in context.messages.iter().filter_map(|raw| raw.read::<Value>()) {
        let role = match message.get("role").and_then(Value::as_str) {
            Some("assistant") => Role::Assistant,
            _ => Role::User,
        };
        let text = words(&message);
        if !text.is_empty() {
            messages.push(PromptMessage::new_text(role, text));
        }
    }
    let title = tenant.conversation(id).get()?.title.unwrap_or_else(|| id.to_string());
    Ok(GetPromptResult::new(messages).with_description(format!("{title} ({id})")))
}

/// Ids with this prefix, or whose titles contain it; latest first. Blocks.
pub fn complete(tenant: &Tenant, typed: &str) -> Result<CompletionInfo, Error> {
    let page = tenant.list(ListQuery { limit: COMPLETED_FROM, ..ListQuery::default() })?;
    let lower = typed.to_lowercase();
    let titled = |title: &Option<String>| {
        title.as_ref().is_some_and(|title| !lower.is_empty() && title.to_lowercase().contains(&lower))
    };
    let mut values: Vec<String> = Vec::new();
    if "@last".starts_with(typed) && !page.data.is_empty() {
        values.push("@last".into());
    }
    values.extend(page.data.iter().filter_map(|conversation| {
        let id = conversation.id.to_string();
        (id.starts_with(typed) || titled(&conversation.title)).then_some(id)
    }));
    let total = u32::try_from(values.len()).ok();
    let more = values.len() > CompletionInfo::MAX_VALUES;
    values.truncate(CompletionInfo::MAX_VALUES);
    CompletionInfo::with_pagination(values, total, more).map_err(|e| Error::internal("completion", e))
}
