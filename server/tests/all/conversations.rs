//! Conversations over REST.

use crate::stage::{Stage, answer, config};
use everturn_engine::Everturn;
use reqwest::Method;
use serde_json::json;

const ALL: &str = "/api/v1/conversations";

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_is_made_and_found_again() {
    let stage = Stage::new().await;
    let body = json!({
        "title": "Hello", "owner": "ana", "metadata": {"n": 1}, "ttl": 3600, "retention": "audit-only",
        "policy": {"redaction": "mask"}, "system_prompt": "Be brief."
    });
    let made = stage.post(ALL, &body, 201).await;
    let id = made["id"].as_str().unwrap();
    let found = stage.get(&format!("{ALL}/{id}"), 200).await;
    assert_eq!(made, found);
    assert_eq!(found["title"], "Hello");
    assert_eq!(found["metadata"]["system_prompt"]["content"], "Be brief.");
    assert_eq!(found["retention"], "audit-only");
    for name in ["@last", &id[..id.len() - 1], id] {
        let named = stage.get(&format!("{ALL}/resolve?name={name}"), 200).await;
        assert_eq!(named["id"], id, "{name}");
    }
    let absent = stage.get("/api/v1/conversations/conv_01JD0000000000000000000000", 404).await;
    assert_eq!(absent["code"], "conversation.absent");
    assert_eq!(stage.get(&format!("{ALL}/nonsense"), 404).await["code"], "id.malformed");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_says_who_speaks_and_a_conversation_without_a_title_what_was_said_first() {
    let stage = Stage::new().await;
    let made = stage.post(ALL, &json!({}), 201).await;
    let id = made["id"].as_str().unwrap();
    let secret = format!("ghp_{}", "aB3d".repeat(9));
    let turns = json!({"turns": [
        {"role": "user", "content": "<command-name>/clear</command-name>"},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]},
        {"role": "user", "content": format!("Where is {secret}?\nTell me.")},
        {"role": "assistant", "content": "<command-name>"},
        {"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>be nice</system-reminder>"},
            {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
            {"type": "text", "text": "<timestamp>now</timestamp>\n<user_query>\nWhy?\n</user_query>"},
        ]},
    ]});
    stage.post(&format!("{ALL}/{id}/turns"), &turns, 201).await;
    let history = stage.get(&format!("{ALL}/{id}/turns"), 200).await;
    let turns = history["data"].as_array().unwrap();
    let speakers: Vec<Option<&str>> = turns.iter().map(|turn| turn["speaker"].as_str()).collect();
    assert_eq!(speakers, [Some("command"), Some("tool"), None, None, None]);
    let spoken = json!([
        {"notice": "reminder", "text": "<system-reminder>be nice</system-reminder>"},
        {"notice": "time", "text": "<timestamp>now</timestamp>"},
        {"text": "Why?"},
    ]);
    assert_eq!(turns[4]["spoken"], spoken);
    assert!(turns[..4].iter().all(|turn| turn.get("spoken").is_none()));
    let turn = format!("/api/v1/turns/{}?conversation={id}", turns[0]["id"].as_str().unwrap());
    assert_eq!(stage.get(&turn, 200).await["speaker"], "command");
    let read = stage.get(&format!("{ALL}/{id}"), 200).await;
    let preview = read["preview"].as_str().unwrap();
    assert!(preview.starts_with("Where is ") && !preview.contains(&secret), "{preview}");
    assert_eq!(stage.get(ALL, 200).await["data"][0]["preview"], preview);
    stage.send(Method::PATCH, &format!("{ALL}/{id}"), &json!({"title": "Keys"}), 200).await;
    assert_eq!(stage.get(&format!("{ALL}/{id}"), 200).await.get("preview"), None);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_go_through_everything_once() {
    let stage = Stage::new().await;
    let mut made = Vec::new();
    for n in 0..7 {
        let conversation = stage.post(ALL, &json!({"title": format!("No {n}")}), 201).await;
        made.push(conversation["id"].as_str().unwrap().to_string());
    }
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let page = stage.get(&format!("{ALL}?limit=3{after}"), 200).await;
        found.extend(page["data"].as_array().unwrap().iter().map(|c| c["id"].as_str().unwrap().to_string()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={}", next.replace('+', "%2B")),
            None => break,
        }
    }
    made.reverse();
    assert_eq!(found, made);
    let some = stage.get(&format!("{ALL}?query=No+3&state=active"), 200).await;
    assert_eq!(some["data"].as_array().unwrap().len(), 1);
    for (query, status, code) in [
        ("limit=0", 400, "limit.zero"),
        ("limit=1001", 413, "limit.exceeded"),
        ("limit=x", 400, "query.shape"),
        ("lmit=3", 400, "query.shape"),
        ("state=gone", 400, "query.shape"),
        ("after=x", 400, "list.after"),
    ] {
        assert_eq!(stage.get(&format!("{ALL}?{query}"), status).await["code"], code, "{query}");
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_makes_one_conversation() {
    let stage = Stage::new().await;
    let create = |title: &'static str| {
        let request = stage.request(Method::POST, ALL).header("idempotency-key", "k1");
        request.header("content-type", "application/json").body(json!({ "title": title }).to_string())
    };
    let first = answer(create("one"), 201).await;
    let again = answer(create("one"), 201).await;
    assert_eq!(first["id"], again["id"]);
    assert_eq!(answer(create("two"), 409).await["code"], "idempotency.reused");
    assert_eq!(stage.get(ALL, 200).await["data"].as_array().unwrap().len(), 1);
    // A fork and an open turn as well, even if the conversation has gone on meanwhile.
    let id = first["id"].as_str().unwrap();
    for (what, changed) in [("fork", json!({"at_seq": 1})), ("turns/open", json!({"actor": "other"}))] {
        let ask = |body: serde_json::Value| {
            let request =
                stage.request(Method::POST, &format!("{ALL}/{id}/{what}")).header("idempotency-key", "k2");
            request.header("content-type", "application/json").body(body.to_string())
        };
        let made = answer(ask(json!({})), 201).await;
        stage.say(id, "meanwhile").await;
        assert_eq!(answer(ask(json!({})), 201).await["id"], made["id"], "{what}");
        assert_eq!(answer(ask(changed), 409).await["code"], "idempotency.reused", "{what}");
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_refused_if_somebody_was_faster() {
    let stage = Stage::new().await;
    let path = format!("{ALL}/{}", stage.conversation().await);
    let etag = |response: &reqwest::Response| response.headers()["etag"].to_str().unwrap().to_string();
    let read = etag(&stage.request(Method::GET, &path).send().await.unwrap());

    let same = stage.request(Method::GET, &path).header("if-none-match", &read).send().await.unwrap();
    assert_eq!(same.status(), 304);
    assert_eq!(etag(&same), read);

    let patch = |tag: String, body: serde_json::Value| {
        let request = stage.request(Method::PATCH, &path).header("if-match", tag);
        request.header("content-type", "application/json").body(body.to_string())
    };
    let changed = patch(read.clone(), json!({"title": "A"})).send().await.unwrap();
    assert_eq!(changed.status(), 200);
    let new = etag(&changed);
    assert_ne!(new, read);
    let late = answer(patch(read.clone(), json!({"title": "B"})), 412).await;
    assert_eq!(late["code"], "conversation.changed");
    assert_eq!(stage.get(&path, 200).await["title"], "A");
    assert_eq!(answer(patch("x".into(), json!({})), 400).await["code"], "if_match.malformed");
    let fresh = stage.request(Method::GET, &path).header("if-none-match", &read).send().await.unwrap();
    assert_eq!(fresh.status(), 200);
    answer(patch(new, json!({"title": null, "metadata": {"a": [1]}, "system_prompt": "Hm."})), 200).await;
    let now = stage.get(&path, 200).await;
    assert!(now.get("title").is_none());
    assert_eq!(now["metadata"]["a"], json!([1]));
    answer(patch("*".into(), json!({"metadata": {"a": null}, "system_prompt": null})), 200).await;
    let now = stage.get(&path, 200).await;
    assert!(now["metadata"].get("a").is_none() && now.get("system_prompt").is_none());
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_archived_resumed_closed_reset_forked_deleted() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    let path = format!("{ALL}/{id}");
    stage.say(&id, "hello").await;
    let state = |state: &'static str| json!({"state": state, "reason": "test"});
    assert_eq!(stage.send(Method::PATCH, &path, &state("archived"), 200).await["state"], "archived");
    assert_eq!(stage.send(Method::PATCH, &path, &state("active"), 200).await["state"], "active");
    let fork = stage.post(&format!("{path}/fork"), &json!({}), 201).await;
    assert_eq!(fork["parent"]["conversation"], id.as_str());
    assert_eq!(fork["turns"], 1);
    let new = stage.post(&format!("{path}/reset"), &json!({}), 201).await;
    assert_eq!(new["predecessor"], id.as_str());
    assert_eq!(stage.get(&path, 200).await["state"], "closed");
    let late = json!({"turns": [{"role": "user", "content": "x"}]});
    stage.post(&format!("{path}/turns"), &late, 409).await;
    assert_eq!(stage.post(&format!("{path}/fork"), &json!({"at_seq": 99}), 400).await["status"], 400);
    let gone = stage.send(Method::DELETE, &format!("{path}?reason=test+data"), &json!({}), 200).await;
    assert_eq!(gone["reason"], "test data");
    stage.get(&path, 404).await;
    let tombstones = stage.get("/api/v1/tombstones", 200).await;
    assert_eq!(tombstones["data"][0]["id"], id.as_str());
    let heir = fork["id"].as_str().unwrap();
    assert_eq!(stage.get(&format!("{ALL}/{heir}/turns"), 200).await["data"][0]["content"], "hello");
    stage.stop().await;
}

/// Another tenant's objects look exactly like absent ones, whatever is tried.
#[tokio::test(flavor = "multi_thread")]
async fn another_tenants_ids_look_absent() {
    let store = Everturn::open("memory:").unwrap();
    let other = store.tenant("other").unwrap();
    let theirs = other.create(everturn_engine::NewConversation::default()).wait().unwrap().id();
    let said = other.conversation(theirs).append(everturn_engine::NewTurn::user("secret"));
    let turn = said.wait().unwrap().turns[0].id;
    let asset = other.conversation(theirs).assets().add(None, "text/plain", b"secret".to_vec()).unwrap().id;
    let stage = Stage::over(store, config()).await;
    let nobody = "conv_01JD0000000000000000000000";
    for rest in ["", "/turns", "/events", "/state", "/export", "/transcript", "/verify", "/generations"] {
        let theirs = stage.get(&format!("{ALL}/{theirs}{rest}"), 404).await;
        let absent = stage.get(&format!("{ALL}/{nobody}{rest}"), 404).await;
        assert_eq!(theirs["code"], absent["code"], "{rest}");
    }
    for (method, rest, body) in [
        (Method::POST, "/turns", json!({"turns": [{"role": "user", "content": "x"}]})),
        (Method::POST, "/turns/open", json!({})),
        (Method::POST, "/fork", json!({})),
        (Method::POST, "/context", json!({"token_budget": 1000})),
        (Method::POST, "/project", json!({"policy": "raw"})),
        (Method::POST, "/compact", json!({})),
        (Method::PUT, "/pins/a", json!({"value": 1})),
        (Method::PATCH, "", json!({"title": "mine"})),
        (Method::DELETE, "", json!({})),
    ] {
        stage.send(method, &format!("{ALL}/{theirs}{rest}"), &body, 404).await;
    }
    stage.get(&format!("/api/v1/turns/{turn}"), 404).await;
    stage.post(&format!("/api/v1/turns/{turn}/erase"), &json!({"reason": "x"}), 404).await;
    stage
        .post(&format!("/api/v1/turns/{turn}/supersede"), &json!({"role": "user", "content": "x"}), 404)
        .await;
    stage.get(&format!("/api/v1/assets/{asset}"), 404).await;
    stage.get(&format!("/api/v1/assets/{asset}/content"), 404).await;
    assert_eq!(stage.get(ALL, 200).await["data"], json!([]));
    assert_eq!(other.conversation(theirs).get().unwrap().head.seq, 3);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_expired_is_absent_before_it_is_swept() {
    let stage = Stage::new().await;
    let kept = stage.conversation().await;
    let gone = stage.post("/api/v1/conversations", &json!({"title": "A zebra", "ttl": 1}), 201).await;
    let path = format!("/api/v1/conversations/{}", gone["id"].as_str().unwrap());
    // The sweeper comes every half minute; a second is enough.
    let began = std::time::Instant::now();
    while stage.request(Method::GET, &path).send().await.unwrap().status() != 404 {
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "it is still there");
    }
    for below in ["", "/turns", "/state", "/events", "/export"] {
        let answer = stage.get(&format!("{path}{below}"), 404).await;
        assert_eq!(answer["code"], "conversation.absent", "{below}");
    }
    let turn = json!({"turns": [{"role": "user", "content": "too late"}]});
    assert_eq!(stage.post(&format!("{path}/turns"), &turn, 404).await["code"], "conversation.absent");
    let list = stage.get("/api/v1/conversations", 200).await;
    assert_eq!(
        (list["data"].as_array().unwrap().len(), list["data"][0]["id"].as_str()),
        (1, Some(kept.as_str()))
    );
    stage.stop().await;
}

/// An old session that is imported today was listed first, and was `@last`.
#[tokio::test(flavor = "multi_thread")]
async fn conversations_are_listed_by_what_was_said_last() {
    let stage = Stage::new().await;
    let new = async |project: &str, said: &str| {
        let body = json!({"metadata": {"import": {"format": "codex", "cwd": project}}});
        let id = stage.post(ALL, &body, 201).await["id"].as_str().unwrap().to_string();
        let turn = json!({"role": "user", "content": "hello", "occurred_at": said});
        stage.post(&format!("{ALL}/{id}/turns"), &json!({"turns": [turn]}), 201).await;
        id
    };
    let web = new("/home/ada/web", "2026-01-05T10:00:00Z").await;
    let api = new("/home/ada/api", "2026-01-03T10:00:00Z").await;
    let listed = async |query: &str| {
        let page = stage.get(&format!("{ALL}?{query}"), 200).await;
        let ids: Vec<String> =
            page["data"].as_array().unwrap().iter().map(|c| c["id"].as_str().unwrap().to_string()).collect();
        ids
    };
    assert_eq!(listed("").await, [web.clone(), api.clone()]);
    assert_eq!(listed("since=2026-01-04T00:00:00Z").await, std::slice::from_ref(&web));
    assert_eq!(listed("project=api").await, [api]);
    assert_eq!(stage.get(&format!("{ALL}/resolve?name=@last"), 200).await["id"], web);
    let found = stage.get(&format!("{ALL}/{web}"), 200).await;
    assert_eq!(
        (&found["began"], &found["last_said"]),
        (&json!("2026-01-05T10:00:00.000000Z"), &found["began"])
    );
    assert_eq!(stage.get(&format!("{ALL}?since=yesterday"), 400).await["code"], "query.shape");
    // A fork is as old as the turns that it inherits, and is told from its parent.
    let fork = stage.post(&format!("{ALL}/{web}/fork"), &json!({"at_seq": 2}), 201).await;
    assert_eq!((&fork["last_said"], &fork["preview"]), (&found["began"], &json!("hello (fork at #2)")));
    let first = &stage.get(&format!("{ALL}?limit=1"), 200).await["data"][0];
    assert_eq!((&first["id"], &first["preview"]), (&fork["id"], &fork["preview"]));
    stage.stop().await;
}

/// Each of these was accepted, and what was wrong with it ignored.
#[tokio::test(flavor = "multi_thread")]
async fn what_would_be_ignored_is_refused() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    let path = format!("{ALL}/{id}");
    assert_eq!(stage.get(&format!("{path}/transcript?x=1"), 400).await["code"], "query.shape");
    for tag in ["\"+1\"", "+1", "\"\"", "\"-1\""] {
        let request = stage
            .request(Method::PATCH, &path)
            .header("if-match", tag)
            .header("content-type", "application/json");
        let request = request.body(json!({"title": "A"}).to_string());
        assert_eq!(answer(request, 400).await["code"], "if_match.malformed", "{tag}");
    }
    let refused = stage.send(Method::DELETE, &path, &json!({"reason": "test data"}), 400).await;
    assert_eq!(refused["code"], "body.unexpected");
    for name in [".", ".."] {
        let refused = stage.post(&format!("{path}/approvals"), &json!({"approval_id": name}), 400).await;
        assert_eq!(refused["code"], "name.malformed", "{name}");
    }
    let open = stage.post(&format!("{path}/turns/open"), &json!({"role": "assistant"}), 201).await;
    let turn = format!("/api/v1/turns/{}", open["id"].as_str().unwrap());
    for last in
        [json!({"role": "user", "content": "hi"}), json!({"message": {"role": "user", "content": "hi"}})]
    {
        let refused = stage.post(&format!("{turn}/commit"), &last, 400).await;
        assert_eq!(refused["code"], "turn.role", "{last}");
    }
    let ended =
        stage.post(&format!("{turn}/commit"), &json!({"role": "assistant", "content": "hi"}), 200).await;
    assert_eq!(ended["status"], "complete");
    stage.send(Method::DELETE, &path, &json!({}), 200).await;
    stage.stop().await;
}
