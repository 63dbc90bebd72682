//! The library that an engine's process loads to be recorded without privilege (`lib/`), and the layout of what it
//! shares with the recorder: `lib/area.h`, mirrored here. Uses nothing.

/// The library for this processor, compressed by zlib.
pub static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/library.z"));

/// Its size when it is unpacked, bytes; 0: there is none for this processor.
pub fn unpacked_bytes() -> usize {
    option_env!("INSIDE_BYTES").and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

/// Placeholder in the library for the name of the recorder's socket: a zero byte, then the name in the abstract
/// namespace, then zeros.
pub const DOOR_MARK: &[u8] = b"profinfer's door is not open here";
/// Room for it, bytes: `sun_path` of unix(7) has 108.
pub const DOOR_BYTES: usize = 112;
/// Behind it comes a key, which each process says first: others may connect, but cannot read it.
pub const KEY_BYTES: usize = 16;

pub const MAGIC: u64 = 0x3165_6469_7366_6e69;
/// Functions of one process that can have a jump.
pub const SITES: usize = 1024;
/// Engines of one process.
pub const ENGINES: usize = 16;
/// Maximum number of rings: threads take turns on them.
pub const SHARDS: usize = 64;

/// Offsets in the shared memory, bytes.
pub const COUNTS_AT: usize = 0x1000;
pub const COUNTS_BYTES: usize = 1024;
pub const ENGINES_AT: usize = COUNTS_AT + SHARDS * COUNTS_BYTES;
pub const ENGINE_BYTES: usize = 512;
pub const SITES_AT: usize = ENGINES_AT + ENGINES * ENGINE_BYTES;
pub const SITE_BYTES: usize = 64;
pub const RINGS_AT: usize = SITES_AT + SITES * SITE_BYTES;
/// Bytes before a ring's data, and where the position of the reader is in them.
pub const RING_HEAD: usize = 0x1000;
pub const TAIL_AT: usize = 128;

/// A record's first word: its length, and these.
pub const RECORD_DONE: u64 = 1 << 63;
pub const RECORD_SKIP: u64 = 1 << 62;

/// `struct area`, at the start of the shared memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Start {
    pub magic: u64,
    pub shards: u32,
    pub ring_bytes: u32,
    /// Addresses in the process, 0: none.
    pub clock: u64,
    pub getcpu: u64,
    pub tgid: u32,
    /// Changes when the structure of graphs that were seen must be sent again.
    pub forget: u32,
    /// `struct proc` of src/bpf/send.h: two addresses, engines as bits, phase.
    pub proc: [u64; 3],
}

/// Where `Start::proc` has its engines.
pub const ENGINES_OF_PROC: usize = std::mem::offset_of!(Start, proc) + 16;

/// Where `Start::forget` is.
pub const FORGET_AT: usize = std::mem::offset_of!(Start, forget);

/// A function with a jump: which of its programs run, and their numbers.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Site {
    pub enter: u32,
    pub leave: u32,
    pub enter_program: u16,
    pub leave_program: u16,
    pub engine: u16,
    pub unused: u16,
    pub spare: [u64; 6],
}

/// The program of the function that the loader calls: it asks at the door.
pub const LOADED: u16 = 0xffff;

/// What the library says first.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Hello {
    pub magic: u64,
    pub key: [u8; KEY_BYTES],
    pub why: u32,
    pub tid: u32,
    pub thunk: u64,
    pub loaded: u64,
}

/// `Hello::why`.
pub const START: u32 = 1;
pub const LOADED_MORE: u32 = 2;
pub const FORKED: u32 = 3;
pub const FULL: u32 = 4;

pub const ORDER_BYTES: usize = 4096;

/// What the recorder answers.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Order {
    pub what: u32,
    pub length: u32,
    pub address: u64,
    pub old: [u8; 16],
    pub bytes: [u8; ORDER_BYTES],
}

/// `Order::what`.
pub const GO: u32 = 1;
pub const AREA: u32 = 2;
pub const CODE: u32 = 3;
pub const PATCH: u32 = 4;
pub const FILL: u32 = 5;
pub const MEASURE: u32 = 6;

impl Order {
    pub fn new(what: u32) -> Order {
        Order { what, length: 0, address: 0, old: [0; 16], bytes: [0; ORDER_BYTES] }
    }

    /// To map shared memory of this size.
    pub fn area(bytes: u64) -> Order {
        Order { length: bytes as u32, address: bytes >> 32, ..Order::new(AREA) }
    }
}

const _: () = assert!(size_of::<Site>() == SITE_BYTES && size_of::<Hello>() == 48);
const _: () = assert!(size_of::<Order>() == ORDER_BYTES + 32 && size_of::<Start>() <= COUNTS_AT);

/// The bytes of one of these, as they are sent.
pub fn bytes<T: Copy>(of: &T) -> &[u8] {
    // SAFETY: used for the structs above, which are integers without padding; the borrow keeps the bytes alive.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(of).cast(), size_of::<T>()) }
}
