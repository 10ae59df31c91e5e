//! Servers in processes of their own, and minimal clients: a socket, bytes out, bytes in.

use crate::Result;
use crate::place::Scratch;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Maximum time until a server listens.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// `everturn` with its default settings: the program beside this one.
pub fn everturn() -> Result<Command> {
    let program = std::env::current_exe()?.with_file_name("everturn");
    if !program.is_file() {
        let text = "is not there; build it with `cargo build --release`";
        return Err(format!("{} {text}", program.display()).into());
    }
    let mut command = Command::new(&program);
    // The user's own configuration must not apply.
    command.env_remove("EVERTURN_CONFIG").env("XDG_CONFIG_HOME", "/nonexistent");
    Ok(command)
}

/// A server that is stopped when this is dropped.
pub struct Program {
    child: Child,
    pub address: SocketAddr,
}

impl Program {
    /// `everturn serve` with its default settings.
    pub fn everturn(place: &Scratch, name: &str) -> Result<Program> {
        let mut command = everturn()?;
        Program::start(|address| {
            command.args(["serve", "--listen", &address.to_string(), "--store"]);
            command.arg(format!("sqlite:{}", place.file(name).display()));
            command
        })
    }

    /// Redis that syncs before it answers, as our appends do.
    pub fn redis(place: &Scratch) -> Result<Program> {
        let folder: PathBuf = place.file("redis");
        std::fs::create_dir_all(&folder)?;
        let started = Program::start(|address| {
            let mut command = Command::new("redis-server");
            command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--dir"]);
            command.arg(&folder);
            command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", ""]);
            command
        });
        started.map_err(|error| match error.downcast_ref::<std::io::Error>().map(std::io::Error::kind) {
            Some(std::io::ErrorKind::NotFound) => {
                "redis-server is not on this machine; install it (Debian: `apt-get install redis-server`)"
                    .into()
            }
            _ => error,
        })
    }

    pub fn start(command: impl FnOnce(SocketAddr) -> Command) -> Result<Program> {
        // Bound and released: if another program takes the port in between, the start fails, and nothing else.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut command = command(address);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut program = Program { child, address };
        let began = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            if let Some(status) = program.child.try_wait()? {
                return Err(format!("{:?} ended at once: {status}", command.get_program()).into());
            }
            if began.elapsed() > START_PATIENCE {
                return Err(format!("{:?} does not listen", command.get_program()).into());
            }
            // There is no notification of when it listens.
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(program)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Processor time of its threads, in seconds.
    pub fn processor_seconds(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name of the program may contain spaces; the fields after it do not.
        let fields = stat.rsplit_once(')').ok_or("the system does not tell")?.1;
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
        let ticks: u64 = ticks.collect::<Result<Vec<_>, _>>()?.iter().sum();
        // SAFETY: takes a number and gives one.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        Ok(ticks as f64 / per_second as f64)
    }

    pub fn resident_bytes(&self) -> Result<u64> {
        self.status("VmRSS:")
    }

    pub fn most_resident_bytes(&self) -> Result<u64> {
        self.status("VmHWM:")
    }

    fn status(&self, name: &str) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.ok_or("the system does not tell")?.trim().trim_end_matches("kB").trim();
        Ok(kib.parse::<u64>()? * 1024)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection that sends requests and waits for the answers.
pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Result<Client> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Client { stream, buffer: Vec::with_capacity(16 * 1024) })
    }

    /// Sends an HTTP request. Returns the body of the answer, which must be a success.
    pub async fn http(&mut self, request: &[u8]) -> Result<&[u8]> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        let (head, length) = loop {
            self.more().await?;
            if let Some(head) = find(&self.buffer, b"\r\n\r\n") {
                break (head, content_length(&self.buffer[..head])?);
            }
        };
        while self.buffer.len() < head + 4 + length {
            self.more().await?;
        }
        if !self.buffer.starts_with(b"HTTP/1.1 2") {
            return Err(format!("refused: {}", String::from_utf8_lossy(&self.buffer)).into());
        }
        Ok(&self.buffer[head + 4..])
    }

    /// Sends a Redis command that is answered with a string.
    pub async fn redis(&mut self, command: &[u8]) -> Result<()> {
        self.stream.write_all(command).await?;
        self.buffer.clear();
        loop {
            self.more().await?;
            if self.buffer.first() != Some(&b'$') {
                return Err(format!("refused: {}", String::from_utf8_lossy(&self.buffer)).into());
            }
            if let Some(line) = find(&self.buffer, b"\r\n")
                && let Ok(length) = std::str::from_utf8(&self.buffer[1..line])?.parse::<usize>()
                && self.buffer.len() >= line + 2 + length + 2
            {
                return Ok(());
            }
        }
    }

    async fn more(&mut self) -> Result<()> {
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            return Err("the server closed the connection".into());
        }
        Ok(())
    }
}

/// An HTTP request with a JSON body, or without one.
pub fn request(method: &str, address: SocketAddr, path: &str, body: &str) -> Vec<u8> {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

pub fn command(words: &[&str]) -> Vec<u8> {
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    command.into_bytes()
}

fn content_length(head: &[u8]) -> Result<usize> {
    let head = std::str::from_utf8(head)?.to_ascii_lowercase();
    let value = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    Ok(value.ok_or("the answer does not say how long it is")?.trim().parse()?)
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}
