//! Quality of lexical, embedding and hybrid recall.
//!
//! Three sets of our own, each question with the one turn that answers it. The first comes from texts and
//! templates (`said`): the ranking was tuned on it, and on half of LoCoMo. The second (`held_out`) was written
//! sentence by sentence by someone who did not know the ranking. Five kinds in each of these, 64 questions
//! each:
//!
//! - **paraphrase**: the question means its turn with few of its words;
//! - **identifier**: a name in code, as it is written, in another spelling, or as a path, among names that
//!   share a part;
//! - **decision**: what was chosen for something in one project, among other projects' choices for the same;
//! - **negation**: what must not be done, beside a turn that allows nearly the same;
//! - **scoped**: asked within one conversation, while fifteen others say the same of their own projects.
//!
//! The third (`languages`) is German, Spanish, Chinese and Japanese: there embeddings must not make lexical
//! results worse.
//!
//! Public sets are read from files (`public`). For every set, over the questions that have an answer:
//!
//! - **recall@5, recall@10**: the share of a question's answering turns among the first 5 and 10 hits;
//! - **session@1, session@5**: whether any of the first 1 or 5 different sessions of the hits has an answering
//!   turn (in our own sets, a session is a conversation);
//! - **MRR**: one over the rank of the first answering turn among the first 10.

mod public;
mod said;

use crate::Result;
use crate::report::Row;
use everturn_core::id::{ConversationId, TurnId};
use everturn_core::time::Timestamp;
use everturn_core::turn::Role;
use everturn_engine::model::Embed;
use everturn_engine::{Everturn, Hit, NewTurn, Options, RecallMode, RecallOptions, Tenant};
use said::{
    BANS, CHOICES, FAULTS, NOUNS, PARAPHRASES, PROJECTS, PURPOSES, REASONS, SETTINGS, SMALL_TALK, VERBS,
};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time until everything is indexed.
const PATIENCE: Duration = Duration::from_secs(600);
/// Number of conversations that turns are spread over.
const CONVERSATIONS: usize = 40;
/// Number of turns appended at once.
const BATCH_TURNS: usize = 500;
/// Number of hits whose sessions are counted.
const SESSION_HITS: usize = 50;
/// Allowed regression where there is no bar.
const SLACK: f64 = 0.01;

/// The second set, a pair on each line, written without knowledge of the ranking.
const HELD_OUT: &str = include_str!("quality/held_out.jsonl");
/// The third one, in other languages.
const LANGUAGES: &str = include_str!("quality/languages.jsonl");

/// Recall@10 and MRR of the second set with rankings combined by rank, as before they were combined by score.
const HELD_OUT_BEFORE: [(&str, f64, f64); 5] = [
    ("decision", 0.98, 0.91),
    ("identifier", 1.00, 0.99),
    ("negation", 0.95, 0.72),
    ("paraphrase", 0.61, 0.39),
    ("scoped", 0.94, 0.77),
];

/// Public sets, if available.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Public {
    /// LoCoMo: a file in the format of locomo10.json
    #[arg(long, value_name = "FILE")]
    locomo: Option<PathBuf>,
    /// BEAM: a folder of chats
    #[arg(long, value_name = "DIR")]
    beam: Option<PathBuf>,
}

/// A turn, and the question for it; none, if it only distracts.
#[derive(Deserialize)]
struct Pair {
    class: &'static str,
    said: String,
    asked: Vec<String>,
    /// The conversation that it must be in and is asked within.
    only_in: Option<usize>,
}

/// One turn of a set.
struct DialogueTurn {
    role: Role,
    actor: Option<String>,
    text: String,
    at: Option<Timestamp>,
    session: usize,
}

/// Turns by conversation, and questions.
struct Set {
    name: &'static str,
    conversations: Vec<Vec<DialogueTurn>>,
    questions: Vec<Question>,
}

/// A question with its answers. Conversations and turns are given by their index in the set.
struct Question {
    class: String,
    text: String,
    conversation: usize,
    answers: Vec<usize>,
    /// Whether it is asked within its conversation, or anywhere.
    within: bool,
}

impl Set {
    fn new(name: &'static str) -> Set {
        Set { name, conversations: Vec::new(), questions: Vec::new() }
    }

    fn say(&mut self, said: Vec<DialogueTurn>) -> usize {
        self.conversations.push(said);
        self.conversations.len() - 1
    }

    /// Adds a question that is asked within a conversation, if anything there answers it.
    fn ask(&mut self, class: &str, text: String, conversation: usize, answers: impl Iterator<Item = usize>) {
        let mut answers: Vec<usize> = answers.collect();
        answers.sort_unstable();
        answers.dedup();
        if !answers.is_empty() {
            self.questions.push(Question { class: class.into(), text, conversation, answers, within: true });
        }
    }

    /// Spreads pairs over conversations with other turns.
    fn of_pairs(name: &'static str, pairs: Vec<Pair>) -> Set {
        let mut set = Set::new(name);
        set.conversations.resize_with(CONVERSATIONS, Vec::new);
        let mut talk = SMALL_TALK.iter().cycle();
        for (number, Pair { class, said, asked, only_in }) in pairs.into_iter().enumerate() {
            // Neighbours of one kind end up in different conversations.
            let conversation = only_in.unwrap_or(number * 7 % CONVERSATIONS);
            let turns = &mut set.conversations[conversation];
            let answers = vec![turns.len() + 1];
            let small_talk =
                talk.next().zip(talk.next()).map_or(["", ""], |(before, behind)| [before, behind]);
            for (role, text) in
                [(Role::User, small_talk[0]), (Role::Assistant, said.as_str()), (Role::User, small_talk[1])]
            {
                turns.push(DialogueTurn { role, actor: None, text: text.into(), at: None, session: 0 });
            }
            set.questions.extend(asked.into_iter().map(|text| Question {
                class: class.into(),
                text,
                conversation,
                answers: answers.clone(),
                within: only_in.is_some(),
            }));
        }
        set
    }
}

/// Asks everything in lexical, embedding and hybrid mode.
pub fn run(
    embedder: &Arc<dyn Embed>,
    reranker: Option<&Arc<dyn Embed>>,
    public: &Public,
    store: &str,
) -> Result<Vec<Row>> {
    let mut sets = vec![
        Set::of_pairs("chosen on", pairs()),
        Set::of_pairs("held out", read_pairs(HELD_OUT)?),
        Set::of_pairs("languages", read_pairs(LANGUAGES)?),
    ];
    sets.extend(public.locomo.as_deref().map(public::locomo).transpose()?);
    sets.extend(public.beam.as_deref().map(public::beam).transpose()?);
    let mut rows = Vec::new();
    for set in sets {
        let options =
            Options { embedder: Some(embedder.clone()), reranker: reranker.cloned(), ..Options::default() };
        rows.extend(measured(set, store, options)?);
    }
    rows.push(Row::new("embedder", embedder.model(), ""));
    rows.extend(reranker.map(|reranker| Row::new("reranker", reranker.model(), "")));
    Ok(rows)
}

const MODES: [RecallMode; 3] = [RecallMode::Hybrid, RecallMode::Lexical, RecallMode::Vector];

fn measured(set: Set, store: &str, options: Options) -> Result<Vec<Row>> {
    let store = Everturn::open_with(store, options)?;
    // A tenant for each set: nothing of the others influences its results.
    let scope = store.tenant(&set.name.replace(' ', "-"))?;
    let started = Instant::now();
    let kept = Kept::keep(&scope, set.conversations)?;
    store.index_now()?;
    let left = store.embed_now(PATIENCE)?;
    if left.vectors > 0 {
        return Err(format!("{} turns have no vector after {PATIENCE:?}", left.vectors).into());
    }
    let turns = kept.sessions.len();
    eprintln!("  {}: {turns} turns taken in within {:.1} s", set.name, started.elapsed().as_secs_f64());
    let mut classes: BTreeMap<&str, [Vec<Score>; 3]> = BTreeMap::new();
    for question in &set.questions {
        for (number, mode) in MODES.into_iter().enumerate() {
            let score = kept.asked(&scope, question, mode)?;
            for class in [question.class.as_str(), ""] {
                classes.entry(class).or_default()[number].push(score);
            }
        }
    }
    let rows = classes.into_iter().map(|(class, scores)| {
        let [both, words, meaning] = scores.each_ref().map(|scores| Score::mean(scores));
        let what = if class.is_empty() { "all" } else { class };
        let row = Row::new(
            format!(
                "{}: {what}, {} questions over {turns} turns: recall@5 / recall@10 / session@1 / session@5 / MRR",
                set.name,
                scores[0].len()
            ),
            format!("{} both", both.shown()),
            format!("{} words, {} meaning", words.shown(), meaning.shown()),
        );
        barred(row, set.name, class, &both, &words)
    });
    Ok(rows.collect())
}

/// The row with its bar.
fn barred(row: Row, set: &str, class: &str, both: &Score, words: &Score) -> Row {
    let before = HELD_OUT_BEFORE.iter().find(|(name, ..)| *name == class && set == "held out");
    match (set, class, before) {
        ("LoCoMo", "", _) => {
            row.bar("recall@10 ≥ .72, session@5 ≥ .92", both.ten >= 0.72 && both.session_five >= 0.92)
        }
        ("held out", "paraphrase", Some((_, ten, mrr))) => row.bar(
            &format!("recall@10 ≥ .65, MRR ≥ {mrr} - {SLACK}"),
            both.ten >= ten.max(0.65) && both.mrr >= mrr - SLACK,
        ),
        (_, _, Some((_, ten, mrr))) => row.bar(
            &format!("recall@10 ≥ {ten} - {SLACK}, MRR ≥ {mrr} - {SLACK}"),
            both.ten >= ten - SLACK && both.mrr >= mrr - SLACK,
        ),
        ("languages", ..) => {
            row.bar("recall@10 and MRR ≥ those of words", both.ten >= words.ten && both.mrr >= words.mrr)
        }
        _ => row.bar("recall@10 ≥ that of words", both.ten >= words.ten),
    }
}

/// A set in a store.
struct Kept {
    conversations: Vec<(ConversationId, Vec<TurnId>)>,
    sessions: HashMap<TurnId, (usize, usize)>,
}

impl Kept {
    fn keep(scope: &Tenant, conversations: Vec<Vec<DialogueTurn>>) -> Result<Kept> {
        let ids = crate::corpus::begin(scope, conversations.len())?;
        let mut kept = Kept { conversations: Vec::new(), sessions: HashMap::new() };
        for (number, (id, said)) in ids.into_iter().zip(conversations).enumerate() {
            let mut turns = Vec::new();
            for batch in said.chunks(BATCH_TURNS) {
                let new = |said: &DialogueTurn| NewTurn {
                    actor: said.actor.clone(),
                    occurred_at: said.at,
                    ..NewTurn::text(said.role, &said.text)
                };
                let appended = scope.conversation(id).append_all(batch.iter().map(new)).wait()?;
                for (turn, said) in appended.turns.iter().zip(batch) {
                    turns.push(turn.id);
                    kept.sessions.insert(turn.id, (number, said.session));
                }
            }
            kept.conversations.push((id, turns));
        }
        Ok(kept)
    }

    fn asked(&self, scope: &Tenant, question: &Question, mode: RecallMode) -> Result<Score> {
        let (id, turns) = &self.conversations[question.conversation];
        let conversation = question.within.then_some(*id);
        let ask = |limit| -> Result<Vec<Hit>> {
            let options = RecallOptions { conversation, mode, limit, ..RecallOptions::default() };
            Ok(scope.recall(&question.text, &options)?.data)
        };
        let answers: Vec<TurnId> = question.answers.iter().map(|answer| turns[*answer]).collect();
        // Ten, the default limit.
        let hits: Vec<TurnId> = ask(10)?.into_iter().filter_map(|hit| hit.turn).collect();
        let among = |most: usize| {
            let found = answers.iter().filter(|answer| hits.iter().take(most).any(|hit| hit == *answer));
            found.count() as f64 / answers.len() as f64
        };
        let mut sessions = Vec::new();
        for session in ask(SESSION_HITS)?.iter().filter_map(|hit| self.sessions.get(&hit.turn?)) {
            if !sessions.contains(session) {
                sessions.push(*session);
            }
        }
        let session_among = |most: usize| {
            let mut answering = answers.iter().filter_map(|answer| self.sessions.get(answer));
            f64::from(u8::from(answering.any(|session| sessions.iter().take(most).any(|hit| hit == session))))
        };
        let first = hits.iter().position(|hit| answers.contains(hit));
        Ok(Score {
            five: among(5),
            ten: among(10),
            session_one: session_among(1),
            session_five: session_among(5),
            mrr: first.map_or(0.0, |place| 1.0 / (place + 1) as f64),
        })
    }
}

#[derive(Clone, Copy)]
struct Score {
    five: f64,
    ten: f64,
    session_one: f64,
    session_five: f64,
    mrr: f64,
}

impl Score {
    fn mean(scores: &[Score]) -> Score {
        let mean = |part: fn(&Score) -> f64| scores.iter().map(part).sum::<f64>() / scores.len() as f64;
        Score {
            five: mean(|score| score.five),
            ten: mean(|score| score.ten),
            session_one: mean(|score| score.session_one),
            session_five: mean(|score| score.session_five),
            mrr: mean(|score| score.mrr),
        }
    }

    fn shown(&self) -> String {
        let Score { five, ten, session_one, session_five, mrr } = self;
        format!("{five:.3} / {ten:.3} / {session_one:.3} / {session_five:.3} / {mrr:.3}")
    }
}

fn read_pairs(lines: &'static str) -> Result<Vec<Pair>> {
    lines.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
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
