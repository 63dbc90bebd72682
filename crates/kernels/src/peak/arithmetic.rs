//! Peak rate of arithmetic instructions: long independent chains of nothing else.

use super::{Effort, windows::best_rate};
use std::io;

/// The instruction to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Instruction {
    F32Fma,
    Int8Dot,
    Int8Matrix,
    Int8Widening,
}

/// Loop iterations between two readings of the clock: some ten microseconds.
const ITERATIONS: u64 = 10_000;

/// Code that runs a loop of instructions a given number of times.
struct Loop {
    run: unsafe fn(u64),
    /// Operations per iteration; a multiply-add is two.
    operations: f64,
}

/// Gop/s of all `cpus` together; `None` if this processor lacks the instruction.
pub(super) fn peak(of: Instruction, cpus: &[usize], effort: Effort) -> io::Result<Option<f64>> {
    let Some(code) = loop_of(of) else { return Ok(None) };
    let rate = best_rate(cpus, effort, |_, _| {
        // SAFETY: `loop_of` found the instruction on this processor.
        unsafe { (code.run)(ITERATIONS) };
        ITERATIONS as f64 * code.operations
    })?;
    Ok(Some(rate / 1e9))
}

#[cfg(target_arch = "x86_64")]
fn loop_of(of: Instruction) -> Option<Loop> {
    use std::arch::is_x86_feature_detected as has;
    let wide = has!("avx512f");
    let (run, operations): (unsafe fn(u64), f64) = match of {
        Instruction::F32Fma if wide => (x86::fma_512, 14.0 * 32.0),
        Instruction::F32Fma if has!("avx2") && has!("fma") => (x86::fma_256, 12.0 * 16.0),
        Instruction::Int8Dot if wide && has!("avx512vnni") => (x86::dot_512, 14.0 * 128.0),
        Instruction::Int8Dot if has!("avxvnni") => (x86::dot_256, 12.0 * 64.0),
        // Two instructions for 32 products.
        Instruction::Int8Widening if has!("avx2") => (x86::widening_256, 12.0 * 64.0),
        _ => return None,
    };
    Some(Loop { run, operations })
}

#[cfg(target_arch = "aarch64")]
fn loop_of(of: Instruction) -> Option<Loop> {
    use std::arch::is_aarch64_feature_detected as has;
    let (run, operations): (unsafe fn(u64), f64) = match of {
        Instruction::F32Fma => (arm::fma, 22.0 * 8.0),
        Instruction::Int8Dot if has!("dotprod") => (arm::dot, 22.0 * 32.0),
        Instruction::Int8Matrix if has!("i8mm") => (arm::matrix, 22.0 * 64.0),
        _ => return None,
    };
    Some(Loop { run, operations })
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn loop_of(_: Instruction) -> Option<Loop> {
    None
}

/// Defines a function that runs these lines of assembly; the last ones count `$counter` down to 0.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! repeated {
    ($name:ident, $counter:tt: $($line:expr),*) => {
        /// # Safety
        /// The processor must have the instructions.
        pub(super) unsafe fn $name(iterations: u64) {
            // SAFETY: changes only caller-saved registers and uses no memory.
            unsafe {
                std::arch::asm!(
                    $($line,)*
                    inout($counter) iterations.max(1) => _,
                    clobber_abi("C"),
                    options(nomem, nostack),
                );
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    /// Repeats instructions for each register. Registers are cleared first, as denormals could make them slow.
    macro_rules! x86 {
        ($name:ident: $registers:literal, $body:literal) => {
            repeated!($name, "rcx":
                "vzeroall",
                "2:",
                concat!(".irp r,", $registers),
                $body,
                ".endr",
                "dec rcx",
                "jnz 2b"
            );
        };
    }
    x86!(fma_512: "0,1,2,3,4,5,6,7,8,9,10,11,12,13",
        "vfmadd231ps zmm\\r, zmm14, zmm15");
    x86!(dot_512: "0,1,2,3,4,5,6,7,8,9,10,11,12,13",
        "vpdpbusd zmm\\r, zmm14, zmm15");
    x86!(fma_256: "0,1,2,3,4,5,6,7,8,9,10,11", "vfmadd231ps ymm\\r, ymm14, ymm15");
    x86!(dot_256: "0,1,2,3,4,5,6,7,8,9,10,11", "{{vex}} vpdpbusd ymm\\r, ymm14, ymm15");
    x86!(widening_256: "0,1,2,3,4,5,6,7,8,9,10,11",
        "vpmaddubsw ymm13, ymm14, ymm15\nvpaddw ymm\\r, ymm\\r, ymm13");
}

#[cfg(target_arch = "aarch64")]
mod arm {
    /// Uses registers 0 to 7 and 16 to 29 as accumulators: they are caller-saved.
    macro_rules! arm {
        ($name:ident: $extension:literal, $body:literal) => {
            repeated!($name, "x9":
                $extension,
                ".irp r,0,1,2,3,4,5,6,7,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "movi v\\r\\().4s, #0",
                ".endr",
                "2:",
                ".irp r,0,1,2,3,4,5,6,7,16,17,18,19,20,21,22,23,24,25,26,27,28,29",
                $body,
                ".endr",
                "subs x9, x9, #1",
                "b.ne 2b"
            );
        };
    }
    arm!(fma: "", "fmla v\\r\\().4s, v30.4s, v31.4s");
    arm!(dot: ".arch_extension dotprod", "sdot v\\r\\().4s, v30.16b, v31.16b");
    arm!(matrix: ".arch_extension i8mm", "smmla v\\r\\().4s, v30.16b, v31.16b");
}
