//! Opening the page in a browser, where there is one.

use std::process::{Command, Stdio};

/// Asks the desktop to show an address; `false` if there is no desktop, or it does not listen.
pub fn show(url: &str) -> bool {
    let chosen = std::env::var("BROWSER").ok().filter(|name| !name.is_empty());
    let has_desktop = cfg!(target_os = "macos")
        || ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    let program = match &chosen {
        Some(program) => program.as_str(),
        None if !has_desktop => return false,
        None if cfg!(target_os = "macos") => "open",
        None => "xdg-open",
    };
    let quiet = || Stdio::null();
    Command::new(program).arg(url).stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn().is_ok()
}
