//! The tables, one in each file. A new one is a file with a `TABLE`, and a line in [`TABLES`].

mod calls;
mod contexts;
mod counters;
mod experts;
mod fallbacks;
mod kernels;
mod offcpu;
mod ops;
mod requests;
mod runs;
mod sensors;
mod splits;
mod tensors;
mod threads;
mod usage;

use crate::column::Table;

/// All tables. The first is written last: a run that is in it has all its other tables.
pub const TABLES: &[&Table] = &[
    &runs::TABLE,
    &contexts::TABLE,
    &calls::TABLE,
    &requests::TABLE,
    &ops::TABLE,
    &tensors::TABLE,
    &threads::TABLE,
    &counters::TABLE,
    &offcpu::TABLE,
    &sensors::TABLE,
    &usage::TABLE,
    &experts::TABLE,
    &splits::TABLE,
    &fallbacks::TABLE,
    &kernels::TABLE,
];
