use super::*;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_packet_carries_every_bit_and_counts_what_is_not_finite() {
    let gradient =
        [1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0xFFFF_FFFF), -0.0, 1.0e-45];
    let mut packet = [0; 7];
    assert_eq!(encode_f32((&gradient).into(), &mut packet), Stats { nonfinite: 4, saturated: 0 });
    assert_eq!(packet.to_vec(), bits(&gradient));
}

#[test]
fn a_world_of_one_gets_its_own_normal_gradient_back_bit_for_bit_for_any_weight() {
    let odd = [0.0, -0.0, 1.0, -1.5, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1.0e-45, -1.0e-40, 0.1];
    let packet = bits(&odd);
    let want = bits(&odd.map(|value| if value.is_normal() { value } else { 0.0 }));
    for weight in [1, 3, 7, 1000, (1 << 21) - 1] {
        let mut mean = [7.0; 10];
        assert_eq!(average_f32(&[&packet], &[weight], &mut mean), Ok(()));
        assert_eq!(bits(&mean), want, "weight {weight}");
    }
}

#[test]
fn a_rank_without_samples_is_not_read_and_a_short_packet_is_named() {
    let (good, nan) = (bits(&[2.0, -0.5]), bits(&[f32::NAN, f32::NAN]));
    let mut mean = [0.0; 2];
    assert_eq!(average_f32(&[&nan, &good], &[0, 4], &mut mean), Ok(()));
    assert_eq!(bits(&mean), good);
    assert_eq!(
        average_f32(&[&good, &good[..1]], &[1, 1], &mut mean),
        Err(AverageError::PacketLength { index: 1, words: 1, expected: 2, elements: 2 })
    );
    assert_eq!(
        average_half(Half::F16, &[&good[..1], &good], &[1, 1], &mut mean),
        Err(AverageError::PacketLength { index: 1, words: 2, expected: 1, elements: 2 })
    );
}

#[test]
fn an_element_that_is_not_finite_makes_its_mean_nan_and_disturbs_no_neighbour() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
        let packets = [bits(&[1.0, bad, 3.0]), bits(&[2.0, 2.0, 5.0])];
        let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
        let mut mean = [0.0; 3];
        assert_eq!(average_f32(&packets, &[1, 1], &mut mean), Ok(()));
        assert_eq!(bits(&mean), [1.5_f32.to_bits(), super::super::mean::NAN, 4.0_f32.to_bits()]);
    }
}

#[test]
fn half_types_clamp_what_is_finite_and_send_zero_for_what_is_not() {
    let gradient =
        [65519.0, 65520.0, -1.0e30, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.1, 1.0e-45, 2.0];
    let mut packet = [u32::MAX; 5];
    let stats = encode_half(Half::F16, (&gradient).into(), &mut packet);
    assert_eq!(stats, Stats { nonfinite: 3, saturated: 2 });
    assert_eq!(packet, [0x7BFF_7BFF, 0x0000_FBFF, 0x0000_0000, 0x0000_AE66, 0x0000_4000]);

    let gradient = [f32::MAX, f32::MIN, f32::from_bits(0x7F7F_7FFF), f32::NAN, 1.0, -0.0];
    let mut packet = [u32::MAX; 3];
    let stats = encode_half(Half::Bf16, (&gradient).into(), &mut packet);
    assert_eq!(stats, Stats { nonfinite: 1, saturated: 2 });
    assert_eq!(packet, [0xFF7F_7F7F, 0x0000_7F7F, 0x8000_3F80]);
}

#[test]
fn half_types_are_rounded_as_narrow_does_for_every_upper_half_and_around_every_tie() {
    use super::super::convert::{Overflow, narrow};
    let lows: Vec<u32> =
        (0..8).flat_map(|k| [0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF].map(|low| k * 0x2000 + low)).collect();
    for (half, format) in [(Half::F16, F16), (Half::Bf16, BF16)] {
        for upper in 0..1_u32 << 16 {
            let values: Vec<f32> = lows.iter().map(|low| f32::from_bits(upper << 16 | low)).collect();
            let mut packet = [0; 24];
            encode_half(half, (&values).into(), &mut packet);
            for (index, value) in values.iter().enumerate() {
                let code = packet[index / 2] >> (16 * (index % 2)) & 0xFFFF;
                let want = narrow(format, Overflow::Saturate, value.to_bits());
                let want = if value.is_finite() { want } else { 0 };
                assert_eq!(code, u32::from(want), "{half:?} {:#010x}", value.to_bits());
            }
        }
    }
}

#[test]
#[should_panic(expected = "packet of 2 words for 3 f32 elements")]
fn a_packet_of_another_length_than_the_gradient_panics_with_both_numbers() {
    encode_f32((&[0.0_f32; 3]).into(), &mut [0; 2]);
}

#[test]
#[should_panic(expected = "packet of 1 words for 3 elements, which need 2")]
fn a_half_packet_of_another_length_panics_with_both_numbers() {
    encode_half(Half::Bf16, (&[0.0_f32; 3]).into(), &mut [0; 1]);
}
