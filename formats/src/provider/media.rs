//! Images, audio and files: read from any shape, and selected by provider.

use super::Media;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use everturn_core::asset;
use serde_json::Value;
use std::borrow::Cow;

/// A picture, sound or file.
#[derive(Clone, Debug)]
pub struct Blob<'a> {
    /// `image`, `audio`, `video`, `file`, …
    pub kind: &'a str,
    /// Media type, if known.
    pub mime: Option<Cow<'a, str>>,
    pub data: Data<'a>,
    /// Display name.
    pub label: Option<Cow<'a, str>>,
}

/// Content of a [`Blob`].
#[derive(Clone, Debug)]
pub enum Data<'a> {
    /// The bytes, in proper Base64.
    Base64(Cow<'a, str>),
    /// Text of a plain text document.
    Text(Cow<'a, str>),
    Url(&'a str),
    /// File id at OpenAI.
    OpenaiFile(&'a str),
    /// Not available.
    Gone,
}

impl<'a> Blob<'a> {
    /// Reads a media block.
    pub fn read(kind: &'a str, block: &'a Value, media: &dyn Media) -> Blob<'a> {
        let inner: Vec<&Value> = ["source", "image_url", "file", "input_audio", "inlineData", "fileData"]
            .iter()
            .filter_map(|key| block.get(key).filter(|inner| inner.is_object()))
            .chain([block])
            .collect();
        let text = |keys: &[&str]| {
            let found = inner.iter().flat_map(|inner| keys.iter().filter_map(|key| inner.get(key)?.as_str()));
            found.into_iter().find(|text| !text.is_empty())
        };
        let name = text(&["name", "title", "filename", "file_name", "path", "label", "displayName"]);
        let url = text(&["url", "image_url", "file_url", "fileUri", "uri", "image"]);
        let payload = text(&["data", "file_data", "b64_json", "base64"]);
        let file = text(&["file_id"]);
        let said = text(&["media_type", "mime_type", "mimeType"]).map(Cow::Borrowed);
        let said = said.or_else(|| Some(Cow::Owned(format!("audio/{}", text(&["format"])?))));
        let mut blob = Blob { kind, mime: said, data: Data::Gone, label: name.map(Cow::Borrowed) };
        let mut asset_id = block.get("asset_id").and_then(Value::as_str);
        match payload.or(url.filter(|url| url.starts_with("data:"))) {
            Some(data) if asset::reference(data).is_some() => {
                asset_id = asset_id.or(asset::reference(data).map(|(_, id)| id));
            }
            Some(data) if block.pointer("/source/type").is_some_and(|kind| kind == "text") => {
                blob.data = Data::Text(Cow::Borrowed(data));
            }
            Some(data) => match data.strip_prefix("data:").and_then(|data| data.split_once(";base64,")) {
                Some((head, data)) if is_base64(data) => {
                    blob.mime =
                        head.split(';').next().filter(|m| !m.is_empty()).map(Cow::Borrowed).or(blob.mime);
                    blob.data = Data::Base64(Cow::Borrowed(data));
                }
                None if is_base64(data) => blob.data = Data::Base64(Cow::Borrowed(data)),
                _ => {}
            },
            None => {}
        }
        if let (Data::Gone, Some(url)) = (&blob.data, url.filter(|url| !url.starts_with("data:"))) {
            blob.data = Data::Url(url);
        }
        // Files uploaded to providers other than OpenAI are known by their own blocks only, which are passed on
        // unchanged.
        if let (Data::Gone, Some(file), None) = (&blob.data, file, block.get("source")) {
            blob.data = Data::OpenaiFile(file);
        }
        if let (Data::Gone, Some(id)) = (&blob.data, asset_id) {
            if let Some((mime, bytes)) = media.bytes(id) {
                blob.mime = Some(mime).filter(|mime| !mime.is_empty()).map(Cow::Owned).or(blob.mime);
                blob.data = Data::Base64(Cow::Owned(BASE64.encode(bytes)));
            }
            blob.label = blob.label.or_else(|| media.label(id).map(Cow::Owned)).or(Some(Cow::Borrowed(id)));
        }
        if blob.mime.is_none() {
            let named = [name, url].into_iter().flatten().find_map(by_extension);
            let looks = || match &blob.data {
                Data::Base64(data) => by_beginning(data),
                _ => None,
            };
            blob.mime = named.or_else(looks).map(Cow::Borrowed);
        }
        if let Some(plain) = blob.plain_text() {
            blob.data = Data::Text(Cow::Owned(plain));
        }
        blob
    }

    /// Media type without its parameters.
    pub fn mime(&self) -> &str {
        let mime = self.mime.as_deref().unwrap_or_default();
        mime.split(';').next().unwrap_or_default().trim()
    }

    /// The bytes as a data URL.
    pub fn data_url(&self) -> Option<String> {
        match &self.data {
            Data::Base64(data) if is_mime(self.mime()) => Some(format!("data:{};base64,{data}", self.mime())),
            _ => None,
        }
    }

    /// Whether it is a picture in a format that every provider accepts.
    pub fn is_picture(&self) -> bool {
        matches!(self.mime(), "image/png" | "image/jpeg" | "image/gif" | "image/webp")
    }

    /// Name for a field that must not be empty.
    pub fn file_name(&self) -> &str {
        self.label.as_deref().filter(|label| !label.is_empty()).unwrap_or("file")
    }

    /// Text in its place where it cannot be sent.
    pub fn placeholder(&self) -> String {
        match (&self.label, &self.data) {
            (Some(label), _) => format!("<{}:{label}>", self.kind),
            (None, Data::Url(url)) => format!("<{}:{url}>", self.kind),
            (None, _) => format!("<{}>", self.kind),
        }
    }

    /// Text form: the text of a document, else the placeholder.
    pub fn in_words(&self) -> String {
        match &self.data {
            Data::Text(text) if !text.trim().is_empty() => {
                format!("{}\n{}", self.placeholder(), text.trim_end())
            }
            _ => self.placeholder(),
        }
    }

    fn plain_text(&self) -> Option<String> {
        let mime = self.mime();
        match &self.data {
            Data::Base64(data) if mime.starts_with("text/") || mime == "application/json" => {
                String::from_utf8(BASE64.decode(&**data).ok()?).ok()
            }
            _ => None,
        }
    }
}

/// Whether the text is standard Base64. Checks only the form, since it may be long.
pub fn is_base64(text: &str) -> bool {
    let data = text.strip_suffix("==").or(text.strip_suffix('=')).unwrap_or(text);
    !data.is_empty()
        && text.len().is_multiple_of(4)
        && data.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'/')
}

/// Whether this can be written as a media type.
pub fn is_mime(text: &str) -> bool {
    let word = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b))
    };
    text.split_once('/').is_some_and(|(kind, sub)| word(kind) && word(sub))
}

/// Whether a provider can fetch it.
pub fn is_web(url: &str) -> bool {
    let rest = url.strip_prefix("https://").or(url.strip_prefix("http://"));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(char::is_whitespace))
}

/// Media type by the first bytes, in Base64.
fn by_beginning(data: &str) -> Option<&'static str> {
    const SIGNS: [(&str, &str); 5] = [
        ("iVBORw0KGgo", "image/png"),
        ("/9j/", "image/jpeg"),
        ("R0lGOD", "image/gif"),
        ("UklGR", "image/webp"),
        ("JVBERi0", "application/pdf"),
    ];
    SIGNS.iter().find(|(sign, _)| data.starts_with(sign)).map(|(_, mime)| *mime)
}

fn by_extension(name: &str) -> Option<&'static str> {
    let path = name.split(['?', '#']).next().unwrap_or_default();
    let (_, extension) = path.rsplit('/').next()?.rsplit_once('.')?;
    Some(match extension.to_ascii_lowercase().as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "pdf" => "application/pdf",
        "txt" => "text/plain",
        "md" => "text/markdown",
        "csv" => "text/csv",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "mp4" => "video/mp4",
        _ => return None,
    })
}
