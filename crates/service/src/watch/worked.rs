//! What a run computed since the last event, as fields of it: where the time went, why it was lost, and the energy. The
//! definitions are those of `report` and `top`.

use serde_json::{Value, json};

use super::{WAITED, rounded};
use crate::recorder::figures::RunFigures;
use crate::run::Run;
use analysis::questions::verdict::bar::TimeBar;
use analysis::streams::live::{EnergyNow, PhaseWork, Work, combined, limit_of, phases};

/// Sums of a run when its last event was sent, and who had added them up.
#[derive(Default)]
pub struct WorkThen {
    recorder: Option<u32>,
    work: Option<Work>,
}

/// Of the time since.
#[derive(Debug, Clone, PartialEq)]
pub struct Worked {
    /// Or why it is not known.
    work: Result<Work, String>,
    energy: EnergyNow,
}

const NOT_YET: &str = "its recorder has only begun to add up";
const NOTHING: &str = "its recorder has not reported yet";

impl Default for Worked {
    fn default() -> Self {
        Worked { work: Err(NOTHING.into()), energy: EnergyNow::unknown(NOTHING) }
    }
}

impl WorkThen {
    /// What a run has computed since this was called last. `energy` of the rule: sensors are recorded.
    pub fn since(&mut self, run: &Run) -> Worked {
        let Some(figures) = &run.figures else {
            self.work = None;
            return Worked::default();
        };
        let RunFigures { whole, work, unknown, energy } = figures.as_ref();
        let energy = energy.clone();
        let Some(now) = work else {
            self.work = None;
            return Worked { work: Err(unknown.clone().unwrap_or_else(|| NOT_YET.into())), energy };
        };
        // Another recorder begins anew.
        let before = self.work.take().filter(|_| self.recorder == run.recorder);
        let before = before.or_else(|| whole.then(Work::default));
        (self.recorder, self.work) = (run.recorder, Some(*now));
        let work = before.map(|before| combined(now, &before, u64::saturating_sub));
        Worked { work: work.ok_or_else(|| NOT_YET.into()), energy }
    }
}

impl Worked {
    /// The phase with the most time in calls.
    fn main(&self) -> Option<&PhaseWork> {
        phases(self.work.as_ref().ok()?).map(|(_, work)| work).max_by_key(|work| work.in_call_ns)
    }

    /// What of the time in calls was lost, above a tenth of it.
    pub fn causes(&self) -> Vec<Value> {
        let Some(bar) = self.main().and_then(PhaseWork::bar) else { return Vec::new() };
        let all = [("at_barriers", bar.barrier), ("page_faults", bar.faults), ("blocked", bar.blocked)];
        let cause = |(name, share): (&str, Option<f64>)| {
            let share = share.filter(|share| *share > WAITED)?;
            Some(json!({ "cause": name, "share": rounded(share) }))
        };
        all.into_iter().filter_map(cause).collect()
    }

    /// The fields `phases`, `limit`, `energy` and `unknown`.
    pub fn fields(&self) -> Value {
        let limit = self.main().and_then(|w| limit_of(w.graphs_share(), w.causes(), None));
        let rows = self.work.as_ref().map(|work| {
            phases(work).map(|(phase, w)| {
                json!({
                    "phase": phase,
                    "calls": w.calls,
                    "tokens": w.tokens(),
                    "in_call_ns": w.in_call_ns,
                    "tokens_per_s": w.tokens_per_s().map(rounded),
                    "bar": w.bar().map(|bar| shares(&bar)),
                    "bar_wall": w.bar_wall().map(|bar| shares(&bar)),
                    "unknown": w.unknown(),
                })
            })
        });
        let rows = rows.map(Iterator::collect::<Vec<Value>>);
        json!({
            "phases": rows.as_ref().ok(),
            "unknown": rows.as_ref().err(),
            "limit": limit,
            "energy": energy(&self.energy),
        })
    }
}

fn shares(bar: &TimeBar) -> Value {
    let mut bar = *bar;
    let known = [&mut bar.computing, &mut bar.device, &mut bar.gaps, &mut bar.unknown].into_iter();
    let some = [
        &mut bar.barrier,
        &mut bar.waiting_for_cpu,
        &mut bar.faults,
        &mut bar.blocked,
        &mut bar.between_calls,
    ];
    known.chain(some.into_iter().flatten()).for_each(|share| *share = rounded(*share));
    serde_json::to_value(bar).unwrap_or_default()
}

fn energy(of: &EnergyNow) -> Value {
    json!({
        "seconds": rounded(of.seconds),
        "source": of.source,
        "origin": of.origin,
        "model": of.model,
        "joules": of.joules.map(rounded),
        "watts": of.watts.map(rounded),
        // A small model needs less than a thousandth of a joule.
        "decode_j_per_token": of.decode_j_per_token,
        "prefill_j_per_token": of.prefill_j_per_token,
        "unknown": of.unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use analysis::sums::attribution::parts::TimeParts;

    /// So many decode calls of 1 ms on two threads, of which a tenth is outside of graphs.
    fn decoded(calls: u64) -> Work {
        let causes = TimeParts {
            computing_ns: 900_000 * calls,
            barrier_ns: 720_000 * calls,
            preempted_ns: 180_000 * calls,
            ..TimeParts::default()
        };
        let decode = PhaseWork {
            calls,
            tokens: 2 * calls,
            in_call_ns: 1_000_000 * calls,
            cpu_graphs: calls,
            barrier_graphs: calls,
            team_graphs: calls,
            graph_ns: 900_000 * calls,
            op_ns: 450_000 * calls,
            wait_ns: 450_000 * calls,
            op_tokens: 2 * calls,
            causes,
            ..PhaseWork::default()
        };
        [PhaseWork::default(), decode, PhaseWork::default()]
    }

    fn run(calls: u64, whole: bool) -> Run {
        let energy = EnergyNow::unknown("no sensor of power or energy is recorded");
        let figures = RunFigures { whole, work: Some(decoded(calls)), unknown: None, energy };
        Run { pid: 7, recorder: Some(9), figures: Some(Box::new(figures)), ..Run::default() }
    }

    #[test]
    fn an_event_has_what_came_since_the_last_one() {
        let mut then = WorkThen::default();
        let all = then.since(&run(10, true)).fields();
        assert_eq!((&all["phases"][0]["calls"], &all["unknown"]), (&10.into(), &Value::Null), "{all}");
        let now = then.since(&run(15, true));
        let fields = now.fields();
        let phase = &fields["phases"][0];
        assert_eq!(
            (&phase["phase"], &phase["calls"], &phase["tokens"]),
            (&"decode".into(), &5.into(), &10.into())
        );
        assert_eq!((&phase["tokens_per_s"], &phase["unknown"]), (&2000.0.into(), &Value::Null));
        assert_eq!(phase["bar"]["barrier"], 0.36);
        assert_eq!((&phase["bar"]["waiting_for_cpu"], &phase["bar"]["gaps"]), (&0.09.into(), &0.1.into()));
        assert_eq!(now.causes(), [json!({ "cause": "at_barriers", "share": 0.36 })]);
        assert!(
            fields["limit"].as_str().is_some_and(|limit| limit.starts_with("computing: 50 %")),
            "{fields}"
        );
    }

    #[test]
    fn what_is_not_known_is_null_with_a_reason() {
        let mut then = WorkThen::default();
        let first = then.since(&run(10, false)).fields();
        assert_eq!((&first["phases"], &first["limit"]), (&Value::Null, &Value::Null));
        assert_eq!(first["unknown"], NOT_YET);
        let energy = &first["energy"];
        assert_eq!(
            (&energy["joules"], &energy["watts"], &energy["source"]),
            (&Value::Null, &Value::Null, &Value::Null)
        );
        assert_eq!(energy["unknown"], "no sensor of power or energy is recorded");
        assert_eq!(then.since(&run(12, false)).fields()["phases"][0]["calls"], 2);
        // Another recorder has begun to add up, with less.
        let other = then.since(&Run { recorder: Some(10), ..run(11, false) });
        assert_eq!(other.fields()["unknown"], NOT_YET);
        assert!(other.causes().is_empty());
        // Nobody had watched.
        assert_eq!(then.since(&Run { figures: None, ..run(0, false) }), Worked::default());
        let none =
            RunFigures { work: None, unknown: Some("why".into()), ..*run(0, true).figures.expect("some") };
        assert_eq!(
            then.since(&Run { figures: Some(Box::new(none)), ..run(0, true) }).fields()["unknown"],
            "why"
        );
        // In a second without calls.
        let mut then = WorkThen::default();
        then.since(&run(3, true));
        assert_eq!(then.since(&run(3, true)).fields()["phases"], json!([]));
    }
}
