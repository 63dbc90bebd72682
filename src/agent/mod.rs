//! A live target: discovery, probe ladder, attach, drain. May use `trace` and `ggml`.

pub mod discover;
pub mod elf;
pub mod ladder;
pub mod layout;
pub mod maps;
pub mod prologue;
pub mod search;
pub mod tables;
