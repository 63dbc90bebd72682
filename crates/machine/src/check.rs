//! One line of the checklist printed by `profinfer doctor`.

use serde::Serialize;

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckResult {
    Ok,
    /// Needed and not available.
    Missing,
    /// Not available, and not needed.
    Optional,
    /// Not tried.
    Skipped,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Stable name, for use by programs.
    pub id: String,
    pub name: String,
    pub state: CheckResult,
    pub detail: String,
    /// How to fix it; empty if there is nothing to fix or no fix.
    pub mend: String,
}

impl Check {
    pub fn new(id: &str, name: &str, state: CheckResult) -> Check {
        let (id, name) = (id.to_owned(), name.to_owned());
        Check { id, name, state, detail: String::new(), mend: String::new() }
    }

    pub fn detail(self, detail: &str) -> Check {
        Check { detail: detail.to_owned(), ..self }
    }

    pub fn mend(self, mend: &str) -> Check {
        Check { mend: mend.to_owned(), ..self }
    }
}
