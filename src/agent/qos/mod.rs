//! Keeps what a recording costs within what the user allows. Uses `trace`.

pub mod law;
