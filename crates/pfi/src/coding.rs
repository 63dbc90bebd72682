//! The encodings inside records: varints, slice times, plans, id lists. All input here is untrusted.
#![warn(clippy::indexing_slicing)]

use super::record::{
    Chunk, Content, DeviceKernels, Dispatches, Enqueued, Experts, OpCounts, OpCpus, Plan, SensorSample,
    Slices, Submissions, Ubatch,
};

/// Longest LEB128 encoding of a u64, bytes.
pub(crate) const MAX_VARINT: usize = 10;

/// One op hit; ns of CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    pub start: u64,
    /// Barrier entry (barrier mode). In interval mode only the last slice has an end.
    pub end: Option<u64>,
}

/// Appends `v` as unsigned LEB128.
#[inline]
pub(crate) fn put_varint(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

/// The varint at `pos` and the position after it. None if the data ends first or the value exceeds 64 bits.
#[inline]
pub(crate) fn varint(data: &[u8], pos: usize) -> Option<(u64, usize)> {
    // Nearly every varint in a trace has at most four bytes: find its end and fold it without a loop.
    if let Some(word) = data.get(pos..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*word);
        let bytes = (!word & 0x8080_8080).trailing_zeros() as usize / 8 + 1;
        if bytes <= 4 {
            let w = word & (u64::MAX >> (64 - 8 * bytes));
            let v = w & 0x7f | w >> 1 & 0x3f80 | w >> 2 & 0x1f_c000 | w >> 3 & 0xfe0_0000;
            return Some((v, pos + bytes));
        }
    }
    slow_varint(data, pos)
}

fn slow_varint(data: &[u8], pos: usize) -> Option<(u64, usize)> {
    let mut v = 0u64;
    for (i, byte) in data.get(pos..)?.iter().take(MAX_VARINT).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if i == MAX_VARINT - 1 && bits > 1 {
            return None;
        }
        v |= bits << (7 * i);
        if byte & 0x80 == 0 {
            return Some((v, pos + i + 1));
        }
    }
    None
}

pub(crate) fn zigzag(v: i64) -> u64 {
    ((v << 1) ^ (v >> 63)) as u64
}

pub(crate) fn unzigzag(v: u64) -> i64 {
    (v >> 1) as i64 ^ -((v & 1) as i64)
}

/// One op hit of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlanHit {
    /// Id of the tensor computed.
    pub tensor: u32,
    /// Id of a second tensor computed by the same hit.
    pub fused: Option<u32>,
}

fn distance(from: u32, to: u32) -> u64 {
    zigzag(i64::from(to) - i64::from(from))
}

fn step(from: u32, coded: u64) -> u32 {
    from.wrapping_add(unzigzag(coded) as u32)
}

/// Appends the encoding of `hits`.
pub(crate) fn put_hits(out: &mut Vec<u8>, hits: &[PlanHit]) {
    let mut prev = 0;
    for hit in hits {
        put_varint(out, distance(prev, hit.tensor) << 1 | u64::from(hit.fused.is_some()));
        if let Some(fused) = hit.fused {
            put_varint(out, distance(hit.tensor, fused));
        }
        prev = hit.tensor;
    }
}

/// Decodes [`Plan::hits`]. Stops early at invalid bytes.
pub(crate) fn hits_of<'a>(data: &'a [u8]) -> impl Iterator<Item = PlanHit> + use<'a> {
    let (mut pos, mut prev) = (0, 0);
    std::iter::from_fn(move || {
        let (v, next) = varint(data, pos)?;
        pos = next;
        prev = step(prev, v >> 1);
        if v & 1 == 0 {
            return Some(PlanHit { tensor: prev, fused: None });
        }
        let (f, next) = varint(data, pos)?;
        pos = next;
        Some(PlanHit { tensor: prev, fused: Some(step(prev, f)) })
    })
}

/// The op hits of a plan, in order.
pub fn plan_hits<'a>(plan: &Plan<'a>) -> impl Iterator<Item = PlanHit> + use<'a> {
    hits_of(plan.hits.0)
}

/// Ways to pack the two numbers of a barrier-mode slice into one little-endian word: number of bytes, and bits
/// for the first number. The lowest three bits give the row; the remaining bits hold the second number. Found by
/// search for the smallest mean size over recordings of a 1B-shaped model on an idle and on a busy machine, and
/// over uniform and logarithmic op times of 2 us to 1 ms with gaps of 0.3 to 100 us. Row 7 is a byte 7 and two
/// varints.
const PAIRS: [(usize, u32); 7] = [(3, 10), (3, 11), (4, 16), (4, 19), (5, 20), (5, 24), (6, 20)];
const ROW_BITS: u32 = 3;
const ROW_MASK: u64 = 7;

/// Bits left in a row's word for the second number.
const fn second_bits((bytes, first): (usize, u32)) -> u32 {
    8 * bytes as u32 - ROW_BITS - first
}

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// Bytes, bits of the first number, mask of the first, mask of the second.
#[expect(clippy::indexing_slicing, reason = "computed when it is compiled")]
const UNPACK: [(usize, u32, u64, u64); 7] = {
    let mut rows = [(0, 0, 0, 0); 7];
    let mut i = 0;
    while i < rows.len() {
        let (bytes, first) = PAIRS[i];
        rows[i] = (bytes, first, mask(first), mask(second_bits(PAIRS[i])));
        i += 1;
    }
    rows
};

/// Appends two numbers, packed. Rows are sorted by size, so the first that fits is the shortest.
#[expect(clippy::indexing_slicing, reason = "a number of bytes from the table")]
fn put_pair(out: &mut Vec<u8>, first: u64, second: u64) {
    for (row, pair) in PAIRS.iter().enumerate() {
        let (bytes, bits) = *pair;
        if first <= mask(bits) && second <= mask(second_bits(*pair)) {
            let word = row as u64 | first << ROW_BITS | second << (ROW_BITS + bits);
            out.extend_from_slice(&word.to_le_bytes()[..bytes]);
            return;
        }
    }
    out.push(ROW_MASK as u8);
    put_varint(out, first);
    put_varint(out, second);
}

/// The two numbers at `pos` and the position after them.
#[inline]
fn pair(data: &[u8], pos: usize) -> Option<(u64, u64, usize)> {
    let rest = data.get(pos..)?;
    let word = match rest.first_chunk::<8>() {
        Some(word) => u64::from_le_bytes(*word),
        None => short_word(rest),
    };
    let Some((bytes, bits, first, second)) = UNPACK.get((word & ROW_MASK) as usize) else {
        let (first, pos) = varint(data, pos + 1)?;
        let (second, pos) = varint(data, pos)?;
        return Some((first, second, pos));
    };
    if *bytes > rest.len() {
        return None;
    }
    let word = word >> ROW_BITS;
    Some((word & first, word >> bits & second, pos + bytes))
}

/// The last few bytes of a list, zero-padded.
fn short_word(rest: &[u8]) -> u64 {
    rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// One op on one thread, times in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SliceTime {
    /// Absolute CLOCK_MONOTONIC.
    pub start: i64,
    /// Barrier mode: time until barrier entry, None if that was not seen. Interval mode: always None.
    pub busy: Option<u64>,
    /// Start of the thread's next slice. For the record's last slice: None in barrier mode; in interval mode its
    /// end, None if that was not seen.
    pub next: Option<i64>,
}

/// Iterator over a Slices record whose `t` is absolute. Yields at most `n` slices and stops early at damage.
#[derive(Debug, Clone)]
pub struct SliceIter<'a> {
    data: &'a [u8],
    pos: usize,
    left: u32,
    start: i64,
    barrier: bool,
}

/// The slices of a record.
pub fn slice_iter<'a>(s: &Slices<'a>) -> SliceIter<'a> {
    SliceIter { data: s.data, pos: 0, left: s.n, start: s.t, barrier: s.barrier }
}

impl Iterator for SliceIter<'_> {
    type Item = SliceTime;

    #[inline]
    fn next(&mut self) -> Option<SliceTime> {
        self.left = self.left.checked_sub(1)?;
        let start = self.start;
        if !self.barrier {
            let (length, pos) = varint(self.data, self.pos)?;
            self.pos = pos;
            self.start = start.wrapping_add(length as i64);
            let seen = self.left > 0 || length > 0;
            return Some(SliceTime { start, busy: None, next: seen.then_some(self.start) });
        }
        let (busy, gap, pos) = pair(self.data, self.pos)?;
        self.pos = pos;
        let busy = busy.checked_sub(1);
        self.start = start.wrapping_add(busy.unwrap_or(0) as i64).wrapping_add(gap as i64);
        Some(SliceTime { start, busy, next: (self.left > 0).then_some(self.start) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left as usize))
    }
}

/// The varints of a list, up to its end or the first invalid one.
fn varints<'a>(data: &'a [u8]) -> impl Iterator<Item = u64> + use<'a> {
    let mut pos = 0;
    std::iter::from_fn(move || {
        let (v, next) = varint(data, pos)?;
        pos = next;
        Some(v)
    })
}

/// The counts, slice by slice, and within a slice in counter id order; None = unknown. At most as many as the
/// record's slices times its counters.
pub fn counts<'a>(r: &OpCounts<'a>) -> impl Iterator<Item = Option<u64>> + use<'a> {
    let n = u64::from(r.n) * u64::from(r.counters.count_ones());
    varints(r.data).take(usize::try_from(n).unwrap_or(usize::MAX)).map(|v| v.checked_sub(1))
}

/// The changes of an OpCpus record: when, and the CPU from then on; None = not known.
pub fn cpu_changes<'a>(r: &OpCpus<'a>) -> impl Iterator<Item = (i64, Option<u16>)> + use<'a> {
    let (mut all, mut t, mut later) = (varints(r.data), r.t, false);
    std::iter::from_fn(move || {
        if std::mem::replace(&mut later, true) {
            t = t.saturating_add_unsigned(all.next()?);
        }
        match all.next()?.checked_sub(1) {
            None => Some((t, None)),
            Some(cpu) => Some((t, Some(u16::try_from(cpu).ok()?))),
        }
    })
}

/// The expert ids, token by token; at most as many as the record claims.
pub fn expert_ids<'a>(r: &Experts<'a>) -> impl Iterator<Item = i64> + use<'a> {
    let n = u64::from(r.rows) * u64::from(r.used);
    varints(r.data).take(usize::try_from(n).unwrap_or(usize::MAX)).map(unzigzag)
}

/// The values of a sample as (sensor id, value).
pub fn sensor_values<'a>(r: &SensorSample<'a>) -> impl Iterator<Item = (u32, i64)> + use<'a> {
    let mut all = varints(r.data);
    std::iter::from_fn(move || Some((u32::try_from(all.next()?).ok()?, unzigzag(all.next()?))))
}

/// Appends chunks of a Ubatch record.
pub(crate) fn put_chunks(out: &mut Vec<u8>, chunks: impl Iterator<Item = Chunk>) {
    for c in chunks {
        [zigzag(c.seq), zigzag(c.pos), c.tokens, c.outputs].into_iter().for_each(|v| put_varint(out, v));
    }
}

/// The chunks of a Ubatch record, in order; ends early if its data is damaged.
pub fn chunks<'a>(r: &Ubatch<'a>) -> impl Iterator<Item = Chunk> + use<'a> {
    let (data, mut at) = (r.data, 0);
    std::iter::from_fn(move || {
        let mut next = || {
            let (value, after) = varint(data, at)?;
            at = after;
            Some(value)
        };
        let (seq, pos) = (unzigzag(next()?), unzigzag(next()?));
        Some(Chunk { seq, pos, tokens: next()?, outputs: next()? })
    })
}

/// The hashes of a Content record, by block.
pub fn content_hashes<'a>(r: &Content<'a>) -> impl Iterator<Item = u64> + use<'a> {
    let (words, _) = r.data.as_chunks::<8>();
    words.iter().map(|word| u64::from_le_bytes(*word))
}

/// The groups of an Enqueued record: nodes and host time, ns.
pub fn enqueued_groups<'a>(r: &Enqueued<'a>) -> impl Iterator<Item = (u32, u64)> + use<'a> {
    let mut all = varints(r.data);
    std::iter::from_fn(move || Some((u32::try_from(all.next()?).ok()?, all.next()?)))
}

/// The kernels of each group of a Dispatches record.
pub fn group_kernels<'a>(r: &Dispatches<'a>) -> impl Iterator<Item = u64> + use<'a> {
    varints(r.data)
}

/// The times of one kernel, ns; those of the device are mapped to the host's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelTimes {
    /// Id of its name.
    pub name: u32,
    /// When the host began to enqueue it.
    pub host: u64,
    pub queued: u64,
    pub submitted: u64,
    pub started: u64,
    pub ended: u64,
}

impl KernelTimes {
    fn stamps(&self) -> [u64; 5] {
        [self.host, self.queued, self.submitted, self.started, self.ended]
    }
}

/// Appends the data of a DeviceKernels record that begins at `t`.
pub(crate) fn put_kernels(out: &mut Vec<u8>, t: u64, kernels: &[KernelTimes]) {
    let mut before = t;
    for kernel in kernels {
        put_varint(out, u64::from(kernel.name));
        let mut last = before;
        for stamp in kernel.stamps() {
            put_varint(out, zigzag(stamp.wrapping_sub(last) as i64));
            last = stamp;
        }
        before = kernel.host;
    }
}

/// A submission to a device. Times are CLOCK_MONOTONIC, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Submission {
    /// The process that submitted it; 0: not known.
    pub pid: u32,
    /// When the process submitted it.
    pub queued: Option<u64>,
    /// When the kernel handed it to the device.
    pub run: Option<u64>,
    /// When the device began, by its own clock.
    pub started: Option<u64>,
    /// When the device ended, by its own clock if `started` is known, else when the kernel noticed it.
    pub end: u64,
    /// Time that the device says it took, ns.
    pub busy: Option<u64>,
    /// The device's clock during that time, Hz.
    pub clock: Option<u64>,
}

/// Appends the data of a Submissions record that begins at `t`.
pub(crate) fn put_submissions(out: &mut Vec<u8>, t: u64, all: &[Submission]) {
    let mut before = t;
    for s in all {
        put_varint(out, s.pid.into());
        put_varint(out, zigzag(s.end.wrapping_sub(before) as i64));
        before = s.end;
        let back = |at: u64| zigzag(s.end.wrapping_sub(at) as i64);
        for value in [s.queued.map(back), s.run.map(back), s.started.map(back), s.busy, s.clock] {
            put_varint(out, value.map_or(0, |v| v.saturating_add(1)));
        }
    }
}

/// The submissions of a Submissions record.
pub fn submissions<'a>(r: &Submissions<'a>) -> impl Iterator<Item = Submission> + use<'a> {
    let (mut all, mut end) = (varints(r.data), r.t as u64);
    std::iter::from_fn(move || {
        let pid = u32::try_from(all.next()?).ok()?;
        end = end.wrapping_add(unzigzag(all.next()?) as u64);
        let mut values = [None; 5];
        for value in &mut values {
            *value = all.next()?.checked_sub(1);
        }
        let [queued, run, started, busy, clock] = values;
        let at = |back: Option<u64>| back.map(|back| end.wrapping_sub(unzigzag(back) as u64));
        Some(Submission { pid, queued: at(queued), run: at(run), started: at(started), end, busy, clock })
    })
}

/// The kernels of a DeviceKernels record.
pub fn kernel_times<'a>(r: &DeviceKernels<'a>) -> impl Iterator<Item = KernelTimes> + use<'a> {
    let (mut all, mut before) = (varints(r.data), r.t as u64);
    std::iter::from_fn(move || {
        let name = u32::try_from(all.next()?).ok()?;
        let mut last = before;
        let mut stamp = || {
            last = last.wrapping_add_signed(unzigzag(all.next()?));
            Some(last)
        };
        let (host, queued, submitted) = (stamp()?, stamp()?, stamp()?);
        let (started, ended) = (stamp()?, stamp()?);
        before = host;
        Some(KernelTimes { name, host, queued, submitted, started, ended })
    })
}

/// Appends the encoding of `slices`; `after` is the start of the slice following the last one, if any. Times that
/// run backwards are clamped: a slice never starts before its predecessor nor ends after the next start.
pub(crate) fn put_slices(out: &mut Vec<u8>, barrier: bool, slices: &[Slice], after: Option<u64>) {
    let mut start = slices.first().map_or(0, |s| s.start);
    for (i, slice) in slices.iter().enumerate() {
        let next = slices.get(i + 1).map(|s| s.start.max(start));
        if barrier {
            let limit = next.unwrap_or(u64::MAX);
            let busy = slice.end.map(|end| end.clamp(start, limit.max(start)) - start);
            let gap = next.map_or(0, |next| next - start - busy.unwrap_or(0));
            put_pair(out, busy.map_or(0, |b| b.saturating_add(1)), gap);
        } else {
            let end = next.or(slice.end).or(after);
            put_varint(out, end.map_or(0, |e| e.saturating_sub(start)));
        }
        start = next.unwrap_or(start);
    }
}
