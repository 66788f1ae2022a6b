//! Codes of 1, 2, 4 or 8 bits in `u32` words: code `k` of a word in bits `W * k..W * (k + 1)`, two's complement.
//!
//! The width `W` is a const argument. [`pack`] and [`unpack`] work on slices with one code to a byte; the nibble has a
//! faster way of its own, [`pack_bytes`], which it takes by itself. Fragments: `shaders/lib/nibble.wgsl` for
//! 4 bits, `shaders/lib/bits.wgsl` for any width.

/// 4-bit codes in one packet word.
pub const CODES_PER_WORD: usize = 8;

/// Codes of `W` bits in one word.
///
/// # Panics
///
/// While compiling, for a width that is not 1, 2, 4 or 8.
#[must_use]
pub const fn codes_per_word<const W: u32>() -> usize {
    const { assert!(W == 1 || W == 2 || W == 4 || W == 8, "codes have 1, 2, 4 or 8 bits") };
    (32 / W) as usize
}

/// Code `index` (0..8) of `word`, sign-extended: -8..=7.
#[must_use]
#[inline]
pub const fn unpack_code(word: u32, index: u32) -> i32 {
    signed::<4>(word, index)
}

/// `code` (only its low four bits count) at place `index` (0..8) of a word that is zero elsewhere.
#[must_use]
#[inline]
pub const fn place_code(code: i32, index: u32) -> u32 {
    place::<4>(code, index)
}

/// Code `index` (0..32/W) of `word`, sign-extended: for 2 bits -2..=1, for 1 bit -1 or 0.
#[must_use]
#[inline]
pub const fn signed<const W: u32>(word: u32, index: u32) -> i32 {
    (word << (32 - W - W * index)).cast_signed() >> (32 - W)
}

/// Code `index` (0..32/W) of `word` as it stands: for 2 bits 0..=3.
#[must_use]
#[inline]
pub const fn unsigned<const W: u32>(word: u32, index: u32) -> u32 {
    word << (32 - W - W * index) >> (32 - W)
}

/// `code` (only its low `W` bits count) at place `index` (0..32/W) of a word that is zero elsewhere.
#[must_use]
#[inline]
pub const fn place<const W: u32>(code: i32, index: u32) -> u32 {
    (code.cast_unsigned() & (u32::MAX >> (32 - W))) << (W * index)
}

/// Packs one code per byte (the low `W` bits of each count) into `codes.len().div_ceil(32 / W)` words, the last one
/// zero-filled.
///
/// # Panics
///
/// If `words` has another length.
#[inline]
pub fn pack<const W: u32>(codes: &[u8], words: &mut [u32]) {
    let per_word = codes_per_word::<W>();
    check(words.len(), codes.len(), per_word);
    for (word, codes) in words.iter_mut().zip(codes.chunks(per_word)) {
        *word = match (W, codes.first_chunk::<8>(), codes.first_chunk::<4>()) {
            (4, Some(eight), _) => pack_bytes(u64::from_le_bytes(*eight)),
            (8, _, Some(four)) => u32::from_le_bytes(*four),
            _ => (0..).zip(codes).fold(0, |word, (index, code)| word | place::<W>(i32::from(*code), index)),
        };
    }
}

/// Unpacks `codes.len()` sign-extended codes; unused bits of the last word are not looked at.
///
/// # Panics
///
/// If `words` does not have `codes.len().div_ceil(32 / W)` words.
#[inline]
pub fn unpack<const W: u32>(words: &[u32], codes: &mut [i8]) {
    let per_word = codes_per_word::<W>();
    check(words.len(), codes.len(), per_word);
    for (word, codes) in words.iter().zip(codes.chunks_mut(per_word)) {
        for (index, code) in (0..).zip(codes) {
            #[allow(clippy::cast_possible_truncation, reason = "at most 8 bits, sign-extended")]
            let signed = signed::<W>(*word, index) as i8;
            *code = signed;
        }
    }
}

/// Panics with both numbers if `words` is not what so many codes need.
#[inline]
fn check(words: usize, codes: usize, per_word: usize) {
    let expected = codes.div_ceil(per_word);
    assert_eq!(words, expected, "{words} words for {codes} codes, which need {expected}");
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

    fn every_code_in_every_place<const W: u32>() {
        let places = u32::try_from(codes_per_word::<W>()).unwrap_or(0);
        assert_eq!(places * W, 32);
        for index in 0..places {
            for code in -(1 << (W - 1))..1 << (W - 1) {
                let word = place::<W>(code, index);
                for other in 0..places {
                    let (here, there) = if other == index { (code, !code) } else { (0, -1) };
                    assert_eq!(signed::<W>(word, other), here, "{W} bits");
                    assert_eq!(signed::<W>(!word, other), there, "{W} bits");
                    assert_eq!(unsigned::<W>(word, other), here.cast_unsigned() & ((1 << W) - 1), "{W} bits");
                }
            }
        }
    }

    fn slices_of_any_length<const W: u32>() {
        for length in 0..70_u8 {
            let codes: Vec<u8> = (0..length).map(|k| k.wrapping_mul(37).wrapping_add(11)).collect();
            let mut words = vec![u32::MAX; codes.len().div_ceil(codes_per_word::<W>())];
            pack::<W>(&codes, &mut words);
            let mut bits = words.iter().flat_map(|word| (0..32).map(move |k| word >> k & 1));
            for code in &codes {
                for k in 0..W {
                    assert_eq!(bits.next(), Some(u32::from(*code) >> k & 1), "{W} bits, {length} codes");
                }
            }
            assert!(bits.all(|bit| bit == 0), "{W} bits: what is behind the last of {length} codes is 0");
            let mut back = vec![99; codes.len()];
            unpack::<W>(&words, &mut back);
            for (got, code) in back.iter().zip(&codes) {
                let want = (code << (8 - W)).cast_signed() >> (8 - W);
                assert_eq!(*got, want, "{W} bits, {length} codes");
            }
        }
    }

    #[test]
    fn every_width_places_reads_packs_and_unpacks() {
        every_code_in_every_place::<1>();
        every_code_in_every_place::<2>();
        every_code_in_every_place::<4>();
        every_code_in_every_place::<8>();
        slices_of_any_length::<1>();
        slices_of_any_length::<2>();
        slices_of_any_length::<4>();
        slices_of_any_length::<8>();
    }

    #[test]
    #[should_panic(expected = "2 words for 65 codes, which need 3")]
    fn words_that_do_not_fit_the_codes_panic_with_both_numbers() {
        pack::<1>(&[0; 65], &mut [0; 2]);
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
