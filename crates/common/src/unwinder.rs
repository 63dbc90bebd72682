//! The functions of an unwinder that the standard library refers to, for programs that abort on a panic and have no tables
//! to unwind with (profile `small`): there is no frame to find. The unwinder that would find that out, with what prints its
//! frames, is 1.5 % of such a program.
//!
//! Names and values are those of the C++ ABI for exception handling, level 1.2 (Itanium), as in gcc's unwind.h.

use std::ffi::{c_int, c_void};

/// `_URC_END_OF_STACK`.
const END_OF_STACK: c_int = 5;

/// Calls the function in the first argument for no frame. So nobody has a frame to ask the others for.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Backtrace(_trace: *const c_void, _argument: *mut c_void) -> c_int {
    END_OF_STACK
}

/// Functions of a frame that return a number or an address.
macro_rules! of_a_frame {
    ($($name:ident),*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name(_frame: *mut c_void, _more: *mut c_void) -> usize {
                0
            }
        )*
    };
}

of_a_frame!(
    _Unwind_GetIP,
    _Unwind_GetIPInfo,
    _Unwind_GetCFA,
    _Unwind_FindEnclosingFunction,
    _Unwind_GetLanguageSpecificData,
    _Unwind_GetRegionStart,
    _Unwind_GetTextRelBase,
    _Unwind_GetDataRelBase
);
