//! How often calls that do not wait look for the end of a peer ([`super::end_look`]).

use core::sync::atomic::{AtomicU64, Ordering};

/// When a socket of the peer's was last looked at by a call that does not wait ([`netacc_sys::time::coarse`]).
#[derive(Debug)]
pub(super) struct LastLook(AtomicU64);

impl LastLook {
    /// Whether nobody has looked in the tick `now` of that clock. Relaxed, here and below: the word only limits how often the
    /// kernel is asked.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.0.load(Ordering::Relaxed) != now
    }

    /// Whether a look is due, which the caller then makes.
    pub(super) fn take(&self, now: u64) -> bool {
        self.is_due(now) && self.0.swap(now, Ordering::Relaxed) != now
    }
}
