//! The cost of one probe hit on this machine, measured on a function of our own. Uses `layout`, `road`, `source`,
//! `structure`, `tables` and `usage`.

use std::arch::global_asm;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use super::layout::Layout;
use super::road::Road;
use super::source::{Knobs, Prober, Prog, Source, Structure};
use super::structure::Reading;
use super::tables::Tables;
use super::usage;

// Two functions that return at once. The first instruction of `cheap` is one that the kernel emulates, that of `stepped`
// one that it single-steps (arch/x86/kernel/uprobes.c, arch/arm64/kernel/probes/decode-insn.c).
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl profinfer_cheap",
    ".type profinfer_cheap, @function",
    "profinfer_cheap: push rbp",
    "pop rbp",
    "ret",
    ".globl profinfer_stepped",
    ".type profinfer_stepped, @function",
    "profinfer_stepped: mov rax, rdi",
    "ret",
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl profinfer_cheap",
    ".type profinfer_cheap, @function",
    "profinfer_cheap: ret",
    ".globl profinfer_stepped",
    ".type profinfer_stepped, @function",
    "profinfer_stepped: mov x9, x0",
    "ret",
);

unsafe extern "C" {
    fn profinfer_cheap(params: *const u64, tensor: *const u64);
    fn profinfer_stepped(params: *const u64, tensor: *const u64);
}

/// Nanoseconds a hit, median of several rounds.
#[derive(Debug, Clone, Copy)]
pub struct HitCost {
    /// The instruction is emulated.
    pub cheap_ns: u32,
    /// The instruction is single-stepped.
    pub stepped_ns: u32,
}

const ROUNDS: usize = 9;
const CALLS: u32 = 400;

/// Measures with the op probe itself, event included, by a source of its own.
pub fn hit_cost(road: &Road) -> Result<HitCost, String> {
    let (_source, prober) = open(road)?;
    let cheap_ns = measure(&*prober, profinfer_cheap)?;
    Ok(HitCost { cheap_ns, stepped_ns: measure(&*prober, profinfer_stepped)? })
}

/// Only the cost of a hit on a cheap instruction, ns.
pub fn cheap_hit(road: &Road) -> Result<u32, String> {
    let (_source, prober) = open(road)?;
    measure(&*prober, profinfer_cheap)
}

/// The buffer holds the events of all rounds: one that is full would make hits look cheaper.
const BUFFER: u32 = 1 << 20;
const _: () = assert!(2 * (ROUNDS as u32) * CALLS * 128 <= BUFFER);

/// A prober is good for nothing when its source is gone.
type Opened = (Box<dyn Source>, Box<dyn Prober>);

fn open(road: &Road) -> Result<Opened, String> {
    let reading = Reading::new(0, Layout::latest(), &Tables::default());
    let knobs = Knobs { any: false, pbuf: false, buffer: BUFFER, structure: Structure::Off };
    let mut source = road.open(knobs, None, Rc::new(RefCell::new(|_: &[u8]| {})));
    source.add_target(std::process::id());
    let prober = source.engine(&reading).map_err(|e| e.to_string())?;
    Ok((source, prober))
}

type Site = unsafe extern "C" fn(*const u64, *const u64);

fn measure(prober: &dyn Prober, site: Site) -> Result<u32, String> {
    let exe = Path::new("/proc/self/exe");
    let offset = file_offset(site as usize as u64).ok_or("our own file is not to be found in our maps")?;
    let bare = round(site);
    let link = prober.attach(Prog::Op, exe, offset)?;
    let mut rounds: Vec<u64> = (0..ROUNDS).map(|_| round(site)).collect();
    drop(link);
    rounds.sort_unstable();
    Ok(u32::try_from(rounds[ROUNDS / 2].saturating_sub(bare) / u64::from(CALLS)).unwrap_or(u32::MAX))
}

fn round(site: Site) -> u64 {
    let params = [0u64; 8];
    let start = usage::now();
    for _ in 0..CALLS {
        // SAFETY: both functions above return at once and touch neither argument.
        unsafe { site(params.as_ptr(), params.as_ptr()) };
    }
    usage::now() - start
}

/// File offset in our own executable of a function that may be probed.
pub(super) fn own_probe_site() -> Option<u64> {
    file_offset(profinfer_cheap as *const () as usize as u64)
}

/// Offset of one of our own code addresses within our executable.
fn file_offset(addr: u64) -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let offset = u64::from_str_radix(words.nth(1)?, 16).ok()?;
        (start..end).contains(&addr).then(|| addr - start + offset)
    })
}
