//! The static program for another machine's processor.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use common::sha256;
use machine::owner;

/// A program to copy.
pub struct Program {
    pub path: PathBuf,
    pub bytes: Vec<u8>,
    /// SHA-256.
    pub digest: String,
    /// Its name there.
    pub name: String,
}

/// Larger files are no profinfer.
const LARGEST: u64 = 1 << 30;

/// Processors that there are programs for: as `uname -m` prints them, Rust's name, and the number of ELF's header
/// (`e_machine`, elf.h).
const PROCESSORS: &[(&[&str], &str, u16)] =
    &[(&["aarch64", "arm64", "armv8l"], "aarch64", 183), (&["x86_64", "amd64"], "x86_64", 62)];

impl Program {
    /// The given file, or the one that `make dist` made for this processor, if nobody else can have put it there.
    ///
    /// # Errors
    /// There is none for this processor, the file is for another one, or other users can change it.
    pub fn find(machine: &str, given: Option<&Path>) -> Result<Program> {
        let processor = PROCESSORS.iter().find(|(names, ..)| names.contains(&machine));
        let Some((_, arch, number)) = processor else {
            bail!("its processor is {machine}: profinfer records on 64-bit Arm (aarch64) and x86-64 only");
        };
        let path = match given {
            Some(path) => path.to_owned(),
            None => match own(arch) {
                Some(own) => own,
                None => trusted(beside(arch).with_context(|| {
                    format!(
                        "no static profinfer for {arch} was found near this program: run `make dist`, which makes \
                         dist/{arch}-unknown-linux-musl/profinfer, or give it with --remote-program"
                    )
                })?)?,
            },
        };
        let bytes = read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        match elf_machine(&bytes) {
            Some(n) if n == *number => {}
            Some(_) => bail!("{} is for another processor; the machine's is {arch}", path.display()),
            None => bail!("{} is not a program for Linux", path.display()),
        }
        let digest = sha256::hex(&bytes);
        let name = format!("profinfer-{}", digest.get(..16).unwrap_or_default());
        Ok(Program { path, bytes, digest, name })
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let found = std::fs::metadata(path)?;
    if !found.is_file() || found.len() > LARGEST {
        bail!("not a program");
    }
    Ok(std::fs::read(path)?)
}

/// This program itself, if it is static and for that processor.
fn own(arch: &str) -> Option<PathBuf> {
    let fits = cfg!(target_env = "musl") && arch == std::env::consts::ARCH;
    std::env::current_exe().ok().filter(|_| fits)
}

/// From the directories above this program: where it is in `dist`, where `dist` is beside it, and in a build directory
/// of the sources. Not from the current directory, which may be anyone's.
fn beside(arch: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let own = std::fs::canonicalize(own).ok()?;
    in_dist(&own, arch)
}

fn in_dist(own: &Path, arch: &str) -> Option<PathBuf> {
    let target = format!("{arch}-unknown-linux-musl/profinfer");
    let above = own.ancestors().skip(1).take(4);
    above.flat_map(|dir| [dir.join(&target), dir.join("dist").join(&target)]).find(|path| path.is_file())
}

/// A file that was found, not given: it will run on the other machine, perhaps as root.
fn trusted(path: PathBuf) -> Result<PathBuf> {
    match owner::only_ours(&path) {
        Ok(()) => Ok(path),
        Err(why) => bail!(
            "{} is not copied: {why}; change that, or give the file with --remote-program if it is the right one",
            path.display()
        ),
    }
}

/// `e_machine` of a little-endian ELF file.
fn elf_machine(bytes: &[u8]) -> Option<u16> {
    // Magic, 64 bits, little-endian.
    let head = bytes.strip_prefix(b"\x7fELF\x02\x01")?;
    let at: [u8; 2] = head.get(12..14)?.try_into().ok()?;
    Some(u16::from_le_bytes(at))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn programs_are_looked_for_around_this_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(&path, "x").expect("written");
            path
        };
        let arm = place("src/dist/aarch64-unknown-linux-musl/profinfer");
        for own in ["src/target/release/profinfer", "src/target/debug/deps/profinfer"] {
            assert_eq!(in_dist(&dir.path().join(own), "aarch64"), Some(arm.clone()), "{own}");
        }
        let x86 = dir.path().join("src/dist/x86_64-unknown-linux-musl/profinfer");
        assert_eq!(in_dist(&x86, "aarch64"), Some(arm));
        assert_eq!(in_dist(&x86, "riscv64"), None);
    }

    #[test]
    fn a_program_that_others_can_change_is_not_taken() {
        let dir = tempfile::tempdir().expect("a directory");
        let found = dir.path().join("aarch64-unknown-linux-musl/profinfer");
        std::fs::create_dir(found.parent().expect("a parent")).expect("made");
        std::fs::write(&found, "x").expect("written");
        let look = || trusted(in_dist(&dir.path().join("mine/profinfer"), "aarch64").expect("there"));
        assert_eq!(look().unwrap_or_else(|e| panic!("{e:#}")), found);
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).expect("its mode");
        let said = format!("{:#}", look().expect_err("everybody can exchange it"));
        let why = format!("is not copied: other users can change {}: its mode is 0777", dir.path().display());
        assert!(said.contains(&why) && said.contains("--remote-program"), "{said}");
    }

    #[test]
    fn a_program_for_another_processor_is_refused() {
        let own = std::env::current_exe().expect("a path");
        let there = std::env::consts::ARCH;
        let other = if there == "x86_64" { "aarch64" } else { "x86_64" };
        let program = Program::find(there, Some(&own)).unwrap_or_else(|e| panic!("{e:#}"));
        assert!(program.name.len() == "profinfer-".len() + 16 && program.digest.len() == 64);
        let why = |machine: &str, path: &Path| match Program::find(machine, Some(path)) {
            Ok(_) => String::new(),
            Err(e) => format!("{e:#}"),
        };
        assert!(why(other, &own).contains("another processor"), "{}", why(other, &own));
        assert!(why("armv7l", &own).contains("its processor is armv7l"));
        assert!(why(there, Path::new("/etc/passwd")).contains("not a program for Linux"));
        assert!(why(there, Path::new("/nonexistent")).contains("cannot read /nonexistent"));
    }
}
