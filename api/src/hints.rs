//! Hints in errors, in the words of each surface. The crates below name a command; REST names the route of the same
//! operation, and MCP its tool.

use crate::TABLE;
use std::sync::LazyLock;

/// Commands in the texts of errors, and the operations that do the same.
const COMMANDS: [(&str, &str); 11] = [
    ("`abandon-call`", "abandon_tool_call"),
    ("`everturn archive --undo`", "change_conversation"),
    ("`everturn fork CONV --at SEQ`", "fork_conversation"),
    ("`everturn keys list`", "list_keys"),
    ("`everturn new`", "create_conversation"),
    ("`everturn verify`", "verify"),
    ("`export`", "export"),
    ("`facts`", "list_facts"),
    ("`history`", "list_turns"),
    ("`list`", "list_conversations"),
    ("`state`", "get_state"),
];

/// A command, its tool and its route.
static HINTS: LazyLock<Vec<(&str, String, String)>> = LazyLock::new(|| {
    let rows = COMMANDS.iter().filter_map(|(command, name)| {
        let about = TABLE.iter().find(|row| row.about.name == *name)?.about;
        let route = format!("`{} /api/v1{}`", about.method.as_str(), about.path);
        Some((*command, format!("the tool {name}"), route))
    });
    rows.collect()
});

/// What a program can do that opened the store itself, and what a client of a server can.
const READ_ONLY: [&str; 2] = [
    "the store was opened for reading only; open it for writing",
    "this server only reads; send the request to one that writes",
];

/// The text of an error for a client of MCP.
pub fn in_tools(text: &str) -> String {
    HINTS.iter().fold(for_clients(text), |text, (command, tool, _)| told(&text, command, tool))
}

/// The text of an error for a client of REST.
pub fn in_routes(text: &str) -> String {
    HINTS.iter().fold(for_clients(text), |text, (command, _, route)| told(&text, command, route))
}

/// The text with a command named as this surface names it. Fields of requests have names of commands, too.
fn told(text: &str, command: &str, name: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(command) {
        out.push_str(before);
        let is_field = after.starts_with(" must ") || after.starts_with(" is ") || before.ends_with("field ");
        out.push_str(if is_field { command } else { name });
        rest = after;
    }
    out + rest
}

fn for_clients(text: &str) -> String {
    text.replace(READ_ONLY[0], READ_ONLY[1])
}

/// The text of an error from REST for the command line.
pub fn in_commands(text: &str) -> String {
    HINTS.iter().fold(text.to_string(), |text, (command, _, route)| text.replace(route, command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_surface_has_its_own_words() {
        assert_eq!(HINTS.len(), COMMANDS.len(), "every command has an operation");
        let text = "no turn t here; `history` shows what there is";
        assert_eq!(in_tools(text), "no turn t here; the tool list_turns shows what there is");
        let route = "no turn t here; `GET /api/v1/conversations/{conversation}/turns` shows what there is";
        assert_eq!(in_routes(text), route);
        for (command, ..) in HINTS.iter() {
            assert_eq!(in_commands(&in_routes(command)), *command);
        }
        assert_eq!(in_routes(READ_ONLY[0]), READ_ONLY[1]);
        // A field may have the name of a command.
        for text in ["`state` must be one of active, closed, not \"bogus\"", "unknown field `list`"] {
            assert_eq!((in_tools(text), in_routes(text)), (text.to_string(), text.to_string()));
        }
        // What only the machine of the server can do stays a command.
        let doctor = "`everturn doctor --rebuild` makes it again";
        assert_eq!(in_routes(doctor), doctor);
    }
}
