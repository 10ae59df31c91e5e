//! `everturn facts`

use super::compact::client;
use crate::args::{Args, Facts, FactsVerb};
use crate::output::{self, Failure};
use crate::{open, show};
use clap::parser::ValueSource;
use everturn_core::Error;
use everturn_core::fact::Fact;
use everturn_core::id::{ConversationId, FactId};
use everturn_engine::model::Summarizer;
use everturn_engine::{Correction, ExtractOptions, Extraction, FactQuery, NewFact, Options};
use std::collections::BTreeMap;
use std::sync::Arc;

pub fn run(args: &Args, verb: &Facts) -> Result<(), Failure> {
    let conversation = verb.conversation.as_str();
    match &verb.verb {
        None => list(args, conversation, FactQuery::default()),
        Some(FactsVerb::List { as_of, all, limit, after }) => {
            let query = FactQuery {
                as_of: *as_of,
                include_superseded: *all,
                include_retracted: *all,
                after: *after,
                limit: *limit,
            };
            list(args, conversation, query)
        }
        Some(FactsVerb::Add { subject, predicate, object, confidence, source, quote, actor }) => {
            let store = open::writing(args)?;
            let new = NewFact {
                subject: subject.clone(),
                predicate: predicate.clone(),
                object: object.clone(),
                confidence: *confidence,
                source_turn: source.as_deref().map(str::parse).transpose()?,
                quote: quote.clone(),
                by: actor.clone(),
            };
            one(args, &store.add_fact(store.resolve(conversation)?, new)?)
        }
        Some(FactsVerb::Correct { fact, subject, predicate, object, confidence, actor }) => {
            let store = open::writing(args)?;
            let correction = Correction {
                subject: subject.clone(),
                predicate: predicate.clone(),
                object: object.clone(),
                confidence: *confidence,
                by: actor.clone(),
            };
            let fact: FactId = fact.parse()?;
            one(args, &store.correct_fact(store.resolve(conversation)?, fact, correction)?)
        }
        Some(FactsVerb::Retract { fact, reason, actor }) => {
            let store = open::writing(args)?;
            let fact: FactId = fact.parse()?;
            let id = store.resolve(conversation)?;
            one(args, &store.retract_fact(id, fact, actor.clone(), reason.clone())?)
        }
        Some(FactsVerb::Extract { from, to, model }) => {
            let remote = open::server(args)?.is_some();
            if remote && args.sources.base_url == Some(ValueSource::CommandLine) {
                let text = "a server lets its own models read, as its settings say; leave --base-url out";
                return Err(Error::invalid("url.model", text).into());
            }
            let mut options = Options { auto_compaction: false, ..Options::default() };
            if let Some(url) = model.base_url.as_deref().filter(|_| !remote) {
                let client = client(url, model.model.as_deref(), model.speaks, model.api_key_env.as_deref())?;
                options.summarizers =
                    BTreeMap::from([("default".to_string(), Arc::new(Summarizer::new(client)) as _)]);
            }
            let store = open::with(args, options)?;
            let extract = ExtractOptions { from: *from, to: *to };
            let done = store.extract_facts(store.resolve(conversation)?, extract)?;
            if args.json { output::json(&done) } else { extracted(&done) }
        }
    }
}

fn list(args: &Args, conversation: &str, query: FactQuery) -> Result<(), Failure> {
    let store = open::reading(args)?;
    let id: ConversationId = store.resolve(conversation)?;
    let page = store.facts(id, query)?;
    if args.json {
        return output::json_list(&page.data, page.next.map(|seq| seq.to_string()));
    }
    page.data.iter().try_for_each(|fact| output::text(show::fact(fact)))?;
    match page.next {
        Some(seq) => output::text(format!("more: everturn facts {id} list --after {seq}")),
        None if page.data.is_empty() => {
            output::text("no facts; `everturn facts CONV add` adds one, `extract` lets a model find some")
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
        "{} read {read} (#{from} to #{to}), kept {}{dropped}",
        done.model,
        show::count(done.facts.len() as u64, "fact")
    ))
}
