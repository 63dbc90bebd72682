//! Recording an unmodified GGML engine. `capture` gets events from the kernel or from inside the engine's process; `recorder`
//! turns them into a trace. `tests/imports.py` checks that `capture` imports nothing of `recorder`.

pub mod capture;
pub mod recorder;
