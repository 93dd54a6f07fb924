//! Calls that hand descriptors to another program, and calls that read or write them inside libc. Each such descriptor
//! has to be a kernel socket.

use crate::process::next_fork;
#[cfg(target_arch = "x86_64")]
use crate::static_children::Execution;
use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};
use netacc_core::engine;
use netacc_core::exec::{at_exit, inheritance};
use netacc_core::switch::demote;
use netacc_stats::Reason;
use netacc_sys::{libc_kind, user, visits, weak};

pub(crate) type Args = *const *const c_char;

/// Numbers that the arguments and the environment of a program mention.
struct Named {
    numbers: [c_int; 64],
    len: usize,
}

impl Named {
    const fn new() -> Named {
        Named { numbers: [0; 64], len: 0 }
    }

    fn has(&self, fd: c_int) -> bool {
        self.numbers.iter().take(self.len).any(|n| *n == fd)
    }

    /// Adds every run of digits in `text` that can be a descriptor. A wrong number costs a connection its speed, a
    /// missed one costs the program its connection; so only a number that is certainly something else is left out.
    fn scan(&mut self, text: &[u8]) {
        let mut from = 0;
        while let Some(at) = text.iter().skip(from).position(u8::is_ascii_digit) {
            let (before, rest) = text.split_at(from + at);
            let len = rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len());
            let (run, after) = rest.split_at(len);
            from += at + len;
            if len >= 8 || is_part(before, after) {
                continue;
            }
            let n = run.iter().fold(0, |n, d| n * 10 + c_int::from(d - b'0'));
            if let Some(cell) = self.numbers.get_mut(self.len).filter(|_| n > 2) {
                *cell = n;
                self.len += 1;
            }
        }
    }

    /// # Safety
    /// `p` is null or a NUL-terminated string.
    unsafe fn string(&mut self, p: *const c_char) {
        // SAFETY: the caller guarantees what this function's contract says of its pointers.
        if let Some(text) = unsafe { user::text(p) } {
            self.scan(text.to_bytes());
        }
    }

    /// Adds the numbers of all arguments but the first, which is the program's own name.
    ///
    /// # Safety
    /// `v` is null or a NULL-terminated array of strings.
    unsafe fn arguments(&mut self, v: Args) {
        let mut first = true;
        // SAFETY: the caller guarantees what this function's contract says of its pointers.
        unsafe {
            each(v, |p| {
                if !core::mem::take(&mut first) {
                    self.string(p);
                }
            });
        }
    }

    /// Adds the numbers of the variables whose value is nothing but numbers.
    ///
    /// # Safety
    /// `v` is null or a NULL-terminated array of strings.
    unsafe fn environment(&mut self, v: Args) {
        // SAFETY: the caller guarantees what this function's contract says of its pointers.
        unsafe {
            each(v, |p| {
                let Some(text) = user::text(p) else { return };
                let value = text.to_bytes().splitn(2, |b| *b == b'=').nth(1).unwrap_or(&[]);
                if value.iter().all(|b| b.is_ascii_digit() || b",;: ".contains(b)) {
                    self.scan(value);
                }
            });
        }
    }
}

/// Whether a number between `before` and `after` is a part of something: of a path, unless in a folder of descriptors
/// (`/dev/fd/7`), or of a version or address (`3.11`, `127.0.0.1`).
fn is_part(before: &[u8], after: &[u8]) -> bool {
    let is_digit = |b: Option<&u8>| b.is_some_and(u8::is_ascii_digit);
    match (before, after) {
        ([.., b'f', b'd', b'/'], []) => false,
        ([.., b'/'], _) | (_, [b'/', ..]) => true,
        (_, [b'.', next, ..]) if next.is_ascii_digit() => true,
        ([start @ .., b'.'], _) => is_digit(start.last()),
        _ => false,
    }
}

/// # Safety
/// `v` is null or a NULL-terminated array.
pub(crate) unsafe fn each(v: Args, mut f: impl FnMut(*const c_char)) {
    if v.is_null() {
        return;
    }
    for i in 0.. {
        // What cannot be read is for the kernel to refuse.
        // SAFETY: an address, which any bytes are.
        match unsafe { user::load(v.wrapping_add(i)) } {
            Some(p) if !p.is_null() => f(p),
            _ => return,
        }
    }
}

/// # Safety
/// `argv` and `envp` as for execve(2).
pub unsafe fn hand_off(spawns: bool, argv: Args, envp: Args) {
    if !libc_kind::is_known() {
        return;
    }
    let mut named = Named::new();
    // SAFETY: the caller guarantees what this function's contract says of its pointers.
    unsafe {
        named.arguments(argv);
        named.environment(envp);
    }
    give(spawns, &named);
}

/// Demotes the connections that the other program is meant to have. A program that replaces ours (exec) also gets the
/// connections that this process carries for others.
fn give(spawns: bool, named: &Named) {
    inheritance::before_exec(spawns, |fd| named.has(fd));
    if !spawns {
        at_exit::hand_on_all();
        at_exit::settle_switches();
        engine::before_exec(next_fork);
    }
}

/// # Safety
/// `command` is null or a NUL-terminated command for the shell.
unsafe fn hand_to_shell(command: *const c_char) {
    let mut named = Named::new();
    // SAFETY: the caller guarantees what this function's contract says of its pointers.
    unsafe { named.string(command) };
    give(true, &named);
}

/// Makes the call `$call`, which executes a program and returns only if that has failed, with what the program needs if
/// it is a static one. No library is mapped into programs of other machines than x86-64. The thread is not inside the library
/// meanwhile: the child of a vfork(2) has its parent's memory, where it would stay counted.
macro_rules! execute {
    ($execution:expr, $call:expr) => {{
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: the application's arguments, under the contract of exec(3).
            #[allow(unused_unsafe)]
            let execution = unsafe { $execution };
            execution.run(|| netacc_sys::visits::outside(|| $call))
        }
        #[cfg(not(target_arch = "x86_64"))]
        netacc_sys::visits::outside(|| $call)
    }};
}
pub(crate) use execute;

/// Defines a function of exec(3), which returns only if it has failed.
macro_rules! executes {
    ($( fn $name:ident ( $($arg:ident : $ty:ty),* ) => $ours:expr, $execution:expr; )*) => {$(
        exports! {
            fn $name($($arg: $ty),*) -> c_int {
                if !libc_kind::is_known() {
                    return call_next!($name($($arg => $ty),*) -> c_int);
                }
                visit!($name($($arg),*));
                // SAFETY: the application's arguments, under the contract of libc's function.
                unsafe { $ours };
                let failed = execute!($execution, call_next!($name($($arg => $ty),*) -> c_int));
                if !visits::is_replaced() {
                    engine::go_on();
                }
                failed
            }
        }
    )*};
}

// The connections that the other program is meant to have leave shared memory before these.
executes! {
    fn execve(path: *const c_char, argv: Args, envp: Args)
        => hand_off(false, argv, envp), Execution::path(path, envp);
    fn execv(path: *const c_char, argv: Args)
        => hand_off(false, argv, weak::environment()), Execution::path(path, weak::environment());
    fn execvp(file: *const c_char, argv: Args)
        => hand_off(false, argv, weak::environment()), Execution::searched(file, weak::environment());
    fn execvpe(file: *const c_char, argv: Args, envp: Args)
        => hand_off(false, argv, envp), Execution::searched(file, envp);
    fn fexecve(fd: c_int, argv: Args, envp: Args)
        => hand_off(false, argv, envp), Execution::open(fd, envp);
    fn execveat(dir: c_int, path: *const c_char, argv: Args, envp: Args, flags: c_int)
        => hand_off(false, argv, envp), Execution::at(dir, path, envp, flags);
}

// These functions fork inside libc.
before! {
    fn system(command: *const c_char) => hand_to_shell(command);
    fn posix_spawn(pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attr: *const c_void, argv: Args, envp: Args)
        => hand_off(true, argv, envp);
    fn posix_spawnp(pid: *mut libc::pid_t, file: *const c_char, actions: *const c_void, attr: *const c_void, argv: Args, envp: Args)
        => hand_off(true, argv, envp);
}

exports! {
    /// popen(3) forks inside libc.
    fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
        if libc_kind::is_known() {
            visit!(popen(command, mode));
            // SAFETY: the application's command.
            unsafe { hand_to_shell(command) };
        }
        call_next!(popen(command => *const c_char, mode => *const c_char) -> isize) as *mut libc::FILE
    }

    /// posix_spawn_file_actions_adddup2(3): the child gets this descriptor whatever its FD_CLOEXEC says.
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int {
        {
            visit!(posix_spawn_file_actions_adddup2(actions, fd, new));
            let _ = demote::by_number(fd, Reason::Exec);
        }
        call_next!(posix_spawn_file_actions_adddup2(actions => *mut c_void, fd => c_int, new => c_int) -> c_int)
    }
}

/// Demotes `fd`, since libc will read or write it without our hooks. A failure is logged.
fn stdio(fd: c_int) {
    let _ = demote::by_number(fd, Reason::Stdio);
}

exports! {
    /// fdopen(3): libc reads and writes the descriptor from here on without our hooks.
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
        {
            visit!(fdopen(fd, mode));
            stdio(fd);
        }
        call_next!(fdopen(fd => c_int, mode => *const c_char) -> isize) as *mut libc::FILE
    }

    /// `vdprintf(3)` writes inside libc; the list of arguments is passed on as it is.
    fn vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int {
        {
            visit!(vdprintf(fd, format, list));
            stdio(fd);
        }
        call_next!(vdprintf(fd => c_int, format => *const c_char, list => *mut c_void) -> c_int)
    }

    /// The checked variant of `vdprintf`, which `_FORTIFY_SOURCE` substitutes.
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int {
        {
            visit!(__vdprintf_chk(fd, flag, format, list));
            stdio(fd);
        }
        call_next!(__vdprintf_chk(fd => c_int, flag => c_int, format => *const c_char, list => *mut c_void) -> c_int)
    }
}

/// The address of the next definition of `$name`.
macro_rules! next {
    ($name:ident) => {{
        next_of!(NEXT, name_of!($name));
        NEXT.get()
    }};
}

/// Further arguments of a call with a variable number of them: those in registers, then those on the stack.
///
/// # Safety
/// The arguments are the trampoline's saved registers and the caller's stack, and the list ends with NULL.
unsafe fn hand_list(registers: *const *const c_char, count: usize, stack: Args) {
    if !libc_kind::is_known() {
        return;
    }
    let mut named = Named::new();
    // SAFETY: the caller guarantees what this function's contract says of its pointers.
    unsafe {
        for i in 0..count {
            let p = registers.add(i).read();
            if p.is_null() {
                return give(false, &named);
            }
            named.string(p);
        }
        named.arguments(stack);
    }
    give(false, &named);
}

/// Argument registers after the first.
const REGISTERS: usize = if cfg!(target_arch = "x86_64") { 5 } else { 7 };

/// A function with a variable number of arguments: `before` looks at them and gives the address of the next
/// definition, which then finds all of them where the caller put them.
macro_rules! variadic {
    ($( fn $name:ident in $line:ident => $entry:ident, $before:ident($first:ident, $registers:ident, $stack:ident) $body:expr; )*) => {$(
        unsafe extern "C" fn $before($first: usize, $registers: Args, $stack: Args) -> *mut c_void {
            match netacc_sys::visits::Visit::begin() {
                // The call is made anew, with all that the trampoline has saved.
                netacc_sys::visits::Admission::Anew => $line.target(),
                _inside => {
                    #[allow(unused_unsafe)]
                    // SAFETY: the application's arguments.
                    unsafe { $body };
                    next!($name)
                }
            }
        }

        jumps_by_table! { fn $name in $line => $entry; }

        #[unsafe(naked)]
        unsafe extern "C" fn $entry() {
            // Every register in which arguments may be passed is saved around the call: the integer registers, the
            // vector registers and, on x86-64, how many of those are in use (al). A jump follows, as if we had not been
            // there.
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "sub rsp, 192",
                "mov [rsp], rdi",
                "mov [rsp+8], rsi",
                "mov [rsp+16], rdx",
                "mov [rsp+24], rcx",
                "mov [rsp+32], r8",
                "mov [rsp+40], r9",
                "mov [rsp+48], rax",
                "movups [rsp+64], xmm0",
                "movups [rsp+80], xmm1",
                "movups [rsp+96], xmm2",
                "movups [rsp+112], xmm3",
                "movups [rsp+128], xmm4",
                "movups [rsp+144], xmm5",
                "movups [rsp+160], xmm6",
                "movups [rsp+176], xmm7",
                "lea rsi, [rsp+8]",
                "lea rdx, [rbp+16]",
                "call {before}",
                "mov r11, rax",
                "mov rdi, [rsp]",
                "mov rsi, [rsp+8]",
                "mov rdx, [rsp+16]",
                "mov rcx, [rsp+24]",
                "mov r8, [rsp+32]",
                "mov r9, [rsp+40]",
                "mov rax, [rsp+48]",
                "movups xmm0, [rsp+64]",
                "movups xmm1, [rsp+80]",
                "movups xmm2, [rsp+96]",
                "movups xmm3, [rsp+112]",
                "movups xmm4, [rsp+128]",
                "movups xmm5, [rsp+144]",
                "movups xmm6, [rsp+160]",
                "movups xmm7, [rsp+176]",
                "leave",
                "jmp r11",
                before = sym $before,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "stp x29, x30, [sp, #-208]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "stp q0, q1, [sp, #80]",
                "stp q2, q3, [sp, #112]",
                "stp q4, q5, [sp, #144]",
                "stp q6, q7, [sp, #176]",
                "add x1, sp, #24",
                "add x2, sp, #208",
                "bl {before}",
                "mov x16, x0",
                "ldp q0, q1, [sp, #80]",
                "ldp q2, q3, [sp, #112]",
                "ldp q4, q5, [sp, #144]",
                "ldp q6, q7, [sp, #176]",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldp x29, x30, [sp], #208",
                "br x16",
                before = sym $before,
            );
        }
    )*};
}

variadic! {
    fn execl in EXECL => execl_entry, before_execl(_path, registers, stack) hand_list(registers, REGISTERS, stack);
    fn execlp in EXECLP => execlp_entry, before_execlp(_file, registers, stack) hand_list(registers, REGISTERS, stack);
    fn execle in EXECLE => execle_entry, before_execle(_path, registers, stack) hand_list(registers, REGISTERS, stack);
    fn dprintf in DPRINTF => dprintf_entry, before_dprintf(fd, _registers, _stack) stdio(fd as c_int);
    fn __dprintf_chk in DPRINTF_CHK => dprintf_chk_entry, before_dprintf_chk(fd, _registers, _stack) stdio(fd as c_int);
}
