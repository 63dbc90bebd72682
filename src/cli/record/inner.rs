//! Flags of `record` for what an op or call is made of: experts. Uses `anyhow`.

use anyhow::{Result, bail};

use super::LevelArg;

#[derive(Debug, clap::Args)]
pub struct InnerArgs {
    /// Record which experts each layer of a mixture-of-experts model chose for each token
    #[arg(long)]
    pub experts: bool,
}

impl InnerArgs {
    /// Whether the other flags leave what these need.
    pub fn check(&self, level: LevelArg, no_structure: bool) -> Result<()> {
        match self.experts && (level != LevelArg::Op || no_structure) {
            true => {
                bail!("--experts needs ops and their tensors: leave out --no-str, and --level or give it op")
            }
            false => Ok(()),
        }
    }
}
