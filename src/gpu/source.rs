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
    fragments: &["nibble", "product", "mean/loco"],
    body: include_str!("../../shaders/loco/average.wgsl"),
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
pub const SHADERS: &[Shader] = &[LOCO_ENCODE, LOCO_AVERAGE, OPTIM_SGD, OPTIM_ADAMW];

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
    ("byte", include_str!("../../shaders/lib/byte.wgsl")),
    ("fixed", include_str!("../../shaders/lib/fixed.wgsl")),
    ("mean/given", include_str!("../../shaders/mean/given.wgsl")),
    ("mean/loco", include_str!("../../shaders/mean/loco.wgsl")),
    ("nibble", include_str!("../../shaders/lib/nibble.wgsl")),
    ("product", include_str!("../../shaders/lib/product.wgsl")),
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
