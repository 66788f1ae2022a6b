//! Who belongs to a run: its certificate authority, and one certificate and key per rank.
//!
//! The run is its CA: nodes trust this CA and no other. The rank is the DNS name `rank-R.gradwire` (R decimal,
//! [`rank_name`]) in the certificate, so that TLS itself checks that the rank that was dialed answers, and the
//! hello's claimed rank can be held against the certificate.
//!
//! [`keygen`] writes `ca.pem`, `ca-key.pem` (needed only to issue more, never at run time) and one `rank-R.pem`
//! per rank: certificate, private key and CA certificate in one file of mode 0600.

mod error;
mod write;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::sign::CertifiedKey;
use time::OffsetDateTime;

pub use error::IdentityError;

use super::tls::provider;
use crate::file;
use crate::world::{Rank, World};
use error::KEY;

/// The largest identity file that is read, 64 KiB; real ones have about 1.7 KiB.
pub const MAX_IDENTITY_BYTES: u64 = 64 * 1024;

/// How long certificates are valid. Default: from a day ago, so that clocks may differ, for 366 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// How long before now it begins.
    pub backdate: Duration,
    /// How long after now it ends.
    pub lifetime: Duration,
}

impl Default for Validity {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        Self { backdate: DAY, lifetime: 366 * DAY }
    }
}

/// The certificate authority of one run. Whoever holds it can add members.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    run: String,
    validity: Validity,
}

/// One rank's certificate, its private key, and the CA certificate of its run.
#[derive(Clone)]
pub struct Identity {
    rank: Rank,
    certificate: CertificateDer<'static>,
    // PKCS #8, SEC 1 or PKCS #1 as DER.
    key: Arc<PrivateKeyDer<'static>>,
    authority: CertificateDer<'static>,
    // What it was read from.
    pem: Arc<str>,
}

/// The DNS name that binds a rank to its certificate.
#[must_use]
pub fn rank_name(rank: Rank) -> String {
    format!("rank-{rank}.gradwire")
}

/// Writes a new run's authority and `world_size` identities into `dir`, which is created (mode 0700) if missing. All
/// or nothing: what was written is removed if a later file can't be.
///
/// # Errors
///
/// If `world_size` is not in 1..=[`crate::world::MAX_WORLD_SIZE`], one of the files exists already
/// ([`IdentityError::Existing`], before anything is written), or cannot be written.
pub fn keygen(dir: &Path, world_size: u32) -> Result<(), IdentityError> {
    keygen_with(dir, world_size, Validity::default())
}

/// [`keygen`] with another validity.
///
/// # Errors
///
/// As [`keygen`].
pub fn keygen_with(dir: &Path, world_size: u32, validity: Validity) -> Result<(), IdentityError> {
    World::new(0, world_size, 0)?;
    let rank_file = |rank| format!("rank-{rank}.pem");
    let names = ["ca.pem", "ca-key.pem"].map(str::to_owned).into_iter().chain((0..world_size).map(rank_file));
    write::check_new(dir, names)?;
    let run = dir.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned());
    let authority = Authority::with_validity(&run, validity)?;
    let common = [
        Ok(("ca.pem".to_owned(), authority.issuer.pem(), 0o644)),
        Ok(("ca-key.pem".to_owned(), authority.issuer.key().serialize_pem(), 0o600)),
    ];
    let identity = |rank| Ok((rank_file(rank), authority.issue_pem(rank, world_size)?, 0o600));
    write::all_or_nothing(dir, common.into_iter().chain((0..world_size).map(identity)))
}

impl Authority {
    /// A new authority with a fresh key (ECDSA P-256). `run` names it for humans and does not identify it.
    ///
    /// # Errors
    ///
    /// If the system has no randomness.
    pub fn new(run: &str) -> Result<Self, IdentityError> {
        Self::with_validity(run, Validity::default())
    }

    /// [`Authority::new`] with another validity, for the authority and what it issues.
    ///
    /// # Errors
    ///
    /// As [`Authority::new`]; besides, if the validity ends beyond year 9999.
    pub fn with_validity(run: &str, validity: Validity) -> Result<Self, IdentityError> {
        let key = KeyPair::generate().map_err(unusable)?;
        let mut params = parameters(&format!("gradwire run {run}"), validity)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = CertifiedIssuer::self_signed(params, key).map_err(unusable)?;
        Ok(Self { issuer, run: run.to_owned(), validity })
    }

    /// The identity of `rank` in a world of `world_size`, with a fresh key.
    ///
    /// # Errors
    ///
    /// If the rank cannot exist.
    pub fn issue(&self, rank: u32, world_size: u32) -> Result<Identity, IdentityError> {
        Identity::from_pem(&self.issue_pem(rank, world_size)?)
    }

    /// [`Authority::issue`] as PEM text, for a process that can be told it without a file.
    ///
    /// # Errors
    ///
    /// As [`Authority::issue`].
    pub fn issue_pem(&self, rank: u32, world_size: u32) -> Result<String, IdentityError> {
        let rank = World::new(rank, world_size, 0)?.rank();
        let key = KeyPair::generate().map_err(unusable)?;
        let mut params = parameters(&format!("gradwire run {} rank {rank}", self.run), self.validity)?;
        let name = rank_name(rank).try_into().map_err(unusable)?;
        params.subject_alt_names = vec![rcgen::SanType::DnsName(name)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer).map_err(unusable)?;
        Ok([certificate.pem(), key.serialize_pem(), self.issuer.pem()].concat())
    }
}

impl Identity {
    /// Reads an identity file.
    ///
    /// # Errors
    ///
    /// If it is missing, no regular file, or too long, has no private key, is open to others (on Unix; see
    /// [`IdentityError::Exposed`]), or as [`Identity::from_pem`].
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        let at = |source| IdentityError::File { path: path.to_owned(), source };
        let opened = file::open(path).map_err(at)?;
        let text = file::read_text(&opened, MAX_IDENTITY_BYTES).map_err(at)?;
        let inside = |error| IdentityError::In { path: path.to_owned(), error: Box::new(error) };
        // First what it is: a certificate may be open to everyone, but is no identity.
        let sections = Sections::read(&text).map_err(inside)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = opened.metadata().map_err(at)?.permissions().mode() & 0o777;
            if mode & 0o077 != 0 {
                return Err(IdentityError::Exposed { path: path.to_owned(), mode });
            }
        }
        Self::from_sections(sections, &text).map_err(inside)
    }

    /// Reads an identity: certificate, then CA certificate, and the private key anywhere.
    ///
    /// # Errors
    ///
    /// If one of the three is missing or unreadable, the key does not fit the certificate, or the certificate
    /// names no rank. Expiry is checked when the identity is used.
    pub fn from_pem(pem: &str) -> Result<Self, IdentityError> {
        Self::from_sections(Sections::read(pem)?, pem)
    }

    fn from_sections(sections: Sections, pem: &str) -> Result<Self, IdentityError> {
        let Sections { certificate, authority, key } = sections;
        CertifiedKey::from_der(vec![certificate.clone()], key.clone_key(), &provider()).map_err(unusable)?;
        let rank =
            certified_rank(&certificate).ok_or(IdentityError::Missing { what: "rank in the certificate" })?;
        Ok(Self { rank, certificate, key: Arc::new(key), authority, pem: pem.into() })
    }

    /// Writes the text that this identity was read from, as [`Identity::load`] reads it, to a new file of mode 0600.
    /// With [`Authority::issue`], a run whose authority's key is never written:
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use gradwire_transport::quic::{Authority, Identity};
    /// # let dir = tempfile::tempdir()?;
    /// let authority = Authority::new("short run")?;
    /// let path = dir.path().join("rank-1.pem");
    /// authority.issue(1, 4)?.write(&path)?;
    /// assert_eq!(Identity::load(&path)?.rank().0, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If it exists already or cannot be written; then nothing is left of it.
    pub fn write(&self, path: &Path) -> Result<(), IdentityError> {
        write::new_file(path, &self.pem, 0o600)
    }

    /// The rank that the certificate is for.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    pub(super) fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }

    pub(super) fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }

    pub(super) fn authority(&self) -> CertificateDer<'static> {
        self.authority.clone()
    }

    /// Whether the certificate is this CA's and valid now: a peer would only say "bad certificate".
    pub(super) fn check(&self) -> Result<(), IdentityError> {
        let anchor = webpki::anchor_from_trusted_cert(&self.authority).map_err(unusable)?;
        let leaf = webpki::EndEntityCert::try_from(&self.certificate).map_err(unusable)?;
        leaf.verify_for_usage(
            provider().signature_verification_algorithms.all,
            &[anchor],
            &[],
            UnixTime::now(),
            webpki::KeyUsage::client_auth(),
            None,
            None,
        )
        .map_err(unusable)?;
        Ok(())
    }
}

/// The rank that a certificate names, if it names one.
pub(super) fn certified_rank(certificate: &CertificateDer<'_>) -> Option<Rank> {
    let leaf = webpki::EndEntityCert::try_from(certificate).ok()?;
    leaf.valid_dns_names().find_map(|name| {
        let rank = Rank(name.strip_prefix("rank-")?.strip_suffix(".gradwire")?.parse().ok()?);
        // The name must be the one way to write it: "rank-01" or "rank-+1" is no rank.
        (rank_name(rank) == name).then_some(rank)
    })
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("run", &self.run).finish_non_exhaustive()
    }
}

fn parameters(name: &str, validity: Validity) -> Result<CertificateParams, IdentityError> {
    let now = OffsetDateTime::now_utc();
    let range = || {
        let backdate = time::Duration::try_from(validity.backdate).ok()?;
        let lifetime = time::Duration::try_from(validity.lifetime).ok()?;
        Some((now.checked_sub(backdate)?, now.checked_add(lifetime)?))
    };
    let (not_before, not_after) =
        range().ok_or_else(|| unusable("validity is outside the years 0 to 9999"))?;
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = not_before;
    params.not_after = not_after;
    Ok(params)
}

/// The three parts of an identity, as they stand in its file.
struct Sections {
    certificate: CertificateDer<'static>,
    authority: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Sections {
    fn read(pem: &str) -> Result<Self, IdentityError> {
        let pem = pem.as_bytes();
        let missing = |what| move || IdentityError::Missing { what };
        let mut certificates = CertificateDer::pem_slice_iter(pem);
        let mut next = || certificates.next().transpose().map_err(malformed);
        let certificate = next()?.ok_or_else(missing("certificate"))?;
        let key = PrivateKeyDer::pem_slice_iter(pem).next().transpose().map_err(malformed)?;
        let key = key.ok_or_else(missing(KEY))?;
        let authority = next()?.ok_or_else(missing("CA certificate"))?;
        Ok(Self { certificate, authority, key })
    }
}

/// The parser's own words have the text's lines in them as numbers.
fn malformed(error: pem::Error) -> IdentityError {
    match error {
        pem::Error::MissingSectionEnd { .. } => unusable("it is cut off (a section has no END line)"),
        pem::Error::IllegalSectionStart { .. } => unusable("a BEGIN line is malformed"),
        pem::Error::Base64Decode(_) => unusable("a section is not base64"),
        other => unusable(other),
    }
}

fn unusable(reason: impl fmt::Display) -> IdentityError {
    IdentityError::Unusable { reason: reason.to_string() }
}
