//! Totals since the service started, for metrics: of requests by model, of events by rule. They only grow, whatever
//! becomes of the recorders and runs that they came from.

use serde::{Deserialize, Serialize};

use super::known::LeftRuns;
use super::model::ModelLabel;
use crate::recorder::tally::RequestTally;

/// Maximum models with totals of their own, and those that a user's runs may add. All others are counted together.
const MODELS: usize = 64;
const OF_USER: usize = 16;
/// The name under which they are.
const OTHER: &str = "other";

/// What was seen of the requests of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelTally {
    pub model: ModelLabel,
    pub tally: RequestTally,
}

/// Tallies by model.
#[derive(Debug, Clone, Default)]
pub struct ModelTotals {
    /// Each with the user whose run was the first.
    all: Vec<(ModelTally, u32)>,
}

impl ModelTotals {
    /// Adds what a run of this user had.
    pub fn add(&mut self, seen: &ModelTally, uid: u32) {
        let known =
            |all: &[(ModelTally, u32)], model: &ModelLabel| all.iter().position(|(m, _)| m.model == *model);
        let mut model = seen.model.clone();
        let mut at = known(&self.all, &model);
        let of_user = || self.all.iter().filter(|(_, of)| *of == uid).count();
        if at.is_none() && (self.all.len() >= MODELS || (uid != 0 && of_user() >= OF_USER)) {
            model = ModelLabel { name: Some(OTHER.into()), quantization: None };
            at = known(&self.all, &model);
        }
        match at.and_then(|at| self.all.get_mut(at)) {
            Some((total, _)) => total.tally.add(&seen.tally),
            None => self.all.push((ModelTally { model, tally: seen.tally }, uid)),
        }
    }

    /// In a stable order.
    pub fn iter(&self) -> impl Iterator<Item = &ModelTally> {
        self.all.iter().map(|(total, _)| total)
    }
}

/// Events of the recordings of a rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleEvents {
    pub rule: String,
    /// Including lost ones.
    pub seen: u64,
    pub lost: u64,
}

/// Totals of everything that recorders report.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    pub models: ModelTotals,
    pub events: Vec<RuleEvents>,
    pub left: LeftRuns,
}

impl Totals {
    /// Adds events of a recorder of this rule.
    pub fn add_events(&mut self, rule: &str, seen: u64, lost: u64) {
        match self.events.iter_mut().find(|of| of.rule == rule) {
            Some(of) => (of.seen, of.lost) = (of.seen.saturating_add(seen), of.lost.saturating_add(lost)),
            None => self.events.push(RuleEvents { rule: rule.to_owned(), seen, lost }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(name: &str) -> ModelTally {
        let model = ModelLabel { name: Some(name.to_owned()), quantization: None };
        ModelTally { model, tally: RequestTally { tokens: 3, ..RequestTally::default() } }
    }

    #[test]
    fn nobody_can_fill_the_table_of_models() {
        let mut totals = ModelTotals::default();
        totals.add(&seen("first"), 1000);
        (0..100).for_each(|n| totals.add(&seen(&format!("m{n}")), 1000));
        totals.add(&seen("theirs"), 1001);
        totals.add(&seen("first"), 1001);
        let of = |name: &str| {
            totals.iter().find(|m| m.model.name.as_deref() == Some(name)).map(|m| m.tally.tokens)
        };
        assert_eq!((of("first"), of("m14"), of("m15"), of("theirs")), (Some(6), Some(3), None, Some(3)));
        assert_eq!(totals.iter().map(|m| m.tally.tokens).sum::<u64>(), 103 * 3);
        assert_eq!(of(OTHER), Some(85 * 3));
        let mut totals = ModelTotals::default();
        (0..1000).for_each(|n| totals.add(&seen(&format!("m{n}")), n % 100));
        assert_eq!(totals.iter().count(), MODELS + 1);
    }

    #[test]
    fn events_are_added_by_rule() {
        let mut totals = Totals::default();
        totals.add_events("a", 5, 1);
        totals.add_events("b", 7, 0);
        totals.add_events("a", 10, 2);
        let all: Vec<(&str, u64, u64)> =
            totals.events.iter().map(|e| (e.rule.as_str(), e.seen, e.lost)).collect();
        assert_eq!(all, [("a", 15, 3), ("b", 7, 0)]);
    }
}
