//! The jumps that a waiting process gets: code pages near the functions, and the patches that lead there.

use std::io;
use std::time::{Duration, Instant};

use super::area::Area;
use super::door::Caller;
use super::moved::{self, Room, SLOT};
use super::state::MACHINE;
use crate::capture::transport::page_size;
use machine::maps::Mapping;

/// Functions of one code page.
const PER_PAGE: usize = inside::ORDER_BYTES / SLOT;
/// Probes of a recording that has ended leave one after another, each within this time (crates/machine/src/guard.rs).
const ONE_LEAVES: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Below this address nothing is mapped (vm.mmap_min_addr).
const LOWEST: u64 = 1 << 16;

struct Jump {
    function: Option<usize>,
    room: Room,
    entry: u64,
    slot: u64,
    at: usize,
    site: inside::Site,
}

/// Bytes of a process's code that are not as in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    pub address: u64,
    pub old: Vec<u8>,
    pub new: Vec<u8>,
}

/// What became of them.
pub struct Made {
    /// Of each function that has a jump now: its site and its address.
    pub sites: Vec<(usize, (usize, u64))>,
    pub free: Vec<usize>,
    pub patches: Vec<Patch>,
    /// How many have none, and why the first of them has none.
    pub refused: Option<(usize, String)>,
}

pub struct Jumps {
    /// Mapped ranges, sorted.
    taken: Vec<(u64, u64)>,
    thunk: u64,
    /// Sites that no function has.
    free: Vec<usize>,
    /// Addresses of the new code pages, with the number of functions in each.
    pages: Vec<(u64, usize)>,
    all: Vec<Jump>,
    refused: usize,
    why: Option<String>,
}

impl Jumps {
    pub fn new(maps: &[Mapping], thunk: u64, free: Vec<usize>) -> Jumps {
        let mut taken: Vec<(u64, u64)> = maps.iter().map(|m| (m.start, m.end)).collect();
        taken.sort_unstable();
        Jumps { taken, thunk, free, pages: Vec::new(), all: Vec::new(), refused: 0, why: None }
    }

    fn refuse(&mut self, why: impl ToString) {
        self.refused += 1;
        self.why.get_or_insert_with(|| why.to_string());
    }

    /// Adds a jump at an entry.
    pub fn add(&mut self, function: Option<usize>, room: Room, entry: u64, site: inside::Site) {
        let slot = self.slot(entry).filter(|slot| room.slot(entry, *slot, self.thunk, 0).is_some());
        let Some(slot) = slot else { return self.refuse("there is no free memory near them") };
        let Some(at) = self.free.pop() else { return self.refuse("there are too many") };
        self.all.push(Jump { function, room, entry, slot, at, site });
    }

    /// Room in a code page near an entry.
    fn slot(&mut self, entry: u64) -> Option<u64> {
        let reach = moved::reach(MACHINE);
        let near = |(page, used): &&mut (u64, usize)| *used < PER_PAGE && page.abs_diff(entry) < reach;
        if let Some((page, used)) = self.pages.iter_mut().find(near) {
            *used += 1;
            return Some(*page + ((*used - 1) * SLOT) as u64);
        }
        let page = free_page(&self.taken, entry).filter(|page| page.abs_diff(entry) < reach)?;
        let at = self.taken.partition_point(|&(start, _)| start < page);
        self.taken.insert(at, (page, page + page_size() as u64));
        self.pages.push((page, 1));
        Some(page)
    }

    /// Has the process map the pages and write the jumps. Where the kernel is still removing the probes of a recording that has
    /// ended, waits for it.
    pub fn make(mut self, caller: &Caller, area: &Area) -> Made {
        let mut waiting = self.prepare(caller, area);
        let (mut sites, mut patches) = (Vec::new(), Vec::new());
        let mut changed = Instant::now();
        loop {
            let before = waiting.len();
            waiting.retain(|(jump, patch)| match caller.order(&order(patch), None) {
                Ok(()) => {
                    sites.extend(jump.function.map(|f| (f, (jump.at, jump.entry))));
                    patches.push(patch.clone());
                    false
                }
                Err(e) if e.raw_os_error() == Some(libc::ESTALE) => true,
                Err(e) => {
                    self.refuse(format!("its code cannot be written: {e}"));
                    false
                }
            });
            if waiting.len() < before {
                changed = Instant::now();
            }
            if waiting.is_empty() || changed.elapsed() >= ONE_LEAVES {
                break;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        for _ in &waiting {
            self.refuse(
                "its code is not as in its file: a probe of the kernel is there (of another recorder, perf or bpftrace), or \
                 something else has changed it",
            );
        }
        Made { sites, free: self.free, patches, refused: self.why.map(|why| (self.refused, why)) }
    }

    /// The jumps whose pages and sites are ready, with what is to be written.
    fn prepare(&mut self, caller: &Caller, area: &Area) -> Vec<(Jump, Patch)> {
        let bad: Vec<(u64, io::Error)> = (self.pages.iter())
            .filter_map(|&(page, _)| Some((page, caller.order(&self.code(page), None).err()?)))
            .collect();
        let mut ready = Vec::new();
        for jump in std::mem::take(&mut self.all) {
            let page = jump.slot & !(inside::ORDER_BYTES as u64 - 1);
            if let Some((_, e)) = bad.iter().find(|(p, _)| *p == page) {
                self.refuse(format!("no memory for code: {e}"));
                continue;
            }
            // Before the jump: its function may run at once.
            area.site(jump.at, &jump.site);
            match patch(&jump) {
                Some(patch) => ready.push((jump, patch)),
                None => self.refuse("there is no free memory near them"),
            }
        }
        ready
    }

    /// The order to map a code page.
    fn code(&self, page: u64) -> inside::Order {
        let mut order = inside::Order::new(inside::CODE);
        order.address = page;
        for jump in &self.all {
            let at = jump.slot.wrapping_sub(page) as usize;
            if let Some(place) = order.bytes.get_mut(at..at.saturating_add(SLOT))
                && let Some(code) = jump.room.slot(jump.entry, jump.slot, self.thunk, jump.at)
            {
                place.copy_from_slice(&code);
            }
        }
        order
    }
}

fn patch(jump: &Jump) -> Option<Patch> {
    let new = jump.room.jump(jump.entry, jump.slot)?;
    let old = jump.room.old.get(..new.len())?.to_vec();
    Some(Patch { address: jump.entry + jump.room.at as u64, old, new })
}

fn order(patch: &Patch) -> inside::Order {
    let mut order = inside::Order::new(inside::PATCH);
    (order.address, order.length) = (patch.address, patch.new.len() as u32);
    order.old.iter_mut().zip(&patch.old).for_each(|(to, from)| *to = *from);
    order.bytes.iter_mut().zip(&patch.new).for_each(|(to, from)| *to = *from);
    order
}

/// The free page nearest to an address, with a free page on both sides.
pub fn free_page(taken: &[(u64, u64)], near: u64) -> Option<u64> {
    let page = page_size() as u64;
    let ends = std::iter::once(LOWEST).chain(taken.iter().map(|t| t.1));
    let starts = taken.iter().map(|t| t.0);
    let gaps = ends.zip(starts).filter(|(end, start)| end + 3 * page <= *start);
    // Below a mapping, where neither the heap nor a stack grows to.
    gaps.map(|(_, start)| start - 2 * page).min_by_key(|at| at.abs_diff(near))
}

impl Room {
    /// The room at the function of the loader, of which nothing is known but its address.
    ///
    /// # Errors
    /// The loader has none, or not enough room in it.
    pub fn of_loader(maps: &[Mapping], address: u64) -> io::Result<Room> {
        let m = maps.iter().find(|m| m.executable && (m.start..m.end).contains(&address));
        let m = m.filter(|m| m.is_file()).ok_or_else(|| io::Error::other("its loader does not tell"))?;
        let file = std::fs::File::open(&m.path)?;
        let mut code = vec![0; 64];
        let read = std::os::unix::fs::FileExt::read_at(&file, &mut code, m.offset + (address - m.start))?;
        code.truncate(read);
        moved::room(MACHINE, &code).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_free_page_has_room_on_both_sides() {
        let page = page_size() as u64;
        let taken = [(1 << 20, 2 << 20), ((2 << 20) + 2 * page, 3 << 20), (1 << 30, 2 << 30)];
        assert_eq!(free_page(&taken, 2 << 20), Some((1 << 20) - 2 * page));
        assert_eq!(free_page(&taken, 1 << 30), Some((1 << 30) - 2 * page));
        assert_eq!(free_page(&[], 5), None);
    }
}
