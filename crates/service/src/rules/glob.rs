//! Path patterns: `*`, `?` and `**`.
//!
//! Hand-written: in `fast-glob`, `[`, `{`, `!` and `\` are special, and `**` inside a path component stops at '/'.
//!
//! All positions in the pattern that the text so far can have reached are tracked in parallel, so that matching
//! takes at most the product of both lengths.

/// Maximum pattern length, bytes.
const LONGEST: usize = 1024;

/// A text is no pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("wanted: a pattern of 1 to {LONGEST} bytes, of a path or a file's name")]
pub struct NoPattern;

/// A pattern for a path, or for its last component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    text: String,
    parts: Vec<GlobPart>,
    /// It has no '/': it is compared with the last component of a path.
    last: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GlobPart {
    Byte(u8),
    /// `?`: any byte except '/'.
    One,
    /// `*`: any number of bytes except '/'.
    Star,
    /// `**`: any number of any bytes.
    Any,
    /// `**/` at the start of a path component: any number of directories. [`GlobPart::Within`] follows it.
    Dirs,
    Within,
}

impl Glob {
    /// Parses a pattern.
    ///
    /// # Errors
    /// It is empty or too long.
    pub fn new(text: &str) -> Result<Self, NoPattern> {
        if text.is_empty() || text.len() > LONGEST {
            return Err(NoPattern);
        }
        let mut parts = Vec::new();
        let mut rest = text.as_bytes();
        while let [first, after @ ..] = rest {
            rest = after;
            match first {
                b'?' => parts.push(GlobPart::One),
                b'*' if after.first() == Some(&b'*') => {
                    let begins = matches!(parts.last(), None | Some(GlobPart::Byte(b'/') | GlobPart::Within));
                    while let [b'*', after @ ..] = rest {
                        rest = after;
                    }
                    match rest {
                        [b'/', after @ ..] if begins => {
                            rest = after;
                            parts.extend([GlobPart::Dirs, GlobPart::Within]);
                        }
                        _ => parts.push(GlobPart::Any),
                    }
                }
                b'*' => parts.push(GlobPart::Star),
                byte => parts.push(GlobPart::Byte(*byte)),
            }
        }
        Ok(Self { text: text.to_owned(), parts, last: !text.contains('/') && text != "**" })
    }

    /// The pattern as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it matches every path.
    pub fn is_all(&self) -> bool {
        matches!(self.text.as_str(), "*" | "**" | "/**")
    }

    /// Whether it matches the entire path.
    pub fn matches(&self, path: &[u8]) -> bool {
        let path = match path.iter().rposition(|b| *b == b'/') {
            Some(at) if self.last => path.get(at + 1..).unwrap_or_default(),
            _ => path,
        };
        let mut at = vec![false; self.parts.len() + 1];
        at[0] = true;
        self.pass(&mut at);
        for byte in path {
            let mut next = vec![false; at.len()];
            for (i, part) in self.parts.iter().enumerate().filter(|(i, _)| at[*i]) {
                match part {
                    GlobPart::Byte(b) => next[i + 1] |= b == byte,
                    GlobPart::One => next[i + 1] |= *byte != b'/',
                    GlobPart::Star => next[i] |= *byte != b'/',
                    GlobPart::Any => next[i] = true,
                    GlobPart::Within => {
                        next[i] = true;
                        next[i + 1] |= *byte == b'/';
                    }
                    GlobPart::Dirs => {}
                }
            }
            self.pass(&mut next);
            at = next;
        }
        at.last() == Some(&true)
    }

    /// Adds the positions that are reached without consuming a byte.
    fn pass(&self, at: &mut [bool]) {
        for (i, part) in self.parts.iter().enumerate() {
            if at[i] && matches!(part, GlobPart::Star | GlobPart::Any | GlobPart::Dirs) {
                at[i + 1] = true;
                if *part == GlobPart::Dirs {
                    at[i + 2] = true;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        Glob::new(pattern).expect("a pattern").matches(path.as_bytes())
    }

    #[test]
    fn stars_stop_at_slashes_and_two_do_not() {
        for (pattern, yes, no) in [
            (
                "/usr/bin/llama-*",
                &["/usr/bin/llama-cli", "/usr/bin/llama-"][..],
                &["/usr/bin/llama-x/y", "/usr/bin/llam"][..],
            ),
            ("/opt/?/x", &["/opt/a/x"], &["/opt//x", "/opt/ab/x", "/opt/a/xx"]),
            ("/opt/**", &["/opt/a", "/opt/a/b/c", "/opt/"], &["/opt", "/usr/opt/a"]),
            (
                "/opt/**/llama-*",
                &["/opt/llama-cli", "/opt/a/llama-cli", "/opt/a/b/llama-cli"],
                &["/opt/allama-cli", "/opt/llama-cli/x"],
            ),
            ("**/bin/*", &["/bin/x", "bin/x", "/usr/bin/x"], &["/usr/xbin/x", "/bin/x/y"]),
            ("/a**b", &["/ab", "/a/x/b", "/axb"], &["/a/x/bc"]),
            ("/a*b*c", &["/abc", "/axbxc", "/abbcc"], &["/ab/c", "/abcd"]),
            ("**", &["/x", "", "/x/y"], &[]),
            ("/a/**/**/b", &["/a/b", "/a/x/b", "/a/x/y/b"], &["/a/xb"]),
        ] {
            assert!(yes.iter().all(|path| matches(pattern, path)), "{pattern}");
            assert!(!no.iter().any(|path| matches(pattern, path)), "{pattern}");
        }
    }

    #[test]
    fn without_a_slash_it_is_the_last_part_that_counts() {
        assert!(matches("llama-*", "/usr/bin/llama-cli") && matches("llama-cli", "llama-cli"));
        assert!(!matches("llama-*", "/opt/llama-1/run") && !matches("bin", "/bin/x"));
        assert!(matches("*", "/a/b") && matches("*.service", "/system.slice/llama.service"));
    }

    #[test]
    fn what_is_no_letter_is_itself() {
        assert!(matches("/a[b]{c}\\.+", "/a[b]{c}\\.+") && !matches("/a[b]", "/ab"));
        assert!(Glob::new("/?/x").expect("a pattern").matches(b"/\xff/x"));
    }

    #[test]
    fn no_pattern_explodes() {
        let path = vec![b'a'; 4096];
        let glob = Glob::new(&"*a".repeat(LONGEST / 2)).expect("a pattern");
        assert!(glob.matches(&path) && !glob.matches(&path[..100]));
        assert!(!Glob::new(&format!("/{}b", "**a".repeat(300))).expect("a pattern").matches(&path));
        assert!(Glob::new("").is_err() && Glob::new(&"a".repeat(LONGEST + 1)).is_err());
    }

    /// The same by brute force.
    fn slow(pattern: &[u8], path: &[u8]) -> bool {
        match (pattern, path) {
            ([], []) => true,
            ([b'*', p @ ..], _) => {
                slow(p, path) || matches!(path, [c, rest @ ..] if *c != b'/' && slow(pattern, rest))
            }
            ([b'?', p @ ..], [c, rest @ ..]) => *c != b'/' && slow(p, rest),
            ([b, p @ ..], [c, rest @ ..]) => b == c && slow(p, rest),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn is_what_trying_all_ways_finds(pattern in "/[ab/?*]{0,8}", path in "/[ab/]{0,8}") {
            prop_assume!(!pattern.contains("**"));
            prop_assert_eq!(matches(&pattern, &path), slow(pattern.as_bytes(), path.as_bytes()));
        }

        #[test]
        fn anything_is_a_pattern_of_something(pattern in "\\PC{1,40}", path in prop::collection::vec(any::<u8>(), 0..40)) {
            let glob = Glob::new(&pattern).expect("a pattern");
            glob.matches(&path);
            prop_assert!(glob.matches(pattern.as_bytes()) || pattern.contains('*') || pattern.contains('?'));
        }
    }
}
