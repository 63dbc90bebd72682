//! What each probe fetches from registers and memory, in the syntax of the kernel's event definitions
//! (Documentation/trace/uprobetracer.rst), and its position in the sample.

use engine::layout::Layout;
use engine::probes::Prog;

/// A fetched value. The second tensor of a fused op has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchArg {
    A,
    B,
    N,
    Width,
    Guid,
    Uid,
    Threads,
    Nodes,
    Ith,
    Nth,
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

const FIELDS: usize = FetchArg::Sp as usize + 1;

impl FetchArg {
    fn name(self) -> &'static str {
        match self {
            FetchArg::A => "a",
            FetchArg::B => "b",
            FetchArg::N => "n",
            FetchArg::Width => "width",
            FetchArg::Guid => "guid",
            FetchArg::Uid => "uid",
            FetchArg::Threads => "threads",
            FetchArg::Nodes => "nodes",
            FetchArg::Ith => "ith",
            FetchArg::Nth => "nth",
            FetchArg::Pool => "pool",
            FetchArg::Tensor => "tensor",
            FetchArg::Tensor2 => "tensor2",
            FetchArg::Op => "op",
            FetchArg::Type => "type",
            FetchArg::Ne => "ne",
            FetchArg::Name => "name",
            FetchArg::Op2 => "op2",
            FetchArg::Type2 => "type2",
            FetchArg::Ne2 => "ne2",
            FetchArg::Name2 => "name2",
            FetchArg::Ra => "ra",
            FetchArg::Sp => "sp",
        }
    }
}

/// Registers of the first three arguments, and where a function finds, at its entry, its return address and a
/// `llama_batch` passed by value, in the kernel's syntax.
struct CallingConvention {
    args: [&'static str; 3],
    return_address: &'static str,
    batch: &'static str,
}

#[cfg(target_arch = "x86_64")]
const MACHINE: CallingConvention =
    CallingConvention { args: ["%di", "%si", "%dx"], return_address: "+0(%sp):u64", batch: "+8(%sp):s32" };
#[cfg(target_arch = "aarch64")]
const MACHINE: CallingConvention =
    CallingConvention { args: ["%x0", "%x1", "%x2"], return_address: "%x30:u64", batch: "+0(%x1):s32" };

type Fetch = (FetchArg, String);

fn register(field: FetchArg, reg: &str) -> Fetch {
    (field, format!("{reg}:u64"))
}

fn memory(field: FetchArg, off: u32, at: &str, kind: &str) -> Fetch {
    (field, format!("+{off}({at}):{kind}"))
}

/// Node count of the graph at `cgraph`, and the width of its first node.
fn shape(l: &Layout, cgraph: &str) -> Vec<Fetch> {
    let first = format!("+0(+{}({cgraph}))", l.nodes_off);
    vec![
        memory(FetchArg::N, l.n_nodes_off, cgraph, "s32"),
        memory(FetchArg::Width, l.ne_off.saturating_add(8), &first, "u32"),
    ]
}

/// What is fetched of a tensor at every hit: enough to notice that it differs from the previous one.
fn tensor(l: &Layout, [op, ty, ne, name]: [FetchArg; 4], at: &str) -> Vec<Fetch> {
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
    let pair = || vec![register(FetchArg::A, a), register(FetchArg::B, b)];
    match prog {
        Prog::TokenProcess => pair(),
        Prog::TokenDecode | Prog::TokenEncode => {
            vec![register(FetchArg::A, a), (FetchArg::N, MACHINE.batch.into())]
        }
        Prog::SchedEnter => [pair(), shape(l, b)].concat(),
        Prog::SplitEnter => {
            let guid = l.guid_off.map(|off| memory(FetchArg::Guid, 0, &format!("+{off}({a})"), "u64[2]"));
            [pair(), shape(l, b), guid.into_iter().collect()].concat()
        }
        Prog::GraphEnter => {
            let mut all = [vec![register(FetchArg::A, a)], shape(l, a)].concat();
            all.push(memory(FetchArg::Nodes, l.nodes_off, a, "u64"));
            all.push(memory(FetchArg::Threads, l.n_threads_off, b, "u32"));
            all.extend(l.uid_off.map(|off| memory(FetchArg::Uid, off, a, "u64")));
            all
        }
        Prog::Op | Prog::Fused => {
            let mut all = vec![
                memory(FetchArg::Ith, l.ith_off, a, "u32"),
                memory(FetchArg::Nth, l.nth_off, a, "u32"),
                register(FetchArg::Tensor, b),
            ];
            all.extend(l.pool_off.map(|off| memory(FetchArg::Pool, off, a, "u64")));
            if prog == Prog::Fused {
                all.push(register(FetchArg::Tensor2, c));
            }
            if structure {
                all.extend(tensor(l, [FetchArg::Op, FetchArg::Type, FetchArg::Ne, FetchArg::Name], b));
                if prog == Prog::Fused {
                    all.extend(tensor(
                        l,
                        [FetchArg::Op2, FetchArg::Type2, FetchArg::Ne2, FetchArg::Name2],
                        c,
                    ));
                }
            }
            all
        }
        Prog::Barrier => vec![register(FetchArg::Pool, a), (FetchArg::Ra, MACHINE.return_address.into())],
        Prog::Tokenize | Prog::Detokenize | Prog::Sampling | Prog::Load | Prog::PhaseExit => {
            vec![register(FetchArg::Sp, "%sp")]
        }
        Prog::WaitBackend | Prog::WaitSched | Prog::WaitContext | Prog::WaitRead => {
            vec![register(FetchArg::A, a), register(FetchArg::Sp, "%sp")]
        }
        // The sampler's table of functions.
        Prog::SamplerApply | Prog::SamplerAccept => {
            vec![register(FetchArg::Sp, "%sp"), register(FetchArg::A, a), memory(FetchArg::B, 0, a, "u64")]
        }
        Prog::WaitExit => vec![register(FetchArg::Sp, "%sp")],
        // Returns, and what only BPF programs read.
        _ => Vec::new(),
    }
}

/// What a probe fetches, in the syntax of its definition.
pub fn arguments(prog: Prog, l: &Layout, structure: bool) -> String {
    let fetch = |(field, fetch): Fetch| format!(" {}={fetch}", field.name());
    fetches(prog, l, structure).into_iter().map(fetch).collect()
}

/// Position of each value in a sample of one probe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SamplePositions([Option<u16>; FIELDS]);

impl SamplePositions {
    /// From the event's `format`; `offset` returns a field's offset in it.
    pub fn of(
        prog: Prog,
        l: &Layout,
        structure: bool,
        offset: impl Fn(&str) -> Option<u32>,
    ) -> Option<SamplePositions> {
        let mut places = SamplePositions::default();
        for (field, _) in fetches(prog, l, structure) {
            places.0[field as usize] = Some(offset(field.name())?.try_into().ok()?);
        }
        Some(places)
    }

    fn at(&self, field: FetchArg) -> Option<usize> {
        self.0[field as usize].map(usize::from)
    }

    /// An unsigned number of up to eight bytes.
    fn number<const N: usize>(&self, raw: &[u8], field: FetchArg) -> Option<[u8; N]> {
        let at = self.at(field)?;
        raw.get(at..at + N)?.try_into().ok()
    }

    pub fn u64(&self, raw: &[u8], field: FetchArg) -> Option<u64> {
        self.number(raw, field).map(u64::from_ne_bytes)
    }

    pub fn u32(&self, raw: &[u8], field: FetchArg) -> Option<u32> {
        self.number(raw, field).map(u32::from_ne_bytes)
    }

    pub fn words<const N: usize>(&self, raw: &[u8], field: FetchArg) -> Option<[u64; N]> {
        let at = self.at(field)?;
        let bytes = raw.get(at..at + 8 * N)?;
        let mut out = [0; N];
        for (word, bytes) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Some(out)
    }

    /// A string: the sample holds its position (low 16 bits) and length (high 16 bits, including the final zero).
    pub fn text<'r>(&self, raw: &'r [u8], field: FetchArg) -> Option<&'r [u8]> {
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
            let places = SamplePositions::of(Prog::Fused, &l, true, |name| Some(8 + step * name.len() as u32)).expect("all there");
            for field in [FetchArg::Name, FetchArg::Name2] {
                let text = places.text(&raw, field);
                prop_assert!(text.is_none_or(|t| t.len() <= raw.len()));
            }
            let _ = (places.u64(&raw, FetchArg::Op), places.words::<4>(&raw, FetchArg::Ne), places.u32(&raw, FetchArg::Ith));
            prop_assert_eq!(places.u64(&raw, FetchArg::Ra), None);
        }
    }
}
