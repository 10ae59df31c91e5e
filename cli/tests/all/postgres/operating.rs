//! The commands of docs/operating.md, on a PostgreSQL of their own.

use super::cluster::{Database, Folder, as_nobody, free_port};
use super::rounds;
use crate::Shell;
use crate::documents::{blocks, page};
use std::process::Command;

/// Makes and starts the database that the page takes for granted; in the end, ends all that it started.
const PRELUDE: &str = r#"
stop() { for data in main standby recovered; do pg_ctl -D $HOME/$data -m immediate stop >/dev/null 2>&1 || true; done; }
trap stop EXIT
cd $HOME
initdb -D $HOME/main -U postgres --auth=trust -E UTF8 --locale=C.UTF-8 --no-sync >/dev/null
cat >> main/postgresql.conf <<END
port = 5432
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = off
END
pg_ctl -D $HOME/main -l $HOME/main.log -w start >/dev/null
"#;

/// Runs the commands of a page that need a server, with some words replaced, and returns what they print.
fn typed(name: &str, before: &str, replaced: &[(&str, &str)], after: &str) -> String {
    let is_run = |info: &String| info == "sh not run: needs a PostgreSQL server";
    let steps = blocks(&page(name)).into_iter().filter(|(info, _)| is_run(info));
    let steps: String = steps.map(|(_, text)| text).collect();
    let mut script = format!("{PRELUDE}{before}{steps}{after}");
    for (words, others) in replaced {
        assert!(script.contains(words), "{name} does not say {words:?}");
        script = script.replace(words, others);
    }
    let folder = Folder::new();
    for port in ["5432", "5433", "5434", "7317"] {
        script = script.replace(port, &free_port().to_string());
    }
    script = script.replace("/var/lib/postgresql", &folder.path().display().to_string());
    let bin = std::env::var("EVERTURN_TEST_POSTGRES_BIN").unwrap();
    let own = std::path::Path::new(env!("CARGO_BIN_EXE_everturn")).parent().unwrap();
    let path = format!("{bin}:{}:{}", own.display(), std::env::var("PATH").unwrap());
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &script]).env("PATH", path);
    bash.env("HOME", folder.path()).env("EVERTURN_RECALL_EMBEDDER", "none");
    let said = as_nobody(bash.current_dir("/")).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success(), "{}\n{out}\n{err}", said.status);
    out.into_owned()
}

#[test]
fn the_page_on_operating_runs_as_typed() {
    rounds(|_| {
        let out = typed("docs/operating.md", "", &[], "");
        assert!(out.contains("every word is kept"), "{out}");
    });
}

/// But for the prompt for a password, and the server, which is stopped once it is ready.
#[test]
fn the_page_on_postgres_runs_as_typed() {
    rounds(|_| {
        let before = r#"
export PGHOST=127.0.0.1 PGPORT=5432 PGUSER=postgres
everturn new --title 'From a laptop' --store sqlite:chats.db
"#;
        let ready = "--behind-tls-proxy >serve.log 2>&1 &
until grep -q listens serve.log; do kill -0 $!; sleep 0.1; done; kill $!; wait $!";
        let out = typed(
            "docs/postgres.md",
            before,
            &[
                (
                    "createuser everturn --pwprompt",
                    "printf 'PASSWORD\nPASSWORD\n' | setsid -w createuser everturn --pwprompt",
                ),
                ("db.example", "127.0.0.1:5432"),
                ("0.0.0.0:7317", "127.0.0.1:7317"),
                ("--behind-tls-proxy", ready),
            ],
            "everturn list\n",
        );
        assert!(out.contains("From a laptop"), "{out}");
    });
}

/// Without any server: a copy is indexed by the command that says so.
#[test]
fn recall_is_indexed_by_a_command() {
    rounds(|_| {
        let (shell, folder) = (Shell::new(), Folder::new());
        let database = Database::new(&folder);
        let url = format!("postgres://everturn@127.0.0.1:{}/everturn", database.port);
        let id = shell.json(&["new", "--title", "first", "--json"])["id"].as_str().unwrap().to_string();
        shell.ok(&["append", &id, "the harbour is closed on Mondays"]);
        let source = format!("sqlite:{}", shell.path("store.db").display());
        shell.ok(&["copy", "--from", &source, "--to", &url]);
        // The extension is missing, which is nothing to a command that makes no vectors.
        let made = shell.run(&["new", "--store", &url, "--tenant", "acme"]);
        assert!(made.code == 0 && !made.err.contains("pgvector"), "{}", made.err);
        let next = format!("append @last 'hello' --store {url} --tenant acme");
        assert!(made.err.contains(&next), "{}", made.err);
        let indexed = shell.ok(&["recall", "--index", "--embedder", "none", "--store", &url]);
        assert_eq!(indexed, "everything is indexed\n");
        let found = shell.ok(&["recall", "harbour", "--embedder", "none", "--store", &url]);
        assert!(found.contains("closed on Mondays"), "{found}");
    });
}
