//! One recording in several traces, and the end of a recording from memory: each is a complete trace.

use crate::trace_support;

use std::cell::RefCell;
use std::rc::Rc;

use pfi::record::{Process, Record};
use pfi::ring::{BlockRing, IntoRing};
use pfi::*;
use trace_support::*;

type Writer = Encoder<Box<dyn Output>>;

/// A writer whose bytes can be inspected.
#[derive(Clone, Default)]
struct Shared(Rc<RefCell<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Output for Shared {
    fn seekable(&self) -> bool {
        true
    }

    fn write_at(&mut self, pos: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.0.borrow_mut().write_at(pos, bytes)
    }
}

fn one_token(enc: &mut Writer, pid: u32, seq: u64) {
    let t = 1_000_000 + seq as i64 * 1_000_000;
    let (entry, n_tokens) = (record::Entry::Decode, Some(1));
    let r = record::Token {
        seq,
        pid,
        tid: pid,
        entry,
        n_tokens,
        t,
        dur: 900_000,
        cut: false,
        device: pfi::record::Device::Idle,
    };
    enc.token(&r).expect("written");
}

fn process(enc: &mut Writer, pid: u32) {
    enc.process(&Process { pid, engine: 0, exe: "/bin/engine", cmdline: "engine" }).expect("written");
}

/// Content of a trace: damage as text, kinds of records, and token numbers with their processes.
fn read(bytes: &[u8]) -> (Vec<String>, Vec<String>, Vec<(u64, u32)>) {
    let trace = Trace::from_bytes(bytes.to_vec()).expect("a trace");
    let (mut kinds, mut tokens, mut pids) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..trace.blocks().len() {
        let block = trace.block(i).expect("whole");
        for record in block.records() {
            match record.expect("decodes") {
                Record::Token(t) => tokens.push((t.seq, t.pid)),
                Record::Process(p) => pids.push(p.pid),
                Record::Header(h) => kinds.push(format!("header {}", h.real_ns)),
                Record::Engine(e) => kinds.push(format!("engine {}", e.version)),
                Record::Footer(f) => kinds.push(format!("footer {}", f.end)),
                _ => {}
            }
        }
    }
    for (_, pid) in &tokens {
        assert!(pids.contains(pid), "process {pid} is not told");
    }
    kinds.extend(pids.iter().filter(|&&p| p == 1).map(|_| "process 1".to_owned()));
    (trace.verify().iter().map(ToString::to_string).collect(), kinds, tokens)
}

#[test]
fn a_turn_makes_two_whole_traces() {
    let (a, b) = (Shared::default(), Shared::default());
    let first: Box<dyn Output> = Box::new(a.clone());
    let mut enc = Encoder::new(first, EncoderConfig::default(), &header()).expect("begun");
    enc.engine(&record::Engine { id: 0, version: "b1", layout: "l" }).expect("written");
    process(&mut enc, 1);
    process(&mut enc, 2);
    (0..10).for_each(|i| one_token(&mut enc, 1 + i as u32 % 2, i));
    enc.forget_process(1);
    let end = record::Footer { end: "size reached", ..footer() };
    let later = record::Header { real_ns: 99, ..header() };
    enc.rotate(Box::new(b.clone()), &end, &later).map(drop).expect("turned");
    let whole = a.0.borrow().clone();
    (10..15).for_each(|i| one_token(&mut enc, 2, i));
    enc.finish(&footer()).map(drop).expect("ended");
    assert_eq!(*a.0.borrow(), whole, "a trace that has ended is left alone");

    let (damage, kinds, tokens) = read(&whole);
    assert_eq!(damage, [""; 0]);
    assert_eq!(tokens, (0..10).map(|i| (i, 1 + i as u32 % 2)).collect::<Vec<_>>());
    assert_eq!(kinds.iter().filter(|k| *k == "footer size reached").count(), 1);
    let (damage, kinds, tokens) = read(&b.0.borrow());
    assert_eq!(damage, [""; 0]);
    assert_eq!(tokens, (10..15).map(|i| (i, 2)).collect::<Vec<_>>());
    let first_kinds: Vec<&str> = kinds.iter().take(2).map(String::as_str).collect();
    assert_eq!(first_kinds, ["header 99", "engine b1"]);
    assert_eq!(kinds.last().map(String::as_str), Some("footer target exited"));
    assert!(!kinds.contains(&"process 1".to_owned()), "it had ended before");
}

#[test]
fn a_full_disk_at_a_turn_is_an_error_and_the_old_trace_is_whole() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    impl Output for Full {
        fn seekable(&self) -> bool {
            true
        }
        fn write_at(&mut self, _: u64, _: &[u8]) -> std::io::Result<()> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
    }
    let a = Shared::default();
    let first: Box<dyn Output> = Box::new(a.clone());
    let mut enc = Encoder::new(first, EncoderConfig::default(), &header()).expect("begun");
    process(&mut enc, 2);
    one_token(&mut enc, 2, 0);
    assert!(enc.rotate(Box::new(Full), &footer(), &header()).is_err());
    assert!(matches!(enc.seal_now(), Err(WriteError::Stopped { .. })));
    let (damage, _, tokens) = read(&a.0.borrow());
    assert_eq!((damage, tokens), (vec![], vec![(0, 2)]));
}

/// A recording of `n` tokens, 1 ms apart, into a ring, in small blocks.
fn into_ring(ring: &Rc<RefCell<BlockRing>>, n: u64) -> Writer {
    let out: Box<dyn Output> = Box::new(IntoRing(ring.clone()));
    let cfg = EncoderConfig { block_bytes: 4 << 10, ..EncoderConfig::default() };
    let mut enc = Encoder::new(out, cfg, &header()).expect("begun");
    process(&mut enc, 2);
    for i in 0..n {
        one_token(&mut enc, 2, i);
        if ring.borrow().unstamped() {
            ring.borrow_mut().stamp(&[i]);
        }
    }
    enc
}

fn written(ring: &Rc<RefCell<BlockRing>>, enc: &mut Writer) -> Vec<u8> {
    enc.seal_now().expect("sealed");
    let end = record::Footer { end: "ring written out", ..footer() };
    let first = enc.loose(&header(), None).expect("a block");
    let last = enc.loose(&header(), Some(&end)).expect("a block");
    let mut out = Vec::new();
    ring.borrow().write(&mut out, &first, &last).expect("written");
    out
}

#[test]
fn a_ring_keeps_the_last_of_a_recording() {
    let ring = Rc::new(RefCell::new(BlockRing::new(2_000_000_000, 1 << 30)));
    let mut enc = into_ring(&ring, 20_000);
    let (damage, kinds, tokens) = read(&written(&ring, &mut enc));
    assert_eq!(damage, [""; 0]);
    assert_eq!(kinds.last().map(String::as_str), Some("footer ring written out"));
    let (first, last) = (tokens[0].0, tokens[tokens.len() - 1].0);
    assert_eq!(last, 19_999);
    assert_eq!(tokens.len() as u64, last - first + 1, "no token is missing in between");
    assert!((15_000..=18_000).contains(&first), "2 s, and the block in which they begin: {first}");
    // Statistics at its beginning: as of the end of the block before its first.
    let base = ring.borrow().base()[0];
    assert!(base < first + 2 && base + 2 > first, "{base} {first}");
    assert!(ring.borrow().dropped() > 0);

    // Recording continues, and the ring can be written again.
    (20_000..20_010).for_each(|i| one_token(&mut enc, 2, i));
    let (damage, _, tokens) = read(&written(&ring, &mut enc));
    assert_eq!((damage.len(), tokens[tokens.len() - 1].0), (0, 20_009));
}

#[test]
fn a_ring_keeps_within_its_bytes() {
    let ring = Rc::new(RefCell::new(BlockRing::new(u64::MAX, 20_000)));
    let mut enc = into_ring(&ring, 20_000);
    assert!((10_000..=20_000).contains(&ring.borrow().bytes()), "{}", ring.borrow().bytes());
    let (damage, _, tokens) = read(&written(&ring, &mut enc));
    assert!(damage.is_empty() && tokens[tokens.len() - 1].0 == 19_999);
    assert_eq!(BlockRing::new(0, 0).base(), [0; 0]);
}
