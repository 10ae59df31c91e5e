//! Runs the scripts: limits on steps, sizes, time and memory, and errors with the place in the script.

use super::limits::{self, Limit};
use super::{
    SCRIPT_CALLS_MAX, SCRIPT_ENTRIES_MAX, SCRIPT_FUNCTIONS_MAX, SCRIPT_ITEMS_MAX, SCRIPT_MEMORY_BYTES_MAX,
    SCRIPT_NESTING_MAX, SCRIPT_OPERATIONS_MAX, SCRIPT_SOURCE_BYTES_MAX, SCRIPT_TEXT_BYTES_MAX,
    SCRIPT_TIME_MS_MAX, SCRIPT_VARIABLES_MAX, SCRIPT_WAIT_MS_MAX, SCRIPTS_AT_ONCE_MAX, convert, library,
    meter,
};
use everturn_core::Error;
use everturn_core::id::clip;
use everturn_views::projection::{Message, Projector};
use parking_lot::{Condvar, Mutex};
use rhai::{AST, Dynamic, Engine, EvalAltResult, OptimizationLevel, ParseErrorType, Position, Scope};
use serde_json::Value;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Values nest as deep as time allows, and copying or dropping one takes a stack frame for every level: some ten
/// thousand levels in a run, at 300 bytes each, four times that in a debug build. Only what is touched costs memory.
const STACK_BYTES: usize = 128 * 1024 * 1024;

/// Most characters of a script's own error that are reported.
const SAID_CHARS: usize = 300;

/// A projector in the language of [Rhai](https://rhai.rs/book/), compiled and ready to run any number of times.
pub struct Script {
    engine: Engine,
    ast: AST,
    /// The script defines `project(messages)`; otherwise it is itself the body of that function.
    is_function: bool,
}

impl Script {
    /// Reads a script: either a function `project(messages)`, or statements that use the variable `messages` and end in
    /// what to show. That is a list of messages, of their numbers (counted from 0, and shown as they came), or of both;
    /// or a map `#{messages, reason, kept_indices, dropped_indices}` of which everything but `messages` can be left out.
    ///
    /// Refused in a program that does not count memory: see [`Metered`](super::Metered).
    pub fn compile(source: &str) -> Result<Script, Error> {
        if !meter::is_installed() {
            return Err(Error::internal(
                "script.unmetered",
                "this program does not count memory and so runs no scripts; install \
                 everturn::script::Metered as its global allocator",
            ));
        }
        if source.len() > SCRIPT_SOURCE_BYTES_MAX {
            return Err(limits::SOURCE_BYTES.exceeded(source.len()));
        }
        apart(|| {
            let engine = engine();
            let mut scope = Scope::new();
            scope.push_dynamic("messages", Dynamic::UNIT);
            let ast = engine.compile_with_scope(&scope, source).map_err(|e| unreadable(&e.0, e.1))?;
            let named: Vec<usize> =
                ast.iter_functions().filter(|f| f.name == "project").map(|f| f.params.len()).collect();
            let is_function = match named[..] {
                [] => false,
                [1] => true,
                _ => {
                    let text = "project takes one parameter, the messages; write fn project(messages)";
                    return Err(Error::invalid("script.syntax", text));
                }
            };
            Ok(Script { is_function, engine, ast })
        })
    }

    fn run(&self, messages: &[&Message]) -> Result<Value, Error> {
        let list = Dynamic::from_array(convert::list(messages)?);
        let mut scope = Scope::new();
        RUN.set(Some(Run { operations: 0, end: Instant::now() + Duration::from_millis(SCRIPT_TIME_MS_MAX) }));
        let returned = if self.is_function {
            self.engine.call_fn::<Dynamic>(&mut scope, &self.ast, "project", (list,))
        } else {
            scope.push_dynamic("messages", list);
            self.engine.eval_ast_with_scope::<Dynamic>(&mut scope, &self.ast)
        };
        convert::answer(&returned.map_err(|e| failed(*e))?, messages)
    }
}

impl Projector for Script {
    fn project(&self, messages: &[&Message]) -> Result<Value, Error> {
        apart(|| self.run(messages))
    }
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Script").field("is_function", &self.is_function).finish_non_exhaustive()
    }
}

/// Runs `work` on a thread of its own: with a stack of a known size, with a count of memory that starts at zero, and
/// without ending the process should the interpreter panic.
fn apart<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    let _slot = Slot::wait()?;
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("everturn-script".into()).stack_size(STACK_BYTES);
        let thread = builder.spawn_scoped(scope, work).map_err(|e| {
            Error::busy("script.thread", format!("cannot start a thread: {e}; try again later"))
        })?;
        thread.join().unwrap_or_else(|_| {
            Err(Error::internal(
                "script.failed",
                "the interpreter failed; simplify the script and report this",
            ))
        })
    })
}

/// Scripts that run in this process. Each may take SCRIPT_MEMORY_BYTES_MAX.
static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// One of SCRIPTS_AT_ONCE_MAX slots, free again when dropped.
struct Slot;

impl Slot {
    fn wait() -> Result<Slot, Error> {
        let mut running = RUNNING.lock();
        let wait = Duration::from_millis(SCRIPT_WAIT_MS_MAX);
        let busy = |running: &mut usize| *running >= SCRIPTS_AT_ONCE_MAX;
        let waited = ENDED.wait_while_for(&mut running, busy, wait);
        if waited.timed_out() {
            let text = format!(
                "SCRIPTS_AT_ONCE_MAX is {SCRIPTS_AT_ONCE_MAX}, and none ended within {SCRIPT_WAIT_MS_MAX} ms; \
                 try again later"
            );
            return Err(Error::busy("script.busy", text));
        }
        *running += 1;
        Ok(Slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *RUNNING.lock() -= 1;
        ENDED.notify_one();
    }
}

#[derive(Clone, Copy)]
struct Run {
    operations: u64,
    end: Instant,
}

thread_local! {
    static RUN: Cell<Option<Run>> = const { Cell::new(None) };
}

/// Counts a step. The interpreter's own counter starts over in functions that a function of ours calls.
fn step() -> Option<Limit> {
    let mut run = RUN.get()?;
    run.operations += 1;
    RUN.set(Some(run));
    if run.operations > SCRIPT_OPERATIONS_MAX {
        Some(limits::OPERATIONS)
    } else if meter::held() > SCRIPT_MEMORY_BYTES_MAX as isize {
        Some(limits::MEMORY)
    } else if Instant::now() > run.end {
        Some(limits::TIME)
    } else {
        None
    }
}

fn engine() -> Engine {
    let mut engine = Engine::new_raw();
    engine
        .set_optimization_level(OptimizationLevel::None)
        .set_strict_variables(true)
        .set_max_strings_interned(0)
        .set_max_expr_depths(SCRIPT_NESTING_MAX, SCRIPT_NESTING_MAX)
        .set_max_functions(SCRIPT_FUNCTIONS_MAX)
        .set_max_call_levels(SCRIPT_CALLS_MAX)
        .set_max_variables(SCRIPT_VARIABLES_MAX)
        .set_max_string_size(SCRIPT_TEXT_BYTES_MAX)
        .set_max_array_size(SCRIPT_ITEMS_MAX)
        .set_max_map_size(SCRIPT_ENTRIES_MAX)
        .disable_symbol("eval")
        .disable_symbol("curry");
    engine.on_progress(|_| step().map(Dynamic::from));
    // A closure that captures a variable holding the closure is never freed, so closures capture nothing.
    #[allow(deprecated, reason = "it is not: that is how Rhai marks what may change in a later version")]
    engine.on_var(|name, _, context| match context.scope().get(name) {
        Some(value) if value.is_shared() => Err(format!(
            "a function |…| cannot use {} from around it; use a loop, or a variable of its own",
            clip(name)
        )
        .into()),
        _ => Ok(None),
    });
    library::register(&mut engine);
    engine
}

fn located(error: Error, position: Position) -> Error {
    match (position.line(), position.position()) {
        (Some(line), Some(column)) => error.at(format_args!("line {line}, column {column}")),
        (Some(line), None) => error.at(format_args!("line {line}")),
        (None, _) => error,
    }
}

/// Error of the parser, in our words where it is about a limit.
fn unreadable(error: &ParseErrorType, position: Position) -> Error {
    let error = match error {
        ParseErrorType::ExprTooDeep => limits::NESTING.reached(),
        ParseErrorType::TooManyFunctions => limits::FUNCTIONS.reached(),
        ParseErrorType::LiteralTooLarge(what, _) => too_large(what).reached(),
        other => Error::invalid("script.syntax", format!("{}; correct the script", short(other))),
    };
    located(error, position)
}

/// Text of the script or the interpreter, shortened: it can be as long as the script.
fn short(text: impl std::fmt::Display) -> String {
    text.to_string().chars().take(SAID_CHARS).collect()
}

/// The limit that the interpreter names in its message.
fn too_large(what: &str) -> Limit {
    let what = what.to_lowercase();
    if what.contains("string") {
        limits::TEXT
    } else if what.contains("map") {
        limits::ENTRIES
    } else {
        limits::ITEMS
    }
}

fn failed(mut error: EvalAltResult) -> Error {
    // Only the innermost position, not the calls that lead there.
    while let EvalAltResult::ErrorInFunctionCall(_, _, inner, _) = error {
        error = *inner;
    }
    let position = error.take_position();
    let error = match &error {
        EvalAltResult::ErrorTerminated(limit, _) => {
            limit.clone().try_cast::<Limit>().unwrap_or(limits::OPERATIONS).reached()
        }
        EvalAltResult::ErrorStackOverflow(_) => limits::CALLS.reached(),
        EvalAltResult::ErrorTooManyVariables(_) => limits::VARIABLES.reached(),
        EvalAltResult::ErrorDataTooLarge(what, _) => too_large(what).reached(),
        EvalAltResult::ErrorFunctionNotFound(what, _) => Error::invalid(
            "script.failed",
            format!("there is no function {}; the functions are listed in docs/projectors.md", clip(what)),
        ),
        EvalAltResult::ErrorRuntime(thrown, _) => {
            let said = thrown.as_immutable_string_ref();
            Error::invalid(
                "script.failed",
                said.map_or("the script threw no text".into(), |said| short(&*said)),
            )
        }
        other => Error::invalid("script.failed", format!("{}; correct the script", short(other))),
    };
    located(error, position)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This test binary uses the default allocator.
    #[test]
    fn where_memory_is_not_counted_no_script_is_taken() {
        let error = Script::compile("messages").unwrap_err();
        assert_eq!(error.code(), "script.unmetered");
        assert!(error.text().contains("everturn::script::Metered"), "{error}");
    }
}
