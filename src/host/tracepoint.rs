//! Fields of a kernel tracepoint, from its `format` file, so that the programs need no BTF.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount};

/// Where tracefs may be mounted.
const ROOTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Mounts tracefs at its usual place if it is not mounted, as perf does: its files contain the tracepoints' numbers
/// and fields.
pub fn ensure_mounted() -> io::Result<()> {
    if ROOTS.iter().any(|root| Path::new(root).join("events").exists()) {
        return Ok(());
    }
    Ok(mount(c"tracefs", c"/sys/kernel/tracing", c"tracefs", MountFlags::empty(), None)?)
}

/// Offset of the child's pid in the fork event.
pub fn fork_child() -> io::Result<u32> {
    ensure_mounted()?;
    field_offset("sched", "sched_process_fork", "child_pid")
}

/// The kernel's number of the tracepoint `category/name`.
pub fn id(category: &str, name: &str) -> io::Result<u32> {
    let text = fs::read_to_string(root().join("events").join(category).join(name).join("id"))?;
    text.trim().parse().map_err(|_| io::Error::other(format!("{name} has no ID")))
}

/// Offset of the next thread in the switch event.
pub fn switch_next() -> io::Result<u32> {
    ensure_mounted()?;
    field_offset("sched", "sched_switch", "next_pid")
}

/// Where tracefs is mounted, or should be.
pub fn root() -> PathBuf {
    let found = ROOTS.iter().find(|root| Path::new(root).join("events").exists());
    PathBuf::from(found.unwrap_or(&ROOTS[0]))
}

/// Byte offset of a field of `category/name` within the event, in this kernel's layout.
pub fn field_offset(category: &str, name: &str, field: &str) -> io::Result<u32> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for root in ROOTS {
        match fs::read_to_string(Path::new(root).join("events").join(category).join(name).join("format")) {
            Ok(text) => {
                return parse(&text, field)
                    .ok_or_else(|| io::Error::other(format!("{name} has no field {field}")));
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn parse(format: &str, field: &str) -> Option<u32> {
    format.lines().find_map(|line| {
        let decl = line.trim().strip_prefix("field:")?;
        let (decl, rest) = decl.split_once(';')?;
        let name = decl.rsplit([' ', '*']).next()?.split('[').next()?;
        let offset = rest.trim().strip_prefix("offset:")?.split(';').next()?;
        (name == field).then(|| offset.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::parse;

    const OLD: &str = "name: sched_process_fork\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:char parent_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\tfield:pid_t parent_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
        \tfield:char child_comm[16];\toffset:28;\tsize:16;\tsigned:0;\n\tfield:pid_t child_pid;\toffset:44;\tsize:4;\tsigned:1;\n";
    const NEW: &str = "\tfield:__data_loc char[] parent_comm;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:pid_t child_pid;\toffset:20;\tsize:4;\tsigned:1;\n";

    #[test]
    fn offsets_follow_the_kernel() {
        assert_eq!(parse(OLD, "child_pid"), Some(44));
        assert_eq!(parse(OLD, "parent_comm"), Some(8));
        assert_eq!(parse(NEW, "child_pid"), Some(20));
        assert_eq!(parse(NEW, "nothing"), None);
        assert_eq!(parse("field:x;offset:", "x"), None);
    }
}
