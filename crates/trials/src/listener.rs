//! Who listens on a port of this machine: proc(5), `/proc/net/tcp` and the descriptors of processes.

use std::collections::BTreeSet;
use std::fs;

use super::placement::descendants;

/// State of a socket that listens: TCP_LISTEN in the kernel's include/net/tcp_states.h.
const LISTENS: &str = "0A";

/// Somebody listens on the port, and all who do are descendants of this process.
pub fn is_below(pid: u32, port: u16) -> bool {
    let inodes: BTreeSet<u64> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .flat_map(|file| listeners(&fs::read_to_string(file).unwrap_or_default(), port))
        .collect();
    if inodes.is_empty() {
        return false;
    }
    let theirs: BTreeSet<u64> = descendants(pid).into_iter().flat_map(sockets).collect();
    inodes.is_subset(&theirs)
}

/// Inodes of the sockets in a table that listen on a port.
fn listeners(table: &str, port: u16) -> Vec<u64> {
    let of = |line: &str| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let (_, at) = fields.get(1)?.rsplit_once(':')?;
        let ours = u16::from_str_radix(at, 16) == Ok(port) && *fields.get(3)? == LISTENS;
        if ours { fields.get(9)?.parse().ok() } else { None }
    };
    table.lines().skip(1).filter_map(of).collect()
}

/// Inodes of a process's sockets; none if they cannot be read.
fn sockets(pid: u32) -> Vec<u64> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let inode = |file: fs::DirEntry| {
        let to = fs::read_link(file.path()).ok()?;
        to.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    files.filter_map(inode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn a_table_of_the_kernel_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 x\n\
             1: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 x\n\
             2: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 x\n\
             junk\n 3: 1F90 0A\n";
        assert_eq!(listeners(table, 8080), [4711]);
        assert!(listeners(table, 1).is_empty());
    }

    #[test]
    fn a_port_of_ones_own_is_not_one_of_a_child() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let own = std::process::id();
        let parent = machine::target::parent(own).expect("a parent");
        assert!(is_below(parent, port));
        assert!(!is_below(own, port), "it is its own, not that of a descendant");
        drop(listener);
        assert!(!is_below(parent, port), "nobody listens");
    }
}
