//! Fixtures of the protocol's conformance suite (npm `@modelcontextprotocol/conformance`). Built only for tests
//! (feature `mcp-fixtures`), and served only on request.
#![allow(
    deprecated,
    reason = "the suite asks for sampling and logging, which the newest protocol leaves out"
)]

use super::Shared;
use super::service::Service;
use rmcp::model::*;
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// A red pixel.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
/// Silence.
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=";

type CallResult = Result<CallToolResult, ErrorData>;

fn object(value: Value) -> Arc<JsonObject> {
    Arc::new(value.as_object().cloned().unwrap_or_default())
}

/// The tools of the suite.
fn tools() -> Vec<Tool> {
    let plain = [
        "test_simple_text",
        "test_image_content",
        "test_audio_content",
        "test_embedded_resource",
        "test_multiple_content_types",
        "test_tool_with_logging",
        "test_tool_with_progress",
        "test_error_handling",
        "test_elicitation_sep1034_defaults",
        "test_elicitation_sep1330_enums",
        "test_reconnection",
    ];
    let nothing = object(json!({"type": "object", "properties": {}}));
    let mut tools: Vec<Tool> =
        plain.into_iter().map(|name| Tool::new(name, "For the conformance suite", nothing.clone())).collect();
    for (name, argument) in [("test_sampling", "prompt"), ("test_elicitation", "message")] {
        let schema = json!({
            "type": "object",
            "properties": {argument: {"type": "string"}},
            "required": [argument],
        });
        tools.push(Tool::new(name, "For the conformance suite", object(schema)));
    }
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            },
        },
        "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
        "additionalProperties": false,
    });
    tools.push(Tool::new(
        "json_schema_2020_12_tool",
        "Tool with JSON Schema 2020-12 features",
        object(schema),
    ));
    tools
}

/// Calls one of them; `None` for any other tool.
async fn call(
    shared: &Shared,
    request: &CallToolRequestParams,
    context: RequestContext<RoleServer>,
) -> Option<CallResult> {
    let argument = |name: &str| {
        request.arguments.as_ref().and_then(|all| all.get(name)?.as_str()).unwrap_or_default().to_string()
    };
    Some(match request.name.as_ref() {
        "test_simple_text" => said("This is a simple text response for testing."),
        "test_image_content" => Ok(CallToolResult::success(vec![ContentBlock::image(PNG, "image/png")])),
        "test_audio_content" => {
            Ok(CallToolResult::success(vec![ContentBlock::Audio(AudioContent::new(WAV, "audio/wav"))]))
        }
        "test_embedded_resource" => {
            let text = "This is an embedded resource content.";
            Ok(CallToolResult::success(vec![embedded("test://embedded-resource", "text/plain", text)]))
        }
        "test_multiple_content_types" => Ok(CallToolResult::success(vec![
            ContentBlock::text("Multiple content types test:"),
            ContentBlock::image(PNG, "image/png"),
            embedded("test://mixed-content-resource", "application/json", r#"{"test":"data","value":123}"#),
        ])),
        "test_error_handling" => Ok(CallToolResult::error(vec![ContentBlock::text(
            "This tool intentionally returns an error for testing",
        )])),
        "test_tool_with_logging" => logging(context).await,
        "test_tool_with_progress" => progress(context).await,
        "test_sampling" => sampling(context, argument("prompt")).await,
        "test_elicitation" => {
            let schema = json!({
                "type": "object",
                "properties": {
                    "username": {"type": "string", "description": "User's response"},
                    "email": {"type": "string", "description": "User's email address"},
                },
                "required": ["username", "email"],
            });
            elicitation(context, "User response", argument("message"), schema).await
        }
        "test_elicitation_sep1034_defaults" => {
            elicitation(context, "Elicitation completed", "Please check".into(), with_defaults()).await
        }
        "test_elicitation_sep1330_enums" => {
            elicitation(context, "Elicitation completed", "Please choose".into(), with_enums()).await
        }
        "test_reconnection" => reconnection(shared, &context).await,
        "json_schema_2020_12_tool" => said("Received."),
        _ => return None,
    })
}

fn said(text: &str) -> CallResult {
    Ok(CallToolResult::success(vec![ContentBlock::text(text)]))
}

fn embedded(uri: &str, kind: &str, text: &str) -> ContentBlock {
    ContentBlock::Resource(EmbeddedResource::new(ResourceContents::text(text, uri).with_mime_type(kind)))
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

fn lost(error: impl std::fmt::Display) -> ErrorData {
    ErrorData::internal_error(format!("the client did not answer: {error}"), None)
}

async fn logging(context: RequestContext<RoleServer>) -> CallResult {
    for text in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
        let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(text));
        context.peer.notify_logging_message(message).await.map_err(lost)?;
        pause().await;
    }
    said("Logged three times.")
}

async fn progress(context: RequestContext<RoleServer>) -> CallResult {
    for done in [0.0, 50.0, 100.0] {
        if let Some(token) = context.meta.get_progress_token() {
            let mut progress = ProgressNotificationParam::new(token, done);
            progress.total = Some(100.0);
            context.peer.notify_progress(progress).await.map_err(lost)?;
        }
        pause().await;
    }
    said("Progressed to the end.")
}

async fn sampling(context: RequestContext<RoleServer>, prompt: String) -> CallResult {
    let message = json!({
        "messages": [{"role": "user", "content": {"type": "text", "text": prompt}}],
        "maxTokens": 100,
    });
    let params: CreateMessageRequestParams = serde_json::from_value(message).map_err(lost)?;
    let answer = context.peer.create_message(params).await.map_err(lost)?;
    let answer = serde_json::to_value(&answer).map_err(lost)?;
    let text = answer.pointer("/content/text").and_then(Value::as_str).unwrap_or_default();
    said(&format!("LLM response: {text}"))
}

async fn elicitation(
    context: RequestContext<RoleServer>,
    word: &str,
    message: String,
    schema: Value,
) -> CallResult {
    let params = json!({"mode": "form", "message": message, "requestedSchema": schema});
    let params: ElicitRequestParams = serde_json::from_value(params).map_err(lost)?;
    let request = ServerRequest::ElicitRequest(ElicitRequest::new(params));
    let answer = context.peer.send_request(request).await.map_err(lost)?;
    let answer = serde_json::to_value(&answer).map_err(lost)?;
    let action = answer["action"].as_str().unwrap_or_default();
    said(&format!("{word}: action={action}, content={}", answer["content"]))
}

fn with_defaults() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": true},
        },
        "required": [],
    })
}

fn with_enums() -> Value {
    let titled = |word: &str| {
        json!([
            {"const": "value1", "title": format!("First {word}")},
            {"const": "value2", "title": format!("Second {word}")},
            {"const": "value3", "title": format!("Third {word}")},
        ])
    };
    let options = json!(["option1", "option2", "option3"]);
    json!({
        "type": "object",
        "properties": {
            "untitledSingle": {"type": "string", "enum": options},
            "titledSingle": {"type": "string", "oneOf": titled("Option")},
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled("Choice")}},
        },
        "required": [],
    })
}

/// Closes the connection in the middle of the call; the client fetches the answer with `Last-Event-ID`.
async fn reconnection(shared: &Shared, context: &RequestContext<RoleServer>) -> CallResult {
    let parts = context.extensions.get::<axum::http::request::Parts>();
    let id = parts.and_then(|parts| parts.headers.get("mcp-session-id")?.to_str().ok());
    let session = match id {
        Some(id) => shared.sessions.sessions.read().await.get(id).cloned(),
        None => None,
    };
    if let Some(session) = session {
        // The SDK does not say which of the session's streams is ours; the suite has just this one.
        for stream in 0..8 {
            let _ = session.close_sse_stream(stream, Some(Duration::from_millis(100))).await;
        }
        // The answer is kept only until it is delivered, so it waits for the client.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    said("You are back.")
}

/// The resources of the suite.
fn resources() -> Vec<Resource> {
    ["test://static-text", "test://static-binary", "test://watched-resource"]
        .into_iter()
        .map(|uri| Resource::new(uri, uri).with_description("For the conformance suite"))
        .collect()
}

fn templates() -> Vec<ResourceTemplate> {
    vec![
        ResourceTemplate::new("test://template/{id}/data", "test")
            .with_description("For the conformance suite")
            .with_mime_type("application/json"),
    ]
}

fn read(uri: &str) -> Option<ReadResourceResult> {
    let contents = match uri {
        "test://static-text" => {
            ResourceContents::text("This is the content of the static text resource.", uri)
        }
        "test://static-binary" => ResourceContents::blob(PNG, uri).with_mime_type("image/png"),
        "test://watched-resource" => ResourceContents::text("Nothing happens here.", uri),
        _ => {
            let id = uri.strip_prefix("test://template/")?.strip_suffix("/data")?;
            let text = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
            ResourceContents::text(text.to_string(), uri).with_mime_type("application/json")
        }
    };
    Some(ReadResourceResult::new(vec![contents]))
}

/// The prompts of the suite.
fn prompts() -> Vec<Prompt> {
    let prompt = |name: &str, arguments: &[&str]| {
        let arguments =
            arguments.iter().map(|name| PromptArgument::new(*name).with_required(true)).collect::<Vec<_>>();
        Prompt::new(name, Some("For the conformance suite"), Some(arguments))
    };
    vec![
        prompt("test_simple_prompt", &[]),
        prompt("test_prompt_with_arguments", &["arg1", "arg2"]),
        prompt("test_prompt_with_embedded_resource", &["resourceUri"]),
        prompt("test_prompt_with_image", &[]),
    ]
}

fn prompt(name: &str, arguments: &JsonObject) -> Option<GetPromptResult> {
    let argument = |name: &str| arguments.get(name).and_then(Value::as_str).unwrap_or_default();
    let text = |text: &str| PromptMessage::new_text(Role::User, text);
    let messages = match name {
        "test_simple_prompt" => vec![text("This is a simple prompt for testing.")],
        "test_prompt_with_arguments" => {
            let (one, two) = (argument("arg1"), argument("arg2"));
            vec![text(&format!("Prompt with arguments: arg1='{one}', arg2='{two}'"))]
        }
        "test_prompt_with_embedded_resource" => {
            let resource =
                embedded(argument("resourceUri"), "text/plain", "Embedded resource content for testing.");
            let process = text("Please process the embedded resource above.");
            vec![PromptMessage::new(Role::User, resource), process]
        }
        "test_prompt_with_image" => {
            let image = ContentBlock::image(PNG, "image/png");
            vec![PromptMessage::new(Role::User, image), text("Please analyze the image above.")]
        }
        _ => return None,
    };
    Some(GetPromptResult::new(messages))
}

/// A service that also serves the fixtures, if enabled.
pub struct WithFixtures {
    service: Service,
    shared: Arc<Shared>,
    on: bool,
}

impl WithFixtures {
    pub fn new(service: Service, shared: Arc<Shared>, on: bool) -> WithFixtures {
        WithFixtures { service, shared, on }
    }
}

impl ServerHandler for WithFixtures {
    fn get_info(&self) -> ServerConfig {
        let mut info = self.service.get_info();
        if self.on {
            info.capabilities.logging = Some(JsonObject::new());
        }
        info
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        let mut result = self.service.initialize(request, context).await?;
        if self.on {
            result.capabilities.logging = Some(JsonObject::new());
        }
        Ok(result)
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.service.on_initialized(context).await;
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut list = self.service.list_tools(request, context).await?;
        if self.on {
            list.tools.extend(tools());
        }
        Ok(list)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.service.get_tool(name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if self.on && tools().iter().any(|tool| tool.name == request.name) {
            let called = call(&self.shared, &request, context).await;
            return called
                .unwrap_or_else(|| Err(ErrorData::internal_error("no such fixture", None)))
                .map(Into::into);
        }
        self.service.call_tool(request, context).await
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        self.service.on_custom_request(request, context).await
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let first = request.as_ref().is_none_or(|page| page.cursor.is_none());
        let mut list = self.service.list_resources(request, context).await?;
        if self.on && first {
            list.resources.extend(resources());
        }
        Ok(list)
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let mut list = self.service.list_resource_templates(request, context).await?;
        if self.on {
            list.resource_templates.extend(templates());
        }
        Ok(list)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        match read(&request.uri).filter(|_| self.on) {
            Some(read) => Ok(read.into()),
            None => self.service.read_resource(request, context).await,
        }
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        match self.on && request.uri.starts_with("test://") {
            true => Ok(()),
            false => self.service.subscribe(request, context).await,
        }
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.service.unsubscribe(request, context).await
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        self.service.accepted_subscription_filter(requested)
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        self.service.listen(context).await
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let mut list = self.service.list_prompts(request, context).await?;
        if self.on {
            list.prompts.extend(prompts());
        }
        Ok(list)
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let arguments = request.arguments.clone().unwrap_or_default();
        match prompt(&request.name, &arguments).filter(|_| self.on) {
            Some(prompt) => Ok(prompt.into()),
            None => self.service.get_prompt(request, context).await,
        }
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        self.service.complete(request, context).await
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        match self.on {
            true => Ok(()),
            false => self.service.set_level(request, context).await,
        }
    }
}
