//! Numbers, names and block sizes of tensor types, in the order of `enum ggml_type` (llama.cpp 0.5.0, GGML 0.25).

use std::ffi::c_void;
use std::mem::{offset_of, size_of};

use super::text::Text;

/// `ggml_type_traits`. Types that GGML has removed keep their number; their blocks have no elements.
#[repr(C)]
pub struct TypeTraits {
    pub type_name: Text,
    /// Elements in a block.
    pub blck_size: i64,
    pub blck_size_interleave: i64,
    /// Bytes in a block.
    pub type_size: usize,
    pub is_quantized: bool,
    /// to_float, from_float_ref: never called here.
    pub functions: [*const c_void; 2],
}

const _: () = {
    assert!(size_of::<TypeTraits>() == 56);
    assert!(offset_of!(TypeTraits, blck_size) == 8);
    assert!(offset_of!(TypeTraits, type_size) == 24);
};

// SAFETY: constant records; their pointers are null or point to constant strings.
unsafe impl Sync for TypeTraits {}

macro_rules! types {
    ($($ty:ident { $name:literal, $block:literal, $bytes:literal })+) => {
        /// `enum ggml_type`.
        #[allow(non_camel_case_types, reason = "GGML's own spelling")]
        #[repr(i32)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum GgmlType { $($ty),+ }

        /// Traits by number; a tracer finds the table by the names of the first two entries.
        pub static TYPE_TRAITS: [TypeTraits; [$($bytes),+].len()] = [$(TypeTraits {
            type_name: Text::new($name),
            blck_size: $block,
            blck_size_interleave: 0,
            type_size: $bytes,
            is_quantized: $block > 1,
            functions: [std::ptr::null(); 2],
        }),+];

        impl GgmlType {
            /// All types, by number.
            pub const ALL: &[GgmlType] = &[$(GgmlType::$ty),+];
        }
    };
}

types! {
    F32 { c"f32", 1, 4 }
    F16 { c"f16", 1, 2 }
    Q4_0 { c"q4_0", 32, 18 }
    Q4_1 { c"q4_1", 32, 20 }
    REMOVED_4 { c"DEPRECATED", 0, 0 }
    REMOVED_5 { c"DEPRECATED", 0, 0 }
    Q5_0 { c"q5_0", 32, 22 }
    Q5_1 { c"q5_1", 32, 24 }
    Q8_0 { c"q8_0", 32, 34 }
    Q8_1 { c"q8_1", 32, 36 }
    Q2_K { c"q2_K", 256, 84 }
    Q3_K { c"q3_K", 256, 110 }
    Q4_K { c"q4_K", 256, 144 }
    Q5_K { c"q5_K", 256, 176 }
    Q6_K { c"q6_K", 256, 210 }
    Q8_K { c"q8_K", 256, 292 }
    IQ2_XXS { c"iq2_xxs", 256, 66 }
    IQ2_XS { c"iq2_xs", 256, 74 }
    IQ3_XXS { c"iq3_xxs", 256, 98 }
    IQ1_S { c"iq1_s", 256, 50 }
    IQ4_NL { c"iq4_nl", 32, 18 }
    IQ3_S { c"iq3_s", 256, 110 }
    IQ2_S { c"iq2_s", 256, 82 }
    IQ4_XS { c"iq4_xs", 256, 136 }
    I8 { c"i8", 1, 1 }
    I16 { c"i16", 1, 2 }
    I32 { c"i32", 1, 4 }
    I64 { c"i64", 1, 8 }
    F64 { c"f64", 1, 8 }
    IQ1_M { c"iq1_m", 256, 56 }
    BF16 { c"bf16", 1, 2 }
    REMOVED_31 { c"DEPRECATED", 0, 0 }
    REMOVED_32 { c"DEPRECATED", 0, 0 }
    REMOVED_33 { c"DEPRECATED", 0, 0 }
    TQ1_0 { c"tq1_0", 256, 54 }
    TQ2_0 { c"tq2_0", 256, 66 }
    REMOVED_36 { c"DEPRECATED", 0, 0 }
    REMOVED_37 { c"DEPRECATED", 0, 0 }
    REMOVED_38 { c"DEPRECATED", 0, 0 }
    MXFP4 { c"mxfp4", 32, 17 }
    NVFP4 { c"nvfp4", 64, 36 }
    Q1_0 { c"q1_0", 128, 18 }
}

impl GgmlType {
    /// The type with this number, as stored in GGUF files; `None` for removed or unassigned numbers.
    pub fn from_number(number: u32) -> Option<GgmlType> {
        let ty = *Self::ALL.get(usize::try_from(number).ok()?)?;
        (ty.traits().blck_size > 0).then_some(ty)
    }

    /// Its name and block size.
    pub fn traits(self) -> &'static TypeTraits {
        // The table has a record for every number.
        &TYPE_TRAITS[self as usize]
    }

    /// Bytes of a row of `elements`; `None` if they do not fill complete blocks or the number is too large.
    pub fn row_bytes(self, elements: usize) -> Option<usize> {
        let block = usize::try_from(self.traits().blck_size).ok().filter(|b| *b > 0)?;
        if !elements.is_multiple_of(block) {
            None
        } else {
            (elements / block).checked_mul(self.traits().type_size)
        }
    }
}

impl From<ggml::quant::TensorType> for GgmlType {
    fn from(ty: ggml::quant::TensorType) -> GgmlType {
        // Every type that can be written has a record here (checked by a test).
        GgmlType::from_number(ty.id()).unwrap_or(GgmlType::F32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ggml::quant::TensorType;

    #[test]
    fn agrees_with_the_types_of_files() {
        for ty in (0..64).filter_map(TensorType::from_id) {
            let here = GgmlType::from(ty);
            assert_eq!(here as u32, ty.id());
            assert_eq!(here.traits().type_name.as_str(), ty.name());
            assert_eq!(here.traits().blck_size, ty.block() as i64);
            assert_eq!(here.traits().type_size, ty.block_bytes());
        }
        assert_eq!(GgmlType::I32 as i32, 26);
        assert_eq!(GgmlType::BF16 as i32, 30);
        assert_eq!(GgmlType::from_number(4), None);
        assert_eq!(GgmlType::Q4_0.row_bytes(33), None);
        assert_eq!(GgmlType::Q4_0.row_bytes(64), Some(36));
    }
}
