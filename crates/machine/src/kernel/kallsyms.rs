//! Addresses of functions in the running kernel, from /proc/kallsyms.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

/// The kernel's symbols, ordered by address within its own code.
const FILE: &str = "/proc/kallsyms";
/// Longer than any kernel function: if the length is greater, the next symbol in the list is not the next in memory.
const LONGEST: u64 = 1 << 16;

/// Address and length of a function's code; length 0 if unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelFunction {
    pub at: u64,
    pub len: u64,
}

/// Places of functions; empty for those that the kernel does not list, or whose addresses it hides from us.
pub fn places<const N: usize>(names: [&str; N]) -> io::Result<[KernelFunction; N]> {
    find(BufReader::with_capacity(64 << 10, File::open(FILE)?), names)
}

fn find<const N: usize>(mut list: impl BufRead, names: [&str; N]) -> io::Result<[KernelFunction; N]> {
    let mut found = [KernelFunction::default(); N];
    let mut line = String::new();
    let (mut left, mut open) = (N, None);
    while left > 0 || open.is_some() {
        line.clear();
        if list.read_line(&mut line)? == 0 {
            break;
        }
        // Of some hundred thousand lines, few are of interest. A module's have its name behind the symbol's.
        if open.is_none() && !names.iter().any(|name| line.trim_ascii_end().ends_with(name)) {
            continue;
        }
        let mut words = line.split_ascii_whitespace();
        let Some(Ok(at)) = words.next().map(|w| u64::from_str_radix(w, 16)) else { continue };
        let (kind, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        // A function ends at the next symbol with a different address.
        if let Some(i) = open.filter(|&i: &usize| at > found[i].at) {
            found[i].len = at - found[i].at;
            open = None;
        }
        if let Some(i) = names.iter().position(|n| *n == name)
            && matches!(kind, "T" | "t")
            && at != 0
            && found[i].at == 0
        {
            found[i].at = at;
            (left, open) = (left - 1, Some(i));
        }
    }
    Ok(found.map(|p| if p.len <= LONGEST { p } else { KernelFunction::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "ffffffff81000000 T _text\nffffffff81000100 t early\nffffffff81000200 T wanted\n\
                        ffffffff81000200 t alias\nffffffff81000280 T next\nffffffff81000300 D other\nnonsense\n";

    #[test]
    fn a_function_reaches_to_the_next() {
        let place = |at, len| KernelFunction { at, len };
        let found = find(LIST.as_bytes(), ["wanted", "missing", "other", "_text"]).expect("read");
        let none = KernelFunction::default();
        assert_eq!(
            found,
            [place(0xffff_ffff_8100_0200, 0x80), none, none, place(0xffff_ffff_8100_0000, 0x100)]
        );
    }

    #[test]
    fn addresses_that_are_not_told_are_none() {
        let hidden = LIST.replace("ffffffff81000200", "0000000000000000");
        assert_eq!(find(hidden.as_bytes(), ["wanted"]).expect("read"), [KernelFunction::default()]);
    }
}
