//! The error type of all crates. Variants are named by the caller's next move.

use std::fmt;

/// An error with a stable code and a message that says what to do.
///
/// The variant is the caller's next move; the code never changes once released; the text is for people.
#[derive(Clone, PartialEq, Eq)]
pub enum Error {
    /// Nothing with that id exists, or it belongs to another tenant. Callers cannot tell the two apart.
    NotFound(ErrorDetail),
    /// The request is wrong; repeating it will not help.
    Invalid(ErrorDetail),
    /// The caller may not do this; another may.
    Forbidden(ErrorDetail),
    /// The request was based on an older state; read again, then decide.
    Conflict(ErrorDetail),
    /// Temporarily unavailable: retry later, or elsewhere.
    Busy(ErrorDetail),
    /// A named limit was exceeded; both numbers are in the text.
    TooLarge(ErrorDetail),
    /// Stored bytes differ from what was written.
    Corrupt(ErrorDetail),
    /// A bug, or a fault of the machine.
    Internal(ErrorDetail),
}

/// Code and text of an [`Error`].
#[derive(Clone, PartialEq, Eq)]
pub struct ErrorDetail {
    /// Stable, dotted, lower case: `append.stale_seq`.
    pub code: &'static str,
    /// One sentence on what is wrong and one on what to do next.
    pub text: String,
}

/// Codes that programs compare. The code that makes an error and the code that looks for it use the same constant.
pub mod code {
    /// The conversation has grown since the caller looked.
    pub const STALE_SEQ: &str = "append.stale_seq";
    /// The approval has an outcome already.
    pub const APPROVAL_RESOLVED: &str = "approval.resolved";
    /// A body differs from its hash.
    pub const BODY_MISMATCH: &str = "chain.body_mismatch";
    /// A conversation with that id exists.
    pub const CONVERSATION_EXISTS: &str = "conversation.exists";
    /// The prompt is longer than the model's context.
    pub const CONTEXT_OVERFLOW: &str = "model.context_overflow";
    /// A generation was stopped by request.
    pub const GENERATION_STOPPED: &str = "generation.stopped";
    /// No model is configured.
    pub const MODEL_NONE: &str = "model.none";
    /// No model of that name is configured.
    pub const MODEL_UNKNOWN: &str = "model.unknown";
    /// The model refuses to answer.
    pub const MODEL_REFUSED: &str = "model.refused";
    /// Another compaction came first.
    pub const COMPACTION_STALE: &str = "compaction.stale";
    /// No turns can be covered by a checkpoint yet.
    pub const NOTHING_TO_COMPACT: &str = "compaction.nothing";
    /// The required parts of a context do not fit its budget.
    pub const BUDGET_TOO_SMALL: &str = "context.budget_too_small";
    /// A source of derived data has been erased meanwhile.
    pub const SOURCE_ERASED: &str = "derive.erased";
    /// The program was built without a cargo feature that the request needs.
    pub const FEATURE_MISSING: &str = "feature.missing";
    /// A model's reply holds no facts in the expected form.
    pub const FACTS_ANSWER: &str = "facts.answer";
    /// Something is larger than its limit allows.
    pub const LIMIT_EXCEEDED: &str = "limit.exceeded";
    /// The process that owned the store has ended; the request was not sent.
    pub const OWNER_GONE: &str = "owner.gone";
    /// The process that owned the store ended before it answered.
    pub const OWNER_LOST: &str = "owner.lost";
    /// The reader of an output closed it.
    pub const PIPE_CLOSED: &str = "file.pipe_closed";
    /// A conversation goes on differently than here.
    pub const DIVERGED: &str = "restore.diverged";
    /// The message has no role.
    pub const ROLE_MISSING: &str = "message.role_missing";
    /// The index cannot be written, so it is behind.
    pub const RECALL_READ_ONLY: &str = "recall.read_only";
    /// The session file has its end.
    pub const SESSION_ENDED: &str = "session.ended";
    /// The database has no tables yet.
    pub const STORE_EMPTY: &str = "store.empty";
    /// The store was made by a build that was never released.
    pub const STORE_UNRELEASED: &str = "store.unreleased";
    /// The conversation is not the one for which an append was prepared.
    pub const OUTDATED: &str = "append.outdated";
    /// The disk that holds the store is full.
    pub const STORE_FULL: &str = "store.full";
    /// The store's disk cannot be read or written.
    pub const STORE_IO: &str = "store.io";
    /// The path of the store leads to other files now.
    pub const STORE_MOVED: &str = "store.moved";
    /// The database of the store cannot be reached.
    pub const STORE_UNREACHABLE: &str = "store.unreachable";
    /// The store does not answer in time.
    pub const STORE_UNANSWERED: &str = "store.unanswered";
    /// Another transaction holds the conversation, which will not last.
    pub const HELD: &str = "store.held";
    /// Another process writes to the store now.
    pub const OVERTAKEN: &str = "store.overtaken";
    /// Another process may write to the store.
    pub const STORE_OWNED: &str = "store.owned";
    /// A row cannot be read.
    pub const STORE_ROW: &str = "store.row";
    /// The row about a turn differs from the log.
    pub const TURN_ROW: &str = "turn.row";
}

macro_rules! constructors {
    ($($name:ident $variant:ident),*) => {
        impl Error {
            $(
                #[doc = concat!("An [`Error::", stringify!($variant), "`] with a code and a sentence.")]
                pub fn $name(code: &'static str, text: impl Into<String>) -> Error {
                    Error::$variant(ErrorDetail { code, text: text.into() })
                }
            )*
        }
    };
}
constructors!(not_found NotFound, invalid Invalid, forbidden Forbidden, conflict Conflict, busy Busy, too_large TooLarge, corrupt Corrupt, internal Internal);

impl Error {
    /// An exceeded limit: the text carries its name and both numbers.
    pub fn limit(name: &'static str, limit: u64, got: u64, what_to_do: &str) -> Error {
        Error::too_large(code::LIMIT_EXCEEDED, format!("{name} is {limit}, this is {got}; {what_to_do}"))
    }

    /// Something that needs a cargo feature without which this program was built.
    pub fn missing_feature(feature: &str, what: impl fmt::Display) -> Error {
        let text = format!(
            "{what} needs the cargo feature `{feature}`, which this program was built without; add it to the features of `everturn` \
             in Cargo.toml"
        );
        Error::invalid(code::FEATURE_MISSING, text)
    }

    /// The stable code.
    pub fn code(&self) -> &'static str {
        self.detail().code
    }

    /// Whether this is the error with that [`code`].
    pub fn is(&self, code: &str) -> bool {
        self.code() == code
    }

    /// Whether stored events do not match their hashes or their chain.
    pub fn is_chain_damage(&self) -> bool {
        self.code().starts_with("chain.")
    }

    /// The message for people.
    pub fn text(&self) -> &str {
        &self.detail().text
    }

    fn detail(&self) -> &ErrorDetail {
        match self {
            Error::NotFound(d)
            | Error::Invalid(d)
            | Error::Forbidden(d)
            | Error::Conflict(d)
            | Error::Busy(d)
            | Error::TooLarge(d)
            | Error::Corrupt(d)
            | Error::Internal(d) => d,
        }
    }

    /// Prefixes the text with a location: `line 7: …`.
    pub fn at(self, place: impl fmt::Display) -> Error {
        self.reworded(|text| format!("{place}: {text}"))
    }

    /// Replaces the text.
    pub fn reworded(mut self, words: impl FnOnce(&str) -> String) -> Error {
        let detail = match &mut self {
            Error::NotFound(d)
            | Error::Invalid(d)
            | Error::Forbidden(d)
            | Error::Conflict(d)
            | Error::Busy(d)
            | Error::TooLarge(d)
            | Error::Corrupt(d)
            | Error::Internal(d) => d,
        };
        detail.text = words(&detail.text);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.text(), self.code())
    }
}

impl std::error::Error for Error {}
