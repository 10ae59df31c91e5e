//! When a compaction is due and where it cuts.

use crate::compaction_talk::Talk;
use everturn_core::json::Raw;
use everturn_core::policy::{CompactionPolicy, CompactionStrategy, OnOverflow, is_due};
use everturn_views::compaction::{MULTIMODAL_KEPT, RECENT_TURNS, limits, plan};
use proptest::prelude::*;
// The prelude's `CompactionStrategy` is hidden by ours.
use proptest::strategy::Strategy as Generator;
use serde_json::{Value, json};

fn policy(text: &str) -> CompactionPolicy {
    CompactionPolicy::parse(&Raw::new(text.to_string()).unwrap()).unwrap()
}

#[test]
fn the_default_policy_is_the_one_that_is_promised() {
    let default = policy("{}");
    assert_eq!(default, CompactionPolicy::default());
    assert_eq!((default.max_turns, default.max_tokens, default.keep_last), (50, 8000, 2));
    assert_eq!((default.strategy, default.auto), (CompactionStrategy::Half, true));
    assert_eq!((default.summarizer, default.on_overflow), (None, OnOverflow::CompactAndRetry));
    assert_eq!((default.input_limit, default.reserved_tokens), (None, 20_000));
}

#[test]
fn every_field_of_a_policy_is_read_and_written_back() {
    let text = r#"{"max_turns":7,"max_tokens":900,"keep_last":0,"strategy":"threshold","auto":false,
        "summarizer":"small-model","on_overflow":"fail","input_limit":128000,"reserved_tokens":1000,"timeout_s":5}"#;
    let policy = policy(text);
    let expected: Value = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_value(&policy).unwrap(), expected);
}

#[test]
fn a_wrong_policy_is_refused_and_the_field_is_named() {
    for (text, field) in [
        (r#"{"max_turns":-1}"#, "policy.compaction.max_turns"),
        (r#"{"max_turns":1.5}"#, "policy.compaction.max_turns"),
        (r#"{"max_tokens":"8000"}"#, "policy.compaction.max_tokens"),
        (r#"{"keep_last":null}"#, "policy.compaction.keep_last"),
        (r#"{"strategy":"middle"}"#, "policy.compaction.strategy"),
        (r#"{"auto":1}"#, "policy.compaction.auto"),
        (r#"{"summarizer":" "}"#, "policy.compaction.summarizer"),
        (r#"{"on_overflow":"panic"}"#, "policy.compaction.on_overflow"),
        (r#"{"input_limit":-5}"#, "policy.compaction.input_limit"),
        (r#"{"input_limit":20000}"#, "policy.compaction.input_limit"),
        (r#"{"strategy":"threshold"}"#, "policy.compaction.input_limit"),
        (r#"{"reserved_tokens":[]}"#, "policy.compaction.reserved_tokens"),
        (r#"{"timeout_s":0}"#, "policy.compaction.timeout_s"),
        (r#"{"max_turn":50}"#, "policy.compaction.max_turn is unknown"),
        ("[]", "policy.compaction must be an object"),
        ("null", "policy.compaction must be an object"),
    ] {
        let error = CompactionPolicy::parse(&Raw::new(text.to_string()).unwrap()).unwrap_err();
        assert!(error.text().starts_with(field), "{text}: {error}");
        assert_eq!(error.code(), "policy.compaction");
    }
}

#[test]
fn due_means_more_than_the_limit() {
    let half = CompactionPolicy::default();
    assert!(!is_due(&half, 50, 8000, 8000));
    assert!(is_due(&half, 51, 0, 0));
    assert!(is_due(&half, 1, 8001, 8001));
    assert!(!is_due(&half, 0, 9999, 9999), "there is nothing to cover");
    assert!(!is_due(&CompactionPolicy { auto: false, ..half }, 999, 99_999, 99_999));
    let threshold = policy(r#"{"strategy":"threshold","input_limit":128000}"#);
    assert!(!is_due(&threshold, 999, 99_999, 107_999));
    assert!(is_due(&threshold, 1, 1, 108_000), "reaching it is enough");
}

fn talk(turns: usize) -> Talk {
    let mut talk = Talk::default();
    for n in 0..turns {
        talk.say(None, json!({"role": if n % 2 == 0 { "user" } else { "assistant" }, "content": "words"}));
        talk.turns[n].2 = 100;
    }
    talk
}

#[test]
fn half_covers_the_oldest_half_rounded_down_and_at_least_one_turn() {
    let policy = CompactionPolicy { max_turns: 0, ..CompactionPolicy::default() };
    for (turns, covered) in [(1, 1), (2, 1), (3, 1), (51, 25), (52, 26)] {
        let talk = talk(turns);
        let cut = plan(&policy, &talk.candidates(), None, false).unwrap();
        assert_eq!(cut.turns, covered, "{turns} turns");
        let last = talk.candidates()[covered - 1];
        assert_eq!((cut.from_seq, cut.to_seq, cut.through), (1, last.seq, last.turn));
        assert_eq!(cut.tokens, 100 * covered as u64);
    }
}

#[test]
fn tail_keeps_the_last_turns() {
    let policy = CompactionPolicy {
        max_turns: 0,
        strategy: CompactionStrategy::Tail,
        keep_last: 3,
        ..CompactionPolicy::default()
    };
    assert_eq!(plan(&policy, &talk(10).candidates(), None, false).unwrap().turns, 7);
    assert_eq!(plan(&policy, &talk(3).candidates(), None, true), None);
}

#[test]
fn threshold_covers_until_the_rest_and_the_checkpoint_need_half() {
    let limit = 20_000 + 4 * limits::TOKENS_MAX as u64;
    let policy = policy(&format!(r#"{{"strategy":"threshold","input_limit":{limit}}}"#));
    // Half of the room is twice the largest checkpoint, so the rest may be as large as one.
    let talk = talk(300);
    let cut = plan(&policy, &talk.candidates(), None, false).unwrap();
    assert_eq!((300 - cut.turns) * 100, limits::TOKENS_MAX);
    assert_eq!(plan(&policy, &crate::compaction_plan::talk(20).candidates(), None, false), None, "not due");
    assert_eq!(plan(&policy, &crate::compaction_plan::talk(20).candidates(), None, true).unwrap().turns, 10);
}

#[test]
fn by_hand_it_runs_without_being_due_and_with_auto_off() {
    let policy = CompactionPolicy { auto: false, ..CompactionPolicy::default() };
    let talk = talk(60);
    assert_eq!(plan(&policy, &talk.candidates(), None, false), None);
    assert_eq!(plan(&policy, &talk.candidates(), None, true).unwrap().turns, 30);
    assert_eq!(plan(&policy, &[], None, true), None);
}

#[test]
fn a_pending_approval_tool_or_open_turn_is_not_passed() {
    let talk = talk(60);
    let turns = talk.candidates();
    let policy = CompactionPolicy::default();
    assert_eq!(plan(&policy, &turns, Some(turns[4].seq), true).unwrap().turns, 4);
    // The barrier is an event between two turns.
    assert_eq!(plan(&policy, &turns, Some(turns[4].seq + 1), true).unwrap().turns, 5);
    assert_eq!(plan(&policy, &turns, Some(turns[0].seq), true), None);
    assert_eq!(plan(&policy, &turns, Some(9999), true).unwrap().turns, 30);
}

#[test]
fn a_group_across_the_wanted_place_is_covered_as_a_whole_or_not_at_all() {
    let mut talk = Talk::default();
    let calls: Vec<Value> =
        (0..6).map(|n| json!({"type":"tool_use","id":format!("t{n}"),"name":"ls","input":{}})).collect();
    talk.say(None, json!({"role":"assistant","content":calls}));
    for n in 0..6 {
        talk.say(None, json!({"role":"user","content":[{"type":"tool_result","tool_use_id":format!("t{n}"),"content":"x"}]}));
    }
    talk.say(None, json!({"role":"assistant","content":"done"}));
    let turns = talk.candidates();
    assert_eq!(plan(&CompactionPolicy::default(), &turns, None, true).unwrap().turns, 7);
    assert_eq!(plan(&CompactionPolicy::default(), &turns, Some(turns[6].seq), true), None);
}

#[test]
fn recent_turns_with_media_stay_and_old_ones_do_not_block() {
    let image = json!({"role":"user","content":[{"type":"image","asset_id":"asset_1"}]});
    let screenshot = json!({"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{}}]}]});
    let policy =
        CompactionPolicy { strategy: CompactionStrategy::Tail, keep_last: 1, ..CompactionPolicy::default() };
    let with = |places: &[usize], message: &Value| {
        let mut talk = talk(20);
        for place in places {
            talk.turns[*place].1 = Some(message.clone());
        }
        plan(&policy, &talk.candidates(), None, true).map(|cut| cut.turns)
    };
    assert_eq!(with(&[], &image), Some(19));
    assert_eq!(with(&[14], &image), Some(14));
    assert_eq!(with(&[14], &screenshot), Some(14));
    assert_eq!(with(&[20 - RECENT_TURNS - 1], &image), Some(19), "an old picture is summarized");
    let all: Vec<usize> = (12..20).collect();
    assert_eq!(with(&all, &image), Some(20 - MULTIMODAL_KEPT), "not more than the newest few");
    // With nothing else to cover, the oldest image is covered first.
    let mut talk = Talk::default();
    for _ in 0..3 {
        talk.say(None, image.clone());
    }
    assert_eq!(plan(&policy, &talk.candidates(), None, true).unwrap().turns, 1);
}

#[derive(Clone, Debug)]
enum Step {
    Say(bool),
    Media,
    Erased,
    /// Shape, number of parallel calls, number of turns between the calls and their results.
    Tools(u8, usize, usize),
}

fn step() -> impl Generator<Value = Step> {
    prop_oneof![
        3 => any::<bool>().prop_map(Step::Say),
        1 => Just(Step::Media),
        1 => Just(Step::Erased),
        3 => (0u8..4, 1usize..4, 0usize..3).prop_map(|(shape, calls, between)| Step::Tools(shape, calls, between)),
    ]
}

/// The turns, and for each call the indices of call and result.
fn build(steps: &[Step]) -> (Talk, Vec<(usize, usize)>) {
    let mut talk = Talk::default();
    let mut pairs = Vec::new();
    for (n, step) in steps.iter().enumerate() {
        match step {
            Step::Say(user) => {
                talk.say(None, json!({"role": if *user { "user" } else { "assistant" }, "content": "hm"}));
            }
            Step::Media => {
                talk.say(None, json!({"role":"user","content":[{"type":"input_image","image_url":"x"}]}));
            }
            Step::Erased => talk.turns.push((None, None, 1)),
            Step::Tools(shape, calls, between) => {
                let ids: Vec<String> = (0..*calls).map(|k| format!("c{n}_{k}")).collect();
                let start = talk.turns.len();
                match shape {
                    0 => {
                        let calls: Vec<Value> = ids
                            .iter()
                            .map(|id| json!({"id":id,"function":{"name":"f","arguments":"{}"}}))
                            .collect();
                        talk.say(None, json!({"role":"assistant","content":null,"tool_calls":calls}));
                    }
                    1 => {
                        let calls: Vec<Value> = ids
                            .iter()
                            .map(|id| json!({"type":"tool_use","id":id,"name":"f","input":{}}))
                            .collect();
                        talk.say(None, json!({"role":"assistant","content":calls}));
                    }
                    2 => {
                        let calls: Vec<Value> =
                            ids.iter().map(|id| json!({"type":"tool_call","id":id,"name":"f"})).collect();
                        talk.say(None, json!({"role":"assistant","content":calls}));
                    }
                    _ => {
                        for id in &ids {
                            talk.say(
                                None,
                                json!({"type":"function_call","call_id":id,"name":"f","arguments":"{}"}),
                            );
                        }
                    }
                }
                for _ in 0..*between {
                    talk.say(None, json!({"role":"user","content":"wait"}));
                }
                for (k, id) in ids.iter().enumerate() {
                    let call = if *shape == 3 { start + k } else { start };
                    pairs.push((call, talk.turns.len()));
                    talk.say(None, match shape {
                        0 => json!({"role":"tool","tool_call_id":id,"content":"r"}),
                        1 => json!({"role":"user","content":[{"type":"tool_result","tool_use_id":id,"content":"r"}]}),
                        2 => json!({"role":"tool","content":[{"type":"tool_result","tool_call_id":id,"content":"r"}]}),
                        _ => json!({"type":"function_call_output","call_id":id,"output":"r"}),
                    });
                }
            }
        }
    }
    (talk, pairs)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Compared with a plain search over all indices.
    #[test]
    fn the_cut_is_the_best_legal_one(
        steps in prop::collection::vec(step(), 0..25),
        barrier in prop::option::of(0u64..80),
        strategy in 0u8..3,
        keep_last in 0usize..5,
        forced: bool,
    ) {
        let (mut talk, pairs) = build(&steps);
        for turn in &mut talk.turns {
            turn.2 = 1000;
        }
        let turns = talk.candidates();
        let strategy = [CompactionStrategy::Half, CompactionStrategy::Tail, CompactionStrategy::Threshold][usize::from(strategy)];
        let policy = CompactionPolicy { strategy, keep_last, max_turns: 10, input_limit: Some(40_000), ..CompactionPolicy::default() };
        let cut = plan(&policy, &turns, barrier, forced);

        let n = turns.len();
        let tokens = 1000 * n as u64;
        let due = match strategy {
            CompactionStrategy::Threshold => tokens + limits::TOKENS_MAX as u64 >= 20_000,
            _ => n > 10 || tokens > 8000,
        };
        let half = (n / 2).max(1);
        let (wanted, reach) = match strategy {
            CompactionStrategy::Half => (half, n),
            CompactionStrategy::Tail => (n.saturating_sub(keep_last), n.saturating_sub(keep_last)),
            CompactionStrategy::Threshold => {
                // Five turns of 1000 tokens and a checkpoint are half of the room.
                let count = n.saturating_sub(5);
                (if count == 0 && forced { half } else { count }, n.saturating_sub(keep_last))
            }
        };
        let before_barrier = barrier.map_or(n, |seq| turns.iter().filter(|turn| turn.seq < seq).count());
        let reach = reach.min(before_barrier);
        let legal = |place: usize| pairs.iter().all(|(call, result)| (*call < place) == (*result < place));
        let media: Vec<usize> = (0..n)
            .filter(|index| *index + RECENT_TURNS >= n)
            .filter(|index| turns[*index].message.is_some_and(|m| m.to_string().contains("input_image")))
            .collect();
        let newest = &media[media.len().saturating_sub(MULTIMODAL_KEPT)..];
        let mut expected = None;
        if n > 0 && (forced || due) {
            let limits = newest.iter().copied().chain([n]);
            for limit in limits {
                let reach = reach.min(limit);
                let wanted = wanted.min(reach);
                if wanted == 0 {
                    continue;
                }
                expected = (1..=wanted).rev().find(|place| legal(*place)).or_else(|| (wanted..=reach).find(|place| legal(*place)));
                if expected.is_some() {
                    break;
                }
            }
        }
        prop_assert_eq!(cut.map(|cut| cut.turns), expected);
    }
}
