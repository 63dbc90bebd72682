//! A device's clock against the host's, by bounds: an OpenCL runtime stamps a kernel as queued while the host is in the
//! function that enqueues it; a Vulkan device works between the submission and the end of the host's wait.

/// CLOCK_MONOTONIC, ns.
pub fn monotonic() -> u64 {
    #[repr(C)]
    struct Timespec {
        seconds: i64,
        nanoseconds: i64,
    }
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut Timespec) -> i32;
    }
    const CLOCK_MONOTONIC: i32 = 1;
    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: a known clock, and a place for the time (the layout of 64-bit Linux).
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
