//! One error for every room, named by what the caller can do next.

use std::fmt;

/// What went wrong, with a stable code and a sentence that says what to do.
///
/// The variant is the caller's next move; the code never changes once released; the text is for people.
#[derive(Clone, PartialEq, Eq)]
pub enum Error {
    /// Nothing with that id here (or it belongs to another tenant, which looks the same).
    NotFound(Detail),
    /// The request is wrong; sending it again will not help.
    Invalid(Detail),
    /// The request was right for an older state; read again, then decide.
    Conflict(Detail),
    /// Not now: retry later, or elsewhere.
    Busy(Detail),
    /// A named limit was hit; both numbers are in the text.
    TooLarge(Detail),
    /// Stored bytes are not what was written.
    Corrupt(Detail),
    /// A fault of ours or of the machine.
    Internal(Detail),
}

/// The code and the sentence of an [`Error`].
#[derive(Clone, PartialEq, Eq)]
pub struct Detail {
    /// Stable, dotted, lower case: `append.stale_seq`.
    pub code: &'static str,
    /// What happened and what to do next.
    pub text: String,
}

macro_rules! constructors {
    ($($name:ident $variant:ident),*) => {
        impl Error {
            $(
                #[doc = concat!("An [`Error::", stringify!($variant), "`] with a code and a sentence.")]
                pub fn $name(code: &'static str, text: impl Into<String>) -> Error {
                    Error::$variant(Detail { code, text: text.into() })
                }
            )*
        }
    };
}
constructors!(not_found NotFound, invalid Invalid, conflict Conflict, busy Busy, too_large TooLarge, corrupt Corrupt, internal Internal);

impl Error {
    /// A named limit that was exceeded: the text carries its name and both numbers.
    pub fn limit(name: &'static str, limit: u64, got: u64, what_to_do: &str) -> Error {
        Error::too_large("limit.exceeded", format!("{name} is {limit}, this is {got}; {what_to_do}"))
    }

    /// The stable code.
    pub fn code(&self) -> &'static str {
        self.detail().code
    }

    /// The sentence.
    pub fn text(&self) -> &str {
        &self.detail().text
    }

    fn detail(&self) -> &Detail {
        match self {
            Error::NotFound(d)
            | Error::Invalid(d)
            | Error::Conflict(d)
            | Error::Busy(d)
            | Error::TooLarge(d)
            | Error::Corrupt(d)
            | Error::Internal(d) => d,
        }
    }

    /// The same error with a place in front of its sentence: `line 7: …`.
    pub fn at(self, place: impl fmt::Display) -> Error {
        self.reworded(|text| format!("{place}: {text}"))
    }

    /// The same error in other words.
    pub fn reworded(mut self, words: impl FnOnce(&str) -> String) -> Error {
        let detail = match &mut self {
            Error::NotFound(d)
            | Error::Invalid(d)
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
