//! JSON Web Tokens of other issuers, signed with the one configured algorithm.

use super::signatures;
use crate::config::{Hidden, Jwt, JwtKeys};
use crate::problem::Problem;
use everturn_core::Error;
use everturn_core::access::KeyRole;
use everturn_core::time::Timestamp;
use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use parking_lot::{Mutex, RwLock};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum interval between reloads caused by tokens with unknown keys.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Timeout of the server of the keys.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Allowed clock skew before a token begins. Its end has no leeway: streams end at that moment too.
const LEEWAY_S: u64 = 30;

pub struct Verifier {
    config: Jwt,
    validation: Validation,
    keys: RwLock<Arc<Vec<KnownKey>>>,
    /// Time of the last reload.
    looked: Mutex<Option<Instant>>,
}

struct KnownKey {
    kid: Option<String>,
    key: DecodingKey,
}

/// Subject and role of a token.
pub struct Bearer {
    pub tenant: String,
    pub role: KeyRole,
    /// Actors that its holder may act as; without any, it may act as anyone.
    pub actors: Vec<String>,
    pub who: String,
    /// The claim `exp`.
    pub expires: Timestamp,
}

impl Verifier {
    pub fn new(config: Jwt) -> Arc<Verifier> {
        signatures::install();
        // Only this algorithm, whatever a token says about itself.
        let mut validation = Validation::new(config.algorithm);
        (validation.validate_nbf, validation.leeway) = (true, LEEWAY_S);
        let mut required = vec!["exp"];
        if let Some(issuer) = &config.issuer {
            validation.set_issuer(&[issuer]);
            required.push("iss");
        }
        match &config.audience {
            Some(audience) => {
                validation.set_audience(&[audience]);
                required.push("aud");
            }
            None => validation.validate_aud = false,
        }
        validation.set_required_spec_claims(&required);
        // A secret is there already; the others are loaded when the server starts.
        let keys = match &config.keys {
            JwtKeys::Secret(secret) => vec![shared_key(secret)],
            JwtKeys::File(_) | JwtKeys::Url(_) => Vec::new(),
        };
        let (keys, looked) = (RwLock::new(Arc::new(keys)), Mutex::default());
        Arc::new(Verifier { config, validation, keys, looked })
    }

    /// Loads the keys. If that fails, the previous ones stay.
    pub async fn load(&self) -> Result<(), Error> {
        *self.looked.lock() = Some(Instant::now());
        let keys = match &self.config.keys {
            JwtKeys::Secret(_) => return Ok(()),
            JwtKeys::File(path) => {
                let text = std::fs::read_to_string(path).map_err(|e| {
                    let text = format!("cannot read {}: {e}; check jwt.jwks_file", path.display());
                    Error::invalid("jwt.keys", text)
                })?;
                parse(&text, self.config.algorithm)?
            }
            JwtKeys::Url(url) => {
                let text = fetch(url).await.map_err(|e| {
                    let shown = crate::settings::without_password(url);
                    Error::busy("jwt.keys", format!("cannot fetch {shown}: {e}; check jwt.jwks_url"))
                })?;
                parse(&text, self.config.algorithm)?
            }
        };
        *self.keys.write() = Arc::new(keys);
        Ok(())
    }

    /// Verifies a token. The keys are reloaded periodically in the background.
    pub async fn verify(self: &Arc<Self>, token: &str) -> Result<Bearer, Problem> {
        if self.older_than(self.config.refresh) {
            let verifier = self.clone();
            tokio::spawn(async move { verifier.load_or_warn().await });
        }
        let refused =
            |why: &str| Problem::unauthorized(format!("the token is refused: {why}; get a new one"));
        let header = decode_header(token).map_err(|_| refused("it is neither a key (et_…) nor a JWT"))?;
        if header.alg != self.config.algorithm {
            return Err(refused(&format!("it must be signed with {:?}", self.config.algorithm)));
        }
        let mut candidates = self.candidates(header.kid.as_deref());
        if candidates.is_empty() && self.older_than(LOOK_AGAIN) {
            self.load_or_warn().await;
            candidates = self.candidates(header.kid.as_deref());
        }
        let keys = self.keys.read().clone();
        let mut why = "none of its issuer's keys matches".to_string();
        for at in candidates {
            let Some(known) = keys.get(at) else { continue };
            match decode::<Map<String, Value>>(token, &known.key, &self.validation) {
                Ok(token) => return self.read(&token.claims),
                Err(error) => why = explain(&error),
            }
        }
        Err(refused(&why))
    }

    fn read(&self, claims: &Map<String, Value>) -> Result<Bearer, Problem> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        let needed = |name: &str| {
            let absent = || Problem::unauthorized(format!("the token has no claim {name:?}; ask its issuer"));
            text(name).ok_or_else(absent)
        };
        let tenant = needed(&self.config.tenant_claim)?;
        let role = needed(&self.config.role_claim)?;
        let role = role.parse().map_err(|_| {
            Problem::unauthorized(
                "the role in the token is not counter, reader, writer or admin; ask its issuer",
            )
        })?;
        let actors = match claims.get(&self.config.actors_claim) {
            None => Vec::new(),
            Some(Value::String(actor)) => vec![actor.clone()],
            // An empty or malformed list must not give access to what belongs to every actor.
            Some(named) => serde_json::from_value(named.clone())
                .ok()
                .filter(|names: &Vec<String>| !names.is_empty())
                .ok_or_else(|| {
                    Problem::unauthorized("the actors in the token are not a list of names; ask its issuer")
                })?,
        };
        let who = format!("jwt:{tenant}/{}", text("sub").unwrap_or("-"));
        let expires = claims.get("exp").and_then(Value::as_f64).unwrap_or_default();
        // Saturates: a token may never expire.
        let expires = Timestamp((expires * 1e6) as i64);
        Ok(Bearer { tenant: tenant.to_string(), role, actors, who: everturn_core::id::clip(&who), expires })
    }

    fn candidates(&self, kid: Option<&str>) -> Vec<usize> {
        let keys = self.keys.read().clone();
        let fits = |key: &KnownKey| match (kid, &key.kid) {
            (Some(wanted), Some(kid)) => wanted == kid,
            _ => true,
        };
        keys.iter().enumerate().filter(|(_, key)| fits(key)).map(|(at, _)| at).collect()
    }

    fn older_than(&self, age: Duration) -> bool {
        let looked = *self.looked.lock();
        !matches!(self.config.keys, JwtKeys::Secret(_)) && looked.is_none_or(|at| at.elapsed() > age)
    }

    async fn load_or_warn(&self) {
        if let Err(error) = self.load().await {
            tracing::warn!(%error, "the keys of tokens could not be reloaded; the previous ones are used");
        }
    }
}

fn shared_key(secret: &Hidden) -> KnownKey {
    KnownKey { kid: None, key: DecodingKey::from_secret(secret.0.as_bytes()) }
}

/// The keys of a JWKS that can be used with this algorithm.
fn parse(text: &str, algorithm: Algorithm) -> Result<Vec<KnownKey>, Error> {
    let wrong = |why: String| Error::invalid("jwt.keys", format!("the JWKS cannot be used: {why}"));
    // Keys of unknown types are skipped.
    let set: Value = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
    let all = set.get("keys").and_then(Value::as_array).cloned().unwrap_or_default();
    let known = all.into_iter().filter_map(|key| serde_json::from_value(key).ok()).collect();
    let mut keys = Vec::new();
    for jwk in (JwkSet { keys: known }).keys {
        let named = jwk.common.key_algorithm.map(|name| name.to_string());
        let key = DecodingKey::from_jwk(&jwk).ok();
        let fits = |key: &DecodingKey| key.family() == algorithm.family();
        if let Some(key) = key.filter(fits).filter(|_| named.is_none_or(|n| n == format!("{algorithm:?}"))) {
            keys.push(KnownKey { kid: jwk.common.key_id, key });
        }
    }
    if keys.is_empty() {
        return Err(wrong(format!("it has no key for {algorithm:?}")));
    }
    Ok(keys)
}

async fn fetch(url: &str) -> Result<String, reqwest::Error> {
    crate::tls::provide();
    let mut builder = reqwest::Client::builder().timeout(FETCH_TIMEOUT).no_proxy();
    if url.starts_with("http://") {
        // Works on a machine without root certificates, too.
        builder = builder.tls_certs_only([]);
    }
    builder.build()?.get(url).send().await?.error_for_status()?.text().await
}

/// The reason for refusing a token. It contains nothing of the token.
fn explain(error: &jsonwebtoken::errors::Error) -> String {
    use jsonwebtoken::errors::ErrorKind;
    match error.kind() {
        ErrorKind::ExpiredSignature => "it has expired".into(),
        ErrorKind::ImmatureSignature => "it is not valid yet".into(),
        ErrorKind::InvalidSignature => "its signature is wrong".into(),
        ErrorKind::InvalidIssuer => "it has another issuer".into(),
        ErrorKind::InvalidAudience => "it has another audience".into(),
        ErrorKind::MissingRequiredClaim(claim) => format!("it has no claim {claim:?}"),
        _ => "it is malformed".into(),
    }
}
