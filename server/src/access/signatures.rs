//! Signatures of tokens, checked by `ring`, which is here anyway: `jsonwebtoken` without a library for them of its own.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result, new_error};
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::hmac;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};

/// Makes `jsonwebtoken` use these signatures. To be called before a token is checked; again is no error.
pub fn install() {
    static PROVIDER: CryptoProvider = CryptoProvider {
        // Nothing is signed here.
        signer_factory: |_, _| Err(new_error(ErrorKind::UnsupportedAlgorithm)),
        verifier_factory: verifier,
        key_utils: KeyUtils::new_unimplemented(),
    };
    // It fails if this, or the program around us, has installed one.
    let _ = PROVIDER.install_default();
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if key.family() != algorithm.family() {
        return Err(new_error(ErrorKind::InvalidKeyFormat));
    }
    Ok(match algorithm {
        Algorithm::HS256 => Box::new(Hs256(hmac::Key::new(hmac::HMAC_SHA256, key.try_get_as_bytes()?))),
        Algorithm::RS256 => match key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                Box::new(Rs256(RsaPublicKeyComponents { n: number(n), e: number(e) }))
            }
            DecodingKeyKind::SecretOrDer(_) => return Err(new_error(ErrorKind::InvalidKeyFormat)),
        },
        Algorithm::ES256 => {
            let point = key.try_get_as_bytes()?.to_vec();
            Box::new(Es256(UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)))
        }
        _ => return Err(new_error(ErrorKind::UnsupportedAlgorithm)),
    })
}

/// A number without leading zeros, which some issuers write and `ring` refuses.
fn number(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().copied().skip_while(|byte| *byte == 0).collect()
}

struct Hs256(hmac::Key);

/// Keys of 2048 bits or more, as the standard asks for.
struct Rs256(RsaPublicKeyComponents<Vec<u8>>);

struct Es256(UnparsedPublicKey<Vec<u8>>);

impl Verifier<Vec<u8>> for Hs256 {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        hmac::verify(&self.0, message, signature).map_err(|_| Error::new())
    }
}

impl Verifier<Vec<u8>> for Rs256 {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        self.0.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature).map_err(|_| Error::new())
    }
}

impl Verifier<Vec<u8>> for Es256 {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        self.0.verify(message, signature).map_err(|_| Error::new())
    }
}

impl JwtVerifier for Hs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

impl JwtVerifier for Rs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::RS256
    }
}

impl JwtVerifier for Es256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::ES256
    }
}
