//! How well the right turn is found: two sets of 320 questions, each with the one turn that answers it.
//!
//! Turns and questions are our own, and every run asks the same. The first set comes from texts and templates (`said`):
//! how rankings are joined was chosen on it. The second (`held_out`) was written sentence by sentence by someone who did not
//! know how they are joined, and nothing was chosen on it. Five kinds in each set, 64 questions each:
//!
//! - **paraphrase**: the question means its turn with few of its words;
//! - **identifier**: a name in code, as it is written, in another spelling, or as a path, among names that share a part;
//! - **decision**: what was chosen for something in one project, among other projects' choices for the same;
//! - **negation**: what must not be done, beside a turn that allows nearly the same;
//! - **scoped**: asked within one conversation, while fifteen others say the same of their own projects.
//!
//! What counts is whether the turn itself comes first (hit@1), is among the first ten (hit@10), and one over its place (MRR).

mod said;

use crate::Result;
use crate::report::Row;
use everturn_core::id::{ConversationId, TurnId};
use everturn_engine::model::Embed;
use everturn_engine::{AppendOptions, Everturn, NewTurn, Options, RecallMode, RecallOptions, Scope};
use said::{
    BANS, CHOICES, FAULTS, NOUNS, PARAPHRASES, PROJECTS, PURPOSES, REASONS, SETTINGS, SMALL_TALK, VERBS,
};
use serde::Deserialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the index may take to hold everything.
const PATIENCE: Duration = Duration::from_secs(600);
/// Conversations that what is said is spread over.
const CONVERSATIONS: usize = 40;

/// A second set, a pair on each line, written without looking at how rankings are joined and never used to choose it.
const HELD_OUT: &str = include_str!("quality/held_out.jsonl");

/// Something said, and what is asked for it; nothing, if it only distracts.
#[derive(Deserialize)]
struct Pair {
    class: &'static str,
    said: String,
    asked: Vec<String>,
    /// The conversation that it must be in and is asked within.
    only_in: Option<usize>,
}

/// A question with its answer.
struct Question {
    class: &'static str,
    text: String,
    answer: TurnId,
    within: Option<ConversationId>,
}

/// Asks everything by words, by meaning and by both.
pub fn run(embedder: Arc<dyn Embed>) -> Result<Vec<Row>> {
    let name = embedder.model().to_string();
    let mut rows = set("chosen on", pairs(), embedder.clone())?;
    rows.extend(set("held out", held_out_pairs()?, embedder)?);
    rows.push(Row::new("embedder", name, ""));
    Ok(rows)
}

fn set(set: &str, pairs: Vec<Pair>, embedder: Arc<dyn Embed>) -> Result<Vec<Row>> {
    let options = Options { embedder: Some(embedder), ..Options::default() };
    let store = Everturn::open_with("memory:", options)?;
    let scope = store.tenant("quality")?;
    let started = Instant::now();
    let (questions, turns) = say(&scope, pairs)?;
    store.index_now()?;
    let left = store.embed_now(PATIENCE)?;
    if left.vectors > 0 {
        return Err(format!("{} turns have no vector after {PATIENCE:?}", left.vectors).into());
    }
    eprintln!("  {turns} turns taken in within {:.1} s", started.elapsed().as_secs_f64());
    let mut rows = Vec::new();
    let mut classes: Vec<&str> = questions.iter().map(|question| question.class).collect();
    classes.dedup();
    for class in classes {
        let of_class: Vec<&Question> = questions.iter().filter(|question| question.class == class).collect();
        let [lexical, vector, hybrid] =
            [RecallMode::Lexical, RecallMode::Vector, RecallMode::Hybrid].map(|mode| {
                of_class.iter().map(|question| place(&scope, question, mode)).collect::<Result<Vec<_>>>()
            });
        let [lexical, vector, hybrid] = [Score::of(&lexical?), Score::of(&vector?), Score::of(&hybrid?)];
        let better = if lexical.mrr > vector.mrr { &lexical } else { &vector };
        let row = Row::new(
            format!("{set}: {class}, {} questions over {turns} turns: hit@1 / hit@10 / MRR", of_class.len()),
            format!("{} hybrid", hybrid.shown()),
            format!("{} words, {} meaning", lexical.shown(), vector.shown()),
        );
        rows.push(row.ratio(hybrid.mrr / better.mrr).at_least(1.0));
    }
    Ok(rows)
}

/// The place of the answer among the first ten, from 1.
fn place(scope: &Scope, question: &Question, mode: RecallMode) -> Result<Option<usize>> {
    let options =
        RecallOptions { conversation: question.within, mode, limit: 10, ..RecallOptions::default() };
    let recalled = scope.recall(&question.text, &options)?;
    if recalled.mode != mode {
        return Err(format!("asked for {mode}, got {}: {:?}", recalled.mode, recalled.note).into());
    }
    Ok(recalled.data.iter().position(|hit| hit.turn == Some(question.answer)).map(|at| at + 1))
}

struct Score {
    first: f64,
    ten: f64,
    mrr: f64,
}

impl Score {
    fn of(places: &[Option<usize>]) -> Score {
        let mean = |worth: &dyn Fn(usize) -> f64| {
            places.iter().flatten().map(|place| worth(*place)).sum::<f64>() / places.len() as f64
        };
        Score {
            first: mean(&|place| f64::from(u8::from(place == 1))),
            ten: mean(&|_| 1.0),
            mrr: mean(&|place| 1.0 / place as f64),
        }
    }

    fn shown(&self) -> String {
        format!("{:.2} / {:.2} / {:.2}", self.first, self.ten, self.mrr)
    }
}

/// Says everything, in conversations in which other things are said as well. Gives the questions by kind, and how many
/// turns there are.
fn say(scope: &Scope, pairs: Vec<Pair>) -> Result<(Vec<Question>, usize)> {
    let conversations = crate::corpus::begin(scope, CONVERSATIONS)?;
    let mut talk = SMALL_TALK.iter().cycle();
    let (mut questions, mut turns) = (Vec::new(), 0);
    for (number, pair) in pairs.into_iter().enumerate() {
        // Neighbours of one kind end up in different conversations.
        let id = conversations[pair.only_in.unwrap_or(number * 7 % CONVERSATIONS)];
        let batch = vec![
            NewTurn::user(talk.next().copied().unwrap_or_default()),
            NewTurn::assistant(&pair.said),
            NewTurn::user(talk.next().copied().unwrap_or_default()),
        ];
        turns += batch.len();
        let appended = scope.append(id, batch, AppendOptions::default()).wait()?;
        let answer = appended.turns.get(1).ok_or("an append tells its turns")?.id;
        let within = pair.only_in.map(|_| id);
        let question = |text| Question { class: pair.class, text, answer, within };
        questions.extend(pair.asked.into_iter().map(question));
    }
    questions.sort_by_key(|question| question.class);
    Ok((questions, turns))
}

fn held_out_pairs() -> Result<Vec<Pair>> {
    HELD_OUT.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn pairs() -> Vec<Pair> {
    let free = |class, said: String, asked: Vec<String>| Pair { class, said, asked, only_in: None };
    let mut pairs = Vec::new();
    for (said, asked) in PARAPHRASES {
        pairs.push(free("paraphrase", said.into(), vec![asked.into()]));
    }
    for (v, verb) in VERBS.iter().enumerate() {
        for (n, noun) in NOUNS.iter().enumerate() {
            let (number, fault) = (v * NOUNS.len() + n, FAULTS[(v + n) % FAULTS.len()]);
            let (snake, path) = (format!("{verb}_{noun}"), format!("src/{noun}/{verb}.rs"));
            let (camel, line) = (format!("{verb}{}{}", noun[..1].to_uppercase(), &noun[1..]), 10 + number);
            let asked = match number % 4 {
                0 | 1 => format!("what is wrong in {snake}?"),
                2 => format!("what is wrong in {camel}?"),
                _ => format!("what did we find in {path}?"),
            };
            let said = format!("The fault is in `{snake}` ({path}:{line}): it {fault}.");
            pairs.push(free("identifier", said, vec![asked]));
        }
    }
    for (p, ((purpose, later), choices)) in PURPOSES.iter().zip(CHOICES).enumerate() {
        for (c, choice) in choices.iter().enumerate() {
            let (project, reason) =
                (PROJECTS[(p + c * 5) % PROJECTS.len()], REASONS[(p + c * 3) % REASONS.len()]);
            let said = format!("We decided on {choice} for {purpose} in {project}, because {reason}.");
            pairs.push(free(
                "decision",
                said,
                vec![format!("{project}: what did we settle on for {later}?")],
            ));
        }
    }
    for (act, banned, allowed, question) in BANS {
        let asked = vec![question.to_string(), format!("is it allowed to {act} {banned}?")];
        pairs.push(free("negation", format!("You may {act} {allowed}, that is fine."), Vec::new()));
        pairs.push(free("negation", format!("Do not {act} {banned}."), asked));
    }
    for (p, project) in PROJECTS.iter().enumerate() {
        for (s, (said, asked)) in SETTINGS.iter().enumerate() {
            let said =
                said.replace("{project}", project).replace("{number}", &(20 + p * 37 + s * 11).to_string());
            pairs.push(Pair { class: "scoped", said, asked: vec![asked.to_string()], only_in: Some(p) });
        }
    }
    pairs
}
