//! The calls that launched kernels, until CUPTI tells when these ran.

/// Calls that are kept. CUPTI numbers all calls of CUDA in sequence; a kernel's record comes some hundred kernels, or one
/// flush, after its launch.
const CALLS: usize = 1 << 15;

/// A call that launched one kernel or one CUDA graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// When the host called, ns of CLOCK_MONOTONIC.
    pub host: u64,
    /// CUPTI's number of the call.
    correlation: u32,
    pub tid: u32,
    pub of_graph: bool,
}

pub struct Launches {
    calls: [Launch; CALLS],
}

impl Launches {
    pub const fn new() -> Launches {
        Launches { calls: [Launch { host: 0, correlation: 0, tid: 0, of_graph: false }; CALLS] }
    }

    /// The host has called. A call of the driver's interface that the runtime's call makes may have the same number:
    /// the outer one, which comes first, counts.
    pub fn begin(&mut self, correlation: u32, host: u64, tid: u32, of_graph: bool) {
        let Some(place) = self.calls.get_mut(correlation as usize % CALLS) else { return };
        if place.host == 0 || place.correlation != correlation {
            *place = Launch { host, correlation, tid, of_graph };
        }
    }

    /// The call of this number; None: it was not seen, or is too long ago.
    pub fn get(&self, correlation: u32) -> Option<Launch> {
        let call = self.calls.get(correlation as usize % CALLS).copied()?;
        (call.host != 0 && call.correlation == correlation).then_some(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launches() -> Box<Launches> {
        Box::new(Launches::new())
    }

    #[test]
    fn a_call_is_found_by_its_number() {
        let mut all = launches();
        assert_eq!((all.get(0), all.get(7)), (None, None));
        all.begin(7, 100, 5, false);
        all.begin(8, 110, 6, true);
        let of = |l: Launch| (l.host, l.tid, l.of_graph);
        assert_eq!((all.get(7).map(of), all.get(8).map(of)), (Some((100, 5, false)), Some((110, 6, true))));
        assert_eq!(all.get(9), None);
    }

    #[test]
    fn the_outer_call_counts() {
        let mut all = launches();
        all.begin(7, 100, 5, true);
        all.begin(7, 105, 5, false);
        assert_eq!(all.get(7).map(|l| (l.host, l.of_graph)), Some((100, true)));
    }

    #[test]
    fn a_later_call_takes_the_place_of_an_old_one() {
        let mut all = launches();
        let later = 7 + CALLS as u32;
        all.begin(7, 100, 5, false);
        all.begin(later, 200, 5, false);
        assert_eq!((all.get(7), all.get(later).map(|l| l.host)), (None, Some(200)));
    }
}
