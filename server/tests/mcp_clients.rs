//! MCP with the clients that people use: the official one for Python, and the protocol's conformance suite.
//!
//! They are not Rust, so `./test` installs them and says where they are.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[allow(dead_code, reason = "other tests use more of it")]
#[path = "all/stage.rs"]
mod stage;

use everturn_engine::Everturn;
use everturn_server::Config;
use stage::{Stage, config};
use std::path::Path;
use std::process::{Command, Output};

fn installed(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set: run `./test server`, which installs the clients and says where they are"
        )
    })
}

async fn run(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn shown(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_works_over_http() {
    let stage = Stage::new().await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/python/mcp_client.py");
    let mut python = Command::new(installed("EVERTURN_TEST_PYTHON"));
    python.arg("-Wignore").arg(script).args(["http", &format!("{}/mcp", stage.url)]);
    let output = run(python).await;
    assert!(output.status.success(), "{}", shown(&output));
    let versions = String::from_utf8_lossy(&output.stdout).to_string();
    assert_eq!(versions, "with a session: 2025-11-25\nas it likes: 2026-07-28\n");
    stage.stop().await;
}

/// Every scenario that the suite has for servers. It calls a check that only warns neither passed nor failed; here all
/// of them must pass.
#[tokio::test(flavor = "multi_thread")]
async fn the_conformance_suite_passes() {
    let fixtures = Config { mcp_fixtures: true, ..config() };
    let stage = Stage::over(Everturn::open("memory:").unwrap(), fixtures).await;
    let folder = tempfile::tempdir().unwrap();
    let suite = Path::new(&installed("EVERTURN_TEST_NODE_MODULES"))
        .join("@modelcontextprotocol/conformance/dist/index.js");
    let mut node = Command::new(installed("EVERTURN_TEST_NODE"));
    let url = stage.url.replace("127.0.0.1", "localhost") + "/mcp";
    node.current_dir(&folder).arg(suite).args(["server", "--suite", "all", "--url", &url]);
    let output = run(node).await;
    let text = shown(&output);
    assert!(output.status.success(), "{text}");
    let scenarios = text.lines().filter(|line| line.starts_with('✓')).count();
    assert!(scenarios == 32 && text.contains("Total: 47 passed, 0 failed"), "{text}");
    stage.stop().await;
}
