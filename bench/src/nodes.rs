//! Appends through one server and through two, each in a process that may use only a part of a core: what a second server adds
//! where servers do not take the processor from the database and from each other.

use crate::corpus::Words;
use crate::figures::{Samples, rate};
use crate::programs::{Client, Program, everturn, request};
use crate::report::Row;
use crate::{Result, Scale};
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const TURN_BYTES: usize = 1024;
const CLIENTS: usize = 64;
/// Processor time of a server in each period.
const SHARE_US: u32 = 2_000;
const PERIOD_US: u32 = 10_000;

/// Compares two servers of one store with one of them, the same clients in turns.
pub fn run(url: &str, scale: Scale) -> Result<Row> {
    eprintln!("two servers: {} rounds", scale.rounds);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let servers = [Server::start(url, "one")?, Server::start(url, "two")?];
    let (mut one, mut two) = (Samples::default(), Samples::default());
    let slice = Duration::from_millis(scale.slice_ms * 5);
    runtime.block_on(async {
        let mut here = servers[0].clients(CLIENTS).await?;
        let mut both = servers[0].clients(CLIENTS / 2).await?;
        both.extend(servers[1].clients(CLIENTS / 2).await?);
        for _ in 0..scale.rounds {
            one.push(appends(&mut here, slice).await?);
            two.push(appends(&mut both, slice).await?);
        }
        Ok::<_, crate::Fault>(())
    })?;
    let share = f64::from(SHARE_US) / f64::from(PERIOD_US);
    let what = format!("two servers with {share} of a core each, 32 clients each, over HTTP");
    let against = format!("{} one server, 64 clients", rate(one.median()));
    Ok(Row::new(what, rate(two.median()), against).ratios(&two.over(&one)).at_least(1.5))
}

/// A client, and its request to append to its own conversation.
type Writer = (Client, Vec<u8>);

async fn appends(writers: &mut [Writer], slice: Duration) -> Result<f64> {
    let began = Instant::now();
    let each = writers.iter_mut().map(async |(client, request)| {
        let mut done = 0_u32;
        while began.elapsed() < slice {
            client.http(request).await?;
            done += 1;
        }
        Ok::<_, crate::Fault>(done)
    });
    let done: u32 = try_join_all(each).await?.into_iter().sum();
    Ok(f64::from(done) / began.elapsed().as_secs_f64())
}

/// A server that may use only a share of a core.
struct Server {
    program: Program,
    /// Removed after the server has ended.
    _group: Group,
}

impl Server {
    fn start(url: &str, name: &str) -> Result<Server> {
        let group = Group::make(name)?;
        let mut command = everturn()?;
        let program = Program::start(|address| {
            command.args(["serve", "--listen", &address.to_string(), "--store", url]);
            command
        })?;
        group.add(program.id())?;
        Ok(Server { program, _group: group })
    }

    async fn clients(&self, count: usize) -> Result<Vec<Writer>> {
        let address = self.program.address;
        let text = Words::default().text(TURN_BYTES);
        let body = json!({"turns": [{"role": "user", "content": text}]}).to_string();
        let mut all = Vec::new();
        for _ in 0..count {
            let mut client = Client::connect(address).await?;
            let create = request("POST", address, "/api/v1/conversations", "{}");
            let made: Value = serde_json::from_slice(client.http(&create).await?)?;
            let id = made["id"].as_str().ok_or("a conversation has an id")?;
            let append = request("POST", address, &format!("/api/v1/conversations/{id}/turns"), &body);
            all.push((client, append));
        }
        Ok(all)
    }
}

/// A control group of Linux whose processes have a share of a core.
struct Group(PathBuf);

impl Group {
    fn make(name: &str) -> Result<Group> {
        let root = Path::new("/sys/fs/cgroup");
        let is_unified = root.join("cgroup.controllers").exists();
        let parent = if is_unified { root.to_path_buf() } else { root.join("cpu") };
        let group = Group(parent.join(format!("everturn-bench-{}-{name}", std::process::id())));
        let write = |file: &str, text: String| fs::write(group.0.join(file), text);
        let made = fs::create_dir(&group.0).and_then(|()| match is_unified {
            true => write("cpu.max", format!("{SHARE_US} {PERIOD_US}")),
            false => write("cpu.cfs_period_us", PERIOD_US.to_string())
                .and_then(|()| write("cpu.cfs_quota_us", SHARE_US.to_string())),
        });
        match made {
            Ok(()) => Ok(group),
            Err(error) => {
                Err(format!("cannot limit a server's processor time ({error}); run it as root on Linux")
                    .into())
            }
        }
    }

    fn add(&self, process: u32) -> Result<()> {
        Ok(fs::write(self.0.join("cgroup.procs"), process.to_string())?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
