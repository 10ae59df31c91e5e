//! `everturn serve` as a process, and `everturn keys`.

use crate::Shell;
use crate::process::{Serving, send};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

fn id_in(answer: &str) -> String {
    let at = answer.find("conv_").unwrap_or_else(|| panic!("no conversation in {answer}"));
    answer[at..at + 31].to_string()
}

#[test]
fn what_it_says_to_try_works_as_typed() {
    let shell = Shell::new();
    let server = Serving::start(&shell, &[]);
    let commands: Vec<&str> = server.greeting.lines().filter(|line| line.starts_with("  curl")).collect();
    assert_eq!(commands.len(), 3, "{}", server.greeting);
    for command in commands {
        let said = Command::new("sh").args(["-c", &format!("{command} -sf")]).output().unwrap();
        assert!(said.status.success() && !said.stdout.is_empty(), "{command}: {said:?}");
    }
    assert!(server.greeting.contains("acts as admin of tenant default"), "{}", server.greeting);
    server.signal();
    assert_eq!(server.end().0, Some(0));
    assert_eq!(shell.json(&["list", "--json"])["data"][0]["title"], "Hello");
}

/// What was recalled depended on how far the index had got.
#[test]
fn the_demo_says_that_it_is_being_filled_and_is_the_same_each_time() {
    let shell = Shell::new();
    let mut child = shell.command(&["demo", "--no-open"]).stdout(Stdio::null()).spawn().unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("Ctrl-C") {
        assert!(err.read_line(&mut said).unwrap() > 0, "it ended: {said}");
    }
    assert!(said.starts_with("filling a store with sample conversations …\n"), "{said}");
    let url = said.split(" is at ").nth(1).unwrap().split(' ').next().unwrap();
    let list = shell.json(&["list", "--query", "staging", "--url", url, "--json"]);
    let id = list["data"][0]["id"].as_str().unwrap();
    let receipts: Vec<serde_json::Value> = shell
        .json(&["history", id, "--events", "--limit", "1000", "--url", url, "--json"])["data"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["kind"] == "context.receipt")
        .map(|entry| entry["body"].clone())
        .collect();
    let recalled = |receipt: &serde_json::Value| receipt.to_string().contains("\"recalled\"");
    assert_eq!(receipts.iter().map(recalled).collect::<Vec<_>>(), [false, false, true], "{receipts:?}");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The browser is a script that writes down what it is asked to show.
#[test]
fn the_page_is_shown_in_the_browser() {
    let shell = Shell::new();
    let (browser, shown) = (shell.path("browser"), shell.path("shown"));
    std::fs::write(&browser, format!("#!/bin/sh\necho \"$1\" >>'{}'\n", shown.display())).unwrap();
    let script = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&browser, script).unwrap();
    let server = Serving::start_with(&shell, &["--open"], |command| {
        command.env("BROWSER", &browser);
    });
    let id = id_in(&server.ask("POST /api/v1/conversations", "{}"));
    let page = server.ask("GET /", "");
    assert!(page.contains("200 OK") && page.contains("<title>Everturn</title>"), "{page}");
    let said =
        shell.command(&["open", "@last", "--url", &server.url]).env("BROWSER", &browser).output().unwrap();
    let url = format!("{}/#/c/{id}\n", server.url);
    assert_eq!(String::from_utf8(said.stdout).unwrap(), url);
    let both = format!("{}/\n{url}", server.url);
    let mut seen = String::new();
    for _ in 0..200 {
        seen = std::fs::read_to_string(&shown).unwrap_or_default();
        if seen.len() >= both.len() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(seen, both);
    // The owner of the store is found, on whatever port it listens.
    let open = |args: &[&str]| {
        let said = crate::Said::from(shell.command(args).env("BROWSER", &browser).output().unwrap());
        assert_eq!(said.code, 0, "{}", said.err);
        said.out
    };
    assert_eq!(open(&["open"]), format!("{}/\n", server.url));
    assert_eq!(open(&["open", "@last"]), url);
    for args in
        [&["open", "--url", "http://127.0.0.1:1", "@last"][..], &["open", "--url", "http://127.0.0.1:1"]]
    {
        assert!(shell.refused(args).contains("nothing listens"), "{args:?}");
    }
}

/// A deployment stops a server during a stream and an append: the stream is told, the append is answered, and
/// what was answered is durable.
#[test]
fn it_ends_well_while_streams_and_appends_run() {
    let shell = Shell::new();
    let server = Serving::start(&shell, &[]);
    let id = id_in(&server.ask("POST /api/v1/conversations", "{}"));
    let mut live = server.connect();
    send(&mut live, &format!("GET /api/v1/conversations/{id}/events"), "", "accept: text/event-stream\r\n");
    let mut live = BufReader::new(live);
    let mut seen = String::new();
    while !seen.contains("conversation.created") {
        assert!(live.read_line(&mut seen).unwrap() > 0, "{seen}");
    }
    // A request whose body is incomplete when the signal comes.
    let body = r#"{"turns": [{"role": "user", "content": "the last word"}]}"#;
    let mut append = server.connect();
    let head = format!(
        "POST /api/v1/conversations/{id}/turns HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    append.write_all(head.as_bytes()).unwrap();
    // The server asks for the body, so it has begun to answer the request.
    let mut append = BufReader::new(append);
    let mut interim = String::new();
    while !interim.ends_with("\r\n\r\n") {
        assert!(append.read_line(&mut interim).unwrap() > 0, "{interim}");
    }
    assert!(interim.starts_with("HTTP/1.1 100"), "{interim}");
    append.get_mut().write_all(&body.as_bytes()[..10]).unwrap();
    server.signal();
    let mut rest = String::new();
    live.read_to_string(&mut rest).unwrap();
    append.get_mut().write_all(&body.as_bytes()[10..]).unwrap();
    let mut answer = String::new();
    append.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(shell.ok(&["history", &id]).contains("the last word"));
    assert!(shell.ok(&["doctor"]).contains("everything is in order"));
}

/// Regression: a limit on the size of files killed the server by a signal. It simulates a full disk here, too.
#[cfg(target_os = "linux")]
#[test]
fn a_server_without_room_says_so_and_goes_on_when_there_is_room() {
    let shell = Shell::new();
    let id = shell.new_conversation();
    let server = Serving::start(&shell, &[]);
    let limit = |bytes: &str| {
        let mut command = std::process::Command::new("prlimit");
        let limited =
            command.args(["--pid", &server.id().to_string(), &format!("--fsize={bytes}:")]).status();
        assert!(limited.unwrap().success());
    };
    let say = || {
        let turn = r#"{"turns":[{"message":{"role":"user","content":"is there room?"}}]}"#;
        server.ask(&format!("POST /api/v1/conversations/{id}/turns"), turn)
    };
    assert!(say().starts_with("HTTP/1.1 201"));
    limit("1");
    let refused = say();
    assert!(refused.starts_with("HTTP/1.1 500") && refused.contains("store.io"), "{refused}");
    for _ in 0..2 {
        let unready = server.ask("GET /readyz", "");
        assert!(unready.starts_with("HTTP/1.1 503"), "{unready}");
        assert!(unready.contains("a limit on the size of files is reached"), "{unready}");
    }
    limit("unlimited");
    let ready = server.ask("GET /readyz", "");
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
    assert!(say().starts_with("HTTP/1.1 201"));
    server.signal();
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("ulimit -f"), "{said}");
    assert_eq!(shell.json(&["history", &id, "--json"])["data"].as_array().unwrap().len(), 2);
    assert!(shell.ok(&["doctor"]).contains("everything is in order"));
}

#[test]
fn a_second_server_on_a_file_or_a_port_says_why_not() {
    let shell = Shell::new();
    let server = Serving::start(&shell, &[]);
    let said = shell.refused(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(said.contains(&format!("process {}", server.id())), "{said}");
    let said = shell.refused(&["serve", "--listen", &server.address(), "--store", "memory:"]);
    assert!(said.contains("another program listens there") && said.contains("--listen"), "{said}");
    // The server makes it.
    shell.ok(&["keys", "create", "--role", "admin"]);
}

#[test]
fn other_machines_are_not_let_in_unprotected() {
    let shell = Shell::new();
    let said = shell.refused(&["serve", "--listen", "0.0.0.0:0"]);
    assert!(said.contains("everturn keys create") && said.contains("--behind-tls-proxy"), "{said}");
    shell.ok(&["keys", "create", "--role", "admin"]);
    let said = shell.refused(&["serve", "--listen", "0.0.0.0:0"]);
    assert!(!said.contains("everturn keys create") && said.contains("--tls-cert"), "{said}");
    let said = shell.refused(&["serve", "--listen", "[::]:0", "--tls-cert", "no.pem", "--tls-key", "no.pem"]);
    assert!(said.contains("no.pem"), "{said}");
}

#[test]
fn a_key_made_here_opens_the_server() {
    let shell = Shell::new();
    let words = shell.ok(&["keys", "create", "--role", "writer", "--tenant", "acme", "--label", "bot"]);
    let words = words.trim();
    let made = shell.json(&["keys", "create", "--role", "reader", "--tenant", "acme", "--json"]);
    assert!(made["secret"].as_str().unwrap().starts_with("et_"));
    // Successes are logged only at this level.
    let server = Serving::start_with(&shell, &[], |command| {
        command.env("EVERTURN_TELEMETRY_LOG", "debug");
    });
    assert!(server.greeting.contains("with a key"), "{}", server.greeting);
    assert!(server.ask("POST /api/v1/conversations", "{}").starts_with("HTTP/1.1 401"));
    let mut stream = server.connect();
    let headers = format!("x-api-key: {words}\r\nconnection: close\r\n");
    send(&mut stream, "POST /api/v1/conversations", "{}", &headers);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201") && answer.contains("\"acme\""), "{answer}");
    server.signal();
    let (code, logged) = server.end();
    assert_eq!(code, Some(0));
    assert!(logged.contains("key_") && !logged.contains(words), "{logged}");
    let listed = shell.ok(&["keys", "list", "--tenant", "acme"]);
    assert!(listed.contains("last used") && listed.contains("bot") && !listed.contains(words), "{listed}");
    assert!(shell.ok(&["keys", "list"]).contains("no keys"), "another tenant's are not listed");
    let id = made["id"].as_str().unwrap();
    assert!(shell.refused(&["keys", "revoke", id]).contains("the tenant has no key"));
    let refused = shell.refused(&["keys", "revoke", words]);
    let secret = words.rsplit('_').next().unwrap();
    assert!(refused.contains("the tenant has no key") && !refused.contains(&secret[..8]), "{refused}");
    // The key itself is enough to revoke it.
    shell.ok(&["keys", "revoke", words, "--tenant", "acme"]);
    assert!(shell.ok(&["keys", "list", "--tenant", "acme"]).contains("revoked"));
}

#[test]
fn settings_are_shown_with_where_they_came_from() {
    let shell = Shell::new();
    let file = shell.path("everturn.toml");
    std::fs::write(&file, "listen = \"127.0.0.1:1\"\n[limits]\nburst = 7\n").unwrap();
    let file = file.to_str().unwrap();
    let args = ["serve", "--check-config", "--config", file, "--listen", "127.0.0.1:2"];
    let mut command = shell.command(&args);
    let said = command.env("EVERTURN_LIMITS_BURST", "8").stdin(Stdio::null()).output().unwrap();
    let out = String::from_utf8(said.stdout).unwrap();
    assert!(said.status.success(), "{out}");
    let line =
        |key: &str| out.lines().find(|line| line.starts_with(&format!("{key} = "))).unwrap().to_string();
    assert!(line("listen").contains("127.0.0.1:2") && line("listen").ends_with("# flag --listen"), "{out}");
    assert!(line("limits.burst").ends_with("# environment EVERTURN_LIMITS_BURST"), "{out}");
    assert!(line("store").ends_with("# environment EVERTURN_STORE"), "{out}");
    assert!(line("shutdown_s").ends_with("# default"), "{out}");
    std::fs::write(file, "lisen = \"127.0.0.1:1\"").unwrap();
    let said = shell.refused(&["serve", "--check-config", "--config", file]);
    assert!(said.contains("did you mean \"listen\""), "{said}");
    let said = shell.refused(&["serve", "--config", "nowhere.toml"]);
    assert!(said.contains("cannot read nowhere.toml"), "{said}");
}

/// A request that never ends. The first signal waits for it up to the timeout, the second does not wait at all.
#[test]
fn it_waits_for_requests_as_long_as_it_may_and_a_second_signal_ends_it_at_once() {
    let shell = Shell::new();
    let hanging = |server: &Serving| {
        let mut stream = server.connect();
        let head = "POST /api/v1/conversations HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 100\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        // Once it waits for the body, which never comes, it says so.
        let mut said = [0; 12];
        stream.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"HTTP/1.1 100");
        stream
    };
    std::fs::write(shell.path("everturn.toml"), "shutdown_s = 1\n").unwrap();
    let server = Serving::start(&shell, &["--config", "everturn.toml"]);
    let open = hanging(&server);
    server.signal();
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    drop(open);
    std::fs::write(shell.path("everturn.toml"), "shutdown_s = 3600\n").unwrap();
    let server = Serving::start(&shell, &["--config", "everturn.toml"]);
    let open = hanging(&server);
    server.signal();
    // Once the port is closed it has received the first one.
    while TcpStream::connect(server.address()).is_ok() {}
    server.signal();
    assert_eq!(server.end().0, Some(130));
    drop(open);
    assert!(shell.ok(&["doctor"]).contains("everything is in order"));
}

/// A fake model server that replies `tick ` without end to the first request, and `done` to all later ones.
fn ticking_provider() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for (at, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut head = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
            head.by_ref().take_while(|line| !line.is_empty()).for_each(drop);
            let piece = |text: &str, finish: &str| {
                format!(
                    "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":{finish}}}]}}\n\n"
                )
            };
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
            let mut going = stream.write_all(head.as_bytes());
            while at == 0 && going.is_ok() {
                going = stream.write_all(piece("tick ", "null").as_bytes());
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            // A killed client does not receive it.
            let _ = stream.write_all(format!("{}data: [DONE]\n\n", piece("done", "\"stop\"")).as_bytes());
        }
    });
    url
}

/// The machine fails while a model replies. The durable part of the reply is there, marked as interrupted; the
/// input is there; the chain is intact; and the conversation can be continued.
#[test]
fn a_server_killed_while_a_model_answers_loses_nothing_that_was_kept() {
    let shell = Shell::new();
    let settings = format!("[models.default]\nbase_url = \"{}\"\nmodel = \"m\"\n", ticking_provider());
    std::fs::write(shell.path("everturn.toml"), settings).unwrap();
    let server = Serving::start(&shell, &["--config", "everturn.toml"]);
    let id = id_in(&server.ask("POST /api/v1/conversations", "{}"));
    let generate = format!("POST /api/v1/conversations/{id}/generate");
    let body = r#"{"input": [{"role": "user", "content": "Where?"}], "stream": true}"#;
    let mut answer = server.connect();
    send(&mut answer, &generate, body, "");
    // Until some of it is in the file.
    while !String::from_utf8_lossy(&std::fs::read(shell.path("store.db-wal")).unwrap()).contains("tick ") {}
    server.kill();
    let server = Serving::start(&shell, &["--config", "everturn.toml"]);
    let history = shell.json(&["history", &id, "--json"]);
    assert_eq!(history["data"][0]["content"], "Where?", "{history}");
    assert_eq!(history["data"][1]["status"], "interrupted", "{history}");
    assert!(history["data"][1]["content"].as_str().unwrap().starts_with("tick "), "{history}");
    let again = server.ask(&generate, r#"{"input": [{"role": "user", "content": "And now?"}]}"#);
    assert!(again.starts_with("HTTP/1.1 200") && again.contains("\"done\""), "{again}");
    assert_eq!(shell.run(&["verify", &id]).code, 0);
}
