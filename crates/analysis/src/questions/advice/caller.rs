//! The engine is called from another thread each time: whatever belongs to a thread, such as a team of OpenMP, is made anew.

use super::rule::{Advice, Confidence, RuleInput};

/// Calling threads over calls, and the least number of calls that is judged.
const SHARE: f64 = 0.5;
const CALLS: u64 = 16;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main().filter(|p| p.calls >= CALLS && p.threads > 1)?;
    let callers = p.by_thread.iter().find(|t| t.ith == 0)?.tids;
    if (callers as f64) < SHARE * p.calls as f64 {
        return None;
    }
    Some(Advice {
        rule: "changing-callers",
        title: format!("call the engine from one thread: {} calls came from {callers} threads", p.calls),
        actions: vec![
            "make all calls from one thread of your program".into(),
            "or use a build whose threads belong to the context: cmake -DGGML_OPENMP=OFF".into(),
        ],
        gain: None,
        confidence: Confidence::Medium,
        evidence: format!(
            "thread 0 of the team was {callers} different threads in {} calls; with OpenMP each of them starts a team",
            p.calls
        ),
        disproof: "from one thread, a token takes as long as before".into(),
        trade_off: None,
    })
}
