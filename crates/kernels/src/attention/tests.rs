//! Compares attention on every instruction set and with every way to split it to a two-pass version in f64.

use super::*;
use half::f16;
use proptest::prelude::*;

/// Shape of a case, and how it is run.
#[derive(Debug, Clone, Copy)]
struct Case {
    tokens: usize,
    positions: usize,
    kv_heads: usize,
    group: usize,
    dk: usize,
    dv: usize,
    softcap: f32,
    round_q: bool,
    mask: Masked,
    threads: usize,
    seed: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Masked {
    No,
    Causal,
    /// Only this many positions before the token.
    Window(usize),
}

/// Numbers from -1 to 1.
fn noise(seed: u32, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 * 2.0 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn halves(seed: u32, n: usize) -> Vec<u16> {
    noise(seed, n).into_iter().map(|x| f16::from_f32(x).to_bits()).collect()
}

/// All tensors of a case; K and V have gaps between positions, as in a cache.
struct Tensors {
    q: Vec<f32>,
    k: Vec<u16>,
    v: Vec<u16>,
    mask: Vec<u16>,
    out: Vec<f32>,
}

impl Case {
    fn open(&self, token: usize, position: usize) -> bool {
        // The last token is at the third-last position.
        let at = (self.positions + token).saturating_sub(self.tokens + 2);
        match self.mask {
            Masked::No => true,
            Masked::Causal => position <= at,
            Masked::Window(n) => position <= at && position + n > at,
        }
    }

    fn heads(&self) -> usize {
        self.kv_heads * self.group
    }

    fn tensors(&self) -> Tensors {
        let heads = self.heads();
        let mask = (0..self.tokens * self.positions).map(|i| {
            let open = self.open(i / self.positions, i % self.positions);
            if open { 0 } else { f16::NEG_INFINITY.to_bits() }
        });
        // Large queries make the running maximum change.
        let q = noise(self.seed, self.tokens * heads * self.dk).into_iter().map(|x| x * 3.0).collect();
        Tensors {
            q,
            k: halves(self.seed + 1, self.positions * (self.kv_heads * self.dk + 3)),
            v: halves(self.seed + 2, self.positions * (self.kv_heads * self.dv + 5)),
            mask: mask.collect(),
            out: vec![9.0; self.tokens * heads * self.dv],
        }
    }

    /// q as [head][token], out as [token][head], like ggml's.
    fn attention(&self, t: &mut Tensors) -> Attention {
        let (heads, dk, dv) = (self.heads(), self.dk, self.dv);
        Attention {
            q: StridedRows { base: t.q.as_ptr(), row: 4 * dk, head: 4 * dk * self.tokens },
            k: StridedRows { base: t.k.as_ptr(), row: 2 * (self.kv_heads * dk + 3), head: 2 * dk },
            v: StridedRows { base: t.v.as_ptr(), row: 2 * (self.kv_heads * dv + 5), head: 2 * dv },
            out: StridedRows { base: t.out.as_mut_ptr(), row: 4 * dv * heads, head: 4 * dv },
            mask: (self.mask != Masked::No).then_some(StridedRows {
                base: t.mask.as_ptr(),
                row: 2 * self.positions,
                head: 0,
            }),
            tokens: self.tokens,
            positions: self.positions,
            heads,
            kv_heads: self.kv_heads,
            dk,
            dv,
            scale: 1.0 / (dk as f32).sqrt(),
            softcap: self.softcap,
            round_q: self.round_q,
            halves: false,
        }
    }

    fn run(&self, isa: Isa, halves: bool) -> Vec<f32> {
        let mut t = self.tensors();
        let a = Attention { halves, ..self.attention(&mut t) };
        let plan = a.plan(self.threads);
        // Filled with NaN, so that unwritten elements show up.
        let mut scratch = vec![[f32::NAN; 16]; plan.scratch_bytes / 64 + 1];
        let mut partials = vec![f32::NAN; plan.partials];
        let aligned = scratch.as_mut_ptr().cast::<u8>();
        // SAFETY: the tensors have the shapes that the numbers describe; everything runs on this thread.
        unsafe {
            let aligned = aligned.add(aligned.align_offset(64));
            for item in 0..plan.items {
                run_item(isa, &a, &plan, item, aligned, partials.as_mut_ptr());
            }
            for row in 0..plan.merges {
                run_merge(&a, &plan, row, partials.as_ptr());
            }
        }
        t.out
    }

    /// Softmax over a full row, in f64.
    fn expected(&self) -> Vec<f32> {
        let t = self.tensors();
        let (heads, dk, dv) = (self.heads(), self.dk, self.dv);
        let half = |h: u16| f64::from(f16::from_bits(h));
        let mut out = vec![0.0; t.out.len()];
        for (token, head) in (0..self.tokens).flat_map(|t| (0..heads).map(move |h| (t, h))) {
            let q = &t.q[(head * self.tokens + token) * dk..][..dk];
            let q_of = |x: f32| f64::from(if self.round_q { f16::from_f32(x).to_f32() } else { x });
            let row = |data: &[u16], p: usize, d: usize, gap: usize| {
                let at = p * (self.kv_heads * d + gap) + head / self.group * d;
                data[at..at + d].iter().map(|h| half(*h)).collect::<Vec<_>>()
            };
            let score = |p: usize| {
                let dot: f64 = row(&t.k, p, dk, 3).iter().zip(q).map(|(k, q)| k * q_of(*q)).sum();
                let s = dot / f64::from(dk as f32).sqrt();
                let cap = f64::from(self.softcap);
                if cap == 0.0 { s } else { cap * (s / cap).tanh() }
            };
            let open: Vec<_> = (0..self.positions).filter(|p| self.open(token, *p)).collect();
            let scores: Vec<_> = open.iter().map(|p| score(*p)).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            let mut acc = vec![0.0; dv];
            for (p, s) in open.iter().zip(&scores) {
                for (a, v) in acc.iter_mut().zip(row(&t.v, *p, dv, 5)) {
                    *a += (s - max).exp() / sum * v;
                }
            }
            for (o, a) in out[(token * heads + head) * dv..].iter_mut().zip(acc) {
                *o = a as f32;
            }
        }
        out
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let want = self.expected();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            for (i, (got, want)) in self.run(isa, false).iter().zip(&want).enumerate() {
                prop_assert!((got - want).abs() < 2e-5, "{isa}: element {i}: {got} instead of {want}");
            }
        }
        for (i, (got, want)) in self.run(Isa::best(), true).iter().zip(&want).enumerate() {
            prop_assert!((got - want).abs() < 2e-5, "f16 products: element {i}: {got} instead of {want}");
        }
        Ok(())
    }
}

fn masks() -> impl Strategy<Value = Masked> {
    prop_oneof![Just(Masked::No), Just(Masked::Causal), (1usize..90).prop_map(Masked::Window)]
}

prop_compose! {
    fn cases(tokens: std::ops::Range<usize>, positions: std::ops::Range<usize>)(
        (tokens, positions) in (tokens, positions),
        (kv_heads, group, threads) in (1usize..4, 1usize..9, 1usize..5),
        (dk, dv) in (1usize..80, 1usize..80),
        softcap in prop_oneof![Just(0.0f32), 1.0f32..50.0],
        (round_q, mask, seed) in (any::<bool>(), masks(), 1u32..1000),
    ) -> Case {
        Case { tokens, positions, kv_heads, group, dk, dv, softcap, round_q, mask, threads, seed }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn few_tokens(case in cases(1..4, 1..300)) {
        case.check()?;
    }

    #[test]
    fn many_tokens(case in cases(4..90, 4..200)) {
        case.check()?;
    }
}

#[test]
fn long_contexts_are_cut() -> Result<(), TestCaseError> {
    for (threads, kv_heads, dk) in [(1, 1, 64), (3, 1, 128), (4, 2, 256)] {
        let mut case = Case {
            tokens: 1,
            positions: 1500,
            kv_heads,
            group: 4,
            dk,
            dv: dk,
            softcap: 0.0,
            round_q: true,
            mask: Masked::Causal,
            threads,
            seed: 7,
        };
        let plan = case.attention(&mut case.tensors()).plan(threads);
        assert_eq!(plan.merges > 0, threads > 1, "{plan:?}");
        case.check()?;
        case.mask = Masked::Window(300);
        case.check()?;
    }
    Ok(())
}

#[test]
fn f16_values_are_multiplied_where_the_processor_can() {
    let case = Case {
        tokens: 1,
        positions: 100,
        kv_heads: 2,
        group: 3,
        dk: 64,
        dv: 64,
        softcap: 0.0,
        round_q: true,
        mask: Masked::No,
        threads: 1,
        seed: 5,
    };
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        let same = case.run(isa, true) == case.run(isa, false);
        assert_eq!(same, !multiplies_halves(isa), "{isa}");
        // Queries that were not to be rounded are not.
        let exact = Case { round_q: false, ..case };
        assert_eq!(exact.run(isa, true), exact.run(isa, false), "{isa}");
    }
    if std::env::var("PROFINFER_EXPECT_ISA").is_ok_and(|isa| isa == "i8mm") {
        assert!(multiplies_halves(Isa::best()), "a processor with all extensions");
    }
}

#[test]
fn a_token_that_sees_nothing_gets_zeros() {
    let case = Case {
        tokens: 1,
        positions: 2,
        kv_heads: 1,
        group: 1,
        dk: 8,
        dv: 8,
        softcap: 0.0,
        round_q: false,
        mask: Masked::Window(0),
        threads: 1,
        seed: 1,
    };
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        for halves in [false, true] {
            assert_eq!(case.run(isa, halves), [0.0; 8], "{isa}");
        }
    }
}
