//! The entries that the extractive checkpoint finds, list by list.

use crate::compaction_talk::Talk;
use everturn_views::compaction::{Checkpoint, extract, limits};
use serde_json::json;

fn of(lines: &[(&str, &str)]) -> Checkpoint {
    extract(None, &Talk::of(lines).candidates())
}

fn after(previous: &Checkpoint, lines: &[(&str, &str)]) -> Checkpoint {
    extract(Some(previous), &Talk::of(lines).candidates())
}

#[test]
fn the_goal_is_the_first_request_of_substance() {
    for (lines, goal) in [
        (
            &[
                ("user", "Hi there!"),
                ("assistant", "Hello!"),
                ("user", "I need a parser for RFC 5545 calendars."),
            ][..],
            "I need a parser for RFC 5545 calendars.",
        ),
        (
            &[("user", "Good morning. The nightly export is broken. Please fix it.")][..],
            "The nightly export is broken. Please fix it.",
        ),
        (
            &[("user", "You must not use Python. Write a backup script for the NAS in Bash.")][..],
            "Write a backup script for the NAS in Bash.",
        ),
        (
            &[("assistant", "Reminder: the quarterly backup test is due tomorrow.")][..],
            "Reminder: the quarterly backup test is due tomorrow.",
        ),
        (&[("user", "请帮我把数据库迁移到新的服务器。谢谢！")][..], "请帮我把数据库迁移到新的服务器。"),
        (
            &[(
                "user",
                "Our reports are slow. You must never touch the production tables or the nightly cron jobs.",
            )][..],
            "Our reports are slow.",
        ),
        (&[("user", "ok")][..], ""),
        (
            &[("user", "What does the parser do?"), ("assistant", "It parses every line of the file.")][..],
            "What does the parser do?",
        ),
        (&[("user", "Why is the sky blue?"), ("assistant", "Scattering.")][..], "Why is the sky blue?"),
        (
            &[
                ("user", "What is two and two?"),
                ("assistant", "Four."),
                ("user", "Thanks a lot"),
                ("user", "slow please"),
                ("assistant", "word0 word1 word2 word3 word4"),
                ("user", "ok"),
            ][..],
            "What is two and two?",
        ),
        (&[("user", "ok"), ("assistant", "The quarterly backup test is due tomorrow.")][..], ""),
    ] {
        assert_eq!(of(lines).goal, goal);
    }
}

#[test]
fn what_might_be_is_no_discovery() {
    let checkpoint = of(&[
        ("user", "Please find out why the export in report.py is slow."),
        (
            "assistant",
            "Setting BATCH_SIZE to 10 would slow report.py down further. The loop in report.py opens config.yaml 400 times.",
        ),
        ("user", "ok"),
    ]);
    let found = checkpoint.discoveries.join(" ");
    assert!(found.contains("400 times") && !found.contains("would"), "{found}");
}

#[test]
fn a_later_change_of_the_goal_replaces_it_and_remembers_the_first() {
    let first = of(&[("user", "Please write a blog post about our new cache.")]);
    assert_eq!(after(&first, &[("user", "Also mention the benchmark numbers.")]).goal, first.goal);
    let second = after(&first, &[("user", "Change of plans: we make a talk of it for the March meetup.")]);
    assert_eq!(
        second.goal,
        "Change of plans: we make a talk of it for the March meetup. (before that: Please write a blog post about our new cache.)"
    );
    let third = after(&second, &[("user", "Instead, please record a short video about eviction.")]);
    assert_eq!(
        third.goal,
        "Instead, please record a short video about eviction. (before that: Please write a blog post about our new cache.)"
    );
    assert_eq!(after(&third, &[("user", "Use tabs instead of spaces.")]).goal, third.goal);
}

#[test]
fn constraints_are_what_users_demand() {
    let found = of(&[
        (
            "user",
            "Build the importer. It must run offline. Never log passwords. I prefer small commits. Please don't touch main.rs.",
        ),
        ("assistant", "You must restart the server afterwards. Never mind the warning."),
        ("user", "Never mind, I don't know either. Use at most 200 MB of memory."),
    ]);
    assert_eq!(
        found.user_constraints,
        [
            "It must run offline.",
            "Never log passwords.",
            "I prefer small commits.",
            "Please don't touch main.rs.",
            "Use at most 200 MB of memory."
        ]
    );
}

#[test]
fn decisions_come_from_cues_short_answers_and_agreement() {
    let found = of(&[
        ("user", "Build a web shop for our bakery, please."),
        ("assistant", "Which database do you want?"),
        ("user", "PostgreSQL."),
        ("assistant", "I suggest we host it on a small server in Frankfurt."),
        ("user", "Sounds good."),
        ("assistant", "We'll use axum for the API. It is fast."),
        ("user", "Let's go with monthly invoices."),
    ]);
    assert_eq!(
        found.decisions,
        [
            "Which database do you want? → PostgreSQL.",
            "I suggest we host it on a small server in Frankfurt.",
            "We'll use axum for the API.",
            "Let's go with monthly invoices.",
        ]
    );
}

/// Regression: each next prompt was a decision, because it was short.
#[test]
fn prompts_that_answer_nothing_are_no_decisions() {
    let lines: Vec<(String, String)> = (0..6)
        .flat_map(|n| {
            let answer = format!("Module {n} parses its input and hands the rows on.");
            [("user".into(), format!("Question {n} about module_{n}.py")), ("assistant".into(), answer)]
        })
        .collect();
    let lines: Vec<(&str, &str)> = lines.iter().map(|(who, text)| (who.as_str(), text.as_str())).collect();
    let found = of(&lines);
    assert_eq!(found.decisions, Vec::<String>::new());
    assert!(!found.discoveries.iter().any(|entry| entry.contains("Question")), "{:?}", found.discoveries);
    // An answer to a question is one, however short.
    let found = of(&[
        ("user", "Store the ratings somewhere, please."),
        ("assistant", "Should they get a table of their own, or a column in orders?"),
        ("user", "Own table"),
    ]);
    assert!(found.decisions.iter().any(|entry| entry.ends_with("Own table")), "{:?}", found.decisions);
}

#[test]
fn what_is_not_done_yet_is_open() {
    let found = of(&[
        ("user", "Please add the export and document it."),
        (
            "assistant",
            "The export works and its tests pass. The manual page isn't written yet. The release waits for Priya's review.",
        ),
        ("user", "Good. Don't forget the changelog entry for 2.4."),
    ]);
    for words in ["isn't written yet", "waits for Priya's review", "changelog entry for 2.4"] {
        assert!(
            found.pending_work.iter().any(|entry| entry.contains(words)),
            "{words}: {:?}",
            found.pending_work
        );
    }
}

#[test]
fn discoveries_are_findings_and_errors_that_stayed() {
    let mut talk = Talk::of(&[
        ("user", "Why is the build red? Please find out."),
        ("assistant", "It turns out that the mirror is down. The root cause is an expired certificate."),
    ]);
    talk.tool(
        "shell",
        json!({"command":"make deploy"}),
        "step 1\nerror: cannot reach mirror.example.org\nstep 2",
    );
    talk.tool("shell", json!({"command":"make test"}), "error: 1 test failed");
    talk.tool("shell", json!({"command":"make test"}), "all fine");
    talk.tool("grep", json!({"pattern":"error"}), "src/log.rs\nerror: this is only a line that was found");
    talk.say(None, json!({"role":"assistant","content":[{"type":"tool_use","id":"x","name":"fetch","input":{"url":"https://a.example"}}]}));
    talk.say(None, json!({"role":"user","content":[{"type":"tool_result","tool_use_id":"x","is_error":true,"content":"connection refused"}]}));
    let found = extract(None, &talk.candidates());
    assert_eq!(
        found.discoveries,
        [
            "It turns out that the mirror is down.",
            "The root cause is an expired certificate.",
            "shell make deploy failed: error: cannot reach mirror.example.org",
            "fetch https://a.example failed: connection refused",
        ]
    );
    assert!(found.completed_work.contains(&"Ran shell: make test".to_string()), "{:?}", found.completed_work);
}

#[test]
fn completed_work_is_said_or_done_by_tools() {
    let mut talk = Talk::of(&[
        ("user", "Please tidy up the parser."),
        (
            "assistant",
            "Fixed the off-by-one in the lexer. It is not merged. Once the docs are updated, we can ship. All 12 tests pass.",
        ),
        ("assistant", "- [x] Rename the module\n- [ ] Write the changelog"),
    ]);
    for path in ["src/a.rs", "src/b.rs", "src/a.rs"] {
        talk.tool("edit_file", json!({"path": path}), "ok");
    }
    let found = extract(None, &talk.candidates());
    assert_eq!(
        found.completed_work,
        [
            "Fixed the off-by-one in the lexer.",
            "All 12 tests pass.",
            "Rename the module",
            "Ran edit_file: src/a.rs (2×), src/b.rs",
        ]
    );
    assert_eq!(found.pending_work, ["Write the changelog"]);
}

#[test]
fn pending_work_goes_once_it_is_done() {
    let first = of(&[
        ("user", "Please prepare the release."),
        (
            "assistant",
            "Next steps:\n\n1. Update the changelog\n2. Tag version 2.1.0\n\nI still need to check the licence headers.",
        ),
    ]);
    assert_eq!(
        first.pending_work,
        ["Update the changelog", "Tag version 2.1.0", "I still need to check the licence headers."]
    );
    let second = after(&first, &[("assistant", "Updated the changelog. Checked the licence headers too.")]);
    assert_eq!(second.pending_work, ["Tag version 2.1.0"]);
}

#[test]
fn what_is_announced_and_done_at_once_is_not_pending() {
    let mut talk = Talk::of(&[("user", "Find the bug in the scheduler, please.")]);
    talk.say(
        None,
        json!({"role":"assistant","content":[{"type":"text","text":"I'll run the scheduler tests now."},
        {"type":"tool_use","id":"a","name":"shell","input":{"command":"make test"}}]}),
    );
    talk.say(
        None,
        json!({"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"ok"}]}),
    );
    assert_eq!(extract(None, &talk.candidates()).pending_work, Vec::<String>::new());
}

#[test]
fn the_last_request_without_an_answer_is_pending() {
    let found = of(&[
        ("user", "Explain the cache to me."),
        ("assistant", "It keeps hot pages in memory."),
        ("user", "Please add a metric for evictions."),
    ]);
    assert_eq!(found.pending_work, ["Please add a metric for evictions."]);
}

#[test]
fn a_question_is_open_until_somebody_answers() {
    for (lines, open) in [
        // Answered by the next speaker.
        (&[("user", "Which port does the proxy use?"), ("assistant", "It listens on 8443.")][..], &[][..]),
        (&[("assistant", "Should I delete the old branch?"), ("user", "Yes.")][..], &[]),
        // Deferred, or answered with a question.
        (
            &[
                ("user", "Which port does the proxy use?"),
                ("assistant", "I'm not sure, I'll ask the network team."),
            ][..],
            &["Which port does the proxy use?"],
        ),
        (
            &[("user", "Which port does the proxy use?"), ("assistant", "Do you mean the inner proxy?")][..],
            &[
                "Which port does the proxy use?",
                "Do you mean the inner proxy? (asked by assistant, awaiting an answer)",
            ],
        ),
        // Stated to be open.
        (
            &[
                ("user", "Open question: who pays for the licences? The rest is clear."),
                ("assistant", "Noted, the rest is on its way."),
            ][..],
            &["Open question: who pays for the licences?"],
        ),
        // Rhetorical.
        (&[("assistant", "Why does the proxy fail? Because its certificate is old.")][..], &[]),
        // Nobody spoke after it.
        (
            &[("user", "Hello"), ("assistant", "Which file should I open?")][..],
            &["Which file should I open? (asked by assistant, awaiting an answer)"],
        ),
    ] {
        assert_eq!(of(lines).unresolved_questions, open, "{lines:?}");
    }
}

#[test]
fn a_question_at_the_end_of_a_round_is_answered_by_the_next() {
    let first =
        of(&[("user", "Please set up the mail server."), ("assistant", "Which domain should it serve?")]);
    assert_eq!(after(&first, &[("user", "example.org")]).unresolved_questions, Vec::<String>::new());
    let later = after(&first, &[("user", "No idea yet, I'll get back to you.")]);
    assert_eq!(later.unresolved_questions, ["Which domain should it serve?"]);
    // Small talk does not settle it any more, a statement about it does.
    let later = after(&later, &[("user", "The weather is nice."), ("assistant", "It is.")]);
    assert_eq!(later.unresolved_questions, ["Which domain should it serve?"]);
    let later = after(&later, &[("user", "By the way, the domain that it should serve is example.org.")]);
    assert_eq!(later.unresolved_questions, Vec::<String>::new());
}

#[test]
fn newer_evidence_replaces_what_says_nearly_the_same() {
    let first = of(&[(
        "user",
        "Plan the party for Sam. The budget for the party must stay below 300 EUR. It must not rain on the cake.",
    )]);
    let second = after(&first, &[("user", "The budget for the party must now stay below 450 EUR.")]);
    assert_eq!(
        second.user_constraints,
        ["The budget for the party must now stay below 450 EUR.", "It must not rain on the cake."]
    );
    // Without a word that says so it may be another budget.
    let third = after(&second, &[("user", "The budget for the party must stay below 90 EUR.")]);
    assert_eq!(third.user_constraints.len(), 3);
    // The same statement about something else is another entry.
    let files = of(&[("user", "Never edit src/a.rs by hand. Never edit src/b.rs by hand.")]);
    assert_eq!(files.user_constraints.len(), 2);
}

#[test]
fn who_said_it_is_told_where_several_people_talk() {
    let found = of(&[
        ("ana", "We need a gift for Tom. I'm allergic to lilies."),
        ("ben", "I'm allergic to lilies too. I booked a table at Luigi's for 19:30."),
    ]);
    assert!(found.user_constraints.contains(&"ana: I'm allergic to lilies.".to_string()), "{found:#?}");
    assert!(found.user_constraints.contains(&"ben: I'm allergic to lilies too.".to_string()), "{found:#?}");
    assert_eq!(found.completed_work, ["ben: I booked a table at Luigi's for 19:30."]);
}

#[test]
fn code_and_tool_output_are_not_prose_and_names_in_output_are_not_kept() {
    let mut talk = Talk::of(&[(
        "user",
        "Please review this:\n```rust\n// we must never panic here\nfn open() { load(\"conf/app.toml\") }\n```\nThanks.",
    )]);
    talk.tool(
        "shell",
        json!({"command":"tail app.log"}),
        "we decided to retry req_4711 at host-3.internal\nwe must stop",
    );
    let found = extract(None, &talk.candidates());
    assert_eq!((found.user_constraints, found.decisions), (vec![], vec![]));
    assert_eq!(found.relevant_files, ["app.log", "conf/app.toml"]);
    assert_eq!(found.critical_identifiers, Vec::<String>::new());
    // Repeated by somebody, they are.
    talk.say(None, json!({"role":"assistant","content":"The request req_4711 fails on host-3.internal."}));
    let found = extract(None, &talk.candidates());
    assert_eq!(found.critical_identifiers, ["req_4711", "host-3.internal"]);
}

#[test]
fn other_languages_are_ranked_without_cues() {
    let found = of(&[
        ("user", "我们需要把客户数据库从旧服务器迁移到新的云服务器。"),
        ("assistant", "好的。旧服务器上的客户数据库大约有两百万条记录。迁移客户数据库预计需要三个小时。"),
        ("user", "今天天气不错。客户数据库的备份保存在 /backup/customers.sql 文件里。"),
        ("assistant", "什么时候可以开始迁移？"),
    ]);
    assert_eq!(found.goal, "我们需要把客户数据库从旧服务器迁移到新的云服务器。");
    assert_eq!(
        found.discoveries,
        [
            "旧服务器上的客户数据库大约有两百万条记录。",
            "迁移客户数据库预计需要三个小时。",
            "客户数据库的备份保存在 /backup/customers.sql 文件里。"
        ]
    );
    assert_eq!(
        found.unresolved_questions,
        ["什么时候可以开始迁移？ (asked by assistant, awaiting an answer)"]
    );
    assert_eq!(found.relevant_files, ["/backup/customers.sql"]);
    let french = of(&[
        (
            "user",
            "Nous organisons le mariage de Claire au château de Vaux. Le château peut accueillir quatre-vingts invités.",
        ),
        ("assistant", "Très bien. Le traiteur du château propose un menu végétarien pour les invités."),
    ]);
    assert!(!french.discoveries.is_empty(), "{french:#?}");
}

#[test]
fn long_sentences_are_clipped_between_words() {
    let long = format!("You must never {} at all.", "repeat this very long demand ".repeat(40));
    let found = of(&[("user", &long)]);
    let entry = &found.user_constraints[0];
    assert!(entry.ends_with('…') && entry.chars().count() <= limits::ENTRY_CHARS_MAX);
    assert!(long.contains(entry.trim_end_matches('…')), "whole words: {entry}");
}

#[test]
fn erased_turns_and_silence_give_an_empty_checkpoint_and_keep_the_previous_one() {
    let mut talk = Talk::default();
    talk.turns.push((None, None, 10));
    let empty = extract(None, &talk.candidates());
    assert_eq!(empty.handoff_md, "Nothing was said in the covered turns.");
    assert_eq!(Checkpoint { handoff_md: String::new(), ..empty }, Checkpoint::default());
    let first = of(&[("user", "Please write a poem about rain. It must rhyme.")]);
    assert_eq!(extract(Some(&first), &talk.candidates()), first);
}

#[test]
fn the_note_says_goal_state_decisions_open_points_and_next_steps() {
    let found = of(&[
        ("user", "Please move our wiki to the new host."),
        ("assistant", "Added the redirects to nginx.conf. We'll use rsync for the images."),
        ("user", "Who owns the DNS zone?"),
        ("assistant", "I'm not sure. Next, I need to copy the attachments."),
    ]);
    assert_eq!(
        found.handoff_md,
        "**Goal:** Please move our wiki to the new host.\n\n**Where things stand**\n\n- Added the redirects to nginx.conf.\n\n\
         **Decided**\n\n- We'll use rsync for the images.\n\n**Open**\n\n- Who owns the DNS zone?\n\n\
         **Next**\n\n- Next, I need to copy the attachments."
    );
}

/// The output of Codex' commands is JSON in a string: its escapes were read as parts of names.
#[test]
fn names_in_json_in_a_string_are_read_without_its_escapes() {
    let mut talk = Talk::of(&[("user", "Where is the configuration of the ingester?")]);
    talk.tool(
        "shell",
        json!({"command":["ls"]}),
        r#"{"output":"conf/alpha.toml\nconf/wombat.yaml","metadata":{"exit_code":0}}"#,
    );
    talk.say(None, json!({"role":"assistant","content":"It is in wombat.yaml."}));
    talk.tool(
        "shell",
        json!({"command":["make"]}),
        r#"{"output":"cc a.c\nerror: no rule to make wombat","metadata":{"exit_code":2}}"#,
    );
    let found = extract(None, &talk.candidates());
    let text = format!("{found:?}");
    assert!(!text.contains("nconf") && !text.contains("\\\\n"), "{text}");
    assert_eq!(found.relevant_files, ["conf/wombat.yaml"]);
    assert_eq!(found.discoveries, ["shell make failed: error: no rule to make wombat"]);
}

/// Regression: only a result that was JSON as a whole was read so. Behind a header, or in an argument, `\n` became the first letter
/// of a file's name.
#[test]
fn names_in_json_behind_a_header_and_in_arguments_are_read_without_its_escapes() {
    let mut talk = Talk::of(&[("user", "Where is the configuration of the ingester?")]);
    talk.tool("find", json!({"query":"{\"paths\":\"intro\\nconf/quagga.yaml\"}"}), "none");
    talk.tool("find", json!({}), "Wall time: 0.13 seconds\nOutput:\n{\"text\":\"a\\nconf/okapi.yaml\"}");
    talk.say(None, json!({"role":"assistant","content":"It is in okapi.yaml, and not in quagga.yaml."}));
    talk.tool(
        "make",
        json!({}),
        "Exit code: 2\nOutput: {\"text\":\"cc a.c\\nerror: no rule to make wombat\"}",
    );
    let found = extract(None, &talk.candidates());
    assert_eq!(found.relevant_files, ["conf/okapi.yaml", "conf/quagga.yaml"]);
    assert_eq!(found.discoveries.last().unwrap(), "make failed: error: no rule to make wombat");
    assert!(!format!("{found:?}").contains("nconf"), "{found:?}");
}

#[test]
fn of_a_thousand_names_in_tool_output_those_that_people_said_stay() {
    let mut talk = Talk::of(&[("user", "Where is invoice INV-2024-77 for acme/billing-9?")]);
    let listing: String = (0..1000).map(|n| format!("logs/day_{n}.log id_{n}a\n")).collect();
    talk.tool("list", json!({"path":"logs"}), &listing);
    talk.say(None, json!({"role":"assistant","content":"It is in archive/inv_77.pdf."}));
    let found = extract(None, &talk.candidates());
    assert!(found.critical_identifiers.contains(&"INV-2024-77".to_string()));
    assert!(found.relevant_files.contains(&"archive/inv_77.pdf".to_string()));
    assert!(
        found.relevant_files.len() <= limits::FILES_MAX
            && found.critical_identifiers.len() <= limits::IDENTIFIERS_MAX
    );
}

#[test]
fn a_statement_about_another_thing_does_not_settle_a_question() {
    let first = of(&[
        ("user", "Which region stores the backups of tenant acme-1?"),
        ("assistant", "I'm not sure, I'll ask."),
    ]);
    assert_eq!(first.unresolved_questions.len(), 1);
    let lines = [("user", "The region that stores the backups of tenant acme-2 is Dublin.")];
    assert_eq!(after(&first, &lines).unresolved_questions, first.unresolved_questions);
    let lines = [("user", "The region that stores the backups of tenant acme-1 is Dublin.")];
    assert_eq!(after(&first, &lines).unresolved_questions, Vec::<String>::new());
}

/// Regression: each of these took time quadratic in its length.
#[test]
fn texts_that_are_made_to_be_slow_are_read_to_their_end() {
    for text in [
        "<ab>\n".repeat(100_000),
        "** ".repeat(200_000),
        "what is this thing? ".repeat(20_000),
        "Is alpha beta? It is not gamma. ".repeat(10_000),
        "must never 1 s. ".repeat(20_000),
        "- [ ] a\n".repeat(50_000),
        "a.".repeat(300_000),
        "1 ".repeat(300_000),
    ] {
        of(&[("user", &text), ("ana", &text)]);
    }
}

#[test]
fn a_question_of_someone_with_a_long_name_is_not_answered_by_themselves() {
    let name = "somebody-with-a-name-of-more-than-thirty-characters";
    let first = of(&[("ana", "Plan the trip to Rome, please."), (name, "Which hotel takes dogs?")]);
    assert_eq!(first.unresolved_questions.len(), 1, "{first:#?}");
    let second = after(&first, &[(name, "I forgot to say that I bring mine along.")]);
    assert_eq!(second.unresolved_questions, first.unresolved_questions);
    assert_eq!(after(&second, &[("ana", "The Miramar.")]).unresolved_questions, Vec::<String>::new());
}

#[test]
fn files_are_listed_once_and_edited_ones_first() {
    let mut talk =
        Talk::of(&[("user", "The runner loses its environment, see docs/env.md. We use Node.js 22.")]);
    talk.tool(
        "grep",
        json!({"pattern":"Env","path":"/home/d/run"}),
        "src/a.go:1: cmd.Env = nil\nvendor/x/b.go:2: x",
    );
    talk.tool(
        "read_file",
        json!({"path":"/home/d/run/src/read.go"}),
        "// cmd.Env must never be nil\nlog.Fatal()",
    );
    talk.tool("edit_file", json!({"path":"./src/exec.go"}), "ok");
    talk.tool("edit_file", json!({"path":"/home/d/run/src/exec.go"}), "ok");
    talk.tool("apply_patch", json!({"input":"*** Begin Patch\n*** Add File: src/env.go\n+x\n*** Add File: src/old.go\n+x\n*** End Patch"}), "ok");
    talk.tool("edit_file", json!({"path":"go.mod"}), "ok");
    talk.tool("shell", json!({"command":["bash","-lc","rm src/old.go && git checkout go.mod"]}), "");
    talk.say(None, json!({"role":"assistant","content":"exec.go:43 sets cmd.Env now, console.log is gone and git.exe finds it. See src/old.go."}));
    let found = extract(None, &talk.candidates());
    assert_eq!(found.relevant_files, ["src/exec.go", "src/env.go", "src/read.go", "docs/env.md"]);
    assert_eq!(found.critical_identifiers, ["/home/d/run"]);
    // The next round spells them alike, and a file that is removed later goes.
    let mut talk = Talk::of(&[("user", "Now the other platform, in /home/d/run/src/win.go.")]);
    talk.tool("edit_file", json!({"path":"/home/d/run/src/env.go"}), "ok");
    talk.tool("shell", json!({"command":"git rm src/read.go"}), "rm 'src/read.go'");
    let found = extract(Some(&found), &talk.candidates());
    assert_eq!(found.relevant_files, ["src/exec.go", "src/env.go", "docs/env.md", "src/win.go"]);
}

#[test]
fn a_pasted_log_is_neither_a_constraint_nor_a_finding_nor_the_goal() {
    let found = of(&[
        (
            "user",
            "CI is red since the new image, what's wrong?\n\n#9 3.2 warning: profiles will be ignored\n#12 88.1 error: failed to run the build of ssl-sys\n#12 88.1 You must set SSL_DIR and never commit it.\nERROR: process did not complete: exit code 101",
        ),
        ("assistant", "The new image has no headers of OpenSSL any more."),
        (
            "user",
            "The image must stay below 80 MB.\n\n2026-11-12T08:14:02Z WARN operators must acknowledge\n2026-11-12T08:14:03Z ERROR never reached, giving up",
        ),
    ]);
    assert_eq!(found.goal, "CI is red since the new image, what's wrong?");
    assert_eq!(found.user_constraints, ["The image must stay below 80 MB."]);
    let text = format!("{found:?}");
    assert!(
        !text.contains("SSL_DIR") && !text.contains("acknowledge") && !text.contains("giving up"),
        "{text}"
    );
}

#[test]
fn what_was_announced_and_followed_is_neither_pending_nor_a_discovery() {
    let mut talk = Talk::of(&[
        ("user", "Please add an allow list to the runner."),
        ("assistant", "Next I'll add it beside the start function."),
    ]);
    talk.tool("edit_file", json!({"path":"src/env.rs"}), "ok");
    talk.say(None, json!({"role":"assistant","content":"Now let me add tests for the allow list."}));
    talk.tool("edit_file", json!({"path":"tests/env.rs"}), "ok");
    let found = extract(None, &talk.candidates());
    assert_eq!((&found.pending_work, &found.discoveries), (&vec![], &vec![]));
    // What was announced last and not begun is.
    talk.say(None, json!({"role":"assistant","content":"I'll document the allow list in docs/env.md."}));
    assert_eq!(
        extract(None, &talk.candidates()).pending_work,
        ["I'll document the allow list in docs/env.md."]
    );
}

/// Steps in the present tense, each followed by its call, were the discoveries of a session, and the first of them its next step.
#[test]
fn steps_that_are_named_as_they_are_taken_are_neither_next_nor_discoveries() {
    let mut talk =
        Talk::of(&[("user", "Make the lexer accept files without a trailing newline. Never touch vendor/.")]);
    let finding = "I found that the lexer drops the last token when the file has no newline.";
    for step in [
        "I'm going to read the tokenizer first.",
        "Now I update src/lexer.rs to skip comments.",
        "Next up: the tests in tests/lexer.rs.",
        "Time to change src/parse.rs as well.",
        "Updating the README with the new flag.",
        "Moving on to src/eval.rs.",
        finding,
        "First I open Cargo.toml.",
        "I edit src/cli.rs to pass the flag.",
        "Then I rename parse_all to parse_file.",
        "Step 7: I edit src/file7.rs now.",
        "Going to clean up the debug prints.",
        "I write the changelog entry now.",
    ] {
        talk.say(None, json!({"role":"assistant","content":step}));
        talk.tool("Bash", json!({"command":"cargo test"}), "ok");
    }
    talk.say(None, json!({"role":"assistant","content":"All 42 tests are green."}));
    let found = extract(None, &talk.candidates());
    assert!(found.discoveries.iter().any(|entry| entry == finding), "{:?}", found.discoveries);
    let others: Vec<&String> =
        found.discoveries.iter().filter(|entry| *entry != finding && !entry.contains("42 tests")).collect();
    assert!(others.is_empty(), "{others:?}");
    assert_eq!(found.pending_work, Vec::<String>::new());
    // Without a call, it may be a statement, and what comes next is open.
    let lines = [
        ("user", "How long does the suite take on the build server?"),
        (
            "assistant",
            "Running the whole suite on build-3 takes 40 minutes. Next up: the tests in tests/lexer.rs.",
        ),
    ];
    let found = of(&lines);
    assert_eq!(found.discoveries, ["Running the whole suite on build-3 takes 40 minutes."]);
    assert_eq!(found.pending_work, ["Next up: the tests in tests/lexer.rs."]);
}

#[test]
fn work_that_is_done_declined_or_listed_anew_is_not_next() {
    let mut talk = Talk::of(&[
        ("user", "Write the guide for our tool."),
        (
            "assistant",
            "The guide is written.\n\nNot done yet:\n- a picture for chapter 2\n- the title in docs/index.md\n- the index of terms",
        ),
        ("user", "The picture I make myself."),
    ]);
    talk.tool("edit_file", json!({"path":"docs/index.md"}), "ok");
    let first = extract(None, &talk.candidates());
    assert_eq!(first.pending_work, ["the index of terms"]);
    // All that is left replaces what was left before, also in a later round.
    talk.say(
        None,
        json!({"role":"assistant","content":"What remains is a German translation, if you want one?"}),
    );
    talk.say(Some("user"), json!({"role":"user","content":"Yes, but only after the release."}));
    let all = extract(None, &talk.candidates());
    assert_eq!(all.pending_work, ["What remains is a German translation, if you want one?"]);
    let later = after(&first, &[("assistant", "What remains is a German translation."), ("user", "Fine.")]);
    assert_eq!(later.pending_work, ["What remains is a German translation."]);
    // The list that an agent keeps with a tool of its own.
    talk.tool("TodoWrite", json!({"todos":[{"content":"Translate","status":"completed"},{"content":"Send it to Oskar","status":"pending"}]}), "ok");
    assert_eq!(extract(None, &talk.candidates()).pending_work, ["Send it to Oskar"]);
}

#[test]
fn a_demand_that_is_taken_back_goes() {
    let lines = [
        ("user", "Make the dialog accessible. Don't change the colours of the buttons. No new packages."),
        ("assistant", "The contrast of the buttons is too low, 2.9 to 1."),
        ("user", "Ok, forget what I said about the colours of the buttons."),
    ];
    assert_eq!(of(&lines).user_constraints, ["No new packages."]);
    assert_eq!(after(&of(&lines[..1]), &lines[1..]).user_constraints, ["No new packages."]);
}

#[test]
fn a_todo_app_that_is_ready_is_no_work() {
    let ready = of(&[
        ("user", "Build a TODO app in React."),
        ("assistant", "The TODO app is now ready. The component for a TODO works in src/Todo.tsx."),
    ]);
    assert_eq!(ready.pending_work, Vec::<String>::new());
    let left = of(&[
        ("user", "Build an app in React."),
        ("assistant", "I built it in src/App.tsx. TODO: translate the error messages."),
    ]);
    assert_eq!(left.pending_work.len(), 1, "{left:?}");
}

/// Regression: what was needed and done at once was left, the noun "pending" made work of anything.
#[test]
fn steps_that_were_taken_are_not_left() {
    let mut talk = Talk::of(&[("user", "The bash output is lost. We need a queue for it in the session.")]);
    for (text, path) in [
        ("Now I need to move pending bash components to the chat.", "/w/app/src/cli/args.ts"),
        (
            "The parameter `deferred` needs to be passed on. Now update `handleBashCommand` for pending output.",
            "/w/app/src/modes/chat.ts",
        ),
    ] {
        talk.say(None, json!({"role":"assistant","content":text}));
        talk.tool("edit_file", json!({"path":path}), "ok");
    }
    for (role, text) in [
        ("assistant", "The queue in cli/args.ts holds pending messages until the agent ends."),
        ("user", "Look at @src/cli/args.ts again.\n\n+314 - Tips for creating harmonious themes"),
        ("assistant", "The queue in src/cli/args.ts is complete. The docs are not written yet."),
        ("user", "fine"),
    ] {
        talk.say(None, json!({"role":role,"content":text}));
    }
    let checkpoint = extract(None, &talk.candidates());
    assert_eq!(checkpoint.pending_work, ["The docs are not written yet."]);
    assert_eq!(checkpoint.relevant_files, ["src/cli/args.ts", "src/modes/chat.ts"]);
    assert!(!format!("{checkpoint:?}").contains("harmonious"), "{checkpoint:?}");
}
