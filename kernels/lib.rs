//! What must run fast in `ggml-runner`, as a crate of its own: Cargo then compiles it for speed, and all else that the
//! program needs for size. The files and their paths are those of the main crate, which passes them on under the same
//! names; nothing else uses this crate.

#[path = "../src/ggml"]
pub mod ggml {
    pub mod quant;
}

#[path = "../src/runner"]
pub mod runner {
    pub mod kernels;
    pub mod peak;
    /// Only what the peaks are measured with.
    pub mod pool {
        pub mod pin;
    }
}
