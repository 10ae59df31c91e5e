//! Runtime of requests to models. It starts with the first one and stays.

use everturn_core::Error;
use std::sync::OnceLock;
use tokio::runtime::{Builder, Runtime};

/// Most concurrent name lookups, each of which blocks a thread.
const LOOKUPS_MAX: usize = 4;

pub fn runtime() -> Result<&'static Runtime, Error> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let started = RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder
            .worker_threads(1)
            .max_blocking_threads(LOOKUPS_MAX)
            .thread_name("everturn-models")
            .enable_all();
        builder.build().map_err(|e| e.to_string())
    });
    started
        .as_ref()
        .map_err(|e| Error::internal("model.runtime", format!("cannot start the model clients: {e}")))
}
