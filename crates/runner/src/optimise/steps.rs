//! The names of what can be switched off, to see what it is good for.

use crate::parts::KernelParts;
use std::str::FromStr;

/// Something that can be switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Fold,
    Shapes,
    Cse,
    Dead,
    Fuse,
    Plan,
    Layout,
    HugePages,
    Uint4,
    Prefetch,
    Attention,
    Halves,
}

/// A line of [`Step::ALL`].
pub struct StepFacts {
    pub step: Step,
    pub name: &'static str,
    pub what: &'static str,
}

const fn facts(step: Step, name: &'static str, what: &'static str) -> StepFacts {
    StepFacts { step, name, what }
}

impl Step {
    /// All of them. Those of the graph come first, in the order in which they are done; parts of the kernels follow.
    pub const ALL: &'static [StepFacts] = &[
        facts(Step::Fold, "fold", "nodes of constants are computed once"),
        facts(Step::Shapes, "shapes", "shapes are checked; views of views are one view"),
        facts(Step::Cse, "cse", "nodes that compute the same are one"),
        facts(Step::Dead, "dead", "nodes without a use are removed"),
        facts(
            Step::Fuse,
            "fuse",
            "a norm written as its parts is one op, and runs with its weight; products prepare shared activations once",
        ),
        facts(Step::Plan, "plan", "intermediates use memory again"),
        facts(Step::Layout, "layout", "weights are repacked for the processor"),
        facts(Step::HugePages, "hugepages", "repacked weights are in huge pages"),
        facts(Step::Uint4, "uint4", "weights of 4 bits are kept as such"),
        facts(Step::Prefetch, "prefetch", "weights are prefetched as measured on this machine"),
        facts(Step::Attention, "attention", "attention uses vector instructions"),
        facts(Step::Halves, "halves", "attention multiplies f16 values as they are where the processor can"),
    ];

    /// The name in `--ablate`.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|f| f.step == self).map_or("", |f| f.name)
    }
}

/// The steps that are done: all except those that were switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Steps {
    /// A bit for each step.
    off: u32,
}

impl Steps {
    /// None is switched off.
    pub const ALL: Steps = Steps { off: 0 };
    /// All are switched off.
    pub const NONE: Steps = Steps { off: u32::MAX };

    /// The same without a step.
    #[must_use]
    pub const fn without(self, step: Step) -> Self {
        Self { off: self.off | 1 << step as u32 }
    }

    /// Whether a step is done.
    pub const fn has(self, step: Step) -> bool {
        self.off & 1 << step as u32 == 0
    }

    /// The parts of the kernels that are not switched off.
    pub fn parts(self) -> KernelParts {
        KernelParts {
            layout: self.has(Step::Layout),
            hugepages: self.has(Step::HugePages),
            uint4: self.has(Step::Uint4),
            prefetch: self.has(Step::Prefetch),
            attention: self.has(Step::Attention),
            halves: self.has(Step::Halves),
            ..KernelParts::default()
        }
    }

    /// The names of those that were switched off.
    pub fn off(self) -> impl Iterator<Item = &'static str> {
        Step::ALL.iter().filter(move |f| !self.has(f.step)).map(|f| f.name)
    }
}

impl FromStr for Steps {
    type Err = String;

    /// Parses what to switch off: `fuse,plan`.
    fn from_str(list: &str) -> Result<Self, String> {
        list.split(',').map(str::trim).try_fold(Steps::ALL, |steps, name| {
            let known = Step::ALL.iter().find(|f| f.name == name).map(|f| steps.without(f.step));
            known.ok_or_else(|| {
                let names: Vec<&str> = Step::ALL.iter().map(|f| f.name).collect();
                format!("'{name}' cannot be switched off; known are {}", names.join(", "))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_the_kernels_can_be_switched_off() {
        assert_eq!(Steps::ALL.parts(), KernelParts::default());
        for step in [Step::Layout, Step::HugePages, Step::Uint4, Step::Prefetch, Step::Attention] {
            assert_ne!(Steps::ALL.without(step).parts(), KernelParts::default(), "{}", step.name());
        }
        assert_eq!(Steps::ALL.without(Step::Fuse).parts(), KernelParts::default());
    }

    #[test]
    fn a_list_names_what_is_switched_off() {
        let steps: Steps = "halves, plan".parse().expect("known names");
        assert_eq!(steps.off().collect::<Vec<_>>(), ["plan", "halves"]);
        assert!(!steps.has(Step::Halves) && !steps.has(Step::Plan) && steps.has(Step::Fuse));
        assert_eq!(steps, Steps::ALL.without(Step::Plan).without(Step::Halves));
        for wrong in ["", "plan,", "fuse,nosuch", "PLAN"] {
            let why = wrong.parse::<Steps>().expect_err("an unknown name");
            assert!(
                why.contains(
                    " cannot be switched off; known are fold, shapes, cse, dead, fuse, plan, layout"
                ),
                "{why}"
            );
        }
        let names: Vec<&str> = Steps::NONE.off().collect();
        assert_eq!(names.len(), Step::ALL.len());
        for f in Step::ALL {
            assert_eq!(f.step.name(), f.name);
        }
    }
}
