//! Flags of `record` for what happens to threads outside their ops: the scheduler.

use crate::cli::args::{Args, Flag, FlagGroup};
use crate::recorder::recording::RecordOptions;

pub const FLAGS: FlagGroup = FlagGroup {
    title: "Scheduling",
    flags: &[Flag::switch(
        "sched",
        "Record when and why threads are off-CPU (preempted, sleeping, waiting for a page or a device) \
         and what ran instead",
    )],
};

/// Reads [`FLAGS`] into the options.
pub fn read(args: &Args, options: &mut RecordOptions) {
    options.capture.sched = args.flag("sched");
}
