//! A process that begins to execute a program, held by ptrace(2) before the program's first instruction, and made to
//! execute system calls there. For `netacc_run`; the library never traces.
//!
//! # Safety
//! What is written and executed is another process's: one that waits, has one thread, and has not begun. Our own memory
//! is only read, or written as a result of the size that the kernel is told.
#![allow(unsafe_code)]

use crate::errno::{Errno, Result};
use crate::{raw, signals};

const POKE_TEXT: usize = 4;
const PEEK_TEXT: usize = 1;
const CONT: usize = 7;
const GET_REGS: usize = 12;
const SET_REGS: usize = 13;
const DETACH: usize = 17;
const SYSCALL: usize = 24;
const SET_OPTIONS: usize = 0x4200;
const SEIZE: usize = 0x4206;
const LISTEN: usize = 0x4208;
const GET_SIGMASK: usize = 0x420a;
const SET_SIGMASK: usize = 0x420b;

const TRACE_SYSGOOD: usize = 1;
const TRACE_EXEC: usize = 1 << 4;
/// The process ends with us: half way it must not begin.
const EXIT_KILL: usize = 1 << 20;

const EVENT_EXEC: i32 = 4;
const EVENT_STOP: i32 = 128;
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;

/// The instruction by which the process makes a system call.
const ENTER: u64 = 0x050f;

fn ptrace(request: usize, pid: u32, address: usize, data: usize) -> Result<()> {
    // SAFETY: `data` is a number, or the address of a variable of the size that the request asks for.
    let done = unsafe { raw::syscall6(libc::SYS_ptrace, [request, pid as usize, address, data, 0, 0]) };
    if done < 0 { Err(Errno(-done as i32)) } else { Ok(()) }
}

/// Copies between our memory and that of a process.
fn copy(number: i64, pid: u32, ours: usize, its: usize, len: usize) -> Result<()> {
    let (local, remote) = ([ours, len], [its, len]);
    let pieces = [pid as usize, (&raw const local).addr(), 1, (&raw const remote).addr(), 1, 0];
    // SAFETY: the local piece is a slice of the caller's, which may be written where the call does that.
    match unsafe { raw::syscall6(number, pieces) } {
        n if n < 0 => Err(Errno(-n as i32)),
        n if n as usize == len => Ok(()),
        _ => Err(Errno::FAULT),
    }
}

/// Lets `tracer` trace this process, where Yama asks for that. Elsewhere the kernel refuses, and nothing is needed.
pub fn admit(tracer: u32) {
    const SET_PTRACER: usize = 0x5961_6d61;
    // SAFETY: takes a number.
    unsafe { raw::syscall6(libc::SYS_prctl, [SET_PTRACER, tracer as usize, 0, 0, 0, 0]) };
}

/// Makes a process that executes `run` and ends with its result. Its end raises no signal; [`raw::reap`] waits for it.
/// All signals are blocked in it. For processes with one thread.
pub fn helper(run: impl FnOnce() -> i32) -> Result<u32> {
    let blocked = signals::Blocked::all();
    // SAFETY: a copy of the process: no flags, no stack, and no signal at its end.
    let pid = unsafe { raw::syscall6(libc::SYS_clone, [0; 6]) };
    if pid == 0 {
        raw::exit_group(run());
    }
    drop(blocked);
    if pid < 0 { Err(Errno(-pid as i32)) } else { Ok(pid as u32) }
}

/// Ends a helper, of which nothing remains then.
pub fn end_helper(pid: u32) {
    // SAFETY: takes numbers.
    unsafe { raw::syscall6(libc::SYS_kill, [pid as usize, libc::SIGKILL as usize, 0, 0, 0, 0]) };
    let _ = raw::reap(pid);
}

/// A process that is traced and has not yet executed its program.
#[derive(Debug)]
pub struct Seized {
    pid: u32,
}

/// A process that waits before its program's first instruction.
pub struct Held {
    pid: u32,
    /// Its registers, as its program begins with them.
    begins: libc::user_regs_struct,
    /// The first bytes at the place where it begins.
    code: u64,
    mask: u64,
}

/// What a stop of the process is.
enum Stop {
    Signal(i32),
    Event(i32, i32),
    Ended,
}

fn wait(pid: u32) -> Stop {
    const WALL: usize = 0x4000_0000;
    let mut status = 0i32;
    loop {
        let place = (&raw mut status).addr();
        // SAFETY: a word of the size that the kernel writes.
        match unsafe { raw::syscall6(libc::SYS_wait4, [pid as usize, place, WALL, 0, 0, 0]) } {
            n if n == -(libc::EINTR as isize) => {}
            n if n < 0 || status & 0xff != 0x7f => return Stop::Ended,
            _ if status >> 16 == 0 => return Stop::Signal(status >> 8 & 0xff),
            _ => return Stop::Event(status >> 16, status >> 8 & 0xff),
        }
    }
}

impl Seized {
    /// Begins to trace a process. The other calls that are needed are tried, too: a filter that ends their caller shall
    /// do so now, when nothing depends on it.
    ///
    /// # Errors
    /// The kernel's, where tracing is forbidden.
    pub fn seize(pid: u32) -> Result<Seized> {
        ptrace(SEIZE, pid, 0, TRACE_SYSGOOD | TRACE_EXEC)?;
        copy(libc::SYS_process_vm_writev, pid, 0, 0, 0)?;
        copy(libc::SYS_process_vm_readv, pid, 0, 0, 0)?;
        Ok(Seized { pid })
    }

    /// Waits until the process executes a program. `None` if it ends before that.
    pub fn held(self) -> Option<Held> {
        let pid = self.pid;
        loop {
            let went_on = match wait(pid) {
                Stop::Ended => return None,
                Stop::Event(EVENT_EXEC, _) => break,
                // It is stopped as a group: it stays so until it is continued.
                Stop::Event(EVENT_STOP, signal) if signal != libc::SIGTRAP => ptrace(LISTEN, pid, 0, 0),
                Stop::Event(..) => ptrace(CONT, pid, 0, 0),
                Stop::Signal(signal) => ptrace(CONT, pid, 0, signal as usize),
            };
            went_on.ok()?;
        }
        ptrace(SET_OPTIONS, pid, 0, TRACE_SYSGOOD | TRACE_EXEC | EXIT_KILL).ok()?;
        // SAFETY: a structure of numbers.
        let begins = unsafe { core::mem::zeroed() };
        let mut held = Held { pid, begins, code: 0, mask: 0 };
        let mask = (&raw mut held.mask).addr();
        let all = u64::MAX;
        ptrace(GET_SIGMASK, pid, 8, mask).ok()?;
        ptrace(SET_SIGMASK, pid, 8, (&raw const all).addr()).ok()?;
        // The end of the call by which it executes.
        held.go_on().ok()?;
        held.begins = held.registers().ok()?;
        let code = (&raw mut held.code).addr();
        let entered = ptrace(PEEK_TEXT, pid, held.start(), code)
            .and_then(|()| ptrace(POKE_TEXT, pid, held.start(), (held.code & !0xffff | ENTER) as usize));
        if entered.is_err() {
            // Its first instruction is nowhere. It ends by that, and not by our end.
            let _ = held.let_go();
            return None;
        }
        Some(held)
    }
}

impl Held {
    /// Lets it go on to the beginning or the end of a system call.
    fn go_on(&mut self) -> Result<()> {
        ptrace(SYSCALL, self.pid, 0, 0)?;
        loop {
            match wait(self.pid) {
                Stop::Signal(SYSCALL_STOP) => return Ok(()),
                Stop::Ended => return Err(Errno(libc::ESRCH)),
                // The one signal that cannot be blocked and does not end it. It takes effect now: kept for later, it could
                // stop the process after the signal that continues it.
                Stop::Signal(signal) => ptrace(SYSCALL, self.pid, 0, signal as usize)?,
                Stop::Event(EVENT_STOP, signal) if signal != libc::SIGTRAP => ptrace(LISTEN, self.pid, 0, 0)?,
                Stop::Event(..) => ptrace(SYSCALL, self.pid, 0, 0)?,
            }
        }
    }

    fn registers(&self) -> Result<libc::user_regs_struct> {
        // SAFETY: a structure of numbers.
        let mut registers: libc::user_regs_struct = unsafe { core::mem::zeroed() };
        ptrace(GET_REGS, self.pid, 0, (&raw mut registers).addr())?;
        Ok(registers)
    }

    fn set_registers(&self, mut registers: libc::user_regs_struct) -> Result<()> {
        // It is in no call that the kernel might repeat.
        registers.orig_rax = u64::MAX;
        ptrace(SET_REGS, self.pid, 0, (&raw const registers).addr())
    }

    /// Has it make a system call.
    ///
    /// # Errors
    /// The call's, or `ESRCH` if the process has ended.
    pub fn call(&mut self, number: i64, arguments: [usize; 6]) -> Result<usize> {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments.map(|a| a as u64);
        self.set_registers(libc::user_regs_struct { rax: number as u64, rdi, rsi, rdx, r10, r8, r9, ..self.begins })?;
        self.go_on()?;
        self.go_on()?;
        match self.registers()?.rax as isize {
            answer if (-4095..0).contains(&answer) => Err(Errno(-answer as i32)),
            answer => Ok(answer as usize),
        }
    }

    /// Writes to its memory.
    ///
    /// # Errors
    /// The kernel's, or `EFAULT` if not all of it was written.
    pub fn write(&self, to: usize, bytes: &[u8]) -> Result<()> {
        copy(libc::SYS_process_vm_writev, self.pid, bytes.as_ptr().addr(), to, bytes.len())
    }

    /// Reads from its memory.
    ///
    /// # Errors
    /// As for [`Held::write`].
    pub fn read(&self, from: usize, bytes: &mut [u8]) -> Result<()> {
        copy(libc::SYS_process_vm_readv, self.pid, bytes.as_mut_ptr().expose_provenance(), from, bytes.len())
    }

    /// Lets it begin as if nothing had been done.
    pub fn release(self) {
        let begins = self.begins;
        let _ = self.release_with(begins);
    }

    /// Lets it begin at `at`, with these two arguments of a function. What was `at` the place where its program begins
    /// is there again.
    ///
    /// # Errors
    /// The kernel's; the process has ended then.
    pub fn release_at(self, at: usize, arguments: [usize; 2]) -> Result<()> {
        let [rdi, rsi] = arguments.map(|a| a as u64);
        let registers = libc::user_regs_struct { rip: at as u64, rdi, rsi, ..self.begins };
        self.release_with(registers)
    }

    /// Where its program begins.
    #[must_use]
    pub fn start(&self) -> usize {
        self.begins.rip as usize
    }

    fn release_with(self, registers: libc::user_regs_struct) -> Result<()> {
        ptrace(POKE_TEXT, self.pid, self.start(), self.code as usize)?;
        self.set_registers(registers)?;
        self.let_go()
    }

    /// Ends the tracing.
    fn let_go(&self) -> Result<()> {
        ptrace(SET_SIGMASK, self.pid, 8, (&raw const self.mask).addr())?;
        ptrace(DETACH, self.pid, 0, 0)
    }
}
