//! Compiles src/bpf/*.bpf.c, or takes the compiled ones of a release, and generates their libbpf-rs skeletons.
#![allow(clippy::expect_used, clippy::panic, reason = "a build script stops the build")]

use std::path::{Path, PathBuf};

#[path = "crates/inside/kept.rs"]
mod kept;

/// Compiled programs of a release, and what they depend on.
const KEPT: &str = "src/bpf/kept";
const SOURCES: [&str; 2] = ["build.rs", "src/bpf"];

fn main() {
    println!("cargo::rerun-if-changed=crates/inside/kept.rs");
    SOURCES.iter().for_each(|source| println!("cargo::rerun-if-changed={source}"));
    let kept = kept::instead_of_clang(KEPT, &SOURCES);
    ["ops", "pmc", "process", "process_tp", "sched"].iter().for_each(|name| skeleton(name, kept.as_deref()));
}

/// Compiles a program, or unpacks the kept one, and generates its skeleton.
fn skeleton(name: &str, kept: Option<&Path>) {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let here = std::env::current_dir().expect("cargo starts build scripts in the package");
    // Line information contains file names; keep local paths out of it.
    let no_paths = format!("-ffile-prefix-map={}=.", here.display());
    let source = format!("src/bpf/{name}.bpf.c");
    let (object, code) = (out.join(format!("{name}.bpf.o")), out.join(format!("{name}.skel.rs")));
    let mut builder = libbpf_cargo::SkeletonBuilder::new();
    // It is not for readers, and a toolchain without rustfmt may have a rustfmt that fails: there is none of this name.
    builder.source(&source).obj(&object).reference_obj(true).rustfmt("no-rustfmt");
    let done = match kept {
        Some(kept) => {
            unpack(&kept.join(format!("{name}.bpf.z")), &object);
            builder.generate(&code)
        }
        // Never read a header of this machine, whatever processor the programs are for.
        None => builder
            .clang_args(["-Wall", "-Werror", "-nostdinc", "-Isrc/bpf", &no_paths])
            .build_and_generate(&code),
    };
    done.unwrap_or_else(|e| {
        panic!("{source}: {e:#}\n(clang and libelf are needed: scripts/setup.sh installs them)")
    });
    pack(&object, &code);
}

/// Writes the object that was packed into this file.
fn unpack(packed: &Path, object: &Path) {
    let bytes =
        std::fs::read(packed).unwrap_or_else(|e| panic!("{}: {e}: clang is needed", packed.display()));
    let bytes = miniz_oxide::inflate::decompress_to_vec_zlib(&bytes).expect("this script packed it");
    std::fs::write(object, bytes).expect("OUT_DIR is ours");
}

/// Compresses the object into the program, at a quarter of its size: the skeleton takes it from `unpacked_object`,
/// which src/capture/skel.rs defines around it.
fn pack(object: &Path, code: &Path) {
    let mut bytes = std::fs::read(object).expect("libbpf-cargo wrote the object");
    without_lines(&mut bytes).expect("clang wrote the line information");
    std::fs::write(object, &bytes).expect("OUT_DIR is ours");
    let packed = miniz_oxide::deflate::compress_to_vec_zlib(&bytes, 10);
    let file = object.with_extension("z");
    kept::keep(KEPT, &SOURCES, &file.file_name().expect("it has one").to_string_lossy(), &packed);
    std::fs::write(file, packed).expect("OUT_DIR is ours");
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
fn word(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize)
}
