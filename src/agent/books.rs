//! The end of a recording: what each rung came to, and the books. Uses `attached`, `drain`, `source`, `usage`, `verify`.

use std::io::Write;

use super::attached::{Attached, Role};
use super::drain::Drain;
use super::event::KIND_NAMES;
use super::skel::types::ev_counter;
use super::source::{Books, Count};
use super::{usage, verify};
use crate::trace::WriteError;
use crate::trace::record::{Footer, KindCount, Rung};

/// Writes the rungs left and the rungs in use.
pub fn rungs<W: Write>(
    drain: &mut Drain<W>,
    engines: &[Attached],
    wanted: &[Role],
) -> Result<(), WriteError> {
    for (id, a) in engines.iter().enumerate() {
        let engine = id as u32;
        for s in &a.stands {
            let (role, name, why) = (s.role.name(), s.rung, s.why.as_str());
            drain.enc.rung(&Rung { engine, role, name, used: s.used, expected: None, seen: 0, why })?;
        }
        let shown = drain.shown.get(id).copied().unwrap_or_default();
        // Phases are beside the levels: nothing is said of them where nobody asked.
        for role in Role::ALL.into_iter().rev().filter(|r| *r != Role::Phase || wanted.contains(r)) {
            let v = verify::verdict(a, role, &shown, wanted.contains(&role));
            let (role, name, why) = (role.name(), v.name.as_str(), v.why.as_str());
            drain.enc.rung(&Rung {
                engine,
                role,
                name,
                used: v.used,
                expected: v.expected,
                seen: v.seen,
                why,
            })?;
        }
    }
    Ok(())
}

/// Writes the footer and ends the file.
pub fn close<W: Write>(
    drain: Drain<W>,
    end: &str,
    books: &Books,
    wall_ns: u64,
    (bpf_ns, bpf_runs): (u64, u64),
) -> Result<W, WriteError> {
    let mut kinds = Vec::new();
    for ((kind, b), recorded) in KIND_NAMES.iter().zip(&books.kinds).zip(drain.received) {
        kinds.push(KindCount { kind, seen: b.seen, recorded, lost: b.lost });
    }
    let Count { seen, lost } = books.barriers;
    kinds.push(KindCount { kind: "barrier", seen, recorded: seen.saturating_sub(lost), lost });
    let (agent_user_us, agent_sys_us) = usage::cpu_us();
    let orphans = drain.orphans();
    let footer = Footer {
        end,
        kinds,
        lost_cpu: books.lost_cpu.clone(),
        orphans,
        read_errors: books.counters[ev_counter::CNT_READ_ERROR.0 as usize],
        agent_user_us,
        agent_sys_us,
        agent_peak_rss: usage::resident().peak,
        wall_ns,
        bpf_ns,
        bpf_runs,
    };
    drain.enc.finish(&footer)
}
