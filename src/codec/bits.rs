//! 4-bit codes in `u32` words: code `k` of a word in bits `4k..4k+4`, two's complement.
//!
//! Fragment: `shaders/lib/nibble.wgsl`.

/// Codes in one packet word.
pub const CODES_PER_WORD: usize = 8;

/// Code `index` (0..8) of `word`, sign-extended: -8..=7.
#[must_use]
#[inline]
pub const fn unpack_code(word: u32, index: u32) -> i32 {
    (word << (28 - 4 * index)).cast_signed() >> 28
}

/// `code` (only its low four bits count) at place `index` (0..8) of a word that is zero elsewhere.
#[must_use]
#[inline]
pub const fn place_code(code: i32, index: u32) -> u32 {
    (code.cast_unsigned() & 0xF) << (4 * index)
}

/// Eight codes, one per byte with the low four bits counting, first in the lowest byte, into one word.
///
/// The compression is three shift-and-mask steps on one register, so that a loop over it vectorises on every
/// instruction set; gathering nibble by nibble does not.
#[must_use]
#[inline]
pub const fn pack_bytes(bytes: u64) -> u32 {
    let nibbles = bytes & 0x0F0F_0F0F_0F0F_0F0F;
    let pairs = (nibbles | nibbles >> 4) & 0x00FF_00FF_00FF_00FF;
    let fours = (pairs | pairs >> 8) & 0x0000_FFFF_0000_FFFF;
    #[allow(clippy::cast_possible_truncation, reason = "the eight nibbles are in the low 32 bits now")]
    let word = (fours | fours >> 16) as u32;
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_comes_back_from_each_place_and_leaves_the_others_alone() {
        for index in 0..8 {
            for code in -8..=7 {
                let word = place_code(code, index);
                for other in 0..8 {
                    assert_eq!(unpack_code(word, other), if other == index { code } else { 0 });
                    assert_eq!(unpack_code(!word, other), if other == index { !code } else { -1 });
                }
            }
        }
    }

    #[test]
    fn packing_bytes_equals_placing_codes_one_by_one() {
        for start in 0..16_i32 {
            let codes: [i32; 8] =
                std::array::from_fn(|k| (start * 7 + 5 * i32::try_from(k).unwrap_or(0)) % 16 - 8);
            let bytes = u64::from_le_bytes(codes.map(|code| code.to_le_bytes()[0]));
            let word = (0..8).zip(codes).fold(0, |word, (k, code)| word | place_code(code, k));
            assert_eq!(pack_bytes(bytes), word, "codes {codes:?}");
        }
    }
}
