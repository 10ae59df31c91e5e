//! What can be asked, and how.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args as ClapArgs, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Every word is kept; the model reads what it needs. A conversation store for AI agents.
#[derive(Parser)]
#[command(
    name = "everturn",
    version,
    disable_help_subcommand = true,
    max_term_width = 100,
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
}

impl Args {
    /// What was asked, and from where each word of it came.
    pub fn read(matches: &ArgMatches) -> Result<Args, clap::Error> {
        let mut args = Args::from_arg_matches(matches)?;
        let asks_model = match matches.subcommand() {
            Some(("compact", own)) => Some(own),
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
    Serve(Serve),
    /// Begin a conversation
    New(New),
    /// List conversations, last changed first
    List(List),
    /// Append a turn
    Append(Append),
    /// Read a conversation
    History(History),
    /// Read the end of a conversation and follow it
    Tail(Tail),
    /// Show what a conversation needs to go on: summary, pins, what is pending
    State(State),
    /// Pin a truth: every prompt says it until it is unpinned
    Pin(Pin),
    /// Take a pin away
    Unpin(Unpin),
    /// Summarize the oldest turns; the history keeps them
    Compact(Compact),
    /// Find again what was said, by words and by meaning
    Recall(Recall),
    /// List, add, correct and retract what was learned, or let a model learn it
    Facts(Facts),
    /// Build what a model call is given, inside a token budget
    Context(Context),
    /// Choose what of a transcript the next request sees
    Project(Project),
    /// Begin a conversation that shares another's history up to a place
    Fork(Fork),
    /// Prove that a conversation or an exported file is what was written
    Verify(Verify),
    /// Write a conversation to a file
    Export(Export),
    /// Take over conversations from files
    Import(Import),
    /// Erase what a turn says; its envelope and hash stay
    Erase(Erase),
    /// Delete a conversation; a tombstone stays
    Delete(Delete),
    /// Write and check session files, beside any program and without a store
    Session(crate::verbs::session::Session),
    /// Make, list and take back keys for the server
    Keys(Keys),
    /// Offer conversations to an MCP client over standard input and output
    Mcp(Mcp),
    /// Check the whole store
    Doctor(Doctor),
    /// Print completions for a shell
    Completions(Completions),
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn serve\n  \
    everturn serve --listen 127.0.0.1:0 --store sqlite:chats.db\n  \
    everturn serve --config everturn.toml --check-config\n  \
    everturn serve --listen 0.0.0.0:7317 --tls-cert cert.pem --tls-key key.pem   (needs a key: everturn keys create)\n\n\
    A flag counts more than the environment (EVERTURN_LISTEN, …), that more than the file. See docs/serve.md.")]
pub struct Serve {
    /// Where to listen; port 0 takes any that is free [default: 127.0.0.1:7317]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// Settings; without it config.toml in the folder everturn of your configuration folder, if it is there
    #[arg(long, value_name = "FILE", env = "EVERTURN_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,
    /// Only print every setting and where it came from; fails if they make no sense
    #[arg(long)]
    pub check_config: bool,
    /// The certificate to answer with, PEM
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// A proxy in front speaks TLS, so listening on other addresses without a certificate is safe
    #[arg(long)]
    pub behind_tls_proxy: bool,
    /// An OpenTelemetry collector, such as http://localhost:4318
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// Also log addresses with their queries; they may hold what people said
    #[arg(long)]
    pub log_content: bool,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn keys create --role admin --label 'my laptop'\n  \
    everturn keys create --role writer --tenant acme --expires 2027-01-01T00:00:00Z\n  \
    everturn keys list\n  \
    everturn keys revoke key_01J9…")]
pub struct Keys {
    #[command(subcommand)]
    pub verb: KeysVerb,
}

#[derive(Subcommand)]
pub enum KeysVerb {
    /// Make a key and print its words, once
    Create {
        /// What it may do: reader, writer or admin
        #[arg(long)]
        role: String,
        /// For people: who has it, and what for
        #[arg(long)]
        label: Option<String>,
        /// When it ends by itself, RFC 3339
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
    },
    /// List the keys of the tenant
    List,
    /// Take a key back
    Revoke {
        /// Its id
        #[arg(value_name = "ID")]
        id: String,
    },
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn new --title 'Fix the build'\n  \
    id=$(everturn new --json | jq -r .id)\n  \
    everturn new --system-prompt \"$(cat prompt.md)\" --retention audit-only")]
pub struct New {
    /// For people
    #[arg(long)]
    pub title: Option<String>,
    /// Whose it is within the tenant
    #[arg(long)]
    pub owner: Option<String>,
    /// Session-level instructions
    #[arg(long, value_name = "TEXT")]
    pub system_prompt: Option<String>,
    /// A JSON object to keep with it
    #[arg(long, value_name = "JSON")]
    pub metadata: Option<String>,
    /// How long content is kept: full, audit-only or ephemeral
    #[arg(long)]
    pub retention: Option<String>,
    /// Delete it this many seconds after its last change
    #[arg(long, value_name = "SECONDS")]
    pub ttl: Option<u64>,
    /// What to do with secrets in turns: off, mark or mask
    #[arg(long, value_name = "MODE")]
    pub redaction: Option<String>,
    /// Policies as a JSON object: compaction, budget, facts, redaction
    #[arg(long, value_name = "JSON")]
    pub policy: Option<String>,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  everturn list\n  everturn list --query build --state active --json\n  \
    everturn list --url http://127.0.0.1:7317       (the same, at a server)")]
pub struct List {
    /// Only those whose title contains this
    #[arg(long, short)]
    pub query: Option<String>,
    /// Only those that are active, archived, abandoned or closed
    #[arg(long)]
    pub state: Option<String>,
    /// At most this many
    #[arg(long, short, default_value_t = 20, value_name = "N")]
    pub limit: usize,
    /// Go on after a page: the `next` of the page before
    #[arg(long, value_name = "NEXT")]
    pub after: Option<String>,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn append @last 'What did we decide?'\n  \
    make 2>&1 | everturn append @last --role tool --actor make -\n  \
    echo '{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]}' | everturn append @last --message -\n  \
    llm 'Tell me a story' | everturn append @last --role assistant --stream -")]
pub struct Append {
    /// The conversation
    #[arg(value_name = "CONV")]
    pub conversation: String,
    /// What is said; - reads it from standard input
    #[arg(value_name = "TEXT", default_value = "-")]
    pub text: String,
    /// In which role: user, assistant, system or tool
    #[arg(long, default_value = "user")]
    pub role: String,
    /// Who says it
    #[arg(long)]
    pub actor: Option<String>,
    /// TEXT is a message as JSON, in the shape of any provider; it is kept as it is
    #[arg(long, conflicts_with_all = ["role", "stream"])]
    pub message: bool,
    /// Show and keep the text while it is still coming in on standard input
    #[arg(long)]
    pub stream: bool,
    /// Which model said it
    #[arg(long)]
    pub model: Option<String>,
    /// Refuse unless the log ends at this place
    #[arg(long, value_name = "SEQ", conflicts_with = "stream")]
    pub expected_seq: Option<u64>,
    /// Sending the same again under the same key changes nothing
    #[arg(long, value_name = "KEY", conflicts_with = "stream")]
    pub idempotency_key: Option<String>,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn history @last\n  \
    everturn history @last --limit 10 --before 120\n  \
    everturn history @last --events --json | jq '.data[].kind'")]
pub struct History {
    /// The conversation
    #[arg(value_name = "CONV")]
    pub conversation: String,
    /// At most this many entries, counted from the end (or from --after)
    #[arg(long, short, default_value_t = 50, value_name = "N")]
    pub limit: usize,
    /// Only what comes before this place
    #[arg(long, value_name = "SEQ")]
    pub before: Option<u64>,
    /// Only what comes after this place
    #[arg(long, value_name = "SEQ")]
    pub after: Option<u64>,
    /// Only turns of this actor; may be given several times
    #[arg(long, value_name = "ACTOR")]
    pub actor: Vec<String>,
    /// Also turns that others took the place of
    #[arg(long)]
    pub superseded: bool,
    /// Also events that are not turns
    #[arg(long)]
    pub events: bool,
    /// Show tool calls, their results and reasoning in full
    #[arg(long)]
    pub full: bool,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  everturn tail @last\n  everturn tail @last --from 1 --json\n  \
    EVERTURN_KEY=et_… everturn tail @last --url https://chats.example.org")]
pub struct Tail {
    /// The conversation
    #[arg(value_name = "CONV")]
    pub conversation: String,
    /// From this place on; by default the last ten events
    #[arg(long, value_name = "SEQ")]
    pub from: Option<u64>,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  everturn state @last\n  everturn state @last --at 42 --json | jq .pins")]
pub struct State {
    /// The conversation
    #[arg(value_name = "CONV")]
    pub conversation: String,
    /// As it was when the log ended at this place
    #[arg(long, value_name = "SEQ")]
    pub at: Option<u64>,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn pin @last branch release/2.1\n  \
    everturn pin @last limits '{\"files\": 3}'")]
pub struct Pin {
    /// The conversation
    #[arg(value_name = "CONV")]
    pub conversation: String,
    /// What it is called
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The truth: JSON, or else a text
    #[arg(value_name = "VALUE")]
    pub value: String,
}

#[derive(ClapArgs)]
#[command(after_help = "Example:\n  everturn unpin @last branch")]
pub struct Unpin {
    /// The conversation
    #[arg(value_name = "CONV")]
    pub conversation: String,
    /// What it is called
    #[arg(value_name = "NAME")]
    pub name: String,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn compact @last --dry-run\n  \
    everturn compact @last --keep-last 10\n  \
    everturn compact @last --base-url http://localhost:8080/v1 --model qwen3\n  \
    everturn compact @last --revert")]
pub struct Compact {
    /// The conversation
    #[arg(value_name = "CONV")]
    pub conversation: String,
    /// Only show what the summary would be
    #[arg(long)]
    pub dry_run: bool,
    /// Leave this many turns at the end as they are, instead of what the policy says
    #[arg(long, value_name = "N")]
    pub keep_last: Option<usize>,
    /// Take the last compaction back
    #[arg(long, conflicts_with_all = ["dry_run", "keep_last", "base_url"])]
    pub revert: bool,
    /// Have a model write the summary; by default it is extracted, offline
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

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn recall which port did we choose\n  \
    everturn recall '\"connection refused\" sqlite.rs' --role tool --limit 3\n  \
    everturn recall build_con* --conversation @last --mode lexical\n  \
    everturn recall deployment --after 2026-01-01T00:00:00Z --json\n  \
    everturn recall --index")]
pub struct Recall {
    /// What to look for: words, "phrases", begin*
    #[arg(required_unless_present = "index", value_name = "QUERY")]
    pub query: Vec<String>,
    /// Only in this conversation
    #[arg(long, short, value_name = "CONV")]
    pub conversation: Option<String>,
    /// Only what this actor said; may be repeated
    #[arg(long)]
    pub actor: Vec<String>,
    /// Only what was said in this role: user, assistant, system or tool; may be repeated
    #[arg(long)]
    pub role: Vec<String>,
    /// Only what was said at this time or later
    #[arg(long, value_name = "TIME")]
    pub after: Option<String>,
    /// Only what was said before this time
    #[arg(long, value_name = "TIME")]
    pub before: Option<String>,
    /// Only turns, or only facts
    #[arg(long)]
    pub kind: Vec<String>,
    /// At most this many
    #[arg(long, short, default_value_t = 10, value_name = "N")]
    pub limit: usize,
    /// By words (lexical), by meaning (vector), or both (hybrid)
    #[arg(long, default_value = "hybrid")]
    pub mode: String,
    /// Also turns that others took the place of
    #[arg(long)]
    pub all: bool,
    /// First make everything findable by meaning, on all cores and however long that takes; a server does it by itself
    #[arg(long)]
    pub index: bool,
    /// Who says what a text means: builtin, none or folder:PATH
    #[arg(
        long,
        env = "EVERTURN_RECALL_EMBEDDER",
        hide_env_values = true,
        default_value = "builtin",
        value_name = "NAME"
    )]
    pub embedder: String,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn facts @last\n  \
    everturn facts @last list --all --as-of 120\n  \
    everturn facts @last add Ana 'lives in' Lisbon\n  \
    everturn facts @last correct fact_01J9… --object Porto\n  \
    everturn facts @last retract fact_01J9… --reason 'never said'\n  \
    everturn facts @last extract --base-url http://localhost:8080/v1 --model qwen3")]
pub struct Facts {
    /// The conversation
    #[arg(value_name = "CONV")]
    pub conversation: String,
    #[command(subcommand)]
    pub verb: Option<FactsVerb>,
}

#[derive(Subcommand)]
pub enum FactsVerb {
    /// List facts; the same as no verb
    List {
        /// As they were when the log ended at this place
        #[arg(long, value_name = "SEQ")]
        as_of: Option<u64>,
        /// Also those that were superseded or retracted
        #[arg(long)]
        all: bool,
        /// At most this many
        #[arg(long, short, default_value_t = 50, value_name = "N")]
        limit: usize,
        /// Go on after a page: the `next` of the page before
        #[arg(long, value_name = "NEXT")]
        after: Option<u64>,
    },
    /// Add a fact by hand
    Add {
        /// About whom or what
        subject: String,
        /// What is said of it
        predicate: String,
        /// What it is said to be
        object: String,
        /// How sure, from 0 to 1; certain by default
        #[arg(long)]
        confidence: Option<f64>,
        /// The turn that says so; erasing it erases the fact
        #[arg(long, value_name = "TURN")]
        source: Option<String>,
        /// Its words that say so
        #[arg(long, value_name = "TEXT", requires = "source")]
        quote: Option<String>,
        /// Who adds it
        #[arg(long)]
        actor: Option<String>,
    },
    /// Put another fact in the place of one
    Correct {
        /// The fact's id
        #[arg(value_name = "FACT")]
        fact: String,
        /// About whom or what
        #[arg(long)]
        subject: Option<String>,
        /// What is said of it
        #[arg(long)]
        predicate: Option<String>,
        /// What it is said to be
        #[arg(long)]
        object: Option<String>,
        /// How sure, from 0 to 1; certain by default
        #[arg(long)]
        confidence: Option<f64>,
        /// Who corrects it
        #[arg(long)]
        actor: Option<String>,
    },
    /// Take a fact back
    Retract {
        /// The fact's id
        #[arg(value_name = "FACT")]
        fact: String,
        /// Why
        #[arg(long)]
        reason: Option<String>,
        /// Who takes it back
        #[arg(long)]
        actor: Option<String>,
    },
    /// Let a model read turns and keep the facts that they support
    Extract {
        /// From this place on, also what was read before
        #[arg(long, value_name = "SEQ")]
        from: Option<u64>,
        /// Up to this place
        #[arg(long, value_name = "SEQ")]
        to: Option<u64>,
        #[command(flatten)]
        model: Model,
    },
}

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

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn context @last --budget 8000\n  \
    everturn context @last --budget 8000 --provider anthropic --model claude-sonnet-4-5 --json\n  \
    everturn context @last --budget 4000 --project clean_tool_repair --input 'And now?'\n  \
    everturn context @last --budget 8000 --record     (keep a receipt, as before a model call)\n  \
    everturn context @last --replay 120               (what was the model given then?)")]
pub struct Context {
    /// The conversation
    #[arg(value_name = "CONV")]
    pub conversation: String,
    /// Most tokens
    #[arg(long, value_name = "N", required_unless_present = "replay")]
    pub budget: Option<u64>,
    /// Whose shape: openai-chat, openai-responses, anthropic, gemini or neutral
    #[arg(long, value_name = "P", default_value = "neutral")]
    pub provider: String,
    /// Which model will read it; decides how tokens are counted
    #[arg(long)]
    pub model: Option<String>,
    /// At most this many turns verbatim
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,
    /// This actor's view; may be given several times
    #[arg(long, value_name = "ACTOR")]
    pub participant: Vec<String>,
    /// How the turns are projected: a policy, or options as JSON
    #[arg(long, value_name = "POLICY | JSON")]
    pub project: Option<String>,
    /// Which sections, as JSON: {\"digests\": false, \"tail\": {\"share\": 0.8}}
    #[arg(long, value_name = "JSON")]
    pub sections: Option<String>,
    /// Instructions for this call
    #[arg(long, value_name = "TEXT")]
    pub instructions: Option<String>,
    /// A text of yours with its title; may be given several times
    #[arg(long, value_name = "TITLE=TEXT")]
    pub digest: Vec<String>,
    /// What is asked now
    #[arg(long, value_name = "TEXT")]
    pub input: Option<String>,
    /// Also turns from further back that have to do with what is asked: at most this many
    #[arg(long, value_name = "TURNS", num_args = 0..=1, default_missing_value = "5")]
    pub recall: Option<usize>,
    /// Also facts that have to do with it: at most this many
    #[arg(long, value_name = "FACTS", num_args = 0..=1, default_missing_value = "10")]
    pub facts: Option<usize>,
    /// As it was when the log ended at this place
    #[arg(long, value_name = "SEQ")]
    pub at: Option<u64>,
    /// Show the prompt itself instead of the table
    #[arg(long)]
    pub show: bool,
    /// Keep the receipt in the log, as before a model call
    #[arg(long, conflicts_with_all = ["replay", "at"])]
    pub record: bool,
    /// Give back what was recorded at this place
    #[arg(long, value_name = "SEQ", conflicts_with = "budget")]
    pub replay: Option<u64>,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn project @last --policy clean_tool_repair\n  \
    everturn project transcript.json --policy reachability_gc --options '{\"root_window\": 6}'\n  \
    cat messages.json | everturn project - --policy squash_failed_calls --messages\n  \
    everturn project @last --policy custom --script drop-tracebacks.rhai")]
pub struct Project {
    /// A transcript value or a list of messages in a file, a conversation, or - for standard input
    #[arg(value_name = "FILE | CONV | -", default_value = "-")]
    pub source: String,
    /// raw, clean_tool_repair, squash_failed_calls, summary_prefix, reachability_gc, clear_tool_uses or custom; several
    /// are applied in order, separated by commas
    #[arg(long, value_name = "P")]
    pub policy: Option<String>,
    /// Further options, as a JSON object
    #[arg(long, value_name = "JSON")]
    pub options: Option<String>,
    /// The projector for custom: a script in a file
    #[arg(long, value_name = "FILE")]
    pub script: Option<PathBuf>,
    /// Print just the messages
    #[arg(long)]
    pub messages: bool,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  everturn fork @last\n  everturn fork conv_01J9 --at 42 --json")]
pub struct Fork {
    /// The conversation
    #[arg(value_name = "CONV")]
    pub conversation: String,
    /// The last event that both share; by default all of them
    #[arg(long, value_name = "SEQ")]
    pub at: Option<u64>,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn verify @last\n  \
    everturn verify --all\n  \
    everturn verify session.jsonl            (offline, needs no store)\n  \
    everturn verify @last --head 9f2c…       (does it still contain what you noted?)")]
pub struct Verify {
    /// A conversation, or an exported file
    #[arg(value_name = "CONV | FILE", required_unless_present = "all")]
    pub target: Option<String>,
    /// Every conversation of the tenant
    #[arg(long, conflicts_with = "target")]
    pub all: bool,
    /// Also check that the log contains this head hash, noted earlier
    #[arg(long, value_name = "HASH", conflicts_with = "all")]
    pub head: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One event a line, with its chain: verifies offline and imports again
    Jsonl,
    /// A transcript value, version 2
    Transcript,
    /// The messages of a request for OpenAI chat completions
    OpenaiChat,
    /// The items of a request for OpenAI Responses
    OpenaiResponses,
    /// The messages of a request for Anthropic
    Anthropic,
    /// The contents of a request for Gemini
    Gemini,
    /// For people: text, with tool calls and thinking folded
    Markdown,
    /// For people: one page that needs no network and no scripts
    Html,
}

impl From<Format> for everturn_engine::Format {
    fn from(format: Format) -> everturn_engine::Format {
        match format {
            Format::Jsonl => everturn_engine::Format::Jsonl,
            Format::Transcript => everturn_engine::Format::Transcript,
            Format::OpenaiChat => everturn_engine::Format::OpenaiChat,
            Format::OpenaiResponses => everturn_engine::Format::OpenaiResponses,
            Format::Anthropic => everturn_engine::Format::Anthropic,
            Format::Gemini => everturn_engine::Format::Gemini,
            Format::Markdown => everturn_engine::Format::Markdown,
            Format::Html => everturn_engine::Format::Html,
        }
    }
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn export @last -o session.jsonl\n  \
    everturn export @last --format html -o talk.html\n  \
    everturn export @last --format anthropic | jq .messages")]
pub struct Export {
    /// The conversation
    #[arg(value_name = "CONV")]
    pub conversation: String,
    /// How it is written
    #[arg(long, value_enum, default_value_t = Format::Jsonl)]
    pub format: Format,
    /// Into this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Replace the file if it is there
    #[arg(long, requires = "output")]
    pub force: bool,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn import                               (everything that agents left on this machine)\n  \
    everturn import --dry-run                     (what there is, without taking it over)\n  \
    everturn import session.jsonl transcript.json\n  \
    everturn import ~/.claude/projects --watch\n  \
    everturn import - < session.jsonl\n\n\
    The format is told by the content: files that `export` wrote, session files, transcript values, Claude Code, Codex\n\
    (also .zst), Gemini CLI, lists of OpenAI or Anthropic messages, and one message a line. Importing again adds only what\n\
    is new. See docs/import.md.")]
pub struct Import {
    /// Files and folders; - is standard input [default: where Claude Code, Codex and Gemini CLI keep their sessions]
    #[arg(value_name = "PATH")]
    pub paths: Vec<String>,
    /// Only say what there is: conversations, turns and bytes
    #[arg(long)]
    pub dry_run: bool,
    /// Stay, and take over what is added until Ctrl-C
    #[arg(long, conflicts_with = "dry_run")]
    pub watch: bool,
}

#[derive(ClapArgs)]
#[command(after_help = "Example:\n  everturn erase turn_01J9… --reason 'asked by the customer' --actor dpo")]
pub struct Erase {
    /// The turn's id
    #[arg(value_name = "TURN")]
    pub turn: String,
    /// Why; kept in the log
    #[arg(long)]
    pub reason: String,
    /// On whose behalf; kept in the log
    #[arg(long)]
    pub actor: Option<String>,
}

#[derive(ClapArgs)]
#[command(after_help = "Example:\n  everturn delete conv_01J9… --reason 'test data'")]
pub struct Delete {
    /// The conversation
    #[arg(value_name = "CONV")]
    pub conversation: String,
    /// Why; kept in the tombstone
    #[arg(long)]
    pub reason: String,
}

#[derive(ClapArgs)]
#[command(after_help = "An MCP client starts this command itself. Examples:\n  \
    claude mcp add everturn -- everturn mcp\n  \
    {\"mcpServers\": {\"everturn\": {\"command\": \"everturn\", \"args\": [\"mcp\", \"--read-only\"]}}}")]
pub struct Mcp {
    /// Offer only what changes nothing; works beside a process that writes
    #[arg(long)]
    pub read_only: bool,
    /// Record what is asked into a session file below this folder
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
}

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  everturn doctor\n  everturn doctor --rebuild --compact")]
pub struct Doctor {
    /// First make everything that is derived from the log again
    #[arg(long)]
    pub rebuild: bool,
    /// First give unused space back; also removes old titles and names that stayed behind in it
    #[arg(long)]
    pub compact: bool,
}

#[derive(ClapArgs)]
#[command(
    after_help = "Example:\n  everturn completions bash > ~/.local/share/bash-completion/completions/everturn"
)]
pub struct Completions {
    /// For which shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}
