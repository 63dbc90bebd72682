//! Flags of `record` for what threads meet outside their ops: the scheduler. Uses [`crate::cli::args`].

use crate::agent::recording::Options;
use crate::cli::args::{Args, Flag, Group};

pub const FLAGS: Group = Group {
    title: "What threads wait for",
    flags: &[Flag::switch(
        "sched",
        "Record when and why threads are off the CPU: preempted, asleep, waiting for a page or a device; and who ran \
         instead",
    )],
};

/// Reads [`FLAGS`] into the options.
pub fn read(args: &Args, options: &mut Options) {
    options.sched = args.flag("sched");
}
