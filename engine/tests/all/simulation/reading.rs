//! Reading in a run, and comparing what is read with the model.

use super::*;

impl Run {
    pub(super) fn random_query(&mut self, head: u64) -> HistoryQuery {
        let mut place = || Some(self.dice.roll(head as usize + 3) as u64).filter(|_| self.dice.once_in(3));
        let (before, after) = (place(), place());
        let actors = [vec![], vec![], vec!["ann".into()], vec!["bob".into(), "model".into()]];
        HistoryQuery {
            before,
            after,
            limit: 1 + self.dice.roll(8),
            order: *self.dice.pick(&[Order::Ascending, Order::Descending]),
            actors: self.dice.pick(&actors).clone(),
            include_superseded: self.dice.once_in(2),
            include_events: self.dice.once_in(3),
        }
    }

    /// All pages of a random query, against the same question to the model.
    pub(super) fn history(&mut self, id: ConversationId) {
        let talk = self.model.conversations[&id].clone();
        let mut query = self.random_query(talk.head());
        let asked = query.clone();
        let mut got: Vec<HistoryEntry> = Vec::new();
        loop {
            let page = self.both(|scope| {
                let mut page = scope.conversation(id).history(query.clone())?;
                for entry in &mut page.data {
                    if let HistoryEntry::Turn(turn) = entry {
                        self.durable(&talk, turn);
                    }
                }
                Ok(page)
            });
            let page = page.unwrap();
            assert!(page.data.len() <= query.limit);
            got.extend(page.data);
            match (page.next, query.order) {
                (None, _) => break,
                (next, Order::Ascending) => query.after = next,
                (next, Order::Descending) => query.before = next,
            }
        }
        let turn_at = |seq: u64| talk.said.iter().find(|said| said.seq == seq);
        let logged = asked.include_superseded || asked.include_events;
        let position = |seq: u64| turn_at(seq).filter(|_| !logged).map_or(seq, |said| said.place);
        let mut wanted: Vec<u64> = (1..=talk.head())
            .filter(|seq| asked.before.is_none_or(|before| position(*seq) < before))
            .filter(|seq| asked.after.is_none_or(|after| position(*seq) > after))
            .filter(|seq| match turn_at(*seq) {
                None => asked.include_events,
                Some(said) => {
                    (asked.include_superseded || said.by.is_none())
                        && (asked.actors.is_empty()
                            || said.actor.as_ref().is_some_and(|actor| asked.actors.contains(actor)))
                }
            })
            .collect();
        wanted.sort_by_key(|seq| position(*seq));
        if asked.order == Order::Descending {
            wanted.reverse();
        }
        let seqs: Vec<u64> = got.iter().map(HistoryEntry::seq).collect();
        assert_eq!(seqs, wanted, "{asked:?}");
        for entry in &got {
            if let HistoryEntry::Turn(turn) = entry {
                self.same_turn(&talk, turn);
            }
        }
    }

    #[track_caller]
    pub(super) fn same_turn(&self, talk: &Talk, turn: &Turn) {
        let said = talk.said.iter().find(|said| said.id == turn.id).expect("a turn that nobody said");
        let erased = self.model.is_erased(talk, said);
        assert_eq!(turn.erased, erased, "{}", turn.id);
        assert_eq!(words(turn), said.text.clone().filter(|_| !erased), "{}", turn.id);
        assert_eq!(
            (turn.seq, turn.place, turn.role.as_str(), turn.status.as_str(), &turn.actor),
            (said.seq, said.place, said.role, said.status, &said.actor),
        );
        let by = turn.superseded_by.map(|by| by.to_string());
        assert_eq!(by.as_ref(), said.by.as_ref().map(|(by, _)| by), "{}", turn.id);
        assert_eq!(self.read_turn(talk, turn.conversation, turn.id), *turn);
    }

    fn read_turn(&self, talk: &Talk, conversation: ConversationId, id: TurnId) -> Turn {
        let read = self.both(|scope| {
            let mut turn = scope.conversation(conversation).turn(id)?;
            self.durable(talk, &mut turn);
            Ok(turn)
        });
        read.unwrap()
    }

    /// Takes the durable text out of an open turn: how much there is depends on the time.
    fn durable(&self, talk: &Talk, turn: &mut Turn) {
        let open = talk.said.iter().find(|said| said.id == turn.id).and_then(|said| said.open.as_deref());
        match turn.partial.take() {
            Some(partial) => assert!(open.is_some_and(|open| open.starts_with(&partial.text)), "{partial:?}"),
            None => assert_eq!(open, None, "an open turn says how much is durable"),
        }
    }

    pub(super) fn events(&mut self, id: ConversationId) {
        let talk = self.model.conversations[&id].clone();
        let (after, limit) = (self.dice.roll(talk.head() as usize + 2) as u64, 1 + self.dice.roll(20));
        let events = self.both(|scope| scope.conversation(id).log().read(after, limit)).unwrap();
        let got: Vec<_> =
            events.iter().map(|e| (e.seq, e.kind.clone(), e.conversation, e.body.is_none())).collect();
        let wanted: Vec<_> = (after + 1..=talk.head())
            .take(limit)
            .map(|seq| {
                let (kind, origin) = talk.log[seq as usize - 1].clone();
                (seq, kind, origin, self.model.erased.contains(&(origin, seq)))
            })
            .collect();
        assert_eq!(got, wanted);
    }

    /// Everything from a place on, then the words of open turns.
    pub(super) fn subscribe(&mut self, id: ConversationId) {
        let talk = self.model.conversations[&id].clone();
        let from = self.dice.roll(talk.head() as usize + 1) as u64;
        let open: Vec<(TurnId, String)> = talk
            .said
            .iter()
            .filter_map(|said| Some((said.id, said.open.clone().filter(|text| !text.is_empty())?)))
            .collect();
        for scope in [&self.memory.1, &self.sqlite.1] {
            let mut subscription = scope.conversation(id).subscribe(from.saturating_sub(1)).unwrap();
            for seq in from.max(1)..=talk.head() {
                match subscription.recv_timeout(PATIENCE).unwrap() {
                    Some(Update::Event(event)) => assert_eq!(event.seq, seq),
                    other => panic!("expected seq {seq}, got {other:?}"),
                }
            }
            for (turn, text) in &open {
                match subscription.recv_timeout(PATIENCE).unwrap() {
                    Some(Update::Chunk(chunk)) => {
                        assert_eq!((chunk.turn, chunk.offset, &*chunk.text), (*turn, 0, text.as_str()))
                    }
                    other => panic!("expected the words of {turn}, got {other:?}"),
                }
            }
        }
    }

    #[track_caller]
    pub(super) fn same_turns(&self, here: &Tenant, there: &Tenant, id: ConversationId) {
        for said in &self.model.conversations[&id].said {
            // The durable text of an open turn is not in the log, and not in a copy of it.
            let turn =
                |scope: &Tenant| Turn { partial: None, ..scope.conversation(id).turn(said.id).unwrap() };
            assert_eq!(turn(here), turn(there));
        }
    }

    pub(super) fn list(&mut self) {
        let limit = 1 + self.dice.roll(5);
        let mut wanted: Vec<(i64, ConversationId)> = self
            .model
            .conversations
            .iter()
            .map(|(id, talk)| (talk.last_said.unwrap_or(talk.created), *id))
            .collect();
        wanted.sort_by_key(|entry| std::cmp::Reverse(*entry));
        let mut got = Vec::new();
        let mut after = None;
        loop {
            let query = ListQuery { after, limit, ..ListQuery::default() };
            let page = self.both(|scope| scope.list(query.clone())).unwrap();
            got.extend(page.data.iter().map(|c| (c.said().0, c.id)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(got, wanted);
    }

    pub(super) fn ask_for_what_is_not_there(&mut self, id: ConversationId) {
        let unknown: ConversationId = "conv_00000000000000000000000007".parse().unwrap();
        let turn: TurnId = "turn_00000000000000000000000007".parse().unwrap();
        self.expect::<Conversation>(Err("conversation.absent"), |scope| scope.conversation(unknown).get());
        self.expect(Err("conversation.absent"), |scope| scope.conversation(unknown).fork(1).wait()?.get());
        self.expect(Err("turn.absent"), |scope| scope.conversation(id).turn(turn));
        self.expect(Err("turn.absent"), |scope| scope.conversation(id).open_turn(turn).chunk(None, "x"));
        self.expect(Err("turn.absent"), |scope| scope.conversation(id).erase(turn, None, "").wait());
        self.wrote_nothing(id);
    }

    #[track_caller]
    pub(super) fn compare(&self, id: ConversationId) {
        let talk = &self.model.conversations[&id];
        let got = self.both(|scope| scope.conversation(id).get()).unwrap();
        assert_eq!(got.head.seq, talk.head());
        assert_eq!(got.turns, talk.said.len() as u64);
        assert_eq!((got.state.as_str(), &got.title), (talk.state, &talk.title));
        assert_eq!(got.participants, talk.participants);
        assert_eq!((got.created.0, got.updated.0), (talk.created, talk.updated));
        assert_eq!(got.last_said.map(|at| at.0), talk.last_said);
        assert_eq!(got.parent.map(|parent| (parent.conversation, parent.at_seq)), talk.parent);
        assert_eq!(got.predecessor, talk.predecessor);
        let prompt = self.both(|scope| scope.conversation(id).state().system_prompt(None)).unwrap();
        assert_eq!(prompt.map(|prompt| prompt.content), talk.prompt);
        let metadata: Vec<(&str, &str)> = got
            .metadata
            .iter()
            .filter(|(key, _)| key.as_str() != "system_prompt")
            .map(|(key, raw)| (key.as_str(), raw.get()))
            .collect();
        let wanted: Vec<(&str, &str)> = talk.metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(metadata, wanted);
        let report = self.both(|scope| scope.conversation(id).log().verify(None)).unwrap();
        assert_eq!((report.events, report.head), (talk.head(), got.head));
        for said in &talk.said {
            self.same_turn(talk, &self.read_turn(talk, id, said.id));
        }
    }

    #[track_caller]
    pub(super) fn compare_everything(&mut self) {
        for id in self.model.conversations.keys() {
            self.compare(*id);
        }
        self.list();
    }
}
