//! TLS certificates, reloaded when they are renewed.

use crate::config::Tls;
use axum_server::tls_rustls::RustlsConfig;
use everturn_core::Error;
use std::time::{Duration, SystemTime};
use tokio_util::sync::CancellationToken;

/// Interval at which the files are checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Selects the cryptography library of this process, unless another one was selected.
pub fn provide() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only if another thread was faster, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// Reads the certificate and its key.
pub async fn load(tls: &Tls) -> Result<RustlsConfig, Error> {
    provide();
    RustlsConfig::from_pem_file(&tls.cert, &tls.key).await.map_err(|e| {
        let (cert, key) = (tls.cert.display(), tls.key.display());
        Error::invalid(
            "serve.tls",
            format!("cannot use the certificate {cert} with the key {key}: {e}; both must be PEM files"),
        )
    })
}

/// Reloads them whenever they change, until the server stops.
pub async fn watch(tls: Tls, config: RustlsConfig, stopping: CancellationToken) {
    let mut seen = changed(&tls);
    while stopping.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
        let now = changed(&tls);
        if now == seen {
            continue;
        }
        match config.reload_from_pem_file(&tls.cert, &tls.key).await {
            Ok(()) => {
                seen = now;
                tracing::info!("the certificate was renewed");
            }
            // Only one of two files may be new yet; the next round tries again.
            Err(error) => tracing::warn!(%error, "the new certificate cannot be used; the old one stays"),
        }
    }
}

fn changed(tls: &Tls) -> [Option<SystemTime>; 2] {
    [&tls.cert, &tls.key].map(|path| std::fs::metadata(path).and_then(|file| file.modified()).ok())
}
