//! What an address of a rank looks like: `host:port`, or `[IPv6]:port`.

use std::net::SocketAddrV6;

/// An address that cannot be one, whatever names resolve to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no address: {reason}, host:port or [IPv6]:port is expected")]
pub struct AddressError {
    /// What was given.
    pub text: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// The host (an IPv6 address in its brackets) and the port of `text`. No name is looked up.
///
/// # Errors
///
/// If there is no host, an IPv6 address without brackets, or no port from 1 to 65535.
pub fn check(text: &str) -> Result<(&str, u16), AddressError> {
    match split(text)? {
        (_, 0) => Err(error(text, "its port is 0")),
        found => Ok(found),
    }
}

/// [`check`], for an address whose port the system may choose: 0 is a port as well.
pub(crate) fn split(text: &str) -> Result<(&str, u16), AddressError> {
    let no = |reason| Err(error(text, reason));
    let Some((host, port)) = text.rsplit_once(':') else { return no("it has no port") };
    if host.is_empty() {
        return no("it has no host");
    }
    if host.starts_with('[') {
        if text.parse::<SocketAddrV6>().is_err() {
            return no("no IPv6 address and port stand in and after the brackets");
        }
    } else if host.contains(':') {
        return no("it has more than one colon outside brackets");
    } else if host.chars().any(|c| c.is_whitespace() || c.is_control() || "/@[]".contains(c)) {
        return no("its host has a character that no name has");
    }
    // Rust reads "+7" as a number too.
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse::<u16>() {
        Ok(port) if digits => Ok((host, port)),
        _ => no("its port is no number from 1 to 65535"),
    }
}

fn error(text: &str, reason: &'static str) -> AddressError {
    // An error is one line, whatever was given.
    AddressError { text: text.chars().take(256).collect(), reason }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn names_and_addresses_with_a_port_are_addresses() {
        for (text, found) in [
            ("node-a.example:7000", ("node-a.example", 7000)),
            ("127.0.0.1:65535", ("127.0.0.1", 65535)),
            ("[::1]:1", ("[::1]", 1)),
            ("a_b:29400", ("a_b", 29400)),
        ] {
            assert_eq!(check(text), Ok(found));
        }
        assert_eq!(split("127.0.0.1:0"), Ok(("127.0.0.1", 0)));
    }

    #[test]
    fn what_is_no_address_is_named_with_the_reason() {
        for text in [
            "",
            "garbage",
            "127.0.0.1",
            "127.0.0.1:99999",
            "127.0.0.1:",
            "a:+7",
            "a:-1",
            ":7",
            "::1:7",
            "[::1]",
            "[a]:7",
            "[]:7",
            "http://a:7",
            "a b:7",
            "a/b:7",
            "a:0",
            "[::1]:0",
        ] {
            let said = check(text).unwrap_err().to_string();
            assert!(said.starts_with(&format!("{text:?} is no address: ")), "{said}");
        }
        assert!(check(&"x".repeat(1_000_000)).unwrap_err().to_string().len() < 400);
    }
}
