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
    // Errors of files name them in a context; what has none is where results are printed.
    let first = error.chain().next();
    if first.is_some_and(|first| first.is::<std::io::Error>() || first.is::<serde_json::Error>()) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn standard_output_is_what_has_no_name() {
        let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
        let text = one_line(&full().into());
        assert!(text.starts_with("cannot write standard output: "), "{text}");
        let named = Err::<(), _>(full()).context("cannot write x.pfi").expect_err("an error");
        assert!(one_line(&named).starts_with("cannot write x.pfi: "), "{}", one_line(&named));
    }
}
