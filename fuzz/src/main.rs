//! One binary for all targets: libFuzzer runs the target named by FUZZ_TARGET. fuzz/run.sh builds and runs it.
#![no_main]

mod targets;

use std::sync::OnceLock;

use targets::{TARGETS, Target};

fn chosen() -> &'static Target {
    static CHOSEN: OnceLock<&Target> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        TARGETS.iter().find(|t| t.name == name).unwrap_or_else(|| {
            let names: Vec<&str> = TARGETS.iter().map(|t| t.name).collect();
            eprintln!("FUZZ_TARGET is '{name}', and must be one of {}", names.join(", "));
            std::process::exit(2)
        })
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| (chosen().run)(data));
