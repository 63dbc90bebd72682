//! A live target: discovery, probe ladder, attach, drain. May use `trace` and `ggml`.
