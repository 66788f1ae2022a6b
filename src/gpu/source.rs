//! The one table of shaders: which file, which fragments, which CPU twin.

use crate::codec::Input;

/// One kernel: a file under `shaders/` with one entry point `main`.
#[derive(Clone, Copy, Debug)]
pub struct Shader {
    /// `codec/function`: the file is `shaders/<path>.wgsl`, the CPU twin `codec::<path>`.
    pub path: &'static str,
    /// Whether it reads a gradient, which may come in any [`Input`] type: it then finds binding 1 and `input_load4` in
    /// front of it.
    pub gradient: bool,
    /// Stems of the fragments from [`FRAGMENTS`] that are put before `body`.
    pub fragments: &'static [&'static str],
    /// The text of the file.
    pub body: &'static str,
}

/// Compensates, quantizes and packs.
pub const LOCO_ENCODE: Shader = Shader {
    path: "loco/encode",
    gradient: true,
    fragments: &["count", "fixed", "nibble", "byte"],
    body: include_str!("../../shaders/loco/encode.wgsl"),
};

/// Weighted mean of packets.
pub const LOCO_AVERAGE: Shader = Shader {
    path: "loco/average",
    gradient: false,
    fragments: &["nibble", "product", "mean/loco"],
    body: include_str!("../../shaders/loco/average.wgsl"),
};

/// Compensates, selects the largest of each chunk and packs them.
pub const TOPK_ENCODE: Shader = Shader {
    path: "topk/encode",
    gradient: true,
    fragments: &["count", "float", "level", "residual", "select", "scan", "pick", "sparse"],
    body: include_str!("../../shaders/topk/encode.wgsl"),
};

/// Weighted mean of sparse packets.
pub const TOPK_AVERAGE: Shader = Shader {
    path: "topk/average",
    gradient: false,
    fragments: &["float", "sparse", "total"],
    body: include_str!("../../shaders/topk/average.wgsl"),
};

/// The bits of a gradient as they are.
pub const CAST_ENCODE_F32: Shader = Shader {
    path: "cast/encode_f32",
    gradient: true,
    fragments: &["count", "fixed"],
    body: include_str!("../../shaders/cast/encode_f32.wgsl"),
};

/// Weighted mean of floats.
pub const CAST_AVERAGE_F32: Shader = Shader {
    path: "cast/average_f32",
    gradient: false,
    fragments: &["wide", "mean"],
    body: include_str!("../../shaders/cast/average_f32.wgsl"),
};

/// Rounds to 16-bit floats.
pub const CAST_ENCODE_HALF: Shader = Shader {
    path: "cast/encode_half",
    gradient: true,
    fragments: &["count", "fixed", "narrow"],
    body: include_str!("../../shaders/cast/encode_half.wgsl"),
};

/// Weighted mean of 16-bit floats.
pub const CAST_AVERAGE_HALF: Shader = Shader {
    path: "cast/average_half",
    gradient: false,
    fragments: &["wide", "mean", "widen"],
    body: include_str!("../../shaders/cast/average_half.wgsl"),
};

/// Rounds to 8-bit floats with an exponent per block.
pub const FP8_ENCODE: Shader = Shader {
    path: "fp8/encode",
    gradient: true,
    fragments: &["count", "fixed", "narrow", "bits"],
    body: include_str!("../../shaders/fp8/encode.wgsl"),
};

/// Weighted mean of 8-bit floats.
pub const FP8_AVERAGE: Shader = Shader {
    path: "fp8/average",
    gradient: false,
    fragments: &["wide", "mean", "widen", "bits"],
    body: include_str!("../../shaders/fp8/average.wgsl"),
};

/// Scales and rounds to bytes.
pub const INTSGD_ENCODE: Shader = Shader {
    path: "intsgd/encode",
    gradient: true,
    fragments: &["count", "fixed", "byte"],
    body: include_str!("../../shaders/intsgd/encode.wgsl"),
};

/// Weighted mean of bytes.
pub const INTSGD_AVERAGE: Shader = Shader {
    path: "intsgd/average",
    gradient: false,
    fragments: &["byte", "product", "sum"],
    body: include_str!("../../shaders/intsgd/average.wgsl"),
};

/// Quantizes with one scale per block, and packs.
pub const BLOCK_ENCODE: Shader = Shader {
    path: "block/encode",
    gradient: true,
    fragments: &["count", "fixed", "scale", "field", "blocks"],
    body: include_str!("../../shaders/block/encode.wgsl"),
};

/// Weighted mean of packets with one scale per block.
pub const BLOCK_AVERAGE: Shader = Shader {
    path: "block/average",
    gradient: false,
    fragments: &["fixed", "scale", "field", "product", "terms"],
    body: include_str!("../../shaders/block/average.wgsl"),
};

/// Compensates, quantizes with one scale per block, and packs.
pub const LOCO_BLOCK_ENCODE: Shader = Shader {
    path: "loco_block/encode",
    gradient: true,
    fragments: &["count", "fixed", "byte", "scale", "field", "blocks"],
    body: include_str!("../../shaders/loco_block/encode.wgsl"),
};

/// Quantizes what changed with one scale per block, packs, and tracks it.
pub const EF21_ENCODE: Shader = Shader {
    path: "ef21/encode",
    gradient: true,
    fragments: &["count", "fixed", "scale", "field", "blocks", "float", "track"],
    body: include_str!("../../shaders/ef21/encode.wgsl"),
};

/// Tracks packets of what changed, and averages what is tracked.
pub const EF21_AVERAGE: Shader = Shader {
    path: "ef21/average",
    gradient: false,
    fragments: &["fixed", "scale", "field", "float", "track"],
    body: include_str!("../../shaders/ef21/average.wgsl"),
};

/// Compensates, and packs signs with one scale per block.
pub const SIGN_ENCODE: Shader = Shader {
    path: "sign/encode",
    gradient: true,
    fragments: &["count", "fixed", "scale", "ratio", "field", "byte", "signs"],
    body: include_str!("../../shaders/sign/encode.wgsl"),
};

/// Weighted mean of signs with one scale per block.
pub const SIGN_AVERAGE: Shader = Shader {
    path: "sign/average",
    gradient: false,
    fragments: &["fixed", "scale", "product", "terms"],
    body: include_str!("../../shaders/sign/average.wgsl"),
};

/// Gradient descent with momentum, from a mean that is there already.
pub const OPTIM_SGD: Shader = Shader {
    path: "optim/sgd",
    gradient: false,
    fragments: &["mean/given"],
    body: include_str!("../../shaders/optim/sgd.wgsl"),
};

/// AdamW, from a mean that is there already.
pub const OPTIM_ADAMW: Shader = Shader {
    path: "optim/adamw",
    gradient: false,
    fragments: &["mean/given"],
    body: include_str!("../../shaders/optim/adamw.wgsl"),
};

/// Every kernel.
pub const SHADERS: &[Shader] = &[
    LOCO_ENCODE,
    LOCO_AVERAGE,
    TOPK_ENCODE,
    TOPK_AVERAGE,
    CAST_ENCODE_F32,
    CAST_AVERAGE_F32,
    CAST_ENCODE_HALF,
    CAST_AVERAGE_HALF,
    FP8_ENCODE,
    FP8_AVERAGE,
    INTSGD_ENCODE,
    INTSGD_AVERAGE,
    BLOCK_ENCODE,
    BLOCK_AVERAGE,
    LOCO_BLOCK_ENCODE,
    EF21_ENCODE,
    EF21_AVERAGE,
    SIGN_ENCODE,
    SIGN_AVERAGE,
    OPTIM_SGD,
    OPTIM_ADAMW,
];

/// [`OPTIM_SGD`] straight from the packets of [`LOCO_AVERAGE`].
pub const LOCO_SGD: Shader =
    Shader { path: "optim/sgd of loco", fragments: LOCO_AVERAGE.fragments, ..OPTIM_SGD };

/// [`OPTIM_ADAMW`] straight from the packets of [`LOCO_AVERAGE`].
pub const LOCO_ADAMW: Shader =
    Shader { path: "optim/adamw of loco", fragments: LOCO_AVERAGE.fragments, ..OPTIM_ADAMW };

/// Kernels without a file of their own: the body of one of [`SHADERS`] behind other fragments. The path is only a name.
pub const FUSED: &[Shader] = &[LOCO_SGD, LOCO_ADAMW];

/// Every fragment by stem: `shaders/lib/<stem>.wgsl`, all of whose names start with the stem. A `mean/<stem>` is
/// `shaders/mean/<stem>.wgsl`: each of these has `mean_load8`, so that one may stand in for another.
pub const FRAGMENTS: &[(&str, &str)] = &[
    ("bits", include_str!("../../shaders/lib/bits.wgsl")),
    ("blocks", include_str!("../../shaders/lib/blocks.wgsl")),
    ("byte", include_str!("../../shaders/lib/byte.wgsl")),
    ("count", include_str!("../../shaders/lib/count.wgsl")),
    ("field", include_str!("../../shaders/lib/field.wgsl")),
    ("fixed", include_str!("../../shaders/lib/fixed.wgsl")),
    ("float", include_str!("../../shaders/lib/float.wgsl")),
    ("level", include_str!("../../shaders/lib/level.wgsl")),
    ("mean", include_str!("../../shaders/lib/mean.wgsl")),
    ("narrow", include_str!("../../shaders/lib/narrow.wgsl")),
    ("mean/given", include_str!("../../shaders/mean/given.wgsl")),
    ("mean/loco", include_str!("../../shaders/mean/loco.wgsl")),
    ("nibble", include_str!("../../shaders/lib/nibble.wgsl")),
    ("pick", include_str!("../../shaders/lib/pick.wgsl")),
    ("product", include_str!("../../shaders/lib/product.wgsl")),
    ("ratio", include_str!("../../shaders/lib/ratio.wgsl")),
    ("residual", include_str!("../../shaders/lib/residual.wgsl")),
    ("scale", include_str!("../../shaders/lib/scale.wgsl")),
    ("scan", include_str!("../../shaders/lib/scan.wgsl")),
    ("select", include_str!("../../shaders/lib/select.wgsl")),
    ("signs", include_str!("../../shaders/lib/signs.wgsl")),
    ("sparse", include_str!("../../shaders/lib/sparse.wgsl")),
    ("sum", include_str!("../../shaders/lib/sum.wgsl")),
    ("terms", include_str!("../../shaders/lib/terms.wgsl")),
    ("total", include_str!("../../shaders/lib/total.wgsl")),
    ("track", include_str!("../../shaders/lib/track.wgsl")),
    ("wide", include_str!("../../shaders/lib/wide.wgsl")),
    ("widen", include_str!("../../shaders/lib/widen.wgsl")),
];

/// How a gradient of `input` is read: `shaders/input/<name>.wgsl`.
///
/// Each has the binding `gradient` and `input_load4(index)`, the f32 bits of elements `4 * index` and the three behind.
#[must_use]
pub const fn input(input: Input) -> &'static str {
    match input {
        Input::F32 => include_str!("../../shaders/input/f32.wgsl"),
        Input::F16 => include_str!("../../shaders/input/f16.wgsl"),
        Input::Bf16 => include_str!("../../shaders/input/bf16.wgsl"),
    }
}

impl Shader {
    /// The text that the driver gets: fragments, then the body.
    ///
    /// `input` is the type of the gradient; the text of a kernel that reads none is the same for all.
    #[must_use]
    pub fn source(&self, input: Input) -> String {
        let mut text = String::new();
        if self.gradient {
            text.push_str(self::input(input));
            text.push('\n');
        }
        for stem in self.fragments {
            for (_, fragment) in FRAGMENTS.iter().filter(|(name, _)| name == stem) {
                text.push_str(fragment);
                text.push('\n');
            }
        }
        text.push_str(self.body);
        text
    }
}
