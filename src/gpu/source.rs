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
    fragments: &["fixed", "nibble", "byte"],
    body: include_str!("../../shaders/loco/encode.wgsl"),
};

/// Weighted mean of packets.
pub const LOCO_AVERAGE: Shader = Shader {
    path: "loco/average",
    gradient: false,
    fragments: &["nibble", "product"],
    body: include_str!("../../shaders/loco/average.wgsl"),
};

/// Quantizes with one scale per block, and packs.
pub const BLOCK_ENCODE: Shader = Shader {
    path: "block/encode",
    gradient: true,
    fragments: &["fixed", "scale", "field", "blocks"],
    body: include_str!("../../shaders/block/encode.wgsl"),
};

/// Weighted mean of packets with one scale per block.
pub const BLOCK_AVERAGE: Shader = Shader {
    path: "block/average",
    gradient: false,
    fragments: &["fixed", "scale", "field", "product"],
    body: include_str!("../../shaders/block/average.wgsl"),
};

/// Compensates, quantizes with one scale per block, and packs.
pub const LOCO_BLOCK_ENCODE: Shader = Shader {
    path: "loco_block/encode",
    gradient: true,
    fragments: &["fixed", "byte", "scale", "field", "blocks"],
    body: include_str!("../../shaders/loco_block/encode.wgsl"),
};

/// Quantizes what changed with one scale per block, packs, and tracks it.
pub const EF21_ENCODE: Shader = Shader {
    path: "ef21/encode",
    gradient: true,
    fragments: &["fixed", "scale", "field", "blocks", "float", "track"],
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
    fragments: &["fixed", "scale", "ratio", "field", "byte", "signs"],
    body: include_str!("../../shaders/sign/encode.wgsl"),
};

/// Weighted mean of signs with one scale per block.
pub const SIGN_AVERAGE: Shader = Shader {
    path: "sign/average",
    gradient: false,
    fragments: &["fixed", "scale", "product"],
    body: include_str!("../../shaders/sign/average.wgsl"),
};

/// Every kernel.
pub const SHADERS: &[Shader] = &[
    LOCO_ENCODE,
    LOCO_AVERAGE,
    BLOCK_ENCODE,
    BLOCK_AVERAGE,
    LOCO_BLOCK_ENCODE,
    EF21_ENCODE,
    EF21_AVERAGE,
    SIGN_ENCODE,
    SIGN_AVERAGE,
];

/// Every fragment by stem: `shaders/lib/<stem>.wgsl`, all of whose names start with the stem.
pub const FRAGMENTS: &[(&str, &str)] = &[
    ("blocks", include_str!("../../shaders/lib/blocks.wgsl")),
    ("byte", include_str!("../../shaders/lib/byte.wgsl")),
    ("field", include_str!("../../shaders/lib/field.wgsl")),
    ("fixed", include_str!("../../shaders/lib/fixed.wgsl")),
    ("float", include_str!("../../shaders/lib/float.wgsl")),
    ("nibble", include_str!("../../shaders/lib/nibble.wgsl")),
    ("product", include_str!("../../shaders/lib/product.wgsl")),
    ("ratio", include_str!("../../shaders/lib/ratio.wgsl")),
    ("scale", include_str!("../../shaders/lib/scale.wgsl")),
    ("signs", include_str!("../../shaders/lib/signs.wgsl")),
    ("track", include_str!("../../shaders/lib/track.wgsl")),
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
