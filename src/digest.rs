//! A number that tells long lists apart.

/// FNV-1a, 64 bits: for mistakes, not against an attacker, who can lie about his gradient anyway.
pub(crate) fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::fnv1a;

    #[test]
    fn the_digest_is_that_of_its_authors_test_vectors() {
        assert_eq!(fnv1a(*b""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(fnv1a(*b"a"), 0xAF63_DC4C_8601_EC8C);
        assert_eq!(fnv1a(*b"foobar"), 0x8594_4171_F739_67E8);
    }
}
