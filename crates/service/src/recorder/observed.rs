//! What a recorder has seen of requests and not yet reported to the service: by model, which the runs' processes tell.

use std::time::{Duration, Instant};

use crate::model::ModelLabel;
use crate::totals::ModelTally;
use agent::recorder::tally::RequestTally;

/// A process may load another model: its model is looked for again after this time.
const AGAIN: Duration = Duration::from_secs(60);

/// Sums that the service does not have yet.
#[derive(Default)]
pub struct Observed {
    /// Models of runs, by the run's first process, and when they were looked for.
    labels: Vec<(u32, ModelLabel, Instant)>,
    sums: Vec<ModelTally>,
}

impl Observed {
    /// Adds what was seen of a run, given by its first process.
    pub fn add(&mut self, run: u32, seen: &RequestTally) {
        self.add_as(run, seen, &|| ModelLabel::of(run));
    }

    fn add_as(&mut self, run: u32, seen: &RequestTally, look: &dyn Fn() -> ModelLabel) {
        let model = self.model_of(run, look);
        match self.sums.iter_mut().find(|sum| sum.model == model) {
            Some(sum) => sum.tally.add(seen),
            None => self.sums.push(ModelTally { model, tally: *seen }),
        }
    }

    /// The process may have ended: then the model that it had is the one.
    fn model_of(&mut self, run: u32, look: &dyn Fn() -> ModelLabel) -> ModelLabel {
        let known = self.labels.iter_mut().find(|(of, ..)| *of == run);
        match known {
            Some((_, model, at)) if at.elapsed() >= AGAIN => {
                let now = look();
                if now != ModelLabel::default() {
                    *model = now;
                }
                *at = Instant::now();
                model.clone()
            }
            Some((_, model, _)) => model.clone(),
            None => {
                let model = look();
                self.labels.push((run, model.clone(), Instant::now()));
                model
            }
        }
    }

    /// Reports the sums; those for which `told` returns false are reported again later.
    pub fn tell(&mut self, told: &mut dyn FnMut(&ModelTally) -> bool) {
        self.sums.retain(|sum| !told(sum));
    }

    /// Forgets the models of runs other than these.
    pub fn keep(&mut self, is_run: &dyn Fn(u32) -> bool) {
        self.labels.retain(|(run, ..)| is_run(*run));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_heard_is_reported_again_and_nothing_twice() {
        let mut observed = Observed::default();
        let model = |name: &str| ModelLabel { name: Some(name.into()), quantization: None };
        let one = RequestTally { tokens: 1, ..RequestTally::default() };
        observed.add_as(7, &one, &|| model("a"));
        observed.add_as(7, &one, &|| model("changed"));
        observed.add_as(8, &one, &|| model("a"));
        observed.add_as(9, &one, &|| model("b"));
        let mut heard = Vec::new();
        observed.tell(&mut |sum| sum.model == model("b"));
        observed.add_as(7, &one, &|| model("changed"));
        for _ in 0..2 {
            observed.tell(&mut |sum| {
                heard.push(sum.clone());
                true
            });
        }
        let sums: Vec<(&ModelLabel, u64)> = heard.iter().map(|sum| (&sum.model, sum.tally.tokens)).collect();
        assert_eq!(sums, [(&model("a"), 4)]);
        // A pid that is used again belongs to another run.
        observed.keep(&|run| run != 7);
        observed.add_as(7, &one, &|| model("c"));
        assert_eq!(observed.sums.len(), 1);
        assert_eq!(observed.sums[0].model, model("c"));
    }
}
