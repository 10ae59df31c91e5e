//! A server process, and the output of the command line when it runs, is gone, or is another program.

use crate::process::Serving;
use crate::{Said, Shell};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Longer than any step takes, also on a busy machine. Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(60);

fn ask(shell: &Shell, url: &str, args: &[&str]) -> Said {
    let mut command = shell.command(args);
    command.env_remove("EVERTURN_STORE").env("EVERTURN_URL", url);
    Said::from(command.output().unwrap())
}

#[test]
fn a_tail_goes_on_after_the_server_was_restarted_and_says_nothing_twice() {
    let shell = Shell::new();
    let server = Serving::start(&shell, &[]);
    let (url, address) = (server.url.clone(), server.address());
    let id: serde_json::Value = serde_json::from_str(&ask(&shell, &url, &["new", "--json"]).out).unwrap();
    let id = id["id"].as_str().unwrap();
    let mut tail = shell.command(&["tail", id, "--json", "--from", "1", "--url", &url]).spawn().unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<serde_json::Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!((next()["kind"].as_str(), 1), (Some("conversation.created"), 1));
    assert_eq!(ask(&shell, &url, &["append", id, "one"]).code, 0);
    assert_eq!(next()["body"]["message"]["content"], "one");
    // An open turn shows its chunks.
    let mut command = shell.command(&["append", id, "--stream", "-", "--url", &url]);
    let mut stream = command.stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(stream.stdin.as_mut().unwrap(), b"two").unwrap();
    assert_eq!(next()["kind"], "turn.opened");
    let piece = next();
    assert_eq!((&piece["chunk"], &piece["offset"]), (&"two".into(), &0.into()));
    drop(stream.stdin.take());
    assert!(stream.wait().unwrap().success());
    assert_eq!(next()["kind"], "turn.committed");
    server.kill();
    let server = Serving::start(&shell, &["--listen", &address]);
    assert_eq!(ask(&shell, &server.url, &["append", id, "three"]).code, 0);
    assert_eq!(next()["body"]["message"]["content"], "three", "what came before does not come again");
    assert_eq!(ask(&shell, &url, &["delete", id, "--reason", "test"]).code, 0);
    let ended = tail.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let err = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(err.contains("was deleted") && err.contains("trying again"), "{err}");
}

#[test]
fn what_stands_in_the_way_is_said_with_what_to_do() {
    let shell = Shell::new();
    let server = Serving::start(&shell, &[]);
    let gone = Serving::start(&Shell::new(), &[]);
    let nobody = gone.url.clone();
    gone.kill();
    let plain = server.url.clone();
    let secure = plain.replace("http:", "https:");
    let elsewhere = format!("{plain}/elsewhere");
    for (url, says) in [
        (nobody.as_str(), "nothing listens at"),
        (secure.as_str(), "write http:// instead of https://"),
        (elsewhere.as_str(), "check --url"),
        ("127.0.0.1:7317", "such as http://127.0.0.1:7317"),
        ("ftp://x", "must begin with http:// or https://"),
        ("http://me:secret@127.0.0.1", "put the key in EVERTURN_KEY"),
        ("http://no-such-name.invalid", "check --url"),
    ] {
        let said = ask(&shell, url, &["list"]);
        assert_eq!((said.code, said.out.as_str()), (1, ""), "{url}");
        assert!(said.err.contains(says), "{url}: {}", said.err);
    }
}

#[test]
fn a_certificate_is_trusted_where_its_issuer_is_named() {
    let shell = Shell::new();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_string()]).unwrap();
    std::fs::write(shell.path("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(shell.path("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let server = Serving::start(&shell, &["--tls-cert", "cert.pem", "--tls-key", "key.pem"]);
    let refused = ask(&shell, &server.url, &["list"]);
    assert!(refused.code == 1 && refused.err.contains("set SSL_CERT_FILE to that file"), "{}", refused.err);
    let mut command = shell.command(&["list", "--url", &server.url]);
    let listed = Said::from(command.env("SSL_CERT_FILE", "cert.pem").output().unwrap());
    assert_eq!(listed.code, 0, "{}", listed.err);
    let plain = ask(&shell, &server.url.replace("https:", "http:"), &["list"]);
    assert!(plain.err.contains("write https://"), "{}", plain.err);
}

#[test]
fn a_flag_counts_more_than_the_environment_and_two_flags_are_too_many() {
    let (shell, other) = (Shell::new(), Shell::new());
    let id = shell.new_conversation();
    let server = Serving::start(&other, &[]);
    let url = server.url.as_str();
    // EVERTURN_STORE is set in a shell.
    assert!(shell.refused(&["history", &id, "--url", url]).contains("no conversation"));
    let mut command = shell.command(&["list"]);
    let both = Said::from(command.env("EVERTURN_URL", url).output().unwrap());
    assert!(both.err.contains("EVERTURN_STORE and EVERTURN_URL are both set"), "{}", both.err);
    let mut command = shell.command(&["history", &id, "--store", "sqlite:store.db"]);
    let flag = Said::from(command.env("EVERTURN_URL", url).output().unwrap());
    assert_eq!(flag.code, 0, "{}", flag.err);
    for (args, says) in [
        (&["list", "--url", url, "--store", "sqlite:store.db"][..], "--store and --url are given together"),
        (&["list", "--url", url, "--tenant", "acme"], "leave --tenant out"),
        (&["new", "--url", url, "--mirror", "m"], "leave --mirror out"),
        (
            &["compact", "@last", "--url", url, "--base-url", "http://x", "--model", "m"],
            "leave --base-url out",
        ),
        (&["doctor", "--rebuild", "--url", url], "run them where it is"),
        (&["serve", "--url", url], "leave --url out"),
    ] {
        let error = shell.refused(args);
        assert!(error.contains(says), "{args:?}: {error}");
    }
    // A verb that needs no store sends no request.
    assert_eq!(shell.run(&["completions", "bash", "--url", "http://127.0.0.1:1"]).code, 0);
}

#[test]
fn keys_open_a_server_and_its_tenant_only() {
    let shell = Shell::new();
    let server = Serving::start(&shell, &[]);
    let url = server.url.as_str();
    let made = ask(&shell, url, &["keys", "create", "--role", "reader"]);
    assert!(made.code == 1 && made.err.contains("the first must be an admin's"), "{}", made.err);
    let made = ask(&shell, url, &["keys", "create", "--role", "admin", "--label", "laptop", "--json"]);
    let made: serde_json::Value = serde_json::from_str(&made.out).unwrap();
    let admin = made["secret"].as_str().unwrap();
    let with = |key: &str, args: &[&str]| {
        let mut command = shell.command(args);
        command.env_remove("EVERTURN_STORE").env("EVERTURN_URL", url).env("EVERTURN_KEY", key);
        Said::from(command.output().unwrap())
    };
    // A server looks for new keys every now and then.
    let until = Instant::now() + PATIENCE;
    let closed = loop {
        let said = ask(&shell, url, &["list"]);
        if said.code == 1 || Instant::now() > until {
            break said;
        }
    };
    assert!(closed.err.contains("requires a key; put it in EVERTURN_KEY"), "{}", closed.err);
    assert!(with("et_wrong", &["list"]).err.contains("does not accept this key"));
    assert_eq!(with(admin, &["new", "--title", "Mine"]).code, 0);
    std::fs::write(shell.path("key"), format!("{admin}\n")).unwrap();
    assert!(ask(&shell, url, &["list", "--key-file", "key"]).out.contains("Mine"));
    let reader = with(admin, &["keys", "create", "--role", "reader"]).out.trim().to_string();
    let refused = with(&reader, &["append", "@last", "x"]);
    assert!(refused.err.contains("needs the role") && refused.code == 1, "{}", refused.err);
    let listed = with(admin, &["keys", "list"]);
    assert_eq!(listed.out.lines().count(), 2, "{}{}", listed.out, listed.err);
    assert!(listed.out.contains("laptop"), "{}", listed.out);
    let id = listed.out.lines().find(|line| line.contains("reader")).unwrap().split(' ').next().unwrap();
    assert_eq!(with(admin, &["keys", "revoke", id]).out, format!("revoked {id}\n"));
    assert!(with(&reader, &["list"]).err.contains("does not accept this key"));
}

#[test]
fn a_server_that_was_asked_too_often_says_when_to_come_again() {
    let shell = Shell::new();
    let key = shell.ok(&["keys", "create", "--role", "admin"]);
    std::fs::write(shell.path("everturn.toml"), "[limits]\nrequests_per_second = 1\nburst = 1\n").unwrap();
    let server = Serving::start(&shell, &["--config", "everturn.toml"]);
    let list = || {
        let mut command = shell.command(&["list", "--json"]);
        command.env_remove("EVERTURN_STORE").env("EVERTURN_URL", &server.url).env("EVERTURN_KEY", key.trim());
        command.spawn().unwrap()
    };
    // More at once than one a second.
    let asking: Vec<_> = (0..8).map(|_| list()).collect();
    let said: Vec<Said> =
        asking.into_iter().map(|child| Said::from(child.wait_with_output().unwrap())).collect();
    let refused: Vec<&Said> = said.iter().filter(|said| said.code == 1).collect();
    assert!(!refused.is_empty() && refused.len() < said.len(), "{} of {}", refused.len(), said.len());
    for said in refused {
        assert!(said.err.contains("1 requests a second") && said.err.contains("again"), "{}", said.err);
    }
}
