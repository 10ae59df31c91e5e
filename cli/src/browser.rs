//! Opens the page in a browser.

use std::process::{Command, Stdio};

/// Opens a URL with `$BROWSER` or the desktop's default browser; `false` if there is none.
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
