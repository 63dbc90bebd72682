//! What each probe fetches from registers and memory, in the syntax of the kernel's event definitions
//! (Documentation/trace/uprobetracer.rst), and its position in the sample.

use crate::engine::layout::Layout;
use crate::engine::probes::Prog;

/// A fetched value. The second tensor of a fused op has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    A,
    B,
    N,
    Width,
    Guid,
    Uid,
    Threads,
    Nodes,
    Ith,
    Pool,
    Tensor,
    Tensor2,
    Op,
    Type,
    Ne,
    Name,
    Op2,
    Type2,
    Ne2,
    Name2,
    Ra,
    Sp,
}

const FIELDS: usize = Field::Sp as usize + 1;

impl Field {
    fn name(self) -> &'static str {
        match self {
            Field::A => "a",
            Field::B => "b",
            Field::N => "n",
            Field::Width => "width",
            Field::Guid => "guid",
            Field::Uid => "uid",
            Field::Threads => "threads",
            Field::Nodes => "nodes",
            Field::Ith => "ith",
            Field::Pool => "pool",
            Field::Tensor => "tensor",
            Field::Tensor2 => "tensor2",
            Field::Op => "op",
            Field::Type => "type",
            Field::Ne => "ne",
            Field::Name => "name",
            Field::Op2 => "op2",
            Field::Type2 => "type2",
            Field::Ne2 => "ne2",
            Field::Name2 => "name2",
            Field::Ra => "ra",
            Field::Sp => "sp",
        }
    }
}

/// Registers of the first three arguments, and where a function finds, at its entry, its return address and a
/// `llama_batch` passed by value, in the kernel's syntax.
struct Machine {
    args: [&'static str; 3],
    return_address: &'static str,
    batch: &'static str,
}

#[cfg(target_arch = "x86_64")]
const MACHINE: Machine =
    Machine { args: ["%di", "%si", "%dx"], return_address: "+0(%sp):u64", batch: "+8(%sp):s32" };
#[cfg(target_arch = "aarch64")]
const MACHINE: Machine =
    Machine { args: ["%x0", "%x1", "%x2"], return_address: "%x30:u64", batch: "+0(%x1):s32" };

type Fetch = (Field, String);

fn register(field: Field, reg: &str) -> Fetch {
    (field, format!("{reg}:u64"))
}

fn memory(field: Field, off: u32, at: &str, kind: &str) -> Fetch {
    (field, format!("+{off}({at}):{kind}"))
}

/// Node count of the graph at `cgraph`, and the width of its first node.
fn shape(l: &Layout, cgraph: &str) -> Vec<Fetch> {
    let first = format!("+0(+{}({cgraph}))", l.nodes_off);
    vec![
        memory(Field::N, l.n_nodes_off, cgraph, "s32"),
        memory(Field::Width, l.ne_off.saturating_add(8), &first, "u32"),
    ]
}

/// What is fetched of a tensor at every hit: enough to notice that it differs from the previous one.
fn tensor(l: &Layout, [op, ty, ne, name]: [Field; 4], at: &str) -> Vec<Fetch> {
    vec![
        // The op, followed by the first of its parameters: UNARY's and GLU's kind.
        memory(op, l.op_off, at, "u64"),
        memory(ty, l.type_off, at, "u32"),
        memory(ne, l.ne_off, at, "u64[4]"),
        memory(name, l.name_off, at, "string"),
    ]
}

/// Fetches of a probe, with or without tensor descriptions.
fn fetches(prog: Prog, l: &Layout, structure: bool) -> Vec<Fetch> {
    let [a, b, c] = MACHINE.args;
    let pair = || vec![register(Field::A, a), register(Field::B, b)];
    match prog {
        Prog::TokenProcess => pair(),
        Prog::TokenDecode | Prog::TokenEncode => {
            vec![register(Field::A, a), (Field::N, MACHINE.batch.into())]
        }
        Prog::SchedEnter => [pair(), shape(l, b)].concat(),
        Prog::SplitEnter => {
            let guid = l.guid_off.map(|off| memory(Field::Guid, 0, &format!("+{off}({a})"), "u64[2]"));
            [pair(), shape(l, b), guid.into_iter().collect()].concat()
        }
        Prog::GraphEnter => {
            let mut all = [vec![register(Field::A, a)], shape(l, a)].concat();
            all.push(memory(Field::Nodes, l.nodes_off, a, "u64"));
            all.push(memory(Field::Threads, l.n_threads_off, b, "u32"));
            all.extend(l.uid_off.map(|off| memory(Field::Uid, off, a, "u64")));
            all
        }
        Prog::Op | Prog::Fused => {
            let mut all = vec![memory(Field::Ith, l.ith_off, a, "u32"), register(Field::Tensor, b)];
            all.extend(l.pool_off.map(|off| memory(Field::Pool, off, a, "u64")));
            if prog == Prog::Fused {
                all.push(register(Field::Tensor2, c));
            }
            if structure {
                all.extend(tensor(l, [Field::Op, Field::Type, Field::Ne, Field::Name], b));
                if prog == Prog::Fused {
                    all.extend(tensor(l, [Field::Op2, Field::Type2, Field::Ne2, Field::Name2], c));
                }
            }
            all
        }
        Prog::Barrier => vec![register(Field::Pool, a), (Field::Ra, MACHINE.return_address.into())],
        Prog::Tokenize | Prog::Detokenize | Prog::Sampling | Prog::Load | Prog::PhaseExit => {
            vec![register(Field::Sp, "%sp")]
        }
        Prog::WaitBackend | Prog::WaitSched | Prog::WaitContext | Prog::WaitRead => {
            vec![register(Field::A, a), register(Field::Sp, "%sp")]
        }
        Prog::WaitExit => vec![register(Field::Sp, "%sp")],
        Prog::TokenExit | Prog::SchedExit | Prog::SplitExit | Prog::GraphExit | Prog::OpExit => Vec::new(),
    }
}

/// What a probe fetches, in the syntax of its definition.
pub fn arguments(prog: Prog, l: &Layout, structure: bool) -> String {
    let fetch = |(field, fetch): Fetch| format!(" {}={fetch}", field.name());
    fetches(prog, l, structure).into_iter().map(fetch).collect()
}

/// Position of each value in a sample of one probe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places([Option<u16>; FIELDS]);

impl Places {
    /// From the event's `format`; `offset` returns a field's offset in it.
    pub fn of(
        prog: Prog,
        l: &Layout,
        structure: bool,
        offset: impl Fn(&str) -> Option<u32>,
    ) -> Option<Places> {
        let mut places = Places::default();
        for (field, _) in fetches(prog, l, structure) {
            places.0[field as usize] = Some(offset(field.name())?.try_into().ok()?);
        }
        Some(places)
    }

    fn at(&self, field: Field) -> Option<usize> {
        self.0[field as usize].map(usize::from)
    }

    /// An unsigned number of up to eight bytes.
    fn number<const N: usize>(&self, raw: &[u8], field: Field) -> Option<[u8; N]> {
        let at = self.at(field)?;
        raw.get(at..at + N)?.try_into().ok()
    }

    pub fn u64(&self, raw: &[u8], field: Field) -> Option<u64> {
        self.number(raw, field).map(u64::from_ne_bytes)
    }

    pub fn u32(&self, raw: &[u8], field: Field) -> Option<u32> {
        self.number(raw, field).map(u32::from_ne_bytes)
    }

    pub fn words<const N: usize>(&self, raw: &[u8], field: Field) -> Option<[u64; N]> {
        let at = self.at(field)?;
        let bytes = raw.get(at..at + 8 * N)?;
        let mut out = [0; N];
        for (word, bytes) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Some(out)
    }

    /// A string: the sample holds its position (low 16 bits) and length (high 16 bits, including the final zero).
    pub fn text<'r>(&self, raw: &'r [u8], field: Field) -> Option<&'r [u8]> {
        let told = self.u32(raw, field)?;
        let (at, len) = ((told & 0xffff) as usize, (told >> 16) as usize);
        let bytes = raw.get(at..at + len)?;
        Some(bytes.split(|&b| b == 0).next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_argument_fits_the_kernels_limit() {
        // MAX_ARGSTR_LEN, kernel/trace/trace_probe.h.
        let l = Layout::latest();
        for prog in Prog::ALL {
            let all = arguments(prog, &l, true);
            assert!(all.split(' ').all(|a| a.len() <= 63), "{all}");
        }
        assert!(!arguments(Prog::Op, &l, false).contains("name"));
        assert!(arguments(Prog::Fused, &l, true).contains("name2=+256("));
    }

    proptest! {
        #[test]
        fn nothing_is_read_beyond_a_sample(raw in proptest::collection::vec(any::<u8>(), 0..120), step in 0u32..40) {
            let l = Layout::latest();
            let places = Places::of(Prog::Fused, &l, true, |name| Some(8 + step * name.len() as u32)).expect("all there");
            for field in [Field::Name, Field::Name2] {
                let text = places.text(&raw, field);
                prop_assert!(text.is_none_or(|t| t.len() <= raw.len()));
            }
            let _ = (places.u64(&raw, Field::Op), places.words::<4>(&raw, Field::Ne), places.u32(&raw, Field::Ith));
            prop_assert_eq!(places.u64(&raw, Field::Ra), None);
        }
    }
}
