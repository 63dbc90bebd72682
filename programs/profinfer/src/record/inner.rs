//! Flags of `record` for the contents of an op or call: experts, phases.

use agent::capture::source::Structure;
use agent::recorder::recording::RecordOptions;
use cli::args::{Args, Flag, FlagGroup, Usage};

pub const FLAGS: FlagGroup = FlagGroup {
    title: "Model",
    flags: &[
        Flag::switch(
            "experts",
            "Record which experts each layer of a mixture-of-experts model selects for each token",
        ),
        Flag::switch(
            "phases",
            "Record calls that load a model, tokenize, sample (each sampler) and detokenize. Costs two probe hits per \
             call, and these functions also call each other: several calls per token and, during model \
             load, one per vocabulary entry",
        ),
    ],
};

/// Reads [`FLAGS`] into the options, which must be complete otherwise.
///
/// # Errors
/// The other flags lack what these need.
pub fn read(args: &Args, options: &mut RecordOptions) -> Result<(), Usage> {
    options.capture.experts = args.flag("experts");
    options.phases = args.flag("phases");
    if options.capture.experts && options.capture.structure == Structure::Off {
        return Err(Usage::new(format!(
            "{}--experts requires ops and their tensors: omit --no-str, and omit --level or use --level \
             op",
            args.place(&["experts", "level", "no-str"])
        )));
    }
    Ok(())
}
