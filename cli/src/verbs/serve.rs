//! `everturn serve`

use crate::args::Args;
use crate::browser;
use crate::open;
use crate::output::{self, Failure};
use clap::Args as ClapArgs;
use clap::parser::ValueSource;
use everturn_core::Error;
use everturn_server::settings::{Flag, Settings, without_password};
use everturn_server::{StartedServer, run as serve};
use std::path::PathBuf;

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn serve\n  \
    everturn serve --listen 127.0.0.1:0 --store sqlite:chats.db\n  \
    everturn serve --config everturn.toml --check-config\n  \
    everturn serve --listen 0.0.0.0:7317 --tls-cert cert.pem --tls-key key.pem\n      (needs a key: everturn keys create)\n  \
    everturn serve --store 'postgres://everturn@db/everturn?assets=s3://my-bucket/everturn'\n      (see docs/postgres.md)\n\n\
    Flags override the environment (EVERTURN_LISTEN, …), which overrides the file. See docs/serve.md.")]
pub struct Serve {
    /// Address to listen on; port 0 picks a free one [default: 127.0.0.1:7317]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Only print every setting and its origin; fails if they are invalid
    #[arg(long)]
    check_config: bool,
    /// Only read: from a standby of PostgreSQL, or beside the process that owns a file
    #[arg(long)]
    read_only: bool,
    /// Certificate, PEM
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// A proxy in front terminates TLS, so listening on other addresses without a certificate is safe
    #[arg(long)]
    behind_tls_proxy: bool,
    /// OpenTelemetry collector, such as http://localhost:4318
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// Log URLs with their queries; they may contain content
    #[arg(long)]
    log_content: bool,
    /// Open the page in the browser
    #[arg(long)]
    open: bool,
}

pub fn run(args: &Args, verb: &Serve) -> Result<(), Failure> {
    if args.sources.url == Some(ValueSource::CommandLine) {
        let text = "serve opens a local store; name it with --store, and leave --url out";
        return Err(Error::invalid("url.serve", text).into());
    }
    let settings = settings(args, verb)?;
    if verb.check_config {
        output::text(settings.show().trim_end())?;
        return Ok(settings.check(&open::environment)?);
    }
    let store = open::url(settings.text("store").unwrap_or("sqlite:"), true)?;
    let served = serve(&settings, &store, |started| greet(started, &store, verb.open));
    let advice = "a server must own its file; stop that one first, or name another store (`everturn mcp`, `acp` and `record` \
                  work beside a server that was started before them)";
    Ok(served.map_err(|error| open::owned(error, advice))?)
}

/// The settings, with those that only a server has as flags.
fn settings(args: &Args, verb: &Serve) -> Result<Settings, Error> {
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let yes = |given: bool| given.then(|| "true".to_string());
    let given = [
        ("listen", "--listen", verb.listen.clone()),
        ("tls.cert", "--tls-cert", path(&verb.tls_cert)),
        ("tls.key", "--tls-key", path(&verb.tls_key)),
        ("telemetry.otlp_endpoint", "--otlp-endpoint", verb.otlp_endpoint.clone()),
        ("behind_tls_proxy", "--behind-tls-proxy", yes(verb.behind_tls_proxy)),
        ("read_only", "--read-only", yes(verb.read_only)),
        ("log_content", "--log-content", yes(verb.log_content)),
        ("telemetry.log", "--verbose", (args.verbose > 0).then(|| "debug".into())),
    ];
    let flags = given.into_iter().filter_map(|(key, flag, value)| Some(Flag { key, flag, value: value? }));
    open::settings(args, flags.collect())
}

/// Prints the address, the settings that matter most, and commands to try.
fn greet(started: &StartedServer, store: &str, opens: bool) {
    let scheme = if started.tls { "https" } else { "http" };
    let url = format!("{scheme}://{}", started.address);
    let access = match (started.open, started.jwt) {
        (true, _) => "loopback only, without a key; every request acts as admin of tenant default",
        (false, false) => "with a key (created by `everturn keys`)",
        (false, true) => "with a key (created by `everturn keys`) or a token (jwt)",
    };
    let models = if started.models.is_empty() { "none".to_string() } else { started.models.join(", ") };
    eprintln!("everturn listens on {url}");
    let only = if started.read_only { " (for reading only)" } else { "" };
    eprintln!("  store   {}{only}", without_password(store));
    eprintln!("  access  {access}");
    eprintln!("  models  {models}");
    let key = if started.open { "" } else { " -H \"Authorization: Bearer $EVERTURN_KEY\"" };
    // The certificate may be self-signed.
    let curl = if started.tls { "curl -k" } else { "curl" };
    eprintln!("  page    {url}/");
    if opens && !browser::show(&format!("{url}/")) {
        eprintln!("no browser found; open the address of the page yourself");
    }
    eprintln!("try:");
    eprintln!("  {curl} {url}/healthz");
    let creates = " -H 'Content-Type: application/json' -d '{\"title\": \"Hello\"}'";
    let creates = if started.read_only { "" } else { creates };
    eprintln!("  {curl}{key} {url}/api/v1/conversations{creates}");
    eprintln!("  {curl} {url}/openapi.json");
    eprintln!("Ctrl-C stops it.");
}
