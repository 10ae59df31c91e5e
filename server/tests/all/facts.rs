//! Facts over REST.

use crate::generations::{self, done};
use crate::stage::Stage;
use reqwest::Method;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn facts_are_added_listed_corrected_and_taken_back() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    let path = format!("/api/v1/conversations/{id}/facts");
    let turn = stage.say(&id, "I live in Lisbon.").await;
    let lisbon = json!({"subject": "Ana", "predicate": "lives in", "object": "Lisbon", "source_turn": turn["id"],
        "quote": "live in Lisbon", "confidence": 0.5, "by": "ben"});
    let added = stage.post(&path, &lisbon, 201).await;
    assert_eq!((&added["status"], &added["sources"][0]["turn"]), (&json!("current"), &turn["id"]));
    let place = added["seq"].as_u64().unwrap();
    let porto = json!({"subject": "ana", "predicate": "LIVES IN", "object": "Porto"});
    let porto = stage.post(&path, &porto, 201).await;
    assert_eq!(stage.get(&path, 200).await["data"], json!([porto]));
    assert_eq!(stage.get(&format!("{path}?as_of={place}"), 200).await["data"], json!([added]));
    let first = stage.get(&format!("{path}?include_superseded=true&limit=1"), 200).await;
    assert_eq!(
        (&first["data"][0]["superseded_by"], &first["next"]),
        (&porto["id"], &json!(place.to_string()))
    );
    let fact = format!("/api/v1/facts/{}", porto["id"].as_str().unwrap());
    assert_eq!(stage.get(&fact, 200).await, porto);
    let gaia = stage.send(Method::PATCH, &fact, &json!({"object": "Gaia"}), 200).await;
    assert_eq!((&gaia["subject"], &gaia["corrects"]), (&json!("ana"), &porto["id"]));
    assert_eq!(stage.send(Method::PATCH, &fact, &json!({"objekt": "x"}), 400).await["code"], "body.shape");
    let gaia = format!("/api/v1/facts/{}", gaia["id"].as_str().unwrap());
    let gone = stage.request(Method::DELETE, &format!("{gaia}?reason=moved&by=ana"));
    let gone = crate::stage::answer(gone, 200).await;
    assert_eq!((&gone["status"], &gone["retracted"]["reason"]), (&json!("retracted"), &json!("moved")));
    assert_eq!(stage.send(Method::DELETE, &gaia, &json!({}), 409).await["code"], "fact.retracted");
    assert_eq!(stage.get(&path, 200).await["data"], json!([]));
    let all = stage.get(&format!("{path}?include_superseded=true&include_retracted=true"), 200).await;
    assert_eq!(all["data"].as_array().unwrap().len(), 3);
    let wrong = json!({"subject": "Ana", "predicate": "lives in", "object": "Faro", "source_turn": turn["id"], "quote": "in Faro"});
    assert_eq!(stage.post(&path, &wrong, 400).await["code"], "fact.ungrounded");
    assert_eq!(stage.get("/api/v1/facts/fact_01JD0000000000000000000000", 404).await["code"], "fact.absent");
    assert_eq!(stage.post(&format!("{path}/extract"), &json!({}), 400).await["code"], "model.none");
    stage.stop().await;
}

/// A fork's view of inherited facts is its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_takes_back_what_it_inherited_for_itself_only() {
    let stage = Stage::new().await;
    let id = stage.conversation().await;
    let path = format!("/api/v1/conversations/{id}");
    let tea = json!({"subject": "Ana", "predicate": "drinks", "object": "tea"});
    let tea = stage.post(&format!("{path}/facts"), &tea, 201).await;
    let fork = stage.post(&format!("{path}/fork"), &json!({}), 201).await["id"].as_str().unwrap().to_string();
    let fact = format!("/api/v1/facts/{}", tea["id"].as_str().unwrap());
    let gone = stage.request(Method::DELETE, &format!("{fact}?conversation={fork}"));
    crate::stage::answer(gone, 200).await;
    assert_eq!(stage.get(&format!("/api/v1/conversations/{fork}/facts"), 200).await["data"], json!([]));
    assert_eq!(stage.get(&format!("{path}/facts"), 200).await["data"], json!([tea]));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_reads_and_what_it_makes_up_is_counted() {
    let (stage, tell) = generations::stage().await;
    let id = stage.conversation().await;
    let path = format!("/api/v1/conversations/{id}/facts");
    stage.say(&id, "The service listens on port 5432.").await;
    let found = |quote: &str| {
        json!({"subject": "The service", "predicate": "listens on", "object": "port 5432", "confidence": 0.9,
            "source_turn": 2, "quote": quote})
    };
    let answer = json!({"facts": [found("listens on port 5432"), found("listens on all ports")]});
    tell.send(done(&answer.to_string())).unwrap();
    let read = stage.post(&format!("{path}/extract"), &json!({}), 200).await;
    assert_eq!((&read["turns"], &read["dropped"]["ungrounded"]), (&json!(1), &json!(1)));
    assert_eq!(stage.get(&path, 200).await["data"], read["facts"]);
    assert_eq!(read["facts"][0]["by"], "told-1");
    stage.stop().await;
}
