//! The table of MCP requests. One per session, or per request where the protocol has no sessions.

use super::lines::CallOrder;
use super::record::Recorder;
use super::stdio::{SharedStore, ToolDispatch};
use super::{Shared, prompts, protocol_error, resources, tools, watch};
use crate::access::{Caller, KeyRole};
use crate::app::{blocking, large};
use crate::lanes::Lane;
use axum::extract::rejection::QueryRejection;
use axum::http::Uri;
use axum::http::request::Parts;
use everturn_api::{Requester, Row, Work};
use everturn_core::Error;
use everturn_engine::Tenant;
use parking_lot::Mutex;
use resources::Address;
use rmcp::model::*;
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use tokio_util::task::AbortOnDropHandle;
use tools::Toolsets;
use watch::{Client, ListingUpdates};

/// Requests of the protocol.
const METHODS: [&str; 14] = [
    "completion/complete",
    "initialize",
    "logging/setLevel",
    "ping",
    "prompts/get",
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "resources/templates/list",
    "resources/unsubscribe",
    "subscriptions/listen",
    "tools/call",
    "tools/list",
];

/// Maximum number of subscriptions of one session.
const SUBSCRIPTIONS_MAX: usize = 100;

const INSTRUCTIONS: &str = "\
Everturn stores conversations: every turn, permanently. Start one with `create_conversation`; call `append_turns` for each turn worth keeping.
`list_conversations` finds one by title; where a tool takes a conversation, give its id, the beginning of one, or @last.
`recall` searches all earlier turns and facts, lexically and by embedding; `list_turns` reads turns verbatim, with `order` desc newest first.
`build_context` returns what fits into a token budget: summary, pins and newest turns; use it before you answer in a long conversation.
`pin` what must not be forgotten; `compact` when it gets long; an error names a code and what to do: do that, then call again.";

/// The caller of an MCP request.
#[derive(Clone)]
pub struct McpCaller {
    pub tenant: Tenant,
    /// The store, if another process may own it.
    pub store: Option<Arc<dyn SharedStore>>,
    pub role: KeyRole,
    /// The tenant's lane, over HTTP.
    pub lane: Option<Arc<Lane>>,
    /// Whether no key was required because there is none.
    pub is_keyless: bool,
    pub toolsets: Toolsets,
}

impl McpCaller {
    /// Runs blocking work, within the tenant's limits.
    async fn blocking<T: Send + 'static>(
        &self,
        is_large: bool,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let work = async { if is_large { large(work).await } else { blocking(work).await } };
        match &self.lane {
            Some(lane) => lane.run(work).await,
            None => work.await,
        }
    }
}

/// The arguments of a tool call as the client sent them.
#[derive(Clone)]
pub struct RawArguments(pub String);

/// The tool sets that `/mcp?toolsets=` names.
fn toolsets(uri: &Uri) -> Result<Toolsets, Error> {
    let wrong = |e: QueryRejection| Error::invalid("query.shape", e.body_text());
    let axum::extract::Query(query) =
        axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri).map_err(wrong)?;
    if let Some((name, _)) = query.iter().find(|(name, _)| name != "toolsets") {
        let text = format!("the query of /mcp is ?toolsets=, not {:?}", everturn_core::id::clip(name));
        return Err(Error::invalid("query.shape", text));
    }
    let named: Vec<&str> =
        query.iter().map(|(_, names)| names.as_str()).filter(|names| !names.trim().is_empty()).collect();
    if named.is_empty() { Ok(Toolsets::default()) } else { named.join(",").parse() }
}

/// A caller over standard input and output.
pub struct StdioCaller {
    pub store: Arc<dyn SharedStore>,
    pub role: KeyRole,
    pub toolsets: Toolsets,
}

/// Serves one client.
pub struct Service {
    shared: Arc<Shared>,
    /// The store and the rights of the caller, if there is no HTTP request.
    local: Option<StdioCaller>,
    /// The session's recorder; requests outside of sessions share one.
    recorder: OnceLock<Arc<Recorder>>,
    /// Changes of lists since the session began, until the client is ready to be notified.
    listed: Mutex<Option<ListingUpdates>>,
    /// Subscriptions, by URI.
    watches: Mutex<HashMap<String, AbortOnDropHandle<()>>>,
}

impl Service {
    /// Serves callers over HTTP, or one local caller.
    pub fn new(shared: Arc<Shared>, local: Option<StdioCaller>) -> Service {
        let listed = Mutex::new(Some(shared.lists.subscribe()));
        Service { shared, local, recorder: OnceLock::new(), listed, watches: Mutex::default() }
    }

    /// The caller. Each request is authenticated: a session is not a key.
    fn caller(&self, extensions: &Extensions) -> Result<McpCaller, ErrorData> {
        let asked = || {
            let parts = extensions.get::<Parts>()?;
            Some((parts.extensions.get::<Caller>()?, &parts.uri))
        };
        let Some((caller, uri)) = asked() else {
            let Some(StdioCaller { store, role, toolsets }) = &self.local else {
                let text = "access.unauthorized: this needs a key; send it as a bearer token";
                return Err(ErrorData::invalid_request(text, None));
            };
            return Ok(McpCaller {
                tenant: store.tenant(),
                store: Some(store.clone()),
                role: *role,
                lane: None,
                is_keyless: false,
                toolsets: toolsets.clone(),
            });
        };
        Ok(McpCaller {
            tenant: caller.tenant.clone(),
            store: None,
            role: caller.role,
            lane: Some(caller.lane.clone()),
            is_keyless: caller.is_keyless,
            toolsets: toolsets(uri).map_err(protocol_error)?,
        })
    }

    fn recorder(&self, caller: &McpCaller) -> Option<Arc<Recorder>> {
        self.recorder.get().cloned().or_else(|| self.shared.loose_recorder(&caller.tenant))
    }

    /// Answers with the result of a blocking function, and records it.
    async fn answer<P: Serialize, T: Serialize + Send + 'static>(
        &self,
        context: &RequestContext<RoleServer>,
        method: &str,
        parameters: &P,
        work: impl FnOnce(&Tenant) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, ErrorData> {
        let caller = self.caller(&context.extensions)?;
        let recorder = self.recorder(&caller).map(|recorder| {
            let asked = recorder.asked();
            (recorder, asked)
        });
        let tenant = caller.tenant.clone();
        let answer = caller.blocking(false, move || work(&tenant)).await.map_err(protocol_error);
        if let Some((recorder, asked)) = recorder {
            recorder.dispatched(method, parameters, &answer, asked);
        }
        answer
    }

    async fn call(
        &self,
        caller: McpCaller,
        request: &CallToolRequestParams,
        sent: Option<String>,
    ) -> Result<CallToolResult, ErrorData> {
        let row = tools::find(&request.name, &caller.toolsets).ok_or_else(|| {
            let text = format!(
                "there is no tool {:?} in the tool sets that are on; see tools/list, or ask for more with --toolsets or \
                 /mcp?toolsets=",
                request.name
            );
            ErrorData::invalid_params(text, None)
        })?;
        if caller.role < row.about.role {
            let text = format!(
                "this tool needs the role {:?}, you have {:?}; use another key, or a server that is not read-only",
                row.about.role, caller.role
            );
            return Ok(tools::refused(&Error::invalid("access.role", text)));
        }
        // As they were sent, if known: stored content keeps its bytes.
        let parsed = || serde_json::Value::Object(request.arguments.clone().unwrap_or_default()).to_string();
        let arguments = sent.unwrap_or_else(parsed);
        let is_large = row.about.work == Work::Large;
        let requester = Requester {
            role: caller.role,
            is_keyless: caller.is_keyless,
            ..Requester::here(caller.tenant.clone())
        };
        let (holder, store) = (caller.tenant.caller().clone(), caller.store.clone());
        let run = move || {
            let json = match store.map(|store| store.ask(row, arguments.clone())) {
                None => tools::run(row, requester, &arguments),
                Some(ToolDispatch::Answered(answer)) => answer,
                Some(ToolDispatch::Here(tenant, arguments)) => {
                    let tenant = tenant.called_by(holder);
                    tools::run(row, Requester { tenant, ..requester }, &arguments)
                }
            };
            tools::answer(json?)
        };
        let answer = caller.blocking(is_large, run).await;
        Ok(answer.unwrap_or_else(|error| tools::refused(&error)))
    }

    fn watch(&self, uri: String, task: impl Future<Output = ()> + Send + 'static) {
        let task = AbortOnDropHandle::new(tokio::spawn(task));
        self.watches.lock().insert(uri, task);
    }
}

/// Adds the URI to the error about a resource, as the protocol asks.
fn with_uri(mut error: ErrorData, uri: &str) -> ErrorData {
    if let Some(data) = &mut error.data {
        data["uri"] = uri.into();
    }
    error
}

impl ServerHandler for Service {
    #[allow(deprecated, reason = "clients of older versions of the protocol ask for logging")]
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_completions()
            .enable_logging()
            .enable_prompts()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_resources_list_changed()
            .enable_tools()
            .build();
        let server = Implementation::new("everturn", env!("CARGO_PKG_VERSION")).with_title("Everturn");
        ServerConfig::new(capabilities).with_server_info(server).with_instructions(INSTRUCTIONS)
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        let caller = self.caller(&context.extensions)?;
        // A second initialize continues the first one's file.
        let folder = self.shared.record.clone().filter(|_| self.recorder.get().is_none());
        if let Some(folder) = folder {
            let (transport, client) = (self.shared.transport, request.client_info.clone());
            let tenant = caller.tenant.clone();
            let begin = move || Ok(Recorder::begin(&folder, &tenant, transport, Some(&client)));
            let recorder = blocking(begin).await.map_err(protocol_error)?;
            let _ = self.recorder.set(Arc::new(recorder));
        }
        context.peer.set_peer_info(request.clone());
        self.negotiate_initialize(&request)
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let Ok(caller) = self.caller(&context.extensions) else { return };
        let listed = self.listed.lock().take();
        if let Some(listed) = listed {
            let tenant = caller.tenant.name().clone();
            self.watch(String::new(), watch::list(listed, tenant, Client::Session(context.peer)));
        }
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let caller = self.caller(&context.extensions)?;
        let list = move |_: &Tenant| Ok(ListToolsResult::with_all_items(tools::list_for(&caller)));
        self.answer(&context, "tools/list", &request, list).await
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::describe(name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let caller = self.caller(&context.extensions)?;
        let order = context.extensions.get::<CallOrder>().cloned();
        let mut place = if let Some(order) = order { order.wait().await } else { None };
        // Other calls do not wait for one that changes nothing, nor for one that may wait for an approval.
        let holds = |row: &&Row| row.about.role > KeyRole::Reader && !row.about.asks_model;
        if tools::find(&request.name, &caller.toolsets).filter(holds).is_none() {
            place.take();
        }
        let recorded = self.recorder(&caller).map(|recorder| {
            let call =
                recorder.called(&request.name, request.arguments.as_ref().unwrap_or(&JsonObject::new()));
            (recorder, call)
        });
        let sent = context.extensions.get::<Parts>().and_then(|parts| parts.extensions.get::<RawArguments>());
        let answer = self.call(caller, &request, sent.map(|sent| sent.0.clone())).await;
        if let Some((recorder, call)) = recorded {
            recorder.answered(call, &answer);
        }
        drop(place);
        answer.map(Into::into)
    }

    /// A request that the SDK does not know, or one that it knows with other parameters.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        match METHODS.contains(&request.method.as_str()) {
            true => {
                let text = format!("the parameters of {} are missing or invalid", request.method);
                Err(ErrorData::invalid_params(text, None))
            }
            false => Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, request.method, None)),
        }
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let cursor = request.as_ref().and_then(|page| page.cursor.clone());
        let list = move |tenant: &Tenant| resources::list(tenant, cursor.as_deref());
        self.answer(&context, "resources/list", &request, list).await
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let list = |_: &Tenant| Ok(ListResourceTemplatesResult::with_all_items(resources::templates()));
        self.answer(&context, "resources/templates/list", &request, list).await
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri.clone();
        let read = move |tenant: &Tenant| resources::read(tenant, &uri);
        let answer = self.answer(&context, "resources/read", &request, read).await;
        answer.map(Into::into).map_err(|error| with_uri(error, &request.uri))
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let watched = self.watches.lock().len();
        if watched > SUBSCRIPTIONS_MAX {
            let (limit, got) = (SUBSCRIPTIONS_MAX as u64, watched as u64);
            let error = Error::limit("SUBSCRIPTIONS_MAX", limit, got, "unsubscribe from others first");
            return Err(protocol_error(error));
        }
        let absent = |error| with_uri(protocol_error(error), &request.uri);
        let address = Address::parse(&request.uri).map_err(absent)?;
        let caller = self.caller(&context.extensions)?;
        let recorder = self.recorder(&caller).map(|recorder| {
            let asked = recorder.asked();
            (recorder, asked)
        });
        let (id, tenant) = (address.conversation, caller.tenant.clone());
        // Subscribed before the answer: everything after the answer is reported.
        let updates = blocking(move || watch::from_now(&tenant, id)).await.map_err(absent);
        let answer = updates.as_ref().map(|_| ()).map_err(Clone::clone);
        if let Some((recorder, asked)) = recorder {
            recorder.dispatched("resources/subscribe", &request, &answer, asked);
        }
        let (uri, client) = (request.uri.clone(), Client::Session(context.peer));
        self.watch(request.uri, watch::conversation(caller.tenant, id, updates?, uri, client));
        Ok(())
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.watches.lock().remove(&request.uri);
        self.answer(&context, "resources/unsubscribe", &request, |_| Ok(())).await
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        let mut accepted = requested.clone();
        if let Some(uris) = &mut accepted.resource_subscriptions {
            uris.retain(|uri| Address::parse(uri).is_ok());
            uris.truncate(SUBSCRIPTIONS_MAX);
        }
        Some(accepted)
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let tenant = self.caller(&context.request_context().extensions)?.tenant;
        let accepted = context.accepted().clone();
        let mut watches = Vec::new();
        // The client was told that it is subscribed before it was. Changes in between are unknown, so each resource is
        // reported once.
        for uri in accepted.resource_subscriptions.unwrap_or_default() {
            let address = Address::parse(&uri).map_err(protocol_error)?;
            let (id, from) = (address.conversation, tenant.clone());
            let updates = blocking(move || watch::from_now(&from, id)).await.map_err(protocol_error)?;
            let client = Client::Listening(context.sink().clone());
            client.updated(&uri).await;
            let told = watch::conversation(tenant.clone(), id, updates, uri, client);
            watches.push(AbortOnDropHandle::new(tokio::spawn(told)));
        }
        if accepted.resources_list_changed == Some(true) {
            let client = Client::Listening(context.sink().clone());
            let listed = self.shared.lists.subscribe();
            client.list_changed().await;
            let told = watch::list(listed, tenant.name().clone(), client);
            watches.push(AbortOnDropHandle::new(tokio::spawn(told)));
        }
        tokio::select! {
            () = context.cancelled() => {}
            () = self.shared.stopping.cancelled() => {}
        }
        Ok(())
    }

    /// Accepts any level: failures are answers of the tools, and nothing is logged beside them.
    #[allow(deprecated, reason = "clients of older versions of the protocol ask for it")]
    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.answer(&context, "logging/setLevel", &request, |_| Ok(())).await
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let list = |_: &Tenant| Ok(ListPromptsResult::with_all_items(prompts::list()));
        self.answer(&context, "prompts/list", &request, list).await
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let arguments = request.arguments.clone().unwrap_or_default();
        let name = request.name.clone();
        let get = move |tenant: &Tenant| prompts::get(tenant, &name, &arguments);
        let answer = self.answer(&context, "prompts/get", &request, get).await;
        // A prompt is not a resource: an unknown name is an invalid argument.
        answer.map(Into::into).map_err(|error| match error.code {
            ErrorCode::RESOURCE_NOT_FOUND => ErrorData { code: ErrorCode::INVALID_PARAMS, ..error },
            _ => error,
        })
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let ours = match &request.r#ref {
            Reference::Prompt(prompt) => {
                prompt.name == prompts::CONTINUE && request.argument.name == "conversation"
            }
            Reference::Resource(template) => {
                template.uri.starts_with("everturn://") && request.argument.name == "id"
            }
            #[allow(unreachable_patterns, reason = "the SDK may know more one day")]
            _ => false,
        };
        let typed = request.argument.value.clone();
        // Only a prompt accepts @last.
        let whole = matches!(request.r#ref, Reference::Resource(_));
        self.answer(&context, "completion/complete", &request, move |tenant| {
            let mut found = if ours { prompts::complete(tenant, &typed)? } else { CompletionInfo::default() };
            found.values.retain(|value| !whole || value != "@last");
            Ok(CompleteResult::new(found))
        })
        .await
    }
}
