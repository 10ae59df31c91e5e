//! `everturn serve` and `everturn mcp` as processes of their own. They end with the test.

use crate::Shell;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

pub struct Serving {
    child: Child,
    pub url: String,
    /// Its output up to "Ctrl-C stops it."
    pub greeting: String,
    /// Reads its further output, so that it never blocks on us.
    said: JoinHandle<String>,
}

impl Serving {
    /// Serves the store of a shell's folder, on any free port unless an address is given.
    pub fn start(shell: &Shell, args: &[&str]) -> Serving {
        Serving::start_with(shell, args, |_| {})
    }

    /// The same, with a change to the process.
    pub fn start_with(shell: &Shell, args: &[&str], change: impl FnOnce(&mut Command)) -> Serving {
        let listen = if args.contains(&"--listen") { &[][..] } else { &["--listen", "127.0.0.1:0"] };
        let mut command = shell.command(&[&["serve"], listen, args].concat());
        change(&mut command);
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut greeting = String::new();
        while !greeting.contains("Ctrl-C") {
            assert!(err.read_line(&mut greeting).unwrap() > 0, "it ended: {greeting}");
        }
        let url = greeting.split("everturn listens on ").nth(1).unwrap().lines().next().unwrap().to_string();
        let said = std::thread::spawn(move || {
            let mut said = String::new();
            err.read_to_string(&mut said).unwrap();
            said
        });
        Serving { child, url, greeting, said }
    }

    pub fn address(&self) -> String {
        self.url.rsplit('/').next().unwrap().to_string()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// Sends a request, and returns the whole answer.
    pub fn ask(&self, head: &str, body: &str) -> String {
        let mut stream = self.connect();
        send(&mut stream, head, body, "connection: close\r\n");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Sends it a signal to stop.
    pub fn signal(&self) {
        assert!(Command::new("kill").arg(self.child.id().to_string()).status().unwrap().success());
    }

    /// Waits for the end: its exit code, and its output.
    pub fn end(mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        let said = std::mem::replace(&mut self.said, std::thread::spawn(String::new));
        (code, said.join().unwrap())
    }

    /// Kills it, as `kill -9` does.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn send(stream: &mut TcpStream, head: &str, body: &str, headers: &str) {
    let request = format!(
        "{head} HTTP/1.1\r\nhost: localhost\r\n{headers}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
}

/// `everturn mcp`, with a client that speaks to it.
pub struct Mcp {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    requests: u64,
}

impl Mcp {
    pub fn start(shell: &Shell, args: &[&str]) -> Mcp {
        Mcp::start_with(shell, args, |_| {})
    }

    /// The same, with a change to the process.
    pub fn start_with(shell: &Shell, args: &[&str], change: impl FnOnce(&mut Command)) -> Mcp {
        let mut command = shell.command(&[&["mcp"], args].concat());
        change(&mut command);
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut mcp = Mcp { child, input, output, requests: 0 };
        let client = json!({"name": "test", "version": "1"});
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        mcp.request("initialize", &hello);
        mcp.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        mcp
    }

    fn send(&mut self, message: &Value) {
        self.send_line(message.to_string().as_bytes());
    }

    /// Sends any line.
    pub fn send_line(&mut self, line: &[u8]) {
        self.input.write_all(&[line, b"\n"].concat()).unwrap();
    }

    /// The next answer, whatever request it belongs to.
    pub fn answer(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "it ended");
            let message: Value = serde_json::from_str(&line).unwrap();
            if message.get("method").is_none() {
                return message;
            }
        }
    }

    /// Sends a request, and returns its result.
    pub fn request(&mut self, method: &str, params: &Value) -> Value {
        self.requests += 1;
        let id = self.requests;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "it ended");
            let answer: Value = serde_json::from_str(&line).unwrap();
            if answer["id"] == id {
                assert!(answer.get("error").is_none(), "{answer}");
                return answer["result"].clone();
            }
        }
    }

    /// Waits for a notification.
    pub fn notified(&mut self, method: &str) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "it ended");
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["method"] == method {
                return message;
            }
        }
    }

    /// Calls a tool: the answer, or the text of the refusal.
    pub fn call(&mut self, tool: &str, arguments: &Value) -> Result<Value, String> {
        let result = self.request("tools/call", &json!({"name": tool, "arguments": arguments}));
        match result["isError"] == true {
            true => Err(result["content"][0]["text"].as_str().unwrap().to_string()),
            false => Ok(result["structuredContent"].clone()),
        }
    }

    /// Closes its input, and waits for the end: its exit code.
    pub fn close(mut self) -> Option<i32> {
        let (_, output) = std::io::pipe().unwrap();
        self.input = std::process::ChildStdin::from(std::os::fd::OwnedFd::from(output));
        self.child.wait().unwrap().code()
    }

    /// Kills it, as `kill -9` does.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Mcp {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
