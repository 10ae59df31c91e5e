//! Command-line arguments. The arguments of a verb are beside it, in [`verbs`](crate::verbs).

use crate::verbs::{
    acp, append, backup, change, compact, completions, context, copy, delete, demo, doctor, erase, export,
    facts, fork, generate, history, import, info, keys, list, man, mcp, new, open, project, recall, record,
    restore, serve, session, state, summarize, supersede, sweep, tail, verify,
};
use crate::{complete, show};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{
    Arg, ArgMatches, Args as ClapArgs, Command, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
};
use std::path::PathBuf;

/// Heading of the options that every verb has.
const GLOBAL: &str = "Global options";

/// The usual help without the empty line above the usage: without a verb it has to fit on one screen.
pub const ONE_SCREEN: &str = "{about-with-newline}{usage-heading} {usage}\n\n{all-args}{after-help}";

/// Every word is kept; the model reads what it needs. A conversation store for AI agents.
#[derive(Parser)]
#[command(
    name = "everturn",
    version,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = "CONV is an id, its beginning, or @last. `everturn VERB --help` shows examples."
)]
pub struct Args {
    /// sqlite:PATH or postgres://…, by default your data folder [env: EVERTURN_STORE]
    #[arg(
        long,
        global = true,
        help_heading = GLOBAL,
        default_value = "sqlite:",
        hide_default_value = true,
        value_name = "URL"
    )]
    pub store: String,
    /// Use this server instead; its key is in EVERTURN_KEY
    #[arg(
        long,
        global = true,
        help_heading = GLOBAL,
        env = "EVERTURN_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub url: Option<String>,
    /// File that holds the key of the server
    #[arg(
        long,
        global = true,
        help_heading = GLOBAL,
        env = "EVERTURN_KEY_FILE",
        hide_env_values = true,
        hide_short_help = true,
        value_name = "FILE"
    )]
    pub key_file: Option<PathBuf>,
    /// Tenant to work on
    #[arg(
        long,
        global = true,
        help_heading = GLOBAL,
        env = "EVERTURN_TENANT",
        hide_env_values = true,
        default_value = "default",
        value_name = "NAME"
    )]
    pub tenant: String,
    /// Print JSON instead of text for people
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub json: bool,
    /// Mirror every conversation that is written into a file
    #[arg(
        long,
        global = true,
        help_heading = GLOBAL,
        env = "EVERTURN_MIRROR",
        hide_env_values = true,
        hide_short_help = true,
        value_name = "DIR"
    )]
    pub mirror: Option<PathBuf>,
    /// Configuration file; by default everturn/config.toml in your configuration folder, if it exists
    #[arg(
        long,
        global = true,
        help_heading = GLOBAL,
        env = "EVERTURN_CONFIG",
        hide_env_values = true,
        hide_short_help = true,
        value_name = "FILE"
    )]
    pub config: Option<PathBuf>,
    /// Print more: a line for each imported file, and more logs on standard error (twice: even more)
    #[arg(long, short, global = true, help_heading = GLOBAL, hide_short_help = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    #[command(subcommand)]
    pub verb: Option<Verb>,
    /// Sources of those arguments for which the source matters.
    #[arg(skip)]
    pub sources: Sources,
}

/// Sources of arguments: typed or from the environment.
#[derive(Clone, Default)]
pub struct Sources {
    pub store: Option<ValueSource>,
    pub url: Option<ValueSource>,
    pub key_file: Option<ValueSource>,
    pub tenant: Option<ValueSource>,
    pub mirror: Option<ValueSource>,
    pub base_url: Option<ValueSource>,
}

impl Args {
    /// The whole command: with completions, and without `--url` and `--tenant` in the help of verbs that cover the whole
    /// store.
    pub fn whole() -> Command {
        complete::with_conversations(Args::of_whole_stores(&["backup", "restore", "copy"]))
    }

    fn of_whole_stores(verbs: &[&'static str]) -> Command {
        let url = Arg::new("url").long("url").env("EVERTURN_URL").hide(true);
        let key_file = Arg::new("key_file").long("key-file").env("EVERTURN_KEY_FILE").hide(true);
        let tenant =
            Arg::new("tenant").long("tenant").env("EVERTURN_TENANT").default_value("default").hide(true);
        let hidden = [url, key_file.value_parser(clap::value_parser!(PathBuf)), tenant];
        verbs.iter().fold(Args::command(), |command, verb| {
            command.mut_subcommand(verb, |own| own.args(hidden.clone()))
        })
    }

    /// The error without environment variables: clap would show the options that they set as if they had been typed.
    pub fn as_typed(error: clap::Error) -> clap::Error {
        fn bare(command: Command) -> Command {
            // A variable with an empty name does not exist.
            command.mut_args(|arg| arg.env("")).mut_subcommands(bare)
        }
        match error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::DisplayVersion => error,
            _ => bare(Args::whole()).try_get_matches().err().unwrap_or(error),
        }
    }

    /// Parses arguments, with the source of each.
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
            key_file: matches.value_source("key_file"),
            tenant: matches.value_source("tenant"),
            mirror: matches.value_source("mirror"),
            base_url: asks_model.and_then(|own| own.value_source("base_url")),
        };
        // Read here, since clap would show the option as a required one in every usage.
        let store = std::env::var_os("EVERTURN_STORE").filter(|store| !store.is_empty());
        if let Some(store) = store.filter(|_| args.sources.store == Some(ValueSource::DefaultValue)) {
            args.store = store.to_string_lossy().into_owned();
            args.sources.store = Some(ValueSource::EnvVariable);
        }
        Ok(args)
    }

    /// The same for a thread that may outlive the verb.
    pub fn for_thread(&self) -> Args {
        Args {
            store: self.store.clone(),
            url: self.url.clone(),
            key_file: self.key_file.clone(),
            tenant: self.tenant.clone(),
            json: self.json,
            mirror: self.mirror.clone(),
            config: self.config.clone(),
            verbose: self.verbose,
            verb: None,
            sources: self.sources.clone(),
        }
    }

    /// The typed options that another command needs to use the same store.
    pub fn again(&self) -> String {
        let key_file = self.key_file.as_ref().map(|path| path.display().to_string());
        let options = [
            ("--store", Some(self.store.clone()), self.sources.store),
            ("--url", self.url.clone(), self.sources.url),
            ("--key-file", key_file, self.sources.key_file),
            ("--tenant", Some(self.tenant.clone()), self.sources.tenant),
        ];
        let typed = options.into_iter().filter(|(_, _, source)| *source == Some(ValueSource::CommandLine));
        typed.filter_map(|(option, value, _)| Some(format!(" {option} {}", show::quoted(&value?)))).collect()
    }

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
    /// Create a conversation
    New(new::New),
    /// List conversations, latest first
    List(list::List),
    /// Show a conversation's settings, size and use
    #[command(visible_alias = "show")]
    Info(info::Info),
    /// Append a turn
    Append(append::Append),
    /// Replace a turn with a new one; the old one stays in the log
    #[command(visible_alias = "edit")]
    Supersede(supersede::Supersede),
    /// Generate a model reply
    Generate(generate::Generate),
    /// Read a conversation
    History(history::History),
    /// Read the end of a conversation and follow it
    Tail(tail::Tail),
    /// Show the state of a conversation: summary, pins, pending approvals and tools
    State(state::State),
    /// Pin a value: every prompt contains it until it is unpinned
    Pin(state::Pin),
    /// Remove a pin
    Unpin(state::Unpin),
    /// Set or clear a scratchpad, the working memory of an agent
    Scratchpad(state::Scratchpad),
    /// Grant a pending approval
    Approve(state::Resolution),
    /// Request an approval
    RequestApproval(state::RequestApproval),
    /// Deny a pending approval
    Deny(state::Resolution),
    /// Give up a tool call that will not get a result
    AbandonCall(state::AbandonCall),
    /// Summarize a part of a conversation, without writing anything
    Summarize(summarize::Summarize),
    /// Summarize the oldest turns; the history keeps them
    Compact(compact::Compact),
    /// Search turns and facts, lexically and by embedding
    #[command(visible_alias = "search")]
    Recall(recall::Recall),
    /// List, add, correct and retract facts, or extract them with a model
    Facts(facts::Facts),
    /// Build the context of a model call, inside a token budget
    Context(context::Context),
    /// Choose which messages of a transcript the next request sees
    Project(project::Project),
    /// Change a conversation's title, metadata, retention, policy or system prompt
    Update(change::Update),
    /// Give a conversation another title
    Rename(change::Rename),
    /// Archive a conversation, or resume it
    Archive(change::Archive),
    /// End a conversation for good; it can still be read
    Close(change::Close),
    /// Start over: create a new conversation with the same settings
    Reset(change::Reset),
    /// Create a conversation that shares another's history up to a seq
    Fork(fork::Fork),
    /// Verify that a conversation or an exported file is unchanged
    Verify(verify::Verify),
    /// Write a conversation to a file
    Export(export::Export),
    /// Import conversations from files
    Import(import::Import),
    /// Erase the content of a turn; its envelope and hash stay
    Erase(erase::Erase),
    /// Delete a conversation; a tombstone stays
    Delete(delete::Delete),
    /// Write and check session files of any program, without a store
    Session(session::Session),
    /// Create, list and revoke keys for the server
    Keys(keys::Keys),
    /// Serve conversations to an MCP client over standard input and output
    Mcp(mcp::Mcp),
    /// Record an agent's sessions, between an editor and the agent (Agent Client Protocol)
    Acp(acp::Acp),
    /// Record the messages between an MCP client and a server
    Record(record::Record),
    /// Back up the whole store, fully or incrementally, also while it is in use
    Backup(backup::Backup),
    /// Create a store from a backup
    Restore(restore::Restore),
    /// Copy the whole store to another, of any kind
    Copy(copy::Copy),
    /// Delete expired conversations, and end idle turns, overdue calls and approvals, now
    Sweep(sweep::Sweep),
    /// Open a conversation of a running server in the browser
    Open(open::Open),
    /// Open the page on a temporary store with sample conversations
    Demo(demo::Demo),
    /// Check the whole store
    Doctor(doctor::Doctor),
    /// Print completions for a shell
    Completions(completions::Completions),
    /// Print the manual page, or write those of all verbs
    Man(man::Man),
}

/// Options of a model, for verbs that may use one.
#[derive(ClapArgs)]
pub struct Model {
    /// URL of the model's server
    #[arg(long, value_name = "URL", requires = "model", env = "EVERTURN_MODEL_URL")]
    pub base_url: Option<String>,
    /// Name of the model
    #[arg(long, env = "EVERTURN_MODEL")]
    pub model: Option<String>,
    /// API of the model's server
    #[arg(long, value_enum, default_value_t = ModelApi::OpenaiChat)]
    pub speaks: ModelApi,
    /// Environment variable that holds its key
    #[arg(long, value_name = "NAME")]
    pub api_key_env: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModelApi {
    /// OpenAI chat completions, also offered by many other servers
    OpenaiChat,
    /// OpenAI Responses
    OpenaiResponses,
    /// Anthropic Messages
    Anthropic,
}
