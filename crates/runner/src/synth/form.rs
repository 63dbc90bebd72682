//! How a model's graph is written, which a file says in its metadata.

/// How the nodes of a graph are written; what they compute is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GraphForm {
    /// Node by node as llama.cpp builds it.
    #[default]
    Llama,
    /// As an exporter writes it: norms as their parts, the same computed twice, constants computed by nodes, chains of
    /// views, results that nobody reads.
    Exported,
}

impl GraphForm {
    /// The metadata key, which other programs ignore. A file without it has [`GraphForm::Llama`].
    pub const KEY: &'static str = "ggml_runner.graph";

    /// All forms.
    pub const ALL: [GraphForm; 2] = [GraphForm::Llama, GraphForm::Exported];

    /// The value in a file.
    pub fn name(self) -> &'static str {
        match self {
            GraphForm::Llama => "llama",
            GraphForm::Exported => "exported",
        }
    }
}
