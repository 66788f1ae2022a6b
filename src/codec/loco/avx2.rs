//! LoCo with AVX2.
pub(super) fn variant() -> Option<super::Variant> {
    None
}
