//! The one table of shaders: which file, which fragments, which CPU twin.

/// One kernel: a file under `shaders/` with one entry point `main`.
#[derive(Clone, Copy, Debug)]
pub struct Shader {
    /// `codec/function`: the file is `shaders/<path>.wgsl`, the CPU twin `codec::<path>`.
    pub path: &'static str,
    /// Stems of the fragments from [`FRAGMENTS`] that are put before `body`.
    pub fragments: &'static [&'static str],
    /// The text of the file.
    pub body: &'static str,
}

/// Compensates, quantizes and packs.
pub const LOCO_ENCODE: Shader = Shader {
    path: "loco/encode",
    fragments: &["fixed", "nibble", "byte"],
    body: include_str!("../../shaders/loco/encode.wgsl"),
};

/// Weighted mean of packets.
pub const LOCO_AVERAGE: Shader = Shader {
    path: "loco/average",
    fragments: &["nibble", "product"],
    body: include_str!("../../shaders/loco/average.wgsl"),
};

/// Every kernel.
pub const SHADERS: &[Shader] = &[LOCO_ENCODE, LOCO_AVERAGE];

/// Every fragment by stem: `shaders/lib/<stem>.wgsl`, all of whose names start with the stem.
pub const FRAGMENTS: &[(&str, &str)] = &[
    ("byte", include_str!("../../shaders/lib/byte.wgsl")),
    ("fixed", include_str!("../../shaders/lib/fixed.wgsl")),
    ("nibble", include_str!("../../shaders/lib/nibble.wgsl")),
    ("product", include_str!("../../shaders/lib/product.wgsl")),
];

impl Shader {
    /// The text that the driver gets: fragments, then the body.
    #[must_use]
    pub fn source(&self) -> String {
        let mut text = String::new();
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
