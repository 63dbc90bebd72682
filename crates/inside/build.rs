//! Compiles the library for the processor that the programs are for, by clang and the linker that comes with Rust: it
//! is free of any C library, so nothing of the target's is needed. Without clang, that of a release is taken.
#![allow(clippy::expect_used, clippy::panic, reason = "a build script stops the build")]

use std::path::{Path, PathBuf};
use std::process::Command;

mod kept;

const BPF: &str = "../../src/bpf";
/// Compiled libraries of a release, and what they depend on.
const KEPT: &str = "kept";
const SOURCES: [&str; 3] = ["build.rs", "lib", BPF];

fn main() {
    for input in SOURCES.iter().chain(&["kept.rs"]) {
        println!("cargo::rerun-if-changed={input}");
    }
    let variable = |name: &str| std::env::var(name).expect("cargo sets it");
    let out = PathBuf::from(variable("OUT_DIR"));
    let (triple, define, own) = match &*variable("CARGO_CFG_TARGET_ARCH") {
        "x86_64" => ("x86_64-linux-gnu", "-D__TARGET_ARCH_x86", "-mno-sse"),
        "aarch64" => ("aarch64-linux-gnu", "-D__TARGET_ARCH_arm64", "-mno-outline-atomics"),
        // Nothing is recorded there.
        _ => return std::fs::write(out.join("library.z"), "").expect("OUT_DIR is ours"),
    };
    let packed = match kept::instead_of_clang(KEPT, &SOURCES) {
        Some(kept) => std::fs::read(kept.join("library.z"))
            .unwrap_or_else(|e| panic!("{}: {e}: clang is needed", kept.display())),
        None => compiled(&out, triple, define, own),
    };
    let bytes = miniz_oxide::inflate::decompress_to_vec_zlib(&packed).expect("this script packed it");
    kept::keep(KEPT, &SOURCES, "library.z", &packed);
    std::fs::write(out.join("library.z"), packed).expect("OUT_DIR is ours");
    println!("cargo::rustc-env=INSIDE_BYTES={}", bytes.len());
}

/// The library, packed.
fn compiled(out: &Path, triple: &str, define: &str, own: &str) -> Vec<u8> {
    let thunks = if triple.starts_with("x86") { "lib/x86_64.S" } else { "lib/aarch64.S" };
    let objects = ["lib/inside.c", thunks].map(|source| {
        let object = out.join(Path::new(source).with_extension("o").file_name().expect("it has one"));
        let mut clang = Command::new(std::env::var_os("CLANG").unwrap_or("clang".into()));
        clang.args([
            "-target",
            triple,
            define,
            own,
            "-nostdinc",
            "-ffreestanding",
            "-fPIC",
            "-O2",
            "-fno-unroll-loops",
        ]);
        clang.args([
            "-Wall",
            "-Werror",
            "-Wno-unknown-attributes",
            "-mgeneral-regs-only",
            "-fvisibility=hidden",
        ]);
        clang.args(["-fno-stack-protector", "-fasynchronous-unwind-tables", "-ffunction-sections"]);
        clang.args(["-Ilib", "-Ilib/shim", "-I", BPF, "-c", source, "-o"]).arg(&object);
        run(&mut clang);
        object
    });
    let library = out.join("libprofinfer-inside.so");
    let mut linker = linker();
    linker.args(["-shared", "--gc-sections", "--eh-frame-hdr", "--build-id=none", "-s", "-z", "now"]);
    linker.args(["-z", "nodelete"]);
    linker.args(["-z", "noexecstack", "-soname", "libprofinfer-inside.so", "-o"]);
    run(linker.arg(&library).args(objects));
    let bytes = std::fs::read(&library).expect("the linker wrote it");
    miniz_oxide::deflate::compress_to_vec_zlib(&bytes, 10)
}

/// The linker that comes with the compiler, for any processor; or the system's, for its own.
fn linker() -> Command {
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let sysroot = Command::new(rustc).args(["--print", "sysroot"]).output().ok();
    let sysroot = sysroot.and_then(|o| String::from_utf8(o.stdout).ok()).unwrap_or_default();
    let host = std::env::var("HOST").unwrap_or_default();
    let own = Path::new(sysroot.trim()).join("lib/rustlib").join(host).join("bin/rust-lld");
    if !own.is_file() {
        return Command::new("ld");
    }
    let mut linker = Command::new(own);
    linker.args(["-flavor", "gnu"]);
    linker
}

fn run(command: &mut Command) {
    let done = command.status();
    if !done.as_ref().is_ok_and(std::process::ExitStatus::success) {
        panic!("{command:?}: {done:?}\n(clang and a linker are needed: scripts/setup.sh installs them)");
    }
}
