//! One function compiled twice: for the target's baseline, and for AVX2 where the CPU has it.
//!
//! The code is the same and safe; only what the compiler may vectorise it with differs. Rust never fuses a product with a
//! sum, so that both copies round alike.

/// Defines a function that runs `$body`, which must be `#[inline(always)]`, in the copy that suits this CPU.
macro_rules! for_this_cpu {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty = $body:path;) => {
        $(#[$meta])*
        $visibility fn $name($($argument: $type),*) -> $result {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") {
                #[target_feature(enable = "avx2")]
                fn with_avx2($($argument: $type),*) -> $result {
                    $body($($argument),*)
                }
                #[allow(unsafe_code, reason = "a call from code compiled without AVX2")]
                // SAFETY: the CPU has AVX2, which was asked two lines up.
                return unsafe { with_avx2($($argument),*) };
            }
            $body($($argument),*)
        }
    };
}
pub(super) use for_this_cpu;
