//! Flags of `record` for what an op or call is made of: experts, phases. Uses [`crate::cli::args`].

use crate::agent::recording::Options;
use crate::cli::args::{Args, Flag, Group, Usage};
use crate::trace::record::Level;

pub const FLAGS: Group = Group {
    title: "What ops are made of",
    flags: &[
        Flag::switch(
            "experts",
            "Record which experts each layer of a mixture-of-experts model chose for each token",
        ),
        Flag::switch(
            "phases",
            "Record calls that load a model, tokenize, sample and detokenize. Two probe hits each, and for the calls that \
             these make of one another: several a token, and, while a model loads, one for each word it knows",
        ),
    ],
};

/// Reads [`FLAGS`] into the options, which have all else already.
///
/// # Errors
/// The other flags leave out what these need.
pub fn read(args: &Args, options: &mut Options) -> Result<(), Usage> {
    options.experts = args.flag("experts");
    options.phases = args.flag("phases");
    if options.experts && (options.level != Level::Op || !options.structure) {
        return Err(Usage::new(format!(
            "{}--experts needs ops and their tensors: leave out --no-str, and --level or give it op",
            args.place(&["experts", "level", "no-str"])
        )));
    }
    Ok(())
}
