//! How an answer looks: terminal tables and JSON. May use `analysis`.
