//! Where a static program begins into which `netacc_run` has mapped the library (docs/decisions/0027).
//!
//! # Safety
//! `netacc_run` has relocated the library, and has the process's one thread come here with all signals blocked in
//! nobody's way: the stack pointer is the one that the program begins with, rdi the number of the process that mapped
//! the library, and rsi the address at which the program begins. What lies below the stack pointer is nobody's yet.
//! The program then begins as the kernel would have it begin: with the stack pointer as it was, no thread pointer, and
//! all other registers 0.

use crate::go;
use core::arch::global_asm;
use core::sync::atomic::AtomicUsize;
use netacc_core::listen::adopt;
use netacc_core::operator;
use netacc_sys::{origin, raw, static_program, weak};

/// Where the thread pointer leads while the library starts: its own address, and the errno.
static BLOCK: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// Where the program begins.
static PROGRAM: AtomicUsize = AtomicUsize::new(0);

global_asm!(
    ".pushsection .text.netacc_static_start, \"ax\"",
    ".globl netacc_static_start",
    ".hidden netacc_static_start",
    ".type netacc_static_start, %function",
    "netacc_static_start:",
    // Executed as if it were a program, the library ends.
    "test rsi, rsi",
    "jz 2f",
    "mov qword ptr [rip + {program}], rsi",
    "mov rbx, rdi",
    "mov rbp, rsp",
    "and rsp, -16",
    "lea rsi, [rip + {block}]",
    "mov qword ptr [rsi], rsi",
    "mov edi, {set_fs}",
    "mov eax, {arch_prctl}",
    "syscall",
    "test rax, rax",
    "jnz 3f",
    "mov rdi, rbp",
    "mov rsi, rbx",
    "lea rdx, [rip + __ehdr_start]",
    "call {start}",
    "xor esi, esi",
    "mov edi, {set_fs}",
    "mov eax, {arch_prctl}",
    "syscall",
    "3:",
    "mov rsp, rbp",
    "xor eax, eax",
    "xor ebx, ebx",
    "xor ecx, ecx",
    "xor edx, edx",
    "xor esi, esi",
    "xor edi, edi",
    "xor ebp, ebp",
    "xor r8d, r8d",
    "xor r9d, r9d",
    "xor r10d, r10d",
    "xor r11d, r11d",
    "xor r12d, r12d",
    "xor r13d, r13d",
    "xor r14d, r14d",
    "xor r15d, r15d",
    "xorps xmm0, xmm0",
    "xorps xmm1, xmm1",
    "xorps xmm2, xmm2",
    "xorps xmm3, xmm3",
    "xorps xmm4, xmm4",
    "xorps xmm5, xmm5",
    "xorps xmm6, xmm6",
    "xorps xmm7, xmm7",
    "xorps xmm8, xmm8",
    "xorps xmm9, xmm9",
    "xorps xmm10, xmm10",
    "xorps xmm11, xmm11",
    "xorps xmm12, xmm12",
    "xorps xmm13, xmm13",
    "xorps xmm14, xmm14",
    "xorps xmm15, xmm15",
    "jmp qword ptr [rip + {program}]",
    "2:",
    "mov edi, 127",
    "mov eax, {exit_group}",
    "syscall",
    "ud2",
    ".popsection",
    program = sym PROGRAM,
    block = sym BLOCK,
    start = sym start,
    set_fs = const 0x1002,
    arch_prctl = const libc::SYS_arch_prctl,
    exit_group = const libc::SYS_exit_group,
);

/// Starts the library, as its constructor does where a loader has loaded it.
unsafe extern "C" fn start(stack: *const usize, helper: u32, library: usize) {
    // The process that mapped the library is a child of this one, and the program shall find none.
    let _ = raw::reap(helper);
    // SAFETY: the stack that the program begins with, before its first instruction.
    unsafe { static_program::begin(stack, library) };
    // A program that has more rights than the one which executed it is left alone, as a loader leaves it.
    if weak::has_gained_rights() {
        return;
    }
    origin::note(None);
    if go::start_static() {
        operator::work::start();
        adopt::inherited();
    }
}
