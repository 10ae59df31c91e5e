//! A place for assets by URL: a bucket of S3, Google Cloud Storage or Azure, or a folder that all servers have mounted.
//!
//! A place belongs to one store. An object beside the assets names it, since a second store would take the assets of the
//! first for its own unused ones and delete them. A copy of a store has its id, so a second object has a mark that is
//! renewed all the time: the database that knows the last one may delete.

use super::objects::listed;
use super::{Assets, ObjectAssets, told};
use crate::runtime::Runtime;
use everturn_core::Error;
use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ClientConfigKey, ObjectStore, ObjectStoreExt, ObjectStoreScheme, RetryConfig};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// Object with the id of the store that the place belongs to. No tenant has a name that begins with a dot.
const OWNER: &str = ".everturn-store";
/// Object with the mark of the database that may delete here.
const MARK: &str = ".everturn-database";
/// Object that is written and deleted when a server starts.
const PROBE: &str = ".everturn-check";
/// Longest time for all requests of a check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest time of one request: an asset may be large and the line slow.
const REQUEST_TIMEOUT: &str = "300 seconds";

fn retry() -> RetryConfig {
    RetryConfig { max_retries: 4, retry_timeout: Duration::from_secs(15), ..RetryConfig::default() }
}

/// A builder with its settings from the environment.
macro_rules! from_environment {
    ($builder:ty, $key:path, $prefix:literal, $url:expr, $environment:expr) => {{
        let builder = <$builder>::new()
            .with_url($url.as_str())
            .with_retry(retry())
            .with_config($key(ClientConfigKey::Timeout), REQUEST_TIMEOUT);
        let ours = $environment.filter(|(name, _)| name.starts_with($prefix));
        let built = ours.fold(builder, |builder, (name, value)| match name.to_ascii_lowercase().parse() {
            Ok(key) => builder.with_config(key, value),
            Err(_) => builder,
        });
        built.build().map(|built| Arc::new(built) as Arc<dyn ObjectStore>)
    }};
}

/// A place and its URL, for errors.
pub struct Place {
    url: String,
    assets: ObjectAssets,
}

impl Place {
    /// Reads the URL; nothing is sent yet. Credentials and endpoints are taken from the environment, under the names that
    /// the providers' own tools use.
    pub fn new(url: &str, environment: impl Iterator<Item = (String, String)>) -> Result<Place, Error> {
        let invalid = |why: &str| {
            let text = format!(
                "assets={url} {why}; use s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER"
            );
            Error::invalid("assets.url", text)
        };
        let parsed = Url::parse(url).map_err(|e| invalid(&format!("is not a URL ({e})")))?;
        if parsed.password().is_some() {
            let text = "the URL of assets has a password, which would be stored in the database; leave it out, and pass \
                        credentials in the environment";
            return Err(Error::invalid("assets.url", text));
        }
        if parsed.query().is_some() || parsed.fragment().is_some() {
            return Err(invalid("has parameters, and none are known"));
        }
        // The client of the object stores has no other way to be told.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (scheme, prefix) =
            ObjectStoreScheme::parse(&parsed).map_err(|_| invalid("names no place this version knows"))?;
        let store = match scheme {
            ObjectStoreScheme::AmazonS3 => {
                from_environment!(AmazonS3Builder, AmazonS3ConfigKey::Client, "AWS_", parsed, environment)
            }
            ObjectStoreScheme::GoogleCloudStorage => {
                from_environment!(
                    GoogleCloudStorageBuilder,
                    GoogleConfigKey::Client,
                    "GOOGLE_",
                    parsed,
                    environment
                )
            }
            ObjectStoreScheme::MicrosoftAzure => {
                from_environment!(
                    MicrosoftAzureBuilder,
                    AzureConfigKey::Client,
                    "AZURE_",
                    parsed,
                    environment
                )
            }
            ObjectStoreScheme::Local => {
                let folder: PathBuf = parsed.to_file_path().map_err(|()| invalid("names no folder"))?;
                if !folder.is_dir() {
                    let text = format!(
                        "{} is not a folder; make or mount it first, at the same path for every server",
                        folder.display()
                    );
                    return Err(Error::invalid("assets.absent", text));
                }
                LocalFileSystem::new_with_prefix(folder)
                    .map(|folder| Arc::new(folder.with_fsync(true)) as Arc<dyn ObjectStore>)
            }
            _ => return Err(invalid("names no place this version knows")),
        };
        let store = store.map_err(|e| invalid(&format!("cannot be opened ({})", told(&e))))?;
        let store = match scheme {
            ObjectStoreScheme::Local => store,
            _ if prefix.as_ref().is_empty() => store,
            _ => Arc::new(PrefixStore::new(store, prefix)),
        };
        let assets = ObjectAssets { store, runtime: Runtime::start("assets")? };
        Ok(Place { url: url.to_string(), assets })
    }

    /// The store that the place belongs to. `None` if the place is new and empty.
    pub fn owner(&self) -> Result<Option<String>, Error> {
        let store = &self.assets.store;
        // Asked first, since an absent bucket has no owner either.
        self.ask("read", async { store.list(None).next().await.transpose() })?;
        if let Some(owner) = self.read(OWNER)? {
            return Ok(Some(owner));
        }
        let assets = store.list(None).try_filter_map(async |object| Ok(listed(&object)));
        let first = async { std::pin::pin!(assets).next().await.transpose() };
        if self.ask("list", first)?.is_some() {
            return Err(Error::conflict(
                "assets.foreign",
                format!(
                    "{} has assets of something else, which this store would delete as unused; name another prefix",
                    self.url
                ),
            ));
        }
        Ok(None)
    }

    /// Gives a new place to a store.
    pub fn give(&self, store: &str) -> Result<(), Error> {
        let assets = &self.assets.store;
        self.ask("write", async { assets.put(&Path::from(OWNER), store.to_string().into()).await })?;
        match self.owner()? {
            Some(owner) if owner == store => Ok(()),
            _ => Err(self.taken()),
        }
    }

    /// The mark that was last written.
    pub fn mark(&self) -> Result<Option<String>, Error> {
        self.read(MARK)
    }

    /// Writes another mark.
    pub fn set_mark(&self, mark: &str) -> Result<(), Error> {
        let assets = &self.assets.store;
        self.ask("write", async { assets.put(&Path::from(MARK), mark.to_string().into()).await }).map(drop)
    }

    /// Lets the next database that comes delete here.
    pub fn remove_mark(&self) -> Result<(), Error> {
        let assets = &self.assets.store;
        self.ask("delete", async { assets.delete(&Path::from(MARK)).await })
    }

    /// The error for a place in which another database deletes: one of them is a copy.
    pub fn copied(&self) -> Error {
        let text = format!(
            "another database has used {0} since: this one is a copy of it, or was restored, and deletes nothing there, since it \
             does not know what the other needs. For a copy, copy the objects to another place and name that by `assets`; if this \
             database replaces the other, delete the object {MARK} in {0}",
            self.url
        );
        Error::conflict("assets.copied", text)
    }

    fn read(&self, name: &str) -> Result<Option<String>, Error> {
        let store = &self.assets.store;
        let look = async {
            match store.get(&Path::from(name)).await {
                Ok(found) => Ok(Some(found.bytes().await?)),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let found = self.ask("read", look)?;
        Ok(found.map(|text| String::from_utf8_lossy(&text).trim().to_string()))
    }

    /// Makes sure that assets can be written and deleted.
    pub fn check_writable(&self) -> Result<(), Error> {
        let (store, probe) = (&self.assets.store, Path::from(PROBE));
        self.ask("write", async { store.put(&probe, PROBE.into()).await })?;
        let deleted = async {
            match store.delete(&probe).await {
                // Another server that starts was faster.
                Err(object_store::Error::NotFound { .. }) => Ok(()),
                deleted => deleted,
            }
        };
        self.ask("delete", deleted)
    }

    /// The assets.
    pub fn assets(&self) -> &dyn Assets {
        &self.assets
    }

    /// The assets.
    pub fn into_assets(self) -> ObjectAssets {
        self.assets
    }

    /// The error for a place of another store.
    pub fn taken(&self) -> Error {
        let text = format!("{} has the assets of another store; name another prefix", self.url);
        Error::conflict("assets.taken", text)
    }

    fn ask<T>(
        &self,
        what: &str,
        asked: impl Future<Output = Result<T, object_store::Error>>,
    ) -> Result<T, Error> {
        let url = &self.url;
        let unreachable = |why: &str| {
            let text = format!(
                "cannot {what} {url}: {why}; check the URL, the endpoint, the credentials and the network"
            );
            Error::busy("assets.unreachable", text)
        };
        let plain = || {
            let prefix = if url.starts_with("s3") { "AWS" } else { "AZURE" };
            let text = format!(
                "cannot {what} {url}: the endpoint is not https://; for http://, which is not encrypted, set {prefix}_ALLOW_HTTP=true"
            );
            Error::busy("assets.unreachable", text)
        };
        let absent = |why: &str| {
            let text =
                format!("cannot {what} {url}: there is no such bucket or container; make it first ({why})");
            Error::invalid("assets.absent", text)
        };
        let denied = |why: &str| {
            let text = format!(
                "cannot {what} {url}: the credentials are wrong, or do not allow to list, get, put and delete objects there ({why})"
            );
            Error::invalid("assets.denied", text)
        };
        let answer = self.assets.runtime.drive(async { tokio::time::timeout(CHECK_TIMEOUT, asked).await });
        let Ok(answer) = answer else {
            return Err(unreachable(&format!("no answer within {} s", CHECK_TIMEOUT.as_secs())));
        };
        answer.map_err(|error| {
            let text = told(&error);
            // A failed list says nothing but the answer of the server.
            let says = |what: &[&str]| what.iter().any(|what| text.contains(what));
            match error {
                object_store::Error::NotFound { .. } => absent(&text),
                _ if says(&["NoSuchBucket", "ContainerNotFound"]) => absent(&text),
                object_store::Error::PermissionDenied { .. }
                | object_store::Error::Unauthenticated { .. } => denied(&text),
                _ if says(&["403 Forbidden", "401 Unauthorized"]) => denied(&text),
                _ if says(&["URL scheme is not allowed"]) => plain(),
                _ => unreachable(&text),
            }
        })
    }
}
