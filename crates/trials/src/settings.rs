//! Tries the engine's other settings, each in turn with the same choice without it: what is not clearly faster, or takes
//! clearly less energy, is not taken. What gains nothing the first time is not tried again.

use super::command::Work;
use super::knobs::{Setting, settings};
use super::measure::Measurer;
use common::order::median;
use tune::answer::SettingRow;
use tune::{Candidate, Goal, Refused};

/// Runs of each setting.
const ROUNDS: usize = 3;
/// A gain below this is not worth a flag.
const LEAST: f64 = 0.02;
/// A setting that gained less than this in the first round is not tried again.
const AGAIN: f64 = 1.0 + LEAST / 2.0;

/// What was found, and the settings to take.
pub struct Settings {
    pub rows: Vec<SettingRow>,
    pub taken: Vec<Setting>,
    /// Why the search ended early.
    pub stopped: Option<String>,
}

/// Tries all settings for a work with this choice.
pub fn tried(measurer: &mut Measurer<'_>, candidate: &Candidate, work: Work) -> Settings {
    let mut found = Settings { rows: Vec::new(), taken: Vec::new(), stopped: None };
    let options = measurer.options;
    let mut notes = std::mem::take(&mut measurer.notes);
    let all =
        settings(&options.tuned, &measurer.help, &options.knobs, work, options.lengths.prompt, &mut notes);
    measurer.notes = notes;
    if all.is_empty() {
        return found;
    }
    let mut ratios: Vec<Result<Vec<f64>, String>> = vec![Ok(Vec::new()); all.len()];
    let mut base = Vec::new();
    for n in 0..ROUNDS {
        let again =
            |r: &Result<Vec<f64>, String>| r.as_ref().is_ok_and(|r| r.last().is_none_or(|r| *r >= AGAIN));
        if n > 0 && !ratios.iter().any(again) {
            break;
        }
        match round(measurer, candidate, work, &all, &mut ratios) {
            Ok(value) => base.push(value),
            Err(why) => {
                found.stopped = Some(why);
                break;
            }
        }
    }
    let noise = spread(&base);
    for (setting, ratios) in all.into_iter().zip(ratios) {
        let least = LEAST.max(2.0 * noise);
        let row = judge(&setting, ratios, least, options.cautious);
        if row.taken {
            take(&mut found, setting, row.gain.unwrap_or(1.0));
        }
        found.rows.push(row);
    }
    // A knob has one value: the others of it that were faster than the base were taken back.
    for row in found.rows.iter_mut().filter(|row| row.taken) {
        if !found.taken.iter().any(|s| s.shown == row.setting) {
            row.taken = false;
            row.why = Some("another value of the same setting is better".to_owned());
        }
    }
    found
}

/// Measures the choice without a setting, then with each. Returns the value without.
fn round(
    measurer: &mut Measurer<'_>,
    candidate: &Candidate,
    work: Work,
    all: &[Setting],
    ratios: &mut [Result<Vec<f64>, String>],
) -> Result<f64, String> {
    let energy = measurer.options.goal == Goal::Energy && measurer.energy.is_some();
    let value = |s: tune::Sample| match s.joules_per_token.filter(|_| energy) {
        Some(joules) => 1.0 / joules,
        None => s.tokens_per_s,
    };
    let base = match measurer.measure(Some(candidate), work, None, true) {
        Ok(sample) => value(sample),
        Err(Refused::Candidate(why) | Refused::Stop(why)) => return Err(why),
    };
    for (setting, ratios) in all.iter().zip(ratios) {
        let Ok(of_this) = ratios else { continue };
        if of_this.first().is_some_and(|first| *first < AGAIN) {
            continue;
        }
        let text = format!("{} with {}", work.name(), setting.shown);
        measurer.watch.progress(&text);
        match measurer.measure(Some(candidate), work, Some(setting), true) {
            Ok(sample) => {
                of_this.push(value(sample) / base);
                measurer.watch.tell(&format!("{text}: {:.2} tok/s", sample.tokens_per_s));
            }
            Err(Refused::Candidate(why)) => {
                measurer.watch.tell(&format!("{text}: no result: {why}"));
                *ratios = Err(why);
            }
            Err(Refused::Stop(why)) => return Err(why),
        }
    }
    Ok(base)
}

fn judge(setting: &Setting, ratios: Result<Vec<f64>, String>, least: f64, cautious: bool) -> SettingRow {
    let mut row = SettingRow { setting: setting.shown.clone(), gain: None, least, taken: false, why: None };
    match ratios {
        Err(why) => row.why = Some(why),
        Ok(ratios) => {
            let all_faster = ratios.len() == ROUNDS && ratios.iter().all(|r| *r > 1.0);
            row.gain = median(ratios);
            row.taken = row.gain.is_some_and(|gain| gain >= 1.0 + least) && all_faster;
        }
    }
    if let Some(caution) = setting.knob.caution().filter(|_| row.taken && cautious) {
        row.taken = false;
        row.why = Some(format!("it {caution}: add it yourself"));
    }
    row
}

/// Keeps the best value of each knob.
fn take(found: &mut Settings, setting: Setting, gain: f64) {
    let before = found.taken.iter().position(|s| s.knob == setting.knob);
    let gain_of = |shown: &str, rows: &[SettingRow]| {
        rows.iter().find(|row| row.setting == shown).and_then(|row| row.gain).unwrap_or(1.0)
    };
    match before.and_then(|at| found.taken.get_mut(at)) {
        Some(old) if gain_of(&old.shown, &found.rows) < gain => *old = setting,
        Some(_) => {}
        None => found.taken.push(setting),
    }
}

/// Largest difference from the median, relative.
fn spread(values: &[f64]) -> f64 {
    let middle = median(values.to_vec()).unwrap_or(1.0);
    values.iter().map(|v| (v / middle - 1.0).abs()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knobs::{Change, Knob};

    fn setting(knob: Knob, shown: &str) -> Setting {
        Setting { knob, shown: shown.to_owned(), change: Change::Flags(Vec::new()) }
    }

    #[test]
    fn a_gain_within_the_scatter_is_none() {
        let fa = setting(Knob::FlashAttention, "-fa on");
        assert!(judge(&fa, Ok(vec![1.10, 1.11, 1.09]), 0.02, true).taken);
        assert!(!judge(&fa, Ok(vec![1.10, 1.11, 1.09]), 0.2, true).taken);
        assert!(!judge(&fa, Ok(vec![0.99, 1.50, 1.50]), 0.02, true).taken, "once slower");
        assert!(!judge(&fa, Ok(vec![1.1]), 0.02, true).taken, "not measured often enough");
        let failed = judge(&fa, Err("it exited".to_owned()), 0.02, true);
        assert_eq!((failed.gain, failed.why.as_deref()), (None, Some("it exited")));
    }

    #[test]
    fn what_changes_results_is_left_to_the_user() {
        let kv = setting(Knob::KvType, "-ctk q8_0");
        let row = judge(&kv, Ok(vec![1.2, 1.2, 1.2]), 0.02, true);
        assert!(!row.taken && row.why.is_some_and(|why| why.contains("what the model computes")));
        assert!(judge(&kv, Ok(vec![1.2, 1.2, 1.2]), 0.02, false).taken);
    }

    #[test]
    fn a_knob_has_one_value() {
        let mut found = Settings { rows: Vec::new(), taken: Vec::new(), stopped: None };
        for (shown, gain) in [("-ub 64", 1.1), ("-ub 128", 1.3), ("-ub 256", 1.2)] {
            take(&mut found, setting(Knob::Ubatch, shown), gain);
            found.rows.push(judge(&setting(Knob::Ubatch, shown), Ok(vec![gain; 3]), 0.02, true));
        }
        assert_eq!(found.taken.iter().map(|s| s.shown.as_str()).collect::<Vec<_>>(), ["-ub 128"]);
    }
}
