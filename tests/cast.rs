//! The codecs `f32`, `f16`, `bf16`, `fp8`, `ef` and `intsgd`: laws, packets that no encoder writes, and what their golden
//! vectors would notice.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "common/random.rs"]
mod random;

use gradwire::codec::fp8::{self, Kind};
use gradwire::codec::mean::mean_bits;
use gradwire::codec::{AverageError, Codec, ConfigError, Stats, Step, ef, intsgd, loco};
use random::Random;
use serde::Deserialize;

const SEED: u64 = 20_261_129;
/// The golden vectors of `f32` and `f16`, which `tests/golden.rs` holds the codecs to.
const TEXTS: [(&str, &str); 2] =
    [("f32", include_str!("golden/f32.json")), ("f16", include_str!("golden/f16.json"))];

#[derive(Deserialize)]
struct File {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    #[serde(skip)]
    codec: &'static str,
    n: usize,
    weights: Vec<u32>,
    ranks: Vec<Rank>,
    averages: [Mean; 1],
}

#[derive(Deserialize)]
struct Rank {
    steps: [Encoded; 1],
}

#[derive(Deserialize)]
struct Encoded {
    gradient_bits: Vec<u32>,
    words: Vec<u32>,
}

#[derive(Deserialize)]
struct Mean {
    mean_bits: Vec<u32>,
}

fn golden() -> Vec<Case> {
    let parse = |(codec, text)| {
        let File { mut cases } = serde_json::from_str(text).unwrap();
        cases.iter_mut().for_each(|case| case.codec = codec);
        cases
    };
    TEXTS.into_iter().flat_map(parse).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn codec(text: &str, scale_log2: Option<i8>) -> Codec {
    let mut codec: Codec = text.parse().unwrap();
    if let Some(scale_log2) = scale_log2 {
        codec.set_scale_log2(scale_log2);
    }
    codec
}

fn encode(codec: &Codec, gradient: &[f32]) -> (Vec<u32>, Stats) {
    let mut state = vec![0; codec.state_words(gradient.len())];
    // Painted, so that a word that nobody writes shows.
    let mut packet = vec![0x5A5A_5A5A; codec.packet_words(gradient.len())];
    let stats = codec.encode(Step::FIRST, gradient.into(), &mut state, &mut packet);
    (packet, stats)
}

fn average(codec: &Codec, packets: &[Vec<u32>], weights: &[u32], n: usize) -> Result<Vec<u32>, AverageError> {
    let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
    let mut mean = vec![f32::NEG_INFINITY; n];
    codec.average(&packets, weights, &mut [], &mut mean)?;
    Ok(bits(&mean))
}

/// The codecs of this file without state, in several configurations.
fn codecs() -> Vec<Codec> {
    let fp8 = ["4,block=32", "5,block=32", "4,block=128", "5,block=1024", "4,block=40"];
    let fp8 = fp8.map(|rest| codec(&format!("fp8:exponent_bits={rest}"), None));
    let intsgd = [0, 22, -64, 64].map(|scale| codec("intsgd", Some(scale)));
    ["f32", "f16", "bf16"].map(|text| codec(text, None)).into_iter().chain(fp8).chain(intsgd).collect()
}

/// Values of one size with some of any size among them.
fn gradient(random: &mut Random, n: usize) -> Vec<f32> {
    let size = 2_f64.powi(random.below(60) as i32 - 30);
    let any = |random: &mut Random| match random.below(30) {
        0 => f32::from_bits(random.bits() as u32),
        1 => 0.0,
        2 => -0.0,
        _ => (random.unit() * size) as f32,
    };
    let finite = |value: f32| if value.is_finite() { value } else { 0.0 };
    (0..n).map(|_| finite(any(random))).collect()
}

const LENGTHS: [usize; 14] = [1, 7, 8, 9, 31, 63, 64, 65, 511, 513, 2305, 4095, 4096, 4097];

#[test]
fn the_reference_would_notice_other_roundings_and_other_sums() {
    // Twins with one mistake each; the golden packets or means must tell them apart.
    let cases = golden();
    let differs = |name: &str, wrong: &dyn Fn(&Case) -> bool| {
        assert!(cases.iter().any(wrong), "{name} passed as right");
    };
    let f32s = |case: &Case| case.codec == "f32";
    let column = |case: &Case, i: usize| -> Vec<(u32, u32)> {
        case.weights.iter().zip(&case.ranks).map(|(weight, rank)| (*weight, rank.steps[0].words[i])).collect()
    };
    differs("a mean in f32", &|case| {
        f32s(case)
            && (0..case.n).any(|i| {
                let terms = column(case, i);
                let sum: f32 = terms.iter().map(|(w, bits)| *w as f32 * f32::from_bits(*bits)).sum();
                (sum / case.weights.iter().sum::<u32>() as f32).to_bits() != case.averages[0].mean_bits[i]
            })
    });
    differs("subnormals and minus zero that count", &|case| {
        f32s(case) && case.ranks.len() == 1 && case.ranks[0].steps[0].words != case.averages[0].mean_bits
    });
    differs("a product with the rounded inverse instead of a quotient", &|case| {
        f32s(case)
            && (0..case.n).any(|i| {
                let terms = column(case, i);
                let sum: f64 =
                    terms.iter().map(|(w, bits)| f64::from(*w) * f64::from(f32::from_bits(*bits))).sum();
                let inverse = (1.0 / f64::from(case.weights.iter().sum::<u32>())) as f32;
                (sum as f32 * inverse).to_bits() != case.averages[0].mean_bits[i]
            })
    });
    differs("truncation to f16", &|case| {
        case.codec == "f16"
            && case.ranks.iter().any(|rank| {
                let toward_zero = |bits: u32| {
                    let near = half::f16::from_f32(f32::from_bits(bits));
                    let far = near.to_f32().abs() > f32::from_bits(bits).abs();
                    near.to_bits() - u16::from(far)
                };
                let code = |i: usize| (rank.steps[0].words[i / 2] >> (16 * (i % 2))) as u16;
                (0..case.n).any(|i| toward_zero(rank.steps[0].gradient_bits[i]) != code(i))
            })
    });
    // And the definition itself, called by hand, is right.
    for case in cases.iter().filter(|case| f32s(case)) {
        let total = case.weights.iter().sum();
        let got: Vec<u32> = (0..case.n).map(|i| mean_bits(column(case, i).into_iter(), total)).collect();
        assert_eq!(got, case.averages[0].mean_bits);
    }
}

#[test]
fn a_packet_does_not_depend_on_where_the_work_was_cut_between_units() {
    for codec in codecs() {
        let unit = codec.unit();
        for n in LENGTHS.into_iter().chain([3 * unit.elements, 3 * unit.elements + 13]) {
            let mut random = Random(SEED + n as u64);
            let values = gradient(&mut random, n);
            let (whole, stats) = encode(&codec, &values);
            let (mut joined, mut sum) = (Vec::new(), Stats::default());
            let step = unit.elements * (1 + random.below(3) as usize);
            for part in values.chunks(step) {
                let (words, part) = encode(&codec, part);
                joined.extend(words);
                sum += part;
            }
            assert_eq!((whole, stats), (joined, sum), "{codec}, {n} elements by {step}, seed {SEED}");
        }
    }
}

#[test]
fn padding_with_zeros_changes_no_word_before_it() {
    for codec in codecs() {
        for n in LENGTHS {
            let mut values = gradient(&mut Random(SEED + n as u64), n);
            let (packet, stats) = encode(&codec, &values);
            values.resize(n.next_multiple_of(codec.unit().elements), 0.0);
            let (padded, same) = encode(&codec, &values);
            assert_eq!(padded[..packet.len()], packet, "{codec}, {n} elements, seed {SEED}");
            assert!(padded[packet.len()..].iter().all(|word| *word == 0), "{codec}, {n} elements");
            assert_eq!(stats, same, "{codec}, {n} elements");
        }
    }
}

#[test]
fn the_mean_depends_neither_on_the_order_of_ranks_nor_on_where_it_was_cut() {
    for codec in codecs() {
        let unit = codec.unit();
        for n in [9, 513, 2 * unit.elements + 9] {
            let mut random = Random(SEED + n as u64);
            let mut pairs: Vec<(u32, Vec<u32>)> = (0..5)
                .map(|_| (random.below(5000) as u32, encode(&codec, &gradient(&mut random, n)).0))
                .collect();
            pairs[0].0 += 1;
            let mean = |pairs: &[(u32, Vec<u32>)], cut: std::ops::Range<usize>, n| {
                let packets: Vec<Vec<u32>> =
                    pairs.iter().map(|(_, words)| words[cut.clone()].to_vec()).collect();
                let weights: Vec<u32> = pairs.iter().map(|(weight, _)| *weight).collect();
                average(&codec, &packets, &weights, n).unwrap()
            };
            let words = codec.packet_words(n);
            let want = mean(&pairs, 0..words, n);
            let at = unit.elements.min(n);
            let at_word = codec.packet_words(at);
            let mut parts = mean(&pairs, 0..at_word, at);
            parts.extend(mean(&pairs, at_word..words, n - at));
            assert_eq!(parts, want, "{codec}, {n} elements cut at {at}, seed {SEED}");
            for _ in 0..4 {
                pairs.rotate_left(2);
                assert_eq!(mean(&pairs, 0..words, n), want, "{codec}, {n} elements, seed {SEED}");
            }
            pairs.reverse();
            assert_eq!(mean(&pairs, 0..words, n), want, "{codec}, {n} elements, seed {SEED}");
        }
    }
}

#[test]
fn any_words_from_a_peer_are_a_mean_or_a_typed_error_and_zero_is_plus_zero() {
    for codec in codecs() {
        let mut refused = 0;
        for round in 0..300 {
            let mut random = Random(SEED + round);
            let n = [1, 8, 65, 131, 600][random.below(5) as usize];
            // Fewer and fewer bits set, so that some random fp8 packets have neither NaN nor the last exponent.
            let word = |random: &mut Random| (random.bits() & random.bits() & random.bits()) as u32;
            let packets: Vec<Vec<u32>> =
                (0..3).map(|_| (0..codec.packet_words(n)).map(|_| word(&mut random)).collect()).collect();
            match average(&codec, &packets, &[3, 0, 4], n) {
                Ok(mean) => assert!(mean.iter().all(|bits| *bits != 1 << 31), "{codec}: minus zero"),
                Err(AverageError::Malformed { index, .. }) => {
                    assert!(index != 1, "{codec}: a packet without weight was looked at");
                    refused += 1;
                }
                Err(error) => panic!("{codec}, round {round}: {error}"),
            }
        }
        let may = codec.to_string().starts_with("fp8");
        assert!(may || refused == 0, "{codec} refused {refused}");
        assert!(refused < 300, "{codec} refused all");
    }
}

#[test]
fn an_fp8_packet_that_no_encoder_writes_is_refused_with_its_unit_and_both_numbers() {
    for (kind, largest) in [(Kind::E4M3, 0x7E_u32), (Kind::E5M2, 0x7B)] {
        let config = fp8::Config { kind, block: 32 };
        let n = 128 + 35;
        let (good, _) = encode(&Codec::Fp8(config), &vec![1.0; n]);
        let check = |words: &[u32]| average(&Codec::Fp8(config), &[good.clone(), words.to_vec()], &[1, 1], n);
        assert!(check(&good).is_ok(), "{kind:?}");
        for code in 0..=255_u32 {
            // Element 33 of the second unit: block 1, word 9 of the unit.
            let mut words = good.clone();
            words[33 + 1 + 8] = words[33 + 1 + 8] & !0xFF00 | code << 8;
            let found = u64::from(code & 0x7F);
            let what = "the magnitude of a code";
            let error = AverageError::Malformed { index: 1, unit: 1, what, found, expected: largest.into() };
            assert_eq!(check(&words).err(), (found > largest.into()).then_some(error), "{kind:?} {code:#x}");
        }
        for (block, used) in [(0, true), (1, true), (2, false), (3, false)] {
            let mut words = good.clone();
            words[33] |= 0xFF << (8 * block);
            let what = "the exponent of a block";
            let error = AverageError::Malformed { index: 1, unit: 1, what, found: 255, expected: 254 };
            assert_eq!(check(&words).err(), used.then_some(error), "{kind:?} block {block}");
        }
        // Element 35 does not exist: what stands in its bits means nothing.
        let mut words = good.clone();
        words[33 + 1 + 8] |= 0xFF00_0000;
        assert_eq!(check(&words), check(&good), "{kind:?}");
    }
}

#[test]
fn the_largest_of_an_fp8_block_lands_in_the_top_binade_and_only_the_ends_of_f32_are_clamped() {
    for (kind, last, low) in [(Kind::E4M3, 8, 0x78_u32), (Kind::E5M2, 15, 0x78)] {
        for field in 1..=254_u32 {
            for mantissa in
                [0, 1, 0x5F_FFFF, 0x60_0000, 0x67_FFFF, 0x68_0000, 0x68_0001, 0x6F_FFFF, 0x70_0000, 0x7F_FFFF]
            {
                let largest = field << 23 | mantissa;
                let byte = fp8::exponent(kind, largest);
                assert!(byte == field || byte == field + 1, "{kind:?} {largest:#x}: {byte}");
                let (code, clamped) = fp8::encode_element(kind, byte, largest);
                // One binade lower where the top one is too small: it may round back up to the top.
                let least = if byte == field { low } else { low - (1 << kind.format().mantissa_bits) };
                assert!(u32::from(code) >= least, "{kind:?} {largest:#x}: code {code:#x}");
                let value = f64::from(f32::from_bits(largest));
                let above = value / 2_f64.powi(byte as i32 - 127 - last);
                let most = if kind == Kind::E4M3 { 464.0 } else { 61440.0 };
                assert_eq!(
                    clamped,
                    above > most || (above == most && kind == Kind::E5M2),
                    "{kind:?} {largest:#x}"
                );
                assert!(!clamped || field == 254, "{kind:?} {largest:#x}");
                // What is decoded is within half a step of the format.
                let decoded = f64::from(f32::from_bits(fp8::decode_element(kind, byte, code)));
                let step = 2_f64.powi(-1 - kind.format().mantissa_bits as i32);
                assert!(clamped || (decoded / value - 1.0).abs() <= step, "{kind:?} {largest:#x}: {decoded}");
            }
        }
    }
}

#[test]
fn a_huge_or_bad_element_disturbs_no_other_block() {
    for block in [32_u16, 128, 1024] {
        for kind in [Kind::E4M3, Kind::E5M2] {
            let codec = Codec::Fp8(fp8::Config { kind, block });
            let n = 5 * usize::from(block);
            let calm = vec![0.001; n];
            let (quiet, _) = encode(&codec, &calm);
            let quiet = average(&codec, &[quiet], &[1], n).unwrap();
            for place in [0, 1, usize::from(block) - 1, usize::from(block), n - 1] {
                for (value, count) in [(1.0e30, 0), (f32::NAN, 1), (f32::INFINITY, 1), (f32::NEG_INFINITY, 1)]
                {
                    let mut loud = calm.clone();
                    loud[place] = value;
                    let (packet, stats) = encode(&codec, &loud);
                    assert_eq!(
                        stats,
                        Stats { nonfinite: count, saturated: 0 },
                        "{codec}, {value} at {place}"
                    );
                    let mean = average(&codec, &[packet], &[1], n).unwrap();
                    for at in 0..n {
                        let same_block = at / usize::from(block) == place / usize::from(block);
                        let want = match (at == place, same_block && count == 0) {
                            (true, false) | (false, true) => 0,
                            (true, true) => mean[at],
                            (false, false) => quiet[at],
                        };
                        assert_eq!(mean[at], want, "{codec}, {value} at {place}: element {at}");
                    }
                }
            }
        }
    }
}

#[test]
fn error_feedback_loses_nothing_in_a_thousand_steps_but_what_waits_and_what_its_bytes_round() {
    for (scale_log2, residual_scale_log2) in [(19, 4), (0, 2), (-5, 0)] {
        let config = ef::Config { scale_log2, residual_scale_log2 };
        let (codec, n, steps) = (Codec::Ef(config), 65, 1000_u64);
        let unit = 2_f64.powi(-i32::from(scale_log2));
        let mut random = Random(SEED);
        let mut state = vec![0; codec.state_words(n)];
        let mut open = vec![0.0_f64; n];
        let mut rounded_away = vec![0.0_f64; n];
        for step in 1..=steps {
            let gradient: Vec<f32> = (0..n).map(|_| (random.unit() * 6.0 * unit) as f32).collect();
            let mut packet = vec![0; codec.packet_words(n)];
            let before: Vec<i8> = bytemuck::cast_slice(&state)[..n].to_vec();
            let stats = codec.encode(Step::new(step).unwrap(), (&gradient).into(), &mut state, &mut packet);
            assert_eq!(
                stats,
                Stats::default(),
                "{codec}: nothing saturates within 6 codes and half a residual"
            );
            let mean = average(&codec, &[packet], &[1], n).unwrap();
            let after: &[i8] = &bytemuck::cast_slice(&state)[..n];
            for i in 0..n {
                let sent = f64::from(f32::from_bits(mean[i]));
                open[i] += f64::from(gradient[i]) - sent;
                // What this step rounded away: of the new residual, to a byte, and of the gradient, to 12 digits.
                let residual = |byte: i8| f64::from(byte) / f64::from(1 << residual_scale_log2) * unit;
                let lost = f64::from(gradient[i]) + residual(before[i]) - sent - residual(after[i]);
                let byte = unit / f64::from(1 << residual_scale_log2) / 2.0 + unit / 4096.0;
                assert!(lost.abs() <= byte, "{codec}, step {step}, element {i}: {lost} of at most {byte}");
                rounded_away[i] += lost;
            }
        }
        for i in 0..n {
            let waits = f64::from(bytemuck::cast_slice::<u32, i8>(&state)[i]);
            let waits = waits / f64::from(1 << residual_scale_log2) * unit;
            let difference = (open[i] - waits - rounded_away[i]).abs();
            assert!(difference < 1.0e-6 * unit, "{codec}, element {i}: {difference}");
            // Unbiased: far from the worst case of 1000 half steps.
            let bound = 60.0 * unit / f64::from(1 << residual_scale_log2);
            assert!(rounded_away[i].abs() < bound, "{codec}, element {i}: {}", rounded_away[i]);
        }
    }
}

#[test]
fn ef_is_loco_with_decay_zero_and_no_reset() {
    let config = ef::Config { scale_log2: 3, residual_scale_log2: 4 };
    let loco = loco::Config { scale_log2: 3, residual_scale_log2: 4, decay: 0, reset_every: None };
    let (ours, theirs) = (Codec::Ef(config), Codec::Loco(loco));
    let mut random = Random(SEED);
    let mut states = [vec![0; ours.state_words(257)], vec![0; ours.state_words(257)]];
    for step in [1, 511, 512, 513, 1024] {
        let gradient = gradient(&mut random, 257);
        let mut packets = [vec![0; ours.packet_words(257)], vec![0; ours.packet_words(257)]];
        for ((codec, state), packet) in [ours, theirs].iter().zip(&mut states).zip(&mut packets) {
            codec.encode(Step::new(step).unwrap(), (&gradient).into(), state, packet);
        }
        assert_eq!(packets[0], packets[1], "step {step}");
        assert_eq!(states[0], states[1], "step {step}");
    }
    assert_eq!(
        "ef:decay=1".parse::<Codec>().unwrap_err().to_string().split(';').next(),
        Some("ef does not take \"decay=1\"")
    );
}

#[test]
fn intsgd_sums_exactly_up_to_its_limit_and_rounds_twice() {
    let n = 9;
    let codec = codec("intsgd", Some(0));
    let packet = |code: i8| encode(&codec, &vec![f32::from(code); n]).0;
    // 127 * (2^21 - 1) has 28 bits: rounded to f32, then multiplied by the rounded 1 / (2^21 - 1).
    let total = (1 << 21) - 1;
    for (codes, weights) in
        [([127, 127], [1 << 20, total - (1 << 20)]), ([127, -126], [total - 1, 1]), ([5, -5], [7, 7])]
    {
        let sum: i64 = codes.iter().zip(weights).map(|(code, weight)| i64::from(*code) * weight as i64).sum();
        let scale = (1.0 / f64::from(weights.iter().sum::<i32>())) as f32;
        let want = sum as f32 * scale;
        let weights = weights.map(|weight| weight as u32);
        let mean = average(&codec, &codes.map(packet), &weights, n).unwrap();
        assert_eq!(mean, vec![want.to_bits(); n], "{codes:?} {weights:?}");
    }
    // -128 is what no encoder sends; it has its meaning.
    let lie = vec![0x8080_8080; codec.packet_words(n)];
    let mean = average(&codec, &[lie.clone(), lie], &[1 << 20, (1 << 20) - 1], n).unwrap();
    let want = -268_435_328.0 * ((1.0 / f64::from(total)) as f32);
    assert_eq!(mean, vec![f32::to_bits(want); n]);
}

#[test]
fn parameters_out_of_range_are_refused_with_both_numbers() {
    let message = |codec: Codec| codec.validate().unwrap_err().to_string();
    let block = |block| Codec::Fp8(fp8::Config { block, ..fp8::Config::default() });
    assert_eq!(message(block(24)), "block is 24, fp8 takes 32 to 1024");
    assert_eq!(message(block(1032)), "block is 1032, fp8 takes 32 to 1024");
    assert_eq!(message(block(36)), "block is 36, fp8 takes multiples of 8");
    assert_eq!(
        message(Codec::IntSgd(intsgd::Config { scale_log2: 65 })),
        "scale_log2 is 65, intsgd takes -64 to 64"
    );
    let ef = Codec::Ef(ef::Config { residual_scale_log2: 5, ..ef::Config::default() });
    assert_eq!(message(ef), "residual_scale_log2 is 5, ef takes 0 to 4");
    assert!("fp8:exponent_bits=6".parse::<Codec>().is_err(), "there is no such format");
    let bad = average(&block(36), &[vec![0; 2]], &[1], 1).unwrap_err();
    assert!(matches!(bad, AverageError::Config(ConfigError::Multiple { value: 36, of: 8, .. })), "{bad}");
}
