//! What a reader's program makes of a document: only our tags, links that lead to the web, and turns that can be told apart.
//!
//! It needs nothing but `pulldown-cmark`, so that the fuzz targets can include this file by its path.

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag};

/// The tags of a page with their attributes, by the rules of HTML as far as our own pages use them.
fn tags(page: &str) -> Vec<(String, Vec<(String, String)>)> {
    let mut tags = Vec::new();
    let mut rest = page;
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        let mut end = rest.find(|c: char| c.is_whitespace() || c == '>').unwrap();
        let name = rest[..end].to_ascii_lowercase();
        let mut attributes = Vec::new();
        loop {
            rest = rest[end..].trim_start();
            if let Some(after) = rest.strip_prefix('>') {
                rest = after;
                break;
            }
            let stop = rest.find(['=', '>', ' ']).unwrap();
            let attribute = rest[..stop].to_string();
            if rest[stop..].starts_with("=\"") {
                let value = &rest[stop + 2..];
                let close = value.find('"').unwrap();
                attributes.push((attribute, value[..close].to_string()));
                rest = &value[close + 1..];
            } else {
                attributes.push((attribute, String::new()));
                rest = &rest[stop..];
            }
            end = 0;
        }
        tags.push((name, attributes));
    }
    tags
}

/// The page has our tags and attributes only, all are closed, and nothing is loaded or run from anywhere.
pub fn check_page(page: &str) -> Result<(), String> {
    const TAGS: [&str; 59] = [
        "!doctype",
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "header",
        "nav",
        "main",
        "article",
        "section",
        "aside",
        "details",
        "summary",
        "dl",
        "div",
        "dt",
        "dd",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "p",
        "a",
        "span",
        "time",
        "code",
        "pre",
        "ul",
        "ol",
        "li",
        "blockquote",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "em",
        "strong",
        "del",
        "br",
        "hr",
        "figure",
        "img",
        "audio",
        "figcaption",
        "br/",
        "hr/",
        "sup",
        "sub",
        "b",
        "i",
        "u",
        "s",
        "input",
    ];
    const ATTRIBUTES: [&str; 19] = [
        "html",
        "lang",
        "charset",
        "http-equiv",
        "content",
        "name",
        "class",
        "id",
        "href",
        "rel",
        "datetime",
        "aria-label",
        "aria-labelledby",
        "src",
        "alt",
        "controls",
        "download",
        "start",
        "/",
    ];
    let style = page.find("<style>").unwrap()..page.find("</style>").unwrap();
    let page = format!("{}{}", &page[..style.start], &page[style.end..]);
    let mut open: Vec<String> = Vec::new();
    for (name, attributes) in tags(&page) {
        if let Some(name) = name.strip_prefix('/') {
            let top = open.pop();
            if name != "style" && top.as_deref() != Some(name) {
                return Err(format!("</{name}> closes {top:?}"));
            }
            if name == "style" {
                open.extend(top);
            }
            continue;
        }
        if !TAGS.contains(&name.as_str()) {
            return Err(format!("a tag <{name}>"));
        }
        if !["!doctype", "meta", "img", "br", "hr", "br/", "hr/"].contains(&name.as_str()) {
            open.push(name.clone());
        }
        for (attribute, value) in attributes {
            let fine = match attribute.as_str() {
                "href" => {
                    let link = ["https://", "http://", "mailto:", "#"]
                        .iter()
                        .any(|begin| value.to_ascii_lowercase().starts_with(begin));
                    link || value.starts_with("data:application/octet-stream;base64,")
                }
                "src" => ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "audio/"]
                    .iter()
                    .any(|mime| value.starts_with(&format!("data:{mime}"))),
                attribute => ATTRIBUTES.contains(&attribute),
            };
            if !fine {
                return Err(format!("<{name} {attribute}={value:?}>"));
            }
        }
    }
    match open.is_empty() {
        true => Ok(()),
        false => Err(format!("{open:?} are left open")),
    }
}

/// The only raw HTML is ours, links lead to the web or to a mailbox, and there is one title; gives the number of turns that can be told apart.
pub fn check_markdown(text: &str) -> Result<usize, String> {
    let (mut folds, mut turns, mut titles) = (0i64, 0, 0);
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Html(html) | Event::InlineHtml(html) => {
                let line = html.trim();
                let summary = line.strip_prefix("<summary>").and_then(|line| line.strip_suffix("</summary>"));
                match (line, summary) {
                    ("<details>", _) => folds += 1,
                    ("</details>", _) => folds -= 1,
                    ("", _) => {}
                    (_, Some(summary))
                        if !summary.replace("<code>", "").replace("</code>", "").contains('<') => {}
                    _ => return Err(format!("raw HTML {html:?}")),
                }
            }
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                let url: String = dest_url.chars().filter(|c| !c.is_control() && *c != ' ').collect();
                let is_picture = url.starts_with("data:image/") && !url.contains("svg");
                let scheme = url.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
                let leads_nowhere = scheme.is_none_or(|scheme| {
                    matches!(&*scheme, "http" | "https" | "mailto")
                        || scheme.contains(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c))
                });
                if !is_picture && !leads_nowhere {
                    return Err(format!("a link to {url:?}"));
                }
            }
            Event::Start(Tag::Heading { level: HeadingLevel::H1, .. }) => titles += 1,
            Event::Start(Tag::Heading { level: HeadingLevel::H2, .. }) => turns += 1,
            _ => {}
        }
    }
    match (folds, titles) {
        (0, 1) => Ok(turns),
        _ => Err(format!("{folds} folds open, {titles} titles")),
    }
}
