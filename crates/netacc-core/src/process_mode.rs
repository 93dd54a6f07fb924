//! Whether new sockets of the process may be accelerated. They may not where an operator has switched the process off
//! (`netacc_ctl`), and where the process does something for which it is left to the kernel for good: it moved to a
//! namespace where our knowledge of the host does not hold, installed a filter that may forbid our system calls, or
//! makes system calls by its own instructions.

use crate::machine::{Edge, allows};
use core::sync::atomic::{AtomicU32, Ordering};
use netacc_stats::Reason;

/// The mode of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessMode {
    /// New sockets and listeners may be accelerated.
    Accelerated,
    /// An operator has switched the process off. Its connections are kernel sockets or become such, until an operator
    /// switches it on.
    Off,
    /// An operator switches the process on. New sockets may be accelerated, and listeners are on their way back: a thread
    /// that waits on one of them has to hear of that.
    Returning,
    /// New sockets are kernel sockets and listeners are left to the kernel, for good. Connections may stay.
    KernelOnly(Reason),
    /// An operator has switched a process off that is [`ProcessMode::KernelOnly`].
    KernelOnlyOff(Reason),
}

/// The variants of [`ProcessMode`] without their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Accelerated,
    Off,
    Returning,
    KernelOnly,
    KernelOnlyOff,
}

/// Allowed transitions of the process.
const TABLE: &[Edge<Kind>] = &[
    (None, Some(Kind::Accelerated), "the program starts"),
    (Some(Kind::Accelerated), Some(Kind::Off), "netacc_ctl off"),
    (Some(Kind::Off), Some(Kind::Returning), "netacc_ctl on"),
    (Some(Kind::Returning), Some(Kind::Accelerated), "its listeners are back"),
    (Some(Kind::Returning), Some(Kind::Off), "netacc_ctl off"),
    (Some(Kind::Accelerated), Some(Kind::KernelOnly), "the process does what cannot be followed"),
    (Some(Kind::Off), Some(Kind::KernelOnlyOff), "the process does what cannot be followed"),
    (Some(Kind::Returning), Some(Kind::KernelOnly), "the process does what cannot be followed"),
    (Some(Kind::KernelOnly), Some(Kind::KernelOnlyOff), "netacc_ctl off"),
    (Some(Kind::KernelOnlyOff), Some(Kind::KernelOnly), "netacc_ctl on"),
];

/// The [`ProcessMode`] ([`ProcessMode::encode`]), and the bit [`LISTENER`].
static WORD: AtomicU32 = AtomicU32::new(0);

/// Bits of the word that hold the [`Reason`] of a process that is [`ProcessMode::KernelOnly`]; 0 for one that is not.
const REASON: u32 = 0xffff;
/// Bit that is set in the word while an operator has switched the process off.
const OFF: u32 = 1 << 16;
/// Bit that is set in the word while rules that an operator has loaded leave a listener to the kernel, or while a
/// process that shares a listener has left it. It is here since calls on sockets of the kernel load one word only.
const LISTENER: u32 = 1 << 17;
/// Bit that is set in the word of a process that is [`ProcessMode::Returning`].
const RETURNING: u32 = 1 << 18;

impl ProcessMode {
    /// Encodes the mode in a word.
    const fn encode(self) -> u32 {
        match self {
            ProcessMode::Accelerated => 0,
            ProcessMode::Off => OFF,
            ProcessMode::Returning => RETURNING,
            ProcessMode::KernelOnly(why) => why as u32,
            ProcessMode::KernelOnlyOff(why) => OFF | why as u32,
        }
    }

    /// Decodes a word that [`ProcessMode::encode`] made.
    fn decode(word: u32) -> ProcessMode {
        let why = Reason::from_u32(word & REASON).filter(|why| *why != Reason::None);
        match (why, word & OFF != 0) {
            (None, false) if word & RETURNING != 0 => ProcessMode::Returning,
            (None, false) => ProcessMode::Accelerated,
            (None, true) => ProcessMode::Off,
            (Some(why), false) => ProcessMode::KernelOnly(why),
            (Some(why), true) => ProcessMode::KernelOnlyOff(why),
        }
    }

    const fn kind(self) -> Kind {
        match self {
            ProcessMode::Accelerated => Kind::Accelerated,
            ProcessMode::Off => Kind::Off,
            ProcessMode::Returning => Kind::Returning,
            ProcessMode::KernelOnly(_) => Kind::KernelOnly,
            ProcessMode::KernelOnlyOff(_) => Kind::KernelOnlyOff,
        }
    }

    /// The mode of a process that is left to the kernel for good.
    const fn kernel_only(self, why: Reason) -> ProcessMode {
        match self {
            ProcessMode::Accelerated | ProcessMode::Returning | ProcessMode::KernelOnly(_) => {
                ProcessMode::KernelOnly(why)
            }
            ProcessMode::Off | ProcessMode::KernelOnlyOff(_) => ProcessMode::KernelOnlyOff(why),
        }
    }

    /// The mode of a process that an operator switches off.
    const fn off(self) -> ProcessMode {
        match self {
            ProcessMode::Accelerated | ProcessMode::Off | ProcessMode::Returning => ProcessMode::Off,
            ProcessMode::KernelOnly(why) | ProcessMode::KernelOnlyOff(why) => ProcessMode::KernelOnlyOff(why),
        }
    }

    /// The mode of a process that an operator switches on.
    const fn on(self) -> ProcessMode {
        match self {
            ProcessMode::Accelerated => ProcessMode::Accelerated,
            ProcessMode::Off | ProcessMode::Returning => ProcessMode::Returning,
            ProcessMode::KernelOnly(why) | ProcessMode::KernelOnlyOff(why) => ProcessMode::KernelOnly(why),
        }
    }

    /// The mode of a process whose listeners are back.
    const fn returned(self) -> ProcessMode {
        match self {
            ProcessMode::Returning => ProcessMode::Accelerated,
            other => other,
        }
    }

    /// Why new sockets are kernel sockets, if they are.
    const fn reason(self) -> Option<Reason> {
        match self {
            ProcessMode::Accelerated | ProcessMode::Returning => None,
            ProcessMode::Off => Some(Reason::Operator),
            ProcessMode::KernelOnly(why) | ProcessMode::KernelOnlyOff(why) => Some(why),
        }
    }
}

/// The word. Relaxed, here and in [`change`]: the thread that changes the mode knows it, and for other threads the
/// change may come at any time. At the start of a process the runtime, without which no socket is accelerated, is
/// published afterwards.
#[inline]
fn word() -> u32 {
    WORD.load(Ordering::Relaxed)
}

/// Why new sockets of the process are kernel sockets, if they are.
#[inline]
pub fn reason() -> Option<Reason> {
    match word() & (REASON | OFF) {
        0 => None,
        word => ProcessMode::decode(word).reason(),
    }
}

/// Why the process is left to the kernel for good, if it is.
pub(crate) fn kernel_only() -> Option<Reason> {
    match ProcessMode::decode(word()) {
        ProcessMode::KernelOnly(why) | ProcessMode::KernelOnlyOff(why) => Some(why),
        ProcessMode::Accelerated | ProcessMode::Off | ProcessMode::Returning => None,
    }
}

/// Whether an operator has switched the process off.
pub(crate) fn is_off() -> bool {
    word() & OFF != 0
}

/// Whether an operator has taken something of the process to the kernel that a later request may bring back. Its
/// threads then sleep in calls of ours even where the kernel alone could serve them, so that they hear of that request.
#[inline]
pub(crate) fn is_awaited() -> bool {
    // Acquire pairs with the Release in `change`: a thread that sees that the listeners are back then finds them.
    WORD.load(Ordering::Acquire) & (OFF | RETURNING | LISTENER) != 0
}

/// Whether an operator is switching the process on, and its listeners are not back yet.
pub(crate) fn is_returning() -> bool {
    word() & RETURNING != 0
}

/// Notes whether there is a listener that was left to the kernel and that an operator may bring back.
pub(crate) fn note_left_to_kernel(any: bool) {
    match any {
        true => WORD.fetch_or(LISTENER, Ordering::Relaxed),
        false => WORD.fetch_and(!LISTENER, Ordering::Relaxed),
    };
}

/// Leaves the new sockets of the process to the kernel from here on, for good. Connections and listeners are left
/// unchanged: see [`crate::fallback`].
pub(crate) fn leave_to_kernel(why: Reason) {
    change(|mode| mode.kernel_only(why));
}

/// An operator switches the process off: its new sockets are kernel sockets from here on.
pub(crate) fn switch_off() {
    change(ProcessMode::off);
}

/// An operator switches the process on. [`listeners_are_back`] follows.
pub(crate) fn switch_on() {
    change(ProcessMode::on);
}

/// The listeners of a process that an operator switches on are accelerated again.
pub(crate) fn listeners_are_back() {
    change(ProcessMode::returned);
}

/// Changes the mode, traces the change and asserts that it is allowed.
fn change(to: impl Fn(ProcessMode) -> ProcessMode) {
    let next = |word: u32| Some(to(ProcessMode::decode(word)).encode() | word & LISTENER);
    // Release: see `is_awaited`.
    if let Ok(before) = WORD.fetch_update(Ordering::Release, Ordering::Relaxed, next) {
        let before = ProcessMode::decode(before);
        let after = to(before);
        debug_assert!(allows(TABLE, &Some(before.kind()), &Some(after.kind())), "{before:?} does not become {after:?}");
        netacc_log::log!(Trace, "process: {before:?} becomes {after:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::assert_shown;

    fn all() -> Vec<ProcessMode> {
        let mut all = vec![ProcessMode::Accelerated, ProcessMode::Off, ProcessMode::Returning];
        for why in [Reason::Confined, Reason::OwnCalls, Reason::NoDescriptors] {
            all.extend([ProcessMode::KernelOnly(why), ProcessMode::KernelOnlyOff(why)]);
        }
        all
    }

    #[test]
    fn the_document_shows_the_table() {
        assert_shown("tools.md", TABLE);
    }

    #[test]
    fn a_word_is_one_mode() {
        for mode in all() {
            assert_eq!(ProcessMode::decode(mode.encode()), mode);
            assert_eq!(ProcessMode::decode(mode.encode() | LISTENER), mode);
            let accelerated = matches!(mode, ProcessMode::Accelerated | ProcessMode::Returning);
            assert_eq!(mode.reason().is_none(), accelerated);
        }
        assert!(Reason::ALL.len() <= REASON as usize);
    }

    #[test]
    fn the_table_allows_what_operators_and_programs_do() {
        for mode in all() {
            for next in [mode.off(), mode.on(), mode.kernel_only(Reason::Confined)] {
                assert!(allows(TABLE, &Some(mode.kind()), &Some(next.kind())), "{mode:?} to {next:?}");
            }
            // Only an operator ends what an operator has begun.
            assert_eq!(mode.kernel_only(Reason::Confined).encode() & OFF, mode.encode() & OFF);
            assert_eq!(mode.off().on().returned(), mode.on().returned());
        }
    }
}
