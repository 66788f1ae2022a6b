//! Counts on the command line: `64Mi`, `16M`, `1000`.

/// A whole number of at least 1 with an optional unit: k, M, G are powers of 1000, Ki, Mi, Gi of 1024.
pub(crate) fn parse(text: &str) -> Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: usize = match unit {
        "" => 1,
        "k" | "K" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return Err(format!("unit {unit:?} is none of k, M, G, Ki, Mi, Gi")),
    };
    let number: usize = number.parse().map_err(|_| "not a whole number".to_owned())?;
    match number.checked_mul(factor) {
        Some(0) => Err("must be at least 1".to_owned()),
        Some(count) => Ok(count),
        None => Err(format!("must be at most {}", usize::MAX)),
    }
}

/// As [`parse`], with or without a B for bytes at the end: `64MiB`, `16MB`, `64Mi`.
pub(crate) fn parse_bytes(text: &str) -> Result<usize, String> {
    parse(text.strip_suffix('B').unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_a_number_with_an_optional_unit() {
        for (text, count) in [
            ("1", 1),
            ("1000", 1000),
            ("16M", 16_000_000),
            ("64Mi", 64 << 20),
            ("3Ki", 3072),
            ("2k", 2000),
            ("2K", 2000),
            ("1Gi", 1 << 30),
        ] {
            assert_eq!(parse(text), Ok(count), "{text}");
        }
        for (text, bytes) in [("64MiB", 64 << 20), ("1kB", 1000), ("7B", 7), ("7", 7), ("2Gi", 2 << 30)] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["B", "1BB", "1mB", "0MiB", "1Mbit"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        for text in [
            "",
            "0",
            "0Mi",
            "-1",
            "1.5M",
            "Mi",
            "1 M",
            "1mi",
            "64MiB",
            "99999999999999999999",
            "99999999999Gi",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
