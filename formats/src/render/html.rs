//! One page without scripts that loads nothing: it can be kept, mailed and printed, and is readable in light and dark
//! mode. Everything from the conversation is escaped, and a policy in the page itself forbids everything that is not
//! needed.

use super::prose::{escape, is_link, link, to_html};
use super::shown::{Attachment, Content, Part, Shower, Shown};
use super::{Document, Out, Preamble, Prompt, compaction, day_and_time, thousands, time, title};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use everturn_core::Error;
use everturn_core::chain::Hash;
use everturn_core::conversation::Conversation;
use everturn_core::event::{Event, kind};
use everturn_core::turn::{Role, Tokens, Turn};
use everturn_views::compaction::CompactionBody;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::Write;

const CSS: &str = include_str!("page.css");
/// Most characters of a call's arguments shown beside its name.
const HINT_CHARS: usize = 120;

pub struct Html<'a, W> {
    out: Out<W>,
    shower: Shower<'a>,
    day: String,
}

impl<'a, W: Write> Html<'a, W> {
    pub fn begin(mut out: Out<W>, about: Preamble<'a>) -> Result<Html<'a, W>, Error> {
        out.write(&head(&title(about.conversation)))?;
        let prompt = about.system_prompt.map(|prompt| {
            folded(
                "prompt",
                "System prompt",
                &format!("<div class=\"prose\">\n{}</div>\n", to_html(&prompt.content)),
            )
        });
        let outline = prompts(&about.outline.prompts);
        let below = format!("{}{outline}", prompt.unwrap_or_default());
        out.write(&masthead(about.conversation, about.outline.tokens, &below))?;
        Ok(Html { out, shower: Shower::new(&about), day: String::new() })
    }

    fn day(&mut self, day: String) -> Result<(), Error> {
        if self.day == day {
            return Ok(());
        }
        self.out.write(&format!("<p class=\"day\"><time datetime=\"{day}\">{day}</time></p>\n"))?;
        self.day = day;
        Ok(())
    }
}

impl<W: Write> Document for Html<'_, W> {
    fn turn(&mut self, turn: &Turn) -> Result<(), Error> {
        let shown = self.shower.show(turn);
        let (day, time) = day_and_time(time(turn));
        let when = format!("<time datetime=\"{day}T{time}Z\">{time}</time>");
        self.day(day)?;
        let body: String = shown.parts.iter().map(part).collect();
        let text = if shown.superseded {
            let notes = shown.notes.join(", ");
            let summary = format!("{} <span class=\"hint\">{notes}, {when}</span>", escape(&shown.who));
            folded("gone", &summary, &format!("<div class=\"body\">\n{body}</div>\n"))
        } else if shown.is_answer() && shown.notes.is_empty() {
            format!(
                "<section class=\"turn tool\" id=\"t{}\" aria-label=\"Tool\">\n{body}</section>\n",
                turn.seq
            )
        } else {
            article(turn, &shown, &when, &body)
        };
        self.out.write(&text)
    }

    fn event(&mut self, event: &Event) -> Result<(), Error> {
        let is_compaction = event.kind == kind::COMPACTION;
        let Some(body) = event.read::<CompactionBody>().filter(|_| is_compaction) else { return Ok(()) };
        self.day(day_and_time(event.at).0)?;
        let (said, checkpoint) = compaction(&body);
        let checkpoint = checkpoint.map(|text| {
            folded("checkpoint", "Checkpoint", &format!("<div class=\"prose\">\n{}</div>\n", to_html(&text)))
        });
        let checkpoint = checkpoint.unwrap_or_default();
        let said = escape(&said);
        self.out.write(&format!(
            "<aside class=\"compaction\" aria-label=\"Compaction\">\n<p>{said}</p>\n{checkpoint}</aside>\n"
        ))
    }

    fn finish(mut self: Box<Self>) -> Result<(), Error> {
        self.out.write("</main>\n</body>\n</html>\n")?;
        self.out.flush()
    }
}

fn head(title: &str) -> String {
    let style = format!("\n{CSS}");
    let hash = BASE64.encode(Hash::of(style.as_bytes()).0);
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{hash}'; img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
    );
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{}</title>\n<style>{style}</style>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#conversation\">Skip to the conversation</a>\n",
        escape(title)
    )
}

fn masthead(conversation: &Conversation, tokens: Tokens, below: &str) -> String {
    let (from, from_time) = day_and_time(conversation.began.unwrap_or(conversation.created));
    let (to, to_time) = day_and_time(conversation.said());
    let began = format!("<time datetime=\"{from}T{from_time}Z\">{from} {from_time}</time>");
    let ended = format!("<time datetime=\"{to}T{to_time}Z\">{to} {to_time}</time>");
    let mut facts = Vec::new();
    let origin = [
        ("Agent", conversation.agent()),
        ("Project", conversation.project()),
        ("Branch", conversation.git_branch()),
    ];
    facts.extend(origin.into_iter().filter_map(|(name, value)| Some((name, escape(&value?)))));
    facts.push(("Turns", thousands(conversation.turns)));
    let counted = [(tokens.prompt, "in"), (tokens.completion, "out")];
    let counted: Vec<String> =
        counted.iter().filter_map(|(number, way)| Some(format!("{} {way}", thousands((*number)?)))).collect();
    if !counted.is_empty() {
        facts.push(("Tokens", counted.join(", ")));
    }
    if !conversation.participants.is_empty() {
        facts.push(("Participants", escape(&conversation.participants.join(", "))));
    }
    facts.push(("Began", format!("{began} UTC")));
    facts.push(("Last turn", format!("{ended} UTC")));
    facts.push(("Conversation", format!("<code>{}</code>", conversation.id)));
    let (seq, hash) = (conversation.head.seq, conversation.head.hash);
    facts.push(("Log head", format!("#{seq} <code>{hash}</code>")));
    let mut list = String::new();
    for (name, value) in facts {
        let _ = writeln!(list, "<div><dt>{name}</dt><dd>{value}</dd></div>");
    }
    format!(
        "<header class=\"masthead\">\n<h1>{}</h1>\n<dl>\n{list}</dl>\n{below}</header>\n<main id=\"conversation\">\n",
        escape(&title(conversation))
    )
}

/// Links to the turns of people.
fn prompts(prompts: &[Prompt]) -> String {
    if prompts.len() < 2 {
        return String::new();
    }
    let links: String = prompts
        .iter()
        .map(|Prompt { seq, text, .. }| format!("<li><a href=\"#t{seq}\">{}</a></li>\n", escape(text)))
        .collect();
    let list = folded("prompts", &format!("{} prompts", prompts.len()), &format!("<ol>\n{links}</ol>\n"));
    format!("<nav aria-label=\"Prompts\">\n{list}</nav>\n")
}

fn article(turn: &Turn, shown: &Shown, when: &str, body: &str) -> String {
    let seq = turn.seq;
    let kind = match turn.role {
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::System => "system",
        Role::Tool => "tool",
    };
    let mut facts = String::new();
    for fact in shown.role.into_iter().chain(turn.model.as_deref()) {
        let _ = write!(facts, " <span class=\"fact\">{}</span>", escape(fact));
    }
    for note in &shown.notes {
        let _ = write!(facts, " <span class=\"note\">{note}</span>");
    }
    format!(
        "<article class=\"turn {kind}\" id=\"t{seq}\" aria-labelledby=\"h{seq}\">\n\
         <header><h2 id=\"h{seq}\">{}</h2>{facts} <a class=\"when\" href=\"#t{seq}\">{when}</a></header>\n\
         {body}</article>\n",
        escape(&shown.who)
    )
}

/// `summary` and `body` are HTML.
fn folded(class: &str, summary: &str, body: &str) -> String {
    format!("<details class=\"{class}\">\n<summary>{summary}</summary>\n{body}</details>\n")
}

fn part(part: &Part) -> String {
    match part {
        Part::Words(text) => format!("<div class=\"prose\">\n{}</div>\n", to_html(text)),
        Part::Thinking(Some(text)) => {
            folded("thinking", "Thinking", &format!("<div class=\"prose\">\n{}</div>\n", to_html(text)))
        }
        Part::Thinking(None) => {
            "<p class=\"quiet\">Thinking that its provider does not show</p>\n".to_string()
        }
        Part::Call { name, arguments, given_up } => {
            let mark = given_up.as_ref().map(|_| " <span class=\"note\">given up</span>");
            let summary = format!(
                "Call of <code>{}</code>{} <span class=\"hint\">{}</span>",
                escape(name),
                mark.unwrap_or_default(),
                escape(&hint(&described(arguments)))
            );
            let edits: String = edits(arguments).iter().map(difference).collect();
            let arguments = if edits.is_empty() { preformatted(arguments) } else { edits };
            let why = given_up
                .iter()
                .flatten()
                .map(|why| format!("<p class=\"quiet\">Given up: {}</p>\n", escape(why)));
            folded("call", &summary, &format!("{arguments}{}", why.collect::<String>()))
        }
        Part::ToolResult { name, failed, content } => {
            let what = if *failed { "<span class=\"failed\">Failure</span>" } else { "Result" };
            let of = name.as_ref().map(|name| format!(" of <code>{}</code>", escape(name)));
            let content: String = match content.is_empty() {
                true => "<p class=\"quiet\">nothing</p>\n".to_string(),
                false => content.iter().map(answered).collect(),
            };
            folded("answer", &format!("{what}{}", of.unwrap_or_default()), &content)
        }
        Part::Notice { kind, text } => {
            let summary =
                format!("Notice: {} <span class=\"hint\">{}</span>", escape(kind), escape(&hint(text)));
            folded("answer", &summary, &preformatted(text))
        }
        Part::Media(attachment) => attached(attachment),
        Part::Other { kind, json } => {
            folded("other", &format!("<code>{}</code>", escape(kind)), &preformatted(json))
        }
    }
}

/// The beginning of a text on one line.
fn hint(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(HINT_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Arguments of a call in words: those of an edit are its file, others are named one by one.
fn described(arguments: &str) -> String {
    if let Some(edit) = edits(arguments).into_iter().find(|edit| !edit.path.is_empty()) {
        return edit.path;
    }
    match serde_json::from_str(arguments) {
        Ok(Value::Object(fields)) => {
            let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
            let named = fields.iter().map(|(name, value)| format!("{name}: {}", plain(value)));
            named.collect::<Vec<_>>().join(", ")
        }
        _ => arguments.to_string(),
    }
}

/// A replacement in a file.
struct Edit {
    path: String,
    before: String,
    after: String,
}

/// The replacements of a call that edits a file, in the words of the tools of several agents.
fn edits(arguments: &str) -> Vec<Edit> {
    const PATHS: [&str; 3] = ["file_path", "path", "filename"];
    const BEFORE: [&str; 3] = ["old_string", "old_str", "old_text"];
    const AFTER: [&str; 3] = ["new_string", "new_str", "new_text"];
    let Ok(call) = serde_json::from_str::<Value>(arguments) else { return Vec::new() };
    let text = |value: &Value, names: [&str; 3]| {
        names.iter().find_map(|name| Some(value.get(name)?.as_str()?.to_string()))
    };
    let several = call["edits"].as_array().into_iter().flatten();
    let edit = |value: &Value| {
        let path = text(value, PATHS).or_else(|| text(&call, PATHS)).unwrap_or_default();
        Some(Edit { path, before: text(value, BEFORE)?, after: text(value, AFTER)? })
    };
    std::iter::once(&call).chain(several).filter_map(edit).collect()
}

/// A replacement, line by line; equal lines around it are shown once.
fn difference(edit: &Edit) -> String {
    let (before, after): (Vec<&str>, Vec<&str>) =
        (edit.before.lines().collect(), edit.after.lines().collect());
    let same = |pairs: &mut dyn Iterator<Item = (&&str, &&str)>| pairs.take_while(|(a, b)| a == b).count();
    let start = same(&mut before.iter().zip(&after));
    let end = same(&mut before[start..].iter().rev().zip(after[start..].iter().rev()));
    let line = |sign: &str, text: &str| match sign {
        "-" => format!("<span class=\"removed\">- {}</span>\n", escape(text)),
        "+" => format!("<span class=\"added\">+ {}</span>\n", escape(text)),
        _ => format!("  {}\n", escape(text)),
    };
    let lines = |sign: &str, lines: &[&str]| lines.iter().map(|text| line(sign, text)).collect::<String>();
    format!(
        "<pre>\n{}{}{}{}</pre>\n",
        lines(" ", &before[..start]),
        lines("-", &before[start..before.len() - end]),
        lines("+", &after[start..after.len() - end]),
        lines(" ", &before[before.len() - end..])
    )
}

fn answered(part: &Part) -> String {
    match part {
        Part::Words(text) => preformatted(text),
        other => self::part(other),
    }
}

fn preformatted(text: &str) -> String {
    // The first line break after the tag is not part of the text.
    format!("<pre>\n{}</pre>\n", escape(text))
}

fn attached(attachment: &Attachment) -> String {
    let Attachment { kind, label, mime, content } = attachment;
    let named = if label.is_empty() { escape(kind) } else { escape(label) };
    match content {
        Content::Base64(data) if attachment.is_picture() => format!(
            "<figure><img src=\"data:{};base64,{}\" alt=\"{named}\"><figcaption>{named}</figcaption></figure>\n",
            escape(mime),
            escape(data)
        ),
        Content::Base64(data)
            if matches!(mime.as_str(), "audio/wav" | "audio/mpeg" | "audio/ogg" | "audio/mp4") =>
        {
            format!(
                "<figure><audio controls src=\"data:{};base64,{}\"></audio><figcaption>{named}</figcaption></figure>\n",
                escape(mime),
                escape(data)
            )
        }
        // For download only: the browser must never open it, whatever its declared type.
        Content::Base64(data) => format!(
            "<p class=\"attachment\"><a download=\"{named}\" href=\"data:application/octet-stream;base64,{}\">{named}</a> \
             <span class=\"hint\">{}</span></p>\n",
            escape(data),
            escape(if mime.is_empty() { kind } else { mime })
        ),
        Content::Text(text) => folded("document", &named, &preformatted(text)),
        Content::Url(url) if is_link(url) => {
            format!(
                "<p class=\"attachment\">{}{}: {}</a></p>\n",
                link(url),
                escape(kind),
                escape(if label.is_empty() { url } else { label })
            )
        }
        Content::Url(_) | Content::Gone => {
            format!("<p class=\"attachment quiet\">{}: {named}</p>\n", escape(kind))
        }
    }
}
