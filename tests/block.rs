//! The codecs with one scale per block on the CPU: how good they are, what they conserve, and that nothing disturbs what
//! it should not.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::cast_possible_truncation, reason = "values are rounded to f32")]

#[path = "common/random.rs"]
mod random;

use std::num::NonZeroU32;

use gradwire::codec::block::{self, Bits};
use gradwire::codec::{Codec, Stats, Step, loco_block, scale};
use random::Random;

const SEED: u64 = 20_261_130;

const LENGTHS: [usize; 12] = [1, 7, 8, 9, 63, 64, 65, 255, 257, 2305, 4096, 4097];

fn loco(bits: Bits, block: u16, base_log2: i8, decay: u8) -> Codec {
    Codec::LocoBlock(loco_block::Config { bits, block, base_log2, decay, reset_every: None })
}

fn codecs() -> Vec<Codec> {
    let mut codecs = vec![
        Codec::Block8(block::Config::default()),
        Codec::Block4(block::Config::default()),
        Codec::Block4(block::Config { block: 72, base_log2: -30 }),
    ];
    for bits in [Bits::Two, Bits::Four, Bits::Eight] {
        codecs.extend([loco(bits, 64, -50, 0), loco(bits, 40, -30, 205), loco(bits, 1024, -45, 64)]);
    }
    codecs
}

fn bits_of(codec: &Codec) -> Bits {
    match codec {
        Codec::Block8(_) => Bits::Eight,
        Codec::Block4(_) => Bits::Four,
        Codec::LocoBlock(config) => config.bits,
        _ => unreachable!("not a codec with a scale per block"),
    }
}

/// Encodes one step; the state goes on.
fn encode(codec: &Codec, step: u64, gradient: &[f32], state: &mut [u32]) -> (Vec<u32>, Stats) {
    let mut packet = vec![0x5A5A_5A5A; codec.packet_words(gradient.len())];
    let stats = codec.encode(Step::new(step).unwrap(), gradient.into(), state, &mut packet);
    (packet, stats)
}

fn fresh(codec: &Codec, elements: usize) -> Vec<u32> {
    vec![0; codec.state_words(elements)]
}

fn mean(codec: &Codec, packets: &[Vec<u32>], weights: &[u32], elements: usize) -> Vec<f32> {
    let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
    let mut mean = vec![f32::NAN; elements];
    codec.average(&packets, weights, &mut [], &mut mean).unwrap();
    mean
}

/// What arrives of one gradient alone.
fn through(codec: &Codec, gradient: &[f32]) -> Vec<f32> {
    let packet = encode(codec, 1, gradient, &mut fresh(codec, gradient.len())).0;
    mean(codec, &[packet], &[1], gradient.len())
}

/// The scale of each block, in gradient units: what a packet says, read with f64.
fn scales(codec: &Codec, packet: &[u32]) -> Vec<f64> {
    let base = codec.parameters().iter().find(|p| p.name == "base_log2").unwrap().value;
    let bytes = packet.chunks(codec.unit().words).flat_map(|unit| unit[0].to_le_bytes());
    let value = |byte: u8| f64::from(4 + (byte & 3)) * 2_f64.powi(i32::from(byte >> 2) + base as i32);
    bytes.map(|byte| if byte == 0 { 0.0 } else { value(byte) }).collect()
}

fn block_of(codec: &Codec) -> usize {
    codec.unit().elements / block::BLOCKS
}

fn normal(random: &mut Random) -> f64 {
    let (u, v) = ((random.unit() + 1.0) / 2.0, random.unit() * std::f64::consts::PI);
    (-2.0 * (1.0 - u).ln()).sqrt() * v.cos()
}

fn laplace(random: &mut Random) -> f64 {
    let u = random.unit();
    -(1.0 - u.abs()).ln() * u.signum()
}

fn student3(random: &mut Random) -> f64 {
    let squares: f64 = (0..3).map(|_| normal(random).powi(2)).sum();
    normal(random) / (squares / 3.0).sqrt()
}

#[test]
fn four_bits_are_within_two_percent_of_a_float_scale_per_block_on_three_distributions() {
    type Draw = fn(&mut Random) -> f64;
    let n = 1 << 18;
    let distributions: [(&str, Draw, f64); 3] =
        [("Gauss", normal, 0.010_64), ("Laplace", laplace, 0.0181), ("Student t3", student3, 0.0309)];
    for (name, draw, measured) in distributions {
        let mut random = Random(SEED);
        let gradient: Vec<f32> = (0..n).map(|_| (draw(&mut random) * 1e-3) as f32).collect();
        let norm: f64 = gradient.iter().map(|g| f64::from(*g).powi(2)).sum();
        let float: f64 = gradient
            .chunks(64)
            .flat_map(|block| {
                let absmax = block.iter().fold(0.0_f64, |most, g| most.max(f64::from(g.abs())));
                let scale = absmax / 7.5;
                block.iter().map(move |g| {
                    let code = (f64::from(*g) / scale).round_ties_even().clamp(-8.0, 7.0);
                    (f64::from(*g) - code * scale).powi(2)
                })
            })
            .sum();
        for codec in [Codec::Block4(block::Config::default()), loco(Bits::Four, 64, -50, 0)] {
            let got = through(&codec, &gradient);
            let error: f64 =
                gradient.iter().zip(got).map(|(g, d)| (f64::from(*g) - f64::from(d)).powi(2)).sum();
            println!("{name}: {:.5} of the norm, float scale {:.5}", error / norm, float / norm);
            assert!(
                error <= 1.02 * float,
                "{name}: {} against {} by float, seed {SEED}",
                error / norm,
                float / norm
            );
            assert!(
                (0.9..1.1).contains(&(float / norm / measured)),
                "{name}: the float scale gives {}",
                float / norm
            );
            let bits_per_element = 32.0 * codec.packet_words(n) as f64 / n as f64;
            assert_eq!(bits_per_element, 4.125);
        }
    }
}

#[test]
fn eight_bits_are_two_hundred_times_better_and_two_bits_keep_five_sixths() {
    let mut random = Random(SEED);
    let gradient: Vec<f32> = (0..1 << 16).map(|_| normal(&mut random) as f32).collect();
    let norm: f64 = gradient.iter().map(|g| f64::from(*g).powi(2)).sum();
    for (bits, least, most) in [(Bits::Eight, 0.000_02, 0.000_06), (Bits::Two, 0.1, 0.18)] {
        let got = through(&loco(bits, 64, -50, 0), &gradient);
        let error: f64 = gradient.iter().zip(got).map(|(g, d)| (f64::from(*g) - f64::from(d)).powi(2)).sum();
        println!("{bits:?}: {:.7} of the norm", error / norm);
        assert!((least..most).contains(&(error / norm)), "{bits:?}: {}", error / norm);
    }
}

#[test]
fn what_was_not_sent_in_a_thousand_steps_is_in_the_last_residual_up_to_its_rounding() {
    // From kept = decay * old + (1 - decay) * lost and g - d = lost - old follows
    // sum(g - d) = (residual after - residual before) / (1 - decay), but for what storing the residual rounded away, each
    // time at most half of its step, and half a unit of the fixed point in each step for g and for the residual.
    let (n, steps) = (136, 1000);
    for bits in [Bits::Two, Bits::Four, Bits::Eight] {
        for decay in [0, 128, 205] {
            let codec = loco(bits, 40, -50, decay);
            let mut random = Random(SEED);
            // Of every magnitude within a block, and a mean that a codec without feedback would never send.
            let drift: Vec<f64> = (0..n).map(|i| normal(&mut random) * 10_f64.powi(-(i % 4))).collect();
            let mut state = fresh(&codec, drift.len());
            let (mut missing, mut allowed) = (vec![0.0; drift.len()], vec![0.0; drift.len()]);
            let (state_words, size) = (codec.unit().state_words, block_of(&codec));
            let step_of = |state: &[u32], i: usize| {
                let unit = &state[i / (4 * size) * state_words..][..state_words];
                let byte = unit[0].to_le_bytes()[i % (4 * size) / size];
                let scale = f64::from(4 + (byte & 3)) * 2_f64.powi(i32::from(byte >> 2) - 58);
                let residual: &[i8] = bytemuck::cast_slice(&unit[1..]);
                (f64::from(residual[i % (4 * size)]) * scale, if byte == 0 { 0.0 } else { scale })
            };
            for step in 1..=steps {
                let gradient: Vec<f32> =
                    drift.iter().map(|m| (m + 0.3 * normal(&mut random)) as f32).collect();
                let (packet, _) = encode(&codec, step, &gradient, &mut state);
                let decoded = mean(&codec, &[packet], &[1], gradient.len());
                for i in 0..gradient.len() {
                    missing[i] += f64::from(gradient[i]) - f64::from(decoded[i]);
                    // Half a step, or one for a largest residual that the byte clamps: between 127.5 and 128.
                    let (residual, scale) = step_of(&state, i);
                    let clamped = residual.abs() >= 127.0 * scale;
                    allowed[i] += scale * if clamped { 1.0 } else { 0.5 } + 2.0_f64.powi(-15);
                }
            }
            let gain = 256.0 / (256.0 - f64::from(decay));
            let mut worst = 0.0_f64;
            for i in 0..missing.len() {
                let off = (missing[i] - step_of(&state, i).0 * gain).abs();
                assert!(
                    off <= allowed[i] * gain,
                    "{codec}: element {i} is off by {off}, bound {}",
                    allowed[i] * gain
                );
                worst = worst.max(off);
            }
            println!("{codec}: off by at most {worst:.4} after {steps} steps of about 1");
            // Far below the bound, since roundings go both ways: without feedback the sum would be off by hundreds.
            assert!(worst < 20.0 * gain, "{codec}: off by {worst}");
        }
    }
}

#[test]
fn the_mean_is_the_weighted_mean_of_what_each_packet_says() {
    for codec in codecs() {
        let mut random = Random(SEED);
        let (n, size) = (1000, block_of(&codec));
        for ranks in [1_usize, 2, 3, 7, 16] {
            for unequal in [false, true] {
                // Very unequal: scales over 60 powers of two, weights from 1 to the limit.
                let gradients: Vec<Vec<f32>> = (0..ranks)
                    .map(|rank| {
                        let size = if unequal { 2_f64.powi(rank as i32 * 4 - 30) } else { 1.0 };
                        (0..n).map(|_| (normal(&mut random) * size) as f32).collect()
                    })
                    .collect();
                let weights: Vec<u32> =
                    (0..ranks).map(|rank| if unequal { 1 << (rank % 17) } else { 3 }).collect();
                let packets: Vec<Vec<u32>> =
                    gradients.iter().map(|g| encode(&codec, 1, g, &mut fresh(&codec, n)).0).collect();
                let total: f64 = weights.iter().copied().map(f64::from).sum();
                let got = mean(&codec, &packets, &weights, n);
                let alone: Vec<Vec<f32>> =
                    packets.iter().map(|p| mean(&codec, std::slice::from_ref(p), &[1], n)).collect();
                let all: Vec<Vec<f64>> = packets.iter().map(|p| scales(&codec, p)).collect();
                for i in 0..n {
                    let exact: f64 =
                        alone.iter().zip(&weights).map(|(d, w)| f64::from(d[i]) * f64::from(*w)).sum::<f64>()
                            / total;
                    let largest = all.iter().map(|scales| scales[i / size]).fold(0.0, f64::max);
                    // Half a unit of the headroom per rank, at most; three f32 roundings of the mean.
                    let headroom = scale::headroom(total as u32, bits_of(&codec).largest_code());
                    let unit = largest / 4.0 / 2_f64.powi(headroom.cast_signed()) / total;
                    let bound = 0.5 * unit * ranks as f64
                        + exact.abs() * 2.0_f64.powi(-22)
                        + f64::from(f32::MIN_POSITIVE);
                    let off = (f64::from(got[i]) - exact).abs();
                    assert!(off <= bound, "{codec}, {ranks} ranks: {} is not {exact}, bound {bound}", got[i]);
                    let loose = largest / 500.0 + exact.abs() / 1e6 + 1e-37;
                    assert!(bound <= loose, "{codec}: a loose bound, {bound} of {largest}");
                }
                // The order of the packets makes no difference.
                let (mut packets, mut weights) = (packets, weights);
                packets.rotate_left(ranks / 2);
                weights.rotate_left(ranks / 2);
                assert_eq!(bits(&mean(&codec, &packets, &weights, n)), bits(&got), "{codec}");
                packets.reverse();
                weights.reverse();
                assert_eq!(bits(&mean(&codec, &packets, &weights, n)), bits(&got), "{codec}");
            }
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn the_largest_sums_do_not_overflow_and_every_mean_is_a_normal_number_or_zero() {
    for (least, bits_per_code) in
        [(0x8080_8080_u32, Bits::Eight), (0x8888_8888, Bits::Four), (0xAAAA_AAAA, Bits::Two)]
    {
        for base_log2 in [-80, 55] {
            let codec = loco(bits_per_code, 64, base_log2, 0);
            for byte in [1_u32, 2, 127, 254, 255] {
                // The least code everywhere; debug builds panic on overflow.
                let mut packet = vec![least; codec.packet_words(256)];
                packet[0] = byte * 0x0101_0101;
                let packets = vec![packet.clone(); 3];
                for weights in [[1, 0, 0], [(1 << 21) - 3, 1, 1], [699_050, 699_050, 699_051]] {
                    let got = mean(&codec, &packets, &weights, 256);
                    let scale = scales(&codec, &packet)[0];
                    let want = -f64::from(bits_per_code.largest_code()) * scale;
                    for value in got {
                        assert!(
                            value.is_normal() && (f64::from(value) / want - 1.0).abs() < 1e-6,
                            "{codec}: {value:e}"
                        );
                    }
                }
                // One sample that says 1 among the largest number of samples that say nothing.
                let mut one = vec![0; packet.len()];
                (one[0], one[1]) = (byte * 0x0101_0101, 1);
                let zero = vec![0; packet.len()];
                let got = mean(&codec, &[one, zero], &[1, (1 << 21) - 2], 256);
                assert!(got[0].is_normal() && got[0] > 0.0 && got[1].to_bits() == 0, "{codec}: {:e}", got[0]);
            }
        }
    }
}

#[test]
fn any_gradient_and_any_state_are_encoded_without_overflow_and_leave_a_proper_state() {
    let extremes =
        [0, 1, 0x8000_0000, 0x0080_0000, 0x7F7F_FFFF, 0xFF7F_FFFF, 0x7F80_0000, 0xFFFF_FFFF, 0x3F80_0000];
    for base_log2 in [-80, -50, 0, 55] {
        for bits in [Bits::Two, Bits::Four, Bits::Eight] {
            for decay in [0, 1, 255] {
                let codec = loco(bits, 32, base_log2, decay);
                let mut random = Random(SEED);
                for round in 0..200 {
                    let n = 128;
                    let extreme = |random: &mut Random| match random.below(3) {
                        0 => random.bits() as u32,
                        _ => extremes[random.below(9) as usize],
                    };
                    let gradient: Vec<f32> = (0..n).map(|_| f32::from_bits(extreme(&mut random))).collect();
                    // The last ones are all largest residuals of the largest scale, beside the largest gradients.
                    let mut state: Vec<u32> =
                        (0..codec.state_words(n)).map(|_| random.bits() as u32).collect();
                    if round >= 150 {
                        state.fill(if round % 2 == 0 { 0x7F7F_7F7F } else { 0x8080_8080 });
                        state[0] = [u32::MAX, 0x0101_0101, 0x8090_A0B0][round % 3];
                    }
                    let bad = gradient.iter().filter(|g| !g.is_finite()).count() as u64;
                    let (packet, stats) = encode(&codec, 1, &gradient, &mut state);
                    assert_eq!(stats.nonfinite, bad);
                    let got = mean(&codec, &[packet], &[1], n);
                    let residuals: &[i8] = bytemuck::cast_slice(&state[1..]);
                    for i in 0..n {
                        assert!(got[i].is_normal() || got[i].to_bits() == 0, "{codec}: {:e}", got[i]);
                        if !gradient[i].is_finite() {
                            assert_eq!((got[i].to_bits(), residuals[i]), (0, 0), "{codec}");
                        }
                        let byte = state[0].to_le_bytes()[i / 32];
                        assert!(byte != 0 || residuals[i] == 0, "{codec}: a residual without scale");
                    }
                }
            }
        }
    }
}

#[test]
fn padding_and_neighbours_change_nothing_and_the_tail_is_a_prefix() {
    for codec in codecs() {
        let unit = codec.unit();
        let mut random = Random(SEED);
        let all: Vec<f32> =
            (0..3 * unit.elements.max(1366) + 9).map(|_| normal(&mut random) as f32).collect();
        for n in LENGTHS.into_iter().filter(|n| *n <= all.len()) {
            let (mut state, mut padded_state) = (fresh(&codec, n), fresh(&codec, n));
            let mut padded = all[..n].to_vec();
            padded.resize(n.next_multiple_of(unit.elements), 0.0);
            for step in 1..=3 {
                let (short, stats) = encode(&codec, step, &all[..n], &mut state);
                let (long, long_stats) = encode(&codec, step, &padded, &mut padded_state);
                assert_eq!((&short[..], stats), (&long[..short.len()], long_stats), "{codec}, {n} elements");
                assert!(long[short.len()..].iter().all(|word| *word == 0), "{codec}, {n} elements");
                assert_eq!(state, padded_state, "{codec}, {n} elements");
            }
            // Unit by unit gives the same as all at once.
            let mut pieces = Vec::new();
            let mut piece_state = fresh(&codec, n);
            for step in 1..=3 {
                pieces.clear();
                for (unit_values, state) in all[..n].chunks(unit.elements).zip(
                    piece_state
                        .chunks_mut(unit.state_words.max(1))
                        .chain(std::iter::repeat_with(|| -> &mut [u32] { &mut [] })),
                ) {
                    pieces.extend(encode(&codec, step, unit_values, state).0);
                }
            }
            let mut whole = fresh(&codec, n);
            let last = (1..=3).map(|step| encode(&codec, step, &all[..n], &mut whole).0).last().unwrap();
            assert_eq!((pieces, piece_state), (last, whole), "{codec}, {n} elements");
        }
    }
}

#[test]
fn a_nonfinite_value_in_any_place_changes_no_other_element() {
    for codec in codecs() {
        let n = 200;
        let mut random = Random(SEED);
        let gradient: Vec<f32> = (0..n).map(|_| normal(&mut random) as f32).collect();
        for place in 0..n {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7F80_0001)] {
                let (mut zeroed, mut broken) = (gradient.clone(), gradient.clone());
                (zeroed[place], broken[place]) = (0.0, bad);
                let (mut want_state, mut state) = (fresh(&codec, n), fresh(&codec, n));
                let (want, want_stats) = encode(&codec, 1, &zeroed, &mut want_state);
                let (got, stats) = encode(&codec, 1, &broken, &mut state);
                assert_eq!((got, &state), (want, &want_state), "{codec}, {bad} at {place}");
                assert_eq!(stats, Stats { nonfinite: 1, ..want_stats }, "{codec}, {bad} at {place}");
            }
        }
    }
}

#[test]
fn zeros_equal_values_and_one_huge_among_tiny_ones_come_through() {
    for codec in codecs() {
        let n = 4 * block_of(&codec) + 9;
        let zero = vec![-0.0; n];
        let (packet, stats) = encode(&codec, 1, &zero, &mut fresh(&codec, n));
        assert!(packet.iter().all(|word| *word == 0), "{codec}");
        assert_eq!(stats, Stats::default());
        // Subnormals are zero.
        assert_eq!(encode(&codec, 1, &vec![1e-40; n], &mut fresh(&codec, n)).0, packet, "{codec}");
        let worst = match bits_of(&codec) {
            Bits::Two => 0.57,
            Bits::Four => 0.17,
            Bits::Eight => 0.011,
        };
        for value in [1e-6_f32, -1e-6, 1.0, -3.0, 1000.0] {
            for got in through(&codec, &vec![value; n]) {
                assert!((got / value - 1.0).abs() <= worst, "{codec}: {got} for {value}");
            }
        }
        // One huge value zeroes the rest of its own block alone.
        let mut gradient = vec![1e-3_f32; n];
        gradient[5] = 1000.0;
        for (i, got) in through(&codec, &gradient).into_iter().enumerate() {
            let want = if i != 5 && i < block_of(&codec) { 0.0 } else { gradient[i] };
            assert!((got - want).abs() <= worst * want.abs(), "{codec}: {got} for {} at {i}", gradient[i]);
        }
    }
}

#[test]
fn a_block_above_the_largest_scale_is_clipped_and_counted_and_one_below_the_smallest_is_zero() {
    for bits in [Bits::Two, Bits::Four, Bits::Eight] {
        let codec = loco(bits, 32, -50, 0);
        let most = f64::from(bits.largest_code());
        let largest = 7.0 * 8192.0;
        let mut state = fresh(&codec, 32);
        let gradient: Vec<f32> = (0..32).map(|i| if i % 2 == 0 { 1e9 } else { -1e9 }).collect();
        let (packet, stats) = encode(&codec, 1, &gradient, &mut state);
        assert_eq!(stats, Stats { nonfinite: 0, saturated: 32 }, "{bits:?}");
        assert_eq!(packet[0], 0xFF, "{bits:?}");
        let got = mean(&codec, &[packet], &[1], 32);
        assert_eq!(f64::from(got[0]), (most - 1.0) * largest, "{bits:?}");
        assert_eq!(f64::from(got[1]), -most * largest, "{bits:?}");
        // The residual is clipped too, not wrapped.
        let residuals: &[i8] = bytemuck::cast_slice(&state[1..]);
        assert_eq!((residuals[0], residuals[1], state[0]), (127, -128, 0xFF), "{bits:?}");
        let smallest = 5.0 * 2_f64.powi(-50);
        let (packet, _) = encode(&codec, 1, &[(smallest * most * 0.5) as f32; 32], &mut fresh(&codec, 32));
        assert_eq!(packet[0], 0, "{bits:?}");
        assert!(packet.iter().all(|word| *word == 0), "{bits:?}");
    }
}

#[test]
fn parameters_out_of_range_are_refused_with_both_numbers() {
    let error = |text: &str| text.parse::<Codec>().unwrap_err().to_string();
    assert_eq!(error("block4:block=31"), "block is 31, block4 takes 32 to 1024");
    assert_eq!(error("block8:block=1032"), "block is 1032, block8 takes 32 to 1024");
    assert_eq!(error("loco-block:block=100"), "block is 100, loco-block takes multiples of 8");
    assert_eq!(error("loco-block:base_log2=56"), "base_log2 is 56, loco-block takes -80 to 55");
    assert_eq!(error("block4:base_log2=-81"), "base_log2 is -81, block4 takes -80 to 55");
    assert!(error("loco-block:bits=3").starts_with("loco-block does not take \"bits=3\""));
    let codec: Codec = "loco-block:bits=2,block=1024,base_log2=-80,decay=255,reset_every=7".parse().unwrap();
    let reset_every = NonZeroU32::new(7);
    let config = loco_block::Config { bits: Bits::Two, block: 1024, base_log2: -80, decay: 255, reset_every };
    assert_eq!(codec, Codec::LocoBlock(config));
}
