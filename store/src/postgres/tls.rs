//! Encrypted connections, with the meanings of libpq's `sslmode` and `sslrootcert`.

use everturn_core::Error;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::sync::Arc;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// Parameters of a URL. Of `sslmode`, the client itself knows the first three.
#[derive(Default)]
pub struct Encryption {
    pub mode: Option<String>,
    pub root: Option<String>,
}

/// Extent to which the server's certificate is checked.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Check {
    Nothing,
    /// Signed by a trusted authority, for whatever host.
    Chain,
    Full,
}

impl Encryption {
    /// The mode for the client, and the connector that checks the certificate.
    pub fn connector(&self) -> Result<(SslMode, MakeRustlsConnect), Error> {
        let invalid = |text: String| Error::invalid("store.url", text);
        let (mode, check) = match (self.mode.as_deref(), &self.root) {
            (Some("disable"), _) => (SslMode::Disable, Check::Nothing),
            (None | Some("prefer"), _) => (SslMode::Prefer, Check::Nothing),
            (Some("require"), None) => (SslMode::Require, Check::Nothing),
            (Some("require"), Some(_)) => (SslMode::Require, Check::Chain),
            (Some("verify-ca"), Some(_)) => (SslMode::Require, Check::Chain),
            (Some("verify-ca"), None) => {
                let text = "sslmode=verify-ca needs sslrootcert=FILE, the certificate to trust";
                return Err(invalid(text.into()));
            }
            (Some("verify-full"), _) => (SslMode::Require, Check::Full),
            (Some(other), _) => {
                let known = "disable, prefer, require, verify-ca or verify-full";
                return Err(invalid(format!("sslmode is {other:?}; use {known}")));
            }
        };
        let provider = Arc::new(ring::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match (check, &self.root) {
            (Check::Nothing, _) => Arc::new(Lenient { provider: provider.clone(), chain: None }),
            (Check::Full, None) => system(provider.clone())?,
            (Check::Full, Some(root)) if root == "system" => system(provider.clone())?,
            (_, root) => {
                let roots = trusted(root.as_deref().unwrap_or_default())?;
                let built =
                    WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone()).build();
                let chain = built.map_err(|e| invalid(format!("sslrootcert cannot be used: {e}")))?;
                match check {
                    Check::Full => chain,
                    _ => Arc::new(Lenient { provider: provider.clone(), chain: Some(chain) }),
                }
            }
        };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::internal("store.tls", format!("cannot encrypt connections: {e}")))?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        // Required where the negotiation is direct.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok((mode, MakeRustlsConnect::new(config)))
    }
}

/// Trusts the authorities of the system.
fn system(provider: Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, Error> {
    let verifier = rustls_platform_verifier::Verifier::new(provider).map_err(|e| {
        let text = format!(
            "the certificates of the system cannot be read ({e}); name those to trust by sslrootcert=FILE"
        );
        Error::invalid("store.certificate", text)
    })?;
    Ok(Arc::new(verifier))
}

fn trusted(file: &str) -> Result<RootCertStore, Error> {
    let unusable = |why: String| {
        Error::invalid(
            "store.certificate",
            format!("sslrootcert={file} cannot be used: {why}; name a PEM file"),
        )
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|e| unusable(e.to_string()))? {
        let certificate = certificate.map_err(|e| unusable(e.to_string()))?;
        roots.add(certificate).map_err(|e| unusable(e.to_string()))?;
    }
    match roots.is_empty() {
        true => Err(unusable("it has no certificate".into())),
        false => Ok(roots),
    }
}

/// Takes any certificate, or any of a trusted authority.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    chain: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is compared last, after the chain.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            checked => checked,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The complaint about a certificate that made a connection fail.
pub fn complaint(error: &tokio_postgres::Error) -> Option<String> {
    let error: &(dyn std::error::Error + 'static) = error;
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.find_map(|cause| {
        // An `io::Error` has the cause inside, and skips it as its source.
        let inside = cause.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref());
        match inside.and_then(|inside| inside.downcast_ref()).or(cause.downcast_ref()) {
            Some(rustls::Error::InvalidCertificate(why)) => Some(why.to_string()),
            _ => None,
        }
    })
}
