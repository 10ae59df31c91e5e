//! PgBouncer in transaction mode, where it is installed. It carries prepared statements from version 1.21 on.

use super::cluster::{Database, Folder, as_nobody, free_port};
use super::load::Load;
use super::{rounds, until};
use crate::Shell;
use crate::process::Serving;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

struct Bouncer {
    port: u16,
    child: Child,
}

impl Bouncer {
    fn program() -> String {
        std::env::var("EVERTURN_TEST_PGBOUNCER").unwrap_or("pgbouncer".into())
    }

    /// Its version; `None` if it is not installed.
    fn version() -> Option<(u32, u32)> {
        let said = Command::new(Bouncer::program()).arg("--version").output().ok()?;
        let said = String::from_utf8(said.stdout).ok()?;
        let mut numbers = said.split([' ', '.', '\n']).filter_map(|word| word.parse().ok());
        Some((numbers.next()?, numbers.next()?))
    }

    fn start(folder: &Folder, database: &Database, mode: &str) -> Bouncer {
        let (port, settings) = (free_port(), folder.path().join(format!("{mode}.ini")));
        // In transaction mode, fewer connections than the servers have.
        let size = if mode == "transaction" { 3 } else { 30 };
        let mut text = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=everturn\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = {size}\nserver_login_retry = 1\n",
            database.port
        );
        if Bouncer::version() >= Some((1, 21)) {
            text += "max_prepared_statements = 200\n";
        }
        std::fs::write(&settings, text).unwrap();
        let mut bouncer = Command::new(Bouncer::program());
        let log = std::fs::File::create(folder.path().join(format!("{mode}.log"))).unwrap();
        bouncer.arg(&settings).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = as_nobody(&mut bouncer).spawn().unwrap();
        until("PgBouncer listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Bouncer { port, child }
    }

    fn url(&self) -> String {
        format!("postgres://everturn@127.0.0.1:{}/everturn?connect_timeout=2", self.port)
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn servers_behind_a_pooler_in_transaction_mode() {
    rounds(|_| {
        let Some(version) = Bouncer::version() else {
            return eprintln!("skipped: pgbouncer is not installed");
        };
        eprintln!("PgBouncer {version:?}");
        let (shell, folder) = (Shell::new(), Folder::new());
        let mut database = Database::new(&folder);
        let carries_statements = version >= (1, 21);
        let modes: &[&str] = if carries_statements { &["transaction", "session"] } else { &["session"] };
        for mode in modes {
            let bouncer = Bouncer::start(&folder, &database, mode);
            // Fewer connections than in the pool of PgBouncer would not share any.
            let serve =
                || Serving::start(&shell, &["--store", &format!("{}&connections_max=4", bouncer.url())]);
            let (one, two) = (serve(), serve());
            let load = Load::on(&[&one, &two]);
            load.run(&shell, &bouncer.url(), |load| {
                load.more(40);
                database.stop("-INT");
                database.start();
                load.more(40);
            });
        }
        if !carries_statements {
            let bouncer = Bouncer::start(&folder, &database, "transaction");
            let said = shell.run(&["new", "--store", &bouncer.url()]);
            assert_eq!(said.code, 1, "{}", said.out);
            assert!(said.err.contains("use PgBouncer 1.21 or later"), "{}", said.err);
        }
    });
}
