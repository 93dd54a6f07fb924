//! What an operator asks of a process (`netacc_ctl`), and what the process has done.
//!
//! The page is the process' own. A controller of the same user, or root's, opens it through `/proc/PID/fd` and writes one
//! byte. So the kernel says who may do that, and no other file is needed. Nothing that is written there is trusted: a byte that
//! asks for nothing known is taken note of and does nothing, and the process decides by words of its own memory.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU8, AtomicU32};

/// The soft limit RLIMIT_LOCKS of a process that an operator has switched off before it opened its first TCP socket. Such a
/// process has no page yet, and has to have nothing on account of NetACC. The kernel keeps this limit and has enforced
/// nothing by it since Linux 2.4.25 (getrlimit(2)), prlimit(2) lets the same user and root change it, and a child of
/// fork(2) and a program that is executed inherit it.
pub const OFF_BEFORE_THE_PAGE: u64 = 0xACC_0FF;

/// What an operator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Wish {
    /// Every connection goes to the kernel, and nothing more is accelerated.
    Off = 1,
    /// New sockets and listeners are accelerated.
    On = 2,
}

impl Wish {
    const BITS: u8 = 3;

    /// What a request asks for; `None` for one that means nothing.
    #[inline]
    #[must_use]
    pub const fn of(request: u8) -> Option<Self> {
        match request & Self::BITS {
            1 => Some(Self::Off),
            2 => Some(Self::On),
            _ => None,
        }
    }

    /// The request for this that differs from the one `before`.
    #[must_use]
    pub const fn after(self, before: u8) -> u8 {
        (before | Self::BITS).wrapping_add(1) | self as u8
    }
}

/// How far a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// It is accelerated as its configuration says.
    On = 1,
    /// An operator has switched it off, and some connections are still to go to the kernel.
    GoingOff = 2,
    /// An operator has switched it off.
    Off = 3,
}

impl State {
    /// The state with this number.
    #[must_use]
    pub const fn from_u32(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::On),
            2 => Some(Self::GoingOff),
            3 => Some(Self::Off),
            _ => None,
        }
    }
}

/// The words by which a controller and the process understand each other.
#[derive(Debug)]
#[repr(C)]
pub struct Control {
    /// What is asked for: a [`Wish`] and above it a count, by which two requests in a row differ. A byte, since a file that is
    /// written changes byte by byte.
    request: AtomicU8,
    unused: [AtomicU8; 3],
    /// The request that was carried out last.
    done: AtomicU32,
    /// A [`State`]; 0: this version of the library follows no controller.
    state: AtomicU32,
    /// Number of connections that are still to go to the kernel.
    left: AtomicU32,
    /// The descriptor (+ 1) of the pipe that wakes threads which sleep in calls of ours, if there is one: its writing end.
    bell: AtomicU32,
}

/// Where the words are within [`Control`], for the reader.
#[doc(hidden)]
#[allow(missing_docs, reason = "the fields are described where they are declared")]
pub mod at {
    use super::Control;
    use core::mem::offset_of;

    pub const REQUEST: usize = offset_of!(Control, request);
    pub const DONE: usize = offset_of!(Control, done);
    pub const STATE: usize = offset_of!(Control, state);
    pub const LEFT: usize = offset_of!(Control, left);
    pub const BELL: usize = offset_of!(Control, bell);
}

impl Control {
    pub(crate) const fn new() -> Self {
        Self {
            request: AtomicU8::new(0),
            unused: [const { AtomicU8::new(0) }; 3],
            done: AtomicU32::new(0),
            state: AtomicU32::new(0),
            left: AtomicU32::new(0),
            bell: AtomicU32::new(0),
        }
    }

    /// The process follows controllers from here on.
    pub(crate) fn publish(&self) {
        // Relaxed: a reader looks at the page only once it has its magic.
        self.state.store(State::On as u32, Relaxed);
    }

    /// What is asked for now. It is looked at by every call that moves bytes.
    #[inline]
    #[must_use]
    pub fn request(&self) -> u8 {
        // Relaxed: nothing is read through it, and a call that is early misses it until the next one.
        self.request.load(Relaxed)
    }

    /// What is asked for, as of now: a thread that has emptied the pipe before sees what was asked for before it was rung.
    #[must_use]
    pub fn request_now(&self) -> u8 {
        self.request.load(SeqCst)
    }

    /// Says what the process has done so far: `left` connections are still to go.
    pub fn set_state(&self, state: State, left: u32) {
        self.left.store(left, Relaxed);
        // Release: a reader that sees the state sees the number that belongs to it.
        self.state.store(state as u32, Release);
    }

    /// Says which request was carried out last.
    pub fn set_done(&self, request: u8) {
        // Release: a reader that sees this sees the state that the request led to.
        self.done.store(u32::from(request), Release);
    }

    /// Says by which descriptor the pipe is rung; `None`: there is none.
    pub fn set_bell(&self, fd: Option<i32>) {
        self.bell.store(fd.map_or(0, |fd| fd.wrapping_add(1).cast_unsigned()), Release);
    }

    /// How far the process is; `None`: it follows no controller.
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
            for wish in [Wish::Off, Wish::On] {
                let request = wish.after(before);
                assert_eq!(Wish::of(request), Some(wish));
                assert_ne!(request, before);
            }
        }
        assert!(Wish::of(0).is_none() && Wish::of(3).is_none() && Wish::of(252).is_none());
    }
}
