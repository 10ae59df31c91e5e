//! `everturn list`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{dates, open, show};
use clap::Args as ClapArgs;
use everturn_api::ConversationName;
use everturn_api::conversations::ListConversations;
use everturn_core::conversation::{Conversation, Lifecycle, project_name, without_fork_mark};
use std::path::Path;

#[derive(ClapArgs)]
#[command(
    after_help = "Examples:\n  everturn list\n  everturn list --project everturn --since yesterday\n  \
    everturn list --since 7d --project .          (this folder, the last week)\n  \
    everturn list --query build --state active --json\n  \
    everturn list --url http://127.0.0.1:7317       (the same, at a server)\n\n\
    Subagents are listed below the conversation that they worked for. Times are local. In a narrow\n\
    terminal ids are cut to their beginnings, by which conversations can be named."
)]
pub struct List {
    /// Only those whose title contains this text: ASCII letters in any case, all others exactly
    #[arg(long, short)]
    query: Option<String>,
    /// Only those of this project: its name, or a folder that it is in
    #[arg(long, short, value_name = "NAME | DIR")]
    project: Option<String>,
    /// Only those of this agent: codex, claude, …
    #[arg(long, short, value_name = "NAME")]
    agent: Option<String>,
    /// Only those with a turn since then: 2026-01-31, yesterday, 7d, …
    #[arg(long, value_name = "DATE")]
    since: Option<String>,
    /// Only those in this state: active, archived, abandoned or closed
    #[arg(long)]
    state: Option<String>,
    /// Maximum number of conversations
    #[arg(long, short, default_value_t = LIMIT, value_name = "N")]
    limit: usize,
    /// Only forks of this conversation
    #[arg(long, value_name = "CONV")]
    forked_from: Option<String>,
    /// Continue after a page: the `next` of the previous page
    #[arg(long, value_name = "NEXT")]
    after: Option<String>,
}

const LIMIT: usize = 20;

/// Maximum number of characters of a title and of a project.
const TITLE_CHARS: usize = 60;
const PROJECT_CHARS: usize = 20;
/// Space between two columns.
const GAP: usize = 2;
/// Minimum number of characters of ids and titles on a narrow terminal.
const ID_CHARS_MIN: usize = 14;
const TITLE_CHARS_MIN: usize = 24;

const DIM: anstyle::Style = anstyle::Style::new().dimmed();
const BOLD: anstyle::Style = anstyle::Style::new().bold();

impl List {
    /// The flags of the next page, beside its cursor.
    fn flags(&self) -> String {
        let texts = [
            ("--query", &self.query),
            ("--project", &self.project),
            ("--agent", &self.agent),
            ("--since", &self.since),
            ("--state", &self.state),
            ("--forked-from", &self.forked_from),
        ];
        let mut flags: String = texts
            .iter()
            .filter_map(|(flag, text)| Some(format!(" {flag} {}", show::quoted((*text).as_ref()?))))
            .collect();
        if self.limit != LIMIT {
            flags += &format!(" --limit {}", self.limit);
        }
        flags
    }
}

pub fn run(args: &Args, verb: &List) -> Result<(), Failure> {
    let store = open::reading(args)?;
    let page = store.call(ListConversations {
        query: verb.query.clone(),
        state: verb.state.as_deref().map(|state| show::option("--state", state)).transpose()?,
        project: verb.project.as_deref().map(project),
        agent: verb.agent.clone(),
        since: verb.since.as_deref().map(dates::parse).transpose()?,
        forked_from: verb.forked_from.clone().map(ConversationName),
        after: verb.after.clone(),
        limit: Some(verb.limit),
    })?;
    if args.json {
        return output::json(&page);
    }
    if page.data.is_empty() {
        return output::text(match !verb.flags().is_empty() || verb.after.is_some() {
            true => "no such conversations; `everturn list` shows all",
            false => "no conversations; `everturn new` creates one, `everturn import` finds those of agents",
        });
    }
    let room = terminal_size::terminal_size_of(std::io::stdout()).map(|(width, _)| usize::from(width.0));
    output::text(table(&page.data, room))?;
    if let Some(next) = page.next {
        output::text(format!(
            "{DIM}more: everturn list{}{} --after {next}{DIM:#}",
            verb.flags(),
            args.again()
        ))?;
    }
    Ok(())
}

/// `.` and `../x` are relative to the current folder; anything else is a name or a stored path.
pub fn project(text: &str) -> String {
    let here = matches!(
        Path::new(text).components().next(),
        Some(std::path::Component::CurDir | std::path::Component::ParentDir)
    );
    let folder = here.then(|| std::fs::canonicalize(text).ok()).flatten();
    folder.map_or_else(|| text.to_string(), |folder| folder.display().to_string())
}

/// One line of the table.
struct Line {
    id: String,
    said: String,
    turns: String,
    agent: String,
    project: String,
    title: String,
    state: String,
}

/// Aligned columns, in so many characters where that is known. Those that would be empty are left out.
fn table(conversations: &[Conversation], room: Option<usize>) -> String {
    let mut lines = vec![Line {
        id: "id".into(),
        said: format!("last turn ({})", dates::zone()),
        turns: "turns".into(),
        agent: "agent".into(),
        project: "project".into(),
        title: "title".into(),
        state: String::new(),
    }];
    lines.extend(in_order(conversations).into_iter().map(|(conversation, depth)| line(conversation, depth)));
    if let Some(room) = room {
        fit(&mut lines, room);
    }
    let Widths { id, said, turns, agent, project } = Widths::of(&lines);
    let mut out = Vec::new();
    for (n, line) in lines.iter().enumerate() {
        let mut text = format!("{:id$}  {DIM}{:said$}{DIM:#}  {:>turns$}", line.id, line.said, line.turns);
        for (cell, width) in [(&line.agent, agent), (&line.project, project)] {
            if width > 0 {
                text += &format!("  {cell:width$}");
            }
        }
        let title = if n == 0 { line.title.clone() } else { format!("{BOLD}{}{BOLD:#}", line.title) };
        text += &format!("  {title}{DIM}{}{DIM:#}", line.state);
        out.push(if n == 0 { format!("{DIM}{text}{DIM:#}") } else { text });
    }
    out.join("\n")
}

/// Widths of the columns before the title; 0 for one that is left out.
struct Widths {
    id: usize,
    said: usize,
    turns: usize,
    agent: usize,
    project: usize,
}

impl Widths {
    fn of(lines: &[Line]) -> Widths {
        let width =
            |column: fn(&Line) -> &str| lines.iter().map(|line| chars(column(line))).max().unwrap_or(0);
        let optional = |column: fn(&Line) -> &str| {
            let used = lines[1..].iter().any(|line| !column(line).is_empty());
            if used { width(column) } else { 0 }
        };
        Widths {
            id: width(|line| &line.id),
            said: width(|line| &line.said),
            turns: width(|line| &line.turns),
            agent: optional(|line| &line.agent),
            project: optional(|line| &line.project),
        }
    }

    /// Where the title begins.
    fn sum(&self) -> usize {
        let optional = |width: usize| if width > 0 { GAP + width } else { 0 };
        self.id + GAP + self.said + GAP + self.turns + optional(self.agent) + optional(self.project) + GAP
    }
}

/// Makes the lines fit a terminal: ids are cut to their beginnings, which are names as well, then other columns are left
/// out for the title, which is cut last.
fn fit(lines: &mut [Line], room: usize) {
    let title_room = |lines: &[Line]| room.saturating_sub(Widths::of(lines).sum());
    let titles = lines.iter().map(|line| chars(&line.title) + chars(&line.state)).max().unwrap_or(0);
    if titles <= title_room(lines) {
        return;
    }
    lines[0].said = "last turn".into();
    let ids: Vec<&str> = lines[1..].iter().map(|line| line.id.trim_start()).collect();
    let is_unique = |length: &usize| {
        let mut seen = std::collections::HashSet::new();
        ids.iter().all(|id| seen.insert(id.get(..*length).unwrap_or(id)))
    };
    let length = (ID_CHARS_MIN..).find(is_unique).unwrap_or(ID_CHARS_MIN);
    for line in &mut lines[1..] {
        let indent = line.id.len() - line.id.trim_start().len();
        line.id.truncate(indent + length);
    }
    let shorter: [fn(&mut Line); 3] = [
        |line| line.project = within(&line.project, PROJECT_CHARS / 2),
        |line| line.agent.clear(),
        |line| line.project.clear(),
    ];
    for shorten in shorter {
        if title_room(lines) < TITLE_CHARS_MIN {
            lines.iter_mut().for_each(shorten);
        }
    }
    let left = title_room(lines).max(1);
    for line in lines {
        line.title = within(&line.title, left.saturating_sub(chars(&line.state)));
    }
}

/// The text, cut to a number of characters.
fn within(text: &str, room: usize) -> String {
    if chars(text) > room { show::clipped(text, room.saturating_sub(1)) } else { text.to_string() }
}

/// Conversations with the subagents that worked for them below, each with its depth.
fn in_order(conversations: &[Conversation]) -> Vec<(&Conversation, usize)> {
    let listed = |id| conversations.iter().any(|other| other.id == id);
    let parent = |one: &Conversation| one.works_for().filter(|id| *id != one.id && listed(*id));
    let mut out: Vec<(&Conversation, usize)> = Vec::new();
    let mut left: Vec<(&Conversation, usize)> =
        conversations.iter().rev().filter(|one| parent(one).is_none()).map(|one| (one, 0)).collect();
    while let Some((one, depth)) = left.pop() {
        out.push((one, depth));
        // In the order in which they were started.
        let mut below: Vec<&Conversation> =
            conversations.iter().filter(|other| parent(other) == Some(one.id)).collect();
        below.sort_by_key(|other| std::cmp::Reverse((other.began.unwrap_or(other.created), other.id)));
        left.extend(below.into_iter().map(|other| (other, depth + 1)));
    }
    // A circle of parents has no beginning.
    let circular = conversations.iter().filter(|one| !out.iter().any(|(other, _)| other.id == one.id));
    let circular: Vec<_> = circular.map(|one| (one, 0)).collect();
    out.extend(circular);
    out
}

fn line(conversation: &Conversation, depth: usize) -> Line {
    let state = match conversation.state {
        Lifecycle::Active => String::new(),
        state => format!("  {state}"),
    };
    // The mark of a fork distinguishes it from its parent.
    let title = show::title(conversation);
    let own = without_fork_mark(title);
    let mark = &title[own.len()..];
    let project = conversation.project().unwrap_or_default();
    Line {
        id: format!("{:1$}{2}", "", depth * 2, conversation.id),
        said: dates::to_minute(conversation.said()),
        turns: conversation.turns.to_string(),
        agent: show::clipped(&conversation.agent().unwrap_or_default(), PROJECT_CHARS),
        project: show::clipped(project_name(&project), PROJECT_CHARS),
        title: format!("{}{mark}", show::clipped(own, TITLE_CHARS.saturating_sub(mark.len()))),
        state,
    }
}

fn chars(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use everturn_core::chain::Head;
    use everturn_core::id::{ConversationId, TenantName};
    use everturn_core::json::Raw;
    use everturn_core::time::Timestamp;

    fn conversation(n: u8, parent: Option<u8>) -> Conversation {
        let id = |n: u8| ConversationId::from_bytes([n; 16]);
        let tenant = TenantName::new("default".to_string()).unwrap();
        let mut one = Conversation::new(id(n), tenant, Timestamp(i64::from(n)), Head::genesis(id(n)));
        if let Some(parent) = parent {
            let origin = serde_json::json!({"format": "claude-code", "agent": "a", "parent": id(parent)});
            one.metadata.insert("import".into(), Raw::of(&origin).unwrap());
        }
        one
    }

    #[test]
    fn a_narrow_terminal_shows_a_line_for_each() {
        let mut all: Vec<Conversation> =
            (1..9).map(|n| conversation(n, (n % 3 == 0).then_some(n - 1))).collect();
        for one in &mut all {
            one.title = Some("a title with many more words than a narrow terminal has room for".into());
        }
        all[3].state = Lifecycle::Archived;
        for room in [60, 80, 100, 160] {
            let shown = table(&all, Some(room));
            let shown = anstream::adapter::strip_str(&shown).to_string();
            assert!(shown.lines().all(|line| chars(line.trim_end()) <= room), "{room}:\n{shown}");
            assert_eq!(shown.lines().count(), 9);
            assert!(shown.contains("a title with") && shown.contains("archived"), "{shown}");
        }
        let whole = table(&all, None);
        assert!(all.iter().all(|one| whole.contains(&one.id.to_string())));
    }

    #[test]
    fn subagents_are_below_the_conversation_they_worked_for() {
        let given = [
            (9, Some(1)),
            (8, None),
            (7, Some(9)),
            (5, Some(1)),
            (1, None),
            (4, Some(99)),
            (2, Some(3)),
            (3, Some(2)),
        ];
        let all: Vec<Conversation> = given.iter().map(|(n, parent)| conversation(*n, *parent)).collect();
        let order: Vec<(u64, usize)> =
            in_order(&all).iter().map(|(one, depth)| (one.created.0 as u64, *depth)).collect();
        assert_eq!(order, [(8, 0), (1, 0), (5, 1), (9, 1), (7, 2), (4, 0), (2, 0), (3, 0)]);
    }
}
