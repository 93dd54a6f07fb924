//! The answer of the socket layer to an intercepted call.

use netacc_sys::errno::{Answer, Errno, Fail, Result};
use netacc_sys::time::{Deadline, Until};

/// The result of an intercepted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The call is done; the application gets this value, and errno is unchanged.
    Done(isize),
    /// The call failed; the application gets -1 and this errno.
    Failed(Errno),
    /// The call is not ours: the next libc symbol makes it.
    Pass,
    /// The thread is cancelled (pthread_cancel(3)) and ends in the intercepted call, where it holds nothing of ours.
    Cancelled,
    /// The call is to be made anew: the library is about to be replaced (see [`crate::operator::exchange`]), or the connection
    /// has changed its path.
    Anew {
        /// What a call with a limit (SO_RCVTIMEO, SO_SNDTIMEO) waits for, as an event of poll(2): such a call has no time-out
        /// among its arguments that could be made shorter.
        waits: i16,
        /// When the call's time-out ends.
        until: Until,
    },
    /// The call is to be made anew, with its whole time-out, and whatever its number means by then: a signal has interrupted
    /// it, and the kernel would restart it (signal(7)).
    Restart,
}

impl Outcome {
    /// The call is to be made anew, with its whole time-out.
    pub const ANEW: Outcome = Outcome::Anew { waits: 0, until: Until::NONE };

    /// The outcome, where a call that is to be made anew has a time-out of which a part is over.
    #[inline]
    #[must_use]
    pub(crate) fn ending(self, end: Deadline) -> Outcome {
        match self {
            Outcome::Anew { waits, .. } => Outcome::Anew { waits, until: end.into() },
            other => other,
        }
    }

    /// Leaves the call to the kernel, if what comes before it was done.
    pub(crate) fn pass_after(prepared: Result<()>) -> Outcome {
        prepared.map_or_else(Outcome::Failed, |()| Outcome::Pass)
    }
}

impl From<Fail> for Outcome {
    fn from(fail: Fail) -> Outcome {
        match fail {
            Fail::Errno(e) => Outcome::Failed(e),
            Fail::ToKernel => Outcome::Pass,
            Fail::Cancelled => Outcome::Cancelled,
            Fail::Anew => Outcome::ANEW,
            Fail::Restart => Outcome::Restart,
        }
    }
}

impl From<Answer<usize>> for Outcome {
    fn from(r: Answer<usize>) -> Outcome {
        match r {
            Ok(n) => Outcome::Done(n as isize),
            Err(fail) => fail.into(),
        }
    }
}

impl From<Answer<()>> for Outcome {
    fn from(r: Answer<()>) -> Outcome {
        r.map(|()| 0usize).into()
    }
}

impl From<Answer<i32>> for Outcome {
    fn from(r: Answer<i32>) -> Outcome {
        r.map(|n| n as usize).into()
    }
}

impl From<Result<usize>> for Outcome {
    fn from(r: Result<usize>) -> Outcome {
        r.map_err(Fail::Errno).into()
    }
}

impl From<Result<i32>> for Outcome {
    fn from(r: Result<i32>) -> Outcome {
        match r {
            Ok(n) => Outcome::Done(n as isize),
            Err(e) => Outcome::Failed(e),
        }
    }
}

impl From<Result<()>> for Outcome {
    fn from(r: Result<()>) -> Outcome {
        match r {
            Ok(()) => Outcome::Done(0),
            Err(e) => Outcome::Failed(e),
        }
    }
}
