//! Many compactions in a row: what the first one contained is still in the prompt after the hundredth.

use crate::compaction_talk::Talk;
use everturn_views::compaction::{Checkpoint, complete, extract, limits, render};
use serde_json::json;

const ROUNDS: usize = 100;

/// About 25 turns of work on one module, with several names in each turn that no other round has.
fn round(n: usize) -> Talk {
    let mut talk = Talk::default();
    let module = ["billing", "search", "upload", "export", "notify", "audit", "quota", "render"][n % 8];
    if n == 0 {
        talk.say(Some("user"), json!({"role":"user","content":
            "We are moving the whole backend to the new event store; please plan and do it module by module, epic MIG-7. \
             The API must stay compatible with client 3.4.1, and never write to the legacy database. \
             I prefer small pull requests, at most 400 lines each."}));
        talk.say(
            Some("user"),
            json!({"role":"user","content":"Does the auditor accept hashed customer names in the export?"}),
        );
        talk.say(
            None,
            json!({"role":"assistant","content":"I'm not sure, somebody should call the auditor. \
            Open question: who owns the retention setting for tenant acme-prod-17?"}),
        );
    } else {
        talk.say(Some("user"), json!({"role":"user","content":format!(
            "Go on with the {module} module, ticket MIG-{}. The load test should reach {} rps.", 100 + n, 1000 + 7 * n)}));
    }
    for k in 0..5 {
        let file = format!("services/{module}/src/part_{n}_{k}.rs");
        talk.tool(
            "read_file",
            json!({"path": file}),
            &format!("pub fn handle_{n}_{k}(request: Request) -> Reply {{ }}"),
        );
        talk.tool("edit_file", json!({"path": file, "text": format!("req_{n}x{k}")}), "ok");
        let text = match k {
            0 => format!(
                "The problem was that {file} opened its own connection for req_{n}x{k}, trace id {:08x}a1.",
                0x1000_0000 + n * 16 + k
            ),
            1 => format!(
                "Added retries to {file}, commit {:07x}b. All tests pass after {}ms.",
                0x100_0000 + n * 32 + k,
                100 + n + k
            ),
            2 => format!(
                "We'll use the batch endpoint https://api.example.org/v2/{module}/{n}/{k} for the {module} import."
            ),
            3 => format!("I still need to document the flag {module}_mode_{n}."),
            _ => format!(
                "Fixed #{} by moving the check into {file}. Documented the flag {module}_mode_{n}.",
                2000 + 10 * n + k
            ),
        };
        talk.say(None, json!({"role":"assistant","content":text}));
    }
    talk
}

const FIRST_CONSTRAINTS: [&str; 2] = [
    "The API must stay compatible with client 3.4.1, and never write to the legacy database.",
    "I prefer small pull requests, at most 400 lines each.",
];
const FIRST_QUESTIONS: [&str; 2] = [
    "Does the auditor accept hashed customer names in the export?",
    "Open question: who owns the retention setting for tenant acme-prod-17?",
];

fn first_names() -> Vec<String> {
    let mut names: Vec<String> =
        ["MIG-7", "3.4.1", "acme-prod-17", "#2004", "https://api.example.org/v2/billing/0/2", "req_0x0"]
            .iter()
            .map(|name| name.to_string())
            .collect();
    for k in 0..5 {
        names.push(format!("services/billing/src/part_0_{k}.rs"));
    }
    names.push(format!("{:08x}a1", 0x1000_0000));
    names.push(format!("{:07x}b", 0x100_0000 + 1));
    names
}

fn assert_first_round_is_there(checkpoint: &Checkpoint, round: usize) {
    for constraint in FIRST_CONSTRAINTS {
        assert!(
            checkpoint.user_constraints.iter().any(|c| c == constraint),
            "round {round}: {constraint} in {:#?}",
            checkpoint.user_constraints
        );
    }
    for question in FIRST_QUESTIONS {
        assert!(
            checkpoint.unresolved_questions.iter().any(|q| q == question),
            "round {round}: {question} in {:#?}",
            checkpoint.unresolved_questions
        );
    }
    let rendered = render(checkpoint);
    for name in first_names() {
        let lists = [&checkpoint.critical_identifiers, &checkpoint.relevant_files];
        assert!(lists.iter().any(|list| list.contains(&name)), "round {round}: {name} is gone");
        assert!(rendered.contains(&name), "round {round}: {name} does not reach the prompt");
    }
    assert!(rendered.len() <= limits::TOKENS_MAX * 4, "round {round}: {} bytes", rendered.len());
}

#[test]
fn questions_constraints_and_identifiers_of_the_first_round_survive_a_hundred() {
    let mut checkpoint = None;
    for n in 0..ROUNDS {
        let next = extract(checkpoint.as_ref(), &round(n).candidates());
        assert_first_round_is_there(&next, n);
        // The newest round is there too: its ticket, its files, its decisions.
        let module_file = format!("part_{n}_4.rs");
        assert!(next.relevant_files.iter().any(|file| file.ends_with(&module_file)), "round {n}");
        assert!(next.decisions.iter().any(|decision| decision.contains(&format!("/{n}/2"))), "round {n}");
        assert!(next.goal.starts_with("We are moving the whole backend"), "{}", next.goal);
        // Pending work that was done in the round is no longer pending.
        assert_eq!(next.pending_work, Vec::<String>::new(), "round {n}");
        checkpoint = Some(next);
    }
}

/// A model that forgets everything but the new turns: the rules restore what it dropped.
#[test]
fn a_forgetful_model_loses_nothing_of_the_first_round_in_a_hundred() {
    let mut checkpoint = extract(None, &round(0).candidates());
    for n in 1..ROUNDS {
        let mut answer = Checkpoint {
            goal: "We are moving the whole backend to the new event store.".to_string(),
            decisions: vec![format!("Batch endpoint for round {n}.")],
            handoff_md: format!("Round {n} is done."),
            ..Checkpoint::default()
        };
        complete(&mut answer, Some(&checkpoint), &round(n).candidates());
        assert_first_round_is_there(&answer, n);
        assert!(answer.critical_identifiers.contains(&format!("MIG-{}", 100 + n)), "round {n}");
        checkpoint = answer;
    }
}

#[test]
fn a_question_is_gone_once_a_later_round_answers_it() {
    let first = extract(None, &round(0).candidates());
    assert!(first.unresolved_questions.iter().any(|question| question.contains("auditor")));
    let later = Talk::of(&[
        ("user", "Good news: the auditor does accept hashed customer names in the export."),
        ("assistant", "Then the export stays as it is."),
    ]);
    let second = extract(Some(&first), &later.candidates());
    assert!(!second.unresolved_questions.iter().any(|question| question.contains("auditor")), "{second:#?}");
    assert!(second.unresolved_questions.iter().any(|question| question.contains("acme-prod-17")));
    let mut answer = Checkpoint { goal: "g".into(), handoff_md: "h".into(), ..Checkpoint::default() };
    complete(&mut answer, Some(&first), &later.candidates());
    assert!(!answer.unresolved_questions.iter().any(|question| question.contains("auditor")), "{answer:#?}");
}

#[test]
fn the_same_turns_give_the_same_checkpoint() {
    let mut checkpoints = [None, None];
    for n in 0..20 {
        for checkpoint in &mut checkpoints {
            *checkpoint = Some(extract(checkpoint.as_ref(), &round(n).candidates()));
        }
        assert_eq!(checkpoints[0], checkpoints[1]);
    }
}

/// Regression: the summary that came with an imported session was gone after the next compaction, and the first words after it
/// were the goal.
#[test]
fn a_summary_from_elsewhere_is_carried_on_through_all_rounds() {
    let summaries = [
        (
            "# Checkpoint\n\n## Goal\nMove the billing service to the `heron` queue.\n\n## Preferences\n- E2E tests only",
            "Move the billing service to the `heron` queue.",
        ),
        (
            "This session continues another.\n1. Primary Request and Intent:\n   The user wants `heron` everywhere.\n\n2. Files:\n - a.rs",
            "The user wants `heron` everywhere.",
        ),
        ("**Goal:** Keep `heron` alive.\n\nDone so far: nothing.", "Keep `heron` alive."),
    ];
    for (summary, goal) in summaries {
        let mut checkpoint = Checkpoint { handoff_md: summary.into(), ..Checkpoint::default() };
        for n in 1..=10 {
            checkpoint = extract(Some(&checkpoint), &round(n).candidates());
            let text = render(&checkpoint);
            assert_eq!(text.matches(summary).count(), 1, "round {n}: {text}");
            assert!(text.len() <= limits::TOKENS_MAX * 4, "round {n}: {} bytes", text.len());
            assert_eq!(checkpoint.goal, goal);
            assert!(checkpoint.handoff_md.contains(summary), "transcript values have the note only");
        }
        assert!(render(&checkpoint).contains("MIG-110"), "and what came after it");
    }
    // A long one keeps its beginning and its end.
    let lines: Vec<String> = (0..2000).map(|n| format!("- line {n} of what was done")).collect();
    let long = Checkpoint { handoff_md: lines.join("\n"), ..Checkpoint::default() };
    let once = extract(Some(&long), &round(1).candidates());
    assert!(once.earlier_summary.len() <= limits::EARLIER_BYTES_MAX);
    assert!(
        once.earlier_summary.starts_with("- line 0 of")
            && once.earlier_summary.ends_with("- line 1999 of what was done")
    );
    assert!(once.earlier_summary.contains("done\n\n…\n\n- line"));
    let twice = extract(Some(&once), &round(2).candidates());
    assert_eq!(twice.earlier_summary, once.earlier_summary);
    assert!(render(&twice).len() <= limits::TOKENS_MAX * 4);
    // One that a model has read is in the model's words.
    let mut written =
        Checkpoint { handoff_md: "The model's note.".into(), goal: "Go on".into(), ..Checkpoint::default() };
    complete(&mut written, Some(&twice), &round(3).candidates());
    assert_eq!(written.earlier_summary, "");
}
