//! Kernel features, detected by trying them and never by version: vendors backport.

use machine::check::{Check, CheckResult};
use std::ffi::CStr;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use libbpf_rs::libbpf_sys as sys;
use perf_event_open_sys as perf;

use crate::capture::calibration_target::{self, Function, Spot};
use crate::capture::multi;
use crate::capture::sched;
use machine::diagnose::{self, Act};
use machine::kernel::btf::Btf;
use machine::kernel::kconfig::Kconfig;
use machine::kernel::tracefs as definitions;
use machine::kernel::tracepoint;
use machine::privileges::Privileges;

/// A kernel error number, positive.
type Errno = i32;

/// Tries everything. Without `place`, no probe is placed, not even on this process. `given`: the kernel's BTF, if any.
pub fn kernel(p: &Privileges, place: bool, given: Option<&Btf>) -> Vec<Check> {
    let t = Trials { p };
    let array = map(sys::BPF_MAP_TYPE_ARRAY, 4, 8, 1);
    let no_bpf = array.as_ref().is_err_and(|e| *e == libc::ENOSYS);
    let mut out = vec![t.needed("bpf", "bpf() system call", Act::Map, array)];
    if no_bpf {
        out.push(
            Check::new("bpf-rest", "maps and programs", CheckResult::Skipped)
                .detail("bpf() is not available"),
        );
    } else {
        out.extend(t.maps());
        out.extend(t.programs());
    }
    match (place, calibration_target::site(Function::Op, Spot::First)) {
        (true, Some(site)) => out.extend(t.probes(site, no_bpf)),
        (true, None) => out.push(
            Check::new("uprobe", "uprobe", CheckResult::Skipped)
                .detail("our own executable is not in /proc/self/maps"),
        ),
        (false, _) => {
            out.push(
                Check::new("uprobe", "uprobe and uretprobe", CheckResult::Skipped)
                    .detail("--no-probe was given"),
            );
        }
    }
    let btf = btf(given);
    out.push(tracefs(btf.state == CheckResult::Ok, p));
    out.push(events());
    out.push(btf);
    out.push(scheduler(no_bpf));
    out.push(t.counters());
    out
}

struct Trials<'p> {
    p: &'p Privileges,
}

impl Trials<'_> {
    fn needed<T>(&self, id: &str, name: &str, act: Act, tried: Result<T, Errno>) -> Check {
        self.check(id, name, act, CheckResult::Missing, tried)
    }

    fn optional<T>(&self, id: &str, name: &str, act: Act, tried: Result<T, Errno>, without: &str) -> Check {
        let check = self.check(id, name, act, CheckResult::Optional, tried);
        match check.state {
            CheckResult::Ok => check,
            _ => Check { detail: format!("{}; {without}", check.detail), ..check },
        }
    }

    fn check<T>(
        &self,
        id: &str,
        name: &str,
        act: Act,
        absent: CheckResult,
        tried: Result<T, Errno>,
    ) -> Check {
        match tried {
            Ok(_) => Check::new(id, name, CheckResult::Ok),
            Err(errno) => Check::new(id, name, absent).detail(&diagnose::short_reason(act, errno, self.p)),
        }
    }

    fn maps(&self) -> Vec<Check> {
        let page = crate::capture::transport::page_size() as u32;
        let make = |id: &str, name: &str, kind, (key, value, entries)| {
            self.needed(id, name, Act::Map, map(kind, key, value, entries))
        };
        vec![
            make("ring-buffer", "ring buffer map", sys::BPF_MAP_TYPE_RINGBUF, (0, 0, page)),
            make("perf-buffer", "perf event array map", sys::BPF_MAP_TYPE_PERF_EVENT_ARRAY, (4, 4, 1)),
            make("hash", "hash map", sys::BPF_MAP_TYPE_HASH, (4, 8, 1)),
            make("lru-hash", "LRU hash map", sys::BPF_MAP_TYPE_LRU_HASH, (4, 8, 16)),
            make("percpu-array", "per-CPU array map", sys::BPF_MAP_TYPE_PERCPU_ARRAY, (4, 8, 1)),
        ]
    }

    fn programs(&self) -> [Check; 2] {
        [
            self.needed("prog-probe", "probe program", Act::Load, program(sys::BPF_PROG_TYPE_KPROBE, 0)),
            self.optional(
                "prog-tracepoint",
                "tracepoint program",
                Act::Load,
                program(sys::BPF_PROG_TYPE_TRACEPOINT, 0),
                "needed only to follow children without BTF",
            ),
        ]
    }

    fn probes(&self, site: u64, no_bpf: bool) -> Vec<Check> {
        let entry = uprobe(site, false);
        let bound = entry.as_ref().ok().filter(|_| !no_bpf).map(|event| {
            program(sys::BPF_PROG_TYPE_KPROBE, 0).and_then(|prog| perf_link(&prog, event).map(drop))
        });
        let usable = entry.is_ok();
        let mut out = vec![
            self.needed("uprobe", "uprobe on one of our own functions", Act::Probe, entry),
            self.needed("uretprobe", "uretprobe", Act::Probe, uprobe(site, true)),
        ];
        if let Some(bound) = bound {
            let without = "probes are attached with the older ioctl, which works as well";
            out.push(self.optional("perf-link", "BPF link of a perf event", Act::Load, bound, without));
        }
        if usable && !no_bpf {
            let without = "probes are removed one by one, so a recording takes about a second longer to stop";
            out.push(self.optional(
                "uprobe-multi",
                "uprobe_multi link",
                Act::Load,
                uprobe_multi(site),
                without,
            ));
        }
        out
    }

    fn counters(&self) -> Check {
        let cycles = counter(u64::from(perf::bindings::PERF_COUNT_HW_CPU_CYCLES));
        let without = "not needed to record ops";
        self.optional("hardware-counters", "hardware counters (cycles)", Act::Count, cycles, without)
    }
}

fn tracefs(has_btf: bool, p: &Privileges) -> Check {
    let check = Check::new("tracefs", "tracefs (sched_process_fork)", CheckResult::Ok);
    let Err(e) = tracepoint::fork_child() else { return check };
    let shut = fs::read_dir("/sys/kernel/tracing").is_err_and(|e| e.kind() == ErrorKind::PermissionDenied);
    let (why, mend) = match (p.confidential(), shut) {
        (true, _) => {
            ("blocked by kernel lockdown".to_owned(), "boot with lockdown=none or lockdown=integrity")
        }
        (false, true) => ("readable by root only".to_owned(), "run as root"),
        (false, false) => (e.to_string(), "as root: mount -t tracefs nodev /sys/kernel/tracing"),
    };
    let without = match has_btf {
        true => "needed only to follow children without BTF",
        false => "children of a target are not followed",
    };
    Check { state: CheckResult::Optional, ..check }.detail(&format!("{why}; {without}")).mend(mend)
}

/// Whether probes can be defined in tracefs.
fn events() -> Check {
    let check = Check::new("uprobe-events", "probe definitions in tracefs", CheckResult::Ok);
    match definitions::offered() {
        Ok(()) => match definitions::left_over() {
            None | Some(0) => check,
            Some(n) => check.detail(&format!(
                "{n} left by killed recorders, in use by none: the next recording removes them"
            )),
        },
        Err(why) => Check { state: CheckResult::Optional, ..check }
            .detail(&format!("{why}; processes are probed one by one, and detaching takes longer")),
    }
}

/// What `record --sched` needs.
fn scheduler(no_bpf: bool) -> Check {
    let check = Check::new("scheduler", "scheduler tracepoints (--sched)", CheckResult::Ok);
    match sched::offered() {
        Err(why) => Check { state: CheckResult::Optional, ..check }
            .detail(&format!("{why}; off-CPU time is not recorded")),
        Ok(_) if no_bpf => check.detail(
            "through perf events: page faults and block I/O cannot be \
            distinguished",
        ),
        Ok(blind) if blind.is_empty() => check,
        Ok(blind) => check.detail(&format!("page faults and block I/O cannot be distinguished: {blind}")),
    }
}

/// The types used to follow children: the given ones, otherwise the kernel's.
fn btf(given: Option<&Btf>) -> Check {
    let check = Check::new("btf", "kernel type information (BTF)", CheckResult::Ok);
    let none = Check { state: CheckResult::Optional, ..check.clone() };
    match (given, Btf::of_kernel()) {
        (Some(btf), _) => check.detail(&format!("from {}, as requested", btf.path.display())),
        (None, Some(Ok(_))) => check,
        (None, Some(Err(e))) => none.detail(&e.to_string()),
        (None, None) => none
            .detail("none: children of a target are followed through tracefs, if available")
            .mend("to use BTF: --btf FILE, made from this kernel's vmlinux"),
    }
}

/// What the kernel was built without, if its configuration is available.
pub fn config(kconfig: Option<&Kconfig>) -> Check {
    let check = Check::new("config", "kernel configuration", CheckResult::Ok);
    let Some(kconfig) = kconfig else {
        return Check { state: CheckResult::Optional, ..check }
            .detail("not available (no /proc/config.gz, no file in /boot); used only to explain failures");
    };
    let path = kconfig.path.display();
    let off: Vec<String> = kconfig.off().map(|(option, what)| format!("{option} ({what})")).collect();
    match off.is_empty() {
        true => check.detail(&format!("all options used are enabled according to {path}")),
        false => Check { state: CheckResult::Optional, ..check }
            .detail(&format!("disabled according to {path}: {}", off.join(", ")))
            .mend("if a check above failed, use a kernel built with these options"),
    }
}

fn owned(got: i32) -> Result<OwnedFd, Errno> {
    match got {
        // SAFETY: a descriptor that the kernel has just created for us; nothing else owns it.
        fd if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        error => Err(error.saturating_neg()),
    }
}

fn map(kind: sys::bpf_map_type, key: u32, value: u32, entries: u32) -> Result<OwnedFd, Errno> {
    let opts =
        sys::bpf_map_create_opts { sz: size_of::<sys::bpf_map_create_opts>() as _, ..Default::default() };
    // SAFETY: the name is a C string, the options have the size they state; both are only read.
    owned(unsafe { sys::bpf_map_create(kind, c"doctor".as_ptr(), key, value, entries, &raw const opts) })
}

/// Loads `return 0` as a program of this kind.
fn program(kind: sys::bpf_prog_type, attach: sys::bpf_attach_type) -> Result<OwnedFd, Errno> {
    // r0 = 0; exit (BPF_ALU64 | BPF_MOV | BPF_K, BPF_JMP | BPF_EXIT).
    let code = [0xb7, 0x95].map(|code| sys::bpf_insn { code, ..Default::default() });
    let mut opts = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as _,
        expected_attach_type: attach,
        ..Default::default()
    };
    let (name, license) = (c"doctor".as_ptr(), c"GPL".as_ptr());
    // SAFETY: strings, instructions and options outlive the call and have the stated lengths.
    owned(unsafe { sys::bpf_prog_load(kind, name, license, code.as_ptr(), code.len() as _, &raw mut opts) })
}

const SELF: &CStr = c"/proc/self/exe";

/// Opens a uprobe at an offset of our own file, in this process only.
fn uprobe(offset: u64, ret: bool) -> Result<OwnedFd, Errno> {
    let kind = fs::read_to_string(Path::new("/sys/bus/event_source/devices/uprobe/type"));
    let kind: u32 = kind.ok().and_then(|t| t.trim().parse().ok()).ok_or(libc::ENOENT)?;
    let mut attr = perf::bindings::perf_event_attr {
        type_: kind,
        size: size_of::<perf::bindings::perf_event_attr>() as u32,
        config: u64::from(ret),
        ..Default::default()
    };
    attr.__bindgen_anon_3.config1 = SELF.as_ptr() as u64;
    attr.__bindgen_anon_4.config2 = offset;
    open_event(&mut attr, 0, -1)
}

/// Whether this process may create a map and load a probe program; Err is the kernel's error number.
pub fn bpf() -> Result<(), i32> {
    map(sys::BPF_MAP_TYPE_ARRAY, 4, 8, 1)?;
    program(sys::BPF_PROG_TYPE_KPROBE, 0).map(drop)
}

/// Opens a counter on our own thread.
fn counter(config: u64) -> Result<OwnedFd, Errno> {
    let mut attr = perf::bindings::perf_event_attr {
        type_: perf::bindings::PERF_TYPE_HARDWARE,
        size: size_of::<perf::bindings::perf_event_attr>() as u32,
        config,
        ..Default::default()
    };
    attr.set_disabled(1);
    attr.set_exclude_kernel(1);
    open_event(&mut attr, 0, -1)
}

fn open_event(attr: &mut perf::bindings::perf_event_attr, pid: i32, cpu: i32) -> Result<OwnedFd, Errno> {
    let cloexec = libc::c_ulong::from(perf::bindings::PERF_FLAG_FD_CLOEXEC);
    // SAFETY: the attributes have the size they state, and a path in them is a C string that outlives the call.
    match unsafe { perf::perf_event_open(attr, pid, cpu, -1, cloexec) } {
        fd if fd >= 0 => owned(fd),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
    }
}

fn perf_link(prog: &OwnedFd, event: &OwnedFd) -> Result<OwnedFd, Errno> {
    let opts =
        sys::bpf_link_create_opts { sz: size_of::<sys::bpf_link_create_opts>() as _, ..Default::default() };
    let (prog, event) = (prog.as_raw_fd(), event.as_raw_fd());
    // SAFETY: both descriptors are open; the options have the size they state.
    owned(unsafe { sys::bpf_link_create(prog, event, sys::BPF_PERF_EVENT, &raw const opts) })
}

/// The program also loads on kernels that cannot attach it; only the link shows whether they can.
fn uprobe_multi(offset: u64) -> Result<OwnedFd, Errno> {
    let errno = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::EINVAL);
    let program = multi::empty().map_err(errno)?;
    let link = multi::link(program.as_fd(), "/proc/self/exe", offset, false, std::process::id());
    match (link, multi::links_work()) {
        (Ok(link), true) => Ok(link),
        // It filters by thread instead of process (6.6 to 6.9).
        (Ok(_), false) => Err(libc::EINVAL),
        (Err(e), _) => Err(errno(e)),
    }
}
