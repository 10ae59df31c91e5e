//! The binary between or behind programs of others, which speak with their official SDKs.
//!
//! `./test cli` installs these and sets their paths.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod acp;
mod mcp;
mod record;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const EVERTURN: &str = env!("CARGO_BIN_EXE_everturn");

/// A variable set by `./test`.
fn told(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set; run `./test cli`, which installs the official clients")
    })
}

fn store(folder: &TempDir) -> String {
    format!("sqlite:{}", folder.path().join("store.db").display())
}

/// A script in a folder that has the packages: Node looks for them beside it.
fn script(name: &str, folder: &TempDir) -> PathBuf {
    let packages = folder.path().join("node_modules");
    if !packages.exists() {
        std::os::unix::fs::symlink(told("EVERTURN_TEST_NODE_MODULES"), packages).unwrap();
    }
    let copy = folder.path().join(name);
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name), &copy).unwrap();
    copy
}

/// Standard output of a verb that must succeed, as JSON.
fn everturn(store: &str, args: &[&str]) -> Value {
    let output = Command::new(EVERTURN).args(args).args(["--json", "--store", store]).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Lines of JSON.
fn lines(text: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(text).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
