//! Two command lines, and the pieces in which they differ: any choice of them makes a command line between the two.

use std::path::Path;

use serde::Serialize;

use crate::lines::quoted;

/// A piece of one command line or of both that is not the same in the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// `environment`, `wrapper`, `program` or `argument`.
    pub kind: Kind,
    /// A variable, a flag, or the number of an argument without one (`#1`); empty for wrapper and program.
    pub name: String,
    /// As it is written in each, quoted for a shell; null: that one does not have it.
    pub good: Option<String>,
    pub bad: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A variable before the command.
    Environment,
    /// What is in front of the program that both run, such as `taskset -c 0`.
    Wrapper,
    Program,
    Argument,
}

/// Words by kind and name.
type Piece = ((Kind, String), Vec<String>);

/// A command in pieces, in the order in which they are written.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pieces(Vec<Piece>);

/// Both commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Both {
    good: Pieces,
    bad: Pieces,
    keys: Vec<(Kind, String)>,
}

/// Why there is nothing to compare.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NoDifference {
    #[error("a quote is not closed in: {0}")]
    Quote(String),
    #[error("no program in: {0}")]
    NoProgram(String),
    #[error("both commands are the same")]
    Same,
}

impl Both {
    /// Of two command lines as a shell takes them: words, quotes, and variables in front. Nothing is expanded.
    ///
    /// # Errors
    /// One of them is no command, or they are the same.
    pub fn new(good: &str, bad: &str) -> Result<Both, NoDifference> {
        let [(good_vars, good), (bad_vars, bad)] = [read(good)?, read(bad)?];
        let (at_good, at_bad) = program(&good, &bad);
        let good = Pieces::new(good_vars, &good, at_good);
        let bad = Pieces::new(bad_vars, &bad, at_bad);
        let both = good.0.iter().chain(&bad.0).map(|(key, _)| key);
        let mut keys: Vec<(Kind, String)> =
            both.filter(|key| good.get(key) != bad.get(key)).cloned().collect();
        keys.sort();
        keys.dedup();
        if keys.is_empty() {
            return Err(NoDifference::Same);
        }
        Ok(Both { good, bad, keys })
    }

    /// The pieces that differ.
    pub fn differences(&self) -> Vec<Difference> {
        let shown = |words: &Vec<String>| words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        let of = |key: &(Kind, String)| Difference {
            kind: key.0,
            name: key.1.clone(),
            good: self.good.get(key).map(shown),
            bad: self.bad.get(key).map(shown),
        };
        self.keys.iter().map(of).collect()
    }

    /// The good command with the chosen differences as in the bad one, as indices of [`Self::differences`].
    pub fn command(&self, chosen: &[usize]) -> Vec<String> {
        let taken: Vec<&(Kind, String)> = chosen.iter().filter_map(|i| self.keys.get(*i)).collect();
        // By kind: pieces of the good command in its order, then those that only the bad one has.
        let mut order: Vec<&(Kind, String)> = self.good.0.iter().map(|(key, _)| key).collect();
        let added = self.bad.0.iter().map(|(key, _)| key).filter(|key| self.good.get(key).is_none());
        order.extend(added.filter(|key| taken.contains(key)));
        common::order::by_key(&mut order, |key| (key.0 as u64, 0));
        let of = |key: &(Kind, String)| if taken.contains(&key) { &self.bad } else { &self.good }.get(key);
        let mut words: Vec<String> = order.into_iter().filter_map(of).flatten().cloned().collect();
        if words.first().is_some_and(|word| variable(word).is_some()) {
            words.insert(0, "env".to_owned());
        }
        words
    }
}

impl Pieces {
    /// `at` is the index of the program.
    fn new(variables: Vec<String>, words: &[String], at: usize) -> Pieces {
        let mut out: Vec<Piece> = Vec::new();
        let mut put = |kind: Kind, name: &str, words: &[String]| {
            let key = (kind, name.to_owned());
            match out.iter_mut().find(|(other, _)| *other == key) {
                Some((_, known)) => known.extend_from_slice(words),
                None if words.is_empty() => {}
                None => out.push((key, words.to_vec())),
            }
        };
        for text in &variables {
            put(Kind::Environment, variable(text).unwrap_or_default(), std::slice::from_ref(text));
        }
        let (wrapper, rest) = words.split_at(at.min(words.len()));
        put(Kind::Wrapper, "", wrapper);
        let Some((program, rest)) = rest.split_first() else { return Pieces(out) };
        put(Kind::Program, "", std::slice::from_ref(program));
        let (mut at, mut bare) = (0, 0);
        while let Some(word) = rest.get(at) {
            let values = rest.iter().skip(at + 1).take_while(|word| !is_flag(word)).count();
            // A subcommand and its like: each is a piece of its own.
            let (name, end) = match (is_flag(word), word.split_once('=')) {
                (false, _) => {
                    bare += 1;
                    (format!("#{bare}"), at + 1)
                }
                (true, Some((name, _))) => (name.to_owned(), at + 1 + values),
                (true, None) => (word.clone(), at + 1 + values),
            };
            put(Kind::Argument, &name, rest.get(at..end).unwrap_or_default());
            at = end;
        }
        Pieces(out)
    }

    fn get(&self, key: &(Kind, String)) -> Option<&Vec<String>> {
        self.0.iter().find(|(other, _)| other == key).map(|(_, words)| words)
    }
}

/// Variables in front, and the words of the command.
fn read(text: &str) -> Result<(Vec<String>, Vec<String>), NoDifference> {
    let mut words = shlex::split(text).ok_or_else(|| NoDifference::Quote(text.to_owned()))?;
    let variables = words.iter().take_while(|word| variable(word).is_some()).count();
    let command = words.split_off(variables);
    if command.is_empty() {
        return Err(NoDifference::NoProgram(text.to_owned()));
    }
    Ok((words, command))
}

/// The name of a variable that a word sets.
fn variable(word: &str) -> Option<&str> {
    let (name, _) = word.split_once('=')?;
    let first = name.chars().next()?;
    let letters = name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
    (letters && !first.is_ascii_digit()).then_some(name)
}

/// A negative number is a value.
fn is_flag(word: &str) -> bool {
    word.starts_with('-') && word.len() > 1 && word.parse::<f64>().is_err()
}

/// Indices of the program that both run, behind a wrapper of one of them; the first words if there is none.
fn program(good: &[String], bad: &[String]) -> (usize, usize) {
    let name = |word: &String| Path::new(word).file_name().map(std::ffi::OsStr::to_owned);
    let same = |(i, j): &(usize, usize)| {
        good.get(*i).zip(bad.get(*j)).is_some_and(|(a, b)| !is_flag(a) && name(a) == name(b))
    };
    let at_start = (0..good.len()).map(|i| (i, 0)).chain((0..bad.len()).map(|j| (0, j)));
    at_start.filter(same).min_by_key(|(i, j)| i + j).unwrap_or((0, 0))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    fn both(good: &str, bad: &str) -> Both {
        Both::new(good, bad).unwrap()
    }

    fn told(both: &Both) -> Vec<String> {
        let text = |text: Option<String>| text.unwrap_or_else(|| "nothing".into());
        both.differences()
            .into_iter()
            .map(|d| format!("{}: {} > {}", d.name, text(d.good), text(d.bad)))
            .collect()
    }

    #[test]
    fn flags_are_compared_with_their_values() {
        let both =
            both("bench run -m 'a b.gguf' -t 1 -ngl -1 -fa", "bench run -t 4 -m 'a b.gguf' -ngl 0 --no-mmap");
        assert_eq!(
            told(&both),
            [
                "--no-mmap: nothing > --no-mmap",
                "-fa: -fa > nothing",
                "-ngl: -ngl -1 > -ngl 0",
                "-t: -t 1 > -t 4"
            ]
        );
        assert_eq!(both.command(&[]).join(" "), "bench run -m a b.gguf -t 1 -ngl -1 -fa");
        assert_eq!(both.command(&[1, 3]).join(" "), "bench run -m a b.gguf -t 4 -ngl -1");
        assert_eq!(both.command(&[0, 1, 2, 3]).join(" "), "bench run -m a b.gguf -t 4 -ngl 0 --no-mmap");
    }

    #[test]
    fn variables_wrappers_and_builds_are_pieces() {
        let both = both("A=1 old/bench -t 2 x=y", "B='2 3' A=1 nice -n 5 new/bench -t 2 x=y");
        assert_eq!(told(&both), ["B: nothing > 'B=2 3'", ": nothing > nice -n 5", ": old/bench > new/bench"]);
        assert_eq!(both.command(&[0]), ["env", "A=1", "B=2 3", "old/bench", "-t", "2", "x=y"]);
        assert_eq!(both.command(&[1, 2]).join(" "), "env A=1 nice -n 5 new/bench -t 2 x=y");
        let other = Both::new("one -t 1", "two -t 1").unwrap();
        assert_eq!(other.command(&[0]), ["two", "-t", "1"]);
    }

    #[test]
    fn a_flag_that_is_given_again_is_one_piece() {
        let both = both("p -ot a --x=1 -ot b", "p -ot a --x=2 -ot c");
        assert_eq!(told(&both), ["--x: --x=1 > --x=2", "-ot: -ot a -ot b > -ot a -ot c"]);
    }

    #[test]
    fn what_cannot_be_compared_is_said() {
        assert_eq!(Both::new("a 'b", "a"), Err(NoDifference::Quote("a 'b".into())));
        assert_eq!(Both::new("A=1", "a"), Err(NoDifference::NoProgram("A=1".into())));
        assert_eq!(Both::new("a -t  1", "a '-t' 1"), Err(NoDifference::Same));
    }
}
