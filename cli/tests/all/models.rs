//! A model named on the command line, beside a process that owns the store: that one asks it.

use crate::changing::{read_request, write_reply};
use crate::process::{Mcp, Serving};
use crate::{Said, Shell};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

const KEY: &str = "sk-canary-5f0c1e";
/// Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A fake model server. The requests that it is sent arrive at the receiver, head and body.
struct FakeModel {
    url: String,
    heard: Receiver<String>,
}

impl FakeModel {
    fn start(mut answer: impl FnMut(&str, TcpStream) + Send + 'static) -> FakeModel {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let (tell, heard) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (head, body) = read_request(&stream);
                let request = format!("{head}\n{}", String::from_utf8(body).unwrap());
                let _ = tell.send(request.clone());
                answer(&request, stream);
            }
        });
        FakeModel { url, heard }
    }

    /// A model that answers with this text, or with a checkpoint or facts if it is asked for them.
    fn says(text: &'static str) -> FakeModel {
        FakeModel::start(move |request, stream| {
            let lists = [
                "user_constraints",
                "decisions",
                "discoveries",
                "completed_work",
                "pending_work",
                "unresolved_questions",
                "critical_identifiers",
                "relevant_files",
            ];
            let mut checkpoint = json!({"goal": text, "handoff_md": "Go on."});
            lists.iter().for_each(|name| checkpoint[*name] = json!([]));
            let answer = match request {
                _ if request.contains("handoff_md") => checkpoint.to_string(),
                _ if request.contains("predicate") => json!({"facts": []}).to_string(),
                _ => text.to_string(),
            };
            write_reply(stream, &answer);
        })
    }

    /// The next request.
    fn hears(&self) -> String {
        self.heard.recv_timeout(PATIENCE).unwrap()
    }

    #[track_caller]
    fn hears_nothing(&self) {
        assert_eq!(self.heard.try_recv(), Err(TryRecvError::Empty));
    }
}

/// Runs a command that names a model, with a key.
fn naming(shell: &Shell, args: &[&str], url: &str) -> Said {
    let model = ["--base-url", url, "--model", "brought", "--api-key-env", "CANARY_KEY"];
    let mut command = shell.command(&[args, &model].concat());
    Said::from(command.env("CANARY_KEY", KEY).output().unwrap())
}

#[track_caller]
fn ok(said: Said) -> String {
    assert_eq!(said.code, 0, "{}", said.err);
    said.out
}

/// A conversation that is long enough for a summary.
fn long_conversation(shell: &Shell) -> String {
    let id = shell.new_conversation();
    for n in 0..6 {
        shell.ok(&["append", &id, &format!("Note {n}: {}", "the quick brown fox ".repeat(40))]);
    }
    id
}

/// Nothing below the folder of a shell contains the key.
#[track_caller]
fn key_is_nowhere(shell: &Shell) {
    for entry in std::fs::read_dir(shell.folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = if path.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
        assert!(!String::from_utf8_lossy(&bytes).contains(KEY), "{}", path.display());
    }
}

/// Regression: `--base-url` was refused while another process owned the store.
#[test]
fn an_owner_asks_the_model_that_a_command_names() {
    for owner in ["serve", "mcp"] {
        let shell = Shell::new();
        let (own, brought) =
            (FakeModel::says("From the owner's model."), FakeModel::says("To Lisbon, then."));
        let file = format!(
            "[models.default]\nbase_url = \"{url}\"\nmodel = \"own\"\n\
             [models.small]\nbase_url = \"{url}\"\nmodel = \"small-1\"\n[summarizers]\ndefault = \"default\"\n",
            url = own.url
        );
        std::fs::write(shell.path("owner.toml"), file).unwrap();
        let id = long_conversation(&shell);
        let config = ["--config", "owner.toml"];
        let serving = (owner == "serve").then(|| Serving::start(&shell, &config));
        let mcp = (owner == "mcp").then(|| Mcp::start(&shell, &config));
        assert!(UnixStream::connect(shell.path("store.db-owner/socket")).is_ok(), "{owner} owns it");

        assert_eq!(ok(naming(&shell, &["generate", &id, "Where to?"], &brought.url)), "To Lisbon, then.\n");
        let asked = brought.hears().to_lowercase();
        assert!(asked.contains(&format!("authorization: bearer {KEY}")), "{asked}");
        assert!(asked.contains("\"model\":\"brought\"") && asked.contains("where to?"), "{asked}");
        let last = shell.json(&["history", &id, "--json", "--limit", "1"])["data"][0].clone();
        assert_eq!((&last["role"], &last["content"]), (&json!("assistant"), &json!("To Lisbon, then.")));
        assert!(last["metadata"]["generation"]["receipt_seq"].is_u64(), "{last}");

        for verb in [
            &["summarize", &id, "--json"][..],
            &["compact", &id, "--keep-last", "4", "--dry-run", "--json"],
            &["compact", &id, "--keep-last", "4", "--json"],
        ] {
            let summary: Value = serde_json::from_str(&ok(naming(&shell, verb, &brought.url))).unwrap();
            assert_eq!(
                (&summary["summarizer"], &summary["checkpoint"]["goal"]),
                (&json!("brought"), &json!("To Lisbon, then.")),
                "{verb:?}"
            );
            brought.hears();
        }
        ok(naming(&shell, &["facts", &id, "extract"], &brought.url));
        brought.hears();
        own.hears_nothing();

        // It was for those requests only.
        let answer = shell.ok(&["generate", &id, "And then?"]);
        assert!(
            answer == "From the owner's model.\n" && own.hears().contains("\"model\":\"own\""),
            "{answer}"
        );
        // A name is one of the owner's configuration, for summaries too.
        let compacted = shell.json(&["compact", &id, "--keep-last", "1", "--model", "small", "--json"]);
        assert_eq!(compacted["summarizer"], "small-1");
        let refused = shell.refused(&["compact", &id, "--model", "other"]);
        assert!(refused.contains("\"other\" is not one of default, small"), "{refused}");
        brought.hears_nothing();
        key_is_nowhere(&shell);
        drop((serving, mcp));
        shell.ok(&["verify", &id]);
    }
}

/// Regression: the beginning of an answer that was no checkpoint, and a provider's error, which quotes the prompt.
#[test]
fn logs_have_nothing_of_what_a_model_answers() {
    let shell = Shell::new();
    let model = FakeModel::start({
        let mut asked = 0;
        move |_, mut stream| {
            asked += 1;
            match asked % 2 {
                0 => write_reply(stream, "CANARY is her salary"),
                _ => {
                    let (head, body) = (
                        "HTTP/1.1 400 Bad Request\r\nconnection: close",
                        r#"{"error":{"message":"CANARY"}}"#,
                    );
                    let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                    stream.write_all(answer.as_bytes()).unwrap();
                }
            }
        }
    });
    let file = format!(
        "[models.default]\nbase_url = \"{}\"\nmodel = \"own\"\n[summarizers]\ndefault = \"default\"\n",
        model.url
    );
    std::fs::write(shell.path("owner.toml"), file).unwrap();
    let id = long_conversation(&shell);
    let serving = Serving::start(&shell, &["--config", "owner.toml"]);
    shell.ok(&["compact", &id, "--keep-last", "2"]);
    shell.run(&["facts", &id, "extract"]);
    shell.run(&["generate", &id, "And then?"]);
    serving.signal();
    let (_, said) = serving.end();
    for line in ["no checkpoint from the model", "no facts from the model"] {
        assert!(said.contains(line), "{said}");
    }
    assert!(!said.contains("CANARY"), "{said}");
}

/// A provider that refuses a key may repeat it.
#[test]
fn the_key_of_a_named_model_is_kept_out_of_store_logs_and_errors() {
    let shell = Shell::new();
    let id = long_conversation(&shell);
    let refuses = FakeModel::start(|request, mut stream| {
        let problem = json!({"error": {"message": format!("Incorrect API key: {request}")}}).to_string();
        let head = "HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\nconnection: close";
        write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{problem}", problem.len()).unwrap();
    });
    let server = Serving::start(&shell, &["-vvv"]);
    let said = naming(&shell, &["generate", &id, "Where to?"], &refuses.url);
    assert!(said.code == 1 && said.err.contains("Incorrect API key"), "{}", said.err);
    assert!(refuses.hears().contains(KEY) && !said.err.contains(KEY), "{}", said.err);
    // The summary is extracted instead.
    let said = naming(&shell, &["compact", &id, "--keep-last", "2"], &refuses.url);
    assert!(said.code == 0 && !said.out.contains(KEY) && !said.err.contains(KEY), "{}", said.err);
    assert!(refuses.hears().contains(KEY));
    for (url, why) in [("ftp://127.0.0.1", "only http and https"), ("http://ana:pass@127.0.0.1", "api_key")] {
        let said = naming(&shell, &["generate", &id, "Where to?"], url);
        assert!(said.code == 1 && said.err.contains(why), "{}", said.err);
        assert!(!said.err.contains(KEY) && !said.err.contains("ana:pass"), "{}", said.err);
    }
    // A body that cannot be read is not shown.
    let mut socket = UnixStream::connect(shell.path("store.db-owner/socket")).unwrap();
    let body = json!({"model": {"at": {"api_key": {"key": KEY}}}, "arguments": KEY}).to_string();
    let head = "POST /asking/generate HTTP/1.1\r\nhost: localhost\r\nconnection: close";
    write!(socket, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 400 ") && answer.contains("body.shape") && !answer.contains(KEY), "{answer}");
    key_is_nowhere(&shell);
    server.signal();
    let (code, log) = server.end();
    assert!(code == Some(0) && !log.contains(KEY), "{log}");
    assert!(log.contains("no checkpoint from the model"), "{log}");
    key_is_nowhere(&shell);
}

/// A server must not be made to send requests to an address of a client's choice.
#[test]
fn over_tcp_nobody_names_the_address_of_a_model() {
    let shell = Shell::new();
    let id = long_conversation(&shell);
    let model = FakeModel::says("To Lisbon, then.");
    let server = Serving::start(&shell, &[]);
    let at = json!({"kind": "openai-chat", "base_url": model.url, "model": "brought", "api_key": null});
    let asking = json!({"model": {"at": at}, "arguments": {"conversation": id, "input": "Where to?"}});
    let attempts = |headers: &str| {
        for (path, body) in [
            ("/asking/generate".to_string(), asking.clone()),
            ("/api/v1/asking/generate".to_string(), asking.clone()),
            (
                format!("/api/v1/conversations/{id}/generate"),
                json!({"input": "Where to?", "model": {"at": at}}),
            ),
            (
                format!("/api/v1/conversations/{id}/generate"),
                json!({"input": "Where to?", "base_url": model.url}),
            ),
            (format!("/api/v1/conversations/{id}/compact"), json!({"model": {"at": at}})),
            (format!("/api/v1/conversations/{id}/summarize"), json!({"model": {"at": at}})),
        ] {
            let mut stream = server.connect();
            let headers = format!("connection: close\r\n{headers}");
            crate::process::send(&mut stream, &format!("POST {path}"), &body.to_string(), &headers);
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let is_refused =
                [" 400 ", " 404 "].iter().any(|status| answer.lines().next().unwrap().contains(status));
            assert!(is_refused && answer.contains("\"code\""), "{path}: {answer}");
        }
    };
    attempts("");
    let key = shell.ok(&["keys", "create", "--role", "admin"]);
    attempts(&format!("authorization: Bearer {}\r\n", key.lines().next().unwrap().trim()));
    model.hears_nothing();
    let said = naming(&shell, &["generate", &id, "Where to?", "--url", &server.url], &model.url);
    assert!(said.code == 1 && said.err.contains("leave --base-url out"), "{}", said.err);
    let description = server.ask("GET /openapi.json", "");
    assert!(description.contains("generate") && !description.contains("/asking/"));
    assert_eq!(shell.json(&["history", &id, "--json"])["data"].as_array().unwrap().len(), 6);
    // The same request of the user, through the socket.
    assert_eq!(ok(naming(&shell, &["generate", &id, "Where to?"], &model.url)), "To Lisbon, then.\n");
}

#[test]
fn when_the_owner_ends_while_the_named_model_answers_the_command_takes_over() {
    for is_killed in [true, false] {
        let shell = Shell::new();
        let id = shell.new_conversation();
        let mut held = None;
        let model = FakeModel::start(move |_, stream| match held {
            None => held = Some(stream),
            Some(_) => write_reply(stream, "To Lisbon, then."),
        });
        std::fs::write(shell.path("owner.toml"), "shutdown_s = 1\n").unwrap();
        let server = Serving::start(&shell, &["--config", "owner.toml"]);
        std::thread::scope(|threads| {
            let asking = threads.spawn(|| naming(&shell, &["generate", &id, "Where to?"], &model.url));
            model.hears();
            if is_killed {
                server.kill();
            } else {
                server.signal();
                assert_eq!(server.end().0, Some(0));
            }
            assert_eq!(ok(asking.join().unwrap()), "To Lisbon, then.\n");
        });
        assert!(model.hears().contains("Where to?"));
        let turns = shell.json(&["history", &id, "--json"]);
        let turns = turns["data"].as_array().unwrap().iter();
        let said: Vec<_> = turns.map(|turn| (turn["content"].as_str(), turn["status"].as_str())).collect();
        let expected = [("Where to?", "complete"), ("To Lisbon, then.", "complete")];
        assert_eq!(said, expected.map(|(text, status)| (Some(text), Some(status))));
        shell.ok(&["verify", &id]);
    }
}

/// An owner of another version may not know of named models. Its own model is not asked instead.
#[test]
fn an_owner_that_cannot_ask_a_named_model_is_not_asked_for_another() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let model = FakeModel::says("To Lisbon, then.");
    let _server = Serving::start(&shell, &[]);
    let (socket, real) = (shell.path("store.db-owner/socket"), shell.path("store.db-owner/real"));
    std::fs::rename(&socket, &real).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut begin = [0; 64];
            let length = client.read(&mut begin).unwrap();
            if begin.starts_with(b"POST /asking/") {
                let problem =
                    json!({"status": 404, "code": "route.absent", "detail": "there is nothing there"});
                let problem = problem.to_string();
                let head = "HTTP/1.1 404 Not Found\r\nconnection: close";
                write!(client, "{head}\r\ncontent-length: {}\r\n\r\n{problem}", problem.len()).unwrap();
                continue;
            }
            let mut owner = UnixStream::connect(&real).unwrap();
            owner.write_all(&begin[..length]).unwrap();
            let (mut from, mut to) = (client.try_clone().unwrap(), owner.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            std::thread::spawn(move || std::io::copy(&mut owner, &mut client));
        }
    });
    shell.ok(&["append", &id, "Hello."]);
    for args in [["generate", &id, "Where to?"], ["compact", &id, "--json"]] {
        let said = naming(&shell, &args, &model.url);
        assert!(said.code == 1 && said.out.is_empty(), "{}", said.out);
        assert!(said.err.contains("both are the same version"), "{}", said.err);
        assert!(!said.err.contains(KEY), "{}", said.err);
    }
    model.hears_nothing();
    assert_eq!(shell.json(&["history", &id, "--json"])["data"].as_array().unwrap().len(), 1);
}
