//! What the documentation promises, on small cases by hand and on large ones as laws.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::cast_possible_truncation, reason = "random numbers are cut to size")]

use super::*;

/// Uniform in -0.5..0.5, from a fixed seed.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
    }

    fn gauss(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum()
    }

    fn laplace(&mut self) -> f64 {
        let unit = self.unit();
        -unit.signum() * (1.0 - 2.0 * unit.abs()).ln()
    }
}

const SMALL: Config = Config {
    chunk: 64,
    k: 4,
    decay: 256,
    residual: Residual::F32,
    scale_log2: 0,
    mean: Mean::AllRanks,
    clip: Clip::Off,
};

fn state_for(config: &Config, elements: usize) -> Vec<u32> {
    vec![0; elements.div_ceil(config.unit().elements) * config.unit().state_words]
}

fn encoded(config: &Config, gradient: &[f32], state: &mut [u32]) -> (Vec<u32>, Stats) {
    let mut packet = vec![0x5A5A_5A5A; config.packet_words(gradient.len())];
    let stats = encode(config, gradient.into(), state, &mut packet);
    (packet, stats)
}

fn decoded(config: &Config, packet: &[u32], elements: usize) -> Vec<f32> {
    let mut mean = vec![f32::NAN; elements];
    average(config, &[packet], &[1], &mut mean).unwrap();
    mean
}

/// One step from nothing: (packet, decoded, residual as f32).
fn once(config: &Config, gradient: &[f32]) -> (Vec<u32>, Vec<f32>, Vec<f32>) {
    let mut state = state_for(config, gradient.len());
    let (packet, _) = encoded(config, gradient, &mut state);
    let decoded = decoded(config, &packet, gradient.len());
    let state: &[f32] = bytemuck::cast_slice(&state);
    (packet, decoded, state[..gradient.len()].to_vec())
}

#[test]
fn a_chunk_by_hand_has_the_words_of_the_documentation() {
    let mut gradient = [0.0; 64];
    (gradient[3], gradient[17], gradient[40], gradient[63], gradient[5]) = (-6.0, 1.0, 2.0, 4.0, 0.5);
    let (packet, decoded, residual) = once(&SMALL, &gradient);
    // High level 5.0 = 0x4500, low 1.5 = 0x3E00. Codes: high minus, low plus, low plus, high plus.
    // 4 of 64: 4 low bits each, 3, 1, 8, 15; high places 0 + 0, 1 + 1, 2 + 2, 3 + 3.
    assert_eq!(packet, [0x4500_3E00, 0b10_00_00_11, 0xF813, 0b101_0101]);
    let mut want = [0.0; 64];
    (want[3], want[17], want[40], want[63]) = (-5.0, 1.5, 1.5, 5.0);
    assert_eq!(decoded, want);
    (want[3], want[17], want[40], want[63], want[5]) = (-1.0, -0.5, 0.5, -1.0, 0.5);
    assert_eq!(residual, want);
}

#[test]
fn of_equal_magnitudes_the_lower_index_is_sent_and_is_in_the_larger_half() {
    let (packet, decoded, _) = once(&SMALL, &[-2.0; 64]);
    let mut want = [0.0; 64];
    want[..4].fill(-2.0);
    assert_eq!(decoded, want);
    assert_eq!(packet[1], 0b01_01_11_11, "the first two are the larger half");
    // Across the boundary of the halves only, and of the sent only.
    let mut gradient = [1.0; 64];
    (gradient[10], gradient[20], gradient[30]) = (3.0, 2.0, -2.0);
    let (packet, decoded, _) = once(&SMALL, &gradient);
    assert_eq!(packet[1], 0b01_10_10_00, "elements 0, 10, 20, 30");
    assert_eq!([decoded[0], decoded[10], decoded[20], decoded[30]], [1.5, 2.5, 2.5, -1.5]);
}

#[test]
fn zeros_that_fill_up_decode_to_zero_and_leave_the_others_their_mean() {
    let mut gradient = [0.0; 64];
    (gradient[9], gradient[50], gradient[51]) = (8.0, -4.0, -0.0);
    let (packet, decoded, residual) = once(&SMALL, &gradient);
    assert_eq!(packet[0], 0x4600_0000, "6.0 and 0");
    let mut want = [0.0; 64];
    (want[9], want[50]) = (6.0, -6.0);
    assert_eq!(decoded.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), want.map(f32::to_bits));
    (want[9], want[50]) = (2.0, 2.0);
    assert_eq!(residual.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), want.map(f32::to_bits));
    assert_eq!(once(&SMALL, &[0.0; 64]).0, [0, 0, 0x3210, 0b1111], "an all-zero chunk");
}

#[test]
fn non_finite_elements_count_as_zero_clear_their_residual_and_disturb_nobody() {
    for residual in [Residual::F32, Residual::Bits8] {
        let config = Config { residual, ..SMALL };
        let gradient: Vec<f32> = (0..64_u8).map(|i| f32::from(i) - 31.5).collect();
        for place in 0..64 {
            for bits in [0x7F80_0000, 0xFF80_0000, 0x7F80_0001, 0x7FC0_0000, 0xFFFF_FFFF] {
                let mut state = state_for(&config, 64);
                encoded(&config, &gradient, &mut state);
                let mut clean = state.clone();
                let mut bad = gradient.clone();
                bad[place] = f32::from_bits(bits);
                let (packet, stats) = encoded(&config, &bad, &mut state);
                assert_eq!(stats.nonfinite, 1);
                // The same as a gradient that cancels the residual there.
                let mut old = vec![0.0; 64];
                residual::load(&config, &clean, &mut old);
                bad[place] = -old[place];
                assert_eq!(encoded(&config, &bad, &mut clean).0, packet, "{place} {bits:#x}");
                assert_eq!(clean, state, "{place} {bits:#x}");
            }
        }
    }
}

#[test]
fn subnormal_gradients_count_as_zero_and_the_largest_stay_finite() {
    let (_, decoded, residual) = once(&SMALL, &[f32::from_bits(0x007F_FFFF); 64]);
    assert!(decoded.iter().chain(&residual).all(|value| value.to_bits() == 0));
    let mut state = state_for(&SMALL, 64);
    for _ in 0..3 {
        let (packet, stats) = encoded(&SMALL, &[f32::MAX; 64], &mut state);
        assert_eq!(stats, Stats { nonfinite: 0, saturated: 4 }, "levels stop at 65504");
        assert_eq!(packet[0], 0x7BFF_7BFF);
        let residual: &[f32] = bytemuck::cast_slice(&state);
        assert!(residual.iter().all(|value| value.is_finite()), "{residual:?}");
    }
}

#[test]
fn shorter_chunks_send_in_proportion_and_never_more_words_than_a_whole_one() {
    let count = |k, elements| Layout::new(&Config { k, ..Config::default() }, elements).count;
    assert_eq!([count(64, 1), count(64, 127), count(64, 128), count(64, 4095)], [1, 1, 2, 63]);
    assert_eq!([count(1, 4095), count(4096, 4095), count(4095, 2)], [1, 4095, 1]);
    for chunk in [64, 256, 4096] {
        for k in [1, 2, 3, 5, 31, 32, 33, 63, 64, 100, 2047, 2048, 2049, 4095, 4096] {
            let config = Config { chunk, k, ..Config::default() };
            if config.validate().is_ok() {
                let whole = config.unit().words;
                for rest in 1..usize::from(chunk) {
                    let words = config.packet_words(rest);
                    assert!(words <= whole, "{rest} of {chunk}, k {k}: {words} words, whole {whole}");
                }
            }
        }
    }
}

#[test]
fn packets_and_state_do_not_depend_on_where_the_gradient_was_cut() {
    let config = Config { chunk: 128, k: 5, residual: Residual::Bits8, ..Config::default() };
    let mut random = Random(1);
    let gradient: Vec<f32> = (0..1000).map(|_| random.gauss() as f32).collect();
    let mut state = state_for(&config, 1000);
    let (packet, _) = encoded(&config, &gradient, &mut state);
    let (mut joined, mut states) = (Vec::new(), Vec::new());
    for part in [&gradient[..256], &gradient[256..384], &gradient[384..]] {
        let mut state = state_for(&config, part.len());
        joined.extend(encoded(&config, part, &mut state).0);
        states.extend(state);
    }
    assert_eq!((joined, states), (packet, state));
}

/// Squared error of the values sent, over their squares.
fn kept_error(mut draw: impl FnMut() -> f64) -> f64 {
    let config = Config { scale_log2: 0, ..Config::default() };
    let gradient: Vec<f32> = (0..64 * 4096).map(|_| draw() as f32).collect();
    let (_, decoded, _) = once(&config, &gradient);
    let kept = gradient.iter().zip(&decoded).filter(|(_, value)| **value != 0.0);
    let (mut lost, mut all, mut count) = (0.0, 0.0, 0);
    for (x, value) in kept {
        lost += f64::from(x - value).powi(2);
        all += f64::from(*x).powi(2);
        count += 1;
    }
    assert_eq!(count, 64 * 64);
    lost / all
}

#[test]
fn values_sent_are_within_0_006_on_gaussian_and_0_02_on_laplace_data() {
    let mut random = Random(20_261_130);
    let gauss = kept_error(|| random.gauss());
    let laplace = kept_error(|| random.laplace());
    println!("gauss {gauss:.5}, laplace {laplace:.5}");
    assert!(gauss <= 0.006, "{gauss}");
    assert!(laplace <= 0.02, "{laplace}");
}

#[test]
fn without_decay_all_that_was_not_sent_is_the_residual_over_1000_steps() {
    let mut random = Random(7);
    for (residual, bound) in [(Residual::F32, 1.0e-3), (Residual::Bits8, 0.25)] {
        let config = Config { chunk: 256, k: 16, residual, scale_log2: 0, ..SMALL };
        let mut state = state_for(&config, 300);
        let (mut meant, mut sent) = (vec![0.0_f64; 300], vec![0.0_f64; 300]);
        let mut old = vec![0.0; 300];
        let mut worst = 0.0_f64;
        for _ in 0..1000 {
            let gradient: Vec<f32> = (0..300).map(|_| random.gauss() as f32).collect();
            let (packet, _) = encoded(&config, &gradient, &mut state);
            for (i, value) in decoded(&config, &packet, 300).into_iter().enumerate() {
                meant[i] += f64::from(gradient[i]);
                sent[i] += f64::from(value);
            }
            for (old, state) in old.chunks_mut(256).zip(state.chunks(config.unit().state_words)) {
                residual::load(&config, state, old);
            }
            worst = old.iter().fold(worst, |worst, value| worst.max(f64::from(value.abs())));
        }
        // 1,000 roundings of each element add up as a walk does; a lost update would add up as a line.
        for i in 0..300 {
            let off = (meant[i] - sent[i] - f64::from(old[i])).abs();
            assert!(off <= bound * 1000.0_f64.sqrt(), "{residual:?}, element {i}: off by {off}");
        }
        assert!(worst < 200.0, "{residual:?}: the residual grows to {worst}, for gradients of 1");
    }
}

#[test]
fn the_mean_counts_all_ranks_or_those_that_sent() {
    let mut gradients = [[0.0; 64]; 3];
    (gradients[0][1], gradients[1][1], gradients[1][2], gradients[2][3]) = (4.0, -1.0, 1.0, 5.0);
    let packets = gradients.map(|gradient| once(&SMALL, &gradient).0);
    let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
    let mean = |mean, weights: &[u32]| {
        let mut out = vec![f32::NAN; 64];
        average(&Config { mean, ..SMALL }, &packets, weights, &mut out).unwrap();
        out[..4].to_vec()
    };
    assert_eq!(mean(Mean::AllRanks, &[1, 2, 5]), [0.0, 0.25, 0.25, 25.0 / 8.0]);
    assert_eq!(mean(Mean::Contributors, &[1, 2, 5]), [0.0, 2.0 / 3.0, 1.0, 5.0]);
    assert_eq!(mean(Mean::Contributors, &[1, 4, 5])[1].to_bits(), 0, "a sum of zero is plus zero");
    assert_eq!(mean(Mean::AllRanks, &[1, 0, 0]), [0.0, 4.0, 0.0, 0.0]);
}

#[test]
fn a_packet_above_the_median_norm_is_scaled_down_to_it_and_weightless_ones_do_not_vote() {
    let config = Config { clip: Clip::MedianNorm, ..SMALL };
    let packet = |value: f32| {
        let mut gradient = [0.0; 64];
        gradient[0] = value;
        once(&config, &gradient).0
    };
    let packets = [packet(1.0), packet(1000.0), packet(-2.0), packet(0.0)];
    let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
    let first = |count: usize, weights: &[u32]| {
        let mut out = vec![f32::NAN; 64];
        average(&config, &packets[..count], weights, &mut out).unwrap();
        out[0] * weights.iter().sum::<u32>() as f32
    };
    // floor(2^16 * 2 / 1000) / 2^16 * 1000 = 1.9989, an f16 of 11 digits: 1.999.
    let clipped = half::f16::from_f64(131.0 / 65_536.0 * 1000.0).to_f32();
    assert_eq!(first(3, &[1, 1, 1]), 1.0 + clipped - 2.0);
    assert_eq!(first(4, &[1, 1, 1, 1]), 1.0 + clipped - 2.0, "zeros do not vote");
    assert_eq!(first(2, &[1, 1]), 1001.0, "of two, none is clipped");
    assert_eq!(first(3, &[1, 1, 0]), 1001.0);
    assert_eq!(first(3, &[0, 1, 0]), 1000.0);
}

#[test]
fn words_that_no_encoder_writes_are_named_with_their_unit() {
    let config = Config { chunk: 64, k: 20, ..SMALL };
    let gradient: Vec<f32> = (1..=100_u8).map(f32::from).collect();
    let (packet, _, _) = once(&config, &gradient);
    // Levels, 40 bits of values, 20 low bits, 52 high bits; then 11 of 36: levels, 22, 11 and 29 bits.
    assert_eq!(packet.len(), (1 + 2 + 1 + 2) + (1 + 1 + 1 + 1));
    let error = |word: usize, flip: u32| {
        let mut packet = packet.clone();
        packet[word] ^= flip;
        let error = average(&config, &[&[0; 0], &packet], &[0, 1], &mut [0.0; 100]).unwrap_err();
        assert!(matches!(error, AverageError::PacketLength { index: 0, .. }), "{error}");
        average(&config, &[&packet, &packet], &[0, 1], &mut [0.0; 100]).unwrap_err().to_string()
    };
    assert_eq!(error(0, 0x8000), "packet 1, unit 0: low level is 53808, must be 31743", "49.5 with a sign");
    assert!(error(6, 1 << 31).starts_with("packet 1, unit 1: high level is "), "{}", error(6, 1 << 31));
    assert!(error(2, 1 << 31).starts_with("packet 1, unit 0: bits behind the values is 8388608, must be 0"));
    assert!(error(3, 1 << 20).starts_with("packet 1, unit 0: bits behind the low field is 1, must be 0"));
    assert!(error(5, 1 << 20).starts_with("packet 1, unit 0: bits behind the high field is 1, must be 0"));
    assert!(error(4, 1).contains("unit 0: number of indices is 21, must be 20"), "{}", error(4, 1));
    // Elements 44 and 45, which share their high part, swapped.
    assert!(
        error(3, 0b11).contains("unit 0: an index after a larger one is 44, must be 46"),
        "{}",
        error(3, 0b11)
    );
    // The last of 36 elements, 17 * 2 + 1, moved up by 2.
    assert!(
        error(9, 0b11 << 27).contains("unit 1: the last index is 37, must be 35"),
        "{}",
        error(9, 0b11 << 27)
    );
}

#[test]
fn any_words_are_an_error_or_a_mean_and_weightless_packets_are_not_looked_at() {
    let config = Config { chunk: 64, k: 7, ..SMALL };
    let mut random = Random(3);
    let mut taken = 0;
    for round in 0..3000 {
        let gradient: Vec<f32> = (0..150).map(|_| random.gauss() as f32).collect();
        let (good, _, _) = once(&config, &gradient);
        let mut packet = good.clone();
        for _ in 0..1 + round % 3 {
            let at = ((random.unit() + 0.5) * packet.len() as f64) as usize;
            packet[at] ^= 1 << (((random.unit() + 0.5) * 32.0) as u32 & 31);
        }
        let mut mean = [f32::NAN; 150];
        match average(&config, &[&good, &packet], &[1, 1], &mut mean) {
            Ok(()) => {
                taken += 1;
                assert!(mean.iter().all(|value| value.is_finite()), "{packet:x?}");
            }
            Err(error) => assert!(matches!(error, AverageError::Malformed { index: 1, .. }), "{error}"),
        }
        assert_eq!(average(&config, &[&good, &packet], &[1, 0], &mut mean), Ok(()));
        assert_eq!(mean.to_vec(), decoded(&config, &good, 150));
    }
    assert!((150..2850).contains(&taken), "{taken} of 3000 taken: the mutations test one side only");
}
