//! Projectors written by callers, run in a sandbox.
//!
//! A script sees the messages and nothing else: no files, no network, no clock, no randomness. The same messages give
//! the same result, or the same error. `docs/projectors.md` describes how to write one.
//!
//! Everything here but [`options`] needs the feature `scripts`.
//!
//! `interpreter` runs a script, `library` has everything that a script can call, `convert` carries messages in and out, `limits` has
//! the limits of a run, `meter` counts memory.

#[cfg(feature = "scripts")]
mod convert;
#[cfg(feature = "scripts")]
mod interpreter;
#[cfg(feature = "scripts")]
mod library;
#[cfg(feature = "scripts")]
mod limits;
#[cfg(feature = "scripts")]
mod meter;

#[cfg(feature = "scripts")]
pub use interpreter::Script;
#[cfg(feature = "scripts")]
pub use limits::{
    SCRIPT_CALLS_MAX, SCRIPT_ENTRIES_MAX, SCRIPT_FUNCTIONS_MAX, SCRIPT_INPUT_BYTES_MAX,
    SCRIPT_INPUT_VALUES_MAX, SCRIPT_ITEMS_MAX, SCRIPT_MEMORY_BYTES_MAX, SCRIPT_NESTING_MAX,
    SCRIPT_OPERATIONS_MAX, SCRIPT_SOURCE_BYTES_MAX, SCRIPT_TEXT_BYTES_MAX, SCRIPT_TIME_MS_MAX,
    SCRIPT_VARIABLES_MAX, SCRIPT_WAIT_MS_MAX, SCRIPTS_AT_ONCE_MAX,
};
#[cfg(feature = "scripts")]
pub use meter::Metered;

use everturn_core::Error;
use everturn_views::projection::{Projector, ViewOptions};
use serde_json::Value;
use std::sync::Arc;

/// Reads projection options in which a projector is the text of a script.
pub fn options(value: &Value) -> Result<ViewOptions, Error> {
    let mut options = ViewOptions::parse(value)?;
    if let Some(script) = options.script.as_ref().and_then(Value::as_str) {
        options.projector = Some(compile(script)?);
    }
    Ok(options)
}

#[cfg(feature = "scripts")]
fn compile(script: &str) -> Result<Arc<dyn Projector>, Error> {
    Ok(Arc::new(Script::compile(script)?))
}

#[cfg(not(feature = "scripts"))]
fn compile(_: &str) -> Result<Arc<dyn Projector>, Error> {
    Err(Error::missing_feature("scripts", "a projector that is a script"))
}
