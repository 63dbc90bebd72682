//! A block grows on disk: wherever the writer stops, the data written so far is a valid trace.

use crate::trace_support;

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use pfi::record::Record;
use pfi::*;
use trace_support::*;

/// The operations on a file, in order.
#[derive(Clone)]
enum Step {
    Append(Vec<u8>),
    Overwrite(usize, Vec<u8>),
}

/// Records every step; the disk is full after `room` bytes.
#[derive(Clone)]
struct Noted {
    steps: Rc<RefCell<Vec<Step>>>,
    room: usize,
}

impl Noted {
    fn new(room: usize) -> Noted {
        Noted { steps: Rc::default(), room }
    }

    /// The file after these steps.
    fn file(steps: &[Step]) -> Vec<u8> {
        let mut file = Vec::new();
        for step in steps {
            match step {
                Step::Append(bytes) => file.extend_from_slice(bytes),
                Step::Overwrite(at, bytes) => file[*at..at + bytes.len()].copy_from_slice(bytes),
            }
        }
        file
    }
}

impl Write for Noted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(self.room);
        self.room -= n;
        if n == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.steps.borrow_mut().push(Step::Append(bytes[..n].to_vec()));
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output for Noted {
    fn seekable(&self) -> bool {
        true
    }

    fn write_at(&mut self, pos: u64, bytes: &[u8]) -> io::Result<()> {
        assert_eq!(bytes.len(), BLOCK_HEADER, "only headers are written again");
        assert!(pos % 4096 <= 4096 - BLOCK_HEADER as u64, "in one page, so all or nothing");
        self.steps.borrow_mut().push(Step::Overwrite(pos as usize, bytes.to_vec()));
        Ok(())
    }
}

/// Records 40 tokens with a flush after each; returns the error, if any.
fn recorded(out: &Noted) -> Option<WriteError> {
    let cfg = EncoderConfig { block_bytes: 4096, flush_ns: 0, ..EncoderConfig::default() };
    let run = || {
        let mut e = Encoder::new(out.clone(), cfg, &header())?;
        for seq in 0..40 {
            e.token(&token(seq, 1_000_000 + seq * 40_000_000, 39_000_000))?;
            let plan = e.plan(PID, 3, &[])?;
            let run = SliceRun { graph: seq, ith: 0, tid: 9, plan, first: 0, barrier: true };
            let start = 2_000_000 + seq * 40_000_000;
            e.slices(&run, &[Slice { start, end: Some(start + 100_000) }; 100])?;
            e.tick(start)?;
        }
        e.finish(&footer()).map(drop)
    };
    run().err()
}

/// Readable tokens, and the kinds of damage.
fn readable(file: Vec<u8>) -> (Vec<u64>, Vec<DamageKind>) {
    let trace = Trace::from_bytes(file).unwrap();
    let mut seen = Vec::new();
    for i in 0..trace.blocks().len() {
        for r in trace.block(i).expect("the last header matches what is there").records() {
            if let Record::Token(t) = r.unwrap() {
                seen.push(t.seq);
            }
        }
    }
    (seen, trace.verify().into_iter().map(|d| d.kind).collect())
}

#[test]
fn stopped_at_any_byte_it_keeps_all_that_was_flushed() {
    let out = Noted::new(usize::MAX);
    assert!(recorded(&out).is_none());
    let steps = out.steps.borrow();
    let overwritten = steps.iter().filter(|s| matches!(s, Step::Overwrite(..))).count();
    assert!(overwritten > 30, "{overwritten}");
    let mut flushed = 0;
    for (i, step) in steps.iter().enumerate() {
        if let Step::Append(bytes) = step {
            for cut in 0..bytes.len() {
                let mut file = Noted::file(&steps[..i]);
                file.extend_from_slice(&bytes[..cut]);
                if file.len() <= FILE_HEADER {
                    continue;
                }
                let (seen, damage) = readable(file);
                assert!(seen.len() >= flushed && seen.iter().copied().eq(0..seen.len() as u64));
                let other = |k: &&DamageKind| !matches!(k, DamageKind::TornTail | DamageKind::NoFooter);
                assert_eq!(damage.iter().find(other), None, "step {i}, {cut} bytes");
            }
        }
        if i > 0 {
            flushed = readable(Noted::file(&steps[..=i])).0.len();
        }
    }
    let file = Noted::file(&steps);
    assert_eq!(readable(file.clone()), ((0..40).collect(), Vec::new()));
    assert!(
        (3..6).contains(&Trace::from_bytes(file).unwrap().blocks().len()),
        "blocks end when they are full"
    );
}

#[test]
fn a_full_disk_is_an_error_and_leaves_what_was_flushed() {
    for room in (1000..13_000).step_by(97) {
        let out = Noted::new(room);
        let error = recorded(&out).unwrap_or_else(|| panic!("{room} bytes are enough")).to_string();
        assert!(error.contains("what was written before is intact"), "{error}");
        let file = Noted::file(&out.steps.borrow());
        assert_eq!(file.len(), room);
        let (seen, damage) = readable(file);
        assert!(seen.iter().copied().eq(0..seen.len() as u64) && seen.len() + 2 >= room / 500);
        assert!(damage.contains(&DamageKind::NoFooter));
    }
}

#[test]
fn after_an_error_nothing_more_is_written() {
    let mut out = Noted::new(500);
    let mut e =
        Encoder::new(&mut out, EncoderConfig { flush_ns: 0, ..Default::default() }, &header()).unwrap();
    let text = "x".repeat(600);
    e.notice(&record::Notice { t: 1, text: &text }).unwrap();
    assert!(matches!(e.tick(2), Err(WriteError::Io { .. })));
    assert!(matches!(e.tick(u64::MAX), Ok(()) | Err(WriteError::Stopped { .. })));
    assert!(matches!(e.token(&token(0, 1, 2)), Err(WriteError::Stopped { .. })));
    assert!(matches!(e.finish(&footer()), Err(WriteError::Stopped { .. })));
}

#[test]
fn a_file_can_be_read_while_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pfi");
    let file = std::fs::File::create(&path).unwrap();
    assert!(file.seekable());
    let mut e = Encoder::new(file, EncoderConfig::default(), &header()).unwrap();
    for seq in 0..10u64 {
        let second = seq * 1_000_000_000;
        e.token(&token(seq, second, 9)).unwrap();
        e.tick(second).unwrap();
        e.tick(second + 999_999_999).unwrap();
        let tokens = |n| assert_eq!(readable(std::fs::read(&path).unwrap()).0.len() as u64, n);
        if seq > 0 {
            tokens(seq);
        }
        e.tick(second + 1_000_000_000).unwrap();
        tokens(seq + 1);
        assert_eq!(e.stats().blocks, 0);
        assert_eq!(e.bytes_written(), std::fs::metadata(&path).unwrap().len());
    }
    e.finish(&footer()).unwrap();
    assert_eq!(readable(std::fs::read(&path).unwrap()), ((0..10).collect(), Vec::new()));
}
