//! What is known of an operation without running it.

use everturn_core::access::KeyRole;

/// What is known of an operation without running it. Its description is the doc comment of its struct.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// The operation's id in OpenAPI, and the tool's name in MCP.
    pub name: &'static str,
    /// A few words for people: what a button would say.
    pub title: &'static str,
    /// What it is about.
    pub noun: Noun,
    /// How it is asked over HTTP.
    pub method: Method,
    /// Its path below `/api/v1`; `{…}` names a field of the request.
    pub path: &'static str,
    /// The same operation under another name and path.
    pub alias: Option<(&'static str, &'static str)>,
    /// What the caller must be.
    pub role: KeyRole,
    /// How much work it is.
    pub work: Work,
    /// The status of a success.
    pub status: u16,
    /// What a success answers, in a sentence.
    pub answer: &'static str,
    /// Whether the field `idempotency_key` comes from the header `Idempotency-Key`.
    pub once: bool,
    /// Whether the field `expected_seq` comes from the header `If-Match`.
    pub if_match: bool,
    /// What the status 200 means, where something was there already under the same key.
    pub repeated: Option<&'static str>,
    /// Whether the answer has a version (`ETag`).
    pub versioned: bool,
    /// Whether repeating it changes nothing.
    pub idempotent: bool,
    /// Whether it takes away what cannot be brought back, or touches keys.
    pub destructive: bool,
    /// Whether a model may be asked for it.
    pub asks_model: bool,
    /// Whether an agent gets it as a tool without asking for more.
    pub in_default_toolset: bool,
    /// Whether HTTP answers it by a handler of its own, because bytes are streamed.
    pub streams: bool,
}

/// How an operation is asked over HTTP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// Reads.
    Get,
    /// Does something.
    Post,
    /// Sets something.
    Put,
    /// Changes something.
    Patch,
    /// Takes something away.
    Delete,
}

impl Method {
    /// As HTTP writes it.
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

/// How much work an operation is: where a server runs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Does not block, except through [`Asker::blocking`](crate::Asker::blocking).
    Quick,
    /// Reads the disk, or waits for a model.
    Blocking,
    /// The same, with an answer that may be large.
    Page,
    /// Needs much memory or processor.
    Large,
}

macro_rules! nouns {
    ($($(#[doc = $text:literal])+ $name:ident $word:literal),+ $(,)?) => {
        /// What operations are about: the tags of the description, and the tool sets of MCP.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Noun { $($(#[doc = $text])+ $name),+ }

        impl Noun {
            /// Each, in the order of the description.
            pub const ALL: &[Noun] = &[$(Noun::$name),+];

            /// The tag, and the name of the tool set.
            pub const fn as_str(self) -> &'static str {
                match self { $(Noun::$name => $word),+ }
            }

            /// What it is about, in a sentence.
            pub fn text(self) -> &'static str {
                match self { $(Noun::$name => concat!($($text),+).trim_start()),+ }
            }
        }
    };
}

nouns!(
    /// Begin, find, change, fork, delete.
    Conversations "conversations",
    /// Append, stream, read, supersede, erase.
    Turns "turns",
    /// The log itself, as pages or live.
    Events "events",
    /// What a conversation needs to go on: pins, approvals, what is pending.
    State "state",
    /// What was learned from what was said.
    Facts "facts",
    /// Finding again what was said and learned.
    Recall "recall",
    /// What a model is given: context, projection, compaction.
    Context "context",
    /// Answers of models.
    Generations "generations",
    /// Large or non-text payloads.
    Assets "assets",
    /// In, out, and proof.
    Transfer "transfer",
    /// Who may ask, of the caller's own tenant.
    Keys "keys",
    /// How much the caller's tenant stores, and how much it may.
    Usage "usage",
);

impl About {
    /// What an operation is about, its name, its path, its title, and what a success answers. By its method it is for readers or for
    /// writers.
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

    /// Also under another name and path.
    pub const fn also(self, name: &'static str, path: &'static str) -> About {
        About { alias: Some((name, path)), ..self }
    }

    /// It changes nothing, although it is no GET.
    pub const fn reads(self) -> About {
        About { role: KeyRole::Reader, idempotent: true, ..self }
    }

    /// For admins only.
    pub const fn admin(self) -> About {
        About { role: KeyRole::Admin, ..self }
    }

    /// What it takes away cannot be brought back, or it touches keys.
    pub const fn destructive(self) -> About {
        About { role: KeyRole::Admin, destructive: true, ..self }
    }

    /// How much work it is.
    pub const fn work(self, work: Work) -> About {
        About { work, ..self }
    }

    /// Something new is there afterwards.
    pub const fn creates(self) -> About {
        About { status: 201, ..self }
    }

    /// It is only begun when the answer comes.
    pub const fn begins(self) -> About {
        About { status: 202, ..self }
    }

    /// A repeated request with the same idempotency key is done once.
    pub const fn once(self) -> About {
        About { once: true, ..self }
    }

    /// What it answers, with the status 200, where something was there already under the same key.
    pub const fn repeated(self, text: &'static str) -> About {
        About { repeated: Some(text), ..self }
    }

    /// Its answer has a version: see [`Operation::tag`](crate::Operation::tag).
    pub const fn versioned(self) -> About {
        About { versioned: true, ..self }
    }

    /// Only if nothing changed since it was read.
    pub const fn if_match(self) -> About {
        About { if_match: true, ..self }
    }

    /// Repeating it changes nothing.
    pub const fn idempotent(self) -> About {
        About { idempotent: true, ..self }
    }

    /// A model may be asked for it.
    pub const fn asks_model(self) -> About {
        About { asks_model: true, ..self }
    }

    /// An agent gets it as a tool without asking for more.
    pub const fn for_agents(self) -> About {
        About { in_default_toolset: true, ..self }
    }

    /// HTTP answers it by a handler of its own.
    pub const fn streams(self) -> About {
        About { streams: true, ..self }
    }

    /// The names of the fields in a path, in order.
    pub fn fields_of(path: &str) -> impl Iterator<Item = &str> {
        path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }
}
