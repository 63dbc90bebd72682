//! Explains why the kernel refused: keeps libbpf's warnings instead of printing them, and translates error numbers
//! to what is missing.

use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{PrintLevel, set_print};

use crate::privileges::{self, Cap, Privileges, SELINUX_ADVICE};

/// The kernel's own "not supported", which is not exported under a name (include/linux/errno.h).
const ENOTSUPP: i32 = 524;
/// Number of warnings kept.
const KEPT: usize = 8;
/// Longest warning kept, in characters.
const LONGEST: usize = 300;

static WARNINGS: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Stops libbpf from printing; its last warnings are kept for messages.
pub fn capture_libbpf_log() {
    set_print(Some((PrintLevel::Warn, |_, text| keep(&text))));
}

fn keep(text: &str) {
    let mut kept = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(line.trim_start_matches("libbpf: ").chars().take(LONGEST).collect());
    }
}

/// The last message of libbpf or the verifier. Clears all of them.
pub fn last_warning() -> Option<String> {
    let mut kept = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = std::mem::take(&mut *kept);
    // The verifier's reason comes before its statistics and the end mark of its log.
    let end = lines.iter().position(|l| l.contains("END PROG LOAD LOG")).unwrap_or(lines.len());
    let said = |l: &&String| !l.starts_with("processed ") && !l.starts_with("--");
    lines.range(..end).rev().find(said).or_else(|| lines.back()).cloned()
}

/// What the kernel was asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Create a map.
    Map,
    /// Load a program.
    Load,
    /// Place a probe or attach a program to it.
    Probe,
    /// Count hardware events.
    Count,
    /// Report what processes do on the complete machine.
    Watch,
}

/// What the kernel refused. Explained when it happens: the reason needs the privileges and libbpf's warnings of that
/// moment.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct KernelError {
    reason: String,
    source: Box<dyn Error + Send + Sync>,
}

impl KernelError {
    /// An error of a system call.
    pub fn system(act: Act, source: io::Error) -> KernelError {
        let reason = match source.raw_os_error() {
            Some(errno) => reason(act, errno, &privileges::read()),
            None => source.to_string(),
        };
        KernelError { reason, source: source.into() }
    }

    /// An error of libbpf.
    pub fn libbpf(act: Act, source: libbpf_rs::Error) -> KernelError {
        KernelError { reason: explain(act, &source), source: source.into() }
    }
}

/// The error in one line: what is missing and how to fix it, otherwise the error itself.
pub fn explain(act: Act, error: &libbpf_rs::Error) -> String {
    let text = format!("{error:#}");
    let said = last_warning();
    match os_error(&text) {
        Some(errno) => {
            let reason = reason(act, errno, &privileges::read());
            match said.filter(|_| act == Act::Load && !is_privilege(errno, &reason)) {
                Some(said) => format!("{reason} ({said})"),
                None => reason,
            }
        }
        None => one_line(&text),
    }
}

/// An error to which the verifier's log adds nothing.
fn is_privilege(errno: i32, reason: &str) -> bool {
    errno == libc::ENOSYS || reason.contains("CAP_")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The error number in a message of the standard library; libbpf-rs does not expose it in any other way.
fn os_error(text: &str) -> Option<i32> {
    let (_, rest) = text.rsplit_once("(os error ")?;
    rest.split_once(')')?.0.parse().ok()
}

/// What a kernel error number means here.
pub fn reason(act: Act, errno: i32, p: &Privileges) -> String {
    let system = io::Error::from_raw_os_error(errno);
    match (errno, act) {
        (libc::ENOSYS, Act::Map | Act::Load) => {
            "this kernel has no bpf() (built without CONFIG_BPF_SYSCALL): use a kernel that has it".into()
        }
        (libc::ENOSYS, _) => {
            "this kernel has no perf_event_open() (built without CONFIG_PERF_EVENTS): use a kernel that \
             has it"
                .into()
        }
        (libc::EPERM | libc::EACCES, _) => denied(act, errno, p),
        (libc::ENOENT | libc::ENODEV, Act::Probe) => {
            "this kernel has no uprobes through perf (needs CONFIG_UPROBE_EVENTS and kernel 4.17)".into()
        }
        (libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP, Act::Count) => {
            "not available on this CPU (or not passed to this virtual machine)".into()
        }
        (libc::EOPNOTSUPP | ENOTSUPP, Act::Probe) => {
            "this kernel cannot place a probe there: the instruction or this kind of probe is not supported"
                .into()
        }
        (libc::EIO, Act::Probe) => {
            "the file is on a file system that does not support probes: copy it to a regular one".into()
        }
        // Helpers that read memory are then not available.
        (libc::EINVAL, Act::Load) if p.confidential() => locked(p),
        (libc::EOPNOTSUPP | ENOTSUPP | libc::EINVAL, Act::Map | Act::Load) => {
            format!("not supported by this kernel ({system})")
        }
        (libc::EMFILE | libc::ENFILE, _) => format!("{system}: raise the limit with ulimit -n"),
        (libc::ENOMEM | libc::E2BIG, Act::Map) => {
            format!("{system}: not enough kernel memory; try a smaller --buffer-size")
        }
        _ => system.to_string(),
    }
}

impl Act {
    /// Capabilities that the kernel requires for it.
    fn needs(self) -> &'static [Cap] {
        match self {
            Act::Map => &[Cap::Bpf],
            // Programs for probes count as tracing, so loading them needs both.
            Act::Load => &[Cap::Bpf, Cap::Perfmon],
            Act::Probe | Act::Count | Act::Watch => &[Cap::Perfmon],
        }
    }
}

/// The missing capabilities, if any.
fn missing_capability(act: Act, p: &Privileges) -> Option<String> {
    let lacking = p.lacking_of(act.needs());
    let verb = if lacking.len() == 1 { "is" } else { "are" };
    (!lacking.is_empty()).then(|| format!("{} {verb} missing", lacking.join(" and ")))
}

/// Like [`reason`], without the command that grants the capability: for lists that print it only once.
pub fn short_reason(act: Act, errno: i32, p: &Privileges) -> String {
    let denied = matches!(errno, libc::EPERM | libc::EACCES) && !p.user_namespace;
    let missing = missing_capability(act, p).filter(|_| denied && act != Act::Count);
    missing.unwrap_or_else(|| reason(act, errno, p))
}

fn locked(p: &Privileges) -> String {
    format!("kernel lockdown ({}) forbids it: boot with lockdown=none or lockdown=integrity", p.lockdown)
}

/// Permission denied has many causes; the most likely first.
fn denied(act: Act, errno: i32, p: &Privileges) -> String {
    let missing = missing_capability(act, p);
    let level = p.perf_event_paranoid.unwrap_or(2);
    if p.user_namespace {
        "capabilities of a user namespace do not count here: run as root outside the container".into()
    } else if act == Act::Count && level > 1 && missing.is_some() {
        format!("kernel.perf_event_paranoid is {level}: sysctl kernel.perf_event_paranoid=1, or run as root")
    } else if let Some(missing) = missing {
        format!("{missing}; {}", privileges::capability_advice())
    } else if act == Act::Probe && errno == libc::EACCES && !p.selinux_enforcing && !p.has(Cap::SysAdmin) {
        admin(level)
    } else if act == Act::Load && errno == libc::EACCES && p.selinux_enforcing {
        format!("the kernel's verifier or SELinux refuses the program; {}: {SELINUX_ADVICE}", p.selinux())
    } else if act == Act::Load && errno == libc::EACCES {
        "the kernel's verifier refuses the program".into()
    } else if p.locked_down() {
        locked(p)
    } else if p.seccomp {
        "a seccomp filter forbids it: start the container with --privileged, or run outside".into()
    } else if p.selinux_enforcing {
        format!("{}: {SELINUX_ADVICE}", p.selinux())
    } else if act == Act::Map && p.memlock.is_some() {
        "RLIMIT_MEMLOCK is too small: ulimit -l unlimited, or run as root".into()
    } else {
        io::Error::from_raw_os_error(errno).to_string()
    }
}

/// CAP_PERFMON is enough for a uprobe from 5.8 on, until "perf: Revert to requiring CAP_SYS_ADMIN for uprobes"
/// (6.16, and stable kernels since); and distributions have their own levels above 2.
fn admin(level: i64) -> String {
    match level > 2 {
        true => format!(
            "kernel.perf_event_paranoid is {level}, for which this kernel requires CAP_SYS_ADMIN: run as \
             root, or sysctl kernel.perf_event_paranoid=2"
        ),
        false => "this kernel requires CAP_SYS_ADMIN for a uprobe: run as root, add it with setcap (see \
             profinfer doctor), or use --source perf"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(caps: &[Cap]) -> Privileges {
        let effective = caps.iter().fold(0, |m, c| m | 1 << (*c as u32));
        Privileges { effective, ..Privileges::default() }
    }

    #[test]
    fn each_number_says_what_is_missing() {
        let none = with(&[]);
        let all = with(&[Cap::Bpf, Cap::Perfmon]);
        assert!(reason(Act::Load, libc::ENOSYS, &all).contains("no bpf()"));
        assert!(reason(Act::Load, libc::EPERM, &none).contains("CAP_BPF and CAP_PERFMON are missing"));
        assert!(reason(Act::Probe, libc::EACCES, &with(&[Cap::Bpf])).contains("CAP_PERFMON is missing"));
        let paranoid = Privileges { perf_event_paranoid: Some(3), ..all.clone() };
        assert!(reason(Act::Probe, libc::EACCES, &paranoid).contains("perf_event_paranoid is 3"));
        assert!(reason(Act::Probe, libc::EACCES, &all).contains("requires CAP_SYS_ADMIN for a uprobe"));
        let root = with(&[Cap::SysAdmin]);
        assert!(!reason(Act::Probe, libc::EACCES, &root).contains("CAP_"));
        let locked = Privileges { lockdown: "confidentiality".into(), ..all.clone() };
        assert!(reason(Act::Probe, libc::EPERM, &locked).contains("lockdown"));
        assert!(reason(Act::Load, libc::EINVAL, &locked).contains("lockdown (confidentiality) forbids it"));
        let contained = Privileges { seccomp: true, ..all.clone() };
        assert!(reason(Act::Map, libc::EPERM, &contained).contains("seccomp"));
        let board =
            Privileges { selinux_enforcing: true, selinux_context: "u:r:sh:s0".into(), ..all.clone() };
        for act in [Act::Map, Act::Load, Act::Probe] {
            let said = reason(act, libc::EACCES, &board);
            assert!(said.contains("our context is u:r:sh:s0") && said.contains("setenforce 0"), "{said}");
        }
        assert_eq!(reason(Act::Load, libc::EACCES, &all), "the kernel's verifier refuses the program");
        assert!(reason(Act::Watch, libc::EACCES, &none).contains("CAP_PERFMON is missing"));
        assert!(reason(Act::Probe, libc::EOPNOTSUPP, &all).contains("not supported"));
        assert!(reason(Act::Map, libc::EINVAL, &all).contains("not supported by this kernel"));
    }

    #[test]
    fn the_number_is_found_in_the_message() {
        let e = libbpf_rs::Error::from_raw_os_error(libc::EPERM);
        assert_eq!(os_error(&format!("{e:#}")), Some(libc::EPERM));
        assert_eq!(os_error("nothing"), None);
    }

    #[test]
    fn the_verifier_reason_outlives_its_statistics() {
        keep("libbpf: prog 'x': BPF program load failed: Permission denied\n");
        keep(
            "libbpf: prog 'x': -- BEGIN PROG LOAD LOG --\nR1 invalid mem access 'scalar'\nprocessed 5 insns\n-- END PROG LOAD LOG --\n",
        );
        keep("libbpf: failed to load object 'ops'\n");
        assert_eq!(last_warning().as_deref(), Some("R1 invalid mem access 'scalar'"));
        assert_eq!(last_warning(), None);
    }
}
