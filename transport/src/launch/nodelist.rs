//! SLURM's short way to write host names: `gpu[03-07,9],login` is gpu03, gpu04, ..., gpu07, gpu9, login.

/// The first host of a SLURM node list; `None` if it is not one. Several brackets in a name are possible:
/// `rack[1-2]node[0-3]` begins with rack1node0.
#[must_use]
pub fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    while let Some(at) = rest.find(['[', ']', ',']) {
        host.push_str(&rest[..at]);
        match &rest[at..=at] {
            "," => return named(host),
            "[" => {
                let (inside, after) = rest[at + 1..].split_once(']')?;
                let first = inside.split([',', '-']).next()?;
                if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
                    return None;
                }
                host.push_str(first);
                rest = after;
            }
            _ => return None,
        }
    }
    host.push_str(rest);
    named(host)
}

fn named(host: String) -> Option<String> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (!host.is_empty() && host.bytes().all(good)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_node_list_keeps_its_leading_zeros() {
        for (list, host) in [
            ("gpu03", "gpu03"),
            ("gpu[03-07,9]", "gpu03"),
            ("gpu[9]", "gpu9"),
            ("a,b[1-2]", "a"),
            ("rack[1-2]node[0-3],x", "rack1node0"),
            ("n[007-012]-ib.example.org,m", "n007-ib.example.org"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
        for list in ["", ",a", "gpu[", "gpu[]", "gpu[a-b]", "gpu]", "gpu 1", "gpu[-3]"] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }
}
