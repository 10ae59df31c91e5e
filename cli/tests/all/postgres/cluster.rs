//! PostgreSQL servers of a test, which end with it.

use super::until;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The user that PostgreSQL runs as where the test is root, which it refuses.
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A command as a user that PostgreSQL accepts.
pub fn as_nobody(command: &mut Command) -> &mut Command {
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// A program of PostgreSQL, as a user that it accepts.
fn program(name: &str) -> Command {
    let bin = PathBuf::from(std::env::var("EVERTURN_TEST_POSTGRES_BIN").unwrap());
    let mut command = Command::new(bin.join(name));
    as_nobody(&mut command).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn run(mut command: Command) {
    let out = command.stderr(Stdio::piped()).output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// A folder that PostgreSQL may use, removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let nth = FOLDERS.fetch_add(1, Ordering::SeqCst);
        let path = std::env::temp_dir().join(format!("everturn-faults-{}-{nth}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        if is_root() {
            std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub struct Database {
    pub port: u16,
    data: PathBuf,
    running: Option<Running>,
}

/// The server, and a shell that ends it when this process is gone, however that ends.
struct Running {
    pid: String,
    shell: Child,
    stdin: Option<ChildStdin>,
}

impl Database {
    /// A new server with an empty database.
    pub fn new(folder: &Folder) -> Database {
        let data = folder.0.join("one");
        let mut init = program("initdb");
        init.arg("-D").arg(&data).args(["-U", "postgres", "--auth=trust", "-E", "UTF8"]);
        init.args(["--locale=C.UTF-8", "--no-sync"]);
        run(init);
        let mut database = Database { port: free_port(), data, running: None };
        database.start();
        database.sql("CREATE ROLE everturn LOGIN");
        database.sql("CREATE DATABASE everturn OWNER everturn");
        database
    }

    /// A standby of this server, for which it waits from now on with every commit.
    pub fn standby(&self, folder: &Folder) -> Database {
        let data = folder.0.join("two");
        let mut copy = program("pg_basebackup");
        copy.arg("-D").arg(&data).args(["-R", "-X", "stream", "-c", "fast", "--no-sync", "-d"]);
        copy.arg(format!("postgres://postgres@127.0.0.1:{}/", self.port));
        run(copy);
        let mut standby = Database { port: free_port(), data, running: None };
        standby.start();
        // Not in the standby's settings: once it is promoted it waits for nobody.
        let settings = self.data.join("postgresql.conf");
        let text = std::fs::read_to_string(&settings).unwrap();
        std::fs::write(&settings, format!("{text}\nsynchronous_standby_names = '*'\n")).unwrap();
        self.sql("SELECT pg_reload_conf()");
        until("the standby is synchronous", || {
            self.ask("SELECT sync_state FROM pg_stat_replication") == "sync"
        });
        standby
    }

    pub fn start(&mut self) {
        until("PostgreSQL starts", || {
            if self.running.as_ref().is_none_or(Running::has_ended) {
                self.running = None;
                self.running = Some(Running::start(&self.data, self.port));
            }
            self.psql("SELECT 1").stderr(Stdio::null()).status().unwrap().success()
        });
    }

    pub fn promote(&self) {
        let mut promote = program("pg_ctl");
        promote.arg("promote").arg("-D").arg(&self.data);
        run(promote);
    }

    /// Stops all its processes, without an end: connections are still taken, and nothing is answered.
    pub fn freeze(&self) {
        let running = self.running.as_ref().expect("it runs");
        running.signal_all("-STOP");
    }

    /// Stops it by a signal: `-INT` ends its sessions first, `-QUIT` does not, and `-KILL` asks nobody.
    pub fn stop(&mut self, signal: &str) {
        let running = self.running.take().expect("it runs");
        assert!(Command::new("kill").args([signal, &running.pid]).status().unwrap().success());
    }

    fn psql(&self, sql: &str) -> Command {
        let mut psql = program("psql");
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres?connect_timeout=5", self.port);
        psql.args(["-qtA", "-v", "ON_ERROR_STOP=1", &url, "-c", sql]);
        psql
    }

    pub fn sql(&self, sql: &str) {
        run(self.psql(sql));
    }

    pub fn ask(&self, sql: &str) -> String {
        let out = self.psql(sql).stdout(Stdio::piped()).output().unwrap();
        String::from_utf8(out.stdout).unwrap().trim().to_string()
    }
}

impl Running {
    fn start(data: &Path, port: u16) -> Running {
        let script = "\"$@\" </dev/null & echo $!; read _; kill -CONT $! $(ps -o pid= --ppid $!) 2>/dev/null; kill -INT $! 2>/dev/null; wait";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(program("postgres").get_program()).arg("-D").arg(data);
        // What these tests do to it, the operating system survives, so nothing is gained by syncing.
        shell.args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]);
        shell.args(["-c", "max_connections=100", "-c", "unix_socket_directories="]).current_dir("/");
        as_nobody(&mut shell);
        let log = std::fs::File::create(data.with_extension("log")).unwrap();
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut pid = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut pid).unwrap();
        Running { pid: pid.trim().into(), stdin: shell.stdin.take(), shell }
    }

    fn has_ended(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with('Z'))
    }

    /// Sends a signal to the server and its children.
    fn signal_all(&self, name: &str) {
        let is_child = |pid: &String| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1).map(str::to_string));
            parent.as_ref() == Some(&self.pid)
        };
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let all = all.filter_map(|entry| entry.file_name().into_string().ok());
        let children = all.filter(|name| name.bytes().all(|b| b.is_ascii_digit())).filter(is_child);
        let pids = [self.pid.clone()].into_iter().chain(children);
        let _ = Command::new("kill").arg(name).args(pids).stderr(Stdio::null()).status();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that was frozen must wake up to end.
        self.signal_all("-CONT");
        self.stdin = None;
        let _ = self.shell.wait();
    }
}
