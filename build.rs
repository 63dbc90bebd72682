//! Compiles src/bpf/*.bpf.c and generates their libbpf-rs skeletons (feature `agent` only).

fn main() {
    println!("cargo::rerun-if-changed=src/bpf");
    #[cfg(feature = "agent")]
    skeleton();
}

#[cfg(feature = "agent")]
fn skeleton() {
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    libbpf_cargo::SkeletonBuilder::new()
        .source("src/bpf/ops.bpf.c")
        .clang_args(["-Wall", "-Werror", "-Isrc/bpf"])
        .build_and_generate(out.join("ops.skel.rs"))
        .unwrap_or_else(|e| {
            panic!("src/bpf/ops.bpf.c: {e:#}\n(clang and libelf are needed: scripts/setup.sh installs them)")
        });
}
