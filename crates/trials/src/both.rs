//! One command line for both phases: llama.cpp's own masks and threads for decode and prefill, where the best CPUs of the two
//! differ. It is offered only if its threads ran where it says, in a run of its own.

use super::command::{FlagChange, Work};
use super::figures::Figures;
use super::knobs::{Change, Setting};
use super::measure::Measurer;
use super::trial::{Detail, Ran};
use tune::{Candidate, Refused};

/// The choices to put into one line.
pub struct Choices<'c> {
    pub decode: &'c Candidate,
    pub prefill: &'c Candidate,
    /// Settings that were taken for each.
    pub settings: [&'c [Setting]; 2],
    /// CPUs that may be used.
    pub usable: usize,
}

/// A line that was tried.
pub struct Both {
    pub flags: Vec<FlagChange>,
    pub decode_tokens_per_s: f64,
    pub prefill_tokens_per_s: f64,
    pub joules_per_token: Option<f64>,
}

impl Choices<'_> {
    fn differ(&self) -> bool {
        sorted(self.decode) != sorted(self.prefill) || self.decode.threads != self.prefill.threads
    }

    /// All flags of the line. What changes the machine is not among them; where both phases have a value of a setting,
    /// decode's is taken.
    fn flags(&self, masks: FlagChange) -> Vec<FlagChange> {
        let [decode, prefill] = self.settings;
        let more = prefill.iter().filter(|s| !decode.iter().any(|d| d.knob == s.knob));
        let of_settings = decode.iter().chain(more).filter_map(|s| match &s.change {
            Change::Flags(all) => Some(all.iter().cloned()),
            Change::HugePages(_) => None,
        });
        of_settings.flatten().chain([masks]).collect()
    }
}

/// Runs the line twice, for its CPUs and for its speed. None: there is nothing to put into one line, or this build has no
/// such flags.
///
/// # Errors
/// Its threads ran elsewhere, it has no result, or the search has to stop.
pub fn tried(measurer: &mut Measurer<'_>, choices: &Choices<'_>) -> Result<Option<Both>, String> {
    let masks = measurer.tuned.masks(choices.decode, choices.prefill, &measurer.help);
    let Some(masks) = masks.filter(|_| choices.differ() && measurer.options.pins()) else { return Ok(None) };
    let flags = choices.flags(masks);
    measurer.watch.progress("decode and prefill in one line");
    let mut run = |detail| {
        let ran = measurer.with_flags(&flags, detail);
        ran.map_err(|e| match e {
            Refused::Candidate(why) | Refused::Stop(why) => why,
        })
    };
    let ran = run(Detail::Ops)?;
    let figures = Figures::read(&ran.trace).map_err(|e| e.to_string())?;
    for (work, candidate) in [(Work::Decode, choices.decode), (Work::Prefill, choices.prefill)] {
        obeyed(&figures, &ran, work, (candidate, choices.usable))?;
    }
    let ran = run(Detail::Graphs)?;
    let figures = Figures::read(&ran.trace).map_err(|e| e.to_string())?;
    let speed = |work| figures.speed(work).map_err(|e| e.to_string());
    let (decode, prefill) = (speed(Work::Decode)?, speed(Work::Prefill)?);
    Ok(Some(Both {
        flags,
        decode_tokens_per_s: decode.tokens_per_s,
        prefill_tokens_per_s: prefill.tokens_per_s,
        joules_per_token: decode.joules_per_token,
    }))
}

fn sorted(candidate: &Candidate) -> Vec<u32> {
    let mut cpus = candidate.cpus.clone();
    cpus.sort_unstable();
    cpus
}

/// Whether a phase was computed by the threads and on the CPUs that it was to have.
fn obeyed(
    figures: &Figures,
    ran: &Ran,
    work: Work,
    (candidate, usable): (&Candidate, usize),
) -> Result<(), String> {
    let work = (work, work.name());
    let Some((on, threads)) = figures.ran_on(work.0) else {
        return Err(format!("the recording does not show on which CPUs {} ran", work.1));
    };
    if threads != candidate.threads as usize {
        return Err(format!("{} was computed by {threads} threads, not by {}", work.1, candidate.threads));
    }
    let given = sorted(candidate);
    let ranges = |cpus: &[u32]| common::cpus::ranges(cpus.iter().copied());
    let outside: Vec<u32> = on.into_iter().filter(|cpu| !given.contains(cpu)).collect();
    if !outside.is_empty() {
        return Err(format!(
            "{} ran on CPUs {} too, not on {} alone",
            work.1,
            ranges(&outside),
            ranges(&given)
        ));
    }
    // A thread may stay on its CPU by chance: llama.cpp with OpenMP ignores the mask of a single thread.
    if given.len() < usable && !ran.placement.masks.contains(&given) {
        return Err(format!("no thread was bound to CPUs {}, which {} was to have", ranges(&given), work.1));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knobs::Knob;

    fn setting(knob: Knob, flag: &str, value: &str) -> Setting {
        let flags = vec![FlagChange { names: vec![flag.into()], words: vec![flag.into(), value.into()] }];
        Setting { knob, shown: String::new(), change: Change::Flags(flags) }
    }

    #[test]
    fn a_line_has_the_settings_of_both_phases() {
        let candidate = |cpus: &[u32], threads| Candidate { cpus: cpus.to_vec(), threads };
        let (decode, prefill) = (candidate(&[5, 4], 2), candidate(&[4, 5], 2));
        let of_decode = [
            setting(Knob::FlashAttention, "-fa", "on"),
            Setting { change: Change::HugePages("always"), ..setting(Knob::HugePages, "", "") },
        ];
        let of_prefill = [setting(Knob::FlashAttention, "-fa", "off"), setting(Knob::Ubatch, "-ub", "64")];
        let settings = [&of_decode[..], &of_prefill[..]];
        let same = Choices { decode: &decode, prefill: &prefill, settings, usable: 8 };
        assert!(!same.differ(), "the order of CPUs is no difference");
        let masks = FlagChange { names: Vec::new(), words: vec!["-C".into()] };
        let words: Vec<String> = same.flags(masks).into_iter().flat_map(|f| f.words).collect();
        assert_eq!(words, ["-fa", "on", "-ub", "64", "-C"]);
        let other = candidate(&[4, 5], 1);
        assert!(Choices { prefill: &other, ..same }.differ());
    }
}
