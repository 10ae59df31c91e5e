//! `everturn`, the command-line tool.
//!
//! Data goes to standard output, everything else to standard error. Exit code 0: success. 1: the command
//! failed, or a check found a problem. 2: the arguments were not understood.

mod args;
mod browser;
mod client;
mod complete;
mod dates;
mod model;
mod open;
mod output;
mod relay;
mod show;
mod verbs;

use args::{Args, Verb};
use everturn_engine::script::Metered;
use output::Failure;
use std::io::IsTerminal;
use std::process::ExitCode;

/// Turns are allocated on one thread and freed on another, for which the system's allocator takes locks.
#[global_allocator]
static ALLOCATOR: Metered<mimalloc::MiMalloc> = Metered(mimalloc::MiMalloc);

fn main() -> ExitCode {
    outlive_size_limits();
    #[cfg(feature = "bert")]
    everturn_bert::install();
    complete::answer();
    let matches = Args::whole().try_get_matches().unwrap_or_else(|error| Args::as_typed(error).exit());
    let args = Args::read(&matches).unwrap_or_else(|error| error.exit());
    // A server configures its own logging.
    if !matches!(args.verb, Some(Verb::Serve(_) | Verb::Demo(_))) {
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            // The MCP library logs whole messages, which contain content; the pool of connections, each that was closed.
            .with_env_filter(format!("{},rmcp=error,deadpool=error", args.level()))
            .init();
    }
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        // A closed pipe is not an error: `everturn history … | head`.
        Err(Failure::PipeClosed) => ExitCode::SUCCESS,
        Err(Failure::Reported) => ExitCode::FAILURE,
        Err(Failure::Error(error)) => {
            output::error(&error, args.json);
            ExitCode::FAILURE
        }
    }
}

/// Makes a write that exceeds a limit on the size of files (`ulimit -f`) fail, instead of killing the process.
fn outlive_size_limits() {
    // SAFETY: takes two numbers and touches no memory of ours; no other thread runs yet.
    #[cfg(unix)]
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    match &args.verb {
        None => verbs::overview(),
        Some(Verb::Serve(verb)) => verbs::serve::run(args, verb),
        Some(Verb::Keys(verb)) => verbs::keys::run(args, verb),
        Some(Verb::New(verb)) => verbs::new::run(args, verb),
        Some(Verb::List(verb)) => verbs::list::run(args, verb),
        Some(Verb::Info(verb)) => verbs::info::run(args, verb),
        Some(Verb::Append(verb)) => verbs::append::run(args, verb),
        Some(Verb::History(verb)) => verbs::history::run(args, verb),
        Some(Verb::Tail(verb)) => verbs::tail::run(args, verb),
        Some(Verb::State(verb)) => verbs::state::run(args, verb),
        Some(Verb::Pin(verb)) => verbs::state::pin(args, verb),
        Some(Verb::Unpin(verb)) => verbs::state::unpin(args, verb),
        Some(Verb::Scratchpad(verb)) => verbs::state::scratchpad(args, verb),
        Some(Verb::Approve(verb)) => verbs::state::approve(args, verb),
        Some(Verb::RequestApproval(verb)) => verbs::state::request_approval(args, verb),
        Some(Verb::Deny(verb)) => verbs::state::deny(args, verb),
        Some(Verb::AbandonCall(verb)) => verbs::state::abandon_call(args, verb),
        Some(Verb::Update(verb)) => verbs::change::update(args, verb),
        Some(Verb::Rename(verb)) => verbs::change::rename(args, verb),
        Some(Verb::Archive(verb)) => verbs::change::archive(args, verb),
        Some(Verb::Close(verb)) => verbs::change::close(args, verb),
        Some(Verb::Reset(verb)) => verbs::change::reset(args, verb),
        Some(Verb::Supersede(verb)) => verbs::supersede::run(args, verb),
        Some(Verb::Generate(verb)) => verbs::generate::run(args, verb),
        Some(Verb::Summarize(verb)) => verbs::summarize::run(args, verb),
        Some(Verb::Sweep(verb)) => verbs::sweep::run(args, verb),
        Some(Verb::Compact(verb)) => verbs::compact::run(args, verb),
        Some(Verb::Facts(verb)) => verbs::facts::run(args, verb),
        Some(Verb::Recall(verb)) => verbs::recall::run(args, verb),
        Some(Verb::Context(verb)) => verbs::context::run(args, verb),
        Some(Verb::Project(verb)) => verbs::project::run(args, verb),
        Some(Verb::Session(verb)) => verbs::session::run(args, verb),
        Some(Verb::Fork(verb)) => verbs::fork::run(args, verb),
        Some(Verb::Verify(verb)) => verbs::verify::run(args, verb),
        Some(Verb::Export(verb)) => verbs::export::run(args, verb),
        Some(Verb::Import(verb)) => verbs::import::run(args, verb),
        Some(Verb::Erase(verb)) => verbs::erase::run(args, verb),
        Some(Verb::Delete(verb)) => verbs::delete::run(args, verb),
        Some(Verb::Mcp(verb)) => verbs::mcp::run(args, verb),
        Some(Verb::Acp(verb)) => verbs::acp::run(args, verb),
        Some(Verb::Record(verb)) => verbs::record::run(args, verb),
        Some(Verb::Backup(verb)) => verbs::backup::run(args, verb),
        Some(Verb::Restore(verb)) => verbs::restore::run(args, verb),
        Some(Verb::Copy(verb)) => verbs::copy::run(args, verb),
        Some(Verb::Open(verb)) => verbs::open::run(args, verb),
        Some(Verb::Demo(verb)) => verbs::demo::run(args, verb),
        Some(Verb::Doctor(verb)) => verbs::doctor::run(args, verb),
        Some(Verb::Completions(verb)) => verbs::completions::run(verb),
        Some(Verb::Man(verb)) => verbs::man::run(verb),
    }
}
