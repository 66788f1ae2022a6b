//! Kernels in the caller's commands and buffers equal the CPU definition in every bit, and touch nothing else.

#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(clippy::cast_possible_truncation, reason = "sizes of tests")]

#[path = "common/gpu.rs"]
mod common;

use common::{Random, Values, before_reset, codecs, gpus, gradient};
use gradwire::codec::{AverageError, Codec, CodecId, Input, Step};
use gradwire::gpu::record::{
    Average, AverageBuffers, AverageBytes, Encode, EncodeBuffers, EncodeBytes, IN_FLIGHT,
};
use gradwire::gpu::{Gpu, GpuError, wgpu};
use wgpu::{BufferBinding, BufferUsages};

const SEED: u64 = 20_261_129;

/// What stands everywhere that nobody may write.
const PAINT: u32 = 0x5A5A_5A5A;

/// One buffer from which parts are handed out, as pools do, each behind some painted words.
struct Page {
    gpu: Gpu,
    buffer: wgpu::Buffer,
    parts: Vec<(u64, u64)>,
}

impl Page {
    fn new(gpu: &Gpu, sizes: &[u64]) -> Self {
        let mut end = 0_u64;
        let parts = sizes.iter().map(|&bytes| {
            let start = end + 256;
            end = (start + bytes).next_multiple_of(256);
            (start, bytes)
        });
        let parts: Vec<_> = parts.collect();
        let buffer = gpu.device().create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: end + 256,
            usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let page = Self { gpu: gpu.clone(), buffer, parts };
        page.fill(0, &vec![PAINT; (page.buffer.size() / 4) as usize]);
        for (part, bytes) in sizes.iter().enumerate() {
            page.write(part, &vec![0; (bytes / 4) as usize]);
        }
        page
    }

    fn fill(&self, offset: u64, words: &[u32]) {
        self.gpu.queue().write_buffer(&self.buffer, offset, bytemuck::cast_slice(words));
    }

    fn write(&self, part: usize, words: &[u32]) {
        assert!(4 * words.len() as u64 <= self.parts[part].1, "part {part}");
        self.fill(self.parts[part].0, words);
    }

    fn at(&self, part: usize) -> BufferBinding<'_> {
        let (offset, bytes) = self.parts[part];
        BufferBinding { buffer: &self.buffer, offset, size: wgpu::BufferSize::new(bytes) }
    }

    /// Submits `encoder` and returns the words of every part, after looking at the paint between them.
    fn submit(&self, mut encoder: wgpu::CommandEncoder) -> Vec<Vec<u32>> {
        let device = self.gpu.device();
        let readback = device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: self.buffer.size(),
            usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        encoder.copy_buffer_to_buffer(&self.buffer, 0, &readback, 0, self.buffer.size());
        self.gpu.queue().submit([encoder.finish()]);
        readback.map_async(wgpu::MapMode::Read, .., Result::unwrap);
        device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(&readback.get_mapped_range(..).unwrap()[..]);
        let mut painted = vec![true; words.len()];
        let parts = self.parts.iter().map(|&(offset, bytes)| {
            let part = (offset / 4) as usize..((offset + bytes) / 4) as usize;
            painted[part.clone()].fill(false);
            words[part].to_vec()
        });
        let parts = parts.collect();
        let spoiled = (0..words.len()).find(|&word| painted[word] && words[word] != PAINT);
        assert_eq!(spoiled, None, "a word outside all parts {:?} was written", self.parts);
        parts
    }
}

fn commands(gpu: &Gpu) -> wgpu::CommandEncoder {
    gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
}

/// The gradient as the device has it: whole words, zeros up to whole units.
fn words(values: &Values, bytes: u64) -> Vec<u32> {
    let mut padded = values.gradient().as_bytes().to_vec();
    padded.resize(bytes as usize, 0);
    bytemuck::pod_collect_to_vec(&padded)
}

/// Codecs whose packets are averaged as they are.
fn averaged() -> impl Iterator<Item = Codec> {
    codecs().into_iter().filter(|codec| codec.clip(&[], &[], 0).is_none())
}

fn codec_that_clips() -> Codec {
    let mut codec = Codec::new(CodecId::TopK);
    assert!(codec.set_parameter("clip", 1), "topk has a parameter to clip");
    codec
}

/// Painted state and packet of an encoder of `codec` in one page: gradient, packet, stats, and state if there is one.
struct Encoding {
    page: Page,
    need: EncodeBytes,
    encode: Encode,
}

impl Encoding {
    fn new(gpu: &Gpu, codec: &Codec, input: Input, elements: usize) -> Self {
        let need = EncodeBytes::new(codec, input, elements);
        let mut sizes = vec![need.gradient, need.packet, need.stats];
        sizes.extend((need.state > 0).then_some(need.state));
        let page = Page::new(gpu, &sizes);
        let buffers = EncodeBuffers {
            gradient: page.at(0),
            packet: page.at(1),
            stats: page.at(2),
            state: (need.state > 0).then(|| page.at(3)),
        };
        let encode = Encode::new(gpu, codec, input, elements, &buffers).unwrap();
        Self { page, need, encode }
    }
}

#[test]
fn encoding_in_a_part_of_the_callers_page_equals_the_definition_and_writes_nowhere_else() {
    for gpu in gpus() {
        for codec in codecs() {
            for input in Input::ALL {
                for elements in [1, 9, 2305, 4097] {
                    let mut on_device = Encoding::new(&gpu, &codec, input, elements);
                    let mut random = Random(SEED + elements as u64);
                    let mut state = vec![0; codec.state_words(elements)];
                    let mut packet = vec![0; codec.packet_words(elements)];
                    for number in before_reset(&codec)..before_reset(&codec) + 3 {
                        let step = Step::new(number).unwrap();
                        let values = gradient(&mut random, elements, &codec, input);
                        on_device.page.write(0, &words(&values, on_device.need.gradient));
                        on_device.page.write(1, &vec![PAINT; (on_device.need.packet / 4) as usize]);
                        let mut encoder = commands(&gpu);
                        on_device.encode.record(&mut encoder, &codec, step).unwrap();
                        let found = on_device.page.submit(encoder);
                        let stats = codec.encode(step, values.gradient(), &mut state, &mut packet);
                        let context = format!("{}, {codec}, {input:?}, {elements} elements", gpu.info().name);
                        assert_eq!(found[1][..packet.len()], packet, "packet: {context}");
                        let counts = [stats.nonfinite, stats.saturated];
                        assert_eq!(found[2], counts.map(|count| count as u32), "counts: {context}");
                        assert_eq!(found.get(3).map_or(&[][..], Vec::as_slice), state, "state: {context}");
                    }
                }
            }
        }
    }
}

#[test]
fn averaging_in_parts_of_the_callers_page_equals_the_definition_and_writes_nowhere_else() {
    const RANKS: usize = 3;
    for gpu in gpus() {
        for codec in averaged() {
            for elements in [1, 9, 2305, 4097] {
                let need = AverageBytes::new(&codec, RANKS, elements);
                let mut sizes = vec![need.packets, need.mean];
                sizes.extend((need.state > 0).then_some(need.state));
                let page = Page::new(&gpu, &sizes);
                let state = (need.state > 0).then(|| page.at(2));
                let buffers = AverageBuffers { packets: page.at(0), mean: page.at(1), state };
                let mut average = Average::new(&gpu, &codec, RANKS, elements, &buffers).unwrap();
                let mut random = Random(SEED + elements as u64);
                let mut state = vec![0; codec.mean_state_words(RANKS, elements)];
                for weights in [[3, 0, 5], [3, 0, 5], [1000, 7, 99_991]] {
                    let mut rows = vec![0; (need.packets / 4) as usize];
                    let mut packets = Vec::new();
                    for row in rows.chunks_mut((need.row / 4) as usize) {
                        let values = gradient(&mut random, elements, &codec, Input::F32);
                        let mut packet = vec![0; codec.packet_words(elements)];
                        let mut state = vec![0; codec.state_words(elements)];
                        codec.encode(Step::FIRST, values.gradient(), &mut state, &mut packet);
                        row[..packet.len()].copy_from_slice(&packet);
                        packets.push(packet);
                    }
                    page.write(0, &rows);
                    let mut encoder = commands(&gpu);
                    average.record(&mut encoder, &codec, &weights).unwrap();
                    let found = page.submit(encoder);
                    let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
                    let mut mean = vec![0.0_f32; elements];
                    codec.average(&packets, &weights, &mut state, &mut mean).unwrap();
                    let mean: Vec<u32> = mean.iter().map(|value| value.to_bits()).collect();
                    let context = format!("{}, {codec}, {elements} elements", gpu.info().name);
                    assert_eq!(found[1][..elements], mean, "mean: {context}");
                }
            }
        }
    }
}

#[test]
fn steps_recorded_into_one_pass_each_keep_their_own_parameters() {
    // Two encodes of the same gradient after each other, at other scales, with one submission for all of them.
    let codec = |index: usize| {
        let mut codec = Codec::new(CodecId::Loco);
        codec.set_scale_log2(index as i8);
        codec
    };
    for gpu in gpus() {
        let elements = 203;
        let mut on_device = Encoding::new(&gpu, &codec(0), Input::F32, elements);
        let values = gradient(&mut Random(SEED), elements, &codec(0), Input::F32);
        let (mut state, mut packet) =
            (vec![0; codec(0).state_words(elements)], vec![0; elements.div_ceil(8)]);
        let (mut nonfinite, mut saturated) = (0, 0);
        // Twice around the slots.
        for round in 0..2 {
            on_device.page.write(0, &words(&values, on_device.need.gradient));
            let mut encoder = commands(&gpu);
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            for index in 0..IN_FLIGHT {
                // The same once more needs no slot.
                for _ in 0..2 {
                    on_device.encode.record_in(&mut pass, &codec(index), Step::FIRST).unwrap();
                    let stats = codec(index).encode(Step::FIRST, values.gradient(), &mut state, &mut packet);
                    nonfinite += stats.nonfinite;
                    saturated += stats.saturated;
                }
            }
            drop(pass);
            let found = on_device.page.submit(encoder);
            assert_eq!(found[1], packet, "round {round}");
            assert_eq!(found[3], state, "round {round}");
            assert_eq!(found[2], [nonfinite as u32, saturated as u32], "nobody clears the counts");
        }
    }
}

#[test]
fn words_that_no_encoder_writes_stay_inside_the_buffers() {
    for gpu in gpus() {
        for codec in averaged() {
            let elements = codec.unit().elements * 2 + 9;
            let need = AverageBytes::new(&codec, 2, elements);
            let mut sizes = vec![need.packets, need.mean];
            sizes.extend((need.state > 0).then_some(need.state));
            let page = Page::new(&gpu, &sizes);
            let state = (need.state > 0).then(|| page.at(2));
            let buffers = AverageBuffers { packets: page.at(0), mean: page.at(1), state };
            let mut average = Average::new(&gpu, &codec, 2, elements, &buffers).unwrap();
            let mut random = Random(SEED);
            for fill in [None, Some(0), Some(u32::MAX), Some(0x8000_0000), None] {
                let word = |_| fill.unwrap_or_else(|| random.bits() as u32);
                let rows: Vec<u32> = (0..need.packets / 4).map(word).collect();
                page.write(0, &rows);
                let mut encoder = commands(&gpu);
                average.record(&mut encoder, &codec, &[(1 << 21) - 2, 1]).unwrap();
                // `submit` looks at the paint around every part.
                assert_eq!(page.submit(encoder)[0], rows, "{codec}");
            }
        }
    }
}

#[test]
fn buffers_that_do_not_fit_are_refused_with_both_numbers() {
    let codec = Codec::new(CodecId::Loco);
    for gpu in gpus() {
        let page = Page::new(&gpu, &[4096, 4096, 4096, 4096]);
        let alignment = u64::from(gpu.device().limits().min_storage_buffer_offset_alignment);
        let good = EncodeBuffers {
            gradient: page.at(0),
            state: Some(page.at(1)),
            packet: page.at(2),
            stats: page.at(3),
        };
        let refused = |codec: &Codec, elements, buffers: &EncodeBuffers<'_>| {
            Encode::new(&gpu, codec, Input::F32, elements, buffers).unwrap_err().to_string()
        };
        assert_eq!(refused(&codec, 1025, &good), "gradient has 4096 bytes to bind, the kernel needs 4128");
        let bad = EncodeBuffers { state: None, ..good.clone() };
        assert_eq!(refused(&codec, 100, &bad), "state has 0 bytes to bind, the kernel needs 104");
        let end = BufferBinding { offset: page.buffer.size(), size: None, buffer: &page.buffer };
        let bad = EncodeBuffers { packet: end, ..good.clone() };
        assert_eq!(refused(&codec, 100, &bad), "packet has 0 bytes to bind, the kernel needs 52");
        let offset = good.packet.offset + alignment / 2;
        let bad = EncodeBuffers { packet: BufferBinding { offset, ..page.at(2) }, ..good.clone() };
        let message = format!("packet begins at byte {offset}, the device binds at multiples of {alignment}");
        assert_eq!(refused(&codec, 100, &bad), message);
        let bad = EncodeBuffers { stats: page.at(0), ..good.clone() };
        assert_eq!(refused(&codec, 100, &bad), "gradient and stats overlap in one buffer");
        assert_eq!(refused(&codec, 0, &good), "gradient has 0 elements, this state was made for 1");
        let huge = refused(&codec, (1 << 29) + 1, &good);
        assert!(huge.contains("536870912") && huge.contains("536870913"), "{huge}");
        let plain = gpu.device().create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: 4096,
            usage: BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let plain = BufferBinding { buffer: &plain, offset: 0, size: None };
        let error =
            Encode::new(&gpu, &codec, Input::F32, 8, &EncodeBuffers { packet: plain, ..good.clone() });
        assert!(matches!(error, Err(GpuError::Device { .. })), "no storage usage: {error:?}");

        let buffers = AverageBuffers { packets: page.at(0), mean: page.at(1), state: None };
        let mut average = Average::new(&gpu, &codec, 2, 100, &buffers).unwrap();
        let mut encoder = commands(&gpu);
        let error = average.record(&mut encoder, &codec, &[1]).unwrap_err();
        assert_eq!(error.to_string(), "weights has 1 ranks, this state was made for 2");
        let error = average.record(&mut encoder, &codec, &[0, 0]).unwrap_err();
        assert!(matches!(error, GpuError::Average(AverageError::NoSamples { .. })), "{error}");
        let error = average.record(&mut encoder, &codec, &[1 << 21, 1]).unwrap_err();
        assert!(matches!(error, GpuError::Average(AverageError::WeightSum { .. })), "{error}");
        let clips = codec_that_clips();
        let error = Average::new(&gpu, &clips, 2, 100, &buffers).unwrap_err();
        assert!(matches!(error, GpuError::HostStep { codec: CodecId::TopK }), "{error}");
        let error = Average::new(&gpu, &codec, 0, 100, &buffers).unwrap_err();
        assert!(matches!(error, GpuError::Average(AverageError::NoSamples { .. })), "{error}");
    }
}
