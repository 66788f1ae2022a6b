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

/// Compensates, selects the largest of each chunk and packs them.
pub const TOPK_ENCODE: Shader = Shader {
    path: "topk/encode",
    gradient: true,
    fragments: &["float", "level", "residual", "select", "scan", "pick", "sparse"],
    body: include_str!("../../shaders/topk/encode.wgsl"),
};

/// Weighted mean of sparse packets.
pub const TOPK_AVERAGE: Shader = Shader {
    path: "topk/average",
    gradient: false,
    fragments: &["float", "sparse", "total"],
    body: include_str!("../../shaders/topk/average.wgsl"),
};

/// Every kernel.
pub const SHADERS: &[Shader] = &[LOCO_ENCODE, LOCO_AVERAGE, TOPK_ENCODE, TOPK_AVERAGE];

/// Every fragment by stem: `shaders/lib/<stem>.wgsl`, all of whose names start with the stem.
pub const FRAGMENTS: &[(&str, &str)] = &[
    ("byte", include_str!("../../shaders/lib/byte.wgsl")),
    ("fixed", include_str!("../../shaders/lib/fixed.wgsl")),
    ("float", include_str!("../../shaders/lib/float.wgsl")),
    ("level", include_str!("../../shaders/lib/level.wgsl")),
    ("nibble", include_str!("../../shaders/lib/nibble.wgsl")),
    ("pick", include_str!("../../shaders/lib/pick.wgsl")),
    ("product", include_str!("../../shaders/lib/product.wgsl")),
    ("residual", include_str!("../../shaders/lib/residual.wgsl")),
    ("scan", include_str!("../../shaders/lib/scan.wgsl")),
    ("select", include_str!("../../shaders/lib/select.wgsl")),
    ("sparse", include_str!("../../shaders/lib/sparse.wgsl")),
    ("total", include_str!("../../shaders/lib/total.wgsl")),
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
