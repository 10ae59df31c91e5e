//! Tokens, time and cost of model calls, by day, model and conversation.
//!
//! Counted from the log on request. The counts of a conversation are kept in memory with their position, so that the next
//! request reads only new events.

use crate::everturn::Shared;
use crate::tenant::{ListQuery, Tenant};
use everturn_core::Error;
use everturn_core::conversation::Conversation;
use everturn_core::event::{Event, kind};
use everturn_core::id::{ConversationId, Key, TurnId};
use everturn_core::limits::PAGE_ENTRIES_MAX;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Successor, Tokens, Turn};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::ops::AddAssign;

const DAY_US: i64 = 86_400_000_000;

/// Most days of a request.
const DAYS_MAX: u64 = 3660;

/// Most conversations in an answer, and most that are remembered.
const LISTED_MAX: usize = 100;
const REMEMBERED_MAX: usize = 20_000;

/// Price of a model.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Price {
    /// Name of the model, as replies report it.
    pub model: String,
    /// Price of a million tokens of prompts.
    pub prompt: f64,
    /// Price of a million tokens of completions.
    pub completion: f64,
}

impl Price {
    /// Prices of a million tokens each.
    pub fn new(model: impl Into<String>, prompt: f64, completion: f64) -> Price {
        Price { model: model.into(), prompt, completion }
    }
}

/// Tokens and time that calls of models took.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Spent {
    /// Number of replies with token counts.
    pub calls: u64,
    /// Tokens of their prompts.
    pub prompt: u64,
    /// Tokens of their completions.
    pub completion: u64,
    /// Time that streamed replies took, in milliseconds.
    pub ms: u64,
    /// Cost at the configured prices; null where a model has none.
    pub cost: Option<f64>,
}

impl AddAssign for Spent {
    fn add_assign(&mut self, other: Spent) {
        self.calls += other.calls;
        self.prompt = self.prompt.saturating_add(other.prompt);
        self.completion = self.completion.saturating_add(other.completion);
        self.ms = self.ms.saturating_add(other.ms);
        self.cost = match (self.cost, other.cost) {
            (None, None) => None,
            (one, two) => Some(one.unwrap_or(0.0) + two.unwrap_or(0.0)),
        };
    }
}

/// Use of a model on a day.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct DayUsage {
    /// The day, UTC.
    #[schemars(example = &"2026-01-31")]
    pub day: String,
    /// The model; null where a reply does not name it.
    pub model: Option<String>,
    /// Tokens, time and cost.
    #[serde(flatten)]
    pub spent: Spent,
}

/// Use of models in a conversation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct ConversationUsage {
    /// The conversation.
    pub conversation: ConversationId,
    /// Its title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Tokens, time and cost.
    #[serde(flatten)]
    pub spent: Spent,
}

/// Use of models over a number of days.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct TokenUsage {
    /// The first day, UTC.
    pub from: String,
    /// The last day, UTC.
    pub through: String,
    /// By day and model, in order; days without calls are left out.
    pub days: Vec<DayUsage>,
    /// Conversations, the one with the most tokens first; at most 100.
    pub conversations: Vec<ConversationUsage>,
    /// The configured prices.
    pub prices: Vec<Price>,
}

/// Token counts of conversations, kept for the next request.
#[derive(Default)]
pub(crate) struct TokenCounts(Mutex<HashMap<Key, Counted>>);

#[derive(Clone)]
struct Counted {
    /// Distinguishes a conversation from a deleted one with the same id.
    created: Timestamp,
    /// `seq` of the last event that was read.
    through: u64,
    days: BTreeMap<(String, Option<String>), Spent>,
    /// Times at which turns were opened that are still open.
    open: HashMap<TurnId, Timestamp>,
}

/// Counts in the body of a turn.
#[derive(Deserialize)]
struct Reported {
    tokens: Option<Tokens>,
    model: Option<String>,
}

impl Counted {
    fn add(&mut self, event: &Event) {
        self.through = event.seq;
        let turn = event.turn.unwrap_or(TurnId(event.id.0));
        if event.kind == kind::OPENED {
            self.open.insert(turn, event.at);
            return;
        }
        if !kind::is_of_turn(&event.kind) {
            return;
        }
        let opened = self.open.remove(&turn);
        let Some(Reported { tokens: Some(tokens), model }) = event.read() else { return };
        let took = opened.map_or(0, |opened| event.at.0.saturating_sub(opened.0).max(0) / 1000);
        let day = day(event.occurred_at.unwrap_or(event.at));
        *self.days.entry((day, model)).or_default() += Spent {
            calls: 1,
            prompt: tokens.prompt.unwrap_or_default(),
            completion: tokens.completion.unwrap_or_default(),
            ms: took as u64,
            cost: None,
        };
    }

    /// Takes the tokens of a turn back that a later version of the same message replaced.
    fn remove(&mut self, turn: &Turn) {
        let Some(tokens) = turn.tokens else { return };
        let key = (day(turn.occurred_at.unwrap_or(turn.created)), turn.model.clone());
        let Some(spent) = self.days.get_mut(&key) else { return };
        spent.calls = spent.calls.saturating_sub(1);
        spent.prompt = spent.prompt.saturating_sub(tokens.prompt.unwrap_or_default());
        spent.completion = spent.completion.saturating_sub(tokens.completion.unwrap_or_default());
        if spent.calls == 0 {
            self.days.remove(&key);
        }
    }
}

/// The day of a time, UTC.
fn day(at: Timestamp) -> String {
    let text = at.to_string();
    text.split_once('T').map_or(text.clone(), |(day, _)| day.to_string())
}

impl Shared {
    /// Counts of a conversation's own events, brought up to date. Inherited ones belong to the conversation that they were
    /// written in.
    fn counted(&self, key: &Key, conversation: &Conversation) -> Result<Counted, Error> {
        let known = self.token_counts.0.lock().get(key).cloned();
        let known = known.filter(|known| known.created == conversation.created);
        let inherited = conversation.parent.map_or(0, |parent| parent.at_seq);
        let mut counted = known.unwrap_or_else(|| Counted {
            created: conversation.created,
            through: inherited,
            days: BTreeMap::new(),
            open: HashMap::new(),
        });
        if counted.through >= conversation.head.seq {
            return Ok(counted);
        }
        while counted.through < conversation.head.seq {
            let events = self.journal.log.events(key, counted.through, PAGE_ENTRIES_MAX)?;
            if events.is_empty() {
                break;
            }
            for event in &events {
                counted.add(event);
                if let Some(turn) = self.replaced(key, event)?.filter(|turn| turn.seq > inherited) {
                    counted.remove(&turn);
                }
            }
        }
        let mut all = self.token_counts.0.lock();
        if all.len() >= REMEMBERED_MAX && !all.contains_key(key) {
            all.clear();
        }
        all.insert(key.clone(), counted.clone());
        Ok(counted)
    }

    /// The turn that an event replaces by a later version of the same message.
    fn replaced(&self, key: &Key, event: &Event) -> Result<Option<Turn>, Error> {
        let Some(id) = event.turn.filter(|_| event.kind == kind::SUPERSEDED) else { return Ok(None) };
        let find = |id| match self.journal.index.turn_in(key, id) {
            Ok(turn) => Ok(Some(turn)),
            Err(Error::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        };
        let Some(turn) = find(id)? else { return Ok(None) };
        let Some(Successor::Turn(by)) = turn.superseded_by else { return Ok(None) };
        Ok(find(by)?.filter(|by| by.is_version_of(&turn)).map(|_| turn))
    }
}

impl Tenant {
    /// Tokens, time and cost of the last days, today included, of one conversation or of all. Takes time in proportion to
    /// the events that were not counted yet.
    pub fn token_usage(&self, days: u64, conversation: Option<ConversationId>) -> Result<TokenUsage, Error> {
        if !(1..=DAYS_MAX).contains(&days) {
            let text = format!("days is {days}; use a number from 1 to {DAYS_MAX}");
            return Err(Error::invalid("usage.days", text));
        }
        let now = self.shared().now();
        let start = Timestamp(now.0 - (days as i64 - 1) * DAY_US);
        let (from, through) = (day(start), day(now));
        let midnight = Timestamp(start.0 - start.0.rem_euclid(DAY_US));
        let prices = self.shared().options.prices.clone();
        let cost = |model: Option<&str>, spent: &Spent| {
            let price = prices.iter().find(|price| Some(price.model.as_str()) == model)?;
            Some((spent.prompt as f64 * price.prompt + spent.completion as f64 * price.completion) / 1e6)
        };
        let mut by_day: BTreeMap<(String, Option<String>), Spent> = BTreeMap::new();
        let mut conversations = Vec::new();
        let mut add = |one: &Conversation| -> Result<(), Error> {
            let counted = match self.shared().counted(&self.key(one.id), one) {
                Ok(counted) => counted,
                // Deleted meanwhile.
                Err(Error::NotFound(_)) => return Ok(()),
                // One damaged conversation does not hide the others; `doctor` names it.
                Err(Error::Corrupt(found)) if conversation.is_none() => {
                    tracing::warn!(error = %found.text, "a damaged conversation is not counted");
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let mut sum = Spent::default();
            let within = counted.days.into_iter().filter(|((day, _), _)| (&from..=&through).contains(&day));
            for ((day, model), mut spent) in within {
                spent.cost = cost(model.as_deref(), &spent);
                sum += spent;
                *by_day.entry((day, model)).or_default() += spent;
            }
            if sum.calls > 0 {
                conversations.push(ConversationUsage {
                    conversation: one.id,
                    title: one.title.clone(),
                    spent: sum,
                });
            }
            Ok(())
        };
        match conversation {
            Some(id) => add(&self.shared().journal.index.conversation(&self.key(id))?)?,
            None => {
                let mut query = ListQuery { limit: PAGE_ENTRIES_MAX, ..ListQuery::default() };
                loop {
                    let page = self.list(query.clone())?;
                    let recent = page.data.iter().take_while(|one| one.updated >= midnight);
                    let read = recent.map(&mut add).collect::<Result<Vec<()>, Error>>()?.len();
                    query.after = page.next;
                    if query.after.is_none() || read < page.data.len() {
                        break;
                    }
                }
            }
        }
        conversations.sort_by_key(|one| std::cmp::Reverse(one.spent.prompt + one.spent.completion));
        conversations.truncate(LISTED_MAX);
        let days = by_day.into_iter().map(|((day, model), spent)| DayUsage { day, model, spent }).collect();
        Ok(TokenUsage { from, through, days, conversations, prices })
    }
}
