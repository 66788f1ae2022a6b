//! States from outside on every adapter: what is taken is read as the definition reads it, to the bit.

#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(clippy::cast_possible_truncation, reason = "random bits are cut to size, values rounded to f32")]

#[path = "common/gpu.rs"]
mod common;

use common::{Random, codecs, gpus};
use gradwire::codec::{Codec, CodecId, Input, StateError, Step};
use gradwire::gpu::{Average, Encode, GpuError};
use gradwire::optim;
use gradwire::sync::{Backend, Checkpoint, Config, OptimizerOn, Scale, Synchronizer};
use gradwire::transport::{self, Communicator, memory};

const SEED: u64 = 20_261_202;

/// Those of every parity test, and states of other sizes and ends of scales.
fn stateful() -> Vec<Codec> {
    let others = [
        "loco-block:bits=4,block=1024,base_log2=55,decay=1,reset_every=4",
        "loco-block:bits=2,block=72,base_log2=-80,decay=64",
        "loco-block:bits=2,block=32,base_log2=0,decay=255",
        "sign",
        "sign:block=40,base_log2=-20",
        "sign:block=96,base_log2=55",
        "sign:block=1024,base_log2=-80",
        "ef21:block=40,base_log2=55,momentum_log2=1",
        "ef21:block=136,base_log2=-80,momentum_log2=16",
        "ef21:block=1024,base_log2=-20",
    ];
    let others = others.map(|text| text.parse().unwrap());
    codecs().into_iter().chain(others).filter(|codec| codec.unit().state_words > 0).collect()
}

/// Random words, of which only what [`Codec::check_state`] refuses is changed.
fn any_state(codec: &Codec, elements: usize, random: &mut Random) -> Vec<u32> {
    let mut state: Vec<u32> = (0..codec.state_words(elements)).map(|_| random.bits() as u32).collect();
    loop {
        match codec.check_state(elements, &state) {
            Ok(()) => return state,
            Err(StateError::Behind { word, found, .. }) => state[word] &= !found,
            Err(StateError::NotFinite { word, .. }) => state[word] &= !(1 << 30),
            // A byte of all ones, or of the sign alone.
            Err(StateError::Range { word, .. }) => state[word] &= 0x7F7F_7F7F,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn every_state_that_is_taken_is_read_as_the_definition_reads_it() {
    for gpu in gpus() {
        for codec in stateful() {
            for elements in [1, 70, 2305] {
                let mut random = Random(SEED ^ elements as u64);
                let mut state = any_state(&codec, elements, &mut random);
                let mut encode = Encode::new(&gpu, &codec, Input::F32, elements).unwrap();
                encode.set_state(&state).unwrap();
                let words = codec.packet_words(elements);
                for step in 1..=2 {
                    // Around the magnitude of any residual, and zeros, so that it alone decides.
                    let scale = 2.0_f32.powi(random.below(200) as i32 - 100);
                    let mut value = || match random.below(12) {
                        0 => f32::NAN,
                        1..5 => 0.0,
                        _ => random.unit() as f32 * scale,
                    };
                    let values: Vec<f32> = (0..elements).map(|_| value()).collect();
                    let (mut got, mut want) = (vec![0; words], vec![0; words]);
                    let step = Step::new(step).unwrap();
                    let stats = encode.encode(&codec, step, (&values).into(), &mut got).unwrap();
                    let case = format!("{codec}, {elements} elements, step {step}, {}", gpu.info().name);
                    assert_eq!(codec.encode(step, (&values).into(), &mut state, &mut want), stats, "{case}");
                    assert_eq!((&got, &encode.state().unwrap()), (&want, &state), "{case}");
                    assert_eq!(codec.check_state(elements, &state), Ok(()), "{case}");
                }
            }
        }
    }
}

#[test]
fn a_state_that_is_refused_leaves_the_devices_as_it_was() {
    for gpu in gpus() {
        let codec = Codec::new(CodecId::Ef21);
        let elements = 9;
        let mut encode = Encode::new(&gpu, &codec, Input::F32, elements).unwrap();
        let mut packet = vec![0; codec.packet_words(elements)];
        encode.encode(&codec, Step::FIRST, (&[1.5; 9]).into(), &mut packet).unwrap();
        let before = encode.state().unwrap();
        for (word, bits) in [(3, 0x7F80_0000), (9, 1)] {
            let mut state = before.clone();
            state[word] = bits;
            let error = encode.set_state(&state).unwrap_err();
            assert!(matches!(error, GpuError::State(_)), "{error}");
            assert_eq!(encode.state().unwrap(), before);
        }

        let mut average = Average::new(&gpu, &codec, elements).unwrap();
        average.average(&codec, &[&packet], &[1], &mut [0.0; 9]).unwrap();
        let before = average.state().unwrap();
        let mut state = before.clone();
        state[0] = f32::NAN.to_bits();
        let error = average.set_state(&state).unwrap_err();
        assert_eq!(error.to_string(), "word 0 of the mean state is NaN, must be finite");
        assert_eq!(average.state().unwrap(), before);
    }
}

#[test]
fn a_rank_on_a_device_refuses_what_a_rank_on_the_cpu_refuses_and_is_as_it_was() {
    for gpu in gpus() {
        for optimizer_on in [OptimizerOn::Cpu, OptimizerOn::Device] {
            let optimizer = optim::Config::AdamW(optim::AdamW::default());
            let codec: Codec = "topk:chunk=64,k=9".parse().unwrap();
            let config = Config {
                scale: Scale::Fixed,
                backend: Backend::Gpu(gpu.clone()),
                optimizer_on,
                ..Config::new(codec, optimizer)
            };
            let attempt = |spoil: fn(&mut Checkpoint)| {
                let mesh = memory::mesh(1, 0).remove(0);
                let communicator = Communicator::new(Box::new(mesh), transport::Limits::default());
                let mut parameters = [0.5; 70];
                let mut synchronizer = Synchronizer::new(communicator, config.clone(), &parameters).unwrap();
                synchronizer.step(&[0.25; 70], 1, 0.1, &mut parameters).unwrap();
                let before = synchronizer.checkpoint().unwrap();
                let mut checkpoint = before.clone();
                spoil(&mut checkpoint);
                let error = synchronizer.restore(&checkpoint).unwrap_err();
                assert_eq!(synchronizer.checkpoint().unwrap(), before, "{error}");
                error.to_string()
            };
            assert_eq!(
                attempt(|checkpoint| checkpoint.codec_state[100] = 1),
                "codec state in the checkpoint: word 100 of the state has 0x00000001 behind the last of 70 elements, \
                 must be 0 there"
            );
            assert_eq!(
                attempt(|checkpoint| checkpoint.parameters[69] = f32::INFINITY),
                "parameters[69] is inf in the checkpoint, must be finite"
            );
            assert_eq!(
                attempt(|checkpoint| checkpoint.optimizer.vectors[1][2] = -2.0),
                "optimizer's square[2] is -2.0 in the checkpoint, must be 0.0 to 3.4028234663852886e38"
            );
        }
    }
}
