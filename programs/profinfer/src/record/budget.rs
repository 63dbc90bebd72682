//! Flags of `record` for its cost.

use agent::recorder::qos::policy::LevelPolicy;
use agent::recorder::recording::RecordOptions;
use cli::args::{Args, Flag, FlagGroup, Usage};
use cli::values::percent;

pub const FLAGS: FlagGroup = FlagGroup { title: "Cost", flags: &[BUDGET, QOS] };

pub const BUDGET: Flag = Flag::value(
    "budget",
    "SHARE",
    "Maximum overhead as a share of the engine's time, e.g. 1%. profinfer records the most detailed level \
     that fits, and adjusts it as the cost changes. --level sets the most detailed level allowed; --pmc, \
     --faults and --sched are recorded while they fit",
)
.valid(|text| percent(text).map(drop));

pub const QOS: Flag = Flag::value(
    "qos",
    "SPEED",
    "Minimum decode speed, e.g. 5tok/s. Below it, profinfer records less detail and restores it when \
     speed recovers",
)
.valid(|text| speed(text).map(drop));

/// Reads `budget` and `qos` into `options`.
///
/// # Errors
/// An invalid value.
pub fn read(args: &Args, options: &mut RecordOptions) -> Result<(), Usage> {
    let rule = LevelPolicy { budget: args.option("budget", percent)?, qos: args.option("qos", speed)? };
    options.budget = (rule.budget.is_some() || rule.qos.is_some()).then_some(rule);
    Ok(())
}

/// `5tok/s`, or 0.5: tokens per second, more than 0.
///
/// # Errors
/// Another unit, not a number, or out of bounds.
pub fn speed(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("tok/s").unwrap_or(text).trim().parse::<f64>().ok();
    number
        .filter(|n| *n > 0.0 && n.is_finite())
        .ok_or("expected tokens per second, e.g. 5tok/s or 0.5".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_as_people_write_them() {
        assert_eq!((speed("5tok/s"), speed("0.5"), speed("12 tok/s")), (Ok(5.0), Ok(0.5), Ok(12.0)));
        for bad in ["0", "-5", "inf", "nan", "tok/s", "5t"] {
            assert!(speed(bad).is_err(), "{bad}");
        }
    }
}
