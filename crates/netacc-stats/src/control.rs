//! An operator's request to a process (`netacc_ctl`), and how far the process is with it.
//!
//! The page belongs to the process. A controller of the same user, or of root, opens it through `/proc/PID/fd` and
//! writes one byte, so the kernel decides who may do that, and no other file is needed. The process trusts nothing that
//! is written there: an unknown request has no effect, and all decisions depend on words of the process's own memory.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU16, AtomicU32};

use crate::table::numbered;

/// The soft limit RLIMIT_LOCKS of a process that an operator has switched off before it opened its first TCP socket.
/// Such a process has no page yet, and NetACC must not cost it one. The kernel keeps this limit and has enforced
/// nothing by it since Linux 2.4.25 (getrlimit(2)), prlimit(2) lets the same user and root change it, and a child of
/// fork(2) and a program that is executed inherit it.
pub const OFF_BEFORE_THE_PAGE: u64 = 0xACC_0FF;

/// What an operator requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Command {
    /// Every connection switches to the kernel, and no new one is accelerated.
    Off = 1,
    /// New sockets and listeners are accelerated.
    On = 2,
    /// The library is replaced by the one that is in its file now.
    Upgrade = 3,
}

impl Command {
    const BITS: u8 = 3;

    /// The command in a request; `None` if it has none that this version knows.
    #[inline]
    #[must_use]
    pub const fn of(request: u8) -> Option<Self> {
        match request & Self::BITS {
            1 => Some(Self::Off),
            2 => Some(Self::On),
            3 => Some(Self::Upgrade),
            _ => None,
        }
    }

    /// A request with this command that differs from the request `before`.
    #[must_use]
    pub const fn after(self, before: u8) -> u8 {
        (before | Self::BITS).wrapping_add(1) | self as u8
    }
}

numbered! {
    /// How far a process is with a request.
    pub enum State {
        /// The process is accelerated as its configuration says.
        On = 1, "on";
        /// An operator has switched the process off, and some connections have not switched to the kernel yet.
        GoingOff = 2, "going off";
        /// An operator has switched the process off.
        Off = 3, "off";
    }
}

numbered! {
    /// What became of a request to replace the library.
    pub enum Upgraded {
        /// The library was replaced. The page of the new one says so; the process has no other page then.
        Replaced = 1, "replaced";
        /// A thread stays inside the library for too long.
        ThreadInside = 2, "a thread inside";
        /// The file cannot be opened or read; the errno says why.
        Unreadable = 3, "unreadable";
        /// The file is not a library that can be mapped, or not of a version that can take over.
        Damaged = 4, "damaged";
        /// The kernel does not map the library; the errno says why.
        NotMapped = 5, "not mapped";
        /// The process has RDMA devices open.
        Rdma = 6, "RDMA";
        /// The program makes its system calls itself (Go).
        OwnCalls = 7, "own system calls";
        /// The process is left to the kernel for good.
        KernelOnly = 8, "kernel only";
        /// membarrier(2) is not permitted; the errno says why.
        NoBarrier = 9, "no membarrier";
        /// A socket or an epoll instance could not be left to the kernel; the errno says why.
        NotLeft = 10, "not left to the kernel";
        /// The linker has loaded the library by a relative path, and the current folder may be another one by now.
        RelativePath = 11, "a relative path";
        /// The library's path leads elsewhere than when the program started, or others can write to the file.
        Elsewhere = 12, "another file";
    }
}

/// What a controller asks for: two requests that do not wait for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The process is to be off or on: a [`Command`] and, in the bits above it, a count that makes two requests in a
    /// row differ.
    pub switch: u8,
    /// Number of times that the rules were to be loaded anew; it wraps.
    pub reload: u8,
}

impl Request {
    /// The request as a number, which is 0 if nothing was ever asked for.
    #[inline]
    #[must_use]
    pub const fn word(self) -> u16 {
        u16::from_ne_bytes([self.switch, self.reload])
    }

    /// The request with this number.
    #[inline]
    #[must_use]
    pub const fn of_word(word: u16) -> Self {
        let [switch, reload] = word.to_ne_bytes();
        Self { switch, reload }
    }
}

/// The words that a controller and the process share.
#[derive(Debug)]
#[repr(C)]
pub struct Control {
    /// The two bytes of a [`Request`], in memory one after the other. The controller writes one of them, since a write
    /// to a file changes a larger word byte by byte. A call compares both at once.
    request: AtomicU16,
    /// An [`Upgraded`], and an errno above its eight bits; 0: no request to replace the library was answered.
    upgraded: AtomicU16,
    /// The switch that the process carried out last.
    done: AtomicU32,
    /// A [`State`]; 0: this version of the library follows no controller.
    state: AtomicU32,
    /// Number of connections that have not switched to the kernel yet.
    left: AtomicU32,
    /// Descriptor (+ 1) of the write end of the pipe that wakes sleeping threads; 0: there is no pipe.
    wake_pipe: AtomicU32,
}

/// Where the words are within [`Control`], for the reader.
#[doc(hidden)]
#[allow(missing_docs, reason = "the fields are described where they are declared")]
pub mod at {
    use super::Control;
    use core::mem::offset_of;

    pub const SWITCH: usize = offset_of!(Control, request);
    pub const RELOAD: usize = offset_of!(Control, request) + 1;
    pub const UPGRADED: usize = offset_of!(Control, upgraded);
    pub const DONE: usize = offset_of!(Control, done);
    pub const STATE: usize = offset_of!(Control, state);
    pub const LEFT: usize = offset_of!(Control, left);
    pub const WAKE_PIPE: usize = offset_of!(Control, wake_pipe);
}

impl Control {
    pub(crate) const fn new() -> Self {
        Self {
            request: AtomicU16::new(0),
            upgraded: AtomicU16::new(0),
            done: AtomicU32::new(0),
            state: AtomicU32::new(0),
            left: AtomicU32::new(0),
            wake_pipe: AtomicU32::new(0),
        }
    }

    /// Says that the process follows controllers from here on.
    pub(crate) fn publish(&self) {
        // Relaxed: a reader looks at the page only once it has its magic.
        self.state.store(State::On as u32, Relaxed);
    }

    /// The [`word`](Request::word) of the current request. Every call that moves bytes compares it.
    #[inline]
    #[must_use]
    pub fn request(&self) -> u16 {
        // Relaxed: no other word depends on it, and a thread that sees an old value checks again in its next call.
        self.request.load(Relaxed)
    }

    /// The current request. A thread that has emptied the pipe before sees each request that was stored before a byte
    /// that it took out.
    #[must_use]
    pub fn request_now(&self) -> u16 {
        self.request.load(SeqCst)
    }

    /// Stores how far the process is: `left` connections have not switched yet.
    pub fn set_state(&self, state: State, left: u32) {
        self.left.store(left, Relaxed);
        // Release: a reader that sees the state sees its number of connections.
        self.state.store(state as u32, Release);
    }

    /// Stores the switch that was carried out last, or was found to need nothing.
    pub fn set_done(&self, request: Request) {
        // Release: a reader that sees this sees the state to which the request led.
        self.done.store(u32::from(request.switch), Release);
    }

    /// Stores what became of a request to replace the library. To be called before the request counts as carried out.
    pub fn set_upgraded(&self, what: Upgraded, errno: i32) {
        self.upgraded.store(what as u16 | (errno as u16) << 8, Relaxed);
    }

    /// Stores the descriptor of the pipe's write end; `None`: there is no pipe.
    pub fn set_wake_pipe(&self, fd: Option<i32>) {
        self.wake_pipe.store(fd.map_or(0, |fd| fd.wrapping_add(1).cast_unsigned()), Release);
    }

    /// How far the process is; `None`: this version of the library follows no controller.
    #[must_use]
    pub fn state(&self) -> Option<State> {
        State::from_u32(self.state.load(Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_differs_from_the_one_before() {
        for before in 0..=u8::MAX {
            for command in [Command::Off, Command::On, Command::Upgrade] {
                let request = command.after(before);
                assert_eq!(Command::of(request), Some(command));
                assert_ne!(request, before);
            }
        }
        assert_eq!(Request::default().word(), 0);
        let both = Request { switch: 9, reload: 255 };
        assert_eq!(Request::of_word(both.word()), both);
        assert!(Command::of(0).is_none() && Command::of(252).is_none());
    }
}
