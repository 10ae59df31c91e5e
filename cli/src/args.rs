//! What can be asked, and how. What belongs to one verb stands beside it, in [`verbs`](crate::verbs).

use crate::verbs::{
    append, backup, change, compact, completions, context, delete, demo, doctor, erase, export, facts, fork,
    generate, history, import, keys, list, mcp, new, open, project, recall, restore, serve, session, state,
    summarize, supersede, sweep, tail, verify,
};
use clap::parser::ValueSource;
use clap::{
    Arg, ArgMatches, Args as ClapArgs, Command, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
};
use std::path::PathBuf;

/// Every word is kept; the model reads what it needs. A conversation store for AI agents.
#[derive(Parser)]
#[command(
    name = "everturn",
    version,
    disable_help_subcommand = true,
    max_term_width = 100,
    // As usual, without the empty line above the usage: without a verb this is shown, and has to fit on one screen.
    help_template = "{about-with-newline}{usage-heading} {usage}\n\n{all-args}{after-help}",
    after_help = "CONV is a conversation's id, its beginning, or @last. `everturn VERB --help` shows examples."
)]
pub struct Args {
    /// sqlite:PATH, by default a file in your data folder [env: EVERTURN_STORE]
    #[arg(
        long,
        global = true,
        env = "EVERTURN_STORE",
        hide_env = true,
        default_value = "sqlite:",
        hide_default_value = true,
        value_name = "URL"
    )]
    pub store: String,
    /// Ask this server instead; its key is in EVERTURN_KEY
    #[arg(long, global = true, env = "EVERTURN_URL", hide_env_values = true, value_name = "URL")]
    pub url: Option<String>,
    /// The file that holds the key to the server
    #[arg(
        long,
        global = true,
        env = "EVERTURN_KEY_FILE",
        hide_env_values = true,
        hide_short_help = true,
        value_name = "FILE"
    )]
    pub key_file: Option<PathBuf>,
    /// Whose conversations
    #[arg(
        long,
        global = true,
        env = "EVERTURN_TENANT",
        hide_env_values = true,
        default_value = "default",
        value_name = "NAME"
    )]
    pub tenant: String,
    /// Print JSON instead of text for people
    #[arg(long, global = true)]
    pub json: bool,
    /// Mirror what is written into a file per conversation
    #[arg(
        long,
        global = true,
        env = "EVERTURN_MIRROR",
        hide_env_values = true,
        hide_short_help = true,
        value_name = "DIR"
    )]
    pub mirror: Option<PathBuf>,
    /// Say more on standard error about what is being done (twice: even more)
    #[arg(long, short, global = true, hide_short_help = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    #[command(subcommand)]
    pub verb: Option<Verb>,
    /// Which of them were typed, and which came from the environment.
    #[arg(skip)]
    pub sources: Sources,
}

/// Where arguments came from, of which that matters.
#[derive(Default)]
pub struct Sources {
    pub store: Option<ValueSource>,
    pub url: Option<ValueSource>,
    pub tenant: Option<ValueSource>,
    pub mirror: Option<ValueSource>,
    pub base_url: Option<ValueSource>,
    /// The strongest of `recall --embedder` and `recall --rerank`.
    pub recall_model: Option<ValueSource>,
}

impl Args {
    /// The command, with verbs whose help does not offer a server because they work on the store itself.
    pub fn without_url(verbs: &[&'static str]) -> Command {
        let url = Arg::new("url").long("url").env("EVERTURN_URL").hide(true);
        let key_file = Arg::new("key_file").long("key-file").env("EVERTURN_KEY_FILE").hide(true);
        let hidden = [url, key_file.value_parser(clap::value_parser!(PathBuf))];
        verbs.iter().fold(Args::command(), |command, verb| {
            command.mut_subcommand(verb, |own| own.args(hidden.clone()))
        })
    }

    /// What was asked, and from where each word of it came.
    pub fn read(matches: &ArgMatches) -> Result<Args, clap::Error> {
        let mut args = Args::from_arg_matches(matches)?;
        let asks_model = match matches.subcommand() {
            Some(("compact" | "generate" | "summarize", own)) => Some(own),
            Some(("facts", own)) => {
                own.subcommand().filter(|(verb, _)| *verb == "extract").map(|(_, own)| own)
            }
            _ => None,
        };
        args.sources = Sources {
            store: matches.value_source("store"),
            url: matches.value_source("url"),
            tenant: matches.value_source("tenant"),
            mirror: matches.value_source("mirror"),
            base_url: asks_model.and_then(|own| own.value_source("base_url")),
            recall_model: match matches.subcommand() {
                Some(("recall", own)) => own.value_source("embedder").max(own.value_source("rerank")),
                _ => None,
            },
        };
        Ok(args)
    }

    /// How much is logged.
    pub fn level(&self) -> tracing_subscriber::filter::LevelFilter {
        use tracing_subscriber::filter::LevelFilter;
        match self.verbose {
            0 => LevelFilter::WARN,
            1 => LevelFilter::INFO,
            _ => LevelFilter::DEBUG,
        }
    }
}

#[derive(Subcommand)]
pub enum Verb {
    /// Serve the store over HTTP
    Serve(serve::Serve),
    /// Begin a conversation
    New(new::New),
    /// List conversations, last changed first
    List(list::List),
    /// Append a turn
    Append(append::Append),
    /// Say something else instead of a turn; the old one stays in the log
    Supersede(supersede::Supersede),
    /// Have a model answer
    Generate(generate::Generate),
    /// Read a conversation
    History(history::History),
    /// Read the end of a conversation and follow it
    Tail(tail::Tail),
    /// Show what a conversation needs to go on: summary, pins, what is pending
    State(state::State),
    /// Pin a truth: every prompt says it until it is unpinned
    Pin(state::Pin),
    /// Take a pin away
    Unpin(state::Unpin),
    /// Approve what waits for an approval
    Approve(state::Answer),
    /// Deny what waits for an approval
    Deny(state::Answer),
    /// Summarize a part of a conversation, without writing anything
    Summarize(summarize::Summarize),
    /// Summarize the oldest turns; the history keeps them
    Compact(compact::Compact),
    /// Find again what was said, by words and by meaning
    Recall(recall::Recall),
    /// List, add, correct and retract what was learned, or let a model learn it
    Facts(facts::Facts),
    /// Build what a model call is given, inside a token budget
    Context(context::Context),
    /// Choose what of a transcript the next request sees
    Project(project::Project),
    /// Change a conversation's title, metadata, retention, policy or system prompt
    Update(change::Update),
    /// Put a conversation away, or bring it back
    Archive(change::Archive),
    /// End a conversation for good; it can still be read
    Close(change::Close),
    /// Start over: a new conversation with the same settings
    Reset(change::Reset),
    /// Begin a conversation that shares another's history up to a place
    Fork(fork::Fork),
    /// Prove that a conversation or an exported file is what was written
    Verify(verify::Verify),
    /// Write a conversation to a file
    Export(export::Export),
    /// Take over conversations from files
    Import(import::Import),
    /// Erase what a turn says; its envelope and hash stay
    Erase(erase::Erase),
    /// Delete a conversation; a tombstone stays
    Delete(delete::Delete),
    /// Write and check session files, beside any program and without a store
    Session(session::Session),
    /// Make, list and take back keys for the server
    Keys(keys::Keys),
    /// Offer conversations to an MCP client over standard input and output
    Mcp(mcp::Mcp),
    /// Back up the whole store, all of it or what is new, also while it is in use
    Backup(backup::Backup),
    /// Make a store from a backup
    Restore(restore::Restore),
    /// Delete what has expired and end silent turns, now
    Sweep(sweep::Sweep),
    /// Show a conversation in the browser, on the page of a running server
    Open(open::Open),
    /// Look around: a temporary store with made-up conversations, and its page
    Demo(demo::Demo),
    /// Check the whole store
    Doctor(doctor::Doctor),
    /// Print completions for a shell
    #[command(hide = true)]
    Completions(completions::Completions),
}

/// A model, for verbs that can have one do the work.
#[derive(ClapArgs)]
pub struct Model {
    /// The server of the model
    #[arg(long, value_name = "URL", requires = "model", env = "EVERTURN_MODEL_URL")]
    pub base_url: Option<String>,
    /// Which model
    #[arg(long, env = "EVERTURN_MODEL")]
    pub model: Option<String>,
    /// How its server speaks
    #[arg(long, value_enum, default_value_t = Speaks::OpenaiChat)]
    pub speaks: Speaks,
    /// The environment variable that holds its key
    #[arg(long, value_name = "NAME")]
    pub api_key_env: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Speaks {
    /// OpenAI chat completions, and the many servers that speak it
    OpenaiChat,
    /// OpenAI Responses
    OpenaiResponses,
    /// Anthropic Messages
    Anthropic,
}
