//! A graph's nodes and tensors, read from the target's memory while it computes. They are used only if the graph
//! was then still the one that was entered (see `graph`).

use std::collections::HashMap;

use crate::capture::event;
use engine::layout::Layout;
use machine::memory;
use machine::usage;

/// Maximum number of nodes read per graph, as many as `nodes` keeps.
const MAX_NODES: u32 = 8192;
/// GGML_MAX_SRC (ggml.h).
const MAX_SRC: usize = 10;

/// An entry into `ggml_graph_compute`.
#[derive(Debug, Clone, Copy)]
pub struct GraphEntry {
    pub tgid: u32,
    pub tid: u32,
    /// Time of the entry, CLOCK_MONOTONIC ns.
    pub at: u64,
    pub cgraph: u64,
    pub nodes: u64,
    pub n_nodes: u32,
    /// The graph's own uid, 0 if it has none.
    pub uid: u64,
}

/// A graph's data, as read.
pub struct Snapshot {
    pub entry: GraphEntry,
    /// When reading was finished.
    pub until: u64,
    /// Before and after reading, the graph's uid was that of the entry.
    pub same_uid: bool,
    /// The nodes' addresses, in order.
    pub nodes: Vec<u64>,
    /// `len` bytes of each tensor read, nodes and their sources.
    tensors: HashMap<u64, usize>,
    raw: Vec<u8>,
    len: usize,
    /// Tensors that could not be read.
    pub unread: u64,
}

impl Snapshot {
    fn nothing(entry: GraphEntry) -> Snapshot {
        Snapshot {
            entry,
            until: u64::MAX,
            same_uid: false,
            nodes: Vec::new(),
            tensors: HashMap::new(),
            raw: Vec::new(),
            len: 0,
            unread: 0,
        }
    }

    /// Reads the graph of an entry. If its node list cannot be read, or has changed since, the snapshot is
    /// unusable: its `until` is never reached.
    pub fn take(entry: GraphEntry, l: &Layout) -> Snapshot {
        let mut s = Snapshot::nothing(entry);
        if s.fill(l).is_none() {
            s = Snapshot::nothing(entry);
        }
        s
    }

    fn fill(&mut self, l: &Layout) -> Option<()> {
        let before = self.check(l)?;
        self.len = l.tensor_bytes() as usize;
        self.nodes = self.list()?;
        self.read(self.nodes.clone());
        // A source may be a view that is not a node, of another tensor that is not a node either.
        for _ in 0..3 {
            self.read(self.sources(l));
        }
        let after = self.check(l)?;
        self.same_uid = before && after;
        self.until = usage::now();
        Some(())
    }

    /// None: the graph is not the one that was entered, or has changed since. True: its uid confirms it.
    fn check(&self, l: &Layout) -> Option<bool> {
        let e = &self.entry;
        let field = |off: u32| e.cgraph.checked_add(off.into());
        let mut n = [0; 4];
        memory::read(e.tgid, field(l.n_nodes_off)?, &mut n).ok()?;
        let nodes = memory::read_u64(e.tgid, field(l.nodes_off)?).ok()?;
        if (1..=MAX_NODES).contains(&e.n_nodes) && (u32::from_ne_bytes(n), nodes) == (e.n_nodes, e.nodes) {
            let uid = l.uid_off.filter(|_| e.uid != 0).and_then(field);
            return Some(uid.is_some_and(|at| memory::read_u64(e.tgid, at).is_ok_and(|uid| uid == e.uid)));
        }
        None
    }

    fn list(&self) -> Option<Vec<u64>> {
        let mut bytes = vec![0; self.entry.n_nodes as usize * 8];
        memory::read(self.entry.tgid, self.entry.nodes, &mut bytes).ok()?;
        Some(bytes.as_chunks::<8>().0.iter().map(|b| u64::from_ne_bytes(*b)).collect())
    }

    fn read(&mut self, mut wanted: Vec<u64>) {
        wanted.retain(|at| *at != 0 && !self.tensors.contains_key(at));
        wanted.sort_unstable();
        wanted.dedup();
        let begin = self.raw.len();
        self.raw.resize(begin + wanted.len() * self.len, 0);
        let room = self.raw.get_mut(begin..).unwrap_or_default();
        let read = memory::read_each(self.entry.tgid, &wanted, self.len, room);
        for (i, at) in wanted.into_iter().enumerate() {
            match read.get(i) {
                Some(true) => drop(self.tensors.insert(at, begin + i * self.len)),
                _ => self.unread += 1,
            }
        }
    }

    /// Sources and viewed tensors of all tensors read so far.
    fn sources(&self, l: &Layout) -> Vec<u64> {
        let mut out = Vec::new();
        for (_, raw) in self.tensors() {
            let word = |off: u32| event::word(raw, off);
            out.extend((0..MAX_SRC.min(l.n_src as usize)).map(|i| word(l.src_off + 8 * i as u32)));
            out.push(word(l.view_src_off));
        }
        out
    }

    /// All tensors, in no particular order.
    pub fn tensors(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.tensors.iter().filter_map(|(&at, &i)| Some((at, self.raw.get(i..i + self.len)?)))
    }

    /// The bytes of one tensor.
    pub fn tensor(&self, at: u64) -> Option<&[u8]> {
        let i = *self.tensors.get(&at)?;
        self.raw.get(i..i + self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_is_read_with_its_sources_and_checked() {
        let l = Layout::latest();
        let len = l.tensor_bytes() as usize;
        // Three tensors: a node, its source, and the tensor that the source is a view of.
        let mut memory = vec![0u8; 4 * len];
        let base = memory.as_mut_ptr() as u64;
        let at = |i: usize| base + (i * len) as u64;
        let mut put = |i: usize, off: u32, v: u64| {
            let at = i * len + off as usize;
            memory[at..at + 8].copy_from_slice(&v.to_ne_bytes());
        };
        put(0, l.src_off, at(1));
        put(1, l.view_src_off, at(2));
        let nodes = [at(0)];
        let mut graph = [0u8; 128];
        graph[l.n_nodes_off as usize] = 1;
        graph[l.nodes_off as usize..][..8].copy_from_slice(&(nodes.as_ptr() as u64).to_ne_bytes());
        graph[88..96].copy_from_slice(&7u64.to_ne_bytes());
        let pid = std::process::id();
        let entry = GraphEntry {
            tgid: pid,
            tid: pid,
            at: 1,
            cgraph: graph.as_ptr() as u64,
            nodes: nodes.as_ptr() as u64,
            n_nodes: 1,
            uid: 7,
        };
        let s = Snapshot::take(entry, &l);
        assert!(s.same_uid && s.unread == 0 && s.nodes == nodes && s.until > 1);
        assert_eq!(s.tensors().count(), 3);
        assert!(!Snapshot::take(GraphEntry { uid: 8, ..entry }, &l).same_uid);
        assert_eq!(Snapshot::take(GraphEntry { n_nodes: 2, ..entry }, &l).until, u64::MAX);
        assert_eq!(Snapshot::take(GraphEntry { cgraph: 8, ..entry }, &l).until, u64::MAX);
    }
}
