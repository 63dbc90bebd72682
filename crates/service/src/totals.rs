//! Totals since the service started, for metrics: of requests by rule and model, of events by rule. They only grow,
//! whatever becomes of the recorders and runs that they came from.
//!
//! A model's name is what a user's file states: anyone can add to the totals of any model. Only what a rule selects by user or
//! group is beyond the reach of others, so each rule has totals and places of its own.

use serde::{Deserialize, Serialize};

use crate::model::ModelLabel;
use crate::store::quota;
use crate::supervisor::fair_share::may_claim_slot;
use crate::supervisor::run_table::LeftRuns;
use agent::recorder::tally::RequestTally;

/// Maximum models of a rule with totals of their own, shared between users, and those of all rules. All others of a rule are
/// counted together.
const MODELS: usize = 64;
const ALL: usize = 512;
/// The name under which they are.
const OTHER: &str = "other";

/// What was seen of the requests of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelTally {
    pub model: ModelLabel,
    pub tally: RequestTally,
}

/// What was seen of the requests of a model, in runs of a rule.
#[derive(Debug, Clone)]
pub struct ModelTotal {
    pub rule: String,
    /// As it is shown, so that no two of a rule are shown alike.
    pub model: ModelLabel,
    pub tally: RequestTally,
    /// Who answers for the run that was the first.
    user: u32,
}

/// Tallies by rule and model.
#[derive(Debug, Clone, Default)]
pub struct ModelTotals {
    all: Vec<ModelTotal>,
}

impl ModelTotals {
    /// Adds what a run of this rule and user had.
    pub fn add(&mut self, rule: &str, seen: ModelTally, uid: u32) {
        self.add_for(rule, seen, &|| quota::answerable(uid));
    }

    fn add_for(&mut self, rule: &str, seen: ModelTally, user: &dyn Fn() -> u32) {
        let (model, tally) = (seen.model.bounded(), seen.tally);
        if let Some(total) = self.of(rule, &model) {
            return total.tally.add(&tally);
        }
        let user = user();
        let other = || ModelLabel { name: Some(OTHER.into()), quantization: None };
        let model = if self.has_place(rule, user) { model } else { other() };
        match self.of(rule, &model) {
            Some(total) => total.tally.add(&tally),
            None => self.all.push(ModelTotal { rule: rule.to_owned(), model, tally, user }),
        }
    }

    fn of(&mut self, rule: &str, model: &ModelLabel) -> Option<&mut ModelTotal> {
        self.all.iter_mut().find(|of| of.rule == rule && of.model == *model)
    }

    /// Whether a user's run may add another model of a rule.
    fn has_place(&self, rule: &str, user: u32) -> bool {
        let taken = || self.all.iter().filter(|of| of.rule == rule);
        let of = |user: u32| taken().filter(|of| of.user == user).count();
        self.all.len() < ALL && may_claim_slot(user, of(user), of(0), taken().count(), MODELS)
    }

    /// In a stable order.
    pub fn iter(&self) -> impl Iterator<Item = &ModelTotal> {
        self.all.iter()
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

    fn tokens(totals: &ModelTotals, rule: &str, name: &str) -> Option<u64> {
        let is = |m: &&ModelTotal| m.rule == rule && m.model.name.as_deref() == Some(name);
        totals.iter().find(is).map(|m| m.tally.tokens)
    }

    #[test]
    fn a_rule_has_totals_of_its_own() {
        let mut totals = ModelTotals::default();
        totals.add("production", seen("a"), 990);
        // Another user's file states the same name; this user's runs have another rule.
        (0..5).for_each(|_| totals.add("rest", seen("a"), 1000));
        totals.add("rest", seen("a"), 1001);
        assert_eq!(tokens(&totals, "production", "a"), Some(3));
        assert_eq!(tokens(&totals, "rest", "a"), Some(6 * 3));
        // Nor can that user's models take the rule's places.
        (0..100)
            .for_each(|n| (1000..1100).for_each(|uid| totals.add("rest", seen(&format!("m{n}-{uid}")), uid)));
        totals.add("production", seen("b"), 990);
        assert_eq!(
            (tokens(&totals, "production", "b"), tokens(&totals, "production", OTHER)),
            (Some(3), None)
        );
    }

    #[test]
    fn nobody_can_fill_the_table_of_models() {
        let mut totals = ModelTotals::default();
        let mut add = |name: &str, uid| totals.add_for("r", seen(name), &|| uid);
        (0..100).for_each(|n| add(&format!("m{n}"), 1000));
        (0..100).for_each(|n| add(&format!("n{n}"), 1001));
        add("m0", 1001);
        (2000..2100).for_each(|uid| add(&format!("of {uid}"), uid));
        (0..100).for_each(|n| add(&format!("root's {n}"), 0));
        let of = |name: &str| tokens(&totals, "r", name);
        assert_eq!((of("m0"), of("m23"), of("m24")), (Some(6), Some(3), None));
        assert_eq!((of("n0"), of("n11"), of("n13")), (Some(3), Some(3), None));
        assert_eq!((of("of 2000"), of("of 2099")), (Some(3), None));
        // A quarter of the places is root's.
        assert_eq!((of("root's 0"), of("root's 7")), (Some(3), Some(3)));
        assert!(totals.iter().count() <= MODELS + 1);
        assert_eq!(totals.iter().map(|m| m.tally.tokens).sum::<u64>(), (100 + 100 + 1 + 100 + 100) * 3);
    }

    #[test]
    fn subordinate_users_share_the_places_of_theirs() {
        let mut totals = ModelTotals::default();
        (100_000..100_100).for_each(|uid| totals.add_for("r", seen(&format!("m{uid}")), &|| 990));
        totals.add_for("r", seen("theirs"), &|| 1001);
        assert_eq!((tokens(&totals, "r", "m100023"), tokens(&totals, "r", "m100024")), (Some(3), None));
        assert_eq!(tokens(&totals, "r", "theirs"), Some(3));
    }

    #[test]
    fn many_rules_do_not_take_all_memory() {
        let mut totals = ModelTotals::default();
        (0..50).for_each(|r| {
            (0..50).for_each(|n| totals.add_for(&format!("r{r}"), seen(&format!("m{n}")), &|| 0))
        });
        assert!((ALL..=ALL + 50).contains(&totals.iter().count()), "{}", totals.iter().count());
        assert_eq!(totals.iter().map(|m| m.tally.tokens).sum::<u64>(), 50 * 50 * 3);
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
