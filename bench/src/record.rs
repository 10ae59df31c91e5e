//! Delay that `everturn record` adds to a call: the same calls with it and without it, in turns.

use crate::figures::{Samples, time};
use crate::place::Scratch;
use crate::programs::{self, Program};
use crate::report::Row;
use crate::{Result, Scale};
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

/// Number of calls in a row on each side.
const CALLS: usize = 50;
/// The bar: seconds that recording may add to a call.
const ADDED_MAX: f64 = 0.001;

pub fn run(place: &Scratch, scale: Scale) -> Result<Vec<Row>> {
    eprintln!("record: {} rounds", scale.rounds);
    let this = std::env::current_exe()?;
    let server = [this.as_os_str(), "echo".as_ref()];
    let folder = place.file("recorded");
    let store = format!("sqlite:{}", place.file("recorded.db").display());
    let mut rows = Vec::new();
    for (what, target) in [
        ("a session file", vec!["--session".into(), folder.into_os_string()]),
        ("a conversation", vec!["--store".into(), store.into()]),
    ] {
        let mut alone = Piped::start(Command::new(server[0]).arg(server[1]))?;
        let mut recorded =
            Piped::start(programs::everturn()?.arg("record").args(target).arg("--").args(server))?;
        rows.push(compare(&format!("stdio, into {what}"), scale, || alone.call(), || recorded.call())?);
    }
    let upstream = upstream()?;
    let folder = place.file("recorded-http");
    let mut command = programs::everturn()?;
    let proxy = Program::start(|address| {
        command.args(["record", "--to", &format!("http://{upstream}/"), "--listen", &address.to_string()]);
        command.arg("--session").arg(&folder);
        command
    })?;
    let (mut alone, mut recorded) = (Connected::to(upstream)?, Connected::to(proxy.address)?);
    rows.push(compare("HTTP, into a session file", scale, || alone.call(), || recorded.call())?);
    Ok(rows)
}

fn compare(
    what: &str,
    scale: Scale,
    mut alone: impl FnMut() -> Result<()>,
    mut recorded: impl FnMut() -> Result<()>,
) -> Result<Row> {
    let timed = |call: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
        let mut samples = Samples::default();
        for _ in 0..CALLS {
            let began = Instant::now();
            call()?;
            samples.push_time(began.elapsed());
        }
        Ok(samples.median())
    };
    // The first ones start processes and files.
    timed(&mut alone)?;
    timed(&mut recorded)?;
    let (mut without, mut with, mut added) = (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..scale.rounds {
        let (first, second) = (timed(&mut alone)?, timed(&mut recorded)?);
        without.push(first);
        with.push(second);
        added.push(second - first);
    }
    let measured = format!("{}, {} more", time(with.median()), time(added.median()));
    let row = Row::new(
        format!("a recorded MCP call, {what}"),
        measured,
        format!("without: {}", time(without.median())),
    );
    Ok(row.ratios(&with.over(&without)).bar("< 1 ms more", added.median() < ADDED_MAX))
}

/// A call of a tool, as an MCP client sends it.
fn request(id: u64) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"echo","arguments":{{"message":"{}"}}}}}}"#,
        "word ".repeat(40)
    )
}

/// Answers each line of standard input: the smallest server.
pub fn echo() -> Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        writeln!(out, "{}", answer(&line?))?;
        out.flush()?;
    }
    Ok(())
}

fn answer(request: &str) -> String {
    let id: String =
        request.split("\"id\":").nth(1).unwrap_or("0").chars().take_while(char::is_ascii_digit).collect();
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":"echo"}}]}}}}"#)
}

/// A server on pipes.
struct Piped {
    child: Child,
    answers: Lines<BufReader<ChildStdout>>,
    id: u64,
}

impl Piped {
    fn start(command: &mut Command) -> Result<Piped> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let answers = BufReader::new(child.stdout.take().ok_or("it has no output")?).lines();
        Ok(Piped { child, answers, id: 0 })
    }

    fn call(&mut self) -> Result<()> {
        self.id += 1;
        let input = self.child.stdin.as_mut().ok_or("it has no input")?;
        input.write_all(format!("{}\n", request(self.id)).as_bytes())?;
        self.answers.next().ok_or("the server ended")??;
        Ok(())
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The smallest server over HTTP, in this process.
fn upstream() -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = serve(stream);
            });
        }
    });
    Ok(address)
}

fn serve(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(body) = message(&mut reader)? {
        let answer = answer(&body);
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            answer.len()
        );
        stream.write_all(format!("{head}{answer}").as_bytes())?;
    }
    Ok(())
}

/// The body of the next request or answer; its length must be in its head, or it is sent in one chunk.
fn message(reader: &mut impl BufRead) -> Result<Option<String>> {
    let (mut length, mut is_chunked) = (0, false);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        is_chunked |= line == "transfer-encoding: chunked";
        if line.is_empty() {
            break;
        }
    }
    let mut text = String::new();
    loop {
        if is_chunked {
            let mut size = String::new();
            reader.read_line(&mut size)?;
            length = usize::from_str_radix(size.trim(), 16)?;
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        text.push_str(&String::from_utf8(body)?);
        if is_chunked {
            reader.read_line(&mut String::new())?;
        }
        if !is_chunked || length == 0 {
            return Ok(Some(text));
        }
    }
}

/// A client with one connection.
struct Connected {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    id: u64,
}

impl Connected {
    fn to(address: SocketAddr) -> Result<Connected> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Connected { reader: BufReader::new(stream.try_clone()?), stream, id: 0 })
    }

    fn call(&mut self) -> Result<()> {
        self.id += 1;
        let body = request(self.id);
        let head = format!(
            "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.stream.write_all(format!("{head}{body}").as_bytes())?;
        message(&mut self.reader)?.ok_or("the server closed the connection")?;
        Ok(())
    }
}
