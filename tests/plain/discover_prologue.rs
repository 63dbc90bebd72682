//! Where probes go, on the first bytes of functions as real compilers made them, and on arbitrary bytes.

use engine::elf::ElfMachine::{self, Aarch64, X86_64};
use engine::prologue::{self, InsnHandling, Need};
use proptest::prelude::*;

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|c| u8::from_str_radix(std::str::from_utf8(c).unwrap(), 16).unwrap())
        .collect()
}

const fn regs(args: u8) -> Need {
    Need { args, stack: false }
}

const BATCH: Need = Need { args: 1, stack: true };

/// Description of the function, its code, what the probe reads; expected entry (offset, instruction) and return
/// offset.
type Case = (&'static str, ElfMachine, &'static str, Need, (u32, &'static str, InsnHandling), u32);

use InsnHandling::{Emulated, SingleStepped};

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("extra, gcc 11 CET", X86_64, "f30f1efa41554989fd41544989f455534883ec08e8c7a2fb", regs(2), (4, "push", Emulated), 4),
    ("extra, gcc 10", X86_64, "41554989fd41544989f455534883ec08e85b114aff488b18", regs(2), (0, "push", Emulated), 0),
    ("ggml_graph_compute, CET", X86_64, "f30f1efa4156c4e1f96ecf4989fe4155c4e3f122c6014154", regs(2), (4, "push", Emulated), 4),
    // The stack is realigned before the first cheap push: fine for registers, never for a return probe.
    ("fused, CET", X86_64, "f30f1efa4c8d5424084883e4e04889d041ff72f8554889e54157415641554154", regs(3), (20, "push", Emulated), 0),
    ("fused, no CET", X86_64, "4c8d5424084883e4e04889d041ff72f8554889e5415741564155", regs(3), (16, "push", Emulated), 0),
    ("fused, were its stack read", X86_64, "4c8d5424084883e4e04889d041ff72f8554889e5415741564155",
        Need { args: 3, stack: true }, (0, "lea", SingleStepped), 0),
    ("llama_decode, CET", X86_64, "f30f1efa4154488d742410e820ecebff4189c483f801761c", BATCH, (4, "push", Emulated), 4),
    ("llama_decode, no CET", X86_64, "4154488d742410e844226eff4189c483f801761c89c1488d", BATCH, (0, "push", Emulated), 0),
    ("llama_decode, gcc 15: sub rsp first", X86_64, "f30f1efa4883ec18488d742420e820ecebff", BATCH, (0, "endbr64", SingleStepped), 0),
    ("llama_process, no CET", X86_64, "85f6740c83fe017417b8ffffffffc3904889d6e9e8446eff0f1f8400000000004889d6e9b8856dff",
        regs(2), (2, "je", Emulated), 2),
    ("llama_process, CET", X86_64, "f30f1efa85f6740c83fe017417b8ffffffffc3904889d6e9e8446eff0f1f8400000000004889d6e9b8856dff",
        regs(2), (6, "je", Emulated), 6),
    ("split, CET", X86_64, "f30f1efa4885ff7403ff676850488d0de14a070031c0488d", regs(2), (7, "je", Emulated), 7),
    ("split, no CET", X86_64, "4885ff7403ff676850488d0dd74b590031c0488d151c5825", regs(2), (3, "je", Emulated), 3),
    ("split, 2024: jmp through memory", X86_64, "f30f1efaff6760", regs(2), (0, "endbr64", SingleStepped), 0),
    ("barrier, OpenMP", X86_64, "8b47686683f8017407e932b948ff6690c3", regs(1), (7, "je", Emulated), 7),
    ("barrier, spin loop behind it", X86_64, "f30f1efa8b47680fb7f06683f801743e8b97c0000000488d8fc0000000488d878000000041b8010\
00000f0440fc10083ee014439c6750beb170f1f8000000000f3908b0139c274f8f048830c2400c390", regs(1), (14, "je", Emulated), 14),
    ("patchable entry", X86_64, "0f1f4400005548", regs(2), (0, "nopl", InsnHandling::Nop5), 0),
    ("argument overwritten first", X86_64, "4889f75548", regs(2), (0, "mov", SingleStepped), 3),
    ("pop ends nothing but moves rsp", X86_64, "5858745555", BATCH, (0, "pop", SingleStepped), 0),
    // A loop head: the jump back lands on the test, so the je would fire once per iteration.
    ("loop over the place", X86_64, "31c04885ff740648ffcfebf690c3", regs(1), (0, "xor", SingleStepped), 0),
    ("jump onto itself", X86_64, "4885ff74fec3", regs(1), (0, "test", SingleStepped), 0),
    ("extra, clang 21", Aarch64, "fd7bbda9f65701a9f44f02a9fd030091f30301aaf40300aaf010ff97155840a9", regs(2), (24, "bl", Emulated), 0),
    ("ggml_graph_compute, clang 21", Aarch64, "fd7bbca9fc5f01a9f65702a9f44f03a9fd030091ff4308d1f30301aaf50300aa22eeff97331a00b4",
        regs(2), (32, "bl", Emulated), 0),
    ("fused, clang 21", Aarch64, "ffc307d1eabb00fde923186dfd7b19a9fc6f1aa9fa671ba9f85f1ca9f6571da9f44f1ea9fd430691222b00b4",
        regs(3), (40, "cbz", Emulated), 0),
    ("llama_decode, clang 21", Aarch64, "fd7bbea9f30b00f9fd0300917a50fc97f303002a1f080071", regs(2), (12, "bl", Emulated), 0),
    ("split, clang 21", Aarch64, "600000b4023440f940001fd6fd7bbfa9fd030091c0030090", regs(2), (0, "cbz", Emulated), 0),
    ("barrier, clang 21", Aarch64, "087040b9083d00120a050071200200540b0002912900805208c040b96b01e9b8", regs(1), (12, "b.cond", Emulated), 0),
    // paciasp signs the return address: the return probe must come first.
    ("paciasp", Aarch64, "3f2303d5fd7bbea9fd0300917a50fc97", regs(2), (12, "bl", Emulated), 0),
    ("argument overwritten first", Aarch64, "e00301aa7a50fc97", regs(1), (0, "mov", SingleStepped), 0),
    // Recent kernels refuse a uprobe on a literal load, so it is never selected.
    ("literal load", Aarch64, "4900005800000094", regs(1), (0, "?", SingleStepped), 0),
    ("loop over the place", Aarch64, "08050071200200b4ffffff17", regs(2), (0, "subs", SingleStepped), 0),
];

#[test]
fn real_prologues() {
    for (what, machine, hex, need, (offset, insn, cost), ret) in CASES {
        let code = bytes(hex);
        let got = prologue::entry(*machine, &code, *need);
        assert_eq!((got.offset, got.insn.as_str(), got.cost), (*offset, *insn, *cost), "{what}: {}", got.why);
        assert_eq!(prologue::ret(*machine, &code).offset, *ret, "{what}: return probe");
    }
}

/// A second breakpoint in a function's entry: another instruction that runs equally often.
#[test]
fn a_marker_is_at_another_instruction() {
    for (what, machine, hex, probed, want) in [
        ("free entry", X86_64, "f30f1efa55", &[4][..], Some(0)),
        ("a cheap one behind a free entry that is not", X86_64, "f30f1efa41574156c3", &[4], Some(6)),
        ("entry and return probed", X86_64, "f30f1efa554889e5", &[0, 4], Some(5)),
        ("no other instruction", X86_64, "e800000000", &[0], None),
        ("the next one is unknown", X86_64, "550f0bff", &[0], None),
        ("loop over the place", Aarch64, "08050071200200b4ffffff17", &[0], None),
        ("next word", Aarch64, "fd7bbfa9fd030091", &[0], Some(4)),
    ] {
        assert_eq!(prologue::other(machine, &bytes(hex), probed), want, "{what}");
    }
}

/// Instructions that occur in prologues, so that random sequences get far.
fn snippets(machine: ElfMachine) -> Vec<Vec<u8>> {
    let hex: &[&str] = match machine {
        X86_64 => &[
            "f30f1efa",
            "55",
            "4155",
            "4889e5",
            "4989fd",
            "4889f7",
            "31c0",
            "4883ec18",
            "488d742410",
            "4883e4e0",
            "8b4768",
            "85f6",
            "740c",
            "e800000000",
            "c3",
            "ff6760",
            "41ff72f8",
            "6690",
            "0f1f4000",
            "ebf0",
            "c4e1f96ecf",
            "48ffcf",
            "64488b042528000000",
            "0f1f440000",
            "bf01000000",
            "5f",
        ],
        Aarch64 => &[
            "fd7bbda9", "fd030091", "f30301aa", "f40300aa", "f010ff97", "e00301aa", "ff4308d1", "3f2303d5",
            "222b00b4", "08050071", "ebffff17", "c0035fd6", "005840a9", "081c40b9", "eabb00fd", "1f2003d5",
            "00008052", "20000090",
        ],
    };
    hex.iter().map(|h| bytes(h)).collect()
}

fn code(machine: ElfMachine) -> impl Strategy<Value = Vec<u8>> {
    let random = proptest::collection::vec(any::<u8>(), 0..96);
    let likely = proptest::collection::vec(proptest::sample::select(snippets(machine)), 0..24)
        .prop_map(|v| v.concat());
    prop_oneof![random, likely]
}

/// Every instruction before the selected one is known, falls through and does not modify what the probe reads.
fn check(machine: ElfMachine, code: &[u8], need: Need) {
    let choice = prologue::entry(machine, code, need);
    let sp = if machine == X86_64 { 1u32 << 4 } else { 1 << 31 };
    let keep = prologue::arg_registers(machine, need.args) | if need.stack { sp } else { 0 };
    let mut at = 0;
    while at < choice.offset as usize {
        let insn = prologue::decode(machine, &code[at..]).expect("walked over");
        assert!(!insn.ends_block(), "passed control flow: {insn:?}");
        assert_eq!(insn.writes & keep, 0, "passed a write: {insn:?}");
        at += insn.len;
    }
    assert_eq!(at, choice.offset as usize, "not at an instruction");
    assert!(choice.offset <= 48);
    // Before a return probe the stack pointer must not have moved; on arm64 nothing may have run.
    let ret = prologue::ret(machine, code).offset as usize;
    let mut at = 0;
    while at < ret {
        let insn = prologue::decode(machine, &code[at..]).expect("walked over");
        assert!(
            machine == X86_64 && !insn.ends_block() && insn.writes & sp == 0,
            "return probe behind {insn:?}"
        );
        at += insn.len;
    }
    assert_eq!(at, ret, "not at an instruction");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn any_x86_code(code in code(X86_64), args in 0u8..=8, stack: bool) {
        check(X86_64, &code, Need { args, stack });
    }

    #[test]
    fn any_arm64_code(code in code(Aarch64), args in 0u8..=9, stack: bool) {
        check(Aarch64, &code, Need { args, stack });
    }

    #[test]
    fn decoding_stays_inside(code in proptest::collection::vec(any::<u8>(), 0..24)) {
        for machine in [X86_64, Aarch64] {
            if let Some(insn) = prologue::decode(machine, &code) {
                prop_assert!(insn.len >= 1 && insn.len <= 15 && insn.len <= code.len());
            }
        }
    }
}
