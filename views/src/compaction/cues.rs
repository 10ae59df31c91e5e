//! Words that tell what a sentence is: a decision, a constraint, something found, done or still to do.
//!
//! English and German. A text in another language has no cues and is ranked without them.

use aho_corasick::{AhoCorasick, MatchKind};
use std::sync::LazyLock;

/// What a cue hints at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Group {
    /// Said and meant for nothing: greetings, thanks, narration. Also phrases that look like another cue and are not.
    Noise,
    /// A demand or a ban, if a user says it.
    Constraint,
    /// Something was decided.
    Decision,
    /// Something was found out.
    Discovery,
    /// Something is done.
    Completed,
    /// Something is to do, and said so in so many words.
    Pending,
    /// Somebody is about to do something.
    Intent,
    /// Something is not known, and said so in so many words.
    Open,
    /// Somebody wants something.
    Request,
    /// Somebody wants something else than before.
    GoalChange,
    /// Somebody suggests something.
    Proposal,
    /// Somebody agrees.
    Agreement,
    /// An answer that answers nothing.
    Deflection,
    /// Something that was open is settled.
    Resolution,
    /// This replaces something that was said before.
    Revision,
    /// What follows is not so, or not yet.
    Unreal,
}

const GROUPS: usize = Group::Unreal as usize + 1;

/// How much each group counts at the beginning of a sentence and elsewhere. A `*` stands for any ending.
#[rustfmt::skip]
const TABLE: &[(Group, u8, u8, &[&str])] = &[
    (Group::Noise, 3, 0, &[
        "hi", "hello", "hey", "thanks", "thank you", "good morning", "good evening", "great", "perfect",
        "awesome", "cool", "you're welcome", "no problem", "let me", "looking at", "i'll check",
        "i'll look", "i'll take a look", "i'll start by", "i'll read", "here is", "here's", "here are",
        "sure", "of course", "hallo", "guten morgen", "guten tag", "danke*", "vielen dank",
        "gern geschehen", "super", "klar", "ich schaue", "ich sehe mir", "hier ist", "hier sind",
    ]),
    (Group::Noise, 0, 0, &[
        "never mind", "don't know", "don't think", "don't worry", "don't understand", "don't see",
        "don't remember", "don't have", "i don't", "we don't", "you don't", "they don't", "i never",
        "i must say", "must have been", "must be the", "instead of", "not only", "if only", "only if",
        "next to", "at least one", "last but not least", "always been", "was always", "nur noch",
        "noch einmal", "noch mal", "immer noch", "nicht nur", "immer wieder", "as always", "well done",
        "i will say", "still have", "user story", "to do so", "to do that", "to do this", "to do it",
        "haven't decided", "not decided", "noch nicht entschieden",
    ]),
    (Group::Constraint, 4, 4, &[
        "must not", "mustn't", "must", "never", "always", "under no circumstances", "not allowed",
        "forbidden", "mandatory", "don't want", "do not want", "i don't want", "we don't want", "do not",
        "don't", "make sure", "please keep", "avoid", "remember that", "keep in mind", "no more than",
        "at most", "only use", "i prefer", "we prefer", "prefer", "preferably", "required", "requirement*",
        "allergic", "intolerant", "deadline", "it has to", "it needs to", "has to be", "have to be",
        "needs to be", "darf nicht", "dürfen nicht", "darf kein*", "auf keinen fall", "niemals",
        "bitte nicht", "bitte nichts", "bitte kein*", "auf jeden fall", "unbedingt", "achte darauf",
        "achtet darauf", "allergisch", "verträgt kein*", "vertrage kein*", "höchstens", "maximal",
        "mindestens", "muss", "müssen", "nie", "lieber", "bevorzug*", "wichtig ist", "mir ist wichtig",
        "uns ist wichtig", "soll nicht", "sollen nicht", "will nicht", "wollen nicht", "spätestens",
        "merk dir", "denk daran",
    ]),
    (Group::Constraint, 4, 2, &[
        "keep", "only", "ensure", "shouldn't", "should not", "at least", "no new", "no external", "budget",
        "cannot exceed", "stick to", "as long as", "immer", "nur", "kein", "keine", "ohne", "vegetarisch",
        "vegan", "sollte", "sollten",
    ]),
    (Group::Constraint, 1, 1, &[
        "should", "without", "soll",
    ]),
    (Group::Decision, 4, 4, &[
        "decided", "decision", "decisions", "we decide", "we'll use", "we will use", "i'll use",
        "we'll go with", "i'll go with", "we use", "let's go with", "let's use", "let's take",
        "let's stick with", "let's keep", "going with", "go with", "agreed on", "agreed to", "we agree",
        "agreed that", "we chose", "i chose", "chose", "chosen", "switched to", "switch to", "switching to",
        "settled on", "opted for", "opt for", "sticking with", "we're using", "final choice",
        "it's settled", "picked", "entschieden", "beschlossen", "entscheidung", "entscheidungen",
        "wir nehmen", "ich nehme", "nehmen wir", "einigen uns", "geeinigt", "abgemacht ist", "festgelegt",
        "entscheiden uns", "bleiben bei", "bleibt es bei", "bleibt dabei", "wechseln zu", "wir machen",
        "machen wir", "wir fahren", "fahren wir", "wir buchen", "buchen wir", "wir treffen uns",
    ]),
    (Group::Discovery, 4, 4, &[
        "found that", "found out", "i found", "we found", "turns out", "turned out", "root cause",
        "the problem is", "the problem was", "the issue is", "the issue was", "the bug is", "the bug was",
        "the reason is", "the reason was", "the cause is", "the cause was", "caused by", "discovered",
        "learned that", "noticed that", "fails with", "failed with", "fails because", "failed because",
        "it's because", "happens because", "reproduc*", "findings", "stellt sich heraus",
        "stellte sich heraus", "herausgefunden", "herausgestellt", "ursache", "das problem ist",
        "das problem war", "liegt daran", "lag daran", "festgestellt", "der grund ist", "der grund war",
        "es zeigt sich", "gemerkt",
    ]),
    (Group::Discovery, 3, 2, &[
        "because", "apparently", "it looks like", "looks like", "confirmed that", "measured", "shows that",
        "my name is", "i'm called", "i live in", "i work as", "is located", "costs", "anscheinend",
        "offenbar", "weil", "ich heiße", "ich wohne", "kostet", "kosten",
    ]),
    (Group::Completed, 5, 3, &[
        "fixed", "implemented", "added", "created", "finished", "completed", "merged", "pushed", "deployed",
        "committed", "updated", "removed", "renamed", "refactored", "rewrote", "wrote", "moved", "replaced",
        "migrated", "released", "published", "booked", "reserved", "ordered", "paid", "sent", "installed",
        "configured", "tests pass", "test passes", "tests are passing", "all green", "now works",
        "works now", "is in place", "are in place", "is done", "are done", "resolved the", "erledigt",
        "behoben", "hinzugefügt", "erstellt", "gebucht", "reserviert", "bestellt", "geschickt",
        "abgeschickt", "verschickt", "bezahlt", "abgeschlossen", "umgesetzt", "funktioniert jetzt",
        "eingerichtet", "angelegt", "gekauft", "geschrieben", "eingeladen", "überwiesen", "abgeholt",
    ]),
    (Group::Completed, 4, 0, &[
        "done", "fertig",
    ]),
    (Group::Pending, 5, 5, &[
        "todo", "to-do", "next step", "next steps", "remaining", "still need*", "still have to",
        "still to do", "still missing", "still open", "left to do", "follow up", "follow-up", "not yet",
        "needs to", "need to", "we have to", "i have to", "outstanding", "action item*", "pending",
        "later we", "muss noch", "müssen noch", "muss ich noch", "müssen wir noch", "als nächstes",
        "nächster schritt", "nächste schritte", "steht noch aus", "stehen noch aus", "fehlt noch",
        "fehlen noch", "noch nicht", "zu tun", "noch zu", "kümmert sich", "kümmere mich", "brauchen noch",
        "brauche noch", "to be done",
    ]),
    (Group::Pending, 4, 0, &[
        "next", "then", "later", "danach", "später", "noch",
    ]),
    (Group::Intent, 4, 3, &[
        "i'll", "i will", "we'll", "we will", "i'm going to", "we're going to", "going to", "i plan to",
        "we plan to", "will be", "ich werde", "werde ich", "wir werden", "werden wir", "ich mache",
        "ich rufe", "ich frage", "ich schicke", "ich schreibe", "ich bestelle", "ich buche", "ich besorge",
        "ich bringe",
    ]),
    (Group::Open, 5, 5, &[
        "open question", "open questions", "open point", "open points", "unresolved", "still unclear",
        "is unclear", "not clear yet", "not clear whether", "don't know yet", "do not know yet",
        "to be decided", "to be clarified", "tbd", "undecided", "need to find out", "question remains",
        "unanswered", "offene frage", "offene fragen", "offene punkte", "noch unklar", "ist unklar",
        "unklar ist", "bleibt offen", "ist noch offen", "noch offen", "noch zu klären", "müssen wir klären",
        "muss geklärt werden", "ungeklärt",
    ]),
    (Group::Request, 4, 3, &[
        "can you", "could you", "would you", "i want", "i'd like", "i would like", "we'd like", "i need",
        "we need", "we want", "help me", "help us", "the goal is", "our goal is", "goal:",
        "we're trying to", "i'm trying to", "i am trying to", "kannst du", "könntest du", "können sie",
        "ich möchte", "ich will", "ich brauche", "wir brauchen", "wir wollen", "wir möchten", "hilf mir",
        "das ziel", "hilfst du", "ich würde gern*", "wir würden gern*", "let's", "lass uns", "lasst uns",
    ]),
    (Group::Request, 3, 1, &[
        "please", "bitte",
    ]),
    (Group::Request, 3, 0, &[
        "add", "build", "create a", "create an", "create the", "fix", "implement", "write", "make", "find",
        "investigate", "debug", "refactor", "plan", "update", "set up", "review", "explain", "translate",
        "summarize", "design", "migrate", "convert", "remove", "deploy", "organise", "organize", "change",
        "rename", "check", "test", "look into", "figure out", "schreib*", "erstelle", "baue", "plane",
        "finde", "prüfe", "übersetze", "erkläre", "ändere",
    ]),
    (Group::GoalChange, 4, 4, &[
        "new goal", "the goal is now", "change of plan", "change of plans", "new task", "next task",
        "now let's", "let's now", "now i want", "now we want", "now please", "forget about", "scrap that",
        "let's instead", "instead let's", "instead, let's", "moving on to", "neues ziel", "neue aufgabe",
        "nächste aufgabe", "planänderung", "lass uns jetzt", "lasst uns jetzt", "jetzt möchte ich",
        "jetzt wollen wir", "vergiss das", "vergesst das",
    ]),
    (Group::Proposal, 4, 3, &[
        "i propose", "i suggest", "we propose", "my proposal", "how about", "what about", "shall we",
        "should we", "why don't we", "we could", "i'd suggest", "i would suggest", "ich schlage vor",
        "mein vorschlag", "wie wäre es", "wie wär's", "sollen wir", "wollen wir", "wir könnten",
        "was haltet ihr", "was hältst du",
    ]),
    (Group::Agreement, 4, 0, &[
        "agreed", "sounds good", "yes", "yep", "yeah", "ok", "okay", "deal", "works for me", "fine with me",
        "good idea", "i agree", "go ahead", "let's do that", "let's do it", "approved", "abgemacht",
        "einverstanden", "ja", "gute idee", "passt", "machen wir so", "klingt gut", "in ordnung",
    ]),
    (Group::Deflection, 4, 4, &[
        "i'm not sure", "not sure", "no idea", "i'll get back", "get back to you", "let me ask", "i'll ask",
        "have to ask", "need to ask", "let me think", "need to think", "come back to that",
        "come back to this", "can't say", "cannot say", "no clue", "ask me later", "will find out",
        "haven't heard", "waiting to hear", "depends on what", "weiß ich nicht", "weiß ich noch nicht",
        "weiß nicht", "weiß es nicht", "keine ahnung", "bin nicht sicher", "muss ich fragen",
        "muss ich erst", "melde mich", "kann ich nicht sagen", "frage ich nach", "überlege ich mir",
        "klären wir später",
    ]),
    (Group::Resolution, 4, 4, &[
        "resolved", "answered", "confirmed", "clarified", "the answer is", "the answer to", "settled",
        "cleared up", "no longer a question", "geklärt", "beantwortet", "bestätigt", "die antwort ist",
    ]),
    (Group::Revision, 3, 3, &[
        "instead", "now", "no longer", "changed", "changes", "rather", "from now on", "actually",
        "correction", "update:", "not anymore", "stattdessen", "jetzt", "doch", "geändert", "nicht mehr",
        "ab jetzt", "statt",
    ]),
    (Group::Unreal, 3, 3, &[
        "not", "isn't", "wasn't", "aren't", "hasn't", "haven't", "didn't", "doesn't", "couldn't", "if",
        "once", "when", "until", "unless", "before", "should be", "to be", "can be", "must be", "could be",
        "nicht", "wenn", "sobald", "falls", "bevor", "would", "what", "which", "who", "how", "whether",
        "wer", "ob",
    ]),
];

struct Cue {
    group: Group,
    at_start: u8,
    elsewhere: u8,
    open_end: bool,
}

static CUES: LazyLock<(AhoCorasick, Vec<Cue>)> = LazyLock::new(|| {
    let mut patterns = Vec::new();
    let mut cues = Vec::new();
    for (group, at_start, elsewhere, texts) in TABLE {
        for text in *texts {
            let open_end = text.ends_with('*');
            patterns.push(text.trim_end_matches('*'));
            cues.push(Cue { group: *group, at_start: *at_start, elsewhere: *elsewhere, open_end });
        }
    }
    let automaton = AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .match_kind(MatchKind::Standard)
        .build(patterns)
        .expect("the cues are constant and tested");
    (automaton, cues)
});

/// The cues of one sentence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cues {
    weights: [u8; GROUPS],
    starts: u32,
}

impl Cues {
    pub fn of(text: &str) -> Cues {
        // Typographic apostrophes would hide half of the English cues.
        if text.contains('’') {
            return Cues::of_plain(&text.replace('’', "'"));
        }
        Cues::of_plain(text)
    }

    fn of_plain(text: &str) -> Cues {
        let (automaton, table) = &*CUES;
        let start = text.find(char::is_alphanumeric).unwrap_or(0);
        let mut found: Vec<(usize, usize, usize)> = automaton
            .find_overlapping_iter(text)
            .map(|found| (found.start(), found.end(), found.pattern().as_usize()))
            .filter(|(from, to, cue)| is_word(text, *from, *to, table[*cue].open_end))
            .collect();
        // From left to right, the longest first; what lies inside another cue does not count. Overlapping search with the
        // word boundaries checked before, because "must no" would otherwise win over "must" and then fail.
        found.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        let mut cues = Cues::default();
        let mut unreal = false;
        let mut end = 0;
        for (from, to, cue) in found {
            if from < end {
                continue;
            }
            end = to;
            let Cue { group, at_start, elsewhere, .. } = table[cue];
            unreal |= group == Group::Unreal;
            if group == Group::Completed && unreal {
                continue;
            }
            let weight = if from <= start { at_start } else { elsewhere };
            let sum = &mut cues.weights[group as usize];
            *sum = (*sum + weight).min(9);
            if from <= start && weight > 0 {
                cues.starts |= 1 << group as u32;
            }
        }
        cues
    }

    /// How strongly the sentence hints at a group; 0 to 9.
    pub fn weight(&self, group: Group) -> u8 {
        self.weights[group as usize]
    }

    /// Whether the sentence begins with a cue of the group.
    pub fn starts(&self, group: Group) -> bool {
        self.starts & (1 << group as u32) != 0
    }
}

fn is_word(text: &str, from: usize, to: usize, open_end: bool) -> bool {
    let before = text[..from].chars().next_back();
    let behind = text[to..].chars().next();
    let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    !joins(before) && (open_end || !joins(behind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_cue_is_lower_case_and_stands_once() {
        let mut seen = HashSet::new();
        for (_, _, _, texts) in TABLE {
            for text in *texts {
                assert!(seen.insert(*text), "{text} stands twice");
                assert_eq!(text.to_lowercase(), **text);
            }
        }
    }

    #[test]
    fn cues_are_words_and_the_longest_wins() {
        for (text, group, found) in [
            ("You must not do it", Group::Constraint, true),
            ("A mustard seed", Group::Constraint, false),
            ("Never mind", Group::Constraint, false),
            ("I don’t know", Group::Constraint, false),
            ("I don't want any dairy", Group::Constraint, true),
            ("The tests pass, so it is fixed", Group::Completed, true),
            ("It is not fixed", Group::Completed, false),
            ("Once this is fixed, ship it", Group::Completed, false),
            ("We'll use SQLite", Group::Decision, true),
            ("Es stellte sich heraus, dass der Ofen kaputt ist", Group::Discovery, true),
            ("next to the door", Group::Pending, false),
            ("Next, write the docs", Group::Pending, true),
        ] {
            assert_eq!(Cues::of(text).weight(group) > 0, found, "{text}");
        }
        assert!(Cues::of("\"Agreed!\"").starts(Group::Agreement));
        assert!(!Cues::of("I said yes").starts(Group::Agreement));
    }
}
