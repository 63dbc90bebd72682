//! Messages for errors that end a command.

/// The reader of our output closed it: this is not an error of ours.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let kind = cause
            .downcast_ref::<std::io::Error>()
            .map(std::io::Error::kind)
            .or_else(|| cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind));
        kind == Some(std::io::ErrorKind::BrokenPipe)
    })
}

/// The chain of causes, without repetitions from errors that print their own source.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    // Errors of files name them; what has no name is where results are printed.
    if error.is::<std::io::Error>() || error.is::<serde_json::Error>() {
        line.push_str("cannot write standard output");
    }
    for cause in error.chain() {
        let text = cause.to_string();
        if line.contains(&text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&text);
    }
    render::table::clean(&line)
}
