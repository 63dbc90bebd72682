//! A recorded run and the questions asked of it. May use `trace` and `ggml`.
