//! What the running kernel has: its types, symbols, options, namespaces, tracepoints and tracefs.

pub mod btf;
pub mod event_format;
pub mod kallsyms;
pub mod kconfig;
pub mod namespaces;
pub mod tracefs;
pub mod tracepoint;
