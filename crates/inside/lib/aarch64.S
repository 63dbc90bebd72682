/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Where the jumps at the entries of functions lead, through the slot of the function in a code page, whose address is in
 * x17. Behind its first four instructions the call goes on. x30 is the caller's return address, not signed.
 *
 * All registers but x16 and x17, which linkers use between functions, keep their values: see x86_64.S.
 *
 * Offsets in struct user_pt_regs of src/bpf/mini_vmlinux.h; pc and pstate, which no program reads, have the site and the
 * slot.
 */
#define SP 248
#define SITE 256
#define SLOT 264
#define REGS 272
/* In a slot (src/capture/inside/moved.rs). */
#define ON 16
#define NUMBER 56
/* In struct site. */
#define LEAVE 4
/* Bytes of arguments on the stack that a call with a return program gets copies of: none has more than 8 in registers. */
#define COPIED 64

	/* All but x0 and x1. */
	.macro KEEP
	stp x2, x3, [sp, #16]
	stp x4, x5, [sp, #32]
	stp x6, x7, [sp, #48]
	stp x8, x9, [sp, #64]
	stp x10, x11, [sp, #80]
	stp x12, x13, [sp, #96]
	stp x14, x15, [sp, #112]
	str x18, [sp, #144]
	str x30, [sp, #240]
	.endm

	.macro RESTORE
	ldp x2, x3, [sp, #16]
	ldp x4, x5, [sp, #32]
	ldp x6, x7, [sp, #48]
	ldp x8, x9, [sp, #64]
	ldp x10, x11, [sp, #80]
	ldp x12, x13, [sp, #96]
	ldp x14, x15, [sp, #112]
	ldr x18, [sp, #144]
	ldr x30, [sp, #240]
	.endm

	.text
	.p2align 4
	.hidden inside_thunk
	.globl inside_thunk
	.type inside_thunk, %function
inside_thunk:
	.cfi_startproc
	stp x0, x1, [sp, #-16]!
	.cfi_adjust_cfa_offset 16
	ldr w0, [x17, #NUMBER]
	adrp x1, inside_sites
	ldr x1, [x1, :lo12:inside_sites]
	add x0, x1, x0, lsl #6
	ldr x1, [x0]
	cbnz x1, 1f
	ldp x0, x1, [sp], #16
	.cfi_adjust_cfa_offset -16
	add x17, x17, #ON
	br x17
	.cfi_adjust_cfa_offset 16

1:	sub sp, sp, #REGS
	.cfi_adjust_cfa_offset REGS
	.cfi_rel_offset x30, 240
	KEEP
	str x0, [sp, #SITE]
	str x17, [sp, #SLOT]
	add x1, sp, #REGS + 16
	str x1, [sp, #SP]
	mov x16, x0
	ldp x0, x1, [sp, #REGS]
	stp x0, x1, [sp]
	mov x0, sp
	mov x1, x16
	bl inside_enter
	RESTORE
	ldr x16, [sp, #SITE]
	ldr w16, [x16, #LEAVE]
	ldr x17, [sp, #SLOT]
	ldp x0, x1, [sp, #REGS]
	add sp, sp, #REGS + 16
	.cfi_def_cfa_offset 0
	.cfi_restore x30
	cbnz w16, 2f
	add x17, x17, #ON
	br x17

	/* A frame of its own, with a copy of the arguments on the stack: exceptions find their way through it. */
2:	stp x29, x30, [sp, #-32]!
	.cfi_def_cfa_offset 32
	.cfi_rel_offset x29, 0
	.cfi_rel_offset x30, 8
	str x19, [sp, #16]
	.cfi_rel_offset x19, 16
	mov x29, sp
	.cfi_def_cfa x29, 32
	ldr w16, [x17, #NUMBER]
	adrp x19, inside_sites
	ldr x19, [x19, :lo12:inside_sites]
	add x19, x19, x16, lsl #6
	sub sp, sp, #COPIED
	.set at, 0
	.rept COPIED / 8
	ldr x16, [x29, #32 + at]
	str x16, [sp, #at]
	.set at, at + 8
	.endr
	add x17, x17, #ON
	blr x17
	add sp, sp, #COPIED
	sub sp, sp, #REGS
	stp x0, x1, [sp]
	KEEP
	add x16, x29, #32
	str x16, [sp, #SP]
	ldr w16, [x19, #LEAVE]
	cbz w16, 3f
	mov x0, sp
	mov x1, x19
	bl inside_leave
3:	RESTORE
	ldp x0, x1, [sp]
	add sp, sp, #REGS
	ldr x19, [sp, #16]
	.cfi_restore x19
	ldp x29, x30, [sp], #32
	.cfi_restore x29
	.cfi_restore x30
	.cfi_def_cfa sp, 0
	ret
	.cfi_endproc
	.section .note.GNU-stack,"",%progbits
