//! What the terminal can show, by the environment.

use std::env::var_os;
use std::ffi::OsString;

/// Whether output may be coloured on a terminal: NO_COLOR is not set (no-color.org), and TERM is not `dumb`.
pub fn colour() -> bool {
    coloured(&|name| var_os(name))
}

fn coloured(environ: &dyn Fn(&str) -> Option<OsString>) -> bool {
    environ("NO_COLOR").is_none_or(|v| v.is_empty()) && environ("TERM").is_none_or(|term| term != "dumb")
}

/// Whether characters outside ASCII can be shown: the locale's character set is UTF-8.
pub fn unicode() -> bool {
    utf8(&|name| var_os(name))
}

/// The first of these variables that is set applies (locale(7)).
fn utf8(environ: &dyn Fn(&str) -> Option<OsString>) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().filter_map(|n| environ(n)).find(|v| !v.is_empty());
    let locale = locale.map(|v| v.to_string_lossy().to_ascii_lowercase());
    locale.is_some_and(|locale| locale.contains("utf-8") || locale.contains("utf8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(set: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> {
        |name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into())
    }

    #[test]
    fn colours_are_refused_by_either_variable() {
        assert!(coloured(&with(&[])) && coloured(&with(&[("NO_COLOR", ""), ("TERM", "xterm")])));
        assert!(!coloured(&with(&[("NO_COLOR", "1")])) && !coloured(&with(&[("TERM", "dumb")])));
    }

    #[test]
    fn the_locale_s_character_set_is_that_of_the_first_variable() {
        assert!(utf8(&with(&[("LANG", "de_DE.UTF-8")])) && utf8(&with(&[("LC_CTYPE", "C.utf8")])));
        assert!(utf8(&with(&[("LC_ALL", ""), ("LANG", "en_US.UTF-8")])));
        assert!(!utf8(&with(&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")])) && !utf8(&with(&[])));
    }
}
