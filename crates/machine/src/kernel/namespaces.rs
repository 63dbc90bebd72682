//! Whether this process is in the kernel's initial namespaces. BPF programs report process ids of the initial PID
//! namespace, and all events have times of the initial time namespace.

use std::fs;

/// Inode numbers of the initial namespaces (include/uapi/linux/nsfs.h of 6.18; earlier include/linux/proc_ns.h).
const INITIAL_PID: u64 = 0xEFFF_FFFC;
const INITIAL_TIME: u64 = 0xEFFF_FFFA;

/// Why nothing that the kernel reports would be found here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForeignNamespace {
    #[error(
        "this is a PID namespace of its own, as in a container: the kernel reports other process ids than those seen \
         here; start the container with --pid=host, or record from its host with -p PID or --exe FILE"
    )]
    Pid,
    #[error(
        "this is a time namespace of its own: the kernel reports other times than those seen here; record from \
         outside of it, with -p PID or --exe FILE"
    )]
    Time,
}

/// Makes sure that ids and times are the kernel's.
///
/// # Errors
/// Which are not.
pub fn are_initial() -> Result<(), ForeignNamespace> {
    check(|name| fs::read_link(format!("/proc/self/ns/{name}")).ok()?.to_str().map(str::to_owned))
}

fn check(link: impl Fn(&str) -> Option<String>) -> Result<(), ForeignNamespace> {
    // Kernels without such namespaces have no link.
    let foreign = |name, initial: u64| {
        link(name).is_some_and(|text| text.starts_with(name) && text != format!("{name}:[{initial}]"))
    };
    if foreign("pid", INITIAL_PID) {
        return Err(ForeignNamespace::Pid);
    }
    if foreign("time", INITIAL_TIME) { Err(ForeignNamespace::Time) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_namespace_is_told_from_the_initial_one_and_from_none() {
        let of = |pid: &'static str, time: &'static str| {
            check(move |name| {
                Some(if name == "pid" { pid } else { time }).filter(|t| !t.is_empty()).map(str::to_owned)
            })
        };
        assert_eq!(of("pid:[4026531836]", "time:[4026531834]"), Ok(()));
        assert_eq!(of("pid:[4026531836]", ""), Ok(()));
        assert_eq!(of("pid:[4026532204]", "time:[4026531834]"), Err(ForeignNamespace::Pid));
        assert_eq!(of("pid:[4026531836]", "time:[4026532221]"), Err(ForeignNamespace::Time));
    }
}
