//! Identity files: what keygen writes, and what is refused.

use std::time::Duration;

use gradwire_transport::quic::identity::{Validity, keygen_with};
use gradwire_transport::quic::{Authority, Identity, IdentityError, JoinError, QuicMesh, keygen};
use gradwire_transport::{Rank, World};

use crate::raw::Run;
use crate::support::config;

#[test]
fn keygen_writes_one_identity_per_rank_and_none_is_open_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    keygen(&run, 3).unwrap();
    for rank in 0..3 {
        let path = run.join(format!("rank-{rank}.pem"));
        assert_eq!(Identity::load(&path).unwrap().rank(), Rank(rank));
    }
    #[cfg(unix)]
    for (name, mode) in [("rank-0.pem", 0o600), ("ca-key.pem", 0o600), ("ca.pem", 0o644)] {
        use std::os::unix::fs::PermissionsExt as _;
        let found = std::fs::metadata(run.join(name)).unwrap().permissions().mode() & 0o777;
        // The umask may take away, never add.
        assert_eq!(found & !mode, 0, "{name} has mode {found:04o}");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(&run).unwrap().permissions().mode() & 0o077;
        assert_eq!(mode, 0, "others may enter a folder that keygen made");
    }
    let names: Vec<_> = std::fs::read_dir(&run).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 5, "{names:?}");
}

#[test]
fn keygen_overwrites_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("ca-key.pem");
    std::fs::write(&key, "precious").unwrap();
    let error = keygen(dir.path(), 2).unwrap_err();
    let said = format!(
        "{} already holds identities (ca-key.pem); keygen never overwrites, choose another folder",
        dir.path().display()
    );
    assert_eq!(error.to_string(), said);
    assert_eq!(std::fs::read_to_string(&key).unwrap(), "precious");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "keygen wrote beside it");
}

#[cfg(unix)]
#[test]
fn an_identity_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    keygen(dir.path(), 1).unwrap();
    let path = dir.path().join("rank-0.pem");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    let error = Identity::load(&path).unwrap_err();
    assert!(matches!(error, IdentityError::Exposed { mode: 0o644, .. }), "{error}");
    assert!(error.to_string().contains("0644"), "{error}");
}

#[test]
fn what_an_identity_lacks_is_named() {
    let run = Run::new(2);
    let (whole, other, authority) = (run.pem("rank-0.pem"), run.pem("rank-1.pem"), run.pem("ca.pem"));
    let parts: Vec<_> = whole.split_inclusive("-----END").collect();
    assert_eq!(parts.len(), 4, "certificate, key, CA certificate");
    let section = |pem: &str, label: &str, nth: usize| {
        let begin = format!("-----BEGIN {label}-----");
        let text = pem.split(&begin).nth(nth + 1).unwrap();
        let end = format!("-----END {label}-----\n");
        begin + text.split_inclusive(&end).next().unwrap()
    };
    let certificate = section(&whole, "CERTIFICATE", 0);
    let key = section(&whole, "PRIVATE KEY", 0);
    let say = |pem: String| Identity::from_pem(&pem).unwrap_err().to_string();
    assert!(Identity::from_pem(&(certificate.clone() + &key + &authority)).is_ok());
    assert!(say("not PEM".into()).starts_with("no certificate in"), "{}", say("not PEM".into()));
    assert!(say(certificate.clone() + &key).starts_with("no CA certificate in"));
    assert!(say(certificate.clone() + &authority).starts_with("no private key in"));
    assert!(say(authority.clone() + &authority + &run.pem("ca-key.pem")).starts_with("no rank in"));
    let foreign_key = section(&other, "PRIVATE KEY", 0);
    let mismatch = say(certificate + &foreign_key + &authority);
    assert!(mismatch.contains("KeyMismatch"), "a key of another rank: {mismatch}");
    let missing = Identity::load(std::path::Path::new("no/such/file.pem")).unwrap_err();
    assert!(matches!(missing, IdentityError::File { .. }), "{missing}");
}

#[test]
fn a_file_that_is_no_identity_is_named_and_said_to_be_what_it_is() {
    let run = Run::new(1);
    let say = |path: &std::path::Path| Identity::load(path).unwrap_err().to_string();
    // Open to all, as it may be: that is not what is wrong with it.
    let authority = run.path().join("ca.pem");
    let due = "no private key in the identity (it holds a certificate only: rank-R.pem of keygen is an identity, ca.pem \
               is none)";
    assert_eq!(say(&authority), format!("{}: {due}", authority.display()));
    let path = run.path().join("other");
    std::fs::write(&path, "hello").unwrap();
    assert!(say(&path).starts_with(&format!("{}: no certificate in the identity", path.display())));
    let whole = run.pem("rank-0.pem");
    std::fs::write(&path, &whole[..whole.find("-----END").unwrap()]).unwrap();
    let due = "identity is unusable: it is cut off (a section has no END line)";
    assert_eq!(say(&path), format!("{}: {due}", path.display()));
    std::fs::write(&path, vec![b'x'; 70_000]).unwrap();
    assert_eq!(say(&path), format!("{}: longer than 65536 bytes", path.display()));
    #[cfg(unix)]
    {
        let pipe = run.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [&pipe, std::path::Path::new("/dev/zero")] {
            assert_eq!(say(path), format!("{}: not a regular file", path.display()));
            let peers = gradwire_transport::quic::Peers::load(path, 1).unwrap_err().to_string();
            assert_eq!(peers, format!("{}: not a regular file", path.display()));
        }
    }
}

#[test]
fn an_identity_is_written_for_its_owner_only_and_over_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rank-1.pem");
    let identity = Authority::new("test").unwrap().issue(1, 2).unwrap();
    identity.write(&path).unwrap();
    // Loading it checks its mode.
    assert_eq!(Identity::load(&path).unwrap().rank(), Rank(1));
    assert!(matches!(identity.write(&path), Err(IdentityError::File { .. })));
}

#[test]
fn an_identity_of_another_rank_or_out_of_date_cannot_bind() {
    let authority = Authority::new("test").unwrap();
    let mut other = config(&authority, 0, 2, "unused:1");
    other.world = World::new(1, 2, 0).unwrap();
    let error = QuicMesh::bind(other).err().unwrap();
    assert_eq!(error.to_string(), "identity is of rank 0, this node is rank 1");

    let dir = tempfile::tempdir().unwrap();
    let validity = Validity { backdate: Duration::from_secs(60), lifetime: Duration::ZERO };
    keygen_with(dir.path(), 1, validity).unwrap();
    let mut expired = config(&authority, 0, 1, "unused:1");
    expired.identity = Identity::load(&dir.path().join("rank-0.pem")).unwrap();
    // "Until now" has a resolution of a second.
    std::thread::sleep(Duration::from_millis(1100));
    let error = QuicMesh::bind(expired).err().unwrap();
    assert!(matches!(error, JoinError::Identity(IdentityError::Unusable { .. })), "{error}");
    assert!(error.to_string().to_lowercase().contains("expired"), "{error}");
}
