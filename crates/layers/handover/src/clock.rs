//! A device's clock against the host's, by bounds: an OpenCL runtime stamps a kernel as queued while the host is in the
//! function that enqueues it; a Vulkan device works between the submission and the end of the host's wait.

/// `struct timespec` of 64-bit Linux.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

/// Less than a second.
pub fn sleep(nanoseconds: i64) {
    unsafe extern "C" {
        fn nanosleep(time: *const Timespec, left: *mut Timespec) -> i32;
    }
    let time = Timespec { seconds: 0, nanoseconds };
    // SAFETY: a time, and no interest in what is left of it after a signal.
    unsafe { nanosleep(&raw const time, core::ptr::null_mut()) };
}

/// CLOCK_MONOTONIC, ns.
pub fn monotonic() -> u64 {
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut Timespec) -> i32;
    }
    const CLOCK_MONOTONIC: i32 = 1;
    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: a known clock, and a place for the time.
    unsafe { clock_gettime(CLOCK_MONOTONIC, &raw mut time) };
    time.seconds.wrapping_mul(1_000_000_000).wrapping_add(time.nanoseconds) as u64
}

/// What clocks may drift apart, as a fraction of time: one part in this many.
const DRIFT: u64 = 20_000;

/// Device time minus host time of one device, between two bounds.
#[derive(Debug, Clone, Copy)]
pub struct ClockMap {
    least: i64,
    most: i64,
    /// Host time of the last observation; 0: there was none.
    last: u64,
}

impl ClockMap {
    pub const fn new() -> ClockMap {
        ClockMap { least: 0, most: 0, last: 0 }
    }

    /// The device's clock showed `device` between the host times `from` and `until`.
    pub fn observe(&mut self, device: u64, from: u64, until: u64) {
        self.enclose((device, device), from, until);
    }

    /// The first device time was not before the host's `from`, and the second not after its `until`.
    pub fn enclose(&mut self, (first, last): (u64, u64), from: u64, until: u64) {
        let (least, most) = (last.wrapping_sub(until) as i64, first.wrapping_sub(from) as i64);
        let drift = (until.saturating_sub(self.last) / DRIFT) as i64;
        let (old_least, old_most) = (self.least.saturating_sub(drift), self.most.saturating_add(drift));
        let both = (least.max(old_least), most.min(old_most));
        // Bounds that contradict each other: one of the clocks was set.
        let agree = self.last != 0 && both.0 <= both.1;
        (self.least, self.most) = if agree { both } else { (least, most) };
        self.last = until;
    }

    /// The host's time for a time of the device. A device whose clock may be the host's is taken to have that.
    pub fn to_host(&self, device: u64) -> u64 {
        device.wrapping_sub(self.offset() as u64)
    }

    /// The largest error of [`ClockMap::to_host`], ns.
    pub fn error_ns(&self) -> u32 {
        let offset = self.offset();
        let most = self.most.abs_diff(offset).max(self.least.abs_diff(offset));
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    fn offset(&self) -> i64 {
        if self.least <= 0 && self.most >= 0 { 0 } else { self.least + (self.most - self.least) / 2 }
    }
}

impl Default for ClockMap {
    fn default() -> Self {
        ClockMap::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that is `ahead` of the host's, observed in calls of `wide` ns, the device's stamp at `late` of them.
    fn observed(ahead: i64, calls: &[(u64, u64, u64)]) -> ClockMap {
        let mut map = ClockMap::new();
        for (from, wide, late) in calls {
            map.observe((from + late).wrapping_add_signed(ahead), *from, from + wide);
        }
        map
    }

    #[test]
    fn each_observation_narrows_the_bounds() {
        let one = observed(-5_000_000, &[(10_000_000, 1000, 100)]);
        assert_eq!((one.error_ns(), one.to_host(5_000_100)), (500, 10_000_500));
        let two = observed(-5_000_000, &[(10_000_000, 1000, 100), (10_010_000, 1000, 950)]);
        assert!(two.error_ns() <= 76 && two.to_host(6_000_000).abs_diff(11_000_000) <= 76, "{two:?}");
    }

    #[test]
    fn a_clock_that_may_be_the_hosts_is_taken_for_it() {
        let map = observed(0, &[(10_000_000, 1000, 400)]);
        assert_eq!((map.to_host(77), map.error_ns()), (77, 600));
    }

    #[test]
    fn a_clock_that_was_set_is_learnt_anew() {
        let mut map = observed(1 << 40, &[(10_000_000, 1000, 500)]);
        map.observe(500, 20_000_000, 20_001_000);
        assert!(map.to_host(500).abs_diff(20_000_500) <= u64::from(map.error_ns()));
        assert_eq!(map.error_ns(), 500);
    }

    #[test]
    fn clocks_may_drift() {
        let mut map = ClockMap::new();
        // 10 parts in a million, for a minute.
        for second in 0..60u64 {
            let host = second * 1_000_000_000;
            map.observe(host + second * 10_000 + 10, host + 5, host + 25);
        }
        assert!(
            map.to_host(59_000_590_010).abs_diff(59_000_000_010) <= u64::from(map.error_ns()) + 10,
            "{map:?}"
        );
    }

    #[test]
    fn work_between_submission_and_wait_bounds_the_clock() {
        let mut map = ClockMap::new();
        map.enclose((1_000, 9_000), 501_000, 520_000);
        let error = u64::from(map.error_ns());
        assert!(map.to_host(1_000) + error >= 501_000 && map.to_host(9_000) <= 520_000 + error, "{map:?}");
    }

    #[test]
    fn any_times_are_accepted() {
        let mut map = ClockMap::new();
        for (device, from, until) in [(0, u64::MAX, 0), (u64::MAX, 0, u64::MAX), (1 << 63, 1, 2), (5, 7, 3)] {
            map.observe(device, from, until);
            let _ = (map.to_host(device), map.error_ns());
        }
    }
}
