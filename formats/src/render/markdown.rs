//! Markdown that reads well as text, too.

use super::prose::{contained, escape, fenced, is_link, plain};
use super::shown::{Attachment, Content, Part, Shower};
use super::{Document, Out, Preamble, compaction, count, day_and_time, time, title};
use everturn_core::Error;
use everturn_core::event::{Event, kind};
use everturn_core::turn::Turn;
use everturn_views::compaction::CompactionBody;
use std::io::Write;

pub struct Markdown<'a, W> {
    out: Out<W>,
    shower: Shower<'a>,
}

impl<'a, W: Write> Markdown<'a, W> {
    pub fn begin(mut out: Out<W>, about: Preamble<'a>) -> Result<Markdown<'a, W>, Error> {
        let conversation = about.conversation;
        let (day, _) = day_and_time(conversation.began.unwrap_or(conversation.created));
        let mut facts = vec![format!("`{}`", conversation.id), day, count(conversation.turns, "turn")];
        if !conversation.participants.is_empty() {
            let names: Vec<String> = conversation.participants.iter().map(|name| plain(name)).collect();
            facts.push(names.join(", "));
        }
        out.write(&format!("# {}\n\n{}\n", plain(&title(conversation)), facts.join(" · ")))?;
        if let Some(prompt) = about.system_prompt {
            out.write(&folded("System prompt", &contained(&prompt.content)))?;
        }
        Ok(Markdown { out, shower: Shower::new(&about) })
    }
}

impl<W: Write> Document for Markdown<'_, W> {
    fn turn(&mut self, turn: &Turn) -> Result<(), Error> {
        let shown = self.shower.show(turn);
        let body: String = shown.parts.iter().map(part).collect();
        let (day, time) = day_and_time(time(turn));
        let mut facts: Vec<String> = shown.role.map(str::to_lowercase).into_iter().collect();
        facts.push(format!("{day} {time} UTC"));
        facts.extend(turn.model.as_deref().map(plain));
        facts.extend(shown.notes.iter().map(|note| format!("**{note}**")));
        if shown.superseded {
            let summary =
                format!("{} ({}, {day} {time} UTC)", escape(&line(&shown.who)), shown.notes.join(", "));
            return self.out.write(&folded(&summary, body.trim()));
        }
        // A tool result belongs to the call above it.
        match shown.is_answer() && shown.notes.is_empty() {
            true => self.out.write(&body),
            false => self.out.write(&format!("\n## {}\n\n{}\n{body}", plain(&shown.who), facts.join(" · "))),
        }
    }

    fn event(&mut self, event: &Event) -> Result<(), Error> {
        let is_compaction = event.kind == kind::COMPACTION;
        let Some(body) = event.read::<CompactionBody>().filter(|_| is_compaction) else { return Ok(()) };
        let (said, checkpoint) = compaction(&body);
        self.out.write(&format!("\n---\n\n*{}*\n", plain(&said)))?;
        if let Some(text) = checkpoint {
            self.out.write(&folded("Checkpoint", &contained(&text)))?;
        }
        self.out.write("\n---\n")
    }

    fn finish(mut self: Box<Self>) -> Result<(), Error> {
        self.out.flush()
    }
}

/// Text on one line.
fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `summary` is HTML, `text` Markdown.
fn folded(summary: &str, text: &str) -> String {
    format!("\n<details>\n<summary>{summary}</summary>\n\n{text}\n\n</details>\n")
}

fn part(part: &Part) -> String {
    match part {
        Part::Words(text) => format!("\n{}\n", contained(text)),
        Part::Thinking(Some(text)) => folded("Thinking", &contained(text)),
        Part::Thinking(None) => "\n*Thinking that its provider does not show*\n".to_string(),
        Part::Call { name, arguments, given_up } => {
            let language = if arguments.starts_with(['{', '[']) { "json" } else { "" };
            let mark = match given_up {
                Some(Some(why)) => format!(", given up: {}", escape(&line(why))),
                Some(None) => ", given up".to_string(),
                None => String::new(),
            };
            folded(
                &format!("Call of <code>{}</code>{mark}", escape(&line(name))),
                &fenced(language, arguments),
            )
        }
        Part::ToolResult { name, failed, content } => {
            let what = if *failed { "Failure" } else { "Result" };
            let of = name.as_ref().map(|name| format!(" of <code>{}</code>", escape(&line(name))));
            let content: Vec<String> = content.iter().map(answered).collect();
            let content = if content.is_empty() { "*nothing*".to_string() } else { content.join("\n\n") };
            folded(&format!("{what}{}", of.unwrap_or_default()), &content)
        }
        Part::Notice { kind, text } => folded(&format!("Notice: {kind}"), &fenced("", text)),
        Part::Media(attachment) => format!("\n{}\n", attached(attachment)),
        Part::Other { kind, json } => folded(&escape(&line(kind)), &fenced("json", json)),
    }
}

fn answered(part: &Part) -> String {
    match part {
        Part::Words(text) => fenced("", text),
        Part::Media(attachment) => attached(attachment),
        other => self::part(other).trim().to_string(),
    }
}

fn attached(attachment: &Attachment) -> String {
    let label = if attachment.label.is_empty() { &attachment.kind } else { &attachment.label };
    let named = format!("{}: {}", plain(&attachment.kind), plain(label));
    match &attachment.content {
        Content::Base64(data) if attachment.is_picture() => {
            format!("![{}](data:{};base64,{data})", plain(label), attachment.mime)
        }
        Content::Url(url) if is_link(url) => format!("[{named}](<{}>)", url.replace(['<', '>'], "")),
        Content::Text(text) => folded(&escape(&line(label)), &fenced("", text)).trim().to_string(),
        Content::Base64(data) => {
            let bytes = count((data.len() / 4 * 3) as u64, "byte");
            format!("*[{named}, {}, about {bytes}]*", plain(&attachment.mime))
        }
        Content::Url(_) | Content::Gone => format!("*[{named}]*"),
    }
}
