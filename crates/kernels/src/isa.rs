//! Instruction sets that kernels are written for, and detection of those this processor has.

use std::fmt;
use std::str::FromStr;

/// An instruction set. Within an architecture, later ones are faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust; the reference for all others.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI, in addition to [`Isa::Avx2`].
    Avx512Vnni,
    /// Any AArch64.
    Neon,
    /// AArch64 with the dot product instructions (`sdot`).
    NeonDot,
    /// AArch64 with the 8-bit integer matrix instructions (`smmla`), in addition to the dot product.
    NeonI8mm,
}

/// A name that is not one of [`Isa::ALL`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown instruction set {0:?}: use scalar, avx2, avx512vnni, neon, dot or i8mm")]
pub struct UnknownIsa(String);

impl Isa {
    /// All instruction sets, of every architecture.
    pub const ALL: [Self; 6] =
        [Self::Scalar, Self::Avx2, Self::Avx512Vnni, Self::Neon, Self::NeonDot, Self::NeonI8mm];

    /// Name as passed to `--isa`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512Vnni => "avx512vnni",
            Self::Neon => "neon",
            Self::NeonDot => "dot",
            Self::NeonI8mm => "i8mm",
        }
    }

    /// Whether this processor and operating system support it.
    #[cfg(target_arch = "x86_64")]
    pub fn available(self) -> bool {
        use std::arch::is_x86_feature_detected as has;
        let avx2 = || has!("avx2") && has!("fma") && has!("f16c");
        let avx512 = || has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        match self {
            Self::Scalar => true,
            Self::Avx2 => avx2(),
            Self::Avx512Vnni => avx2() && avx512() && has!("avx512vnni"),
            Self::Neon | Self::NeonDot | Self::NeonI8mm => false,
        }
    }

    /// Whether this processor and operating system support it.
    #[cfg(target_arch = "aarch64")]
    pub fn available(self) -> bool {
        use std::arch::is_aarch64_feature_detected as has;
        match self {
            Self::Scalar | Self::Neon => true,
            Self::NeonDot => has!("dotprod"),
            Self::NeonI8mm => has!("dotprod") && has!("i8mm"),
            Self::Avx2 | Self::Avx512Vnni => false,
        }
    }

    /// Whether this processor and operating system support it.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub fn available(self) -> bool {
        self == Self::Scalar
    }

    /// Number of vector registers, and 32-bit lanes per register. None without vectors.
    pub fn registers(self) -> Option<(usize, usize)> {
        match self {
            Self::Scalar => None,
            Self::Avx2 => Some((16, 8)),
            Self::Avx512Vnni => Some((32, 16)),
            Self::Neon | Self::NeonDot | Self::NeonI8mm => Some((32, 4)),
        }
    }

    /// The fastest available one.
    pub fn best() -> Self {
        Self::ALL.into_iter().rev().find(|isa| isa.available()).unwrap_or(Self::Scalar)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Self, UnknownIsa> {
        Self::ALL.into_iter().find(|isa| isa.name() == name).ok_or_else(|| UnknownIsa(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse(), Ok(isa));
        }
        assert!("avx".parse::<Isa>().is_err());
    }

    #[test]
    fn the_best_is_available_and_scalar_always() {
        assert!(Isa::best().available());
        assert!(Isa::Scalar.available());
    }
}
