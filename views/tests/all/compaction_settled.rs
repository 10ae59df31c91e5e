//! What a checkpoint says of a session that went on: a goal with its subject, demands beside requests, and nothing open that a
//! later turn settles.

use crate::compaction_talk::Talk;
use everturn_views::compaction::{Checkpoint, extract, extract_before, fitted, render};
use serde_json::json;

const NONE: [String; 0] = [];

fn of(lines: &[(&str, &str)]) -> Checkpoint {
    extract(None, &Talk::of(lines).candidates())
}

fn before(covered: &[(&str, &str)], kept: &[(&str, &str)]) -> Checkpoint {
    extract_before(None, &Talk::of(covered).candidates(), &Talk::of(kept).candidates())
}

/// A bug fix, its changelog entry, and notes about nothing.
fn csv_session() -> Talk {
    let mut talk = Talk::of(&[
        (
            "user",
            "The CSV export is broken for names with commas. Please fix it, and don't change the public API.",
        ),
        ("assistant", "I'll look at the export."),
    ]);
    talk.tool("read_file", json!({"path":"src/export.py"}), "def export(rows):\n    return ','.join(rows)");
    talk.tool("edit_file", json!({"path":"src/export.py"}), "ok");
    talk.tool("shell", json!({"command":"pytest -q"}), "12 passed");
    talk.say(
        None,
        json!({"role":"assistant","content":"Fields with commas are quoted now, and all 12 tests pass."}),
    );
    talk.say(None, json!({"role":"user","content":"We decided to use the csv module with QUOTE_MINIMAL."}));
    talk.say(None, json!({"role":"assistant","content":"It uses the csv module with QUOTE_MINIMAL."}));
    talk.say(None, json!({"role":"user","content":"Next, write the changelog entry."}));
    talk.say(None, json!({"role":"assistant","content":"Done, CHANGELOG.md has an entry under Unreleased."}));
    for n in 0..4 {
        talk.say(None, json!({"role":"user","content":format!("Note {n}")}));
        talk.say(None, json!({"role":"assistant","content":format!("Noted {n}. Anything else?")}));
    }
    talk
}

#[test]
fn a_finished_bug_fix_has_a_subject_a_demand_its_files_and_nothing_open() {
    let talk = csv_session();
    let turns = talk.candidates();
    for covered in [turns.len(), turns.len() - 4, turns.len() - 9] {
        let found = extract_before(None, &turns[..covered], &turns[covered..]);
        assert_eq!(found.goal, "The CSV export is broken for names with commas. Please fix it.");
        assert_eq!(found.user_constraints, ["don't change the public API."]);
        assert_eq!(found.decisions, ["We decided to use the csv module with QUOTE_MINIMAL."]);
        assert_eq!((&found.pending_work[..], &found.unresolved_questions[..]), (&NONE[..], &NONE[..]));
        let changelog = covered == turns.len() - 9;
        let files: &[&str] = if changelog { &["src/export.py"] } else { &["src/export.py", "CHANGELOG.md"] };
        assert_eq!(found.relevant_files, files, "{covered}");
        let text = render(&found);
        assert!(text.contains("**User constraints**\n\n- don't change the public API."), "{text}");
        assert!(!text.contains('#'), "one style of headings: {text}");
    }
}

#[test]
fn the_goal_begins_with_the_sentence_that_says_what_it_is() {
    for (said, goal) in [
        (
            "The nightly export is broken. It worked in 2.1. Please fix it today.",
            "The nightly export is broken. It worked in 2.1. Please fix it today.",
        ),
        (
            "The importer of bank statements loses rows. Please find the commit that introduced it and revert that one.",
            "The importer of bank statements loses rows. Please find the commit that introduced it and revert that one.",
        ),
        (
            "Hi! We have a new logo. Please write a press release about the merger with Acme for the newspapers.",
            "Please write a press release about the merger with Acme for the newspapers.",
        ),
    ] {
        assert_eq!(of(&[("user", said)]).goal, goal);
    }
}

#[test]
fn a_demand_at_the_end_of_a_request_is_a_constraint() {
    for (said, goal, demand) in [
        (
            "Please port the parser to Rust, but it must stay compatible with version 1.",
            "Please port the parser to Rust.",
            "it must stay compatible with version 1.",
        ),
        (
            "Bitte übersetze das Handbuch, aber ändere nie die Beispiele darin.",
            "Bitte übersetze das Handbuch.",
            "ändere nie die Beispiele darin.",
        ),
        (
            "Write the installer; never ask for a password.",
            "Write the installer.",
            "never ask for a password.",
        ),
    ] {
        let found = of(&[("user", said)]);
        assert_eq!((found.goal.as_str(), &found.user_constraints[..]), (goal, &[demand.to_string()][..]));
    }
    // A demand with two parts stays whole.
    let found =
        of(&[("user", "Fix the login. You must not touch the database, and never restart the gateway.")]);
    assert_eq!(found.user_constraints, ["You must not touch the database, and never restart the gateway."]);
}

#[test]
fn a_short_note_is_no_decision() {
    for reply in ["Noted.", "Noted 0.", "Noted. Anything else?", "Done. What next?"] {
        let found = of(&[
            ("user", "Please keep a list of the things that I mention about the flat."),
            ("assistant", reply),
            ("user", "Note 0"),
            ("assistant", reply),
            ("user", "Noted"),
        ]);
        assert_eq!(found.decisions, NONE, "{reply}");
    }
}

/// Each of nine steps was "next", beside the report that it was done.
#[test]
fn the_next_step_is_the_last_one_that_the_model_named() {
    let lines: Vec<(String, String)> = (1..=9)
        .flat_map(|n| {
            let moved = format!("I moved src/routes/part_{n}.rs and its tests pass. Next is part {}.", n + 1);
            let timeout = format!("Good. Keep the timeout of part {n} at {n}50 ms.");
            [("assistant".to_string(), moved), ("user".to_string(), timeout)]
        })
        .collect();
    let lines = lines.iter().map(|(who, text)| (who.as_str(), text.as_str()));
    let task = ("user", "Move the API to axum. It must stay compatible with clients of v1.");
    let lines: Vec<(&str, &str)> = [task].into_iter().chain(lines).collect();
    assert_eq!(of(&lines).pending_work, ["Next is part 10."]);
    // A step that is taken in a turn that stays verbatim is behind as well.
    assert_eq!(before(&lines[..9], &lines[9..]).pending_work, NONE);
    // And one of an earlier round.
    let first = of(&lines[..4]);
    assert_eq!(first.pending_work, ["Next is part 3."]);
    let second = extract(Some(&first), &Talk::of(&lines[4..6]).candidates());
    assert_eq!(second.pending_work, ["Next is part 4."]);
}

#[test]
fn what_a_turn_that_stays_verbatim_answers_or_finishes_is_not_open() {
    let asked = [("user", "Which port does the proxy use?")];
    assert_eq!(
        before(&asked, &[]).unresolved_questions,
        ["Which port does the proxy use? (asked by user, awaiting an answer)"]
    );
    assert_eq!(before(&asked, &[("assistant", "It listens on 8443.")]).unresolved_questions, NONE);
    let deferred = before(&asked, &[("assistant", "I'm not sure, I'll ask the network team.")]);
    assert_eq!(deferred.unresolved_questions, ["Which port does the proxy use?"]);

    let request = [
        ("user", "Explain the cache to me."),
        ("assistant", "It keeps hot pages in memory."),
        ("user", "Please add a metric for evictions."),
    ];
    let open = ["Please add a metric for evictions."];
    assert_eq!(before(&request, &[("assistant", "I'll look at the metrics first.")]).pending_work, open);
    for report in ["Added the metric for evictions.", "Done."] {
        assert_eq!(before(&request, &[("assistant", report)]).pending_work, NONE, "{report}");
    }

    let covered = Talk::of(&[
        ("user", "Write the guide for our tool."),
        (
            "assistant",
            "The guide is written.\n\nNot done yet:\n- the title in docs/index.md\n- the index of terms",
        ),
    ]);
    let mut kept = Talk::of(&[("user", "Do the title, please.")]);
    kept.tool("edit_file", json!({"path":"docs/index.md"}), "ok");
    let found = extract_before(None, &covered.candidates(), &kept.candidates());
    assert_eq!(found.pending_work, ["the index of terms"]);
    kept.say(
        None,
        json!({"role":"assistant","content":"The title is in place. What remains is a translation."}),
    );
    let found = extract_before(None, &covered.candidates(), &kept.candidates());
    assert_eq!(found.pending_work, NONE, "a later list says all that is left");
}

/// "One caller is left.", said with the edit of that caller, was the next step after all tests had passed.
#[test]
fn what_is_left_and_edited_in_the_same_turn_is_not_next() {
    let talk = |remark: &str, report: Option<&str>| {
        let mut talk =
            Talk::of(&[("user", "Give session() the configuration."), ("assistant", "I'll add it.")]);
        talk.tool("shell", json!({"command":"cargo test"}), "error: 1 argument is missing in src/login.rs");
        let edit = json!({"type":"tool_use","id":"e2","name":"edit_file","input":{"path":"src/login.rs"}});
        talk.say(None, json!({"role":"assistant","content":[{"type":"text","text":remark}, edit]}));
        let done = json!({"type":"tool_result","tool_use_id":"e2","content":"edited src/login.rs"});
        talk.say(None, json!({"role":"user","content":[done]}));
        if let Some(report) = report {
            talk.say(None, json!({"role":"assistant","content":report}));
        }
        talk
    };
    let report = Some("All 14 tests pass, and the limit comes from the configuration.");
    let pending = |talk: Talk| extract(None, &talk.candidates()).pending_work;
    assert_eq!(pending(talk("One caller is left.", report)), NONE);
    // As long as nothing is reported, and where something in particular is named, it is left.
    assert_eq!(pending(talk("One caller is left.", None)).len(), 1);
    assert_eq!(pending(talk("The guide in docs/limits.md is not written yet.", report)).len(), 1);
}

/// Regression: of real sessions, half of what was left was how code is: a cue in a name, or a word such as "remaining" about something
/// that is there.
#[test]
fn what_code_is_like_is_no_work() {
    for states in [
        "Note that `still to do` and todo/next-steps.md are names that the parser knows.",
        "The condenser handles deferred condensation in `HandleTurnEnd`, which is its purpose.",
        "The only remaining usages are the definition itself and the test cases.",
        "The metadata branch exists but has no commits yet.",
        "The main branch now has no outstanding problems.",
        "If you need to export the variables, the loader can help.",
        "An admin would need to change it for the whole organisation.",
    ] {
        let found = of(&[("user", "Explain the condenser."), ("assistant", states), ("user", "Good.")]);
        assert_eq!(found.pending_work, NONE, "{states}");
    }
    for left in [
        "The remaining work is the German translation.",
        "The migration of the sessions table is deferred to March.",
        "The page on the loader is not written yet.",
        "There are no tests for the loader yet.",
        "src/loader.rs still needs a test for empty files.",
    ] {
        let found = of(&[("user", "Explain the condenser."), ("assistant", left), ("user", "Good.")]);
        assert_eq!(found.pending_work, [left]);
    }
}

/// Regression: a request with a word such as "deferred" in it stayed open after it was done, and thanks were taken for an order.
#[test]
fn a_request_that_was_done_and_thanks_for_it_are_no_work() {
    let mut lines = vec![
        ("user", "Please fix the bug with the follow-up mails in the sender."),
        ("assistant", "I edited the sender. Everything is done, all tests pass, and I pushed the branch."),
        ("user", "Great, thank you!"),
        ("assistant", "You are welcome."),
    ];
    assert_eq!(of(&lines).pending_work, NONE);
    assert_eq!(of(&lines[..1]).pending_work, ["Please fix the bug with the follow-up mails in the sender."]);
    lines[2].1 = "Great, deploy the sender to staging.";
    assert_eq!(of(&lines).pending_work, ["Great, deploy the sender to staging."]);
}

/// Regression: the end of a path with a variable in it, an archive, a repository on the web, a choice of three words and a branch that is
/// named with and without its remote were files.
#[test]
fn what_only_looks_like_a_path_is_no_file() {
    let found = of(&[
        (
            "user",
            "Where is it stored? Compare entire/checkpoints/v1 with origin/entire/checkpoints/v1, and acme/tap.",
        ),
        (
            "assistant",
            "In `<id[:2]>/<id[2:]>/metadata.json` and $HOME/.config/app.toml; the release is a tar.gz. A cherry-pick/revert or \
             rebase/cherry-pick/revert keeps it. See docs/design.md, github.com/acme/tap and github.com/acme/web/docs/setup.md.",
        ),
    ]);
    assert_eq!(found.relevant_files, ["docs/design.md"]);
}

/// Regression: the next step was a decision because of the word "decision" in it.
#[test]
fn a_step_of_the_model_is_no_decision() {
    let found = of(&[
        ("user", "Tidy up the loader."),
        ("assistant", "Let me add a helpful comment to document this design decision for reviewers."),
        ("assistant", "We decided on a single loader for both formats."),
    ]);
    assert_eq!(found.decisions, ["We decided on a single loader for both formats."]);
}

/// Regression: comments of a review that the user dropped at once were the goal and the constraints of a session.
#[test]
fn a_list_that_its_speaker_takes_back_is_neither_goal_nor_demand() {
    let review = "I got this review, what do you think:\n\n- goroutines must not spawn inside mutex locks\n- test code should never be merged\n\
                  - The wrapper should use the existing GetGitDir() helper";
    let mut lines = vec![
        ("user", "The service must keep its port."),
        ("assistant", "It does."),
        ("user", review),
        ("assistant", "All three comments are wrong: they are about an older version."),
        ("user", "ok, ignore them then"),
    ];
    assert_eq!(of(&lines).user_constraints, ["The service must keep its port."]);
    assert_eq!(of(&lines[2..]).goal, "");
    lines[4].1 = "ok, do them then";
    assert_eq!(of(&lines).user_constraints.len(), 4);
}

#[test]
fn turns_that_stay_verbatim_add_nothing() {
    let covered = [("user", "Please tidy up the parser."), ("assistant", "Fixed the lexer in src/lexer.rs.")];
    let kept = [
        (
            "ana",
            "We decided to use Redis for OPS-77. It must never restart. Change of plan: rewrite src/cache.rs.",
        ),
        ("assistant", "Added src/cache.rs. Still to do: the docs of src/cache.rs. Which port should it use?"),
    ];
    assert_eq!(before(&covered, &kept), of(&covered));
}

#[test]
fn orders_of_the_last_prompt_are_open_whatever_their_verb() {
    let lines = [
        ("user", "Build a web shop for our bakery, please."),
        ("assistant", "The shop runs on port 8080."),
        ("user", "Sounds good to me. Yes, deploy it to staging. Bump the version to 1.2. The logo is blue."),
    ];
    let open = ["Yes, deploy it to staging.", "Bump the version to 1.2."];
    assert_eq!(of(&lines).pending_work, open);
    assert_eq!(before(&lines, &[("assistant", "Version 1.2 runs on staging.")]).pending_work, NONE);
}

/// Two people wrote before the model could answer; it answered the second.
#[test]
fn a_request_that_was_overtaken_is_open_until_its_file_is_taken_up() {
    let lines = [
        ("leila", "Please prepare the release of harbor."),
        ("assistant", "The tests pass, the candidate is ready."),
        ("leila", "Can you prepare the docs change meanwhile, in docs/export.md?"),
        ("tomas", "And I need the list of closed tickets."),
        ("assistant", "Three tickets: #1880, #1902 and #1944."),
    ];
    let open = ["leila: Can you prepare the docs change meanwhile, in docs/export.md?"];
    assert_eq!(of(&lines).pending_work, open);
    assert_eq!(before(&lines, &[("assistant", "I'm starting on docs/export.md.")]).pending_work, NONE);
}

#[test]
fn a_checkpoint_that_must_be_shorter_loses_names_and_old_entries_before_sentences_and_the_goal() {
    let talk = csv_session();
    let whole = extract(None, &talk.candidates());
    let bytes = |checkpoint: &Checkpoint| render(checkpoint).len();
    let within = |max: usize| fitted(&whole, |checkpoint| bytes(checkpoint) <= max);
    assert_eq!(within(bytes(&whole)).as_ref(), Some(&whole), "what fits stays as it is");
    let files = within(bytes(&whole) - 1).unwrap();
    assert_eq!(files.relevant_files, NONE, "sentences name both");
    assert_eq!(Checkpoint { relevant_files: whole.relevant_files.clone(), ..files }, whole);
    let mut last = bytes(&whole);
    while let Some(shorter) = within(last - 1) {
        assert!(bytes(&shorter) < last && !shorter.handoff_md.is_empty());
        assert_eq!(shorter.goal, whole.goal);
        last = bytes(&shorter);
    }
    assert_eq!(last, format!("**Goal:** {}", whole.goal).len(), "in the end, only the goal is left");
    // The note of a model is shortened, too.
    let written = Checkpoint {
        goal: "Fix it".into(),
        handoff_md: "The first half. The second half of the note.".into(),
        decisions: vec!["Use SQLite.".into()],
        ..Checkpoint::default()
    };
    let short = fitted(&written, |checkpoint| bytes(checkpoint) < 40).unwrap();
    assert_eq!(render(&short), "**Goal:** Fix it\n\nThe first half.");
}

/// Regression: a checkpoint that was too large lost its constraints first, its note was cut in the middle of the goal, which was
/// then shown twice, and half of the room stayed empty.
#[test]
fn a_checkpoint_that_is_shortened_keeps_constraints_says_its_goal_once_and_uses_the_room() {
    let talk = csv_session();
    let extracted = extract(None, &talk.candidates());
    let note = "**Goal:** Export orders. And invoices, as CSV.\n\nThe exporter is half done. Invoices are missing. Nobody tested it.";
    let written = Checkpoint {
        goal: "Export orders. And invoices, as CSV.".into(),
        user_constraints: vec!["Never write to the legacy database.".into(), "No new dependencies.".into()],
        critical_identifiers: (0..40).map(|n| format!("order-{n}")).collect(),
        completed_work: vec!["The exporter writes orders.".into()],
        handoff_md: note.into(),
        ..Checkpoint::default()
    };
    let imported = Checkpoint { handoff_md: format!("{note}\n{note}\n{note}"), ..Checkpoint::default() };
    let carried = extract(Some(&imported), &talk.candidates());
    for whole in [extracted, written, imported, carried] {
        let bytes = |checkpoint: &Checkpoint| render(checkpoint).len();
        let least = bytes(&Checkpoint { goal: whole.goal.clone(), ..Checkpoint::default() });
        let goals = render(&whole).matches("**Goal:**").count().max(1);
        for max in least..bytes(&whole) {
            let short = fitted(&whole, |checkpoint| bytes(checkpoint) <= max).unwrap();
            let text = render(&short);
            assert!(text.matches("**Goal:**").count() <= goals, "{max}: {text}");
            let longest = [&whole.user_constraints, &whole.pending_work, &whole.unresolved_questions]
                .into_iter()
                .flatten()
                .map(String::len)
                .max();
            let lines = whole.earlier_summary.lines().chain(whole.handoff_md.lines()).map(str::len).max();
            let longest = longest.max(lines).unwrap_or(0);
            assert!(text.len() + longest + 32 > max, "{max}: {} bytes: {text}", text.len());
            // A constraint is left out only if there is no room for it even without everything else.
            for left in whole.user_constraints.iter().filter(|entry| !short.user_constraints.contains(entry))
            {
                let user_constraints = [short.user_constraints.clone(), vec![left.clone()]].concat();
                let goal = whole.goal.clone();
                let alone = Checkpoint { goal, user_constraints, ..Checkpoint::default() };
                assert!(bytes(&alone) > max, "{max}: {left} is missing: {text}");
            }
        }
    }
}
