//! What stands for a place in a build without the feature `objects`: none can be opened.

use super::Assets;
use everturn_core::Error;

/// A place that cannot be opened in this build: no value of it exists.
pub enum Place {}

impl Place {
    pub fn new(url: &str, _: impl Iterator<Item = (String, String)>) -> Result<Place, Error> {
        Err(Error::missing_feature("objects", format_args!("assets={url}")))
    }

    pub fn owner(&self) -> Result<Option<String>, Error> {
        match *self {}
    }

    pub fn give(&self, _: &str) -> Result<(), Error> {
        match *self {}
    }

    pub fn mark(&self) -> Result<Option<String>, Error> {
        match *self {}
    }

    pub fn set_mark(&self, _: &str) -> Result<(), Error> {
        match *self {}
    }

    pub fn copied(&self) -> Error {
        match *self {}
    }

    pub fn check_writable(&self) -> Result<(), Error> {
        match *self {}
    }

    pub fn assets(&self) -> &dyn Assets {
        match *self {}
    }

    pub fn taken(&self) -> Error {
        match *self {}
    }
}
