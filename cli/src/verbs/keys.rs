//! `everturn keys`

use crate::args::Args;
use crate::output::{self, Failure};
use crate::{dates, open, show};
use clap::{Args as ClapArgs, Subcommand};
use everturn_api::keys::{CreateKey, ListKeys, MadeKey, RevokeKey};
use everturn_core::Error;
use everturn_core::access::{AccessKey, KeyRole};
use everturn_core::id::KeyId;
use everturn_engine::KEY_PREFIX;

#[derive(ClapArgs)]
#[command(after_help = "Examples:\n  \
    everturn keys create --role admin --label 'my laptop'\n  \
    everturn keys create --role writer --tenant acme --expires 2027-01-01\n  \
    everturn keys create --role writer --actor ana --label \"Ana's phone\"\n  \
    everturn keys list\n  \
    everturn keys revoke key_01J9…")]
pub struct Keys {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Create a key and print it, once
    Create {
        /// Role: counter (numbers, but no words), reader, writer or admin
        #[arg(long)]
        role: String,
        /// Actor that the holder acts as: the key sees this actor's private turns and writes only in its name; may be repeated.
        /// Without it, the key can read and write in any name: for your own back end
        #[arg(long, value_name = "NAME")]
        actor: Vec<String>,
        /// Note for people, such as the holder and the purpose
        #[arg(long)]
        label: Option<String>,
        /// Time after which it is no longer accepted: 2027-01-01, 30d, …
        #[arg(long, value_name = "DATE")]
        expires: Option<String>,
    },
    /// List the keys of the tenant
    List,
    /// Revoke a key
    Revoke {
        /// Id of the key
        #[arg(value_name = "ID")]
        id: String,
    },
}

pub fn run(args: &Args, verb: &Keys) -> Result<(), Failure> {
    match &verb.verb {
        Verb::Create { role, actor, label, expires } => {
            let role: KeyRole = role.parse()?;
            let expires = expires.as_deref().map(|text| dates::deadline("--expires", text)).transpose()?;
            let create = CreateKey { role, actors: actor.clone(), label: label.clone(), expires };
            let made = open::making(args)?.call(create)?;
            if args.json {
                return output::json(&made);
            }
            let MadeKey { key, secret } = made;
            output::text(secret)?;
            eprintln!("{} for tenant {}, role {role}; it is shown only once", key.id, key.tenant);
            Ok(())
        }
        Verb::List => {
            let keys = open::reading(args)?.call(ListKeys {})?.data;
            if args.json {
                return output::json_list(&keys, None);
            }
            if keys.is_empty() {
                return output::text(
                    "no keys here; `everturn keys create --role admin` creates one, and --tenant lists those of another tenant",
                );
            }
            keys.iter().try_for_each(|key| output::text(line(key)))
        }
        Verb::Revoke { id } => {
            // The key itself contains its id, and must not be repeated in an error.
            let id = match id.strip_prefix(KEY_PREFIX) {
                Some(key) => key.split('_').next().unwrap_or_default(),
                None => id.strip_prefix(KeyId::PREFIX).unwrap_or(id),
            };
            let full = format!("{}{id}", KeyId::PREFIX);
            let key = open::writing(args)?.call(RevokeKey { key: full.parse()? }).map_err(|e| match &e {
                Error::NotFound(_) => {
                    e.reworded(|text| format!("{text}, and with --tenant those of another tenant"))
                }
                _ => e,
            })?;
            if args.json {
                return output::json(&key);
            }
            output::text(format!("revoked {}", key.id))
        }
    }
}

fn line(key: &AccessKey) -> String {
    let label = key.label.as_deref().map(|label| format!("  {}", show::printable(label))).unwrap_or_default();
    let state = match (key.revoked, key.expires) {
        (Some(at), _) => format!("revoked {}", dates::to_second(at)),
        (None, Some(at)) => format!("until {}", dates::to_second(at)),
        (None, None) => "valid".to_string(),
    };
    let used =
        key.last_used.map_or("never used".to_string(), |at| format!("last used {}", dates::to_second(at)));
    let actors = match key.actors.is_empty() {
        true => String::new(),
        false => format!("  as {}", show::printable(&key.actors.join(", "))),
    };
    format!("{}  {:<6}  {state}  {used}{actors}{label}", key.id, key.role.as_str())
}
