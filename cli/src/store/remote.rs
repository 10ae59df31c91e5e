//! A server's store, asked over its REST API.

mod follow;
mod http;
mod transfer;

use super::{Ask, Cursor, NewKey, Store, Updates, cursor};
use crate::output::Failure;
use everturn_core::access::AccessKey;
use everturn_core::asset::Asset;
use everturn_core::chain::{Hash, Report};
use everturn_core::conversation::{Conversation, Settings, Tombstone};
use everturn_core::event::Event;
use everturn_core::fact::Fact;
use everturn_core::id::{ConversationId, FactId, KeyId, TurnId};
use everturn_core::json::Raw;
use everturn_core::limits::BODY_BYTES_MAX;
use everturn_core::turn::{Turn, TurnBody};
use everturn_core::{Error, json};
use everturn_engine::{
    AppendOptions, Appended, Behind, CompactOptions, Compacted, Context, Correction, Doctor, Entry,
    ErasedActor, ExtractOptions, Extraction, FactQuery, Format, HistoryQuery, Imported, ListQuery, NewFact,
    NewStream, NewTurn, Order, Page, RecallOptions, Recalled,
};
use everturn_views::state::State;
use follow::Following;
use http::{Fields, Request, Server};
use reqwest::Method;
use serde::Deserialize;
use serde_json::Value;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

/// How long recall waits for what was just said to be found.
const INDEX_PATIENCE: Duration = Duration::from_secs(2);
/// How long between two looks.
const INDEX_PAUSE: Duration = Duration::from_millis(100);

/// A tenant's part of a server's store: the key says whose.
pub struct Remote {
    server: Server,
}

impl Remote {
    /// The store of the server at this URL. Nothing is asked yet.
    pub fn new(url: &str, key: Option<&str>) -> Result<Remote, Error> {
        Ok(Remote { server: Server::new(url, key)? })
    }

    fn get_of(&self, id: ConversationId, what: &[&str]) -> Request<'_> {
        self.of(Method::GET, id, what)
    }

    fn post_to(&self, id: ConversationId, what: &[&str]) -> Request<'_> {
        self.of(Method::POST, id, what)
    }

    fn of(&self, method: Method, id: ConversationId, what: &[&str]) -> Request<'_> {
        let id = id.to_string();
        self.server.request(method, &[&["conversations", &id], what].concat())
    }

    fn post_to_turn(&self, turn: TurnId, what: &str) -> Request<'_> {
        self.server.post(&["turns", &turn.to_string(), what])
    }

    fn pins(&self, method: Method, id: ConversationId, name: &str) -> Result<Request<'_>, Error> {
        // What browsers take for "here" and "one up" cannot be asked for, however it is written.
        if matches!(name, "" | "." | "..") {
            let text = format!("a pin named {name:?} cannot be reached over HTTP; choose another name");
            return Err(Error::invalid("pin.name", text));
        }
        Ok(self.of(method, id, &["pins", name]))
    }
}

/// A list as a server gives it.
#[derive(Deserialize)]
struct List<T> {
    data: Vec<T>,
    next: Option<String>,
}

impl<T> List<T> {
    fn into_page<C>(self, read: impl Fn(&str) -> Option<C>) -> Page<T, C> {
        Page { next: self.next.as_deref().and_then(read), data: self.data }
    }
}

/// A turn to say, as a server takes it. What is no JSON cannot be sent, and is refused as the engine would.
fn said(turn: &NewTurn) -> Result<Fields, Error> {
    let mut fields = Fields::default()
        .put_some("actor", &turn.actor)
        .put_some("visibility", &turn.visibility)
        .put_some("tokens", &turn.tokens)
        .put_some("model", &turn.model)
        .put_some("adapter", &turn.adapter)
        .put_some("occurred_at", &turn.occurred_at)
        .put("metadata", &turn.metadata);
    if !turn.message.is_empty() {
        json::check(&turn.message).map_err(|e| e.at("message"))?;
        let message = Raw::new(turn.message.clone())?;
        fields = fields.put("message", &message);
        fits(turn, message)?;
    }
    Ok(fields)
}

/// Refuses what is too large for an event as the engine would. A server refuses it for being too large for a request,
/// before it knows what it is.
fn fits(turn: &NewTurn, message: Raw) -> Result<(), Error> {
    if message.get().len() < BODY_BYTES_MAX {
        return Ok(());
    }
    let (tokens, model, adapter) = (turn.tokens, turn.model.clone(), turn.adapter.clone());
    let metadata = turn.metadata.clone();
    let body = TurnBody { message: Some(message), tokens, model, adapter, metadata, ..TurnBody::default() };
    let bytes = Raw::of(&body)?.get().len() as u64;
    let advice = "split the turn or put the payload into an asset";
    Err(Error::limit("BODY_BYTES_MAX", BODY_BYTES_MAX as u64, bytes, advice))
}

impl Store for Remote {
    fn resolve(&self, name: &str) -> Result<ConversationId, Error> {
        let found: Conversation =
            self.server.get(&["conversations", "resolve"]).query("name", name).read()?;
        Ok(found.id)
    }

    fn get(&self, id: ConversationId) -> Result<Conversation, Error> {
        self.get_of(id, &[]).read()
    }

    fn create(&self, settings: Settings) -> Result<Conversation, Error> {
        let prompt = settings.system_prompt.flatten().map(|prompt| prompt.content);
        let body = Fields::default()
            .put_some("title", &settings.title.flatten())
            .put_some("owner", &settings.owner.flatten())
            .put("metadata", &settings.metadata)
            .put_some("ttl", &settings.ttl.flatten())
            .put_some("retention", &settings.retention)
            .put("policy", &settings.policy)
            .put_some("system_prompt", &prompt);
        self.server.post(&["conversations"]).json(body).read()
    }

    fn list(&self, query: ListQuery) -> Result<Page<Conversation, Cursor>, Error> {
        let after = query.after.map(|(updated, id)| format!("{updated}/{id}"));
        let request = self.server.get(&["conversations"]).query("limit", query.limit);
        let request = request.query_some("query", query.text).query_some("state", query.state);
        Ok(request.query_some("after", after).read::<List<_>>()?.into_page(cursor))
    }

    fn fork(&self, id: ConversationId, at: Option<u64>) -> Result<Conversation, Error> {
        self.post_to(id, &["fork"]).json(Fields::default().put_some("at_seq", &at)).read()
    }

    fn delete(&self, id: ConversationId, reason: &str) -> Result<Tombstone, Error> {
        self.of(Method::DELETE, id, &[]).query("reason", reason).read()
    }

    fn append(&self, id: ConversationId, turn: NewTurn, options: AppendOptions) -> Result<Vec<Turn>, Error> {
        let body =
            Fields::default().put("turns", &[said(&turn)?]).put_some("expected_seq", &options.expected_seq);
        let request =
            self.post_to(id, &["turns"]).header("idempotency-key", options.idempotency_key.as_deref());
        Ok(request.json(body).read::<Appended>()?.turns)
    }

    fn open_turn(&self, id: ConversationId, new: NewStream) -> Result<Turn, Error> {
        let body = Fields::default()
            .put_some("actor", &new.actor)
            .put_some("role", &new.role)
            .put_some("model", &new.model)
            .put("metadata", &new.metadata);
        self.post_to(id, &["turns", "open"]).json(body).read()
    }

    fn append_chunk(&self, _: ConversationId, turn: TurnId, offset: u64, text: &str) -> Result<u64, Error> {
        #[derive(Deserialize)]
        struct Length {
            length: u64,
        }
        let body = Fields::default().put("delta", text).put("offset", &offset);
        Ok(self.post_to_turn(turn, "chunks").json(body).read::<Length>()?.length)
    }

    fn commit_turn(&self, _: ConversationId, turn: TurnId, last: NewTurn) -> Result<Turn, Error> {
        self.post_to_turn(turn, "commit").json(said(&last)?).read()
    }

    fn abort_turn(&self, _: ConversationId, turn: TurnId, reason: &str) -> Result<Turn, Error> {
        self.post_to_turn(turn, "abort").json(Fields::default().put("reason", reason)).read()
    }

    fn turn(&self, turn: TurnId) -> Result<Turn, Error> {
        self.server.get(&["turns", &turn.to_string()]).read()
    }

    fn erase(&self, turn: TurnId, by: Option<String>, reason: &str) -> Result<Turn, Error> {
        let body = Fields::default().put("reason", reason).put_some("by", &by);
        self.post_to_turn(turn, "erase").json(body).read()
    }

    fn erase_events(
        &self,
        id: ConversationId,
        seqs: &[u64],
        by: Option<String>,
        reason: &str,
    ) -> Result<Conversation, Error> {
        let body = Fields::default().put("seqs", seqs).put("reason", reason).put_some("by", &by);
        self.post_to(id, &["events", "erase"]).json(body).read()
    }

    fn erase_actor(
        &self,
        actor: &str,
        by: Option<String>,
        reason: &str,
        _: &mut dyn FnMut(&ErasedActor),
    ) -> Result<ErasedActor, Error> {
        let body = Fields::default().put("actor", actor).put("reason", reason).put_some("by", &by);
        self.server.post(&["erase"]).json(body).read()
    }

    fn history(&self, id: ConversationId, query: HistoryQuery) -> Result<Page<Entry>, Error> {
        let order = if query.order == Order::Descending { "desc" } else { "asc" };
        let mut request = self.get_of(id, &["turns"]).query("limit", query.limit).query("order", order);
        for actor in &query.actors {
            request = request.query("actor", actor);
        }
        let request = request
            .query_some("before", query.before)
            .query_some("after", query.after)
            .query("include_superseded", query.include_superseded)
            .query("include_events", query.include_events);
        Ok(request.read::<List<_>>()?.into_page(|seq| seq.parse().ok()))
    }

    fn turn_in(&self, id: ConversationId, turn: TurnId) -> Result<Turn, Error> {
        self.server.get(&["turns", &turn.to_string()]).query("conversation", id).read()
    }

    fn assets(&self, id: ConversationId) -> Result<Vec<Asset>, Error> {
        Ok(self.server.get(&["assets"]).query("conversation", id).read::<List<_>>()?.data)
    }

    fn follow(&self, id: ConversationId, from_seq: u64) -> Result<Box<dyn Updates>, Error> {
        Ok(Box::new(Following::new(self.server.clone(), id, from_seq)?))
    }

    fn state(&self, id: ConversationId, at: Option<u64>) -> Result<State, Error> {
        self.get_of(id, &["state"]).query_some("at", at).read()
    }

    fn pin(&self, id: ConversationId, name: &str, value: Raw) -> Result<Event, Error> {
        self.pins(Method::PUT, id, name)?.json(Fields::default().put("value", &value)).read()
    }

    fn unpin(&self, id: ConversationId, name: &str) -> Result<Event, Error> {
        self.pins(Method::DELETE, id, name)?.read()
    }

    fn compact(&self, id: ConversationId, options: CompactOptions) -> Result<Compacted, Error> {
        let body = Fields::default()
            .put("dry_run", &options.dry_run)
            .put_some("keep_last", &options.keep_last)
            .put("extractive", &options.extractive);
        self.post_to(id, &["compact"]).json(body).read()
    }

    fn revert_compaction(&self, id: ConversationId) -> Result<Conversation, Error> {
        self.post_to(id, &["compact", "revert"]).read()
    }

    fn facts(&self, id: ConversationId, query: FactQuery) -> Result<Page<Fact>, Error> {
        let request = self
            .get_of(id, &["facts"])
            .query("limit", query.limit)
            .query_some("as_of", query.as_of)
            .query_some("after", query.after)
            .query("include_superseded", query.include_superseded)
            .query("include_retracted", query.include_retracted);
        Ok(request.read::<List<_>>()?.into_page(|seq| seq.parse().ok()))
    }

    fn add_fact(&self, id: ConversationId, new: NewFact) -> Result<Fact, Error> {
        let body = Fields::default()
            .put("subject", &new.subject)
            .put("predicate", &new.predicate)
            .put("object", &new.object)
            .put_some("confidence", &new.confidence)
            .put_some("source_turn", &new.source_turn)
            .put_some("quote", &new.quote)
            .put_some("by", &new.by);
        self.post_to(id, &["facts"]).json(body).read()
    }

    fn correct_fact(&self, id: ConversationId, fact: FactId, correction: Correction) -> Result<Fact, Error> {
        let body = Fields::default()
            .put_some("subject", &correction.subject)
            .put_some("predicate", &correction.predicate)
            .put_some("object", &correction.object)
            .put_some("confidence", &correction.confidence)
            .put_some("by", &correction.by);
        let request = self.server.request(Method::PATCH, &["facts", &fact.to_string()]);
        request.query("conversation", id).json(body).read()
    }

    fn retract_fact(
        &self,
        id: ConversationId,
        fact: FactId,
        by: Option<String>,
        reason: Option<String>,
    ) -> Result<Fact, Error> {
        let request = self.server.request(Method::DELETE, &["facts", &fact.to_string()]);
        request.query("conversation", id).query_some("by", by).query_some("reason", reason).read()
    }

    fn extract_facts(&self, id: ConversationId, options: ExtractOptions) -> Result<Extraction, Error> {
        let body = Fields::default().put_some("from", &options.from).put_some("to", &options.to);
        self.post_to(id, &["facts", "extract"]).json(body).read()
    }

    fn index(&self, _: &mut dyn FnMut(Behind)) -> Result<(), Error> {
        let text = "a server makes everything findable by itself; leave --index out";
        Err(Error::invalid("url.index", text))
    }

    fn recall(&self, query: &str, options: &RecallOptions) -> Result<Recalled, Error> {
        let until = Instant::now() + INDEX_PATIENCE;
        loop {
            let body = Fields::default()
                .put("query", query)
                .put("actors", &options.actors)
                .put("roles", &options.roles)
                .put_some("after", &options.after)
                .put_some("before", &options.before)
                .put("kinds", &options.kinds)
                .put("limit", &options.limit)
                .put("mode", &options.mode)
                .put("include_superseded", &options.include_superseded);
            let request = match options.conversation {
                Some(id) => self.post_to(id, &["recall"]),
                None => self.server.post(&["recall"]),
            };
            let recalled: Recalled = request.json(body).read()?;
            // A server takes in what was just said within a second.
            if recalled.behind.events == 0 || Instant::now() > until {
                return Ok(recalled);
            }
            std::thread::sleep(INDEX_PAUSE);
        }
    }

    fn context(&self, id: ConversationId, ask: &Ask) -> Result<(Context, Option<u64>), Error> {
        #[derive(Deserialize)]
        struct Recorded {
            recorded_seq: Option<u64>,
        }
        let options = &ask.options;
        let digests = options.digests.iter();
        let digests: Vec<Fields> = digests
            .map(|digest| Fields::default().put("title", &digest.title).put("text", &digest.text))
            .collect();
        let body = Fields::default()
            .put("token_budget", &options.token_budget)
            .put_some("last_n", &options.last_n)
            .put("participants", &options.participants)
            .put_some("projection", &ask.projection)
            .put("sections", &options.sections)
            .put_some("instructions", &options.instructions)
            .put("digests", &digests)
            .put("input", &options.input)
            .put("attachments", &options.attachments)
            .put("tools", &options.tools)
            .put("provider", options.provider.as_str())
            .put_some("model", &options.model)
            .put_some("recall", &options.recall)
            .put_some("at_seq", &options.at_seq);
        let path = if ask.record { "contexts" } else { "context" };
        let text = self.post_to(id, &[path]).json(body).text()?;
        Ok((self.server.read(&text)?, self.server.read::<Recorded>(&text)?.recorded_seq))
    }

    fn replay_context(&self, id: ConversationId, seq: u64) -> Result<Context, Error> {
        self.get_of(id, &["contexts", &seq.to_string()]).read()
    }

    fn project(&self, id: ConversationId, options: &Value) -> Result<Raw, Error> {
        self.post_to(id, &["project"]).json(Fields::of(options)).read()
    }

    fn verify(
        &self,
        id: ConversationId,
        head: Option<Hash>,
        _: &mut dyn FnMut(u64),
    ) -> Result<Report, Error> {
        transfer::verify(self.get_of(id, &["verify"]).query_some("head", head))
    }

    fn export(
        &self,
        id: ConversationId,
        format: Format,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Failure> {
        transfer::export(&self.server, self.get_of(id, &["export"]).query("format", format), out, progress)
    }

    fn import(&self, name: Option<&str>, file: &mut (dyn BufRead + Send)) -> Result<Imported, Error> {
        transfer::import(&self.server, name, file)
    }

    fn attach(
        &self,
        id: ConversationId,
        name: &str,
        mime_type: &str,
        bytes: Vec<u8>,
    ) -> Result<Asset, Error> {
        let request = self.server.post(&["assets"]).query("conversation", id).query("name", name);
        request.header("content-type", Some(mime_type)).body(bytes.into()).read()
    }

    fn doctor(&self, _: &mut dyn FnMut(&Doctor)) -> Result<Doctor, Error> {
        self.server.get(&["doctor"]).read()
    }

    fn create_key(&self, new: NewKey) -> Result<(AccessKey, String), Error> {
        #[derive(Deserialize)]
        struct Words {
            secret: String,
        }
        let body = Fields::default()
            .put("role", &new.role)
            .put_some("label", &new.label)
            .put_some("expires", &new.expires);
        let text = self.server.post(&["keys"]).json(body).text()?;
        Ok((self.server.read(&text)?, self.server.read::<Words>(&text)?.secret))
    }

    fn keys(&self) -> Result<Vec<AccessKey>, Error> {
        Ok(self.server.get(&["keys"]).read::<List<_>>()?.data)
    }

    fn revoke_key(&self, id: KeyId) -> Result<AccessKey, Error> {
        self.server.request(Method::DELETE, &["keys", &id.to_string()]).read()
    }
}
