//! For the build scripts of the programs that clang compiles: the compiled ones that are kept with the sources, for
//! machines without clang, `kept/ARCHITECTURE/NAME` beside `kept/SUM`, which says what they were compiled from.
//! `cross/keep.sh` writes them for a release; afterwards they are out of date until the next.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the kept programs of a directory are, if they are to be used: there is no clang, or PROFINFER_KEPT=1. Panics
/// if they were compiled from other sources.
pub fn instead_of_clang(kept: &str, sources: &[&str]) -> Option<PathBuf> {
    println!("cargo::rerun-if-env-changed=PROFINFER_KEPT");
    let forced = std::env::var("PROFINFER_KEPT").is_ok_and(|v| v == "1");
    let clang = std::env::var_os("CLANG").unwrap_or("clang".into());
    if !forced && Command::new(clang).arg("--version").output().is_ok_and(|o| o.status.success()) {
        return None;
    }
    let found = std::fs::read_to_string(Path::new(kept).join("SUM")).unwrap_or_default();
    assert!(
        found.trim_end() == sum(sources),
        "no clang, and {kept} was not compiled from these sources: install clang, or take the sources of a release"
    );
    println!("cargo::warning=no clang: taking the programs that were compiled for a release, from {kept}");
    Some(Path::new(kept).join(architecture()))
}

/// Keeps a compiled program, if PROFINFER_KEEP=1.
pub fn keep(kept: &str, sources: &[&str], name: &str, bytes: &[u8]) {
    println!("cargo::rerun-if-env-changed=PROFINFER_KEEP");
    if std::env::var("PROFINFER_KEEP").is_ok_and(|v| v == "1") {
        let directory = Path::new(kept).join(architecture());
        std::fs::create_dir_all(&directory).expect("the sources can be written");
        std::fs::write(directory.join(name), bytes).expect("the sources can be written");
        std::fs::write(Path::new(kept).join("SUM"), sum(sources) + "\n").expect("the sources can be written");
    }
}

fn architecture() -> String {
    std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it")
}

/// FNV-1a, 64 bits, of the names and contents of these files, and of all C and assembler files in these directories.
fn sum(sources: &[&str]) -> String {
    let mut files: Vec<PathBuf> = sources.iter().flat_map(|source| files_of(Path::new(source))).collect();
    files.sort();
    let mut state = 0xcbf2_9ce4_8422_2325_u64;
    for file in files {
        let name = file.file_name().expect("it has one").as_encoded_bytes().to_vec();
        for byte in [name, std::fs::read(&file).expect("it was listed")].concat() {
            state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{state:016x}")
}

fn files_of(path: &Path) -> Vec<PathBuf> {
    let source =
        |p: &Path| p.extension().is_some_and(|e| ["c", "h", "S"].map(std::ffi::OsStr::new).contains(&e));
    match std::fs::read_dir(path) {
        Err(_) => vec![path.to_owned()],
        Ok(entries) => entries
            .map(|entry| entry.expect("a directory that can be read").path())
            .filter(|p| p.is_dir() || source(p))
            .flat_map(|p| files_of(&p))
            .collect(),
    }
}
