//! Untrusted text that may be Markdown, shown without active content.

use everturn_core::misleading::visible;
use pulldown_cmark::{Alignment, CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

/// Levels added to a heading inside a turn: the page has the first level, turns the second.
const DEEPER: usize = 2;
/// Most passes that escape a text: changing one part of it may uncover more.
const LOOKS: usize = 8;

fn parser(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS)
}

/// Text for HTML, inside elements and inside quoted attributes.
pub fn escape(text: &str) -> String {
    let text = visible(text);
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            // Not allowed in HTML; a reader should see that something is there.
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Whether a link may lead there.
pub fn is_link(url: &str) -> bool {
    let starts = |scheme: &str| url.get(..scheme.len()).is_some_and(|s| s.eq_ignore_ascii_case(scheme));
    ["http://", "https://", "mailto:"].iter().any(|scheme| starts(scheme))
        && !url.chars().any(|c| c.is_control() || c.is_whitespace())
        && visible(url) == url
}

/// Opening tag of a link.
pub fn link(url: &str) -> String {
    format!("<a href=\"{}\" rel=\"noopener noreferrer nofollow\">", escape(url))
}

/// Markdown as HTML. Raw HTML in it is shown as text, pictures are linked and never loaded, and links lead to the web or
/// a mail address, or are removed.
pub fn to_html(text: &str) -> String {
    let text: String = visible(text)
        .chars()
        .map(|c| if c.is_control() && !"\n\r\t".contains(c) { '\u{fffd}' } else { c })
        .collect();
    let mut out = String::with_capacity(text.len() * 2);
    let mut page = Page::default();
    html::push_html(&mut out, parser(&text).filter_map(|event| page.event(event)));
    out
}

/// State of the conversion to HTML.
#[derive(Default)]
struct Page {
    /// For each open link, its target if its tag was written.
    links: Vec<Option<String>>,
    /// The words of the link so far.
    words: String,
    /// Alignment of the table's columns, the number of the next column, and whether the row is the head.
    columns: Vec<Alignment>,
    column: usize,
    head: bool,
}

impl Page {
    fn event<'a>(&mut self, event: Event<'a>) -> Option<Event<'a>> {
        // An entity is a character only now.
        let event = match event {
            Event::Text(text) => Event::Text(visible(&text).into_owned().into()),
            Event::Code(text) => Event::Code(visible(&text).into_owned().into()),
            event => event,
        };
        if let Event::Text(text) | Event::Code(text) = &event {
            self.words.push_str(text);
        }
        Some(match event {
            Event::Start(Tag::Link { dest_url, .. }) => return self.open(&dest_url),
            Event::Start(Tag::Image { dest_url, .. }) => return self.open(&dest_url),
            Event::End(TagEnd::Link | TagEnd::Image) => match self.links.pop() {
                Some(Some(target)) if target.trim_start_matches("mailto:") == self.words => {
                    Event::InlineHtml("</a>".into())
                }
                // The words may claim that it leads elsewhere.
                Some(Some(target)) => Event::InlineHtml(
                    format!("</a> <span class=\"hint\">({})</span>", escape(&target)).into(),
                ),
                _ => return None,
            },
            // A block of HTML in a chat is most often meant as code.
            Event::Start(Tag::HtmlBlock) => {
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced("html".into())))
            }
            Event::End(TagEnd::HtmlBlock) => Event::End(TagEnd::CodeBlock),
            Event::InlineHtml(tag) if is_break(&tag) => Event::HardBreak,
            Event::Html(text) | Event::InlineHtml(text) => Event::Text(text),
            Event::SoftBreak => Event::HardBreak,
            Event::TaskListMarker(done) => Event::Text(if done { "☑ " } else { "☐ " }.into()),
            Event::Start(Tag::Heading { level, .. }) => Event::Start(Tag::Heading {
                level: deeper(level),
                id: None,
                classes: Vec::new(),
                attrs: Vec::new(),
            }),
            Event::End(TagEnd::Heading(level)) => Event::End(TagEnd::Heading(deeper(level))),
            Event::Start(Tag::Table(columns)) => {
                self.columns = columns;
                Event::Start(Tag::Table(vec![Alignment::None; self.columns.len()]))
            }
            Event::Start(row @ (Tag::TableHead | Tag::TableRow)) => {
                (self.column, self.head) = (0, row == Tag::TableHead);
                Event::Start(row)
            }
            Event::Start(Tag::TableCell) => {
                self.column += 1;
                // The policy of the page allows no styles but its own.
                let class = match self.columns.get(self.column - 1) {
                    Some(Alignment::Right) => "right",
                    Some(Alignment::Center) => "center",
                    _ => return Some(Event::Start(Tag::TableCell)),
                };
                let cell = if self.head { "th" } else { "td" };
                Event::InlineHtml(format!("<{cell} class=\"{class}\">").into())
            }
            other => other,
        })
    }

    fn open<'a>(&mut self, url: &str) -> Option<Event<'a>> {
        let target =
            Some(url.to_string()).filter(|url| is_link(url) && self.links.iter().all(Option::is_none));
        self.links.push(target.clone());
        self.words.clear();
        target.map(|target| Event::InlineHtml(link(&target).into()))
    }
}

fn is_break(tag: &str) -> bool {
    matches!(tag.to_ascii_lowercase().as_str(), "<br>" | "<br/>" | "<br />")
}

fn deeper(level: HeadingLevel) -> HeadingLevel {
    HeadingLevel::try_from((level as usize + DEEPER).min(6)).unwrap_or(HeadingLevel::H6)
}

/// Markdown to embed in other Markdown: unchanged, except that raw HTML is text, headings are below those around it,
/// and a code block that was left open is closed, so that the text after it is read correctly. If that fails, it is
/// shown as a code block.
pub fn contained(text: &str) -> String {
    let given = text.replace("\r\n", "\n").replace(['\r', '\0'], "\n");
    let mut text = without_links(&without_html(given.trim_matches('\n')));
    // A change may alter the meaning of the text after it.
    for _ in 0..LOOKS {
        if !reaches_out(&text) {
            let fence = open_fence(&text).map(|fence| format!("\n{fence}")).unwrap_or_default();
            return format!("{}{fence}", text.trim_end());
        }
        text = without_links(&without_html(&with_deeper_headings(&text)));
    }
    fenced("", &given)
}

/// Whether it has raw HTML, an active link, or a heading of the page's or a turn's level.
fn reaches_out(text: &str) -> bool {
    parser(text).any(|event| match event {
        Event::Html(_) | Event::InlineHtml(_) => true,
        Event::Start(Tag::Heading { level, .. }) => level as usize <= DEEPER,
        _ => false,
    }) || !active_links(text).is_empty()
}

fn without_html(text: &str) -> String {
    let mut text = Cow::Borrowed(text);
    for _ in 0..LOOKS {
        let places: Vec<usize> = parser(&text)
            .into_offset_iter()
            .filter(|(event, _)| matches!(event, Event::Html(_) | Event::InlineHtml(_)))
            .flat_map(|(_, range)| {
                let start = range.start;
                text[range].match_indices('<').map(move |(n, _)| start + n).collect::<Vec<_>>()
            })
            .collect();
        if places.is_empty() {
            return text.into_owned();
        }
        let mut out = String::with_capacity(text.len() + places.len() * 3);
        let mut done = 0;
        for place in places {
            out.push_str(&text[done..place]);
            out.push_str("&lt;");
            done = place + 1;
        }
        out.push_str(&text[done..]);
        text = Cow::Owned(out);
    }
    text.replace('<', "&lt;")
}

/// Whether a link has a scheme other than those of the web and of mail: `javascript:`, `data:`, `vbscript:`, `file:` and
/// whatever a reader's system opens. Browsers skip control characters and whitespace in a scheme.
fn is_active(url: &str) -> bool {
    let url: String = url.chars().filter(|c| !c.is_control() && !c.is_whitespace()).collect();
    let Some((scheme, _)) = url.split_once(':') else { return false };
    let is_scheme = scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    is_scheme && !["http", "https", "mailto"].iter().any(|known| scheme.eq_ignore_ascii_case(known))
}

/// Offsets of links, pictures and definitions that would run something. A definition counts also if nothing refers to
/// it: another turn may.
fn active_links(text: &str) -> BTreeSet<usize> {
    let parser = parser(text);
    let definitions = parser.reference_definitions().iter();
    let defined: Vec<_> =
        definitions.filter(|(_, link)| is_active(&link.dest)).map(|(_, link)| link.span.clone()).collect();
    let linked = parser.into_offset_iter().filter_map(|(event, range)| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            is_active(&dest_url).then_some(range)
        }
        _ => None,
    });
    let mark = |range: Range<usize>| Some(range.start + text[range].find(['[', '<'])?);
    linked.chain(defined).filter_map(mark).collect()
}

/// Escapes links and pictures that would run something, so that they are shown as text.
fn without_links(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    for mark in active_links(text) {
        out.push_str(&text[done..mark]);
        out.push_str(if text[mark..].starts_with('[') { "\\[" } else { "&lt;" });
        done = mark + 1;
    }
    out.push_str(&text[done..]);
    out
}

fn with_deeper_headings(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    for (event, range) in parser(text).into_offset_iter() {
        let Event::Start(Tag::Heading { level, .. }) = event else { continue };
        let heading = &text[range.clone()];
        let level = (level as usize + DEEPER).min(6);
        out.push_str(&text[done..range.start]);
        done = range.start;
        let marks = heading.bytes().take_while(|b| *b == b'#').count();
        if marks > 0 {
            out.push_str(&"#".repeat(level));
            done += marks;
        } else if let [words, _] = heading.lines().collect::<Vec<_>>()[..] {
            // A heading that is marked by the line below it.
            out.push_str(&format!("{} {}", "#".repeat(level), words.trim()));
            done = range.start + heading.trim_end_matches('\n').len();
        } else if let Some(line) = heading.trim_end().rfind('\n') {
            // A heading of several lines cannot be marked in front; without its mark it is a paragraph.
            let mark = heading[line..].find(['=', '-']).map_or(line, |mark| line + mark);
            out.push_str(&heading[..mark]);
            out.push('\\');
            done += mark;
        }
    }
    out.push_str(&text[done..]);
    out
}

/// Fence that closes the code block that the text ends in, if it is open.
fn open_fence(text: &str) -> Option<String> {
    let mut depth = 0usize;
    let mut last = None;
    for (event, range) in parser(text).into_offset_iter() {
        match event {
            Event::Start(tag) => {
                let fenced = matches!(tag, Tag::CodeBlock(CodeBlockKind::Fenced(_)));
                if depth == 0 {
                    last = fenced.then_some(range);
                }
                depth += 1;
            }
            Event::End(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    let block = &text[last?];
    let mark = block.chars().next().filter(|mark| "`~".contains(*mark))?;
    let length = block.chars().take_while(|c| *c == mark).count();
    let end = block.lines().skip(1).last().unwrap_or_default().trim();
    let closed = end.chars().count() >= length && end.chars().all(|c| c == mark);
    (!closed).then(|| mark.to_string().repeat(length))
}

/// A line of plain text inside Markdown.
pub fn plain(text: &str) -> String {
    let mut out = String::new();
    for (n, word) in
        text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|w| !w.is_empty()).enumerate()
    {
        if n > 0 {
            out.push(' ');
        }
        for c in word.chars() {
            if "\\`*_{}[]<>#|~&!".contains(c) || n == 0 && out.is_empty() && "+-=".contains(c) {
                out.push('\\');
            }
            out.push(c);
        }
    }
    out
}

/// A code block that nothing in the text can end.
pub fn fenced(language: &str, text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat((longest + 1).max(3));
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{fence}{language}\n{text}{end}{fence}")
}

/// JSON over several lines, its numbers and words as they were written.
pub fn pretty(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let mut depth = 0usize;
    let (mut quoted, mut escaped) = (false, false);
    let mut chars = json.trim().chars().filter(|c| !c.is_control()).peekable();
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        // Deeper than this nobody reads by the indentation, and it would be most of the text.
        out.extend(std::iter::repeat_n("  ", depth.min(32)));
    };
    while let Some(c) = chars.next() {
        if quoted {
            out.push(c);
            (quoted, escaped) = (escaped || c != '"', !escaped && c == '\\');
            continue;
        }
        match c {
            '{' | '[' => {
                while chars.next_if(|c| c.is_whitespace()).is_some() {}
                out.push(c);
                if let Some(end) = chars.next_if(|c| matches!(c, '}' | ']')) {
                    out.push(end);
                    continue;
                }
                depth += 1;
                line(&mut out, depth);
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_whitespace() => {}
            c => {
                quoted = c == '"';
                out.push(c);
            }
        }
    }
    out
}
