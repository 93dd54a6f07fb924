//! The assembly between the code of a Go program and ours. It keeps this contract.
//!
//! **On entry** (ABIInternal of Go): rax has the number of the call, rbx, rcx, rdi, rsi, r8 and r9 have its arguments;
//! r14 is the goroutine and xmm15 is 0. The jump that came here has changed rdx, which was free. The stack is the
//! goroutine's or a thread's; nothing is pushed to it, since the function that was changed needs none of it and the
//! linker of Go counts what is left.
//!
//! **On the way back** the program goes on in its own function, behind the instructions that were replaced: at its
//! `syscall` instruction, with all registers as the replaced instructions leave them, or behind it, with the kernel's
//! answer in rax. The stack pointer, rbp, r14 and xmm15 are as before, rdx is the third argument as behind a system
//! call; rbx, rcx and r11 may have any value in both cases. Our code is C's, which keeps rbx, rbp, r12 to r15 and
//! the control words of the floating-point units.
//!
//! **Signals** may come at any instruction. The thread pointer is libc's all the time, where Go finds the goroutine.
//! The handlers of Go run on stacks of their own, and see an address which is not Go's, as in C code: they do not move
//! or preempt the goroutine, and what they trace back is what the runtime noted when the call began. A stack of ours
//! is given back only when the stack pointer has left it.

use super::call;
use super::classes::{CLASSES, DESCRIPTOR, NUMBERS, PLAIN};
use super::stacks;
use core::arch::naked_asm;
use core::sync::atomic::{AtomicUsize, Ordering};
use netacc_core::fd::table::TABLE;
use netacc_sys::go_code::ENTERS;
use netacc_sys::go_program::Functions;
use netacc_sys::reserved_fds::MAX_FDS;

/// The `syscall` instruction in the program's function.
static ENTER: AtomicUsize = AtomicUsize::new(0);
/// The instruction behind it.
static BEHIND: AtomicUsize = AtomicUsize::new(0);
/// The program's function for system calls.
static SYSCALL6: AtomicUsize = AtomicUsize::new(0);

/// Notes where the functions are to which the assembly goes back.
pub fn note_functions(functions: &Functions) {
    // Relaxed: there is one thread.
    ENTER.store(functions.syscall6 + ENTERS, Ordering::Relaxed);
    BEHIND.store(functions.syscall6 + ENTERS + 2, Ordering::Relaxed);
    SYSCALL6.store(functions.syscall6, Ordering::Relaxed);
}

/// Where the program's function for system calls goes.
pub fn system_call_address() -> usize {
    (system_call as *const ()).expose_provenance()
}

/// Where the program's function that ends it goes.
pub fn exit_address() -> usize {
    (exit as *const ()).expose_provenance()
}

/// Where the functions of [`netacc_sys::go_code::EPOLL`] go, in their order.
pub fn epoll_addresses() -> [usize; 4] {
    [epoll_create as *const (), epoll_create1 as *const (), epoll_ctl as *const (), epoll_wait as *const ()]
        .map(<*const ()>::expose_provenance)
}

/// Size of what lies above our frames on a stack of ours: a [`call::Call`], the number of the stack, and the stack
/// pointer of the program.
const FRAME: usize = 96;

/// Stands for the first four instructions of the program's function: see the module.
#[unsafe(naked)]
unsafe extern "C" fn system_call() {
    naked_asm!(
        // What was replaced.
        "mov r10, rsi",
        "mov rdx, rdi",
        "mov rsi, rcx",
        "mov rdi, rbx",
        // Does the number concern us?
        "cmp rax, {numbers}",
        "jae 9f",
        "lea r11, [rip + {classes}]",
        "movzx ecx, byte ptr [r11 + rax]",
        "cmp ecx, {descriptor}",
        "jb 9f",
        "ja 2f",
        // And the descriptor?
        "mov r11, qword ptr [rip + {table}]",
        "test r11, r11",
        "jz 9f",
        "mov ecx, edi",
        "cmp ecx, {max_fds}",
        "jae 9f",
        "cmp qword ptr [r11 + 8 * rcx], 0",
        "je 9f",
        // A stack, from the place on that the thread pointer chooses. rbx: its number, r11: its state's place.
        "2:",
        "movabs rcx, 0x9e3779b97f4a7c15",
        "imul rcx, qword ptr fs:[0]",
        "shr rcx, {hash_shift}",
        "mov rbx, rcx",
        "3:",
        "lea r11, [rip + {states}]",
        "mov rcx, rbx",
        "shl rcx, {state_bits}",
        "add r11, rcx",
        "mov ecx, dword ptr [r11]",
        "cmp ecx, {busy}",
        "je 6f",
        "mov ecx, {busy}",
        "xchg dword ptr [r11], ecx",
        "cmp ecx, {busy}",
        "je 6f",
        "cmp ecx, {unmade}",
        "je 7f",
        // The frame. From here on rcx is its upper end.
        "4:",
        "mov rcx, rbx",
        "inc rcx",
        "shl rcx, {length_bits}",
        "add rcx, qword ptr [rip + {area}]",
        "mov qword ptr [rcx - 8], rsp",
        "mov qword ptr [rcx - 16], rbx",
        "mov qword ptr [rcx - 40], r9",
        "mov qword ptr [rcx - 48], r8",
        "mov qword ptr [rcx - 56], r10",
        "mov qword ptr [rcx - 64], rdx",
        "mov qword ptr [rcx - 72], rsi",
        "mov qword ptr [rcx - 80], rdi",
        "mov qword ptr [rcx - 88], rax",
        "lea rsp, [rcx - {frame}]",
        "mov rdi, rsp",
        "call {answer}",
        // What the program goes on with. The stack is free when nothing is read from it any more.
        "mov ecx, eax",
        "mov rax, qword ptr [rsp]",
        "mov rdx, qword ptr [rsp + 32]",
        "mov rbx, qword ptr [rsp + 80]",
        "lea r11, [rip + {states}]",
        "shl rbx, {state_bits}",
        "add r11, rbx",
        "xorps xmm15, xmm15",
        "test ecx, ecx",
        "jnz 5f",
        "mov rsp, qword ptr [rsp + 88]",
        "mov dword ptr [r11], {free}",
        "jmp qword ptr [rip + {behind}]",
        "5:",
        "mov rax, qword ptr [rsp + 8]",
        "mov rdi, qword ptr [rsp + 16]",
        "mov rsi, qword ptr [rsp + 24]",
        "mov r10, qword ptr [rsp + 40]",
        "mov r8, qword ptr [rsp + 48]",
        "mov r9, qword ptr [rsp + 56]",
        "mov rsp, qword ptr [rsp + 88]",
        "mov dword ptr [r11], {free}",
        "jmp qword ptr [rip + {enter}]",
        // The next stack.
        "6:",
        "pause",
        "inc rbx",
        "and rbx, {count} - 1",
        "jmp 3b",
        // The first use of a stack: its memory becomes accessible. No register may be lost, and there is no stack.
        "7:",
        "movq xmm0, rax",
        "movq xmm1, rdi",
        "movq xmm2, rsi",
        "movq xmm3, rdx",
        "movq xmm4, r11",
        "mov rdi, rbx",
        "shl rdi, {length_bits}",
        "add rdi, qword ptr [rip + {area}]",
        "add rdi, {guard}",
        "mov esi, {length} - {guard}",
        "mov edx, {access}",
        "mov eax, {mprotect}",
        "syscall",
        "mov rcx, rax",
        "movq rax, xmm0",
        "movq rdi, xmm1",
        "movq rsi, xmm2",
        "movq rdx, xmm3",
        "movq r11, xmm4",
        "test rcx, rcx",
        "jz 4b",
        // It cannot be made now.
        "mov dword ptr [r11], {unmade}",
        "jmp 6b",
        "9:",
        "jmp qword ptr [rip + {enter}]",
        numbers = const NUMBERS,
        classes = sym CLASSES,
        descriptor = const DESCRIPTOR,
        table = sym TABLE,
        max_fds = const MAX_FDS,
        hash_shift = const 64 - stacks::COUNT_BITS,
        states = sym stacks::STATES,
        state_bits = const stacks::STATE_BITS,
        busy = const stacks::BUSY,
        unmade = const stacks::UNMADE,
        free = const stacks::FREE,
        count = const stacks::COUNT,
        length = const stacks::LENGTH,
        length_bits = const stacks::LENGTH_BITS,
        guard = const stacks::GUARD,
        area = sym stacks::AREA,
        access = const libc::PROT_READ | libc::PROT_WRITE,
        mprotect = const libc::SYS_mprotect,
        frame = const FRAME,
        answer = sym call::answer,
        enter = sym ENTER,
        behind = sym BEHIND,
    )
}

const _: () =
    assert!(size_of::<call::Call>() == 64 && FRAME.is_multiple_of(16) && PLAIN < DESCRIPTOR && DESCRIPTOR == 1);

/// Stands for the program's function that ends it (ABI0 of Go: the status lies above the return address). It does not
/// return, so it keeps nothing. A second thread that comes here meanwhile ends the program at once, as that function
/// does.
#[unsafe(naked)]
unsafe extern "C" fn exit() {
    naked_asm!(
        "mov edi, dword ptr [rsp + 8]",
        "mov ecx, {busy}",
        "xchg dword ptr [rip + {state}], ecx",
        "cmp ecx, {busy}",
        "je 2f",
        "mov rsp, {whole}",
        "add rsp, qword ptr [rip + {area}]",
        "call {exit}",
        "2:",
        "mov eax, {exit_group}",
        "syscall",
        "ud2",
        state = sym stacks::EXIT_STATE,
        busy = const stacks::BUSY,
        whole = const (stacks::COUNT + 1) << stacks::LENGTH_BITS,
        area = sym stacks::AREA,
        exit = sym call::exit,
        exit_group = const libc::SYS_exit_group,
    )
}

/// Defines a function that stands for one of the runtime's for epoll (ABI0 of Go: arguments and the place of the result
/// lie above the return address). It calls the program's function for system calls, which comes to us. No register has
/// to be kept but the stack pointer and rbp. The eight bytes of its call fit on every stack, since the function that it
/// stands for is one for which the linker keeps several hundred bytes.
macro_rules! for_epoll {
    ($( $(#[$doc:meta])* fn $name:ident is $number:ident [$($load:literal),*] to $result:literal; )*) => {$(
        $(#[$doc])*
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                $($load,)*
                "mov eax, {number}",
                "call qword ptr [rip + {syscall6}]",
                "test rcx, rcx",
                "jz 2f",
                "mov rax, rcx",
                "neg rax",
                "2:",
                concat!("mov dword ptr [rsp + ", $result, "], eax"),
                "ret",
                number = const libc::$number,
                syscall6 = sym SYSCALL6,
            )
        }
    )*};
}

for_epoll! {
    /// `epollcreate(size int32) int32`.
    fn epoll_create is SYS_epoll_create ["mov ebx, dword ptr [rsp + 8]"] to 16;
    /// `epollcreate1(flags int32) int32`.
    fn epoll_create1 is SYS_epoll_create1 ["mov ebx, dword ptr [rsp + 8]"] to 16;
    /// `epollctl(epfd, op, fd int32, ev *epollevent) int32`.
    fn epoll_ctl is SYS_epoll_ctl [
        "mov ebx, dword ptr [rsp + 8]",
        "mov ecx, dword ptr [rsp + 12]",
        "mov edi, dword ptr [rsp + 16]",
        "mov rsi, qword ptr [rsp + 24]"
    ] to 32;
    /// `epollwait(epfd int32, ev *epollevent, nev, timeout int32) int32`, without a mask of signals.
    fn epoll_wait is SYS_epoll_pwait [
        "mov ebx, dword ptr [rsp + 8]",
        "mov rcx, qword ptr [rsp + 16]",
        "mov edi, dword ptr [rsp + 24]",
        "mov esi, dword ptr [rsp + 28]",
        "xor r8d, r8d",
        "xor r9d, r9d"
    ] to 32;
}
