//! The address that a function returns, and those that it computes: read from its code without running it. Pure functions
//! over bytes; uses only `elf::ElfMachine` and the decoders.

use crate::elf::ElfMachine;
use crate::prologue::{self, InsnEffect};

/// Instructions of a function that only returns an address: it may mark its entry and keep a frame pointer.
const MOST: usize = 8;
/// Register in which a function returns, on both machines.
const RESULT: u32 = 0;

/// The address that a function returns, if that is all it does. `code` stands at `vaddr`.
pub fn address(machine: ElfMachine, vaddr: u64, code: &[u8]) -> Option<u64> {
    let (mut at, mut pages, mut result) = (0usize, Pages::default(), None);
    for _ in 0..MOST {
        let rest = code.get(at..)?;
        let here = vaddr.checked_add(at as u64)?;
        let (len, writes) = match computed(machine, here, rest, &mut pages) {
            Some(Computed { register, address, len }) => {
                if register == RESULT {
                    result = address;
                }
                (len, 0)
            }
            None => {
                let insn = prologue::decode(machine, rest)?;
                match insn.what {
                    InsnEffect::Ret => return result,
                    _ if insn.ends_block() => return None,
                    _ => (insn.len, insn.writes),
                }
            }
        };
        if writes >> RESULT & 1 == 1 {
            result = None;
        }
        at = at.checked_add(len)?;
    }
    None
}

/// Whether some instruction of `code`, which stands at `vaddr`, computes the address `wanted`.
///
/// x86 code cannot be told from the bytes within its instructions, so each byte may begin one: what is no instruction
/// gives this one address almost never.
pub fn computes(machine: ElfMachine, vaddr: u64, code: &[u8], wanted: u64) -> bool {
    let (step, mut pages) = (if machine == ElfMachine::Aarch64 { 4 } else { 1 }, Pages::default());
    let mut at = 0;
    while let (Some(rest), Some(here)) =
        (code.get(at..).filter(|r| !r.is_empty()), vaddr.checked_add(at as u64))
    {
        if computed(machine, here, rest, &mut pages).is_some_and(|c| c.address == Some(wanted)) {
            return true;
        }
        at += step;
    }
    false
}

/// What `adrp` has put into each register.
#[derive(Default)]
struct Pages([Option<u64>; 32]);

struct Computed {
    register: u32,
    /// None: a part of it (adrp).
    address: Option<u64>,
    len: usize,
}

/// The instruction at the start of `code`, if it computes an address.
fn computed(machine: ElfMachine, here: u64, code: &[u8], pages: &mut Pages) -> Option<Computed> {
    match machine {
        ElfMachine::X86_64 => on_x86(here, code),
        ElfMachine::Aarch64 => on_arm64(here, code, pages),
    }
}

/// `lea r64, [rip + distance]`, and `mov r32, address` of files with final addresses (Intel SDM, volume 2).
fn on_x86(here: u64, code: &[u8]) -> Option<Computed> {
    match code {
        [rex @ (0x48 | 0x4c), 0x8d, modrm, distance @ ..] if modrm & 0xc7 == 0x05 => {
            let distance = i32::from_le_bytes(*distance.first_chunk()?);
            let register = u32::from(modrm >> 3 & 7) | if *rex == 0x4c { 8 } else { 0 };
            let address = here.checked_add(7)?.checked_add_signed(distance.into());
            Some(Computed { register, address, len: 7 })
        }
        [op @ 0xb8..=0xbf, address @ ..] => {
            let address = u32::from_le_bytes(*address.first_chunk()?);
            Some(Computed { register: u32::from(op & 7), address: Some(address.into()), len: 5 })
        }
        _ => None,
    }
}

/// `adrp` followed, not always at once, by `add` (Arm ARM, C6.2.13 and C6.2.5); `adr`.
fn on_arm64(here: u64, code: &[u8], pages: &mut Pages) -> Option<Computed> {
    let word = u32::from_le_bytes(*code.first_chunk()?);
    let (rd, rn) = (word & 31, word >> 5 & 31);
    let page_of = |pages: &Pages, r: u32| pages.0.get(r as usize).copied().flatten();
    let immediate = (word >> 3 & 0x1f_fffc) | (word >> 29 & 3);
    let distance = i64::from((immediate << 11).cast_signed() >> 11);
    let (address, page) = match word >> 24 & 0x9f {
        0x90 => (None, (here & !0xfff).checked_add_signed(distance << 12)),
        0x10 => (here.checked_add_signed(distance), None),
        _ if word & 0xffc0_0000 == 0x9100_0000 => {
            (Some(page_of(pages, rn)?.checked_add(u64::from(word >> 10 & 0xfff))?), None)
        }
        _ => return None,
    };
    if let Some(slot) = pages.0.get_mut(rd as usize) {
        *slot = page;
    }
    Some(Computed { register: rd, address, len: 4 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const X86: ElfMachine = ElfMachine::X86_64;
    const ARM: ElfMachine = ElfMachine::Aarch64;

    fn words(code: &[u32]) -> Vec<u8> {
        code.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    #[test]
    fn returned_addresses_on_x86() {
        // endbr64; lea rax, [rip + 0x404a3]; ret: llama_sampler_top_k_name of b3889.
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8d, 0x05, 0xa3, 0x04, 0x04, 0x00, 0xc3];
        assert_eq!(address(X86, 0x11_e2e0, &code), Some(0x15_e78e));
        // lea rax, [rip - 8]; ret
        assert_eq!(address(X86, 0x1000, &[0x48, 0x8d, 0x05, 0xf8, 0xff, 0xff, 0xff, 0xc3]), Some(0xfff));
        // push rbp; mov rbp, rsp; lea rax, [rip + 1]; pop rbp; ret
        let framed = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x8d, 0x05, 1, 0, 0, 0, 0x5d, 0xc3];
        assert_eq!(address(X86, 0x1000, &framed), Some(0x1000 + 11 + 1));
        // mov eax, 0x401000; ret
        assert_eq!(address(X86, 0x1000, &[0xb8, 0x00, 0x10, 0x40, 0x00, 0xc3]), Some(0x40_1000));
    }

    #[test]
    fn what_does_more_than_return_an_address_has_none() {
        for code in [
            // mov rdi, [rdi + 8]; cmp byte [rdi + 16], 0; je: llama_sampler_top_k_name of b11549.
            &[0x48, 0x8b, 0x7f, 0x08, 0x80, 0x7f, 0x10, 0x00, 0x74, 0x06, 0xe9, 0, 0, 0, 0][..],
            // lea rax, [rip + 1]; mov rax, [rdi]; ret
            &[0x48, 0x8d, 0x05, 1, 0, 0, 0, 0x48, 0x8b, 0x07, 0xc3],
            // lea rcx, [rip + 1]; ret
            &[0x48, 0x8d, 0x0d, 1, 0, 0, 0, 0xc3],
            // lea rax, [rip + 1], and the end of what is known
            &[0x48, 0x8d, 0x05, 1, 0, 0, 0],
            &[0xc3],
            &[],
        ] {
            assert_eq!(address(X86, 0x1000, code), None, "{code:x?}");
        }
        // ldr x0, [x0, #8]; ret. adrp x0, .+0x1000; ret. bl.
        for code in [&[0xf940_0400, 0xd65f_03c0][..], &[0xb000_0000, 0xd65f_03c0], &[0x9400_0001]] {
            assert_eq!(address(ARM, 0x1000, &words(code)), None, "{code:x?}");
        }
    }

    #[test]
    fn returned_addresses_on_arm64() {
        // bti c; adrp x0, .+0x1000; add x0, x0, #0x23; ret
        let code = words(&[0xd503_245f, 0xb000_0000, 0x9100_8c00, 0xd65f_03c0]);
        assert_eq!(address(ARM, 0x4_1ff8, &code), Some(0x4_2023));
        // adr x0, .+12; ret
        assert_eq!(address(ARM, 0x1000, &words(&[0x1000_0060, 0xd65f_03c0])), Some(0x100c));
        // adrp x0, .-0x1000; add x0, x0, #8; ret
        let code = words(&[0xf0ff_ffe0, 0x9100_2000, 0xd65f_03c0]);
        assert_eq!(address(ARM, 0x5000, &code), Some(0x4008));
    }

    #[test]
    fn computed_addresses_are_found_among_others() {
        // mov edi, 0x48; call; lea rdi, [rip + 0xeb524]; mov rsi, rax: llama_sampler_init_top_k of v0.5.0.
        let code = [
            0xbf, 0x48, 0, 0, 0, 0xe8, 0xcb, 0xd9, 0xdd, 0xff, 0x48, 0x8d, 0x3d, 0x24, 0xb5, 0x0e, 0x00, 0x48,
        ];
        assert!(computes(X86, 0x2d_656b, &code, 0x3c_1aa0));
        assert!(!computes(X86, 0x2d_656b, &code, 0x3c_1aa8) && !computes(X86, 0x2d_656b, &[], 0));
        // adrp x9, .+0x2000; mov x1, x0; add x0, x9, #0x10
        let code = words(&[0xd000_0009, 0xaa00_03e1, 0x9100_4120]);
        assert!(computes(ARM, 0x1000, &code, 0x3010) && !computes(ARM, 0x1000, &code, 0x3000));
    }
}
