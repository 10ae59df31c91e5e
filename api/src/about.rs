//! Metadata of an operation.

use everturn_core::access::KeyRole;

/// Metadata of an operation. Its description is the doc comment of its struct.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// The operation's id in OpenAPI, and the tool's name in MCP.
    pub name: &'static str,
    /// Short title for people, such as the label of a button.
    pub title: &'static str,
    /// Subject of the operation.
    pub noun: Noun,
    /// HTTP method.
    pub method: Method,
    /// Its path below `/api/v1`; `{…}` names a field of the request.
    pub path: &'static str,
    /// The same operation under another name and path.
    pub alias: Option<(&'static str, &'static str)>,
    /// Minimum role of the caller.
    pub role: KeyRole,
    /// Amount of work.
    pub work: Work,
    /// HTTP status of a success.
    pub status: u16,
    /// Description of a successful answer, in a sentence.
    pub answer: &'static str,
    /// Whether the field `idempotency_key` comes from the header `Idempotency-Key`.
    pub once: bool,
    /// Whether the field `expected_seq` comes from the header `If-Match`.
    pub if_match: bool,
    /// Meaning of the status 200 if something already existed under the same key.
    pub repeated: Option<&'static str>,
    /// Whether the answer has a version (`ETag`).
    pub versioned: bool,
    /// Whether repeating it changes nothing.
    pub idempotent: bool,
    /// Whether it removes something irrecoverably, or touches keys.
    pub destructive: bool,
    /// Whether it may call a model.
    pub asks_model: bool,
    /// Whether agents get it as a tool by default.
    pub in_default_toolset: bool,
    /// Whether HTTP has a separate handler for it, because bytes are streamed.
    pub streams: bool,
}

/// HTTP method of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// Reads.
    Get,
    /// Performs an action.
    Post,
    /// Sets something.
    Put,
    /// Changes something.
    Patch,
    /// Removes something.
    Delete,
}

impl Method {
    /// The name in HTTP.
    pub const fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
        }
    }

    /// Whether the request has a body; otherwise its fields are in the query.
    pub const fn has_body(self) -> bool {
        !matches!(self, Method::Get | Method::Delete)
    }
}

/// Amount of work of an operation, which determines where a server runs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Does not block, except through [`Requester::blocking`](crate::Requester::blocking).
    Quick,
    /// Reads the disk, or waits for a model.
    Blocking,
    /// The same, with an answer that may be large.
    Page,
    /// Needs much memory or processor time.
    Large,
}

macro_rules! nouns {
    ($($(#[doc = $text:literal])+ $name:ident $word:literal),+ $(,)?) => {
        /// Subjects of operations: the tags of the description, and the tool sets of MCP.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Noun { $($(#[doc = $text])+ $name),+ }

        impl Noun {
            /// All subjects, in the order of the description.
            pub const ALL: &[Noun] = &[$(Noun::$name),+];

            /// The tag, and the name of the tool set.
            pub const fn as_str(self) -> &'static str {
                match self { $(Noun::$name => $word),+ }
            }

            /// Description in a sentence.
            pub fn text(self) -> &'static str {
                match self { $(Noun::$name => concat!($($text),+).trim_start()),+ }
            }
        }
    };
}

nouns!(
    /// Create, find, change, fork, delete.
    Conversations "conversations",
    /// Append, stream, read, supersede, erase.
    Turns "turns",
    /// The log itself, in pages or live.
    Events "events",
    /// The minimum that a conversation needs to continue: pins, approvals, pending items.
    State "state",
    /// Facts learned from conversations.
    Facts "facts",
    /// Search over turns and facts.
    Recall "recall",
    /// Input of a model: context, projection, compaction.
    Context "context",
    /// Model replies.
    Generations "generations",
    /// Sessions of an agent, logged entry by entry.
    Sessions "sessions",
    /// Large or non-text payloads.
    Assets "assets",
    /// Import, export and verification.
    Transfer "transfer",
    /// Access keys of the caller's own tenant.
    Keys "keys",
    /// Storage used by the caller's tenant, and its quotas.
    Usage "usage",
);

impl About {
    /// Subject, name, path, title, and description of a successful answer. The method determines whether it is
    /// for readers or for writers.
    pub const fn new(
        method: Method,
        noun: Noun,
        name: &'static str,
        path: &'static str,
        title: &'static str,
        answer: &'static str,
    ) -> About {
        About {
            name,
            title,
            noun,
            method,
            path,
            alias: None,
            role: if matches!(method, Method::Get) { KeyRole::Reader } else { KeyRole::Writer },
            work: Work::Blocking,
            status: 200,
            answer,
            once: false,
            if_match: false,
            repeated: None,
            versioned: false,
            idempotent: matches!(method, Method::Get | Method::Put | Method::Delete),
            destructive: false,
            asks_model: false,
            in_default_toolset: false,
            streams: false,
        }
    }

    /// Also available under another name and path.
    pub const fn also(self, name: &'static str, path: &'static str) -> About {
        About { alias: Some((name, path)), ..self }
    }

    /// It changes nothing, although it is not a GET.
    pub const fn reads(self) -> About {
        About { role: KeyRole::Reader, idempotent: true, ..self }
    }

    /// It answers with numbers, so that counters may ask as well: it leaves out words for them, see
    /// [`Requester::is_counter`](crate::Requester::is_counter).
    pub const fn counts(self) -> About {
        About { role: KeyRole::Counter, ..self }
    }

    /// For admins only.
    pub const fn admin(self) -> About {
        About { role: KeyRole::Admin, ..self }
    }

    /// It removes something irrecoverably, or touches keys.
    pub const fn destructive(self) -> About {
        About { role: KeyRole::Admin, destructive: true, ..self }
    }

    /// Amount of work.
    pub const fn work(self, work: Work) -> About {
        About { work, ..self }
    }

    /// It creates something.
    pub const fn creates(self) -> About {
        About { status: 201, ..self }
    }

    /// It has only started when the answer comes.
    pub const fn begins(self) -> About {
        About { status: 202, ..self }
    }

    /// A repeated request with the same idempotency key is done once.
    pub const fn once(self) -> About {
        About { once: true, ..self }
    }

    /// Meaning of the status 200 if something already existed under the same key.
    pub const fn repeated(self, text: &'static str) -> About {
        About { repeated: Some(text), ..self }
    }

    /// Its answer has a version: see [`Operation::tag`](crate::Operation::tag).
    pub const fn versioned(self) -> About {
        About { versioned: true, ..self }
    }

    /// It is refused if anything changed since it was read.
    pub const fn if_match(self) -> About {
        About { if_match: true, ..self }
    }

    /// Repeating it changes nothing.
    pub const fn idempotent(self) -> About {
        About { idempotent: true, ..self }
    }

    /// It may call a model.
    pub const fn asks_model(self) -> About {
        About { asks_model: true, ..self }
    }

    /// Agents get it as a tool by default.
    pub const fn for_agents(self) -> About {
        About { in_default_toolset: true, ..self }
    }

    /// HTTP has a separate handler for it.
    pub const fn streams(self) -> About {
        About { streams: true, ..self }
    }

    /// Names of the fields in a path, in order.
    pub fn fields_of(path: &str) -> impl Iterator<Item = &str> {
        path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }
}
