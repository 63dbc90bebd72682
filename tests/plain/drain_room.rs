//! More calls in flight than the recorder can track: those without a slot are lost, and reported as lost.

use crate::common;

use agent::capture::event::KIND_NAMES;
use agent::capture::source::EventStats;
use agent::recorder::drain::Drain;
use agent::recorder::event_stats::{OwnUsage, StatsSnapshot};
use common::events::{Fake, MS, PID};
use pfi::record::KindCount;
use pfi::{Encoder, EncoderConfig};

/// Maximum number of calls and graphs in flight.
const CALLS: u64 = 1024;
const GRAPHS: u64 = 64;

/// Event statistics of a recording in which `threads` compute at the same time.
fn standing(threads: u64) -> (StatsSnapshot, Vec<String>) {
    let header = common::made::header();
    let drain = Drain::new(Encoder::new(Vec::new(), EncoderConfig::default(), &header).expect("written"));
    let mut fake = Fake(drain);
    for kind in ["token-enter", "graph-enter"] {
        (0..threads as u32).for_each(|i| fake.call_on(1, PID + i, kind));
    }
    let mut quality = EventStats::default();
    for (count, received) in quality.kinds.iter_mut().zip(fake.0.received) {
        count.seen = received;
    }
    fake.0.close(None, 2 * MS).expect("written");
    let said = fake.0.shortages();
    (StatsSnapshot::of(quality, &fake.0, OwnUsage::default()), said)
}

fn row(standing: &StatsSnapshot, kind: &str) -> (u64, u64, u64) {
    let closing = standing.closing(&StatsSnapshot::default(), "signal", true);
    let kinds = closing.of().kinds;
    let KindCount { seen, recorded, lost, .. } =
        kinds.iter().find(|k| k.kind == kind).cloned().expect("a kind");
    assert_eq!(recorded + lost, seen, "{kind}");
    (seen, recorded, lost)
}

#[test]
fn what_finds_no_room_is_counted_as_lost() {
    assert!(KIND_NAMES.contains(&"graph-enter"));
    let (full, said) = standing(CALLS + 100);
    assert_eq!(row(&full, "token-enter"), (CALLS + 100, CALLS, 100));
    assert_eq!(row(&full, "graph-enter"), (CALLS + 100, GRAPHS, CALLS + 100 - GRAPHS));
    let lost = 100 + CALLS + 100 - GRAPHS;
    assert!(
        said.len() == 1 && said[0].starts_with(&format!("{lost} calls, graphs and op hits are")),
        "{said:?}"
    );
}

#[test]
fn as_many_as_there_is_room_for_are_recorded() {
    let (fits, said) = standing(GRAPHS);
    assert_eq!(row(&fits, "token-enter"), (GRAPHS, GRAPHS, 0));
    assert_eq!(row(&fits, "graph-enter"), (GRAPHS, GRAPHS, 0));
    assert!(said.is_empty(), "{said:?}");
}
