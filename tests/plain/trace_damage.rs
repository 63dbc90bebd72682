//! Damaged, truncated and hostile traces: nothing panics, only the damaged block is lost, and the reader reports it.

use crate::trace_support;

use pfi::record::*;
use pfi::*;
use proptest::prelude::*;
use trace_support::*;

/// Reads everything readable, through every decoder. Returns the numbers of the intact blocks.
fn read_all(trace: &Trace) -> Vec<u32> {
    let mut good = Vec::new();
    for i in 0..trace.blocks().len() {
        let Ok(block) = trace.block(i) else { continue };
        good.push(block.seq());
        for record in block.records() {
            match record {
                Ok(Record::Slices(s)) => assert!(slice_iter(&s).count() <= s.n as usize),
                Ok(Record::OpCounts(c)) => assert!(counts(&c).count() <= c.data.len()),
                Ok(Record::OpCpus(c)) => assert!(cpu_changes(&c).count() <= c.data.len()),
                Ok(Record::Experts(e)) => assert!(expert_ids(&e).count() <= e.data.len()),
                Ok(Record::Sample(s)) => assert!(sensor_values(&s).count() <= s.data.len()),
                Ok(Record::Plan(p)) => assert!(plan_hits(&p).count() <= p.hits.0.len()),
                Ok(Record::Tensor(t)) => assert!(t.tensor.src.len() <= 16 && t.tensor.name.len() <= 255),
                Ok(_) => {}
                Err(damage) => assert!(!damage.to_string().is_empty()),
            }
        }
    }
    for damage in trace.verify() {
        assert!(!damage.to_string().is_empty());
    }
    good
}

/// What the tests below damage: each kind of record.
#[test]
fn the_small_file_has_every_kind_of_record() {
    let found = kinds(&small_file());
    let missing: Vec<&str> =
        (0..KIND_NAMES.len()).filter(|k| !found.contains(k)).map(|k| KIND_NAMES[k]).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_file_cut_at_any_byte_reads_up_to_its_last_whole_block() {
    let file = small_file();
    let spans = spans(&file);
    assert!(matches!(Trace::from_bytes(Vec::new()), Err(ReadError::Empty)));
    for cut in 1..file.len() {
        let trace = match Trace::from_bytes(file[..cut].to_vec()) {
            Ok(trace) => trace,
            Err(e) => {
                assert!(cut < FILE_HEADER && matches!(e, ReadError::NotATrace(_)), "at {cut}: {e}");
                continue;
            }
        };
        let whole = spans.iter().filter(|s| s.1 <= cut).count();
        assert_eq!(read_all(&trace), (0..whole as u32).collect::<Vec<_>>(), "cut at {cut}");
        let damage = trace.damage();
        let end = if whole == 0 { FILE_HEADER } else { spans[whole - 1].1 };
        let torn = Damage { offset: end as u64, bytes: (cut - end) as u64, kind: DamageKind::TornTail };
        assert_eq!(damage.contains(&torn), cut > end, "cut at {cut}: {damage:?}");
        assert_eq!(damage.last().unwrap().kind, DamageKind::NoFooter);
        assert_eq!(damage.len(), 1 + usize::from(cut > end));
    }
}

fn end(bytes: &[u8]) -> End {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, bytes).unwrap();
    End::of(&mut file).unwrap()
}

#[test]
fn how_a_trace_ended_is_told_without_reading_it_whole() {
    let file = small_file();
    let first = spans(&file)[0].1;
    for cut in 0..file.len() {
        assert_eq!(end(&file[..cut]), if cut < first { End::Empty } else { End::Cut }, "cut at {cut}");
    }
    assert_eq!(end(&file), End::Clean);
    assert_eq!(end(&[&file[..], &[0]].concat()), End::Cut);
    let zeros = [&file[..FILE_HEADER], &[0; 100]].concat();
    for other in [b"hello".as_slice(), &zeros, &file[1..]] {
        assert_eq!(end(other), End::Cut, "what is no trace is not called an empty one");
    }
}

#[test]
fn a_flipped_byte_loses_only_the_block_hit() {
    let file = small_file();
    let spans = spans(&file);
    for at in 0..file.len() {
        for mask in [1, 0x80, 0xff] {
            let mut bad = file.clone();
            bad[at] ^= mask;
            let trace = Trace::from_bytes(bad).unwrap();
            let hit = spans.iter().position(|s| (s.0..s.1).contains(&at));
            let expected: Vec<u32> = (0..spans.len()).filter(|i| Some(*i) != hit).map(|i| i as u32).collect();
            assert_eq!(read_all(&trace), expected, "byte {at}");
            let all = trace.verify();
            let place = hit.map_or((0, FILE_HEADER), |i| (spans[i].0, spans[i].1 - spans[i].0));
            let named = |d: &Damage| (d.offset as usize, d.bytes as usize) == place;
            assert!(all.iter().any(named), "byte {at}: {all:?}");
        }
    }
}

#[test]
fn lost_added_and_repeated_bytes_are_named() {
    let file = small_file();
    let spans = spans(&file);
    let kinds = |bytes: Vec<u8>| {
        let trace = Trace::from_bytes(bytes).unwrap();
        (read_all(&trace), trace.verify().into_iter().map(|d| d.kind).collect::<Vec<_>>())
    };
    let n = spans.len() as u32;
    let without = |i: u32| (0..n).filter(|x| *x != i).collect::<Vec<_>>();
    let missing = DamageKind::Missing { from: 1, to: 1 };
    let whole = [&file[..spans[1].0], &file[spans[1].1..]].concat();
    assert_eq!(kinds(whole), (without(1), vec![missing.clone()]));
    let inside = [&file[..spans[1].0 + 100], &file[spans[1].0 + 150..]].concat();
    assert_eq!(kinds(inside), (without(1), vec![DamageKind::Skipped, missing]));
    let added = [&file[..spans[1].0], b"garbage", &file[spans[1].0..]].concat();
    assert_eq!(kinds(added), ((0..n).collect(), vec![DamageKind::Skipped]));
    let (good, damage) = kinds([&file[..], &file[..]].concat());
    assert_eq!(good, (0..n).collect::<Vec<_>>(), "a second recording does not mix with the first");
    assert!(damage.contains(&DamageKind::OutOfOrder { seq: 0 }));
    assert_eq!(kinds(file[FILE_HEADER..].to_vec()).0, (0..n).collect::<Vec<_>>());
}

#[test]
fn newer_versions_are_told_apart() {
    let mut file = small_file();
    let start = spans(&file)[0].0;
    file[8] = 2;
    let crc = crc32c::crc32c(&file[..12]);
    file[12..16].copy_from_slice(&crc.to_le_bytes());
    let error = Trace::from_bytes(file.clone()).err().unwrap().to_string();
    assert!(error.contains("version 2.") && error.contains("newer"), "{error}");
    file[8..12].copy_from_slice(&[1, 0, MINOR as u8 + 1, 0]);
    let crc = crc32c::crc32c(&file[..12]);
    file[12..16].copy_from_slice(&crc.to_le_bytes());
    assert!(Trace::from_bytes(file.clone()).unwrap().is_newer_minor());
    file[start + 8] = 3;
    seal(&mut file, start);
    assert!(Trace::from_bytes(file).unwrap().damage().iter().any(|d| d.to_string().contains("version 3")));
}

/// A file with one block that has this payload.
fn file_of(payload: &[u8]) -> Vec<u8> {
    let mut file = small_file();
    let start = spans(&file)[0].0;
    file.truncate(start + BLOCK_HEADER);
    file.extend_from_slice(payload);
    file[start + 12..start + 16].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    seal(&mut file, start);
    file
}

#[test]
fn unknown_kinds_are_skipped_and_missing_fields_are_zero() {
    // Kind 99; a TypeDef with an extra field; padding; a Split with a tenth field; an invalid text; a length past
    // the end.
    let payload =
        b"\x03\x63\xff\xff\x06\x06\x09\x00\x20\x12\x77\0\x06\x0c\x83\x04\x08\x01\x7f\x03\x05\x07\x41\x02\x06\x01\x7f\x06";
    let trace = Trace::from_bytes(file_of(payload)).unwrap();
    let records: Vec<_> = trace.block(0).unwrap().records().collect();
    assert_eq!(records.len(), 5, "{records:?}");
    assert_eq!(records[0], Ok(Record::TypeDef(TypeDef { id: 9, name: "", block: 32, bytes: 18 })));
    assert!(
        matches!(&records[1], Ok(Record::Split(s)) if s.seq == 5 && s.graph.is_none() && s.dur == 0 && !s.cut)
    );
    assert!(records[2].is_err());
    assert_eq!(records[3], Ok(Record::TypeDef(TypeDef { id: 1, name: "", block: 0, bytes: 0 })));
    assert!(records[4].as_ref().is_err_and(|d| d.to_string().contains("exceeds the block")));
    let hostile = b"\x08\x11\x00\xff\xff\xff\xff\xff\x7f";
    assert!(Trace::from_bytes(file_of(hostile)).unwrap().block(0).unwrap().records().all(|r| r.is_err()));
}

#[test]
fn other_files_are_named() {
    for (bytes, what) in [
        (&b"\x7fELF\x02\x01"[..], "ELF"),
        (b"GGUF\x03\0\0\0", "model"),
        (b"{\"a\": 1}", "JSON"),
        (b"plain words\n", "text"),
        (b"\x01\x02\x03", "binary"),
        (b"\x89PFI\n\n", "text mode"),
    ] {
        let error = Trace::from_bytes(bytes.to_vec()).err().unwrap().to_string();
        assert!(error.contains("not a profinfer trace") && error.contains(what), "{error}");
    }
}

#[test]
fn files_are_opened_by_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pfi");
    assert!(matches!(Trace::open(&path), Err(ReadError::Io(_))));
    std::fs::write(&path, b"").unwrap();
    assert!(matches!(Trace::open(&path), Err(ReadError::Empty)));
    std::fs::write(&path, small_file()).unwrap();
    assert!(Trace::open(&path).unwrap().verify().is_empty());
    assert!(Trace::open(dir.path()).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
        if let Ok(trace) = Trace::from_bytes(bytes) {
            read_all(&trace);
        }
    }

    #[test]
    fn random_payloads_with_right_checksums_never_panic(payload in prop::collection::vec(any::<u8>(), 0..2000)) {
        read_all(&Trace::from_bytes(file_of(&payload)).unwrap());
    }

    #[test]
    fn changed_payloads_with_right_checksums_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut file = small_file();
        let spans = spans(&file);
        for (at, byte) in &edits {
            let at = at.index(file.len());
            let header = spans.iter().any(|s| (s.0..s.0 + BLOCK_HEADER).contains(&at));
            if !header && at >= FILE_HEADER {
                file[at] = *byte;
            }
        }
        spans.iter().for_each(|s| seal(&mut file, s.0));
        let trace = Trace::from_bytes(file).unwrap();
        prop_assert_eq!(read_all(&trace).len(), spans.len());
    }

    #[test]
    fn changed_files_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        cut in any::<prop::sample::Index>(),
        reseal in any::<bool>(),
    ) {
        let mut file = small_file();
        let spans = spans(&file);
        for (at, byte) in &edits {
            let at = at.index(file.len());
            file[at] = *byte;
        }
        if reseal {
            spans.iter().for_each(|s| seal(&mut file, s.0));
        }
        file.truncate(1 + cut.index(file.len()));
        if let Ok(trace) = Trace::from_bytes(file) {
            read_all(&trace);
        }
    }
}
