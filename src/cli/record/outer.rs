//! Flags of `record` for what happens to threads outside their ops: the scheduler.

use crate::cli::args::{Args, Flag, Group};
use crate::recorder::recording::Options;

pub const FLAGS: Group = Group {
    title: "Scheduling",
    flags: &[Flag::switch(
        "sched",
        "Record when and why threads are off-CPU (preempted, sleeping, waiting for a page or a device) \
         and what ran instead",
    )],
};

/// Reads [`FLAGS`] into the options.
pub fn read(args: &Args, options: &mut Options) {
    options.sched = args.flag("sched");
}
