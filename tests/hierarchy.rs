//! Sites: the bits of a computation without ranks, the documented bytes between sites, and what is refused.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "common/fleet.rs"]
mod fleet;
#[path = "common/random.rs"]
mod random;
#[path = "common/recorded.rs"]
mod recorded;

use std::num::NonZeroU32;

use fleet::fleet;
use gradwire::codec::{Codec, CodecId, Gradient, Input, Step};
use gradwire::optim::{self, AdamW, Exchanged, OneBitAdam, ZeroOneAdam};
use gradwire::shard::ShardLayout;
use gradwire::sync::packet::HEAD_BYTES;
use gradwire::sync::scale::{Moment, agree};
use gradwire::sync::{Config, NonFinite, Scale, Synchronizer, powersgd};
use gradwire::transport::Rank;
use half::{bf16, f16};
use random::Random;
use recorded::{Change, Sent, recorded};

const SEED: u64 = 0x7369_7465_7300;
const RATE: f32 = 0.125;

/// Sizes 1 and 1, 2 and 2, 1 and 3, 3 and 1 and 2: side by side, and mixed.
const SHAPES: [&[u32]; 6] =
    [&[0, 1], &[0, 0, 1, 1], &[5, 3, 5, 3], &[0, 1, 1, 1], &[0, 0, 0, 1, 2, 2], &[4, 9, 4, 2, 2, 4]];

fn gradient(rank: usize, step: u64, n: usize) -> Vec<f32> {
    let mut random = Random(SEED ^ ((rank as u64) << 32) ^ step);
    (0..n).map(|_| random.unit() as f32 * 0.25).collect()
}

fn initial(n: usize) -> Vec<f32> {
    let mut random = Random(SEED);
    (0..n).map(|_| random.unit() as f32).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn codec(text: &str) -> Codec {
    let mut codec: Codec = text.parse().unwrap();
    codec.set_scale_log2(4);
    codec
}

/// Hands `values` over in another type.
fn typed<T>(input: Input, values: &[f32], take: impl FnOnce(Gradient<'_>) -> T) -> T {
    match input {
        Input::F32 => take(values.into()),
        Input::F16 => take((&values.iter().map(|v| f16::from_f32(*v)).collect::<Vec<_>>()).into()),
        Input::Bf16 => take((&values.iter().map(|v| bf16::from_f32(*v)).collect::<Vec<_>>()).into()),
    }
}

/// A run, by which ranks and by none.
#[derive(Clone, Debug)]
struct Run {
    sites: &'static [u32],
    n: usize,
    steps: u64,
    config: Config,
    input: Input,
    /// By rank.
    samples: Vec<u32>,
    /// The step and the ranks whose gradients are not finite in it.
    bad: Option<(u64, Vec<usize>)>,
}

impl Run {
    fn new(sites: &'static [u32], n: usize, codec: Codec) -> Self {
        let config = Config {
            scale: Scale::Fixed,
            nonfinite: NonFinite::Skip,
            sites: sites.to_vec(),
            ..Config::new(codec, optim::Config::AdamW(AdamW::default()))
        };
        let samples = [3, 0, 7, 1, 12, 5][..sites.len()].to_vec();
        Self { sites, n, steps: 3, config, input: Input::F32, samples, bad: None }
    }

    fn codec(&self) -> Codec {
        let gradwire::sync::Scheme::Codec(codec) = self.config.scheme else { panic!("a codec") };
        codec
    }

    fn gradient(&self, rank: usize, step: u64) -> Vec<f32> {
        let mut gradient = gradient(rank, step, self.n);
        if self.bad.as_ref().is_some_and(|(bad, ranks)| *bad == step && ranks.contains(&rank)) {
            gradient[0] = f32::NAN;
            gradient[self.n / 2] = f32::INFINITY;
            gradient[self.n - 1] = f32::NEG_INFINITY;
        }
        gradient
    }

    /// Elements of a bad gradient that are not finite.
    fn spoiled(&self) -> u64 {
        [0, self.n / 2, self.n - 1].iter().collect::<std::collections::BTreeSet<_>>().len() as u64
    }

    /// The parameters after the last step, which are the same on every rank.
    fn ranks(&self) -> Vec<u32> {
        let all = fleet(self.sites.len() as u32, |rank, communicator| {
            let (rank, mut parameters) = (rank as usize, initial(self.n));
            let mut synchronizer = Synchronizer::new(communicator, self.config.clone(), &parameters).unwrap();
            for step in 1..=self.steps {
                let report = typed(self.input, &self.gradient(rank, step), |gradient| {
                    synchronizer.step(gradient, self.samples[rank], RATE, &mut parameters).unwrap()
                });
                let mut expected = vec![0; self.sites.len()];
                if let Some((_, ranks)) = self.bad.as_ref().filter(|(bad, _)| *bad == step) {
                    ranks.iter().for_each(|bad| expected[*bad] = self.spoiled());
                }
                assert_eq!(report.nonfinite, expected, "rank {rank}, step {step}, {self:?}");
                assert_eq!(report.skipped, expected.iter().any(|count| *count > 0), "{self:?}");
            }
            synchronizer.finish().unwrap();
            bits(&parameters)
        });
        assert!(all.iter().all(|parameters| *parameters == all[0]), "ranks differ: {self:?}");
        all[0].clone()
    }

    /// The ranks of each site, in the order of first ranks.
    fn members(&self) -> Vec<Vec<usize>> {
        let ranks = 0..self.sites.len();
        let firsts = ranks.clone().filter(|rank| !self.sites[..*rank].contains(&self.sites[*rank]));
        let same = |first: usize| ranks.clone().filter(move |rank| self.sites[*rank] == self.sites[first]);
        firsts.map(|first| same(first).collect()).collect()
    }

    /// What the site of `members` encodes: its mean in the inner codec, or the gradient of its only rank.
    fn site_mean<T>(
        &self,
        inner: Codec,
        input: Input,
        members: &[usize],
        sent: &[Vec<f32>],
        take: impl FnOnce(Gradient<'_>) -> T,
    ) -> T {
        if let [rank] = members {
            return typed(input, &sent[*rank], take);
        }
        let packets = members.iter().map(|rank| {
            let mut packet = vec![0; inner.packet_words(self.n)];
            typed(input, &sent[*rank], |it| inner.encode(Step::FIRST, it, &mut [], &mut packet));
            packet
        });
        let packets: Vec<Vec<u32>> = packets.collect();
        let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
        let weights: Vec<u32> = members.iter().map(|rank| self.samples[*rank]).collect();
        let mut mean = vec![0.0; self.n];
        if weights.iter().any(|weight| *weight > 0) {
            inner.average(&packets, &weights, &mut [], &mut mean).unwrap();
        }
        take((&mean).into())
    }

    /// The same training without ranks, slices, shards or packets that are cut. Only a mean that clips needs to know where
    /// shards begin.
    fn reference(&self) -> Vec<u32> {
        let (n, codec, members) = (self.n, self.codec(), self.members());
        let weights: Vec<u32> =
            members.iter().map(|ranks| ranks.iter().map(|rank| self.samples[*rank]).sum()).collect();
        let mut states = vec![vec![0; codec.state_words(n)]; members.len()];
        let mut mean_state = vec![0; codec.mean_state_words(members.len(), n)];
        let mut optimizer = self.config.optimizer.state(n);
        let decay = self.config.optimizer.momentum_decay();
        let mut momenta = vec![vec![0.0_f32; n]; self.sites.len()];
        let mut parameters = initial(n);
        let clips = codec.parameters().iter().any(|it| it.name == "clip" && it.value == 1);
        for step in 1..=self.steps {
            let mut sent: Vec<Vec<f32>> =
                (0..self.sites.len()).map(|rank| self.gradient(rank, step)).collect();
            let exact = optimizer.exchanged() == Exchanged::ExactGradient;
            if let Some(decay) = decay {
                for (momentum, gradient) in momenta.iter_mut().zip(&sent) {
                    for (m, g) in momentum.iter_mut().zip(gradient) {
                        *m = decay * *m + (1.0 - decay) * *g;
                    }
                }
                if !exact {
                    sent.clone_from(&momenta);
                }
            }
            let (inner, codec) = if exact { (Codec::F32, Codec::F32) } else { (self.config.inner, codec) };
            let packets = members.iter().zip(&mut states).map(|(members, state)| {
                let mut packet = vec![0; codec.packet_words(n)];
                let state = if exact { &mut [][..] } else { state };
                self.site_mean(inner, self.input, members, &sent, |mean| {
                    codec.encode(Step::new(step).unwrap(), mean, state, &mut packet)
                });
                packet
            });
            let packets: Vec<Vec<u32>> = packets.collect();
            let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
            let mut mean = vec![0.0; n];
            if clips {
                for shard in ShardLayout::new(n, self.sites.len(), codec.unit().elements).ranges() {
                    let start = codec.packet_words(shard.start);
                    let words = start..start + codec.packet_words(shard.len());
                    let packets: Vec<&[u32]> = packets.iter().map(|packet| &packet[words.clone()]).collect();
                    codec.average(&packets, &weights, &mut [], &mut mean[shard]).unwrap();
                }
            } else {
                let mean_state = if exact { &mut [][..] } else { &mut mean_state };
                codec.average(&packets, &weights, mean_state, &mut mean).unwrap();
            }
            if self.bad.as_ref().is_none_or(|(bad, _)| *bad != step) {
                optimizer.step(RATE, &mean, &mut parameters);
            }
        }
        bits(&parameters)
    }

    fn check(&self) {
        assert_eq!(self.ranks(), self.reference(), "{self:?}");
    }
}

/// Every codec, and others that keep or compute what the defaults don't.
fn codecs() -> Vec<Codec> {
    let others = [
        "ef21:momentum_log2=2",
        "topk:chunk=64,k=16,contributors=1,clip=1",
        "sign:block=64,reset_every=2",
        "loco:reset_every=2",
        "loco-block:bits=2,block=40,reset_every=2",
    ];
    CodecId::ALL.into_iter().map(CodecId::name).chain(others).map(codec).collect()
}

#[test]
fn every_rank_has_the_bits_of_means_of_sites_without_ranks() {
    for (index, codec) in codecs().into_iter().enumerate() {
        let unit = codec.unit().elements;
        for (shape, sites) in SHAPES.into_iter().enumerate() {
            // Around a byte, a word and a unit; less than a unit per rank, and several.
            for n in [1, 9, 257, 1003, 2 * unit + 1] {
                let mut run = Run::new(sites, n, codec);
                run.input = Input::ALL[(index + shape) % 3];
                run.config.inner = ["bf16", "block8", "f32"][(index + n) % 3].parse().unwrap();
                run.check();
            }
        }
    }
}

#[test]
fn every_inner_codec_and_gradient_type_goes_with_every_shape() {
    for inner in ["f32", "f16", "bf16", "fp8", "block4", "block8", "block8:block=40"] {
        for input in Input::ALL {
            for sites in SHAPES {
                let mut run = Run::new(sites, 1500, codec("loco-block"));
                (run.input, run.config.inner) = (input, inner.parse().unwrap());
                run.check();
            }
        }
    }
}

#[test]
fn ranks_and_whole_sites_may_have_no_samples() {
    for codec in ["loco", "f32", "ef21", "topk:chunk=64,k=16"].map(codec) {
        for samples in [[0, 0, 5, 4], [0, 3, 0, 0], [1, 1, 0, 0], [0, 0, 0, 2]] {
            for sites in [&[0, 0, 1, 1][..], &[0, 1, 1, 1], &[0, 1, 0, 1]] {
                let mut run = Run::new(sites, 700, codec);
                run.samples = samples.to_vec();
                run.check();
            }
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_is_skipped_on_every_rank_whoever_has_it() {
    for codec in ["loco", "f32", "ef21", "sign", "topk:chunk=64,k=16"].map(codec) {
        for inner in ["bf16", "f32"] {
            for ranks in [&[0][..], &[1], &[2], &[3], &[4], &[5], &[1, 3, 5]] {
                let mut run = Run::new(&[0, 0, 0, 1, 2, 2], 700, codec);
                run.config.inner = inner.parse().unwrap();
                // Also on a rank without samples, whose gradient is in no mean.
                run.bad = Some((2, ranks.to_vec()));
                run.check();
            }
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_is_the_same_error_on_every_rank() {
    for bad in 0..6 {
        let errors = fleet(6, |rank, communicator| {
            let config =
                Config { nonfinite: NonFinite::Fail, ..Run::new(SHAPES[4], 100, codec("loco")).config };
            let mut parameters = initial(100);
            let mut synchronizer = Synchronizer::new(communicator, config, &parameters).unwrap();
            let mut gradient = gradient(rank as usize, 1, 100);
            if rank == bad {
                gradient[7] = f32::NAN;
                gradient[99] = f32::NAN;
            }
            let error = synchronizer.step(&gradient, 1, RATE, &mut parameters).unwrap_err();
            assert_eq!(bits(&parameters), bits(&initial(100)));
            assert_eq!(error.culprit(Rank(rank)), Some(Rank(bad)));
            // The fleet is still whole.
            synchronizer.step(&[0.5; 100], 1, RATE, &mut parameters).unwrap();
            synchronizer.finish().unwrap();
            error.to_string()
        });
        let expected = format!("step 1: rank {bad} has 2 of 100 gradient elements not finite");
        assert!(errors.iter().all(|error| *error == expected), "{errors:?}");
    }
}

#[test]
fn samples_that_give_no_mean_are_the_same_error_on_every_rank() {
    for (samples, said) in [(0, "all 4 weights are 0"), (1 << 20, "the 4 weights is 33554432")] {
        let errors = fleet(4, |_, communicator| {
            let config = Run::new(SHAPES[1], 50, codec("ef21")).config;
            let mut parameters = initial(50);
            let mut synchronizer = Synchronizer::new(communicator, config, &parameters).unwrap();
            synchronizer.step(&[1.0; 50], samples, RATE, &mut parameters).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|error| error.contains(said)), "{errors:?}");
    }
}

#[test]
fn an_automatic_scale_is_that_of_the_means_of_sites() {
    let mut run = Run::new(&[0, 0, 0, 1, 1, 1], 1000, codec("loco"));
    run.samples = vec![1; 6];
    let sent: Vec<Vec<f32>> = (0..6).map(|rank| run.gradient(rank, 1)).collect();
    let moments = run
        .members()
        .into_iter()
        .map(|members| run.site_mean(run.config.inner, run.input, &members, &sent, Moment::of));
    let moments: Vec<Moment> = moments.collect();
    let scale_log2 = agree(&moments, run.codec().rms_log2()).unwrap();
    let alone = agree(&sent.iter().map(|it| Moment::of(it.into())).collect::<Vec<_>>(), 1).unwrap();
    assert!(scale_log2 > alone, "means of several ranks are smaller than gradients: {scale_log2}, {alone}");
    let mut codec = run.codec();
    codec.set_scale_log2(scale_log2);
    run.config.scheme = codec.into();
    let expected = run.reference();
    run.config.scale = Scale::Auto;
    assert_eq!(run.ranks(), expected);
}

#[test]
fn momenta_travel_through_sites_too_and_exact_gradients_as_f32() {
    let adam = AdamW::default();
    let warmup = NonZeroU32::new(2).unwrap();
    for optimizer in [
        optim::Config::OneBitAdam(OneBitAdam { adam, warmup }),
        optim::Config::ZeroOneAdam(ZeroOneAdam { adam, ..ZeroOneAdam::default() }),
    ] {
        for codec in ["sign", "ef21"].map(codec) {
            for sites in &SHAPES[1..] {
                let mut run = Run::new(sites, 777, codec);
                run.config.optimizer = optimizer;
                run.steps = 5;
                run.check();
            }
        }
    }
}

/// Bytes and frames that went from ranks of site `from` to those of `to` in the collectives `tags`, in all steps.
fn carried(record: &[Sent], sites: &[u32], from: u32, to: u32, tags: &[u16]) -> (u64, u64) {
    let of = |sent: &&Sent| {
        (sites[sent.from], sites[sent.to]) == (from, to) && sent.step >= 1 && tags.contains(&sent.tag)
    };
    let payloads = || record.iter().filter(of).map(|sent| sent.payload);
    (payloads().sum(), payloads().count() as u64)
}

#[test]
fn between_sites_go_the_bytes_that_the_documentation_says() {
    // 600 units of 8, of which 100 are each rank's: nothing is rounded.
    let (n, steps, ranks) = (4800, 3, 6);
    let (site_means, exchange, parameters, relay) = (0, 2, 8, 11);
    for codec in [codec("loco"), codec("f32")] {
        for sites in [[0, 0, 0, 1, 2, 2], [0, 1, 0, 1, 0, 1], [0, 1, 2, 3, 4, 5]] {
            let (reports, record) = recorded(
                6,
                |_, _| {},
                |rank, communicator| {
                    let config = Config { sites: sites.to_vec(), ..Run::new(SHAPES[4], n, codec).config };
                    let mut parameters = initial(n);
                    let mut synchronizer = Synchronizer::new(communicator, config, &parameters).unwrap();
                    let steps = (1..=steps).map(|step| {
                        let gradient = gradient(rank as usize, step, n);
                        synchronizer.step(&gradient, 1, RATE, &mut parameters).unwrap()
                    });
                    steps.collect::<Vec<_>>()
                },
            );
            let case = format!("{codec}, {sites:?}");
            let flat = sites[5] == 5;
            let (frames, tags) = if flat {
                // The tail of a packet is a frame of its own.
                (3, vec![exchange, parameters])
            } else {
                (4, vec![site_means, exchange, parameters, relay])
            };
            let mut names = sites.to_vec();
            names.sort_unstable();
            names.dedup();
            let size = |site| sites.iter().filter(|other| **other == site).count() as u64;
            let (q_n, p_n, n) = (4 * codec.packet_words(n) as u64, 2 * n as u64, n as u64);
            let (mut inside, mut across) = (0, 0);
            for from in names.iter().copied() {
                let s = size(from);
                for to in names.iter().copied().filter(|to| *to != from) {
                    let t = size(to);
                    let price = q_n * t / ranks + 4 * n * s / ranks + 32 * s * t;
                    let found = carried(&record, &sites, from, to, &tags);
                    assert_eq!(found, (steps * price, steps * frames * s * t), "{case}: {from} to {to}");
                    across += found.0;
                }
                let within = |tag| carried(&record, &sites, from, from, &[tag]).0;
                assert_eq!(within(site_means), steps * (p_n + 32 * s) * (s - 1), "{case}");
                let least = 32 * s * (s - 1);
                let range = steps * least..=steps * (least + q_n * s / ranks);
                assert!(range.contains(&within(exchange)), "{case}: {} in {range:?}", within(exchange));
                assert_eq!(within(parameters), steps * 4 * n * s * (s - 1) / ranks, "{case}");
                assert_eq!(within(relay), steps * 4 * n * (ranks - s) * (s - 1) / ranks, "{case}");
                inside += carried(&record, &sites, from, from, &tags).0;
            }
            let reports = || reports.iter().flatten();
            let all: u64 = reports().map(|it| it.gradient_packet_bytes + it.parameter_packet_bytes).sum();
            assert_eq!(all, inside + across, "{case}");
            let wan: u64 = reports().map(|it| it.wan_packet_bytes).sum();
            assert_eq!(wan, across, "{case}");
        }
    }
}

#[test]
fn a_packet_that_no_encoder_sends_is_told_with_the_rank_that_sent_it() {
    // The exponent of the first block in a packet from rank 4: of the inner codec, then of the run's to rank 2, whose shard
    // begins in the slice of rank 3, so that it is the second piece of the second site's packet.
    let inner: Change = |sent, payload| {
        if (sent.from, sent.to, sent.step, sent.tag) == (4, 3, 1, 0) {
            payload[HEAD_BYTES] = 0xFF;
        }
    };
    let outer: Change = |sent, payload| {
        if (sent.from, sent.to, sent.step, sent.tag) == (4, 2, 1, 2) {
            payload[HEAD_BYTES] = 0xFF;
        }
    };
    let fp8: Codec = "fp8".parse().unwrap();
    let unit = fp8.unit().elements;
    for (change, said) in [
        (inner, "packet 4, unit 0: the exponent of a block is 255, must be "),
        (outer, "packet 4, unit 1: the exponent of a block is 255, must be "),
    ] {
        let (errors, _) = recorded(5, change, |rank, communicator| {
            // Ten units: shards of two, slices of the second site of five.
            let mut run = Run::new(&[0, 0, 0, 1, 1], 10 * unit, fp8);
            run.config.inner = fp8;
            let mut parameters = initial(run.n);
            let mut synchronizer = Synchronizer::new(communicator, run.config, &parameters).unwrap();
            let gradient = gradient(rank as usize, 1, run.n);
            synchronizer.step(&gradient, 1, RATE, &mut parameters).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|error| error.contains(said)), "{errors:?}");
    }
}

#[test]
fn a_run_goes_on_from_its_checkpoints_to_the_bit() {
    let warmup = NonZeroU32::new(2).unwrap();
    let one_bit = optim::Config::OneBitAdam(OneBitAdam { warmup, ..OneBitAdam::default() });
    for (name, scale, optimizer) in [
        ("loco", Scale::Auto, optim::Config::AdamW(AdamW::default())),
        ("ef21", Scale::Fixed, optim::Config::AdamW(AdamW::default())),
        ("intsgd", Scale::Auto, optim::Config::AdamW(AdamW::default())),
        ("sign", Scale::Fixed, one_bit),
    ] {
        let (n, sites) = (1003, SHAPES[4]);
        let config = Config { scale, optimizer, ..Run::new(sites, n, codec(name)).config };
        let whole = fleet(6, |rank, communicator| {
            let mut parameters = initial(n);
            let mut synchronizer = Synchronizer::new(communicator, config.clone(), &parameters).unwrap();
            let mut saved = None;
            for step in 1..=6 {
                synchronizer.step(&gradient(rank as usize, step, n), 2, RATE, &mut parameters).unwrap();
                if step == 3 {
                    saved = Some((synchronizer.checkpoint().unwrap(), parameters.clone()));
                }
            }
            synchronizer.finish().unwrap();
            (saved.unwrap(), bits(&parameters))
        });
        let again = fleet(6, |rank, communicator| {
            let (checkpoint, saved) = &whole[rank as usize].0;
            assert_eq!(checkpoint.sites, sites);
            let mut synchronizer = Synchronizer::new(communicator, config.clone(), &initial(n)).unwrap();
            synchronizer.restore(checkpoint).unwrap();
            let mut parameters = saved.clone();
            for step in 4..=6 {
                synchronizer.step(&gradient(rank as usize, step, n), 2, RATE, &mut parameters).unwrap();
            }
            synchronizer.finish().unwrap();
            bits(&parameters)
        });
        assert!(again.iter().zip(&whole).all(|(again, (_, whole))| again == whole), "{name}");
    }
}

#[test]
fn a_checkpoint_of_other_sites_is_refused_though_every_length_fits() {
    let config = |sites: &'static [u32]| Run::new(sites, 128, codec("loco")).config;
    let saved = fleet(4, |_, communicator| {
        let mut synchronizer = Synchronizer::new(communicator, config(&[0, 0, 1, 1]), &initial(128)).unwrap();
        let checkpoint = synchronizer.checkpoint().unwrap();
        synchronizer.finish().unwrap();
        checkpoint
    });
    let errors = fleet(4, |rank, communicator| {
        let mut synchronizer = Synchronizer::new(communicator, config(&[0, 1, 0, 1]), &initial(128)).unwrap();
        synchronizer.restore(&saved[rank as usize]).unwrap_err().to_string()
    });
    assert!(errors.iter().any(|error| error.starts_with("fingerprint of sites is ")), "{errors:?}");
}

#[test]
fn sites_that_the_caller_cannot_have_are_refused_with_both_names_or_numbers() {
    let refused = |config: Config| {
        let errors = fleet(3, |_, communicator| {
            let refused = Synchronizer::new(communicator, config.clone(), &initial(10));
            refused.map(|_| ()).unwrap_err().to_string()
        });
        errors[0].clone()
    };
    let config =
        |sites: &[u32]| Config { sites: sites.to_vec(), ..Run::new(&[0, 0, 1], 10, codec("loco")).config };
    assert_eq!(refused(config(&[0, 0])), "caller's sites are of 2 ranks, the world has 3");
    let said = refused(Config { inner: codec("loco"), ..config(&[0, 0, 1]) });
    assert!(said.starts_with("caller's inner codec is loco, inside a site only codecs without"), "{said}");
    let said = refused(Config { scheme: powersgd::Config::default().into(), ..config(&[0, 0, 1]) });
    assert_eq!(said, "caller's scheme is powersgd in 2 sites, sites need a codec");
    // Where there is no hierarchy, nobody asks for the inner codec.
    fleet(3, |_, communicator| {
        let flat = Config { inner: codec("loco"), ..config(&[0, 0, 0]) };
        Synchronizer::new(communicator, flat, &initial(10)).unwrap().finish().unwrap();
    });
}

#[test]
fn one_site_and_sites_of_one_rank_are_the_flat_exchange() {
    let run = |sites: &[u32]| {
        let all = fleet(3, |rank, communicator| {
            let config = Config { sites: sites.to_vec(), ..Run::new(&[0, 0, 1], 500, codec("loco")).config };
            let mut parameters = initial(500);
            let mut synchronizer = Synchronizer::new(communicator, config, &parameters).unwrap();
            for step in 1..=3 {
                let report =
                    synchronizer.step(&gradient(rank as usize, step, 500), 1, RATE, &mut parameters).unwrap();
                assert_eq!(report.wan_packet_bytes > 0, !matches!(sites, [] | [4, 4, 4]), "{sites:?}");
            }
            (synchronizer.checkpoint().unwrap().sites, bits(&parameters))
        });
        all[0].clone()
    };
    let flat = run(&[]);
    assert_eq!(run(&[4, 4, 4]), flat);
    assert_eq!(run(&[2, 1, 0]), flat);
    assert_ne!(run(&[0, 0, 1]), flat);
}
