//! Numbers and names of ops, in the order of GGML's enums (llama.cpp release 0.5.0, GGML 0.25), obtained from the
//! name functions of real builds.

use super::text::Text;

/// An enum with a table of its names, indexed by number.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident, $table:ident: $($op:ident)+) => {
        $(#[$doc])*
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "GGML's own spelling")]
        #[repr(i32)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($op),+ }

        /// Names by number; a tracer finds the table by its first two entries.
        pub static $table: [Text; [$($name::$op),+].len()] = [$(Text::new(
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($op), "\0").as_bytes()) {
                Ok(text) => text,
                Err(_) => panic!("a name with a NUL"),
            }
        )),+];

        impl $name {
            /// All values, by number.
            pub const ALL: &[$name] = &[$($name::$op),+];

            /// The value with this number.
            pub fn from_number(number: i32) -> Option<$name> {
                usize::try_from(number).ok().and_then(|i| Self::ALL.get(i)).copied()
            }

            /// Its name.
            pub fn name(self) -> &'static str {
                $table.get(self as usize).map_or("", |t| t.as_str())
            }
        }
    };
}

numbered! {
    /// `enum ggml_op`.
    Op, OP_NAMES:
    NONE DUP ADD ADD_ID ADD1 ACC SUB MUL DIV SQR SQRT LOG SIN COS SUM SUM_ROWS CUMSUM MEAN ARGMAX COUNT_EQUAL REPEAT
    REPEAT_BACK CONCAT SILU_BACK NORM RMS_NORM RMS_NORM_BACK GROUP_NORM L2_NORM MUL_MAT MUL_MAT_ID OUT_PROD SCALE SET
    CPY CONT RESHAPE VIEW PERMUTE TRANSPOSE GET_ROWS GET_ROWS_BACK SET_ROWS DIAG DIAG_MASK_INF DIAG_MASK_ZERO SOFT_MAX
    SOFT_MAX_BACK ROPE ROPE_BACK CLAMP CONV_TRANSPOSE_1D IM2COL IM2COL_BACK IM2COL_3D COL2IM_1D CONV_2D CONV_3D
    CONV_2D_DW CONV_TRANSPOSE_2D POOL_1D POOL_2D POOL_2D_BACK UPSCALE PAD PAD_REFLECT_1D ROLL ARANGE TIMESTEP_EMBEDDING
    ARGSORT TOP_K LEAKY_RELU TRI FILL FLASH_ATTN_EXT FLASH_ATTN_BACK SSM_CONV SSM_SCAN WIN_PART WIN_UNPART GET_REL_POS
    ADD_REL_POS RWKV_WKV6 GATED_LINEAR_ATTN RWKV_WKV7 SOLVE_TRI GATED_DELTA_NET LIGHTNING_INDEXER DSV4_HC_COMB
    DSV4_HC_PRE DSV4_HC_POST UNARY MAP_CUSTOM1 MAP_CUSTOM2 MAP_CUSTOM3 CUSTOM CROSS_ENTROPY_LOSS
    CROSS_ENTROPY_LOSS_BACK OPT_STEP_ADAMW OPT_STEP_SGD GLU
}

numbered! {
    /// `enum ggml_unary_op`.
    UnaryOp, UNARY_OP_NAMES:
    ABS SGN NEG STEP TANH ELU RELU SIGMOID GELU GELU_QUICK SILU HARDSWISH HARDSIGMOID EXP EXPM1 SOFTPLUS
}

numbered! {
    /// `enum ggml_glu_op`.
    GluOp, GLU_OP_NAMES:
    REGLU GEGLU SWIGLU SWIGLU_OAI GEGLU_ERF GEGLU_QUICK
}

const _: () = {
    assert!(OP_NAMES.len() == 101);
    assert!(Op::MUL_MAT as i32 == 29 && Op::ROPE as i32 == 48 && Op::GLU as i32 == 100);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_agree() {
        assert_eq!(Op::FLASH_ATTN_EXT as i32, 74);
        assert_eq!(Op::UNARY as i32, 91);
        assert_eq!(Op::MUL_MAT_ID.name(), "MUL_MAT_ID");
        assert_eq!(UnaryOp::from_number(10), Some(UnaryOp::SILU));
        assert_eq!(GluOp::SWIGLU.name(), "SWIGLU");
        assert_eq!((Op::from_number(101), Op::from_number(-1)), (None, None));
    }
}
