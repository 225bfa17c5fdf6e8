//! Ed25519 keys: the key that signs releases, and the pinned keys that a client trusts.

use std::path::Path;

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};

use crate::digest::{Digest, hex, unhex};
use crate::error::FleetError;

/// The private key that signs releases.
#[derive(Debug)]
pub struct SigningKey(Ed25519KeyPair);

/// The public keys whose releases a client accepts.
#[derive(Clone, Debug)]
pub struct TrustedKeys(Vec<[u8; 32]>);

/// A statement signed by a pinned key.
pub(crate) struct Verified<'s>(&'s [u8]);

impl Verified<'_> {
    pub(crate) const fn statement(&self) -> &[u8] {
        self.0
    }
}

impl SigningKey {
    /// Reads a private key, which `openssl genpkey -algorithm ed25519` writes.
    ///
    /// # Errors
    ///
    /// [`FleetError::Key`].
    pub fn read(path: &Path) -> Result<Self, FleetError> {
        Self::from_pem(&text(path)?).map_err(|reason| key_error(path, reason))
    }

    /// As [`Self::read`], from PEM text.
    ///
    /// # Errors
    ///
    /// The fault.
    pub fn from_pem(pem: &[u8]) -> Result<Self, String> {
        let private = PrivatePkcs8KeyDer::from_pem_slice(pem).ok();
        let key = private.and_then(|der| {
            // Version 1, which OpenSSL writes, lacks the public key.
            Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der()).ok()
        });
        key.map(Self).ok_or_else(|| {
            "no ed25519 private key in PEM: make one with `openssl genpkey -algorithm ed25519`"
                .to_owned()
        })
    }

    /// The public key, as the only trusted one.
    pub fn trusted(&self) -> TrustedKeys {
        // A public key of ed25519 has 32 bytes.
        TrustedKeys(self.0.public_key().as_ref().try_into().into_iter().collect())
    }

    /// The signature of a statement, as text for a manifest: the key's identifier, a colon and the signature.
    pub(crate) fn sign(&self, statement: &[u8]) -> String {
        let signature = self.0.sign(&signed_bytes(statement));
        format!("{}:{}", key_id(self.0.public_key().as_ref()), hex(signature.as_ref()))
    }
}

impl TrustedKeys {
    /// Reads public keys: blocks of PEM, as `openssl pkey -pubout` writes them. Other lines are comments.
    ///
    /// # Errors
    ///
    /// [`FleetError::Key`].
    pub fn read(path: &Path) -> Result<Self, FleetError> {
        Self::from_pem(&text(path)?).map_err(|reason| key_error(path, reason))
    }

    /// As [`Self::read`], from PEM text.
    ///
    /// # Errors
    ///
    /// The fault.
    pub fn from_pem(pem: &[u8]) -> Result<Self, String> {
        let mut keys = Vec::new();
        for der in SubjectPublicKeyInfoDer::pem_slice_iter(pem) {
            let der = der.map_err(|error| format!("a key is not PEM: {error}"))?;
            let key =
                der.as_ref().strip_prefix(&ED25519_HEADER).and_then(|key| key.try_into().ok());
            keys.push(
                key.ok_or("a public key is not ed25519: make one with openssl pkey -pubout")?,
            );
        }
        if keys.is_empty() {
            return Err("no public key in PEM: write one with `openssl pkey -pubout`".to_owned());
        }
        Ok(Self(keys))
    }

    /// Tells lists of keys apart.
    pub(crate) fn digest(&self) -> Digest {
        Digest::of(self.0.as_flattened())
    }

    /// These keys and others.
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// The statement, if one of the signatures is of a trusted key.
    pub(crate) fn verify<'s>(
        &self,
        statement: &'s [u8],
        signatures: &str,
    ) -> Result<Verified<'s>, FleetError> {
        let signed = signed_bytes(statement);
        let is_valid = |signature: &str| {
            let (id, signature) = signature.split_once(':')?;
            let signature = unhex::<64>(signature)?;
            let key = self.0.iter().find(|key| key_id(*key) == id)?;
            UnparsedPublicKey::new(&ED25519, key).verify(&signed, &signature).ok()
        };
        let mut all = signatures.split_whitespace().take(MAX_SIGNATURES);
        if all.any(|signature| is_valid(signature).is_some()) {
            return Ok(Verified(statement));
        }
        let ids = signatures
            .split_whitespace()
            .take(MAX_SIGNATURES)
            .filter_map(|one| one.split(':').next());
        let printable =
            |id: &str| id.chars().filter(char::is_ascii_hexdigit).take(16).collect::<String>();
        let signers = ids.map(|id| format!("key {}", printable(id))).collect::<Vec<_>>().join(", ");
        let signers = if signers.is_empty() { "no key".to_owned() } else { signers };
        Err(FleetError::Untrusted { signers })
    }
}

/// Identifies a public key: the first 16 digits of its SHA-256.
fn key_id(key: &[u8]) -> String {
    let mut digits = Digest::of(key).hex();
    digits.truncate(16);
    digits
}

/// The prefix keeps a signature from being valid for another kind of document.
fn signed_bytes(statement: &[u8]) -> Vec<u8> {
    [PREFIX, statement].concat()
}

fn text(path: &Path) -> Result<Vec<u8>, FleetError> {
    match gridguard_files::read(path, MAX_KEY_BYTES) {
        Ok(Some(text)) => Ok(text),
        Ok(None) => Err(key_error(path, "no such file".to_owned())),
        Err(error) => Err(key_error(path, error.to_string())),
    }
}

fn key_error(path: &Path, reason: String) -> FleetError {
    FleetError::Key { path: path.to_owned(), reason }
}

const PREFIX: &[u8] = b"gridguard release v1\n";
/// `SubjectPublicKeyInfo` of an ed25519 key (RFC 8410), without the key.
const ED25519_HEADER: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const MAX_KEY_BYTES: u64 = 64 << 10;
/// Bounds the work for an untrusted manifest.
const MAX_SIGNATURES: usize = 8;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Keys that `openssl genpkey -algorithm ed25519` and `openssl pkey -pubout` have written.
    pub(crate) const PRIVATE: &str = include_str!("../tests/keys/signer.pem");
    pub(crate) const PUBLIC: &str = include_str!("../tests/keys/signer.pub.pem");
    const OTHER: &str = include_str!("../tests/keys/other.pem");

    #[test]
    fn a_signature_is_valid_for_its_statement_and_key_only() {
        let (key, other) =
            (SigningKey::from_pem(PRIVATE.as_bytes()), SigningKey::from_pem(OTHER.as_bytes()));
        let (key, other) = (key.expect("a key"), other.expect("a key"));
        let trusted = TrustedKeys::from_pem(PUBLIC.as_bytes()).expect("a key");
        let signature = key.sign(b"text");
        assert!(trusted.verify(b"text", &signature).is_ok());
        let both = format!("{} {signature}", other.sign(b"text"));
        assert!(trusted.verify(b"text", &both).is_ok(), "one valid signature is enough");
        assert!(other.trusted().and(trusted.clone()).verify(b"text", &signature).is_ok());
        let mut many = format!("{} ", other.sign(b"text")).repeat(MAX_SIGNATURES);
        many += &signature;
        let cut = &signature[..signature.len() - 1];
        for wrong in [&other.sign(b"text"), &key.sign(b"texu"), "", ":", cut, &many, "\u{202e}:x"] {
            let refused = trusted.verify(b"text", wrong).err().expect("no valid signature");
            assert!(matches!(refused, FleetError::Untrusted { .. }), "{refused}");
        }
        let raw = key.0.sign(b"text");
        let unprefixed = format!("{}:{}", key_id(key.0.public_key().as_ref()), hex(raw.as_ref()));
        assert!(
            trusted.verify(b"text", &unprefixed).is_err(),
            "a signature of another kind of document"
        );
    }

    #[test]
    fn other_files_are_no_keys() {
        let rsa_like = PUBLIC.replace("MCow", "MCox");
        for wrong in ["", "text", PRIVATE, &rsa_like, &PUBLIC[..60]] {
            assert!(TrustedKeys::from_pem(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(SigningKey::from_pem(PUBLIC.as_bytes()).is_err());
        let two = format!("# ours\n{PUBLIC}# theirs\n{PUBLIC}");
        assert_eq!(TrustedKeys::from_pem(two.as_bytes()).expect("keys").0.len(), 2);
    }
}
