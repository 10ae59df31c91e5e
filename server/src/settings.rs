//! Settings: from a flag, else the environment, else the file, else the default. One table lists them all.

mod read;
mod table;

pub use read::{Environment, OpenEmbedder};
pub use table::{SETTINGS, Setting, ValueType};

pub use everturn_core::redaction::without_password;

use everturn_core::Error;
use everturn_core::id::clip;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use toml::Value;

/// Every setting that has a value, by its dotted name, with its origin.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    values: BTreeMap<String, (Value, Origin)>,
}

/// Origin of a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The default.
    Default,
    /// The file.
    File(PathBuf),
    /// This environment variable.
    Environment(String),
    /// This flag.
    Flag(&'static str),
}

/// A setting given as a flag.
pub struct Flag {
    /// Name of the setting.
    pub key: &'static str,
    /// The flag, such as `--listen`.
    pub flag: &'static str,
    /// Its value.
    pub value: String,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "file {}", path.display()),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// The file that `--config` or `EVERTURN_CONFIG` names, else the one in the configuration folder if it exists.
pub fn read_file(named: Option<&Path>, folder: Option<&Path>) -> Result<Option<(PathBuf, String)>, Error> {
    let usual = folder.map(|folder| folder.join("everturn").join("config.toml"));
    let path = match named {
        Some(path) => path.to_path_buf(),
        None => match usual.filter(|path| path.is_file()) {
            Some(path) => path,
            None => return Ok(None),
        },
    };
    let text = std::fs::read_to_string(&path).map_err(|e| {
        Error::invalid("config.file", format!("cannot read {}: {e}; check --config", path.display()))
    })?;
    Ok(Some((path, text)))
}

impl Settings {
    /// Reads every setting from the first source that has it: flags, the environment, the file.
    pub fn gather(
        file: Option<(PathBuf, String)>,
        environment: &dyn Fn(&str) -> Option<String>,
        flags: Vec<Flag>,
    ) -> Result<Settings, Error> {
        let mut settings = Settings::default();
        for setting in SETTINGS.iter().filter(|setting| !setting.default.is_empty()) {
            settings.set(setting.key, setting.parse(setting.default, setting.key)?, Origin::Default);
        }
        if let Some((path, text)) = file {
            settings.add_file(&path, &text)?;
        }
        for setting in SETTINGS.iter().filter(|setting| !setting.key.contains('*')) {
            let names = [setting.fallback_variable.map(str::to_string), Some(setting.variable())];
            for name in names.into_iter().flatten() {
                if let Some(text) = environment(&name).filter(|text| !text.is_empty()) {
                    settings.set(setting.key, setting.parse(&text, &name)?, Origin::Environment(name));
                }
            }
        }
        for Flag { key, flag, value } in flags {
            let setting = table::find(key).ok_or_else(|| table::unknown(key, flag))?;
            settings.set(key, setting.parse(&value, flag)?, Origin::Flag(flag));
        }
        Ok(settings)
    }

    fn add_file(&mut self, path: &Path, text: &str) -> Result<(), Error> {
        let table: toml::Table = toml::from_str(text).map_err(|e| {
            Error::invalid("config.syntax", format!("{} is not TOML: {}", path.display(), e.message()))
        })?;
        let mut found = Vec::new();
        flatten(String::new(), Value::Table(table), &mut found);
        for (key, value) in found {
            let place = path.display().to_string();
            let setting = table::find(&key).ok_or_else(|| table::unknown(&key, &place))?;
            setting.check(&value, &key, &place)?;
            self.set(&key, value, Origin::File(path.to_path_buf()));
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: Value, origin: Origin) {
        self.values.insert(key.to_string(), (value, origin));
    }

    /// Origin of a setting.
    pub fn origin(&self, key: &str) -> Option<&Origin> {
        self.values.get(key).map(|(_, origin)| origin)
    }

    /// A text setting.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.values.get(key).and_then(|(value, _)| value.as_str()).filter(|text| !text.is_empty())
    }

    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        self.values.get(key).and_then(|(value, _)| value.as_bool())
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.values.get(key).and_then(|(value, _)| value.as_integer()).and_then(|n| u64::try_from(n).ok())
    }

    fn list(&self, key: &str) -> Vec<String> {
        let items = self.values.get(key).and_then(|(value, _)| value.as_array());
        items.into_iter().flatten().filter_map(|item| item.as_str().map(str::to_string)).collect()
    }

    /// The names below a table: for `models`, every model's.
    fn names(&self, table: &str) -> Vec<String> {
        let prefix = format!("{table}.");
        let mut names: Vec<String> = self
            .values
            .keys()
            .filter_map(|key| key.strip_prefix(&prefix))
            .map(|rest| rest.split('.').next().unwrap_or(rest).to_string())
            .collect();
        names.dedup();
        names
    }

    /// Every setting with its value and origin, as TOML. Passwords in URLs are left out.
    pub fn show(&self) -> String {
        let line = |(key, (value, origin)): (&String, &(Value, Origin))| {
            let value = match value {
                Value::String(text) => Value::String(without_password(text)),
                other => other.clone(),
            };
            // These values have the same syntax in JSON and TOML.
            let value = serde_json::to_string(&value).unwrap_or_default();
            format!("{:<55} # {origin}\n", format!("{key} = {value}"))
        };
        self.values.iter().map(line).collect()
    }
}

fn flatten(prefix: String, value: Value, found: &mut Vec<(String, Value)>) {
    match value {
        Value::Table(table) => {
            for (name, value) in table {
                // A name with a dot in it would read as two.
                let key = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
                flatten(key, value, found);
            }
        }
        value => found.push((prefix, value)),
    }
}

/// The error for a wrong value.
fn wrong(key: &str, place: &str, why: &str) -> Error {
    Error::invalid("config.value", format!("{key} ({}): {why}", clip(place)))
}
