//! Packets that are much larger than the others, scaled down before they are averaged.
//!
//! In integers, on levels alone: a clipped packet is the same packet with other levels, so that whatever averages
//! packets needs to know nothing of it.

use std::borrow::Cow;

use super::layout::{chunks, levels};
use super::level::{scale_level, units};
use super::{Clip, Config};

/// The packets to average in place of `packets`, which have been checked.
///
/// With [`Clip::MedianNorm`], the median is over the packets that have a weight and are not all zero, the upper one of
/// an even number: of two, nobody can say which is wrong. A packet whose squared norm `s` is above the median `m` gets
/// its levels multiplied by `floor(2^16 * sqrt(m / s)) / 2^16` and rounded to f16, where `s` and `m` keep their upper
/// 96 bits.
#[must_use]
pub fn clip<'a>(
    config: &Config,
    packets: &[&'a [u32]],
    weights: &[u32],
    elements: usize,
) -> Vec<Cow<'a, [u32]>> {
    if config.clip == Clip::Off {
        return packets.iter().map(|packet| Cow::Borrowed(*packet)).collect();
    }
    let used = packets.iter().zip(weights).map(|(packet, weight)| (*weight > 0).then_some(packet));
    let norms: Vec<u128> =
        used.map(|packet| packet.map_or(0, |packet| squared_norm(config, packet, elements))).collect();
    let mut sorted: Vec<u128> = norms.iter().copied().filter(|norm| *norm > 0).collect();
    sorted.sort_unstable();
    let median = sorted.get(sorted.len() / 2).copied().unwrap_or(0);
    let scaled = packets.iter().zip(norms).map(|(packet, norm)| {
        if norm <= median {
            return Cow::Borrowed(*packet);
        }
        let mut packet = packet.to_vec();
        let factor = factor(median, norm);
        for (_, words, _) in chunks(config, elements) {
            let [low, high] = levels(&packet[words.clone()]).map(|level| scale_level(level, factor));
            packet[words.start] = u32::from(low) | u32::from(high) << 16;
        }
        Cow::Owned(packet)
    });
    scaled.collect()
}

/// In units of 2^-48: below 2^112, as a level is below 2^40 and elements are below 2^32.
fn squared_norm(config: &Config, packet: &[u32], elements: usize) -> u128 {
    let squares = chunks(config, elements).map(|(_, words, layout)| {
        let words = &packet[words];
        let high = layout.codes(words).filter(|(_, code)| code & 2 != 0).count();
        let [low_square, high_square] = levels(words).map(|level| u128::from(units(level)).pow(2));
        low_square * (layout.count - high) as u128 + high_square * high as u128
    });
    squares.sum()
}

/// `floor(2^16 * sqrt(median / norm))` of `median < norm`, in their upper 96 bits.
fn factor(median: u128, norm: u128) -> u16 {
    let surplus = 32_u32.saturating_sub(norm.leading_zeros());
    let ratio = ((median >> surplus) << 32) / (norm >> surplus);
    u16::try_from(ratio.isqrt()).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_is_the_root_of_the_ratio_at_any_size() {
        assert_eq!(factor(1, 4), 0x8000);
        assert_eq!(factor(1, 2), 46_340);
        assert_eq!(factor(0, 2), 0);
        assert_eq!(factor(9, 10), 62_172);
        for shift in [0, 80, 94, 95, 96, 110, 124] {
            assert_eq!(factor(3 << shift, 12 << shift), 0x8000, "{shift}");
        }
        assert_eq!(factor(u128::MAX - 1, u128::MAX), 0xFFFF);
    }
}
