//! Limits of scripts, and the advice for scripts that exceed them.

use everturn_core::Error;

/// Longest script, in bytes.
pub const SCRIPT_SOURCE_BYTES_MAX: usize = 64 * 1024;
/// Deepest nesting of expressions and blocks in a script.
pub const SCRIPT_NESTING_MAX: usize = 64;
/// Most functions that a script defines.
pub const SCRIPT_FUNCTIONS_MAX: usize = 64;
/// Largest input, in bytes of JSON.
pub const SCRIPT_INPUT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Most values (fields, items and what is in them) in the input.
pub const SCRIPT_INPUT_VALUES_MAX: usize = 100_000;
/// Most steps of the interpreter.
pub const SCRIPT_OPERATIONS_MAX: u64 = 1_000_000;
/// Longest run, in milliseconds.
pub const SCRIPT_TIME_MS_MAX: u64 = 5_000;
/// Most memory that a run holds at a time, in bytes.
pub const SCRIPT_MEMORY_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Most text in one value, and in the result, in bytes.
pub const SCRIPT_TEXT_BYTES_MAX: usize = 2 * SCRIPT_INPUT_BYTES_MAX;
/// Most list items in one value, and most values in the result.
pub const SCRIPT_ITEMS_MAX: usize = 2 * SCRIPT_INPUT_VALUES_MAX;
/// Most map entries in one value.
pub const SCRIPT_ENTRIES_MAX: usize = 2 * SCRIPT_INPUT_VALUES_MAX;
/// Deepest chain of calls.
pub const SCRIPT_CALLS_MAX: usize = 32;
/// Most variables of one function.
pub const SCRIPT_VARIABLES_MAX: usize = 128;

/// Most scripts that run in one process at a time: more of them would take too much memory together.
pub const SCRIPTS_AT_ONCE_MAX: usize = 3;
/// Longest wait of a script for a slot, in milliseconds: as long as those before it may run.
pub const SCRIPT_WAIT_MS_MAX: u64 = 2 * SCRIPT_TIME_MS_MAX;

/// A limit as errors name it.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    name: &'static str,
    number: u64,
    advice: &'static str,
}

macro_rules! limits {
    ($($short:ident $name:ident $advice:literal),* $(,)?) => {
        $(pub(super) const $short: Limit = Limit { name: stringify!($name), number: $name as u64, advice: $advice };)*
    };
}

limits! {
    SOURCE_BYTES SCRIPT_SOURCE_BYTES_MAX "write a shorter script",
    NESTING SCRIPT_NESTING_MAX "use variables and functions instead of nesting",
    FUNCTIONS SCRIPT_FUNCTIONS_MAX "define fewer functions",
    INPUT_BYTES SCRIPT_INPUT_BYTES_MAX
        "name a policy before custom that leaves less, such as summary_prefix or clear_tool_uses",
    INPUT_VALUES SCRIPT_INPUT_VALUES_MAX "name a policy before custom that leaves less, such as summary_prefix",
    OPERATIONS SCRIPT_OPERATIONS_MAX "look at each message once, and check that every loop ends",
    TIME SCRIPT_TIME_MS_MAX "do less per message, and return numbers instead of messages",
    MEMORY SCRIPT_MEMORY_BYTES_MAX "return numbers instead of messages, and make fewer copies",
    TEXT SCRIPT_TEXT_BYTES_MAX "make shorter texts, and return messages once",
    ITEMS SCRIPT_ITEMS_MAX "make shorter lists, and return messages once",
    ENTRIES SCRIPT_ENTRIES_MAX "make smaller maps",
    CALLS SCRIPT_CALLS_MAX "use a loop instead of a function that calls itself",
    VARIABLES SCRIPT_VARIABLES_MAX "use fewer variables",
}

impl Limit {
    /// Error for a run that reached the limit; only the limit itself is known.
    pub fn reached(self) -> Error {
        let Limit { name, number, advice } = self;
        Error::too_large("script.limit", format!("{name} is {number}, and the script needs more; {advice}"))
    }

    /// Error for a measured excess.
    pub fn exceeded(self, got: usize) -> Error {
        let Limit { name, number, advice } = self;
        Error::too_large("script.limit", format!("{name} is {number}, this is {got}; {advice}"))
    }
}
