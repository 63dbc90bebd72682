//! Why the kernel refused: libbpf's warnings kept instead of printed, and error numbers turned into what is missing.
//! Uses `privileges`.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{PrintLevel, set_print};

use super::privileges::{self, Cap, Privileges, SELINUX_ADVICE};

/// The kernel's own "not supported", which has no name outside of it (include/linux/errno.h).
const ENOTSUPP: i32 = 524;
/// Warnings kept.
const KEPT: usize = 8;
/// Longest warning kept, in characters.
const LONGEST: usize = 300;

static WARNINGS: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// From now on libbpf prints nothing; its last warnings are kept for messages.
pub fn hush() {
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

/// The last thing libbpf or the verifier had to say, which is then forgotten.
pub fn last_warning() -> Option<String> {
    let mut kept = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = std::mem::take(&mut *kept);
    // The verifier's reason stands above its statistics and the end mark of its log.
    let end = lines.iter().position(|l| l.contains("END PROG LOAD LOG")).unwrap_or(lines.len());
    let said = |l: &&String| !l.starts_with("processed ") && !l.starts_with("--");
    lines.range(..end).rev().find(said).or_else(|| lines.back()).cloned()
}

/// What was asked of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Make a map.
    Map,
    /// Load a program.
    Load,
    /// Place a probe or bind a program to it.
    Probe,
    /// Count hardware events.
    Count,
    /// Be told what processes of the whole machine do.
    Watch,
}

/// The error in one line: what is missing and what mends it, else the error as it is.
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

/// A refusal that the verifier's log has nothing to say about.
fn is_privilege(errno: i32, reason: &str) -> bool {
    errno == libc::ENOSYS || reason.contains("CAP_")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The error number in a message of the standard library; libbpf-rs does not hand it out otherwise.
fn os_error(text: &str) -> Option<i32> {
    let (_, rest) = text.rsplit_once("(os error ")?;
    rest.split_once(')')?.0.parse().ok()
}

/// What an error number of the kernel means here.
pub fn reason(act: Act, errno: i32, p: &Privileges) -> String {
    let system = std::io::Error::from_raw_os_error(errno);
    match (errno, act) {
        (libc::ENOSYS, Act::Map | Act::Load) => {
            "this kernel has no bpf() (built without CONFIG_BPF_SYSCALL): a kernel with it is needed".into()
        }
        (libc::ENOSYS, _) => {
            "this kernel has no perf_event_open() (built without CONFIG_PERF_EVENTS): a kernel with it is needed".into()
        }
        (libc::EPERM | libc::EACCES, _) => denied(act, errno, p),
        (libc::ENOENT | libc::ENODEV, Act::Probe) => {
            "this kernel has no uprobes through perf (needs CONFIG_UPROBE_EVENTS and kernel 4.17)".into()
        }
        (libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP, Act::Count) => {
            "not available on this CPU (or not passed to this virtual machine)".into()
        }
        (libc::EOPNOTSUPP | ENOTSUPP, Act::Probe) => {
            "this kernel cannot place a probe there: the instruction or this kind of probe is not supported".into()
        }
        (libc::EIO, Act::Probe) => {
            "the file lies on a file system that cannot be probed: copy it to an ordinary one".into()
        }
        // Helpers that read memory are then unknown.
        (libc::EINVAL, Act::Load) if p.confidential() => locked(p),
        (libc::EOPNOTSUPP | ENOTSUPP | libc::EINVAL, Act::Map | Act::Load) => {
            format!("this kernel does not know it ({system})")
        }
        (libc::EMFILE | libc::ENFILE, _) => format!("{system}: raise the limit with ulimit -n"),
        (libc::ENOMEM | libc::E2BIG, Act::Map) => {
            format!("{system}: the kernel has not the memory; try a smaller --buffer-size")
        }
        _ => system.to_string(),
    }
}

impl Act {
    /// Capabilities without which the kernel refuses it.
    fn needs(self) -> &'static [Cap] {
        match self {
            Act::Map => &[Cap::Bpf],
            // Programs for probes count as tracing, so loading them needs both.
            Act::Load => &[Cap::Bpf, Cap::Perfmon],
            Act::Probe | Act::Count | Act::Watch => &[Cap::Perfmon],
        }
    }
}

/// Which capability is missing, when that is why.
fn missing_capability(act: Act, p: &Privileges) -> Option<String> {
    let lacking = p.lacking_of(act.needs());
    let verb = if lacking.len() == 1 { "is" } else { "are" };
    (!lacking.is_empty()).then(|| format!("{} {verb} missing", lacking.join(" and ")))
}

/// Like [`reason`], without the command that gives the capability: for lists that say it once.
pub fn short_reason(act: Act, errno: i32, p: &Privileges) -> String {
    let denied = matches!(errno, libc::EPERM | libc::EACCES) && !p.user_namespace;
    let missing = missing_capability(act, p).filter(|_| denied && act != Act::Count);
    missing.unwrap_or_else(|| reason(act, errno, p))
}

fn locked(p: &Privileges) -> String {
    format!("kernel lockdown ({}) forbids it: boot with lockdown=none or lockdown=integrity", p.lockdown)
}

/// Permission denied has many fathers; the likeliest first.
fn denied(act: Act, errno: i32, p: &Privileges) -> String {
    let missing = missing_capability(act, p);
    let level = p.perf_event_paranoid.unwrap_or(2);
    if p.user_namespace {
        "capabilities of a user namespace do not count here: run outside of the container, as root".into()
    } else if act == Act::Count && level > 1 && missing.is_some() {
        format!("kernel.perf_event_paranoid is {level}: sysctl kernel.perf_event_paranoid=1, or run as root")
    } else if let Some(missing) = missing {
        format!("{missing}; {}", privileges::capability_advice())
    } else if act == Act::Probe && errno == libc::EACCES && !p.selinux_enforcing && !p.has(Cap::SysAdmin) {
        admin(level)
    } else if act == Act::Load && errno == libc::EACCES && p.selinux_enforcing {
        format!(
            "the kernel's verifier refuses the program, or SELinux does; {}: {SELINUX_ADVICE}",
            p.selinux()
        )
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
        std::io::Error::from_raw_os_error(errno).to_string()
    }
}

/// CAP_PERFMON is enough for a uprobe from 5.8 on, until "perf: Revert to requiring CAP_SYS_ADMIN for uprobes" (6.16, and stable
/// kernels since); and distributions have levels of their own above 2.
fn admin(level: i64) -> String {
    match level > 2 {
        true => format!(
            "kernel.perf_event_paranoid is {level}, where this kernel wants CAP_SYS_ADMIN: run as root, or \
             sysctl kernel.perf_event_paranoid=2"
        ),
        false => {
            "this kernel wants CAP_SYS_ADMIN for a uprobe: run as root, add it with setcap as doctor says, or \
             --source perf"
                .into()
        }
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
        assert!(reason(Act::Probe, libc::EACCES, &all).contains("wants CAP_SYS_ADMIN for a uprobe"));
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
            assert!(said.contains("takes us for u:r:sh:s0") && said.contains("setenforce 0"), "{said}");
        }
        assert_eq!(reason(Act::Load, libc::EACCES, &all), "the kernel's verifier refuses the program");
        assert!(reason(Act::Watch, libc::EACCES, &none).contains("CAP_PERFMON is missing"));
        assert!(reason(Act::Probe, libc::EOPNOTSUPP, &all).contains("not supported"));
        assert!(reason(Act::Map, libc::EINVAL, &all).contains("does not know"));
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
