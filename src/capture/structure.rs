//! What is known about the target's tensors: a fixed table from (process, address) to description, filled from the raw
//! structs that the BPF programs send, and written to the trace as interned tensors. Allocates only when created.

use std::io::Write;

use engine::layout::Layout;
use engine::tables::Tables;
use pfi::{Encoder, ITSELF, TensorDesc, WriteError};

/// Maximum number of tensors, all processes together. A model of 80 layers has about 4,000 in one graph.
pub const SLOTS: usize = 16384;
/// GGML_MAX_SRC (ggml.h, since 2023-12).
const MAX_SRC: usize = 10;
/// Longest name kept; stable-diffusion.cpp builds GGML with GGML_MAX_NAME 160.
const MAX_NAME: usize = 160;
/// Longer chains of views are cut: the tensor at the far end keeps its previous id.
const MAX_DEPTH: u32 = 64;

/// Ids of ops in the trace: engine * OPS_PER_ENGINE + number, with UNARY's and GLU's kinds after the ops.
pub const OPS_PER_ENGINE: u16 = 4096;
pub const UNARY_BASE: u16 = 1024;
pub const GLU_BASE: u16 = 2048;
/// Ids of types in the trace: engine * TYPES_PER_ENGINE + ggml_type.
pub const TYPES_PER_ENGINE: u16 = 256;
/// Maximum number of engines in a recording, so that the ids above fit in 16 bits.
pub const MAX_ENGINES: usize = 15;

/// A tensor as last read from the target's memory. Not yet a [`pfi::record::Tensor`]: its sources are addresses, which
/// become ids when the trace needs them.
#[derive(Clone, Copy)]
pub struct TargetTensor {
    /// Id in the trace, see [`OPS_PER_ENGINE`].
    pub op: u16,
    pub ty: u16,
    pub flags: u32,
    pub ne: [u64; 4],
    /// Strides, if it is not contiguous.
    nb: Option<[u64; 4]>,
    src: [u64; MAX_SRC],
    view_src: u64,
    /// Address of its data; 0: none here.
    pub data: u64,
    name: [u8; MAX_NAME],
    name_len: u8,
    /// NONE, RESHAPE, VIEW, PERMUTE or TRANSPOSE: nothing to compute.
    pub nop: bool,
}

impl TargetTensor {
    /// The name's bytes, as the target holds them.
    pub fn name(&self) -> &[u8] {
        &self.name[..(self.name_len as usize).min(MAX_NAME)]
    }
}

/// How to read one engine's tensors.
#[derive(Clone)]
pub struct Reading {
    pub engine: u16,
    pub layout: Layout,
    pub unary: u32,
    pub glu: u32,
    /// The engine has code for a device, so that there may be splits on other backends than the CPU's.
    pub devices: bool,
    /// Programs pass a llama_batch, which is read where they do.
    pub batches: bool,
    /// Offset of `llama_context.memory`, if it is known.
    pub memory_off: Option<u32>,
    /// Number of MUL_MAT_ID, and of the type of its ids.
    pub experts: Option<(u32, u32)>,
    n_ops: u32,
    /// Per type: elements and bytes per block; (0, 0) for a gap.
    types: Vec<(u32, u32)>,
    /// Per op: (nop, none).
    nops: Vec<(bool, bool)>,
}

impl Reading {
    pub fn new(engine: u16, layout: Layout, tables: &Tables) -> Reading {
        let number = |name: &str| tables.ops.iter().position(|n| n == name).map_or(u32::MAX, |i| i as u32);
        let mut types = vec![(0, 0); TYPES_PER_ENGINE as usize];
        for t in &tables.types {
            if let Some(slot) = types.get_mut(t.number as usize) {
                *slot = (t.block, t.bytes);
            }
        }
        let i32_type = tables.types.iter().find(|t| t.name == "i32").map(|t| t.number);
        let nop = |n: &String| matches!(n.as_str(), "NONE" | "RESHAPE" | "VIEW" | "PERMUTE" | "TRANSPOSE");
        Reading {
            engine,
            layout,
            devices: false,
            batches: false,
            memory_off: None,
            unary: number("UNARY"),
            glu: number("GLU"),
            experts: tables.op("MUL_MAT_ID").zip(i32_type),
            n_ops: tables.ops.len() as u32,
            types,
            nops: tables.ops.iter().map(|n| (nop(n), n == "NONE")).collect(),
        }
    }

    /// Per op number: whether it does no work (NONE, RESHAPE, VIEW, PERMUTE, TRANSPOSE), and whether it is NONE.
    pub fn idle_ops(&self) -> &[(bool, bool)] {
        &self.nops
    }

    /// Strides of a contiguous tensor, bytes; zeros if the type is unknown.
    pub fn strides(&self, ty: u32, ne: &[u64; 4]) -> [u64; 4] {
        let (block, bytes) = self.types.get(ty as usize).copied().unwrap_or((0, 0));
        strides(ne, block.into(), bytes.into())
    }

    /// Reads a raw `ggml_tensor` (at least up to its name). Err says which sanity check failed.
    pub fn tensor(&self, raw: &[u8]) -> Result<TargetTensor, Unreadable> {
        let l = &self.layout;
        let u32_at = |off: u32| {
            raw.get(off as usize..off as usize + 4)
                .map(|b| u32::from_le_bytes(b.try_into().unwrap_or_default()))
        };
        let u64_at = |off: u32| {
            raw.get(off as usize..off as usize + 8)
                .map(|b| u64::from_le_bytes(b.try_into().unwrap_or_default()))
        };
        let short = Unreadable::Short(raw.len());
        let (op, ty) = (u32_at(l.op_off).ok_or(short)?, u32_at(l.type_off).ok_or(short)?);
        if op >= self.n_ops {
            return Err(Unreadable::Op(op, self.n_ops));
        }
        let (block, bytes) = self.types.get(ty as usize).copied().unwrap_or((0, 0));
        if block == 0 {
            return Err(Unreadable::Type(ty));
        }
        let mut d = TargetTensor {
            op: self.engine * OPS_PER_ENGINE + self.op_id(op, u32_at(l.op_params_off).unwrap_or(0)),
            ty: self.engine * TYPES_PER_ENGINE + ty as u16,
            flags: l.flags_off.and_then(u32_at).unwrap_or(0),
            ne: [0; 4],
            nb: None,
            src: [0; MAX_SRC],
            view_src: u64_at(l.view_src_off).ok_or(short)?,
            data: u64_at(l.data_off).unwrap_or(0),
            name: [0; MAX_NAME],
            name_len: 0,
            nop: self.nops.get(op as usize).is_some_and(|n| n.0),
        };
        let mut nb = [0; 4];
        for (at, (ne, nb)) in (0..).step_by(8).zip(d.ne.iter_mut().zip(&mut nb)) {
            *ne = u64_at(l.ne_off + at).ok_or(short)?;
            *nb = u64_at(l.nb_off + at).ok_or(short)?;
            if *ne > 1 << 48 {
                return Err(Unreadable::Dim(*ne));
            }
        }
        for (i, s) in d.src.iter_mut().enumerate().take(l.n_src as usize) {
            *s = u64_at(l.src_off + 8 * i as u32).ok_or(short)?;
        }
        let name = raw.get(l.name_off as usize..).unwrap_or_default();
        let name = &name[..name.len().min(l.name_len as usize).min(MAX_NAME)];
        let len = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        d.name[..len].copy_from_slice(&name[..len]);
        d.name_len = len as u8;
        d.nb = (nb != strides(&d.ne, block.into(), bytes.into())).then_some(nb);
        Ok(d)
    }

    fn op_id(&self, op: u32, sub: u32) -> u16 {
        let sub = sub.min(1023) as u16;
        match op {
            _ if op == self.unary => UNARY_BASE + sub,
            _ if op == self.glu => GLU_BASE + sub,
            _ => op.min(1023) as u16,
        }
    }
}

fn strides(ne: &[u64; 4], block: u64, bytes: u64) -> [u64; 4] {
    let row = bytes.saturating_mul(ne[0] / block.max(1));
    let plane = row.saturating_mul(ne[1]);
    [bytes, row, plane, plane.saturating_mul(ne[2])]
}

/// Why bytes are not a tensor of this layout.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub enum Unreadable {
    #[error("tensor struct truncated at {0} bytes")]
    Short(usize),
    #[error("op number {0} is outside the engine's own table of {1} ops")]
    Op(u32, u32),
    #[error("type number {0} is not in the engine's own table")]
    Type(u32),
    #[error("dimension of {0} elements")]
    Dim(u64),
}

struct Slot {
    tgid: u32,
    addr: u64,
    desc: TargetTensor,
    id: u32,
    /// `version` for which `id` is valid; 0: never interned.
    fresh: u64,
}

/// The table: slots in order of arrival, and an open-addressing index of their positions.
pub struct TensorTable {
    slots: Vec<Slot>,
    /// Position in `slots` + 1; 0 = free.
    index: Box<[u16]>,
    /// Counts changes; ids interned at an older version are checked again.
    version: u64,
    /// Tensors dropped because the table was full.
    pub dropped: u64,
}

impl Default for TensorTable {
    fn default() -> Self {
        TensorTable {
            slots: Vec::with_capacity(SLOTS),
            index: vec![0; 2 * SLOTS].into(),
            version: 1,
            dropped: 0,
        }
    }
}

impl TensorTable {
    /// Increases whenever any description changes.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Stores the description of the tensor now at an address.
    pub fn update(&mut self, tgid: u32, addr: u64, desc: TargetTensor) {
        self.version += 1;
        match self.find(tgid, addr) {
            Ok(i) => {
                self.slots[i].desc = desc;
                self.slots[i].fresh = 0;
            }
            Err(_) if self.slots.len() == SLOTS => self.dropped += 1,
            Err(free) => {
                self.slots.push(Slot { tgid, addr, desc, id: 0, fresh: 0 });
                self.index[free] = self.slots.len() as u16;
            }
        }
    }

    /// What is known about the tensor at an address.
    pub fn get(&self, tgid: u32, addr: u64) -> Option<&TargetTensor> {
        self.find(tgid, addr).ok().map(|i| &self.slots[i].desc)
    }

    /// Each tensor's process, address and description.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64, &TargetTensor)> {
        self.slots.iter().map(|s| (s.tgid, s.addr, &s.desc))
    }

    pub fn forget(&mut self, tgid: u32) {
        self.slots.retain(|s| s.tgid != tgid);
        self.index.fill(0);
        for i in 0..self.slots.len() {
            if let Err(free) = self.find(self.slots[i].tgid, self.slots[i].addr) {
                self.index[free] = i as u16 + 1;
            }
        }
        self.version += 1;
    }

    /// The trace's id of the tensor at an address. Its sources are interned first.
    pub fn intern<W: Write>(
        &mut self,
        enc: &mut Encoder<W>,
        tgid: u32,
        addr: u64,
    ) -> Result<u32, WriteError> {
        self.intern_at(enc, tgid, addr, 0)
    }

    fn intern_at<W: Write>(
        &mut self,
        enc: &mut Encoder<W>,
        tgid: u32,
        addr: u64,
        depth: u32,
    ) -> Result<u32, WriteError> {
        let Ok(i) = self.find(tgid, addr) else { return enc.tensor(&unknown(tgid, addr)) };
        let (version, slot) = (self.version, &self.slots[i]);
        if slot.fresh == version || (depth >= MAX_DEPTH && slot.fresh > 0) {
            return Ok(slot.id);
        }
        if depth >= MAX_DEPTH {
            return enc.tensor(&unknown(tgid, addr));
        }
        let desc = slot.desc;
        let mut src = [None; MAX_SRC];
        for (id, &at) in src.iter_mut().zip(&desc.src) {
            *id = match at {
                0 => None,
                // A copy onto itself has itself as its second source.
                _ if at == addr => Some(ITSELF),
                _ => Some(self.intern_at(enc, tgid, at, depth + 1)?),
            };
        }
        let view_src = match desc.view_src {
            0 => None,
            at if at == addr => None,
            at => Some(self.intern_at(enc, tgid, at, depth + 1)?),
        };
        let n_src = src.iter().rposition(Option::is_some).map_or(0, |i| i + 1);
        let id = enc.tensor(&TensorDesc {
            pid: tgid,
            addr,
            known: true,
            op: desc.op,
            ty: desc.ty,
            flags: desc.flags,
            name: desc.name(),
            ne: desc.ne,
            nb: desc.nb,
            src: &src[..n_src],
            view_src,
        })?;
        self.slots[i].id = id;
        self.slots[i].fresh = version;
        Ok(id)
    }

    /// Position of the key's slot, or the free index entry where it belongs.
    fn find(&self, tgid: u32, addr: u64) -> Result<usize, usize> {
        let mask = self.index.len() - 1;
        let mut at = (addr ^ u64::from(tgid) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 17;
        loop {
            // Always terminates: the index has twice as many entries as there are slots.
            at &= mask;
            match self.index[at] {
                0 => return Err(at),
                i => {
                    let slot = &self.slots[i as usize - 1];
                    if slot.tgid == tgid && slot.addr == addr {
                        return Ok(i as usize - 1);
                    }
                }
            }
            at += 1;
        }
    }
}

fn unknown(tgid: u32, addr: u64) -> TensorDesc<'static> {
    TensorDesc {
        pid: tgid,
        addr,
        known: false,
        op: 0,
        ty: 0,
        flags: 0,
        name: b"",
        ne: [0; 4],
        nb: None,
        src: &[],
        view_src: None,
    }
}
