//! Codes of 2, 4 or 8 bits in words, element `i` in bits `bits * i..`.

use super::Bits;
use crate::codec::bits::{pack_bytes, unpack_code};

/// As many codes as `words` have room for, `bits` each.
pub(super) fn pack(bits: Bits, codes: &[i8], words: &mut [u32]) {
    match bits {
        Bits::Two => {
            for (word, codes) in words.iter_mut().zip(codes.as_chunks::<16>().0) {
                *word = (0..)
                    .zip(codes)
                    .fold(0, |word, (k, code)| word | (i32::from(*code) & 3).cast_unsigned() << (2 * k));
            }
        }
        Bits::Four => {
            for (word, codes) in words.iter_mut().zip(codes.as_chunks::<8>().0) {
                *word = pack_bytes(u64::from_le_bytes(codes.map(i8::cast_unsigned)));
            }
        }
        Bits::Eight => {
            for (word, codes) in words.iter_mut().zip(codes.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(codes.map(i8::cast_unsigned));
            }
        }
    }
}

/// The codes of `words`, sign extended.
pub(super) fn unpack(bits: Bits, words: &[u32], codes: &mut [i8]) {
    #[allow(clippy::cast_possible_truncation, reason = "a code has 8 bits at most")]
    match bits {
        Bits::Two => {
            for (word, codes) in words.iter().zip(codes.as_chunks_mut::<16>().0) {
                for (k, code) in (0..).zip(codes) {
                    *code = ((word << (30 - 2 * k)).cast_signed() >> 30) as i8;
                }
            }
        }
        Bits::Four => {
            for (word, codes) in words.iter().zip(codes.as_chunks_mut::<8>().0) {
                for (k, code) in (0..).zip(codes) {
                    *code = unpack_code(*word, k) as i8;
                }
            }
        }
        Bits::Eight => {
            for (word, codes) in words.iter().zip(codes.as_chunks_mut::<4>().0) {
                *codes = word.to_le_bytes().map(u8::cast_signed);
            }
        }
    }
}
