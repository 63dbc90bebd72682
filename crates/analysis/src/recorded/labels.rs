//! Words and figures used by several tables.

use pfi::record::Availability;

/// `part` divided by `whole`; 0 if `whole` is 0.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The word for an availability.
pub fn state(a: Availability) -> &'static str {
    match a {
        Availability::Whole => "whole",
        Availability::Partly => "partly",
        Availability::None => "none",
    }
}
