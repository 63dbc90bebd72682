/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Where the jumps at the entries of functions lead, through the slot of the function in a code page: `call *thunk` and the
 * instructions that were moved. So on top of the stack is where the call goes on, above it the caller's return
 * address. A site that is off passes the call on at once.
 *
 * All registers keep their values, also those that a call may change: within a file compilers know what a function
 * really changes, and rely on it. Vector registers are not touched: what is called here uses none.
 *
 * Offsets in struct pt_regs of src/bpf/mini_vmlinux.h.
 */
#define R11 48
#define R10 56
#define R9 64
#define R8 72
#define AX 80
#define CX 88
#define DX 96
#define SI 104
#define DI 112
#define SITE 120 /* orig_ax: no program reads it */
#define SP 152
#define REGS 168

/* In struct site. */
#define LEAVE 4

/* The slot's site number, behind the call (src/capture/inside/moved.rs). */
#define NUMBER 50

/* Bytes of arguments on the stack that a call with a return program gets copies of; llama_model_params has 72. */
#define COPIED 256

	.macro KEEP
	movq %r10, R10(%rsp)
	movq %r9, R9(%rsp)
	movq %r8, R8(%rsp)
	movq %rax, AX(%rsp)
	movq %rcx, CX(%rsp)
	movq %rdx, DX(%rsp)
	movq %rsi, SI(%rsp)
	movq %rdi, DI(%rsp)
	.endm

	.macro RESTORE
	movq R10(%rsp), %r10
	movq R9(%rsp), %r9
	movq R8(%rsp), %r8
	movq AX(%rsp), %rax
	movq CX(%rsp), %rcx
	movq DX(%rsp), %rdx
	movq SI(%rsp), %rsi
	movq DI(%rsp), %rdi
	.endm

	.text
	.p2align 4
	.hidden inside_thunk
	.globl inside_thunk
inside_thunk:
	.cfi_startproc
	.cfi_adjust_cfa_offset 8
	pushq %r11
	.cfi_adjust_cfa_offset 8
	movq 8(%rsp), %r11
	movl NUMBER(%r11), %r11d
	shlq $6, %r11
	addq inside_sites(%rip), %r11
	cmpq $0, (%r11)
	jne 1f
	popq %r11
	.cfi_adjust_cfa_offset -8
	ret
	.cfi_adjust_cfa_offset 8

1:	subq $REGS, %rsp
	.cfi_adjust_cfa_offset REGS
	KEEP
	movq %r11, SITE(%rsp)
	leaq REGS+16(%rsp), %rax
	movq %rax, SP(%rsp)
	movq %rsp, %rdi
	movq %r11, %rsi
	call inside_enter
	movq SITE(%rsp), %r11
	cmpl $0, LEAVE(%r11)
	RESTORE
	jne 2f
	addq $REGS, %rsp
	.cfi_adjust_cfa_offset -REGS
	popq %r11
	.cfi_adjust_cfa_offset -8
	ret
	.cfi_adjust_cfa_offset REGS+8

	/* A frame of its own, with a copy of the arguments on the stack: exceptions find their way through it. */
2:	addq $REGS, %rsp
	.cfi_adjust_cfa_offset -REGS
	/* Under the place of %r11 comes %rbp; %r12 has the site. */
	pushq %rbp
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset %rbp, 0
	movq %rsp, %rbp
	.cfi_def_cfa_register %rbp
	pushq %r12
	.cfi_offset %r12, -40
	movq %r11, %r12
	movq 8(%rbp), %r11
	subq $8, %rsp
	.set at, COPIED
	.rept COPIED / 8
	pushq 24+at(%rbp)
	.set at, at - 8
	.endr
	callq *16(%rbp)
	addq $COPIED-192, %rsp
	KEEP
	movq %r11, R11(%rsp)
	leaq 32(%rbp), %rcx
	movq %rcx, SP(%rsp)
	cmpl $0, LEAVE(%r12)
	je 3f
	movq %rsp, %rdi
	movq %r12, %rsi
	call inside_leave
3:	RESTORE
	movq R11(%rsp), %r11
	movq -8(%rbp), %r12
	.cfi_restore %r12
	movq %rbp, %rsp
	popq %rbp
	.cfi_restore %rbp
	.cfi_def_cfa %rsp, 24
	addq $16, %rsp
	.cfi_adjust_cfa_offset -16
	ret
	.cfi_endproc
	.section .note.GNU-stack,"",@progbits
