//! Why there are no times, on the standard error of the program.

/// Why CUPTI is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    NoLibrary,
    NoFunction,
    /// The records of this version of CUPTI are not known.
    Unknown(u32),
    /// A function of CUPTI has returned this CUptiResult.
    Refused(&'static str, i32),
}

/// A line of text.
struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Line {
    fn put(&mut self, text: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(self.len).zip(text) {
            *to = *from;
            self.len += 1;
        }
    }

    fn put_number(&mut self, number: u32) {
        let mut place = 1_000_000_000;
        while place > 0 {
            if number >= place || place == 1 {
                self.put(&[b'0' + (number / place % 10) as u8]);
            }
            place /= 10;
        }
    }
}

fn line(problem: Problem) -> Line {
    let mut line = Line { bytes: [0; 256], len: 0 };
    line.put(b"profinfer: device times of CUDA are not recorded: ");
    match problem {
        Problem::NoLibrary => line.put(
            b"no libcupti.so.13, .12 or .11 was found beside the CUDA runtime or by its name (name its folder in \
              LD_LIBRARY_PATH)",
        ),
        Problem::NoFunction => line.put(b"libcupti.so does not have all functions of CUPTI"),
        Problem::Unknown(version) => {
            line.put(b"CUPTI's API version ");
            line.put_number(version);
            line.put(b" is not known");
        }
        Problem::Refused(function, status) => {
            line.put(function.as_bytes());
            line.put(b" failed with CUptiResult ");
            line.put_number(status.unsigned_abs());
        }
    }
    line.put(b"\n");
    line
}

/// Says it.
pub fn problem(problem: Problem) {
    unsafe extern "C" {
        fn write(file: i32, bytes: *const u8, n: usize) -> isize;
    }
    const STANDARD_ERROR: i32 = 2;
    let line = line(problem);
    // SAFETY: `len` bytes are there.
    unsafe { write(STANDARD_ERROR, line.bytes.as_ptr(), line.len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_one_line() {
        let said = |problem| {
            let line = line(problem);
            let text = String::from_utf8(line.bytes[..line.len].to_vec()).unwrap();
            assert!(text.ends_with('\n') && text.len() < 256, "{text}");
            text.trim_end().rsplit_once("recorded: ").unwrap().1.to_owned()
        };
        assert_eq!(said(Problem::Unknown(140_000)), "CUPTI's API version 140000 is not known");
        assert_eq!(said(Problem::Unknown(0)), "CUPTI's API version 0 is not known");
        assert_eq!(said(Problem::Refused("cuptiSubscribe", 39)), "cuptiSubscribe failed with CUptiResult 39");
        assert!(said(Problem::NoLibrary).contains("LD_LIBRARY_PATH"));
        assert!(said(Problem::NoFunction).contains("functions"));
    }
}
