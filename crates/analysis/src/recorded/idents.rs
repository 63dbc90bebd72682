//! Describes all ops of a recording: what each position of each plan is, and how tables group them.

use std::collections::{BTreeSet, HashMap};

use crate::recorded::describe::{Ident, NO_LAYER, NO_STRUCTURE, describe};
use crate::recorded::load::{HitTensors, Loaded};

/// Grouping key of the op table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKey {
    Op,
    Name,
    Layer,
}

/// Descriptions of all positions of all plans. Plans share most of their ops, so each is described once.
pub struct Idents {
    list: Vec<Ident>,
    /// Per plan and position, an index into `list`.
    plans: HashMap<u32, Vec<usize>>,
}

impl Idents {
    pub fn new(loaded: &Loaded<'_>) -> Self {
        let mut list = Vec::new();
        let mut known: HashMap<HitTensors, usize> = HashMap::new();
        // In a fixed order: rows that are otherwise equal are shown in the order of this list.
        let ids: BTreeSet<u32> = loaded.plans.keys().copied().collect();
        let plans = ids.iter().filter_map(|id| Some((id, loaded.plans.get(id)?))).map(|(id, plan)| {
            let positions = plan.hits.iter().enumerate().map(|(position, hit)| {
                if let Some(index) = known.get(hit) {
                    return *index;
                }
                let ident = describe(loaded, position, Some(*hit));
                // Positions without structure are distinguished only by number.
                if ident.known {
                    known.insert(*hit, list.len());
                }
                list.push(ident);
                list.len() - 1
            });
            (*id, positions.collect())
        });
        let plans = plans.collect();
        Idents { list, plans }
    }

    /// The ident of each position of a plan, for [`Self::label`].
    pub fn of_plan(&self, plan: u32) -> &[usize] {
        self.plans.get(&plan).map_or(&[], Vec::as_slice)
    }

    /// All idents; [`Self::of_plan`] returns indices into this list.
    pub fn list(&self) -> &[Ident] {
        &self.list
    }

    /// The op of an ident, as in the table by op.
    pub fn op(&self, ident: usize) -> &str {
        self.list.get(ident).map_or("", |ident| &ident.op)
    }

    /// The layer of an ident.
    pub fn layer(&self, ident: usize) -> Option<u32> {
        self.list.get(ident)?.layer
    }

    /// The row label of an ident.
    pub fn label(&self, ident: usize, key: OpKey) -> String {
        self.list.get(ident).map_or_else(String::new, |ident| label(ident, key))
    }

    /// The group of each ident, and the names of the groups.
    pub(crate) fn groups(&self, key: OpKey) -> (Vec<usize>, Vec<String>) {
        let mut index: HashMap<String, usize> = HashMap::new();
        let of = self.list.iter().map(|ident| {
            let next = index.len();
            *index.entry(label(ident, key)).or_insert(next)
        });
        let of = of.collect();
        let mut names = vec![String::new(); index.len()];
        for (name, i) in index {
            if let Some(slot) = names.get_mut(i) {
                *slot = name;
            }
        }
        (of, names)
    }
}

/// The row label of an op.
pub(crate) fn label(ident: &Ident, key: OpKey) -> String {
    match key {
        OpKey::Op => ident.op.clone(),
        OpKey::Name if ident.known => format!("{}  {}", ident.op, ident.name),
        OpKey::Name => ident.name.clone(),
        OpKey::Layer => match ident.layer {
            Some(layer) => format!("layer {layer}"),
            None if ident.known => NO_LAYER.into(),
            None => NO_STRUCTURE.into(),
        },
    }
}
