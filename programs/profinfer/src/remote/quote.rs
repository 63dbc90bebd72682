//! Words of a command line for the shell of another machine.

/// A word as a POSIX shell reads it back, byte for byte, and fish, which may be the login shell there. A zero byte cannot
/// be in an argument, and is left out.
pub fn quote(word: &[u8]) -> Vec<u8> {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"-_./:,+@".contains(b);
    if !word.is_empty() && word.iter().all(plain) {
        return word.to_vec();
    }
    let mut out = vec![b'\''];
    for &b in word.iter().filter(|b| **b != 0) {
        match b {
            // The quotes end, an escaped character follows, and they begin again. In quotes, a backslash escapes in fish.
            b'\'' => out.extend_from_slice(br"'\''"),
            b'\\' => out.extend_from_slice(br"'\\'"),
            b => out.push(b),
        }
    }
    out.push(b'\'');
    out
}

/// Words separated by spaces.
pub fn join<W: AsRef<[u8]>>(words: impl IntoIterator<Item = W>) -> Vec<u8> {
    let words: Vec<Vec<u8>> = words.into_iter().map(|word| quote(word.as_ref())).collect();
    words.join(&b' ')
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    /// The shells that a login may have there, as far as they are here.
    fn shells() -> Vec<&'static str> {
        let there = |name: &&str| Command::new(name).args(["-c", ":"]).output().is_ok();
        ["sh", "bash", "dash", "zsh", "fish"].into_iter().filter(there).collect()
    }

    fn run(shell: &str, script: &[u8]) -> Vec<u8> {
        let out = Command::new(shell).arg("-c").arg(OsStr::from_bytes(script)).output().expect("a shell");
        assert!(out.status.success(), "{shell}: {}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    }

    /// Prints each word with a zero byte after it: in a POSIX shell, and from a POSIX shell that a login shell starts.
    fn check(words: &[Vec<u8>]) {
        let wanted: Vec<u8> = words.iter().flat_map(|w| [w.as_slice(), b"\0"].concat()).collect();
        let line = [b"printf '%s\\0' ".to_vec(), join(words)].concat();
        assert_eq!(run("sh", &line), wanted);
        let nested = [b"exec sh -c ".to_vec(), quote(&line)].concat();
        for shell in shells() {
            assert_eq!(run(shell, &nested), wanted, "{shell}");
        }
    }

    #[test]
    fn what_a_shell_would_take_apart_arrives_whole() {
        let words = [
            "",
            " ",
            "a b",
            "a\nb",
            "\n",
            "it's",
            "''",
            "'",
            "\\",
            "\\'",
            "\\'; exit 1; \\'",
            "a\\",
            "\\\\",
            "$HOME",
            "$(id)",
            "`id`",
            "*",
            "~",
            "-n",
            "a=b",
            "!x",
            "#",
            "\"",
            "é",
            "{a,b}",
            "&",
            ";",
            "<x",
            "\t",
            "%s",
            "%self",
            "--",
            "[a]",
            "(a)",
            "^",
            "a^",
        ];
        check(&words.map(|w| w.as_bytes().to_vec()));
        check(&[vec![0xff, 0xfe, b'\'', 0x80]]);
        assert_eq!(quote(b"/a-b/c_d.e:1,2+3@4"), b"/a-b/c_d.e:1,2+3@4");
        assert_eq!(quote(b"a\0b"), b"'ab'");
    }

    #[test]
    fn each_word_arrives_whole_in_fish() {
        if !shells().contains(&"fish") {
            return crate::skips::skipped("fish is not installed");
        }
        // As arguments of its own, which the other tests give to sh.
        for word in [r"\'; exit 1; \'", r"a\", r"\\", "%self", "$HOME", "(id)", "a\nb'\"", ""] {
            let line = [b"printf '%s' ".to_vec(), quote(word.as_bytes())].concat();
            assert_eq!(run("fish", &line), word.as_bytes(), "{word}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn any_words_arrive_whole(words in prop::collection::vec(prop::collection::vec(1u8..=255, 0..40), 1..6)) {
            check(&words);
        }

        #[test]
        fn any_words_of_what_shells_know_arrive_whole(words in prop::collection::vec("[ '\"\\\\$`!*?~#&;|<>(){}\n\ta]{0,12}", 1..6)) {
            check(&words.into_iter().map(String::into_bytes).collect::<Vec<_>>());
        }
    }
}
