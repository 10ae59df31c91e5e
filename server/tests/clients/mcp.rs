//! MCP with common clients: the official one for Python, and the protocol's conformance suite.

use crate::stage::{Stage, config};
use crate::{python, script, succeeded, told};
use everturn_engine::Everturn;
use everturn_server::Config;
use std::path::Path;
use std::process::Command;

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_works_over_http() {
    let stage = Stage::new().await;
    let mut client = python(&script("python/mcp_client.py"));
    client.env("PYTHONWARNINGS", "ignore").args(["http", &format!("{}/mcp", stage.url)]);
    assert_eq!(succeeded(client).await, "with a session: 2025-11-25\nas it likes: 2026-07-28\n");
    stage.stop().await;
}

/// Every scenario that the suite has for servers. It counts a check that only warns as neither passed nor
/// failed; here all of them must pass.
#[tokio::test(flavor = "multi_thread")]
async fn the_conformance_suite_passes() {
    let fixtures = Config { mcp_fixtures: true, ..config() };
    let stage = Stage::over(Everturn::open("memory:").unwrap(), fixtures).await;
    let folder = tempfile::tempdir().unwrap();
    let suite = Path::new(&told("EVERTURN_TEST_NODE_MODULES"))
        .join("@modelcontextprotocol/conformance/dist/index.js");
    let mut node = Command::new(told("EVERTURN_TEST_NODE"));
    let url = stage.url.replace("127.0.0.1", "localhost") + "/mcp";
    node.current_dir(&folder).arg(suite).args(["server", "--suite", "all", "--url", &url]);
    let text = succeeded(node).await;
    let scenarios = text.lines().filter(|line| line.starts_with('✓')).count();
    assert!(scenarios == 32 && text.contains("Total: 47 passed, 0 failed"), "{text}");
    stage.stop().await;
}
