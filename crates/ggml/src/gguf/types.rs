//! Sizes of all tensor types that a GGUF file can have, whether this program computes with them or not.
//!
//! Numbers are `enum ggml_type` (ggml/include/ggml.h), which GGUF files store and which is append-only; sizes follow
//! from the layouts `block_*` in ggml/src/ggml-common.h.

/// A type as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoredType {
    /// Number in a file.
    pub id: u32,
    /// Name as in GGML's `type_name`.
    pub name: &'static str,
    /// Elements in one block, and its bytes.
    pub block: u32,
    pub bytes: u32,
}

const fn of(id: u32, name: &'static str, block: u32, bytes: u32) -> StoredType {
    StoredType { id, name, block, bytes }
}

/// Every type, by number. Types that were removed from GGML are missing.
pub const TYPES: [StoredType; 35] = [
    of(0, "f32", 1, 4),
    of(1, "f16", 1, 2),
    of(2, "q4_0", 32, 18),
    of(3, "q4_1", 32, 20),
    of(6, "q5_0", 32, 22),
    of(7, "q5_1", 32, 24),
    of(8, "q8_0", 32, 34),
    of(9, "q8_1", 32, 36),
    of(10, "q2_K", 256, 84),
    of(11, "q3_K", 256, 110),
    of(12, "q4_K", 256, 144),
    of(13, "q5_K", 256, 176),
    of(14, "q6_K", 256, 210),
    of(15, "q8_K", 256, 292),
    of(16, "iq2_xxs", 256, 66),
    of(17, "iq2_xs", 256, 74),
    of(18, "iq3_xxs", 256, 98),
    of(19, "iq1_s", 256, 50),
    of(20, "iq4_nl", 32, 18),
    of(21, "iq3_s", 256, 110),
    of(22, "iq2_s", 256, 82),
    of(23, "iq4_xs", 256, 136),
    of(24, "i8", 1, 1),
    of(25, "i16", 1, 2),
    of(26, "i32", 1, 4),
    of(27, "i64", 1, 8),
    of(28, "f64", 1, 8),
    of(29, "iq1_m", 256, 56),
    of(30, "bf16", 1, 2),
    of(34, "tq1_0", 256, 54),
    of(35, "tq2_0", 256, 66),
    of(39, "mxfp4", 32, 17),
    of(40, "nvfp4", 64, 36),
    of(41, "q1_0", 128, 18),
    of(42, "q2_0", 64, 18),
];

impl StoredType {
    /// The type with this number.
    pub fn from_id(id: u32) -> Option<StoredType> {
        TYPES.into_iter().find(|t| t.id == id)
    }

    /// The type with this name, in either case.
    pub fn named(name: &str) -> Option<StoredType> {
        TYPES.into_iter().find(|t| t.name.eq_ignore_ascii_case(name))
    }

    /// Bytes of a row of `elements`; `None` if it does not end on a block boundary, or overflows.
    pub fn row_bytes(&self, elements: u64) -> Option<u64> {
        let block = u64::from(self.block);
        if !elements.is_multiple_of(block) {
            return None;
        }
        (elements / block).checked_mul(u64::from(self.bytes))
    }

    /// Bytes of an element.
    pub fn bytes_each(&self) -> f64 {
        f64::from(self.bytes) / f64::from(self.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::TensorType;

    #[test]
    fn types_that_are_computed_with_have_the_same_sizes() {
        for ty in TensorType::ALL {
            let stored = StoredType::from_id(ty.id()).expect("known");
            assert_eq!(
                (stored.name, stored.block as usize, stored.bytes as usize),
                (ty.name(), ty.block(), ty.block_bytes())
            );
            assert_eq!(StoredType::named(&ty.name().to_uppercase()), Some(stored));
            assert_eq!(stored.row_bytes(512), ty.row_bytes(512));
        }
        assert_eq!((StoredType::from_id(4), StoredType::named("")), (None, None));
        assert_eq!(StoredType::named("q4_0").and_then(|t| t.row_bytes(33)), None);
        assert_eq!(StoredType::named("q8_0").and_then(|t| t.row_bytes(u64::MAX - 31)), None);
    }

    #[test]
    fn numbers_and_names_are_of_one_type_each() {
        for (i, a) in TYPES.iter().enumerate() {
            assert!(TYPES.iter().skip(i + 1).all(|b| b.id > a.id && b.name != a.name), "{}", a.name);
        }
    }
}
