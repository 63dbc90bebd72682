//! What this process may do: its capabilities, and the kernel settings that restrict them.

use std::os::unix::fs::MetadataExt;
use std::{fs, io};

use crate::check::{Check, CheckResult};

/// Numbers of capabilities (include/uapi/linux/capability.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cap {
    SysPtrace = 19,
    SysAdmin = 21,
    SysResource = 24,
    Perfmon = 38,
    Bpf = 39,
}

impl Cap {
    pub fn name(self) -> &'static str {
        match self {
            Cap::SysPtrace => "CAP_SYS_PTRACE",
            Cap::SysAdmin => "CAP_SYS_ADMIN",
            Cap::SysResource => "CAP_SYS_RESOURCE",
            Cap::Perfmon => "CAP_PERFMON",
            Cap::Bpf => "CAP_BPF",
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Privileges {
    /// One bit per capability in effect.
    pub effective: u64,
    /// A system call filter is on, as in containers.
    pub seccomp: bool,
    /// Capabilities are valid only inside a user namespace, where BPF and perf ignore them.
    pub user_namespace: bool,
    /// `none`, `integrity`, `confidentiality`; empty if the kernel has no lockdown.
    pub lockdown: String,
    pub selinux_enforcing: bool,
    /// Our SELinux context, `u:r:shell:s0`; empty without SELinux.
    pub selinux_context: String,
    pub unprivileged_bpf_disabled: Option<i64>,
    pub perf_event_paranoid: Option<i64>,
    pub ptrace_scope: Option<i64>,
    /// Our file grants capabilities to everyone who executes it, and everyone may execute it.
    pub open_to_all: bool,
    /// Bytes of memory that may be locked, `None` if unlimited or unknown.
    pub memlock: Option<u64>,
}

/// Reads all of these; a value that cannot be read counts as absent.
pub fn read() -> Privileges {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
    Privileges {
        effective: field(&status, "CapEff").and_then(|v| u64::from_str_radix(v, 16).ok()).unwrap_or(0),
        seccomp: field(&status, "Seccomp") == Some("2"),
        open_to_all: open_to_all(),
        user_namespace: fs::read_to_string("/proc/self/uid_map").is_ok_and(|m| !maps_all(&m)),
        lockdown: lockdown(&fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default()),
        selinux_enforcing: selinux_enforcing(fs::read_to_string("/sys/fs/selinux/enforce")),
        selinux_context: selinux_context(&fs::read_to_string("/proc/self/attr/current").unwrap_or_default()),
        unprivileged_bpf_disabled: number("/proc/sys/kernel/unprivileged_bpf_disabled"),
        perf_event_paranoid: number("/proc/sys/kernel/perf_event_paranoid"),
        ptrace_scope: number("/proc/sys/kernel/yama/ptrace_scope"),
        memlock: memlock(),
    }
}

fn field<'t>(status: &'t str, name: &str) -> Option<&'t str> {
    status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// The first user namespace maps every id to itself.
fn maps_all(uid_map: &str) -> bool {
    let words: Vec<&str> = uid_map.split_ascii_whitespace().collect();
    words.is_empty() || words == ["0", "0", "4294967295"]
}

/// The mode in brackets: `none [integrity] confidentiality`.
fn lockdown(text: &str) -> String {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map(|(mode, _)| mode.to_owned()).unwrap_or_default()
}

/// Only an enforced policy denies reading the file.
fn selinux_enforcing(enforce: io::Result<String>) -> bool {
    match enforce {
        Ok(text) => text.trim() == "1",
        Err(e) => e.kind() == io::ErrorKind::PermissionDenied,
    }
}

/// AppArmor's profiles, in the same file, have no colons.
fn selinux_context(text: &str) -> String {
    let text = text.trim_end_matches(['\0', '\n']);
    if text.split(':').count() >= 4 { text.to_owned() } else { String::new() }
}

fn memlock() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // rustix takes for granted that the kernel reports limits.
    // SAFETY: the kernel writes one rlimit to the given place.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (got == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

impl Privileges {
    /// True if the capability is effective: held itself, or through CAP_SYS_ADMIN, which includes BPF and perf.
    pub fn has(&self, cap: Cap) -> bool {
        let bit = |c: Cap| self.effective >> (c as u32) & 1 == 1;
        let admin = matches!(cap, Cap::Bpf | Cap::Perfmon) && bit(Cap::SysAdmin);
        !self.user_namespace && (bit(cap) || admin)
    }

    /// The capabilities that probing needs and this process does not have.
    pub fn lacking(&self) -> Vec<&'static str> {
        self.lacking_of(&[Cap::Bpf, Cap::Perfmon])
    }

    /// Those of `caps` that this process does not have.
    pub fn lacking_of(&self, caps: &[Cap]) -> Vec<&'static str> {
        caps.iter().filter(|c| !self.has(**c)).map(|c| c.name()).collect()
    }

    /// True if a lockdown mode is on.
    pub fn locked_down(&self) -> bool {
        !matches!(self.lockdown.as_str(), "" | "none")
    }

    /// True if even root may not read the kernel's memory or tracefs.
    pub fn confidential(&self) -> bool {
        self.lockdown == "confidentiality"
    }

    /// All of these as a checklist.
    pub fn checks(&self) -> Vec<Check> {
        let mut out = vec![
            self.capability(Cap::Bpf, true, "needed to load BPF programs and create maps"),
            self.capability(Cap::Perfmon, true, "needed to place probes"),
            self.capability(
                Cap::SysPtrace,
                false,
                "without it only processes of the same user can be recorded",
            ),
            self.capability(
                Cap::SysResource,
                false,
                "needed only where BPF memory counts against RLIMIT_MEMLOCK (kernels before 5.11)",
            ),
        ];
        if self.user_namespace {
            out.push(
                Check::new("user-namespace", "user namespace", CheckResult::Missing)
                    .detail("capabilities held inside a user namespace do not count for BPF")
                    .mend("run it as root outside the container"),
            );
        }
        if self.open_to_all {
            let exe = program();
            out.push(
                Check::new("open-to-all", "file capabilities", CheckResult::Optional)
                    .detail("any user may execute it, and can then read and probe the processes of all users")
                    .mend(&format!(
                        "groupadd -f {GROUP}; chgrp {GROUP} {exe} && chmod 0750 {exe}, then repeat the setcap"
                    )),
            );
        }
        out.extend(self.settings());
        out.extend(self.guards());
        out
    }

    fn capability(&self, cap: Cap, needed: bool, what: &str) -> Check {
        let id = cap.name().to_ascii_lowercase();
        match (self.has(cap), needed) {
            (true, _) => Check::new(&id, cap.name(), CheckResult::Ok),
            (false, true) => {
                Check::new(&id, cap.name(), CheckResult::Missing).detail(what).mend(&capability_advice())
            }
            (false, false) => Check::new(&id, cap.name(), CheckResult::Optional).detail(what),
        }
    }

    /// SELinux's state as text.
    pub fn selinux(&self) -> String {
        match self.selinux_context.as_str() {
            "" => "SELinux is enforcing".into(),
            us => format!("SELinux is enforcing; our context is {us}"),
        }
    }

    fn settings(&self) -> Vec<Check> {
        let mut out = Vec::new();
        if let Some(n) = self.unprivileged_bpf_disabled {
            let detail = match n {
                0 => "0: any user may use bpf(), but probe programs need CAP_BPF",
                1 => "1: bpf() needs CAP_BPF until the next boot",
                _ => "2: bpf() needs CAP_BPF",
            };
            out.push(
                Check::new("unprivileged-bpf", "kernel.unprivileged_bpf_disabled", CheckResult::Ok)
                    .detail(detail),
            );
        }
        if let Some(n) = self.perf_event_paranoid {
            let check = Check::new("perf-paranoid", "kernel.perf_event_paranoid", CheckResult::Ok);
            out.push(match (n > 2 && !self.has(Cap::SysAdmin), self.has(Cap::Perfmon)) {
                // Some distributions have added a level that the kernel itself does not have.
                (true, _) => Check { state: CheckResult::Optional, ..check }
                    .detail(&format!("{n}: some kernels require CAP_SYS_ADMIN at this level"))
                    .mend("sysctl kernel.perf_event_paranoid=2"),
                (false, true) => check.detail(&format!("{n}: irrelevant with CAP_PERFMON")),
                (false, false) => check.detail(&format!("{n}: uprobes need CAP_PERFMON at any level")),
            });
        }
        if let Some(n) = self.ptrace_scope.filter(|n| *n > 0) {
            let free = self.has(Cap::SysPtrace) && n < 3;
            let check = Check::new("ptrace-scope", "kernel.yama.ptrace_scope", CheckResult::Ok);
            out.push(match free {
                true => check.detail(&format!("{n}: irrelevant with CAP_SYS_PTRACE")),
                false => Check { state: CheckResult::Optional, ..check }
                    .detail(&format!("{n}: the memory of other processes cannot be read"))
                    .mend("sysctl kernel.yama.ptrace_scope=0, or run as root"),
            });
        }
        out
    }

    fn guards(&self) -> Vec<Check> {
        let mode = if self.lockdown.is_empty() { "none" } else { &self.lockdown };
        let lockdown = Check::new("lockdown", "kernel lockdown", CheckResult::Ok);
        let lockdown = match mode {
            "confidentiality" => Check { state: CheckResult::Optional, ..lockdown }
                .detail("confidentiality: blocks tracefs and BPF programs that read memory")
                .mend("boot with lockdown=none or lockdown=integrity"),
            "integrity" => lockdown.detail("integrity: does not affect recording"),
            other => lockdown.detail(other),
        };
        let memlock = match self.memlock {
            // Old kernels charge BPF memory to this limit; libbpf raises it if allowed. The trials show whether it
            // is enough.
            Some(n) => Check::new("memlock", "RLIMIT_MEMLOCK", CheckResult::Ok)
                .detail(&format!("{} KiB; matters only on kernels before 5.11", n / 1024)),
            None => Check::new("memlock", "RLIMIT_MEMLOCK", CheckResult::Ok).detail("unlimited"),
        };
        let mut out = vec![lockdown, memlock];
        if self.seccomp {
            out.push(
                Check::new("seccomp", "seccomp filter", CheckResult::Optional)
                    .detail("active, as in containers: it may block bpf() and perf_event_open()")
                    .mend("if a check below fails, start the container with --privileged, or run outside it"),
            );
        }
        if self.selinux_enforcing {
            out.push(
                Check::new("selinux", "SELinux", CheckResult::Optional)
                    .detail(&format!("{}; it may block bpf() and perf_event_open()", self.selinux()))
                    .mend(&format!("if a check below fails: {SELINUX_ADVICE}")),
            );
        }
        out
    }
}

/// What to do if SELinux refuses.
pub const SELINUX_ADVICE: &str = "see dmesg | grep avc; setenforce 0 where that is allowed (a development \
    board, userdebug Android as root), otherwise a policy that allows bpf and perf_event for this domain";

/// The commands that grant the capabilities: to a group, because anyone who executes a program with them can do to the
/// processes of all users what a recording does. The group and mode are changed first, since that removes capabilities.
pub fn capability_advice() -> String {
    let exe = program();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let (admin, perhaps) = match wants_admin(&release) || read().perf_event_paranoid > Some(2) {
        true => (",cap_sys_admin", ""),
        false => ("", " (add cap_sys_admin if uprobes are refused without it)"),
    };
    format!(
        "run as root, or allow one group (its members may read and probe the processes of all users): sudo \
         sh -c 'groupadd -f {GROUP}; chgrp {GROUP} {exe} && chmod 0750 {exe} && setcap \
         cap_bpf,cap_perfmon,cap_sys_ptrace{admin}+ep {exe}'{perhaps}"
    )
}

/// The group that may record.
const GROUP: &str = "profinfer";

/// Path of this program; only its name if the path is not safe to use in a command.
fn program() -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._+-".contains(c);
    let exe = std::env::current_exe().ok().and_then(|path| path.into_os_string().into_string().ok());
    exe.filter(|path| path.chars().all(plain)).unwrap_or_else(|| "profinfer".to_owned())
}

/// True if our file grants capabilities to everyone.
fn open_to_all() -> bool {
    let open = fs::metadata("/proc/self/exe").is_ok_and(|found| found.mode() & 0o001 != 0);
    let size = || rustix::fs::getxattr_query(c"/proc/self/exe", c"security.capability");
    open && size().is_ok_and(|size| size > 0)
}

/// Whether a kernel is known to require CAP_SYS_ADMIN for a uprobe: from 6.16 on ("perf: Revert to requiring
/// CAP_SYS_ADMIN for uprobes"), and two stable series that were tested, from the release that took the change over.
/// This is only for advice: what a kernel really requires is shown by a trial, which needs the other capabilities.
fn wants_admin(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u32>().ok());
    let mut next = || numbers.next().unwrap_or(0);
    match (next(), next(), next()) {
        (6, 1, patch) => patch >= 176,
        (6, 12, patch) => patch >= 107,
        (major, minor, _) => (major, minor) >= (6, 16),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_and_what_stands_for_them() {
        let with = |caps: &[Cap]| Privileges {
            effective: caps.iter().fold(0, |m, c| m | 1 << (*c as u32)),
            ..Privileges::default()
        };
        assert_eq!(with(&[]).lacking(), ["CAP_BPF", "CAP_PERFMON"]);
        assert_eq!(with(&[Cap::Bpf]).lacking(), ["CAP_PERFMON"]);
        assert!(with(&[Cap::SysAdmin]).lacking().is_empty());
        assert!(!with(&[Cap::SysAdmin]).has(Cap::SysPtrace));
        let contained = Privileges { user_namespace: true, ..with(&[Cap::Bpf, Cap::Perfmon]) };
        assert_eq!(contained.lacking(), ["CAP_BPF", "CAP_PERFMON"]);
    }

    #[test]
    fn kernels_that_want_more_are_known() {
        for (release, wants) in [
            ("5.10.223-arm64\n", false),
            ("6.1.175", false),
            ("6.1.176-1", true),
            ("6.12.107+deb13-arm64", true),
            ("6.15.11", false),
            ("6.16-rc1", true),
            ("7.0", true),
            ("", false),
        ] {
            assert_eq!(wants_admin(release), wants, "{release}");
        }
    }

    #[test]
    fn kernel_files_are_read_as_written() {
        assert_eq!(field("Name:\tx\nCapEff:\t00ff\n", "CapEff"), Some("00ff"));
        assert_eq!(lockdown("none [integrity] confidentiality\n"), "integrity");
        assert_eq!(lockdown(""), "");
        let denied = || Err(io::Error::from_raw_os_error(libc::EACCES));
        assert!(selinux_enforcing(Ok("1".into())) && selinux_enforcing(denied()));
        assert!(!selinux_enforcing(Ok("0\n".into())));
        assert!(!selinux_enforcing(Err(io::Error::from_raw_os_error(libc::ENOENT))));
        assert_eq!(selinux_context("u:r:su:s0\0"), "u:r:su:s0");
        assert_eq!(selinux_context("unconfined\n"), "");
        assert!(maps_all("         0          0 4294967295\n") && !maps_all("0 1000 1\n"));
    }
}
