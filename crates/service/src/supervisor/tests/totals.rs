//! Totals for metrics: they only grow, and nothing is in them twice.

use super::*;
use crate::model::ModelLabel;
use crate::totals::ModelTally;
use agent::recorder::tally::RequestTally;

fn observed(tokens: u64) -> WorkerEvent {
    let model = ModelLabel { name: Some("a\nb".into()), quantization: None };
    WorkerEvent::Observed(Box::new(ModelTally {
        model,
        tally: RequestTally { tokens, ..RequestTally::default() },
    }))
}

#[test]
fn totals_go_on_when_recorders_come_and_go() {
    let mut stage = Stage::new();
    let here = std::process::id();
    stage.meet(here, 1, NOBODY);
    stage.meet(here, 2, NOBODY);
    let events = |stage: &Stage| {
        let totals = stage.supervisor.totals();
        totals.events.iter().map(|e| (e.rule.clone(), e.seen, e.lost)).collect::<Vec<_>>()
    };
    // Both runs have the numbers of their recorder, and it reports them again and again.
    for _ in 0..3 {
        stage.stands(0, &[(here, 1), (here, 2)], |run| (run.seen, run.lost) = (100, 2));
    }
    assert_eq!(events(&stage), [("a".to_owned(), 100, 2)]);
    stage.stands(0, &[(here, 1)], |run| (run.seen, run.lost) = (130, 2));
    // One that has lost its mind takes nothing back.
    stage.stands(0, &[(here, 1)], |run| (run.seen, run.lost) = (7, 0));
    assert_eq!(events(&stage), [("a".to_owned(), 130, 2)]);
    stage.played.borrow_mut()[0].says(&observed(5));
    stage.supervisor.hear();
    // It dies, and the next one begins at 0.
    stage.played.borrow_mut().clear();
    stage.pass(10);
    assert_eq!(stage.told(0).len(), 2, "both go on");
    stage.stands(0, &[(here, 1)], |run| (run.seen, run.lost) = (10, 1));
    stage.played.borrow_mut()[0].says(&observed(3));
    stage.played.borrow_mut()[0].says(&observed(u64::MAX));
    stage.supervisor.hear();
    assert_eq!(events(&stage), [("a".to_owned(), 140, 3)]);
    let totals = stage.supervisor.totals();
    let models: Vec<(&str, Option<&str>, u64)> =
        totals.models.iter().map(|m| (m.rule.as_str(), m.model.name.as_deref(), m.tally.tokens)).collect();
    assert_eq!(models, [("a", Some("a\\nb"), 8)]);
}

#[test]
fn runs_left_out_count_when_they_end() {
    let mut stage = Stage::new();
    stage.settings.rules[0].ignore = true;
    stage.meet(std::process::id(), 1, NOBODY);
    stage.pass(2);
    let left = |stage: &Stage| (stage.supervisor.counts.ignored, stage.supervisor.totals().left.ignored);
    assert_eq!(left(&stage), (1, 0));
    // Another configuration records it after all.
    let mut settings = stage.settings.clone();
    settings.rules[0].ignore = false;
    stage.supervisor.change(&settings, true);
    assert_eq!(left(&stage), (0, 0));
    // One that ends has been left out for good.
    stage.meet(u32::MAX >> 2, 1, NOBODY);
    stage.pass(2);
    assert_eq!(left(&stage), (1, 1));
}
