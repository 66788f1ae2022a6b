//! WGSL kernels and their host side.
