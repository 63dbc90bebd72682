//! Flags of `record` for what it may cost. Uses [`crate::cli::args`] and `agent`'s options.

use crate::agent::qos::law::Rule;
use crate::agent::recording::Options;
use crate::cli::args::{Args, Flag, Group, Usage};
use crate::cli::values::percent;

pub const FLAGS: Group = Group { title: "Cost", flags: &[BUDGET, QOS] };

pub const BUDGET: Flag = Flag::value(
    "budget",
    "SHARE",
    "Most of the engine's time that the recording may take, e.g. 1%: the level is the richest that fits, and changes \
     when what it costs does; --level is then the richest of all, and --pmc, --faults and --sched are on while there \
     is room for them",
)
.valid(|text| percent(text).map(drop));

pub const QOS: Flag = Flag::value(
    "qos",
    "SPEED",
    "Decoding speed that is to be kept, e.g. 5tok/s: below it the level is lowered, in calm raised again",
)
.valid(|text| speed(text).map(drop));

/// Reads `budget` and `qos` into `options`.
///
/// # Errors
/// A value that is none.
pub fn read(args: &Args, options: &mut Options) -> Result<(), Usage> {
    let rule = Rule { budget: args.option("budget", percent)?, qos: args.option("qos", speed)? };
    options.budget = (rule.budget.is_some() || rule.qos.is_some()).then_some(rule);
    Ok(())
}

/// `5tok/s`, or 0.5: tokens per second, more than 0.
///
/// # Errors
/// Another unit, no number, or out of these bounds.
pub fn speed(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("tok/s").unwrap_or(text).trim().parse::<f64>().ok();
    number.filter(|n| *n > 0.0 && n.is_finite()).ok_or("give tokens per second, e.g. 5tok/s or 0.5".into())
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
