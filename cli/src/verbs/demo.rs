//! `everturn demo`
//!
//! `demo/script.json` is a list of API operations. `as` names the id in the answer, `$name` refers to it later; `-90m` is 90 minutes
//! ago; a step `stream` is an answer that is written word by word, again and again.

use crate::args::Args;
use crate::browser;
use crate::client::Remote;
use crate::output::Failure;
use base64::prelude::{BASE64_STANDARD, Engine};
use clap::Args as ClapArgs;
use everturn_api::Row;
use everturn_api::recall::Recall;
use everturn_core::Error;
use everturn_core::time::Timestamp;
use everturn_engine::RecallOptions;
use everturn_server::settings::Flag;
use everturn_server::{Settings, run as serve};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const SCRIPT: &str = include_str!("demo/script.json");
const PICTURE: &[u8] = include_bytes!("demo/latency.png");
/// Pause between two words of a streamed answer.
const PAUSE: Duration = Duration::from_millis(160);
/// Maximum time to wait for the index.
const INDEX_PATIENCE: Duration = Duration::from_secs(60);

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn demo\n  \
    everturn demo --no-open --listen 127.0.0.1:7399")]
pub struct Demo {
    /// Where to listen; port 0 takes any that is free
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// Only print the address
    #[arg(long)]
    no_open: bool,
}

/// Prices of the models in the script, per million tokens.
const PRICES: &str =
    "claude-opus-4-1 15 75, claude-sonnet-4-5 3 15, gpt-5 1.25 10, gpt-5-mini 0.25 2, mistral-large 2 6";

pub fn run(_: &Args, verb: &Demo) -> Result<(), Failure> {
    let cannot = |e: std::io::Error| Error::internal("demo.folder", format!("cannot make a folder: {e}"));
    let folder = tempfile::tempdir().map_err(cannot)?;
    let store = format!("sqlite:{}", folder.path().join("demo.db").display());
    let flags = vec![
        Flag { key: "listen", flag: "--listen", value: verb.listen.clone() },
        Flag { key: "prices", flag: "--prices", value: PRICES.to_string() },
        Flag { key: "telemetry.log", flag: "--verbose", value: "warn".to_string() },
    ];
    let settings = Settings::gather(None, &|_| None, flags)?;
    let opens = !verb.no_open;
    serve(&settings, &store, |started| {
        let url = format!("http://{}", started.address);
        std::thread::spawn(move || match Player::new(&url).and_then(|player| player.play(&url, opens)) {
            Ok(()) => {}
            Err(error) => eprintln!("the demo stopped: {error}"),
        });
    })?;
    Ok(())
}

struct Player {
    server: Remote,
    names: BTreeMap<String, Value>,
    now: Timestamp,
}

impl Player {
    fn new(url: &str) -> Result<Player, Error> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Timestamp(i64::try_from(since.as_micros()).unwrap_or_default());
        Ok(Player { server: Remote::new(url, None)?, names: BTreeMap::new(), now })
    }

    fn play(mut self, url: &str, opens: bool) -> Result<(), Error> {
        let steps: Vec<Map<String, Value>> = serde_json::from_str(SCRIPT)
            .map_err(|e| Error::internal("demo.script", format!("the script is broken: {e}")))?;
        eprintln!("filling a store with sample conversations …");
        let mut streams = Vec::new();
        for mut step in steps {
            step.values_mut().for_each(|value| self.fill_in(value));
            match take(&mut step, "op").as_str() {
                "stream" => streams.push(step),
                name => self.run(name, step)?,
            }
        }
        eprintln!("a store with sample conversations is at {url} until Ctrl-C ends it");
        if opens && !browser::show(url) {
            eprintln!("no browser was found here; open that address in one");
        }
        loop {
            for step in &mut streams {
                self.stream(step.clone())?;
                step.insert("ask".into(), "Again, please!".into());
            }
        }
    }

    fn run(&mut self, name: &str, mut step: Map<String, Value>) -> Result<(), Error> {
        if step.contains_key("recall") {
            self.wait_for_index()?;
        }
        let called = take(&mut step, "as");
        let row = Row::named(name)
            .ok_or_else(|| Error::internal("demo.script", format!("there is no operation {name}")))?;
        let answer: Value = self.server.ask(&row.about, step)?;
        // Of several appended turns, the last one.
        let id = answer["turns"].as_array().and_then(|turns| turns.last()).unwrap_or(&answer)["id"].clone();
        if !called.is_empty() {
            self.names.insert(called, id);
        }
        Ok(())
    }

    /// Waits until everything is indexed: recall would otherwise return different hits in each demo.
    fn wait_for_index(&self) -> Result<(), Error> {
        let any = || Recall { query: "demo".into(), conversation: None, options: RecallOptions::default() };
        let end = Instant::now() + INDEX_PATIENCE;
        while self.server.recall(any())?.behind.events > 0 {
            if Instant::now() > end {
                let text = format!("the index is not up to date after {} s", INDEX_PATIENCE.as_secs());
                return Err(Error::busy("demo.index", text));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Streams an answer word by word.
    fn stream(&mut self, mut step: Map<String, Value>) -> Result<(), Error> {
        let (text, ask) = (take(&mut step, "text"), take(&mut step, "ask"));
        if !ask.is_empty() {
            let turns = serde_json::json!([{"role": "user", "actor": "jana", "content": ask}]);
            let conversation = step["conversation"].clone();
            let fields = [("conversation".into(), conversation), ("turns".into(), turns)];
            self.run("append_turns", Map::from_iter(fields))?;
        }
        step.insert("as".into(), "$streamed".into());
        self.run("open_turn", step)?;
        let turn = self.names["$streamed"].clone();
        for word in text.split_inclusive(' ') {
            std::thread::sleep(PAUSE);
            self.run(
                "append_chunk",
                Map::from_iter([("turn".into(), turn.clone()), ("delta".into(), word.into())]),
            )?;
        }
        let words = text.split_whitespace().count();
        let tokens = serde_json::json!({"prompt": 84, "completion": words * 4 / 3});
        self.run("commit_turn", Map::from_iter([("turn".into(), turn), ("tokens".into(), tokens)]))?;
        std::thread::sleep(PAUSE * 60);
        Ok(())
    }

    /// Fills in ids, times and the image.
    fn fill_in(&self, value: &mut Value) {
        match value {
            Value::Array(all) => all.iter_mut().for_each(|one| self.fill_in(one)),
            Value::Object(fields) => fields.values_mut().for_each(|one| self.fill_in(one)),
            Value::String(text) => {
                let minutes =
                    text.strip_prefix('-').and_then(|rest| rest.strip_suffix('m')?.parse::<i64>().ok());
                if let Some(minutes) = minutes {
                    *value = Timestamp(self.now.0 - minutes * 60_000_000).to_string().into();
                } else if text == "$latency.png" {
                    *value = BASE64_STANDARD.encode(PICTURE).into();
                } else if let Some(known) = self.names.get(text.as_str()) {
                    *value = known.clone();
                }
            }
            _ => {}
        }
    }
}

fn take(step: &mut Map<String, Value>, field: &str) -> String {
    step.remove(field).and_then(|value| value.as_str().map(str::to_string)).unwrap_or_default()
}
