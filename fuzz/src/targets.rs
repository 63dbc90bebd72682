//! The fuzz targets: every reader of bytes that another user, process, file or kernel may have written, as a
//! function of those bytes. A target fails by panicking; the caller detects timeouts and excessive memory use.
//! `tests/plain/fuzz_corpus.rs` runs the same functions in every test run.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, Write};
use std::os::fd::FromRawFd;
use std::sync::OnceLock;

use agent::capture::event::KIND_NAMES;
use agent::capture::inside::area::Area;
use agent::capture::inside::moved;
use agent::capture::structure::Reading;
use agent::capture::submissions::{SOURCES, decode, join::Joined};
use agent::recorder::drain::Drain;
use analysis::questions::predict_model::{KnownPeaks, PredictOptions, predict};
use analysis::recorded::load::{LoadProgress, load};
use analysis::sums::attribution::verdict::Peak;
use cli::args::{Args, Parsed};
use engine::discover;
use engine::elf::{ElfFile, ElfMachine};
use engine::ladder::Ladder;
use engine::layout::Layout;
use engine::tables::{Tables, TypeTrait};
use ggml::gguf::reader::Gguf;
use ggml::gguf::types::TYPES;
use ggml::model_shape::ModelShape;
use machine::kernel::event_format::EventFormat;
use machine::maps;
use pfi::record::{Footer, Header, Level, SourceKind, TransportKind};
use pfi::{BLOCK_HEADER, Encoder, EncoderConfig, FILE_HEADER, Trace};
use profinfer::conf;
use render::table::Style;
use render::timeline::merge::free_sequence;
use runner::model::Params;
use runner::tokenizer::Tokenizer;
use service::readers;

#[path = "../../tests/all_views/mod.rs"]
#[allow(dead_code, reason = "the tests of views use more of it")]
mod all_views;

/// A reader under test.
pub struct Target {
    /// Also the name of its directory in fuzz/corpus.
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Whether a corpus file passes the reader's first checks.
    #[allow(dead_code, reason = "the test of the corpora asks")]
    pub valid: fn(&[u8]) -> bool,
}

pub const TARGETS: [Target; 12] = [
    Target { name: "trace", run: trace, valid: |b| whole(b).is_some_and(|t| !t.blocks().is_empty()) },
    Target { name: "views", run: views, valid: |b| whole(b).is_some_and(|t| !t.blocks().is_empty()) },
    Target {
        name: "gguf",
        run: gguf,
        valid: |b| Gguf::parse(&with_data(b)).is_ok_and(|g| Params::read(&g).is_ok()),
    },
    Target { name: "elf", run: elf, valid: |b| ElfFile::from_bytes(b.to_vec(), "x").is_ok() },
    Target { name: "config", run: config, valid: |b| std::str::from_utf8(b).is_ok() },
    Target { name: "merge", run: merge, valid: |b| free_sequence(&mut BufReader::new(b)).is_ok() },
    Target { name: "socket", run: socket, valid: |b| !b.is_empty() },
    Target { name: "events", run: events, valid: |b| drained(b).1 > 0 },
    Target { name: "proc", run: proc, valid: |b| !b.is_empty() },
    Target { name: "tracepoint", run: |b| _ = tracepoint(b), valid: |b| tracepoint(b) > 0 },
    Target { name: "code", run: |b| _ = moved(b), valid: |b| moved(b).is_some() },
    Target { name: "ring", run: |b| _ = ring(b), valid: |b| ring(b) > 0 },
];

/// The slot of a function with this code, on the machine that the first byte says.
fn moved(bytes: &[u8]) -> Option<[u8; moved::SLOT]> {
    let (first, code) = bytes.split_first()?;
    let machine = if *first == 0 { ElfMachine::X86_64 } else { ElfMachine::Aarch64 };
    let room = moved::room(machine, code).ok()?;
    let slot = room.slot(0x7f00_0000_1000, 0x7f00_0100_0000, 0x5500_0000_0000, 1)?;
    assert!(room.jump(0x7f00_0000_1000, 0x7f00_0100_0000).is_some_and(|jump| jump.len() == room.old.len()));
    Some(slot)
}

/// Events in a ring that a process has filled with these bytes.
fn ring(bytes: &[u8]) -> usize {
    let Ok(mut area) = Area::new(&inside::Start::default(), 4096) else { return 0 };
    let room = bytes.len().min(4096);
    area.write(inside::RINGS_AT + inside::RING_HEAD, &bytes[..room]);
    let (mut event, mut events, mut words) = (vec![0; 1024], 0, 0);
    area.read(&mut event, &mut |e| (events, words) = (events + 1, words + e.len()));
    assert!((words + events) * 8 <= 4096, "more than was there");
    events
}

/// Repairs block offsets and checksums so that the reader accepts the file and changes inside the blocks are read.
/// Data that does not start with the magic byte of a trace is left unchanged.
fn resealed(bytes: &[u8]) -> Vec<u8> {
    let mut file = bytes.to_vec();
    if file.first() != Some(&0x89) || file.len() < FILE_HEADER {
        return file;
    }
    file[..FILE_HEADER].copy_from_slice(&empty()[..FILE_HEADER]);
    let (magic, mut at) = (&empty()[FILE_HEADER..FILE_HEADER + 12], FILE_HEADER);
    while let Some(room) = file.len().checked_sub(at + BLOCK_HEADER) {
        let header = &mut file[at..];
        header[..12].copy_from_slice(magic);
        let told = u32::from_le_bytes([header[12], header[13], header[14], header[15]]) as usize;
        let len = told.min(room);
        header[12..16].copy_from_slice(&(len as u32).to_le_bytes());
        let crc = crc32c::crc32c(&header[BLOCK_HEADER..BLOCK_HEADER + len]);
        header[32..36].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32c::crc32c(&header[..36]);
        header[36..40].copy_from_slice(&crc.to_le_bytes());
        at += BLOCK_HEADER + len;
    }
    file
}

fn whole(bytes: &[u8]) -> Option<Trace> {
    Trace::from_bytes(resealed(bytes)).ok()
}

fn header() -> Header<'static> {
    Header {
        tool: "fuzz",
        command: "",
        kernel: "",
        arch: "",
        host: "",
        cpu_model: "",
        topology: "",
        mono_ns: 0,
        boot_ns: 0,
        real_ns: 0,
        level: Level::Op,
        structure: true,
        transport: TransportKind::Ring,
        buffer_bytes: 0,
        hit_ns: 0,
        source: SourceKind::Bpf,
    }
}

fn footer() -> Footer<'static> {
    let (kinds, lost_cpu) = (Vec::new(), Vec::new());
    let (agent_user_us, agent_sys_us, agent_peak_rss) = (0, 0, 0);
    let (orphans, read_errors, wall_ns, bpf_ns, bpf_runs) = (0, 0, 0, 0, 0);
    Footer {
        end: "fuzz",
        kinds,
        lost_cpu,
        orphans,
        read_errors,
        agent_user_us,
        agent_sys_us,
        agent_peak_rss,
        wall_ns,
        bpf_ns,
        bpf_runs,
    }
}

/// An empty trace.
fn empty() -> &'static [u8] {
    static EMPTY: OnceLock<Vec<u8>> = OnceLock::new();
    EMPTY.get_or_init(|| {
        let enc = Encoder::new(Vec::new(), EncoderConfig::default(), &header()).expect("memory takes all");
        enc.finish(&footer()).expect("memory takes all")
    })
}

fn trace(bytes: &[u8]) {
    let Some(trace) = whole(bytes) else { return };
    for i in 0..trace.blocks().len() {
        if let Ok(block) = trace.block(i) {
            block.records().for_each(drop);
        }
    }
    load(&trace, &LoadProgress::default());
}

/// One group of views per input, selected by its checksum: every view is slow.
fn views(bytes: &[u8]) {
    let Some(trace) = whole(bytes) else { return };
    let group = crc32c::crc32c(bytes) as usize % all_views::GROUPS.len();
    all_views::GROUPS[group](&mut all_views::Out::default(), &trace);
}

/// The head of a model is enough; its tensor data is zeros here.
fn with_data(head: &[u8]) -> Vec<u8> {
    const DATA: usize = 1 << 20;
    [head, &vec![0; DATA]].concat()
}

fn gguf(bytes: &[u8]) {
    head(bytes);
    let file = with_data(bytes);
    let Ok(gguf) = Gguf::parse(&file) else { return };
    if let Err(why) = Params::read(&gguf) {
        assert!(!why.to_string().is_empty());
    }
    let Ok(tokenizer) = Tokenizer::new(&gguf) else { return };
    let mut text = Vec::new();
    let tokens = tokenizer.encode(b"Some text, \xf0\x9f\x98\x80 12 <s>\n", true, true);
    tokens.into_iter().for_each(|t| tokenizer.append(t, &mut text));
}

/// A head alone, as `predict` reads it.
fn head(bytes: &[u8]) {
    let parts = match Gguf::parse_head(bytes) {
        Ok(gguf) => [gguf],
        Err(why) => return assert!(!why.to_string().is_empty()),
    };
    let shape = match ModelShape::read(&parts) {
        Ok(shape) => shape,
        Err(why) => return assert!(!why.to_string().is_empty()),
    };
    let peak = Peak { gb_per_s: 20.0, gflop_per_s: Some(100.0), ..Peak::default() };
    let known = KnownPeaks { source: "given", peaks: vec![peak] };
    for context in [64, u64::from(u32::MAX)] {
        let options = PredictOptions {
            threads: None,
            context,
            prompt: 64,
            ubatch: 512,
            cache: TYPES[1],
            memory: Some(1 << 30),
            flash: context == 64,
        };
        let found = predict(&shape, None, Some(&known), &options).expect("there is a peak");
        render::json::write(&mut Vec::new(), &found).expect("memory takes all");
        render::predict_model::write(&mut Vec::new(), &found, &Style::default()).expect("memory takes all");
    }
}

fn elf(bytes: &[u8]) {
    if let Some(file) = memory_file(bytes) {
        for names in [&["ggml_op_name"][..], &["ggml_graph_compute", "ggml_barrier"]] {
            let _ = readers::defines(&file, names);
        }
    }
    let Ok(elf) = ElfFile::from_bytes(bytes.to_vec(), "fuzzed") else { return };
    match discover::of_file(elf) {
        Ok(engine) => drop(Ladder::of(&engine)),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

fn memory_file(bytes: &[u8]) -> Option<File> {
    // SAFETY: the name ends with a zero byte.
    let fd = unsafe { libc::memfd_create(c"fuzzed".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: a non-negative descriptor is open and owned by nobody else.
    let mut file = (fd >= 0).then(|| unsafe { File::from_raw_fd(fd) })?;
    file.write_all(bytes).ok()?;
    Some(file)
}

fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (file, faults) = conf::read(text);
    let mut wrong: Vec<String> = faults.told("f");
    let Ok(Parsed::Run(args)) = Args::parse(&conf::service::SERVE, Vec::<OsString>::new()) else { return };
    conf::service::ServiceArgs::new(&args, file).values(&mut wrong);
    assert!(wrong.iter().all(|why| !why.is_empty()));
}

fn merge(bytes: &[u8]) {
    if let Err(why) = free_sequence(&mut BufReader::new(bytes)) {
        assert!(!why.to_string().is_empty());
    }
}

/// A request to the service, and a response as if from the service.
fn socket(bytes: &[u8]) {
    match readers::request(bytes) {
        Ok(request) => assert_eq!(readers::request(request.to_string().as_bytes()), Ok(request)),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
    if let Ok(state) = serde_json::from_slice::<serde_json::Value>(bytes) {
        let (mut out, style) = (all_views::Out::default(), render::table::Style::default());
        render::service::write(&mut out, &state, &style).expect("a view is written");
        render::json::write(&mut out, &state).expect("a view is written");
    }
}

/// Passes events to the drain, each with a two-byte length, as a misbehaving kernel might send them. Returns the
/// trace written and the number of events understood.
fn drained(bytes: &[u8]) -> (Vec<u8>, u64) {
    let ops = ["NONE", "ADD", "MUL_MAT", "RESHAPE", "MUL_MAT_ID", "VIEW", "GET_ROWS", "ARGSORT"];
    let types = [("f32", 1, 4), ("q4_0", 32, 18), ("i32", 1, 4)];
    let types = types.into_iter().zip(0..).map(|((name, block, bytes), number)| {
        let name = name.to_owned();
        TypeTrait { number, name, block, bytes }
    });
    let ops = ops.map(str::to_owned).to_vec();
    let tables = Tables { ops, types: types.collect(), ..Tables::default() };
    let config =
        EncoderConfig { block_bytes: 4096, max_tensors: 64, max_plans: 4, ..EncoderConfig::default() };
    let enc = Encoder::new(Vec::new(), config, &header()).expect("memory takes all");
    let mut drain = Drain::new(enc);
    for engine in 0..2 {
        drain.add_engine(Reading::new(engine, Layout::latest(), &tables));
    }
    drain.count(2);
    let mut rest = bytes;
    while let Some((len, behind)) = rest.split_first_chunk::<2>() {
        let len = usize::from(u16::from_le_bytes(*len)).min(behind.len());
        let (event, behind) = behind.split_at(len);
        let mut event = event.to_vec();
        // Unknown kinds are dropped right away, so most are mapped to known ones.
        if let Some(kind) = event.get_mut(16).filter(|kind| **kind < 0xf0) {
            *kind %= KIND_NAMES.len() as u8;
        }
        drain.event(&event);
        rest = behind;
    }
    let last = drain.last_ts();
    let _ = drain.close(None, last);
    let understood = drain.totals.events;
    (drain.enc.finish(&footer()).expect("memory takes all"), understood)
}

fn events(bytes: &[u8]) {
    let (written, _) = drained(bytes);
    let trace = Trace::from_bytes(written).expect("what is written is a trace");
    for i in 0..trace.blocks().len() {
        let block = trace.block(i).expect("its blocks are whole");
        assert!(block.records().all(|r| r.is_ok()), "a record that its own reader refuses");
    }
    load(&trace, &LoadProgress::default());
}

/// Files in /proc of a process, with contents that the process controls.
fn proc(bytes: &[u8]) {
    readers::of_process(bytes);
    let all = maps::parse(bytes);
    for m in &all {
        maps::file_offset(&all, m.start);
    }
}

/// `format` files, a byte 255, and events of these tracepoints, each after its length. Returns the number of events read.
fn tracepoint(bytes: &[u8]) -> usize {
    let cut = bytes.iter().position(|b| *b == u8::MAX).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..cut]);
    let format = |name: &str| {
        let mut formats = text.split("name: ").filter(|t| t.lines().next() == Some(name));
        formats.next().map(EventFormat::parse)
    };
    let mut read = 0;
    for (i, def) in SOURCES.iter().enumerate() {
        let Ok(readers) = decode::readers(i, def, format) else { continue };
        let (mut joined, mut rest) = (Joined::default(), bytes.get(cut + 1..).unwrap_or_default());
        while let Some((len, after)) = rest.split_first() {
            let (raw, next) = after.split_at(after.len().min((*len).into()));
            rest = next;
            let id = raw.first_chunk().map(|id| u32::from(u16::from_ne_bytes(*id)));
            let Some((_, reader)) = readers.iter().find(|r| Some(r.0) == id) else { continue };
            if let Some(hit) = reader.read(raw, read as u64 * 1000, 1, None) {
                read += 1;
                let ended = joined.take(def, &hit, -1);
                assert!(
                    ended.is_none_or(|(_, s)| s.started.is_none_or(|at| at <= s.end)),
                    "it ends before it starts"
                );
            }
        }
    }
    read
}
