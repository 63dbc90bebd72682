//! Flags of `record` for the machine's sensors.

use std::path::PathBuf;

use agent::recorder::recording::RecordOptions;
use cli::args::{Args, Flag, FlagGroup, Usage};
use machine::sensors::{self, INTERVAL, MeterFile};

pub const FLAGS: FlagGroup = FlagGroup {
    title: "Energy and frequency",
    flags: &[
        Flag::switch(
            "sensors",
            "Record power, energy, CPU frequencies and temperatures 20 times a second, as far as the \
             machine reports them",
        ),
        METER,
        Flag::value("sysfs", "DIR", "Directory to look for sensors in").default("/sys").hidden(),
    ],
};

pub const METER: Flag = Flag::value(
    "meter",
    "FILE[:UNIT]",
    "Also read a meter of your own: a file with one number that another program keeps up to date, in uW, mW or W, or in \
     uJ, mJ or J so far [default: uW]. Implies --sensors",
)
.valid(|text| MeterFile::parse(text).map(drop));

/// Reads them into `options`.
///
/// # Errors
/// None of the choices.
pub fn read(args: &Args, options: &mut RecordOptions) -> Result<(), Usage> {
    let sysfs = args.path("sysfs")?.unwrap_or_else(|| PathBuf::from("/sys"));
    let meter = args.option("meter", MeterFile::parse)?;
    let wanted = args.flag("sensors") || meter.is_some();
    options.sensors = wanted.then_some(sensors::SensorOptions { sysfs, interval: INTERVAL, meter });
    Ok(())
}
