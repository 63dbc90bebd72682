//! Flags of `record` for what happens to threads outside their ops: the scheduler.

use agent::recorder::recording::RecordOptions;
use cli::args::{Args, Flag, FlagGroup};
use pfi::record::Level;

pub const FLAGS: FlagGroup = FlagGroup {
    title: "Scheduling",
    flags: &[
        Flag::switch(
            "sched",
            "Record when and why threads are off-CPU (preempted, sleeping, waiting for a page or a device) \
             and what ran instead [default with --level op; not with perf events]",
        )
        .overrides("no-sched"),
        Flag::switch("no-sched", "Do not record the scheduler").overrides("sched"),
    ],
};

/// Reads [`FLAGS`] into the options.
pub fn read(args: &Args, options: &mut RecordOptions) {
    let by_default = options.level == Level::Op && !args.flag("no-sched");
    options.capture.sched = args.flag("sched") || by_default;
    options.sched_requested = args.flag("sched");
}
