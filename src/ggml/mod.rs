//! Facts about GGML: op and type names, block sizes, cost of an op, GGUF. Uses nothing else of this crate.
