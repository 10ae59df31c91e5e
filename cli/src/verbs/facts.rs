//! `everturn facts`

use crate::args::{Args, Model};
use crate::output::{self, Failure};
use crate::{model, open, show};
use clap::{Args as ClapArgs, Subcommand};
use everturn_api::facts::{AddFact, CorrectFact, ExtractFacts, ListFacts, RetractFact};
use everturn_core::fact::Fact;
use everturn_core::id::{ConversationId, FactId};
use everturn_engine::{Correction, ExtractOptions, Extraction, FactQuery, NewFact, Options};

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn facts @last\n  \
    everturn facts @last list --all --as-of 120\n  \
    everturn facts @last add Ana 'lives in' Lisbon\n  \
    everturn facts @last correct fact_01J9… --object Porto\n  \
    everturn facts @last retract fact_01J9… --reason 'never said'\n  \
    everturn facts @last extract --base-url http://localhost:8080/v1 --model qwen3")]
pub struct Facts {
    /// Conversation: id, beginning of an id, or @last
    #[arg(value_name = "CONV")]
    conversation: String,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Subcommand)]
enum Verb {
    /// List facts; the default
    #[command(after_help = "Examples:\n  \
        everturn facts @last list --all          (with those that were replaced or retracted)\n  \
        everturn facts @last list --as-of 120 --json")]
    List {
        /// As of this seq
        #[arg(long, value_name = "SEQ")]
        as_of: Option<u64>,
        /// Include superseded and retracted facts
        #[arg(long)]
        all: bool,
        /// Maximum number of facts
        #[arg(long, short, default_value_t = 50, value_name = "N")]
        limit: usize,
        /// Continue after a page: the `next` of the previous page
        #[arg(long, value_name = "NEXT")]
        after: Option<u64>,
    },
    /// Add a fact by hand
    #[command(after_help = "Examples:\n  \
        everturn facts @last add Ana 'lives in' Lisbon\n  \
        everturn facts @last add Ana 'lives in' Lisbon --confidence 0.8 --actor bob")]
    Add {
        /// Person or thing that it is about
        subject: String,
        /// Property or relation
        predicate: String,
        /// Value of the property, or target of the relation
        object: String,
        /// Confidence, from 0 to 1; 1 by default
        #[arg(long)]
        confidence: Option<f64>,
        /// Turn that supports it; erasing the turn erases the fact
        #[arg(long, value_name = "TURN")]
        source: Option<String>,
        /// Text of the turn that supports it
        #[arg(long, value_name = "TEXT", requires = "source")]
        quote: Option<String>,
        /// Actor that adds it
        #[arg(long)]
        actor: Option<String>,
    },
    /// Replace a fact with a corrected one
    Correct {
        /// Id of the fact
        #[arg(value_name = "FACT")]
        fact: String,
        /// Person or thing that it is about
        #[arg(long)]
        subject: Option<String>,
        /// Property or relation
        #[arg(long)]
        predicate: Option<String>,
        /// Value of the property, or target of the relation
        #[arg(long)]
        object: Option<String>,
        /// Confidence, from 0 to 1; 1 by default
        #[arg(long)]
        confidence: Option<f64>,
        /// Actor that corrects it
        #[arg(long)]
        actor: Option<String>,
    },
    /// Retract a fact
    Retract {
        /// Id of the fact
        #[arg(value_name = "FACT")]
        fact: String,
        /// Reason
        #[arg(long)]
        reason: Option<String>,
        /// Actor that retracts it
        #[arg(long)]
        actor: Option<String>,
    },
    /// Have a model read turns, and store the facts that they support
    Extract {
        /// First seq to read, including turns that were read before
        #[arg(long, value_name = "SEQ")]
        from: Option<u64>,
        /// Last seq to read
        #[arg(long, value_name = "SEQ")]
        to: Option<u64>,
        #[command(flatten)]
        model: Model,
    },
}

pub fn run(args: &Args, verb: &Facts) -> Result<(), Failure> {
    let conversation = verb.conversation.as_str();
    match &verb.verb {
        None => list(args, conversation, FactQuery::default()),
        Some(Verb::List { as_of, all, limit, after }) => {
            let query = FactQuery {
                as_of: *as_of,
                include_superseded: *all,
                include_retracted: *all,
                after: *after,
                limit: *limit,
            };
            list(args, conversation, query)
        }
        Some(Verb::Add { subject, predicate, object, confidence, source, quote, actor }) => {
            let store = open::writing(args)?;
            let new = NewFact {
                subject: subject.clone(),
                predicate: predicate.clone(),
                object: object.clone(),
                confidence: *confidence,
                source_turn: source.as_deref().map(|turn| store.turn(turn)).transpose()?,
                quote: quote.clone(),
                by: actor.clone(),
            };
            let conversation = store.resolve(conversation)?.into();
            one(args, &store.call(AddFact { conversation, new })?)
        }
        Some(Verb::Correct { fact, subject, predicate, object, confidence, actor }) => {
            let store = open::writing(args)?;
            let correction = Correction {
                subject: subject.clone(),
                predicate: predicate.clone(),
                object: object.clone(),
                confidence: *confidence,
                by: actor.clone(),
            };
            let fact: FactId = fact.parse()?;
            let conversation = Some(store.resolve(conversation)?.into());
            one(args, &store.call(CorrectFact { fact, conversation, correction })?)
        }
        Some(Verb::Retract { fact, reason, actor }) => {
            let store = open::writing(args)?;
            let fact: FactId = fact.parse()?;
            let conversation = Some(store.resolve(conversation)?.into());
            let retract = RetractFact { fact, conversation, by: actor.clone(), reason: reason.clone() };
            one(args, &store.call(retract)?)
        }
        Some(Verb::Extract { from, to, model }) => {
            let servers_own = "a server uses its own models, from its configuration";
            let options = Options { create: false, auto_compaction: false, ..open::options(args)? };
            let store = model::open(args, options, model, servers_own)?;
            let conversation = store.resolve(conversation)?.into();
            let options = ExtractOptions { from: *from, to: *to };
            let done = store.call(ExtractFacts { conversation, options })?;
            if args.json { output::json(&done) } else { extracted(&done) }
        }
    }
}

fn list(args: &Args, conversation: &str, query: FactQuery) -> Result<(), Failure> {
    let store = open::reading(args)?;
    let id: ConversationId = store.resolve(conversation)?;
    let mut flags = String::new();
    if query.include_superseded {
        flags += " --all";
    }
    if let Some(seq) = query.as_of {
        flags += &format!(" --as-of {seq}");
    }
    if query.limit != FactQuery::default().limit {
        flags += &format!(" --limit {}", query.limit);
    }
    let page = store.call(ListFacts { conversation: id.into(), query })?;
    if args.json {
        return output::json(&page);
    }
    page.data.iter().try_for_each(|fact| output::text(show::fact(fact)))?;
    match page.next {
        Some(seq) => {
            output::text(format!("more: everturn facts {id} list{flags}{} --after {seq}", args.again()))
        }
        None if page.data.is_empty() => {
            output::text("no facts; `everturn facts CONV add` adds one, `extract` has a model find some")
        }
        None => Ok(()),
    }
}

fn one(args: &Args, fact: &Fact) -> Result<(), Failure> {
    if args.json { output::json(fact) } else { output::text(show::fact(fact)) }
}

fn extracted(done: &Extraction) -> Result<(), Failure> {
    done.facts.iter().try_for_each(|fact| output::text(show::fact(fact)))?;
    let read = show::count(done.turns, "turn");
    let Some((from, to)) = done.from_seq.zip(done.to_seq) else {
        return output::text("everything was read before; --from 1 reads it again");
    };
    let dropped = match done.dropped.total() {
        0 => String::new(),
        _ => format!(
            "; dropped: {} without support in their turns, {} of no such turn, {} malformed, {} redacted, {} known",
            done.dropped.ungrounded,
            done.dropped.no_such_turn,
            done.dropped.malformed,
            done.dropped.redacted,
            done.dropped.known
        ),
    };
    output::text(format!(
        "{} read {read} ({}), kept {}{dropped}",
        done.model,
        show::range(from, to),
        show::count(done.facts.len() as u64, "fact")
    ))
}
