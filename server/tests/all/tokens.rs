//! Tokens, as an issuer would sign them, and their acceptance.

use crate::stage::{Stage, answer, config};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use everturn_engine::Everturn;
use everturn_server::{Config, Hidden, Jwt, JwtKeys};
use jsonwebtoken::Algorithm;
use reqwest::Method;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub const SECRET: &str = "a secret of thirty-two characters";

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Accepts tokens that are signed with [`SECRET`].
pub fn jwt_config() -> Jwt {
    Jwt {
        algorithm: Algorithm::HS256,
        keys: JwtKeys::Secret(Hidden(SECRET.into())),
        refresh: Duration::from_secs(300),
        issuer: None,
        audience: None,
        tenant_claim: "tenant".into(),
        role_claim: "role".into(),
        actors_claim: "actors".into(),
    }
}

fn with_end(claims: &Value, exp: Option<u64>) -> Value {
    let mut claims = claims.clone();
    if let Some(exp) = exp {
        claims["exp"] = exp.into();
    }
    claims
}

/// A token with a signature over its other two parts.
fn token(algorithm: &str, kid: Option<&str>, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let mut header = json!({"alg": algorithm, "typ": "JWT"});
    if let Some(kid) = kid {
        header["kid"] = kid.into();
    }
    let signed = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()));
    format!("{signed}.{}", BASE64.encode(sign(signed.as_bytes())))
}

fn hmac(algorithm: &str, hash: hmac::Algorithm, secret: &str, claims: &Value) -> String {
    let key = hmac::Key::new(hash, secret.as_bytes());
    token(algorithm, None, claims, |signed| hmac::sign(&key, signed).as_ref().to_vec())
}

pub fn hs256(secret: &str, claims: &Value, exp: Option<u64>) -> String {
    hmac("HS256", hmac::HMAC_SHA256, secret, &with_end(claims, exp))
}

pub fn hs384(secret: &str, claims: &Value, exp: u64) -> String {
    hmac("HS384", hmac::HMAC_SHA384, secret, &with_end(claims, Some(exp)))
}

/// A token that claims to need no signature.
pub fn unsigned(claims: &Value, exp: u64) -> String {
    let signed = hs256(SECRET, claims, Some(exp));
    let payload = signed.split('.').nth(1).unwrap();
    // {"alg":"none","typ":"JWT"}
    format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{payload}.")
}

async fn status(stage: &Stage, token: &str) -> u16 {
    let request = stage.request(Method::GET, "/api/v1/conversations").bearer_auth(token);
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_are_checked() {
    let jwt = Jwt {
        issuer: Some("https://id.example".into()),
        audience: Some("everturn".into()),
        tenant_claim: "org".into(),
        role_claim: "everturn_role".into(),
        actors_claim: "actors".into(),
        ..jwt_config()
    };
    let store = Everturn::open("memory:").unwrap();
    let stage = Stage::over(store, Config { keys_required: None, jwt: Some(jwt), ..config() }).await;
    let good = json!({
        "org": "acme", "everturn_role": "reader", "sub": "ann", "iss": "https://id.example", "aud": "everturn"
    });
    let end = Some(now() + 600);
    assert_eq!(status(&stage, &hs256(SECRET, &good, end)).await, 200);
    for (claim, value) in [
        ("iss", json!("https://evil.example")),
        ("iss", Value::Null),
        ("aud", json!("another")),
        ("aud", Value::Null),
        ("org", Value::Null),
        ("org", json!("../etc")),
        ("org", json!(7)),
        ("everturn_role", json!("root")),
        ("everturn_role", Value::Null),
        ("nbf", json!(now() + 600)),
    ] {
        let mut claims = good.clone();
        claims[claim] = value.clone();
        if value.is_null() {
            claims.as_object_mut().unwrap().remove(claim);
        }
        assert_eq!(status(&stage, &hs256(SECRET, &claims, end)).await, 401, "{claim} {value}");
    }
    let token = hs256(SECRET, &good, end);
    let append = stage.request(Method::POST, "/api/v1/conversations").bearer_auth(token);
    assert_eq!(answer(append.body("{}"), 403).await["code"], "access.role");
    stage.stop().await;
}

/// Changes of an issuer's keys are followed: a token with an unknown key causes a reload.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_tokens_are_read_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jwks.json");
    let pair = || {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        EcdsaKeyPair::from_pkcs8(algorithm, pair.serialized_der(), &random).unwrap()
    };
    let (ours, theirs) = (pair(), pair());
    let set = |key: &EcdsaKeyPair, kid: &str| {
        // After the mark of an uncompressed point.
        let (x, y) = key.public_key().as_ref()[1..].split_at(32);
        let (x, y) = (BASE64.encode(x), BASE64.encode(y));
        let jwk = json!({"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": kid, "x": x, "y": y});
        json!({"keys": [jwk]}).to_string()
    };
    let sign = |key: &EcdsaKeyPair, kid: &str| {
        let claims = json!({"tenant": "acme", "role": "admin", "exp": now() + 600});
        token("ES256", Some(kid), &claims, |signed| {
            key.sign(&SystemRandom::new(), signed).unwrap().as_ref().to_vec()
        })
    };
    std::fs::write(&file, set(&ours, "one")).unwrap();
    let keys = JwtKeys::File(file.clone());
    let jwt = Jwt { algorithm: Algorithm::ES256, keys, refresh: Duration::ZERO, ..jwt_config() };
    let store = Everturn::open("memory:").unwrap();
    let stage = Stage::over(store, Config { keys_required: None, jwt: Some(jwt), ..config() }).await;
    assert_eq!(status(&stage, &sign(&ours, "one")).await, 200);
    assert_eq!(status(&stage, &sign(&theirs, "one")).await, 401, "the right name, the wrong key");
    assert_eq!(status(&stage, &sign(&theirs, "two")).await, 401);
    let claims = json!({"tenant": "acme", "role": "admin"});
    let public = std::fs::read_to_string(&file).unwrap();
    let confused = hs256(&public, &claims, Some(now() + 600));
    assert_eq!(status(&stage, &confused).await, 401, "the public key is no secret");
    std::fs::write(&file, set(&theirs, "two")).unwrap();
    // Reloaded in the background, by the requests themselves.
    let token = sign(&theirs, "two");
    for _ in 0..200 {
        if status(&stage, &token).await == 200 {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(status(&stage, &token).await, 200);
    assert_eq!(status(&stage, &sign(&ours, "one")).await, 401, "the old key is gone");
    stage.stop().await;
}

/// The key of an issuer that exists in this test only.
const RSA_KEY: &str = include_str!("issuer-test-key.pem");

/// An issuer on the network: its keys are fetched, and fetched again when a token has an unknown one. While it
/// is unreachable, the previous keys are used.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_tokens_are_fetched_from_their_issuer() {
    let pem = PrivatePkcs8KeyDer::from_pem_slice(RSA_KEY.as_bytes()).unwrap();
    let key = Arc::new(RsaKeyPair::from_pkcs8(pem.secret_pkcs8_der()).unwrap());
    let kid = Arc::new(Mutex::new(Some("one")));
    let shown = {
        let (kid, key) = (kid.clone(), key.clone());
        move || {
            let kid = *kid.lock().unwrap();
            let set = kid.map(|kid| {
                let PublicKeyComponents { n, e } = PublicKeyComponents::<Vec<u8>>::from(key.public());
                // Some issuers write the zero that other encodings have in front of a number.
                let n = [&[0], &n[..]].concat();
                json!({"keys": [{"kty": "RSA", "alg": "RS256", "kid": kid, "n": BASE64.encode(n), "e": BASE64.encode(e)}]}).to_string()
            });
            async { set.ok_or(axum::http::StatusCode::SERVICE_UNAVAILABLE) }
        }
    };
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/jwks.json", listener.local_addr().unwrap());
    let routes = axum::Router::new().route("/jwks.json", axum::routing::get(shown));
    let issuer = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    let sign = |kid: &str| {
        let claims = json!({"tenant": "acme", "role": "admin", "exp": now() + 600});
        token("RS256", Some(kid), &claims, |signed| {
            let mut signature = vec![0; key.public().modulus_len()];
            key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed, &mut signature).unwrap();
            signature
        })
    };
    let keys = JwtKeys::Url(url);
    let jwt = Jwt { algorithm: Algorithm::RS256, keys, refresh: Duration::ZERO, ..jwt_config() };
    let config = || Config { keys_required: None, jwt: Some(jwt.clone()), ..config() };
    let stage = Stage::over(Everturn::open("memory:").unwrap(), config()).await;
    assert_eq!(status(&stage, &sign("one")).await, 200);
    assert_eq!(status(&stage, &sign("two")).await, 401);
    let claims = json!({"tenant": "acme", "role": "admin"});
    assert_eq!(status(&stage, &hs256(RSA_KEY, &claims, Some(now() + 600))).await, 401);
    *kid.lock().unwrap() = Some("two");
    while status(&stage, &sign("two")).await != 200 {}
    *kid.lock().unwrap() = None;
    for _ in 0..5 {
        assert_eq!(status(&stage, &sign("two")).await, 200, "the issuer is away");
    }
    stage.stop().await;
    let app = everturn_server::App::new(Everturn::open("memory:").unwrap(), config());
    let Err(error) = everturn_server::Server::bind(app).await else { panic!("it starts without keys") };
    assert!(error.text().contains("jwt.jwks_url") && error.text().contains("503"), "{error}");
    issuer.abort();
}
