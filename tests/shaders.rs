//! The rules of `shaders/`: every file is in the table, has a twin, validates, translates to each target language, and
//! uses nothing that a driver may round, fuse or refuse.

#![allow(clippy::unwrap_used, reason = "test code")]
#![cfg(feature = "gpu")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use gradwire::codec::AverageError;
use gradwire::codec::Input;
use gradwire::gpu::source::{self, FRAGMENTS, FUSED, SHADERS, Shader};
use naga::{AddressSpace, Module, TypeInner, valid};

/// An average of packets without state.
type Mean<Config> = fn(&Config, &[&[u32]], &[u32], &mut [f32]) -> Result<(), AverageError>;

/// An average that keeps a state.
type StateMean<Config> = fn(&Config, &[&[u32]], &[u32], &mut [u32], &mut [f32]) -> Result<(), AverageError>;

/// CPU twins by path. Written as function values, so that a twin which is renamed or removed does not compile.
fn twins() -> Vec<(&'static str, &'static str)> {
    use gradwire::codec::cast::{self, Half};
    use gradwire::codec::{Gradient, Stats, Step};
    use gradwire::codec::{block, ef21, fp8, intsgd, loco, loco_block, sign, topk};
    use gradwire::optim::{adam, sgd};
    let _: fn(&loco::Config, Step, Gradient, &mut [i8], &mut [u32]) -> Stats = loco::encode;
    let _: loco::AverageFn = loco::average;
    let _: fn(Gradient, &mut [u32]) -> Stats = cast::encode_f32;
    let _: Mean<()> = |(), packets, weights, mean| cast::average_f32(packets, weights, mean);
    let _: fn(Half, Gradient, &mut [u32]) -> Stats = cast::encode_half;
    let _: Mean<Half> = |half, packets, weights, mean| cast::average_half(*half, packets, weights, mean);
    let _: fn(&fp8::Config, Gradient, &mut [u32]) -> Stats = fp8::encode;
    let _: Mean<fp8::Config> = fp8::average;
    let _: fn(&intsgd::Config, Gradient, &mut [u32]) -> Stats = intsgd::encode;
    let _: Mean<intsgd::Config> = intsgd::average;
    let _: fn(&topk::Config, Gradient, &mut [u32], &mut [u32]) -> Stats = topk::encode;
    let _: Mean<topk::Config> = topk::average;
    let _: fn(&block::Format, Gradient, &mut [u32]) -> Stats = block::encode;
    let _: Mean<block::Format> = block::average;
    let _: fn(&loco_block::Config, Step, Gradient, &mut [u32], &mut [u32]) -> Stats = loco_block::encode;
    let _: fn(&ef21::Config, Step, Gradient, &mut [u32], &mut [u32]) -> Stats = ef21::encode;
    let _: StateMean<ef21::Config> = ef21::average;
    let _: fn(&sign::Config, Step, Gradient, &mut [u32], &mut [u32]) -> Stats = sign::encode;
    let _: Mean<sign::Config> = sign::average;
    let _ = (adam::Coefficients::step, sgd::Coefficients::step);
    vec![
        ("loco/encode", "codec::loco::encode"),
        ("loco/average", "codec::loco::average"),
        ("cast/encode_f32", "codec::cast::encode_f32"),
        ("cast/average_f32", "codec::cast::average_f32"),
        ("cast/encode_half", "codec::cast::encode_half"),
        ("cast/average_half", "codec::cast::average_half"),
        ("fp8/encode", "codec::fp8::encode"),
        ("fp8/average", "codec::fp8::average"),
        ("intsgd/encode", "codec::intsgd::encode"),
        ("intsgd/average", "codec::intsgd::average"),
        ("topk/encode", "codec::topk::encode"),
        ("topk/average", "codec::topk::average"),
        ("block/encode", "codec::block::encode"),
        ("block/average", "codec::block::average"),
        ("loco_block/encode", "codec::loco_block::encode"),
        ("ef21/encode", "codec::ef21::encode"),
        ("ef21/average", "codec::ef21::average"),
        ("sign/encode", "codec::sign::encode"),
        ("sign/average", "codec::sign::average"),
        ("optim/sgd", "optim::sgd::Coefficients::step"),
        ("optim/adamw", "optim::adam::Coefficients::step"),
    ]
}

fn shaders_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders")
}

/// Every file under `shaders/` as `folder/stem`, with its text.
fn files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for folder in std::fs::read_dir(shaders_folder()).unwrap().map(|entry| entry.unwrap().path()) {
        for file in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            assert_eq!(file.extension().unwrap(), "wgsl", "{}", file.display());
            let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
            files
                .push((format!("{}/{}", name(&folder), name(&file)), std::fs::read_to_string(file).unwrap()));
        }
    }
    files
}

/// Where a fragment lies under `shaders/`.
fn fragment_path(stem: &str) -> String {
    if stem.contains('/') { stem.to_owned() } else { format!("lib/{stem}") }
}

/// The one folder whose kernels compute in floats: the owner of a shard runs them once for all ranks, so that nothing
/// depends on their last bit (`gpu::Optimizer`, Exactness).
fn may_use_floats(path: &str) -> bool {
    path.starts_with("optim/")
}

/// Every text that a driver may get: each kernel, for each type of gradient that it may read.
fn texts() -> impl Iterator<Item = (&'static Shader, Input)> {
    let inputs = |shader: &Shader| if shader.gradient { &Input::ALL[..] } else { &[Input::F32] };
    SHADERS
        .iter()
        .chain(FUSED)
        .flat_map(move |shader| inputs(shader).iter().map(move |input| (shader, *input)))
}

fn parse(shader: &Shader, input: Input) -> (Module, valid::ModuleInfo) {
    let source = shader.source(input);
    let module = naga::front::wgsl::parse_str(&source)
        .unwrap_or_else(|error| panic!("{}: {}", shader.path, error.emit_to_string(&source)));
    // No capability beyond core WebGPU.
    let info = valid::Validator::new(valid::ValidationFlags::all(), valid::Capabilities::empty())
        .validate(&module)
        .unwrap_or_else(|error| panic!("{}: {}", shader.path, error.emit_to_string(&source)));
    (module, info)
}

/// The words of a WGSL text, without comments; a number with its suffix is one word.
fn words(text: &str) -> BTreeSet<String> {
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or("")).collect();
    code.join("\n")
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// What a text uses that no shader may; empty if nothing.
fn forbidden(text: &str) -> Vec<String> {
    // Any float type: integers are exact on every device, floats on none that has a driver of its own.
    const WORDS: [&str; 17] = [
        "f32",
        "f16",
        "fma",
        "exp",
        "exp2",
        "log",
        "log2",
        "sqrt",
        "inverseSqrt",
        "pow",
        "round",
        "floor",
        "override",
        "num_workgroups",
        "pack4xI8Clamp",
        "enable",
        "requires",
    ];
    let words = words(text);
    let mut found: Vec<String> =
        WORDS.iter().filter(|word| words.contains(**word)).map(ToString::to_string).collect();
    let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
    if code.clone().any(|line| line.contains('/') || line.contains('%')) {
        found.push("division".into());
    }
    // vec4f and its like, and literals such as 1.0 or 1f.
    let short_float =
        |word: &String| word.len() == 5 && word.starts_with("vec") && word.ends_with(['f', 'h']);
    let literal = |word: &String| {
        word.starts_with(|c: char| c.is_ascii_digit())
            && !word.starts_with("0x")
            && word.ends_with(['f', 'h'])
    };
    found.extend(words.iter().filter(|word| short_float(word) || literal(word)).cloned());
    let mut previous = [' '; 2];
    for c in code.flat_map(str::chars) {
        if previous[1] == '.' && previous[0].is_ascii_digit() && c.is_ascii_digit() {
            found.push("a float literal".into());
        }
        previous = [previous[1], c];
    }
    found
}

#[test]
fn every_file_is_in_the_table_and_every_row_is_a_file() {
    let in_table: BTreeSet<(String, String)> = SHADERS
        .iter()
        .map(|shader| (shader.path.to_owned(), shader.body.to_owned()))
        .chain(FRAGMENTS.iter().map(|(stem, text)| (fragment_path(stem), (*text).to_owned())))
        .chain(Input::ALL.map(|input| (format!("input/{}", input.name()), source::input(input).to_owned())))
        .collect();
    assert_eq!(files().into_iter().collect::<BTreeSet<_>>(), in_table);
}

#[test]
fn every_kernel_has_a_twin_which_its_header_names() {
    let twins = twins();
    assert_eq!(twins.len(), SHADERS.len());
    for shader in SHADERS {
        let twin = twins.iter().find(|(path, _)| *path == shader.path);
        let (_, twin) = twin.unwrap_or_else(|| panic!("shaders/{}.wgsl has no twin in codec", shader.path));
        assert!(shader.body.starts_with(&format!("// {}: ", shader.path)), "{}", shader.path);
        assert!(shader.body.contains(&format!("CPU twin: {twin}.")), "{}", shader.path);
        let fragments = format!("Fragments: {}.", shader.fragments.join(", "));
        assert!(shader.body.contains(&fragments), "{}: header lacks {fragments:?}", shader.path);
    }
}

#[test]
fn names_in_a_fragment_start_with_its_stem_and_files_stay_short() {
    let inputs = Input::ALL.map(|input| ("input", source::input(input)));
    for (stem, text) in FRAGMENTS.iter().chain(&inputs) {
        for line in text.lines() {
            let name = line.strip_prefix("fn ").or_else(|| line.strip_prefix("const "));
            if let Some(name) = name.or_else(|| line.strip_prefix("struct ")) {
                let prefix = format!("{}_", stem.split('/').next().unwrap());
                assert!(name.starts_with(&prefix), "fragment {stem}: {line}");
            }
        }
    }
    for (path, text) in files() {
        assert!(text.lines().count() <= 120, "{path} has {} lines, split it", text.lines().count());
    }
}

/// The functions of a WGSL text: the name, and the lines between the first and the closing brace.
fn functions(text: &str) -> Vec<(&str, &str)> {
    let mut functions = Vec::new();
    for function in text.split("\nfn ").skip(1) {
        let name = function.split('(').next().unwrap();
        let (_, body) = function.split_once("{\n").unwrap_or_else(|| panic!("fn {name}: no body"));
        let (body, _) = body.split_once("\n}").unwrap_or_else(|| panic!("fn {name}: no end"));
        functions.push((name, body));
    }
    functions
}

#[test]
fn no_function_stands_in_two_files_under_whichever_names() {
    let mut seen = BTreeMap::new();
    for (path, text) in files() {
        for (name, body) in functions(&text) {
            let other = seen.insert(body.to_owned(), format!("{name} of {path}"));
            assert_eq!(other, None, "{name} of {path} has the same body: make it a fragment");
        }
    }
    assert!(seen.len() > 100, "only {} functions found", seen.len());
}

#[test]
fn no_shader_uses_floats_divisions_overrides_or_what_some_target_lacks() {
    for (path, text) in files() {
        let mut found = forbidden(&text);
        if may_use_floats(&path) {
            // The operations that WGSL gives bounds for. Still none that says nothing of its accuracy, or is an option.
            found.retain(|what| !["f32", "sqrt", "division"].contains(&what.as_str()));
        }
        assert_eq!(found, Vec::<String>::new(), "{path}");
    }
}

#[test]
fn the_textual_guard_notices_what_it_forbids() {
    for bad in [
        "let x = a / b;",
        "let x = a % b;",
        "let x = fma(a, b, c);",
        "override scale: u32;",
        "let x = f32(y);",
        "var v: vec4f;",
        "let x = 1.5;",
        "let x = 2f;",
        "let r = round(x);",
        "let s = sqrt(x);",
    ] {
        assert_ne!(forbidden(bad), Vec::<String>::new(), "{bad}");
    }
    assert_eq!(forbidden("let x = 0xffu; // 1.5 / 2"), Vec::<String>::new());
    assert_eq!(forbidden("let x = v.x << 2u;"), Vec::<String>::new());
    assert!(may_use_floats("optim/sgd") && !may_use_floats("mean/loco") && !may_use_floats("lib/optim"));
}

#[test]
fn every_kernel_keeps_to_four_storage_buffers_one_uniform_and_256_invocations() {
    for (shader, input) in texts() {
        let (module, _) = parse(shader, input);
        let count = |wanted: fn(&AddressSpace) -> bool| {
            module.global_variables.iter().filter(|(_, variable)| wanted(&variable.space)).count()
        };
        let storage = count(|space| matches!(space, AddressSpace::Storage { .. }));
        assert!((1..=4).contains(&storage), "{}: {storage} storage buffers", shader.path);
        assert_eq!(count(|space| *space == AddressSpace::Uniform), 1, "{}", shader.path);
        assert!(module.overrides.is_empty(), "{}: override", shader.path);
        let [entry] = &module.entry_points[..] else { panic!("{}: not one entry point", shader.path) };
        assert_eq!(entry.name, "main", "{}", shader.path);
        assert!(entry.workgroup_size.iter().product::<u32>() <= 256, "{}", shader.path);
    }
}

#[test]
fn no_expression_of_any_kernel_of_a_codec_has_a_float_type() {
    for (shader, input) in texts().filter(|(shader, _)| !may_use_floats(shader.path)) {
        let (module, info) = parse(shader, input);
        for (handle, kind) in module.types.iter() {
            let scalar = match kind.inner {
                TypeInner::Scalar(scalar) | TypeInner::Vector { scalar, .. } | TypeInner::Atomic(scalar) => {
                    scalar
                }
                _ => continue,
            };
            assert_ne!(scalar.kind, naga::ScalarKind::Float, "{}: {handle:?} {kind:?}", shader.path);
        }
        let bodies = module.functions.iter().map(|(handle, function)| (&info[handle], function));
        let main = std::iter::once((info.get_entry_point(0), &module.entry_points[0].function));
        for (info, function) in bodies.chain(main) {
            for (handle, expression) in function.expressions.iter() {
                let scalar = info[handle].ty.inner_with(&module.types).scalar();
                let float = scalar.is_some_and(|scalar| scalar.kind == naga::ScalarKind::Float);
                assert!(!float, "{}: {expression:?} is a float", shader.path);
            }
        }
    }
}

#[test]
fn every_kernel_translates_to_spirv_hlsl_msl_and_glsl() {
    use naga::back::{glsl, hlsl, msl, spv};
    for (shader, input) in texts() {
        let (module, info) = parse(shader, input);
        let words = spv::write_vec(&module, &info, &spv::Options::default(), None).unwrap();
        assert_eq!(words[0], 0x0723_0203, "{}: SPIR-V magic", shader.path);

        let options = hlsl::Options::default();
        let pipeline = hlsl::PipelineOptions::default();
        let mut text = String::new();
        hlsl::Writer::new(&mut text, &options, &pipeline).write(&module, &info, None).unwrap();
        assert!(text.contains("numthreads(256, 1, 1)"), "{}: HLSL", shader.path);

        let options = msl::Options { fake_missing_bindings: true, ..Default::default() };
        let (text, _) = msl::write_string(&module, &info, &options, &Default::default()).unwrap();
        assert!(text.contains("kernel void"), "{}: MSL", shader.path);

        let options = glsl::Options {
            version: glsl::Version::Embedded { version: 310, is_webgl: false },
            ..Default::default()
        };
        let pipeline = glsl::PipelineOptions {
            shader_stage: naga::ShaderStage::Compute,
            entry_point: "main".into(),
            multiview: None,
        };
        let mut text = String::new();
        glsl::Writer::new(&mut text, &module, &info, &options, &pipeline, Default::default())
            .unwrap()
            .write()
            .unwrap();
        assert!(text.contains("local_size_x = 256"), "{}: GLSL", shader.path);
    }
}
