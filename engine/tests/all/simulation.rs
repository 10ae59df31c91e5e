//! Random work on two backends at once, compared with each other and with a plain model.
//!
//! Both stores live in the same still world, so the same work must give the same ids, the same answers and the same
//! hashes. A step that one store answers differently, or that the model did not expect, ends the run with its seed.

mod reading;

use crate::dice::{Dice, ToldOnFailure, rounds, seed};
use crate::model::{ACTIVE, Model, Refused, Said, Talk};
use crate::stage::{PATIENCE, START, Stage, Still, words};
use everturn_core::conversation::{Conversation, Settings, fork_title};
use everturn_core::event::Event;
use everturn_core::id::{ConversationId, TurnId};
use everturn_core::json::Raw;
use everturn_core::time::Timestamp;
use everturn_core::turn::{Role, Turn};
use everturn_engine::{
    AppendOptions, Change, Error, Everturn, Format, HistoryEntry, HistoryQuery, Lifecycle, ListQuery,
    NewConversation, NewStream, NewTurn, Order, Tenant, Update,
};
use serde::Serialize;
use std::sync::Arc;

const SEEDS: u64 = 2;
const STEPS: usize = 700;
const STEPS_BETWEEN_FULL_CHECKS: usize = 70;
const CONVERSATIONS_MAX: usize = 12;

#[test]
fn both_backends_do_what_a_plain_model_does_whatever_is_asked_of_them() {
    let first = seed(1);
    // A run that is repeated is that one only.
    let seeds = if std::env::var("EVERTURN_SEED").is_ok() { 1 } else { rounds(SEEDS) };
    for seed in first..first + seeds {
        let _told = ToldOnFailure(seed);
        let mut run = Run::new(seed);
        for step in 1..=STEPS {
            run.step();
            if step % STEPS_BETWEEN_FULL_CHECKS == 0 {
                run.compare_everything();
            }
        }
        run.compare_everything();
        for scope in [&run.memory.1, &run.sqlite.1] {
            assert_eq!(scope.doctor(&mut |_| {}).unwrap().findings, []);
        }
    }
}

struct Run {
    dice: Dice,
    stage: Stage,
    clocks: [Arc<Still>; 2],
    now: i64,
    latest: i64,
    memory: (Everturn, Tenant),
    sqlite: (Everturn, Tenant),
    model: Model,
    count: u64,
    mirrors: u64,
}

/// An answer as text, to be compared whole.
fn shown<T: Serialize>(answer: &Result<T, Error>) -> String {
    match answer {
        Ok(value) => serde_json::to_string(value).unwrap(),
        Err(error) => format!("{error:?}"),
    }
}

impl Run {
    fn new(seed: u64) -> Run {
        let stage = Stage::new();
        let clocks = [Still::new(seed), Still::new(seed)];
        let memory = Everturn::open_with("memory:", clocks[0].options()).unwrap();
        let sqlite = stage.open_with(clocks[1].options());
        Run {
            dice: Dice::new(seed),
            stage,
            now: START.0,
            latest: START.0,
            memory: (memory.clone(), memory.tenant("acme").unwrap()),
            sqlite: (sqlite.clone(), sqlite.tenant("acme").unwrap()),
            clocks,
            model: Model::default(),
            count: 0,
            mirrors: 0,
        }
    }

    /// Asks both stores. They must answer alike.
    #[track_caller]
    fn both<T: Serialize>(&self, ask: impl Fn(&Tenant) -> Result<T, Error>) -> Result<T, Error> {
        let (memory, sqlite) = (ask(&self.memory.1), ask(&self.sqlite.1));
        assert_eq!(shown(&memory), shown(&sqlite), "memory and SQLite answer differently");
        sqlite
    }

    /// Asks both stores for something that the model has an opinion on.
    #[track_caller]
    fn expect<T: Serialize>(
        &self,
        expected: Result<(), Refused>,
        ask: impl Fn(&Tenant) -> Result<T, Error>,
    ) -> Option<T> {
        match (self.both(ask), expected) {
            (Ok(value), Ok(())) => Some(value),
            (Err(error), Err(code)) => {
                assert_eq!(error.code(), code, "{error}");
                None
            }
            (Ok(_), Err(code)) => panic!("the model refuses with {code}, the stores accept"),
            (Err(error), Ok(())) => panic!("the model accepts, the stores refuse: {error:?}"),
        }
    }

    fn set_clock(&mut self, to: i64) {
        self.now = to;
        self.latest = self.latest.max(to);
        self.clocks.iter().for_each(|clock| clock.set(Timestamp(to)));
    }

    fn words(&mut self) -> String {
        self.count += 1;
        let extra = ["", " \"quoted\"", " ünï\u{1F600}", "\nline", " \u{7}"];
        format!("word {}{}", self.count, self.dice.pick(&extra))
    }

    fn some(&mut self) -> Option<ConversationId> {
        let ids: Vec<ConversationId> = self.model.conversations.keys().copied().collect();
        if ids.is_empty() { None } else { Some(*self.dice.pick(&ids)) }
    }

    fn some_turn(&mut self, id: ConversationId) -> Option<TurnId> {
        let said = &self.model.conversations[&id].said;
        if said.is_empty() { None } else { Some(said[self.dice.roll(said.len())].id) }
    }

    fn talk(&mut self, id: ConversationId) -> &mut Talk {
        self.model.conversations.get_mut(&id).unwrap()
    }

    fn step(&mut self) {
        let moved = match self.dice.roll(20) {
            0 => -(self.dice.roll(3_600_000_000) as i64),
            _ => self.dice.roll(5_000_000) as i64,
        };
        self.set_clock(self.now + moved);
        let Some(id) = self.some() else { return self.create() };
        match self.dice.roll(40) {
            0 | 1 => self.create(),
            2 | 3 => self.update(id),
            4 => self.change_state(id),
            5..=12 => self.append(id),
            13 | 14 => self.open(id),
            15..=18 => self.chunk(id),
            19 | 20 => self.end(id),
            21 | 22 => self.supersede(id),
            23 | 24 => self.fork(id),
            25 | 26 => self.erase(id),
            27 => self.delete(id),
            28..=31 => self.history(id),
            32 | 33 => self.events(id),
            34 => self.subscribe(id),
            35 => self.reset(id),
            36 => self.mirror(id),
            37 => self.list(),
            38 if self.dice.once_in(3) => self.reopen(),
            38 => self.rebuild(),
            _ => self.ask_for_what_is_not_there(id),
        }
    }

    /// After a write: the log grew by these kinds, and the verifier agrees. Gives the new events.
    #[track_caller]
    fn wrote(&mut self, id: ConversationId, kinds: &[&str]) -> Vec<Event> {
        let (before, now) = (self.model.conversations[&id].head(), self.now);
        let events = self.both(|scope| scope.conversation(id).log().read(before, 1000)).unwrap();
        let written: Vec<&str> = events.iter().map(|event| event.kind.as_str()).collect();
        assert_eq!(written, kinds, "what {id} got");
        self.talk(id).write(id, kinds, now);
        events
    }

    /// After a step that must not have written anything.
    #[track_caller]
    fn wrote_nothing(&self, id: ConversationId) {
        let head = self.model.conversations[&id].head();
        assert_eq!(self.both(|scope| scope.conversation(id).get()).unwrap().head.seq, head, "{id} grew");
    }

    fn create(&mut self) {
        if self.model.conversations.len() >= CONVERSATIONS_MAX {
            return;
        }
        let (title, prompt) = (self.words(), self.words());
        let (title, prompt) =
            (Some(title).filter(|_| self.dice.once_in(2)), Some(prompt).filter(|_| self.dice.once_in(2)));
        let mut settings = Settings { title: title.clone().map(Some), ..Settings::default() };
        if let Some(prompt) = &prompt {
            settings.metadata.insert("system_prompt".into(), Raw::of(prompt).unwrap());
        }
        let new = NewConversation { settings, ..NewConversation::default() };
        let created = self.expect(Ok(()), |scope| scope.create(new.clone()).wait()?.get()).unwrap();
        let talk =
            Talk { state: ACTIVE, title, created: self.now, prompt: prompt.clone(), ..Talk::default() };
        self.model.conversations.insert(created.id, talk);
        match prompt {
            Some(_) => self.wrote(created.id, &["system_prompt", "conversation.created"]),
            None => self.wrote(created.id, &["conversation.created"]),
        };
    }

    fn update(&mut self, id: ConversationId) {
        let old = self.model.conversations[&id].clone();
        let mut talk = old.clone();
        let mut settings = Settings::default();
        let mut kinds = Vec::new();
        if self.dice.once_in(2) {
            let words = self.words();
            talk.title = [Some(words), old.title.clone(), None][self.dice.roll(3)].clone();
            settings.title = Some(talk.title.clone());
        }
        if self.dice.once_in(2) {
            let key = format!("k{}", self.dice.roll(3));
            let value = [None, Some("1".to_string()), Some("\"two\"".to_string())][self.dice.roll(3)].clone();
            let raw = value.clone().unwrap_or("null".into());
            settings.metadata.insert(key.clone(), Raw::new(raw).unwrap());
            match value {
                Some(value) => drop(talk.metadata.insert(key, value)),
                None => drop(talk.metadata.remove(&key)),
            }
        }
        if self.dice.once_in(3) {
            let words = self.words();
            let prompt = if self.dice.once_in(2) { old.prompt.clone().unwrap_or(words) } else { words };
            settings.metadata.insert("system_prompt".into(), Raw::of(&prompt).unwrap());
            talk.prompt = Some(prompt);
        }
        if talk.prompt != old.prompt {
            kinds.push("system_prompt");
        }
        if talk.prompt != old.prompt || talk.title != old.title || talk.metadata != old.metadata {
            kinds.push("conversation.updated");
        }
        // A prompt is said in an event of its own, which only an active conversation takes.
        let expected = if kinds.len() == 2 { old.takes_turns() } else { Ok(()) };
        if self.expect(expected, |scope| scope.conversation(id).update(settings.clone()).wait()).is_some() {
            self.model.conversations.insert(id, talk);
            self.wrote(id, &kinds);
        } else {
            self.wrote_nothing(id);
        }
    }

    fn change_state(&mut self, id: ConversationId) {
        let to = match self.dice.roll(8) {
            0..=3 => ACTIVE,
            4 | 5 => "archived",
            6 => "abandoned",
            _ => "closed",
        };
        let now = self.talk(id).state;
        let expected = if now == "closed" && to != now { Err("conversation.not_active") } else { Ok(()) };
        let answer = self.expect(expected, |scope| match to {
            ACTIVE => scope.conversation(id).update(Lifecycle::Active).wait(),
            "archived" => scope.conversation(id).update(Lifecycle::Archived).wait(),
            "abandoned" => scope
                .conversation(id)
                .update(Change {
                    state: Some(Lifecycle::Abandoned),
                    reason: Some("tired".into()),
                    ..Change::default()
                })
                .wait(),
            _ => scope.conversation(id).update(Lifecycle::Closed).wait(),
        });
        if answer.is_some() && to != now {
            self.talk(id).state = to;
            self.wrote(id, &["conversation.state"]);
        }
    }

    fn new_turn(&mut self) -> (NewTurn, Said) {
        let text = self.words();
        let role = *self.dice.pick(&[Role::User, Role::Assistant, Role::Tool, Role::System]);
        let actor = [None, Some("ann".to_string()), Some("bob".to_string())][self.dice.roll(3)].clone();
        let said = Said {
            id: "turn_00000000000000000000000000".parse().unwrap(),
            seq: 0,
            actor: actor.clone(),
            role: role.as_str(),
            status: "complete",
            text: Some(text.clone()),
            open: None,
            content: 0,
            by: None,
            place: 0,
            placed: None,
        };
        (NewTurn { actor, ..NewTurn::text(role, &text) }, said)
    }

    fn append(&mut self, id: ConversationId) {
        let (mut turns, mut said): (Vec<NewTurn>, Vec<Said>) =
            (0..1 + self.dice.roll(4)).map(|_| self.new_turn()).unzip();
        let head = self.talk(id).head();
        let expected_seq =
            [None, None, Some(head), Some(head + 3), Some(head.saturating_sub(1))][self.dice.roll(5)];
        let key = [None, None, Some(format!("key{}", self.dice.roll(4)))][self.dice.roll(3)].clone();
        // Now and then the very same request again.
        let before = key.as_ref().and_then(|key| self.talk(id).requests.get(key).cloned());
        if let Some((sent, ..)) = before.filter(|_| self.dice.once_in(2)) {
            turns = serde_json::from_str::<Vec<(String, Option<String>)>>(&sent)
                .unwrap()
                .into_iter()
                .map(|(message, actor)| NewTurn { actor, ..NewTurn::message(message) })
                .collect();
            said.clear();
        }
        let sent: Vec<(&str, &Option<String>)> =
            turns.iter().map(|t| (t.message.as_str(), &t.actor)).collect();
        let sent = serde_json::to_string(&sent).unwrap();

        let talk = &self.model.conversations[&id];
        let repeated = talk.repeated(key.as_ref(), &sent, &self.model.erased);
        let expected = match &repeated {
            Some(answer) => answer.as_ref().map(drop).map_err(|code| *code),
            None if expected_seq.is_some_and(|seq| seq != head) => Err("append.stale_seq"),
            None => talk.takes_turns(),
        };
        let options = AppendOptions { expected_seq, idempotency_key: key.clone() };
        let answer = self.expect(expected, |scope| {
            scope.conversation(id).append_all(turns.clone()).with(options.clone()).wait()
        });
        let Some(appended) = answer else { return self.wrote_nothing(id) };
        assert_eq!(appended.repeated, repeated.is_some());
        let ids: Vec<TurnId> = appended.turns.iter().map(|turn| turn.id).collect();
        if let Some(Ok(first)) = repeated {
            assert_eq!(ids, first, "a repeated key gives the first answer");
            return self.wrote_nothing(id);
        }
        let kinds: Vec<&str> =
            said.iter().map(|said| if said.role == "tool" { "tool_result" } else { "message" }).collect();
        self.wrote(id, &kinds);
        for (n, mut said) in said.into_iter().enumerate() {
            let seq = head + 1 + n as u64;
            (said.id, said.seq, said.content, said.place) = (ids[n], seq, seq, seq);
            self.talk(id).join(&said.actor);
            self.talk(id).said.push(said);
        }
        if let Some(key) = key {
            self.talk(id).requests.insert(key, (sent, head + 1, ids));
        }
    }

    fn open(&mut self, id: ConversationId) {
        let actor = [None, Some("model".to_string())][self.dice.roll(2)].clone();
        let new = NewStream { actor: actor.clone(), ..NewStream::default() };
        let expected = self.talk(id).takes_turns();
        let Some(turn) = self.expect(expected, |scope| scope.conversation(id).open(new.clone()).wait())
        else {
            return self.wrote_nothing(id);
        };
        self.wrote(id, &["turn.opened"]);
        let seq = self.talk(id).head();
        let said = Said {
            id: turn.id,
            seq,
            actor: actor.clone(),
            role: "assistant",
            status: "pending",
            text: None,
            open: Some(String::new()),
            content: seq,
            by: None,
            place: seq,
            placed: None,
        };
        self.talk(id).join(&actor);
        self.talk(id).said.push(said);
    }

    /// Mostly an open turn, sometimes any.
    fn turn_to_end(&mut self, id: ConversationId) -> Option<TurnId> {
        let open: Vec<TurnId> =
            self.talk(id).said.iter().filter(|said| said.open.is_some()).map(|said| said.id).collect();
        if open.is_empty() || self.dice.once_in(6) {
            self.some_turn(id)
        } else {
            Some(*self.dice.pick(&open))
        }
    }

    fn chunk(&mut self, id: ConversationId) {
        let Some(turn) = self.turn_to_end(id) else { return };
        let words = self.words();
        let Some(so_far) = self.talk(id).turn(turn).unwrap().open.clone() else {
            self.expect(Err("turn.not_open"), |scope| {
                scope.conversation(id).open_turn(turn).chunk(None, &words)
            });
            return;
        };
        let length = so_far.len() as u64;
        // At the end, said so or not; the last words again with something new; beyond the end; something else.
        let (offset, delta, expected) = match self.dice.roll(5) {
            0 => (None, words.clone(), Ok(so_far.clone() + words.as_str())),
            1 => (Some(length), words.clone(), Ok(so_far.clone() + words.as_str())),
            2 => {
                let at =
                    (0..=so_far.len()).rev().filter(|at| so_far.is_char_boundary(*at)).nth(3).unwrap_or(0);
                (Some(at as u64), format!("{}{words}", &so_far[at..]), Ok(so_far.clone() + words.as_str()))
            }
            3 => (Some(length + 1), words.clone(), Err("chunk.offset")),
            _ if so_far.is_empty() => (Some(0), String::new(), Ok(String::new())),
            _ => (Some(0), "\u{0}".to_string(), Err("chunk.offset")),
        };
        let answer = self.expect(expected.as_ref().map(drop).map_err(|code| *code), |scope| {
            scope.conversation(id).open_turn(turn).chunk(offset, &delta)
        });
        if let (Some(length), Ok(text)) = (answer, expected) {
            assert_eq!(length, text.len() as u64);
            self.talk(id).turn(turn).unwrap().open = Some(text);
        }
        self.wrote_nothing(id);
    }

    fn end(&mut self, id: ConversationId) {
        let Some(turn) = self.turn_to_end(id) else { return };
        let said = self.talk(id).turn(turn).unwrap().clone();
        let expected = if said.open.is_some() { Ok(()) } else { Err("turn.not_open") };
        let text = self.words();
        let (status, kinds, words): (_, &[&str], _) = match self.dice.roll(4) {
            0 => ("complete", &["turn.committed"], Some(text)),
            1 => ("complete", &["turn.committed"], None),
            2 => ("aborted", &["turn.aborted"], None),
            _ => ("aborted", &["turn.aborted", "turn.superseded"], None),
        };
        let replacement = self.some_turn(id).filter(|by| kinds.len() == 2 && *by != turn);
        let kinds = &kinds[..1 + usize::from(replacement.is_some())];
        // Ending a turn is always possible; naming what replaces it is a change of its own.
        let expected =
            expected.and_then(|()| if replacement.is_some() { self.talk(id).takes_turns() } else { Ok(()) });
        let ended = self.expect(expected, |scope| match (status, &words) {
            ("aborted", _) => scope.conversation(id).open_turn(turn).abort("enough", replacement).wait(),
            (_, Some(words)) => {
                scope.conversation(id).open_turn(turn).commit(NewTurn::assistant(words)).wait()
            }
            (_, None) => scope.conversation(id).open_turn(turn).commit(NewTurn::default()).wait(),
        });
        if ended.is_none() {
            return self.wrote_nothing(id);
        }
        let events = self.wrote(id, kinds);
        let (abort, first) = (events[0].id, events[0].seq);
        let said = self.talk(id).turn(turn).unwrap();
        said.text = words.or(said.open.clone());
        (said.open, said.status, said.content) = (None, status, first);
        if status == "aborted" {
            said.by = Some((abort.to_string(), first));
        }
        if let Some(by) = replacement {
            self.talk(id).replace(turn, by, first + 1);
        }
    }

    fn supersede(&mut self, id: ConversationId) {
        let Some(turn) = self.some_turn(id) else { return };
        let (new, mut said) = self.new_turn();
        let old = self.talk(id).turn(turn).unwrap().clone();
        let expected = self.talk(id).takes_turns().and_then(|()| match &old.by {
            Some((by, _)) if by.starts_with("turn_") => Err("turn.superseded"),
            _ if old.open.is_some() => Err("turn.open"),
            _ => Ok(()),
        });
        let answer =
            self.expect(expected, |scope| scope.conversation(id).supersede(turn, new.clone()).wait());
        let Some(appended) = answer else { return self.wrote_nothing(id) };
        let kind = if said.role == "tool" { "tool_result" } else { "message" };
        self.wrote(id, &[kind, "turn.superseded"]);
        let head = self.talk(id).head();
        (said.id, said.seq, said.content, said.place) = (appended.turns[0].id, head - 1, head - 1, head - 1);
        // An edit is by the author of the turn, unless it names another.
        said.actor = said.actor.or(old.actor);
        let by = said.id;
        self.talk(id).join(&said.actor);
        self.talk(id).said.push(said);
        self.talk(id).replace(turn, by, head);
    }

    fn fork(&mut self, id: ConversationId) {
        if self.model.conversations.len() >= CONVERSATIONS_MAX {
            return;
        }
        let head = self.talk(id).head();
        let at = self.dice.roll(head as usize + 2) as u64;
        let expected = if (1..=head).contains(&at) { Ok(()) } else { Err("seq.out_of_range") };
        // The fork would copy the text so far, which this model does not know: see `lifecycle`.
        let is_said = |said: &Said| said.seq <= at && said.open.as_ref().is_some_and(|text| !text.is_empty());
        if self.talk(id).said.iter().any(is_said) {
            return;
        }
        let Some(fork) = self.expect(expected, |scope| scope.conversation(id).fork(at).wait()?.get()) else {
            return;
        };
        let mut talk = self.talk(id).as_of(at);
        // Within what it inherited itself, a fork is one of the ancestor's, as long as that is there.
        let mut parent = id;
        while let Some((above, left)) = self.model.conversations[&parent].parent
            && at <= left
            && self.model.conversations.contains_key(&above)
        {
            parent = above;
        }
        (talk.parent, talk.created, talk.updated) = (Some((parent, at)), self.now, self.now);
        talk.title = talk.title.map(|title| fork_title(&title, at));
        // Its title is in an event of its own, so that it can be erased without the rest.
        let kinds = ["conversation.forked", "conversation.updated"];
        let count = if talk.title.is_some() { 2 } else { 1 };
        self.model.conversations.insert(fork.id, talk);
        self.model.parents.insert(fork.id, parent);
        self.wrote(fork.id, &kinds[..count]);
        self.compare(fork.id);
    }

    fn erase(&mut self, id: ConversationId) {
        let Some(turn) = self.some_turn(id) else { return };
        let talk = &self.model.conversations[&id];
        let said = talk.said.iter().find(|said| said.id == turn).unwrap();
        let (open, before) = (said.open.is_some(), self.model.is_erased(talk, said));
        let expected = if open { Err("turn.open") } else { Ok(()) };
        let answer = self.expect(expected, |scope| {
            scope.conversation(id).erase(turn, Some("ann".into()), "asked for").wait()
        });
        // What was erased before is not recorded again.
        if answer.is_some() && !before {
            self.model.erase(id, turn);
            self.wrote(id, &["turn.erased"]);
        }
    }

    fn delete(&mut self, id: ConversationId) {
        let gone =
            self.expect(Ok(()), |scope| scope.conversation(id).delete("no longer needed").wait()).unwrap();
        self.model.delete(id);
        assert_eq!((gone.id, gone.head.seq), self.model.tombstones[0]);
        self.expect::<Conversation>(Err("conversation.absent"), |scope| scope.conversation(id).get());
        let mut kept = self.both(|scope| {
            let mut all = scope.tombstones()?;
            all.sort_by_key(|tombstone| tombstone.id);
            Ok(all)
        });
        let kept: Vec<_> = kept.as_mut().unwrap().iter().map(|t| (t.id, t.head.seq)).collect();
        let mut expected = self.model.tombstones.clone();
        expected.sort();
        assert_eq!(kept, expected);
    }

    fn reset(&mut self, id: ConversationId) {
        if self.model.conversations.len() >= CONVERSATIONS_MAX {
            return;
        }
        let fresh = self.expect(Ok(()), |scope| scope.conversation(id).reset()?.get()).unwrap();
        let old = self.model.conversations[&id].clone();
        let talk = Talk {
            state: ACTIVE,
            title: old.title.clone(),
            metadata: old.metadata.clone(),
            prompt: old.prompt.clone(),
            predecessor: Some(id),
            created: self.now,
            ..Talk::default()
        };
        self.model.conversations.insert(fresh.id, talk);
        match old.prompt {
            Some(_) => self.wrote(fresh.id, &["system_prompt", "conversation.created"]),
            None => self.wrote(fresh.id, &["conversation.created"]),
        };
        if old.state != "closed" {
            self.talk(id).state = "closed";
            self.wrote(id, &["conversation.state"]);
        }
    }

    /// Out of one tenant and into another, where it must be the same conversation.
    fn mirror(&mut self, id: ConversationId) {
        let log = &self.model.conversations[&id].log;
        let in_file = |id: &ConversationId| log.iter().any(|(_, origin)| origin == id);
        if log.iter().any(|(_, origin)| self.model.parents.get(origin).is_some_and(|parent| !in_file(parent)))
        {
            // Some fork here left its parent within what that one had inherited from a conversation that was deleted: the
            // file has no event of that parent, and an import asks for it by name.
            return;
        }
        self.mirrors += 1;
        let mut files = Vec::new();
        for (store, scope) in [&self.memory, &self.sqlite] {
            let mut file = Vec::new();
            scope.conversation(id).export(Format::Jsonl, &mut file, &mut |_| {}).unwrap();
            let other = store.tenant(&format!("mirror-{}", self.mirrors)).unwrap();
            let imported = other.import(file.as_slice(), &mut |_| {}).unwrap();
            self.same_turns(scope, &other, id);
            assert_eq!(imported.problems, Vec::<String>::new());
            assert_eq!(imported.added, self.model.conversations[&id].head());
            assert_eq!(imported.conversation.head, scope.conversation(id).get().unwrap().head);
            other.conversation(id).log().verify(None).unwrap();
            assert_eq!(other.import(file.as_slice(), &mut |_| {}).unwrap().added, 0, "a second time");
            files.push(String::from_utf8(file).unwrap());
        }
        assert_eq!(files[0], files[1], "the files of both backends");
    }

    /// SQLite goes and comes back. Open turns are ended before, because memory has no such moment.
    fn reopen(&mut self) {
        let open: Vec<(ConversationId, TurnId)> = self
            .model
            .conversations
            .iter()
            .flat_map(|(id, talk)| talk.said.iter().map(move |said| (*id, said)))
            .filter(|(_, said)| said.open.is_some())
            .map(|(id, said)| (id, said.id))
            .collect();
        for (id, turn) in open {
            self.expect(Ok(()), |scope| {
                scope.conversation(id).open_turn(turn).commit(NewTurn::default()).wait()
            });
            let seq = self.wrote(id, &["turn.committed"])[0].seq;
            let said = self.talk(id).turn(turn).unwrap();
            (said.text, said.status, said.content) = (said.open.take(), "complete", seq);
        }
        let nothing = Everturn::open("memory:").unwrap();
        let aside = nothing.tenant("acme").unwrap();
        drop(std::mem::replace(&mut self.sqlite, (nothing, aside)));
        let store = self.stage.open_with(self.clocks[1].options());
        let scope = store.tenant("acme").unwrap();
        self.sqlite = (store, scope);
        // Ids never go back, but a new process does not know the last one. From here on both count from the same.
        self.set_clock(self.latest + 1_000_000);
        let passing =
            self.expect(Ok(()), |scope| scope.create(NewConversation::default()).wait()?.get()).unwrap();
        self.expect(Ok(()), |scope| scope.conversation(passing.id).delete("only for its id").wait());
        self.model.tombstones.push((passing.id, 1));
        self.compare_everything();
    }

    fn rebuild(&mut self) {
        self.memory.0.rebuild().unwrap();
        self.sqlite.0.rebuild().unwrap();
        self.compare_everything();
    }
}
