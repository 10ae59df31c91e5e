//! One set of settings: a server, `mcp` and every verb use the same store, models and embedders.

use crate::changing::{fake_model, read_body};
use crate::process::{Mcp, Serving};
use crate::{Said, Shell};
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpListener;
use std::process::Command;

const OLD: &str = "The invoice archive lies on the grey shelf.";

/// An embedding server that knows two subjects: invoices, and everything else.
fn fake_embedder() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let body = read_body(&stream);
            let asked: Value = serde_json::from_slice(&body).unwrap();
            let vector = |text: &Value| match text.as_str().unwrap() {
                text if text.contains("invoice") || text.contains("bills") => [1.0, 0.0],
                _ => [0.0, 1.0],
            };
            let data = asked["input"].as_array().unwrap().iter().enumerate();
            let data: Vec<Value> =
                data.map(|(at, text)| json!({"index": at, "embedding": vector(text)})).collect();
            let answer = json!({"data": data, "model": "two"}).to_string();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                answer.len()
            );
            // A client that ends does not wait for it.
            let _ = stream.write_all((head + answer.as_str()).as_bytes());
        }
    });
    url
}

/// A shell whose configuration is in the usual file, and only there.
fn configured(settings: &str) -> Shell {
    let shell = Shell::new();
    std::fs::create_dir(shell.path("everturn")).unwrap();
    let store = format!("store = \"sqlite:{}\"\n", shell.path("configured.db").display());
    std::fs::write(shell.path("everturn/config.toml"), store + settings).unwrap();
    shell
}

fn only_the_file(command: &mut Command) {
    command.env_remove("EVERTURN_STORE").env_remove("EVERTURN_RECALL_EMBEDDER");
}

fn run(shell: &Shell, args: &[&str]) -> Said {
    let mut command = shell.command(args);
    only_the_file(&mut command);
    Said::from(command.output().unwrap())
}

fn json(shell: &Shell, args: &[&str]) -> Value {
    let said = run(shell, args);
    serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{args:?}: {}{}", said.out, said.err))
}

/// Regression: `context --recall` had no embedder, and `mcp` only the built-in one.
#[test]
fn everyone_finds_by_meaning_with_the_configured_embedder() {
    let embedder = format!("[embedders.two]\nbase_url = \"{}\"\nmodel = \"two\"\n", fake_embedder());
    let shell = configured(&format!("{embedder}[recall]\nembedder = \"two\"\n"));
    let id = json(&shell, &["new", "--json"])["id"].as_str().unwrap().to_string();
    assert!(shell.path("configured.db").exists(), "the file names the store");
    for text in
        ["Parcels go out at noon.", OLD, "Lunch is at one.", "The window is open.", "Take the stairs."]
    {
        assert_eq!(run(&shell, &["append", &id, text]).code, 0);
    }
    let found = json(&shell, &["recall", "where are bills kept", "--mode", "vector", "--json"]);
    assert_eq!(found["data"][0]["snippet"]["text"], OLD, "{found}");
    let context = [
        "context",
        &id,
        "--budget",
        "2000",
        "--last",
        "1",
        "--recall",
        "1",
        "--input",
        "where are bills kept",
        "--json",
    ];
    let context = json(&shell, &context);
    assert!(context["system"].to_string().contains("invoice"), "{context}");
    let mut mcp = Mcp::start_with(&shell, &[], only_the_file);
    let query = json!({"query": "where are bills kept", "mode": "vector"});
    let found = mcp.call("recall", &query).unwrap();
    assert_eq!(found["data"][0]["snippet"]["text"], OLD, "{found}");
    drop(mcp);
    let server = Serving::start_with(&shell, &[], only_the_file);
    let found =
        json(&shell, &["recall", "where are bills kept", "--mode", "vector", "--json", "--url", &server.url]);
    assert_eq!(found["data"][0]["snippet"]["text"], OLD, "{found}");
}

/// Regression: a command compacted by extraction although a model was configured for it.
#[test]
fn everyone_uses_the_configured_models() {
    let url = fake_model("To Lisbon, then.");
    let shell = configured(&format!("[models.fake]\nbase_url = \"{url}\"\nmodel = \"fake\"\n"));
    let id = json(&shell, &["new", "--json"])["id"].as_str().unwrap().to_string();
    let said = run(&shell, &["generate", &id, "Where to?"]);
    assert_eq!((said.out.as_str(), said.code), ("To Lisbon, then.\n", 0), "{}", said.err);
    let said = run(&shell, &["generate", &id, "And?", "--model", "fake"]);
    assert_eq!((said.out.as_str(), said.code), ("To Lisbon, then.\n", 0), "{}", said.err);
    let said = run(&shell, &["generate", &id, "And?", "--model", "other"]);
    assert!(said.code == 1 && said.err.contains("[models.NAME]"), "{}", said.err);
    let mut mcp = Mcp::start_with(&shell, &["--toolsets", "all"], only_the_file);
    let answer = mcp.call("generate", &json!({"conversation": id})).unwrap();
    assert_eq!(answer["text"], "To Lisbon, then.", "{answer}");
}

/// Regression: without a configuration of its own, the command said that there is no model.
#[test]
fn a_command_uses_the_models_of_the_process_that_owns_the_store() {
    let shell = Shell::new();
    let url = fake_model("To Lisbon, then.");
    let file = format!("[models.fake]\nbase_url = \"{url}\"\nmodel = \"fake\"\n");
    std::fs::write(shell.path("served.toml"), file).unwrap();
    let id = shell.new_conversation();
    let refused = shell.refused(&["generate", &id, "Where to?"]);
    assert!(refused.contains("no model is named"), "{refused}");
    let server = Serving::start(&shell, &["--config", "served.toml"]);
    assert_eq!(shell.ok(&["generate", &id, "Where to?"]), "To Lisbon, then.\n");
    assert_eq!(shell.ok(&["generate", &id, "And?", "--model", "fake"]), "To Lisbon, then.\n");
    let refused = shell.refused(&["generate", &id, "And?", "--model", "other"]);
    assert!(refused.contains("\"other\" is not one of fake"), "{refused}");
    drop(server);
}

/// A model's key that is not exported matters only to commands that ask the model.
#[test]
fn a_missing_key_stops_only_what_needs_it() {
    let model =
        "[models.far]\nbase_url = \"http://127.0.0.1:1/v1\"\nmodel = \"m\"\napi_key_env = \"NO_SUCH_KEY\"\n";
    let shell = configured(model);
    let id = json(&shell, &["new", "--json"])["id"].as_str().unwrap().to_string();
    assert_eq!(run(&shell, &["append", &id, "hello"]).code, 0);
    for args in [
        &["generate", &id, "Where to?"][..],
        &["serve", "--listen", "127.0.0.1:0"],
        &["serve", "--check-config"],
    ] {
        let said = run(&shell, args);
        assert!(said.code == 1 && said.err.contains("NO_SUCH_KEY is not set"), "{args:?}: {}", said.err);
    }
}

/// An invalid value is reported with its origin by every command that reads it.
#[test]
fn a_wrong_setting_is_named_with_its_origin_by_every_verb() {
    let shell = configured("[recall]\nembeder = \"none\"\n");
    for args in [&["list"][..], &["append", "@last", "x"], &["mcp"], &["serve"], &["recall", "x"]] {
        let said = run(&shell, args);
        let named = said.err.contains("config.toml") && said.err.contains("recall.embedder");
        assert!(said.code == 1 && named, "{args:?}: {}", said.err);
    }
    // A server elsewhere has its own.
    let said = run(&shell, &["list", "--url", "http://127.0.0.1:1"]);
    assert!(said.err.contains("nothing listens"), "{}", said.err);
    let shell = configured("");
    let said = run(&shell, &["recall", "x", "--embedder", "magic"]);
    assert!(said.err.contains("recall.embedder (flag --embedder)"), "{}", said.err);
    let said = run(&shell, &["list", "--config", "nowhere.toml"]);
    assert!(said.code == 1 && said.err.contains("nowhere.toml"), "{}", said.err);
}
