//! Compiles src/bpf/*.bpf.c and generates their libbpf-rs skeletons (feature `agent` only).

fn main() {
    println!("cargo::rerun-if-changed=src/bpf");
    #[cfg(feature = "agent")]
    ["ops", "process", "process_tp"].iter().for_each(|name| skeleton(name));
}

#[cfg(feature = "agent")]
fn skeleton(name: &str) {
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let source = format!("src/bpf/{name}.bpf.c");
    libbpf_cargo::SkeletonBuilder::new()
        .source(&source)
        .clang_args(["-Wall", "-Werror", "-Isrc/bpf"])
        .build_and_generate(out.join(format!("{name}.skel.rs")))
        .unwrap_or_else(|e| {
            panic!("{source}: {e:#}\n(clang and libelf are needed: scripts/setup.sh installs them)")
        });
}
