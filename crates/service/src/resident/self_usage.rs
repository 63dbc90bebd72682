//! Resource use of the service and its recorders together. For sysconf(3) see [`machine::usage`].

use machine::proc::{StatFields, of_ticks};

/// Resident bytes and CPU seconds of a process; None: it is gone.
fn of(pid: u32) -> Option<(u64, f64)> {
    // Fields 14 to 17 are CPU time, own and of reaped children, in ticks; field 24 is resident pages.
    let fields = StatFields::of(pid)?;
    let ticks: u64 = (14..=17).filter_map(|n| fields.number::<u64>(n)).sum();
    // SAFETY: only returns a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some((fields.number::<u64>(24)? * u64::try_from(page).ok()?, of_ticks(ticks).as_secs_f64()))
}

/// Resident bytes and CPU seconds of this process, of its reaped children, and of `recorders`.
pub fn together(recorders: impl Iterator<Item = u32>) -> Option<(u64, f64)> {
    let own = of(std::process::id())?;
    Some(recorders.filter_map(of).fold(own, |sum, one| (sum.0 + one.0, sum.1 + one.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_takes_something() {
        let (bytes, _) = of(std::process::id()).expect("here");
        assert!(bytes > 100_000, "{bytes}");
        let twice = together([std::process::id()].into_iter()).expect("here");
        assert!(twice.0 > bytes);
        assert_eq!(of(u32::MAX), None);
    }
}
