//! Wire coding of Tensor records: each is stored as its differences from an earlier tensor, so that a layer costs
//! little more than "same as the previous layer". Input is untrusted.
#![warn(clippy::indexing_slicing)]

use super::predict::{Diffs, put_diffs};
use super::record::{Tensor, TensorRecord};
use super::tensors::{KeptTensor, MAX_NAME, MAX_SRC, TensorName, coded};

/// How many Tensor records back a reference may reach.
const WINDOW: usize = 256;

/// The fields in wire order; those that change often come first to keep the mask short.
const ADDR: usize = 0;
const SRC: [usize; MAX_SRC] = [1, 2, 11, 12, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33];
const OP: usize = 3;
const TY: usize = 4;
const FLAGS: usize = 5;
const NE: [usize; 4] = [6, 7, 8, 13];
const VIEW: usize = 9;
const N_SRC: usize = 10;
const ID: usize = 14;
const PID: usize = 15;
const KNOWN: usize = 16;
const STRIDED: usize = 17;
const NB: [usize; 4] = [18, 19, 20, 21];
const FIELDS: usize = 34;
/// Leading fields: distance to the reference tensor, shift of the number in its name, bytes kept of its name.
const LEAD: usize = 3;

type SeriesFields = [u64; FIELDS];

#[derive(Clone)]
struct FieldState {
    fields: SeriesFields,
    /// Its address minus that of the previous record.
    step: u64,
    name: TensorName,
}

/// The Tensor records of a block so far.
#[derive(Default)]
pub(crate) struct Past {
    ring: Vec<FieldState>,
    count: usize,
    back: u64,
    shift: u64,
}

/// Marks a tensor that is its own source. Coded as a distance, it would name the next id, which no source has:
/// sources are written first.
const ITSELF: u32 = u32::MAX;

/// A tensor reference relative to `id`: 0 for none, else the distance back, or [`ITSELF`].
fn relative(id: u32, coded: u32) -> u64 {
    match coded {
        0 => 0,
        ITSELF => ITSELF.into(),
        _ => id.wrapping_add(1).wrapping_sub(coded).into(),
    }
}

fn absolute(id: u32, relative: u64) -> Option<Option<u32>> {
    Some(match u32::try_from(relative).ok()? {
        0 => None,
        ITSELF => Some(id),
        distance => Some(id.wrapping_sub(distance)),
    })
}

/// The first number in a name: its position, and its value if it has at most 9 digits and no leading zero.
fn number(name: &str) -> Option<(usize, usize, u64)> {
    let from = name.bytes().position(|b| b.is_ascii_digit())?;
    let digits = name.bytes().skip(from).take_while(u8::is_ascii_digit).count();
    let run = name.get(from..from + digits)?;
    let plain = digits == 1 || (digits <= 9 && !run.starts_with('0'));
    plain.then(|| run.parse().ok())?.map(|n| (from, from + digits, n))
}

/// `name` with `shift` added to its first number; unchanged where that is impossible.
fn shifted(name: &TensorName, shift: u64) -> TensorName {
    let moved = || {
        let (from, to, n) = number(name)?;
        let n = n.checked_add_signed(shift as i64)?;
        let mut out = TensorName::new();
        out.push_str(name.get(..from)?).ok()?;
        std::fmt::Write::write_fmt(&mut out, format_args!("{n}")).ok()?;
        out.push_str(name.get(to..)?).ok()?;
        Some(out)
    };
    if shift == 0 { name.clone() } else { moved().unwrap_or_else(|| name.clone()) }
}

/// True if the names differ only in their first number.
fn alike(a: &str, b: &str) -> bool {
    match (number(a), number(b)) {
        (Some((fa, ta, _)), Some((fb, tb, _))) => a[..fa] == b[..fb] && a[ta..] == b[tb..],
        (None, None) => a == b,
        _ => false,
    }
}

/// Length of the longest common prefix that ends on a character boundary in both.
fn shared_prefix(a: &str, b: &str) -> usize {
    let same = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    (0..=same).rev().find(|n| b.is_char_boundary(*n) && a.is_char_boundary(*n)).unwrap_or(0)
}

#[expect(clippy::indexing_slicing, reason = "indices are constants")]
fn fields_of(id: u32, c: &KeptTensor) -> SeriesFields {
    let mut f = [0; FIELDS];
    f[ADDR] = c.addr;
    f[OP] = c.op.into();
    f[TY] = c.ty.into();
    f[FLAGS] = c.flags.into();
    f[VIEW] = relative(id, coded(c.view_src));
    f[N_SRC] = c.src.len() as u64;
    f[ID] = id.into();
    f[PID] = c.pid.into();
    f[KNOWN] = c.known.into();
    f[STRIDED] = c.nb.is_some().into();
    NE.iter().zip(c.ne).for_each(|(i, n)| f[*i] = n);
    NB.iter().zip(c.nb.unwrap_or_default()).for_each(|(i, n)| f[*i] = n);
    SRC.iter().zip(&c.src).for_each(|(i, s)| f[*i] = relative(id, *s));
    f
}

/// The tensor with these fields; None if a value exceeds its type.
#[expect(clippy::indexing_slicing, reason = "indices are constants")]
fn tensor(f: &SeriesFields, name: &TensorName) -> Option<TensorRecord> {
    let id = f[ID].try_into().ok()?;
    let slots = SRC.get(..usize::try_from(f[N_SRC]).ok()?)?;
    let tensor = Tensor {
        pid: f[PID].try_into().ok()?,
        addr: f[ADDR],
        known: f[KNOWN] != 0,
        op: f[OP].try_into().ok()?,
        ty: f[TY].try_into().ok()?,
        flags: f[FLAGS].try_into().ok()?,
        name: name.as_str().into(),
        ne: NE.map(|i| f[i]),
        nb: (f[STRIDED] != 0).then(|| NB.map(|i| f[i])),
        src: slots.iter().map(|i| absolute(id, f[*i])).collect::<Option<_>>()?,
        view_src: absolute(id, f[VIEW])?,
    };
    Some(TensorRecord { id, tensor })
}

impl Past {
    /// For a writer: allocates everything now.
    pub fn with_room() -> Past {
        Past { ring: Vec::with_capacity(WINDOW), ..Past::default() }
    }

    pub fn clear(&mut self) {
        self.ring.clear();
        (self.count, self.back, self.shift) = (0, 0, 0);
    }

    /// The record `back` positions before the next one; None for 0 or outside the window.
    fn told(&self, back: usize) -> Option<&FieldState> {
        let at = self.count.checked_sub(back)?;
        if back == 0 { None } else { self.ring.get(at % WINDOW).filter(|_| back <= WINDOW) }
    }

    /// Predicted fields, name excluded, of a record that refers `back`. None if there is no such record.
    #[expect(clippy::indexing_slicing, reason = "indices are constants")]
    fn predict(&self, back: u64) -> Option<SeriesFields> {
        let mut f = [0; FIELDS];
        NE.iter().for_each(|i| f[*i] = 1);
        let mut step = 0;
        if back > 0 {
            let told = self.told(usize::try_from(back).ok()?)?;
            (f, step) = (told.fields, told.step);
        }
        let (id, addr) = self.told(1).map_or((0, 0), |t| (t.fields[ID].wrapping_add(1), t.fields[ADDR]));
        f[ID] = id;
        f[ADDR] = addr.wrapping_add(step);
        Some(f)
    }

    fn learn(&mut self, back: u64, shift: u64, fields: SeriesFields, name: TensorName) {
        let step = fields[ADDR].wrapping_sub(self.told(1).map_or(0, |t| t.fields[ADDR]));
        let told = FieldState { fields, step, name };
        let at = self.count % WINDOW;
        match self.ring.get_mut(at) {
            Some(place) => *place = told,
            None => self.ring.push(told),
        }
        self.count += 1;
        (self.back, self.shift) = (back, shift);
    }

    /// The last record with the same op and a name that differs only in its number.
    fn similar(&self, c: &KeptTensor) -> Option<u64> {
        let same = |t: &FieldState| {
            t.fields[OP] == u64::from(c.op)
                && t.fields[KNOWN] == u64::from(c.known)
                && alike(&t.name, &c.name)
        };
        (1..=WINDOW.min(self.count)).find(|b| self.told(*b).is_some_and(same)).map(|b| b as u64)
    }

    /// Appends the record without its kind, in the shortest of several encodings; `scratch` holds the
    /// alternatives.
    pub fn put(&mut self, out: &mut Vec<u8>, scratch: &mut Vec<u8>, id: u32, c: &KeptTensor) {
        let fields = fields_of(id, c);
        let start = out.len();
        let mut best: Option<(u64, u64)> = None;
        let ways = [Some(self.back), self.similar(c), Some(1), Some(0)];
        for (i, back) in ways.iter().enumerate().filter_map(|(i, b)| b.map(|b| (i, b))) {
            if ways.iter().take(i).any(|b| *b == Some(back)) {
                continue;
            }
            scratch.clear();
            let Some(shift) = self.put_way(scratch, back, &fields, &c.name) else { continue };
            if best.is_none() || scratch.len() < out.len() - start {
                out.truncate(start);
                out.extend_from_slice(scratch);
                best = Some((back, shift));
            }
        }
        let (back, shift) = best.unwrap_or_default();
        self.learn(back, shift, fields, c.name.clone());
    }

    /// Appends the record encoded relative to `back`; returns its shift.
    fn put_way(&self, out: &mut Vec<u8>, back: u64, fields: &SeriesFields, name: &TensorName) -> Option<u64> {
        let predicted = self.predict(back)?;
        let blank = TensorName::new();
        let from = self.told(back as usize).map_or(&blank, |t| &t.name);
        let wanted = match (number(from), number(name)) {
            (Some((_, _, a)), Some((_, _, b))) => b.wrapping_sub(a),
            _ => self.shift,
        };
        let shift = [self.shift, wanted].into_iter().find(|s| shifted(from, *s) == *name);
        let keep = if shift.is_some() { 0 } else { shared_prefix(from, name) + 1 };
        let shift = shift.unwrap_or(self.shift);
        let (mut all, mut expected) = ([0; LEAD + FIELDS], [0; LEAD + FIELDS]);
        all[..LEAD].copy_from_slice(&[back, shift, keep as u64]);
        expected[..LEAD].copy_from_slice(&[self.back, self.shift, 0]);
        all[LEAD..].copy_from_slice(fields);
        expected[LEAD..].copy_from_slice(&predicted);
        put_diffs(out, &all, &expected);
        if keep > 0 {
            out.extend_from_slice(name.as_bytes().get(keep - 1..).unwrap_or_default());
        }
        Some(shift)
    }

    /// Decodes the tensor in `body`, which begins after the kind.
    pub fn take(&mut self, body: &[u8]) -> Option<TensorRecord> {
        let mut diffs = Diffs::new(body)?;
        let back = diffs.next(self.back)?;
        let shift = diffs.next(self.shift)?;
        let keep = diffs.next(0)?;
        let mut fields = self.predict(back)?;
        for f in &mut fields {
            *f = diffs.next(*f)?;
        }
        let text = diffs.rest()?;
        let blank = TensorName::new();
        let from = self.told(usize::try_from(back).ok()?).map_or(&blank, |t| &t.name);
        let name = match keep.checked_sub(1) {
            None => shifted(from, shift),
            Some(keep) => {
                let mut name = TensorName::new();
                name.push_str(from.get(..usize::try_from(keep).ok()?)?).ok()?;
                name.push_str(std::str::from_utf8(text).ok()?).ok()?;
                name
            }
        };
        let tensor = tensor(&fields, &name)?;
        self.learn(back, shift, fields, name);
        Some(tensor)
    }
}

const _: () = assert!(LEAD + FIELDS <= 64 && MAX_NAME < 256);
