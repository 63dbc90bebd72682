//! Flags of `record` for the machine's sensors. Uses [`crate::cli::args`] and `agent`'s options.

use std::path::PathBuf;

use crate::agent::recording::Options;
use crate::agent::sensors::{self, INTERVAL};
use crate::cli::args::{Args, Flag, Group, Usage};

pub const FLAGS: Group = Group {
    title: "Energy and frequency",
    flags: &[
        Flag::switch(
            "sensors",
            "Record power, energy, CPU frequencies and temperatures 20 times a second, as far as the machine tells them",
        ),
        Flag::value("sysfs", "DIR", "Where sensors are looked for").default("/sys").hidden(),
    ],
};

/// Reads them into `options`.
///
/// # Errors
/// None of these.
pub fn read(args: &Args, options: &mut Options) -> Result<(), Usage> {
    let sysfs = args.path("sysfs")?.unwrap_or_else(|| PathBuf::from("/sys"));
    options.sensors = args.flag("sensors").then_some(sensors::Options { sysfs, interval: INTERVAL });
    Ok(())
}
