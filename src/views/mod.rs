//! How an answer looks: terminal tables and JSON. May use `analysis`.

pub mod honesty;
pub mod json;
pub mod table;
pub mod text;
pub mod units;
