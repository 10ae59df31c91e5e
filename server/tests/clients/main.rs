//! The official clients against our server: each script of `clients/` runs unchanged, except for the address.
//! Also the code of the quick starts, as written there.
//!
//! `./test` installs the clients and sets their paths.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![allow(dead_code, reason = "the other test binary uses the rest of it")]

mod local_model;
mod mcp;
mod schemathesis;
#[path = "../all/scripted_provider.rs"]
mod scripted_provider;
#[path = "../all/stage.rs"]
mod stage;

use everturn_server::App;
use scripted_provider::ScriptedProvider;
use stage::{Stage, config};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A variable set by `./test`.
fn told(name: &str) -> String {
    std::env::var(name)
        .unwrap_or_else(|_| panic!("{name} is not set; run ./test, which installs the official clients"))
}

/// Runs a program with the address of a server that has a scripted provider.
async fn run(mut command: Command) {
    let provider = ScriptedProvider::start().await;
    let stage = Stage::with(App::new(provider.store(), config()).with_embedders(provider.embedders())).await;
    command.arg(&stage.url);
    succeeded(command).await;
    stage.stop().await;
}

/// Runs a program to its end, which must be successful, and returns its output.
async fn succeeded(mut command: Command) -> String {
    let ended = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let (out, errors) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{}\n{out}\n{errors}", ended.status);
    out.into_owned()
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

fn python(script: &Path) -> Command {
    let mut command = Command::new(told("EVERTURN_TEST_PYTHON"));
    command.arg(script);
    command
}

/// Node looks for packages beside the script, so the script is run from a folder that has them.
fn node(script: &Path, folder: &Path) -> Command {
    let packages = told("EVERTURN_TEST_NODE_MODULES");
    std::os::unix::fs::symlink(packages, folder.join("node_modules")).unwrap();
    let copy = folder.join(script.file_name().unwrap());
    std::fs::copy(script, &copy).unwrap();
    let mut command = Command::new(told("EVERTURN_TEST_NODE"));
    command.arg(copy);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_for_python() {
    run(python(&script("python/openai_client.py"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_agents_for_python() {
    run(python(&script("python/agents_client.py"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn anthropic_for_python() {
    run(python(&script("python/anthropic_client.py"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_for_node() {
    let folder = tempfile::tempdir().unwrap();
    run(node(&script("node/openai_client.mjs"), folder.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn vercels_sdk_for_node() {
    let folder = tempfile::tempdir().unwrap();
    run(node(&script("node/vercel_client.mjs"), folder.path())).await;
}

/// The code of a quick start as one program, with the address of our server in place of the default.
fn quickstart(page: &str, language: &str, address: &str) -> String {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page)).unwrap();
    let blocks: Vec<&str> =
        text.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix(language)).collect();
    assert!(!blocks.is_empty(), "{page} has no code");
    let code = blocks.concat();
    assert!(code.contains("\"http://127.0.0.1:7317/v1\""), "{page} does not use the default address");
    code.replace("\"http://127.0.0.1:7317/v1\"", address)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quick_start_for_python() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("quickstart.py");
    let code = quickstart("quickstart-python.md", "python\n", "__import__('sys').argv[1] + \"/v1\"");
    std::fs::write(&program, code).unwrap();
    run(python(&program)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quick_start_for_typescript() {
    let (folder, written) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let program = written.path().join("quickstart.mts");
    std::fs::write(&program, quickstart("quickstart-typescript.md", "ts\n", "process.argv[2] + \"/v1\""))
        .unwrap();
    let mut command = node(&program, folder.path());
    command.env("NODE_NO_WARNINGS", "1");
    run(command).await;
}
