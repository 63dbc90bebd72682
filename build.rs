//! Embeds the source commit in the programs' version; compiles src/bpf/*.bpf.c and generates their libbpf-rs skeletons
//! (feature `agent` only).
#![allow(clippy::expect_used, clippy::panic, reason = "a build script stops the build")]

use std::path::Path;
#[cfg(feature = "agent")]
use std::path::PathBuf;
use std::process::Command;

/// Inputs of the programs: after a change here they differ from what the commit says. Only this package is compiled
/// again for it: the crates below do not know the commit.
const SOURCES: [&str; 7] = ["build.rs", "Cargo.toml", "Cargo.lock", "src", "crates", "cross", "conf"];

fn main() {
    version();
    #[cfg(feature = "agent")]
    ["ops", "pmc", "process", "process_tp", "sched"].iter().for_each(|name| skeleton(name));
}

fn version() {
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    println!("cargo::rerun-if-env-changed=PROFINFER_COMMIT");
    let version = std::env::var("CARGO_PKG_VERSION").expect("cargo sets CARGO_PKG_VERSION");
    // Sources without git, e.g. from an archive, omit the commit or take it from the environment.
    let version = match std::env::var("PROFINFER_COMMIT").ok().or_else(commit) {
        Some(commit) if !commit.is_empty() => format!("{version} ({commit})"),
        _ => version,
    };
    println!("cargo::rustc-env=PROFINFER_VERSION={version}");
}

/// The commit checked out here, followed by `, dirty` if tracked sources differ from it.
fn commit() -> Option<String> {
    // Sources unpacked inside another repository are not from its commit.
    let top = Path::new(&git(&["rev-parse", "--show-toplevel"])?).canonicalize().ok()?;
    if top != Path::new(".").canonicalize().ok()? {
        return None;
    }
    // HEAD's log grows with each commit, checkout and reset, also with packed references. If there is none, watch
    // HEAD and its branch. Do not name missing paths: cargo would rebuild every time.
    let branch = git(&["symbolic-ref", "-q", "HEAD"]).unwrap_or_default();
    for name in ["HEAD", "logs/HEAD", "packed-refs", &branch] {
        let path = git(&["rev-parse", "--git-path", name]).unwrap_or_default();
        if !name.is_empty() && Path::new(&path).is_file() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&[
        &["--no-optional-locks", "status", "--porcelain", "--untracked-files=no", "--"],
        &SOURCES[..],
    ]
    .concat())?;
    Some(if changed.is_empty() { commit } else { format!("{commit}, dirty") })
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim_end().to_owned())
}

/// Compiles a program and generates its skeleton, unless both are newer than everything they are made of: this script
/// runs after each change of a source.
#[cfg(feature = "agent")]
fn skeleton(name: &str) {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let here = std::env::current_dir().expect("cargo starts build scripts in the package");
    // Line information contains file names; keep local paths out of it.
    let no_paths = format!("-ffile-prefix-map={}=.", here.display());
    let source = format!("src/bpf/{name}.bpf.c");
    let (object, code) = (out.join(format!("{name}.bpf.o")), out.join(format!("{name}.skel.rs")));
    let made = out.join(format!("{name}.made"));
    if newest("src/bpf").max(newest("build.rs")) < modified(&made) {
        return;
    }
    libbpf_cargo::SkeletonBuilder::new()
        .source(&source)
        .obj(&object)
        .reference_obj(true)
        // Never read a header of this machine, whatever processor the programs are for.
        .clang_args(["-Wall", "-Werror", "-nostdinc", "-Isrc/bpf", &no_paths])
        .build_and_generate(&code)
        .unwrap_or_else(|e| {
            panic!("{source}: {e:#}\n(clang and libelf are needed: scripts/setup.sh installs them)")
        });
    pack(&object, &code);
    std::fs::write(made, "").expect("OUT_DIR is ours");
}

/// When a file was last written; None: it is not there.
#[cfg(feature = "agent")]
fn modified(path: &Path) -> Option<std::time::SystemTime> {
    std::fs::metadata(path).ok()?.modified().ok()
}

/// When the last change of a file, or of the files of a directory, was.
#[cfg(feature = "agent")]
fn newest(path: &str) -> Option<std::time::SystemTime> {
    let inside = std::fs::read_dir(path).into_iter().flatten().flatten();
    inside.map(|e| e.path()).chain([path.into()]).filter_map(|p| modified(&p)).max()
}

/// Compresses the object into the program, at a quarter of its size: the skeleton takes it from `unpacked_object`,
/// which src/capture/skel.rs defines around it.
#[cfg(feature = "agent")]
fn pack(object: &Path, code: &Path) {
    let mut bytes = std::fs::read(object).expect("libbpf-cargo wrote the object");
    without_lines(&mut bytes).expect("clang wrote the line information");
    std::fs::write(object, &bytes).expect("OUT_DIR is ours");
    let packed = miniz_oxide::deflate::compress_to_vec_zlib(&bytes, 10);
    std::fs::write(object.with_extension("z"), packed).expect("OUT_DIR is ours");
    let text = std::fs::read_to_string(code).expect("libbpf-cargo wrote the skeleton");
    let (before, after) = text.split_once("::new(&DATA)").expect("a skeleton takes its object from DATA");
    let text = format!("{before}::new(unpacked_object()?){after}");
    let data = text.find("static DATA:").expect("a skeleton has its object in DATA");
    let end = data + text[data..].find(';').expect("a type's end") + 1;
    let end = end + text[end..].find(';').expect("a definition's end") + 1;
    let head = text[..data].rfind("#[").expect("a section's name");
    let text = format!(
        "{}\n    pub(super) const OBJECT_BYTES: usize = {};\n{}",
        &text[..head],
        bytes.len(),
        &text[end..]
    );
    std::fs::write(code, text).expect("OUT_DIR is ours");
}

/// Clears the line information of an object and the source lines it holds: the kernel would only print them next to
/// instructions that it rejects. They make up a third of the compressed object. Nothing moves: zeros compress to
/// almost nothing.
#[cfg(feature = "agent")]
fn without_lines(object: &mut [u8]) -> Option<()> {
    // Offsets: include/uapi/linux/btf.h for .BTF, tools/lib/bpf/libbpf_internal.h for .BTF.ext.
    let (ext, btf) = (section(object, ".BTF.ext")?, section(object, ".BTF")?);
    let texts = btf + word(object, btf + 4)? + word(object, btf + 16)?;
    let begin = ext + word(object, ext + 4)? + word(object, ext + 16)?;
    let end = begin + word(object, ext + 20)?;
    let record = word(object, begin)?;
    let mut at = begin + 4;
    while at < end {
        let records = word(object, at + 4)?;
        at += 8;
        for _ in 0..records {
            for text in [word(object, at + 4)?, word(object, at + 8)?] {
                let text = object.get_mut(texts + text..)?.split_mut(|b| *b == 0).next()?;
                // A name may also be the text of a line.
                if text.iter().any(|b| b" ;(){}/".contains(b)) {
                    text.fill(0);
                }
            }
            at += record;
        }
    }
    object.get_mut(begin..end)?.fill(0);
    object.get_mut(ext + 20..ext + 24)?.fill(0);
    Some(())
}

/// Where a section of a 64-bit ELF file begins.
#[cfg(feature = "agent")]
fn section(elf: &[u8], name: &str) -> Option<usize> {
    let header = |i: usize| Some(word(elf, 0x28)? + i * 64);
    let half = |at: usize| Some(word(elf, at)? & 0xffff);
    let names = word(elf, header(half(0x3e)?)? + 0x18)?;
    let called = |at: usize| elf.get(names + word(elf, at)?..)?.split(|b| *b == 0).next();
    (0..half(0x3c)?)
        .filter_map(header)
        .find(|at| called(*at) == Some(name.as_bytes()))
        .and_then(|at| word(elf, at + 0x18))
}

/// A four-byte number in the byte order of BPF objects for these machines.
#[cfg(feature = "agent")]
fn word(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize)
}
