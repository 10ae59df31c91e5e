//! Measures what Everturn promises, each number against a floor or a smaller sibling of the same run.
//!
//! `cargo run --release -p everturn-bench -- all` prints a table in Markdown, to be pasted into
//! `docs/BENCHMARKS.md`. Disks are noisy, so compared measurements alternate in short slices; a ratio is the
//! median over the rounds, and the range beside it holds four rounds of five.
//!
//! This is not a test. It succeeds whatever it measures; only an error makes it fail.
//!
//! Reading order: `report` is the output, `figures` turns samples into numbers, `corpus` fills stores; then one
//! file for each measurement.

mod allocations;
mod append;
mod attacked;
mod backup;
mod change;
mod compaction_quality;
mod context;
mod corpus;
mod embed;
mod figures;
mod import;
mod mixed;
mod nodes;
mod open;
mod place;
mod postgres;
mod processor;
mod programs;
mod project;
mod project_fixture;
mod quality;
mod read;
mod recall;
mod record;
mod redis;
mod report;
mod serve;
mod sessions;
mod size;
mod two_years;
mod vectors;

use clap::{Parser, Subcommand};
use corpus::{Corpus, Filled};
use place::Scratch;
use report::Row;
use std::path::PathBuf;
use std::process::ExitCode;

type Fault = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Fault> = std::result::Result<T, E>;

/// Measure the performance that Everturn promises
#[derive(Parser)]
#[command(name = "everturn-bench")]
struct Args {
    #[command(subcommand)]
    what: What,
    /// Folder for the stores, on the disk to measure; removed at the end [default: target/ if it exists, else
    /// here]
    #[arg(long, global = true, value_name = "DIR", verbatim_doc_comment)]
    dir: Option<PathBuf>,
    /// Use smaller stores and fewer rounds: a preview, not a result
    #[arg(long, global = true)]
    quick: bool,
}

#[derive(Subcommand, Clone)]
enum What {
    /// Durable appends: one writer against the bare disk, 64 writers against one
    Append,
    /// Pages of a long conversation against those of a short one
    Read,
    /// Forking a long conversation and erasing in it, against the same in a short one
    Change,
    /// Size of a store against the size of its turns as JSON
    Size,
    /// Opening a large store against opening a small one
    Open,
    /// Backing a store up and restoring it against copying its file; not part of `all`
    Backup,
    /// Building a context of a long conversation against one of a short one
    Context,
    /// Lexical and hybrid recall: queries, the index and its effect on appends; not part of `all`
    Recall {
        /// Only a store with this many turns
        #[arg(long, value_name = "NUMBER")]
        turns: Option<u64>,
        /// Keep the stores in this folder, and reuse those of an earlier run: a million turns take long to fill
        #[arg(long, value_name = "DIR")]
        keep: Option<PathBuf>,
    },
    /// Projections of long transcripts; not part of `all`
    Project {
        /// Compare with the reference implementation: building it takes more than 20 CPU minutes and 8 GB of memory
        #[arg(long)]
        reference: bool,
    },
    /// Importing session files of 1 GiB: rate and memory; not part of `all`
    Import,
    /// Two years of sessions: one command until any decision is found; not part of `all`
    Sessions {
        /// Compare with longhand, which is installed into target/longhand: 1 GB from PyPI
        #[arg(long)]
        longhand: bool,
    },
    /// Quality of lexical, embedding and hybrid recall; not part of `all`
    RecallQuality {
        /// Embedding model: builtin or folder:PATH
        #[arg(long, default_value = "builtin")]
        embedder: String,
        /// Model that reranks the best 50: folder:PATH
        #[arg(long)]
        rerank: Option<String>,
        /// Store to measure: an empty one
        #[arg(long, value_name = "URL", default_value = "memory:")]
        store: String,
        #[command(flatten)]
        public: quality::Public,
    },
    /// Quality of extracted checkpoints on labelled sessions; not part of `all`
    CompactionQuality {
        /// Also print every wrong entry and every missing label
        #[arg(long)]
        explain: bool,
    },
    /// The built-in embedding model: text per second of one core against splitting it into words; not part of
    /// `all`
    Embed,
    /// The nearest of many vectors against comparing all of them; not part of `all`
    Vectors,
    /// Appends, events and contexts over HTTP against the engine, and 10,000 subscribers; not part of `all`
    Serve {
        /// Instead: 64 and 256 clients of `everturn serve` that append, read and recall, against one; and the
        /// server's memory
        #[arg(long)]
        mixed: bool,
        /// Instead: appends to `everturn serve` against Redis Streams with appendfsync always; needs redis-server
        #[arg(long)]
        redis: bool,
        /// Instead: the requests of one tenant while another one attacks `everturn serve`, against a quiet server
        #[arg(long)]
        attacked: bool,
    },
    /// The store in PostgreSQL: appends of one and two nodes against plain inserts, pages and contexts of a long
    /// conversation against those of a short one, and recall; not part of `all`
    Postgres {
        /// A database of a server on this machine; the role must be allowed to create others
        #[arg(long, value_name = "postgres://…", env = "EVERTURN_TEST_POSTGRES")]
        url: String,
        /// Only the appends
        #[arg(long)]
        appends: bool,
        /// Instead: appends to two `everturn serve` with a part of a core each, against one; as root, on Linux
        #[arg(long)]
        servers: bool,
    },
    /// A call through `everturn record` against one without it; not part of `all`
    Record,
    /// The MCP server of `record`, started by it
    #[command(hide = true)]
    Echo,
    /// The attacker of `serve --attacked`, started by it
    #[command(hide = true)]
    Attacker { attack: String, address: std::net::SocketAddr, key: String, conversation: String },
    /// The subscribers of `serve`, started by it
    #[command(hide = true)]
    Readers { address: std::net::SocketAddr, conversation: String },
    /// Everything that needs a store, with the large one built once
    All,
}

#[derive(Clone, Copy)]
struct Scale {
    /// Number of turns of the long conversation.
    long: u64,
    /// Number of turns of the short conversation.
    short: u64,
    /// Number of turns of each store whose size is measured.
    sized: u64,
    /// Number of alternations between compared measurements.
    rounds: usize,
    /// Duration of one slice of appends.
    slice_ms: u64,
}

const FULL: Scale = Scale { long: 1_000_000, short: 1_000, sized: 20_000, rounds: 20, slice_ms: 400 };
const QUICK: Scale = Scale { long: 50_000, short: 1_000, sized: 4_000, rounds: 5, slice_ms: 200 };

/// The allocator of the shipped binary, so that the same code is measured.
#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting(mimalloc::MiMalloc);

fn main() -> ExitCode {
    #[cfg(feature = "bert")]
    everturn_bert::install();
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    if let What::Readers { address, conversation } = &args.what {
        return serve::read(*address, conversation);
    }
    if let What::Attacker { attack, address, key, conversation } = &args.what {
        return attacked::attack(attack, *address, key, conversation);
    }
    if let What::Echo = args.what {
        return record::echo();
    }
    let scale = if args.quick { QUICK } else { FULL };
    let place = Scratch::make(args.dir.as_deref())?;
    let mut rows = Vec::new();
    if let What::Append | What::All = args.what {
        done(&args.what, &mut rows, append::run(&place, scale)?);
    }
    if let What::Project { reference } = args.what {
        done(&args.what, &mut rows, project::run(reference, scale)?);
    }
    if let What::Import = args.what {
        done(&args.what, &mut rows, import::run(&place, args.quick)?);
    }
    if let What::Sessions { longhand } = args.what {
        done(&args.what, &mut rows, two_years::run(&place, args.quick, longhand)?);
    }
    if let What::RecallQuality { embedder, rerank, store, public } = &args.what {
        let open = |name: &String| name.parse::<everturn_engine::model::Embedder>()?.open_with(2);
        let (embedder, reranker) = (open(embedder)?, rerank.as_ref().map(open).transpose()?);
        done(&args.what, &mut rows, quality::run(&embedder, reranker.as_ref(), public, store)?);
    }
    if let What::CompactionQuality { explain } = args.what {
        done(&args.what, &mut rows, compaction_quality::run(explain)?);
    }
    if let What::Embed = args.what {
        done(&args.what, &mut rows, embed::run(scale)?);
    }
    if let What::Vectors = args.what {
        done(&args.what, &mut rows, vectors::run(scale)?);
    }
    if let What::Serve { mixed, redis, attacked } = args.what {
        if mixed {
            done(&args.what, &mut rows, mixed::run(&place, scale)?);
        }
        if redis {
            done(&args.what, &mut rows, redis::run(&place, scale)?);
        }
        if attacked {
            done(&args.what, &mut rows, attacked::run(&place, scale)?);
        }
        if !mixed && !redis && !attacked {
            done(&args.what, &mut rows, serve::run(&place, scale)?);
        }
    }
    if let What::Recall { turns, keep } = &args.what {
        done(&args.what, &mut rows, recall::run(&place, scale, *turns, keep.as_deref())?);
    }
    if let What::Postgres { url, appends, servers } = &args.what {
        let measured =
            if *servers { postgres::servers(url, scale)? } else { postgres::run(url, scale, *appends)? };
        done(&args.what, &mut rows, measured);
    }
    if let What::Record = args.what {
        done(&args.what, &mut rows, record::run(&place, scale)?);
    }
    if let What::Backup = args.what {
        done(&args.what, &mut rows, backup::run(&place, scale)?);
    }
    if let What::Size = args.what {
        done(&args.what, &mut rows, size::run(&place, scale, None)?);
    }
    if let What::Read | What::Open | What::Context | What::Change | What::All = args.what {
        let (short, long) = pair(&place, scale)?;
        if let What::Read | What::All = args.what {
            done(&args.what, &mut rows, read::run(&short, &long, scale)?);
        }
        if let What::Context | What::All = args.what {
            done(&args.what, &mut rows, context::run(&short, &long, scale)?);
        }
        if let What::Open | What::All = args.what {
            done(&args.what, &mut rows, open::run(&short, &long, scale)?);
        }
        if let What::All = args.what {
            done(&args.what, &mut rows, size::run(&place, scale, Some(&long))?);
        }
        // Last, because it changes the stores.
        if let What::Change | What::All = args.what {
            done(&args.what, &mut rows, change::run(&short, &long, scale)?);
        }
    }
    println!("{}\n", place.facts(args.quick));
    print!("{}", report::table(&rows));
    Ok(())
}

/// The stores that are read and opened, which differ only in length.
fn pair(place: &Scratch, scale: Scale) -> Result<(Filled, Filled)> {
    let short = corpus::fill(&place.store("short.db"), &Corpus::one(scale.short, 200))?;
    let long = corpus::fill(&place.store("long.db"), &Corpus::one(scale.long, 200))?;
    Ok((short, long))
}

/// Adds rows to the report, and prints them at once if the report comes much later.
fn done(what: &What, report: &mut Vec<Row>, rows: Vec<Row>) {
    if let What::All = what {
        eprintln!("\n{}", report::table(&rows));
    }
    report.extend(rows);
}
