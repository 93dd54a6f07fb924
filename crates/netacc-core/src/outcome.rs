//! The answer of the socket layer to an intercepted call.

use netacc_sys::errno::{Errno, Result};

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done; the application gets this value and errno stays as it is.
    Done(isize),
    /// Failed; the application gets -1 and this errno.
    Failed(Errno),
    /// The call is not ours: the next libc symbol makes it.
    Pass,
}

impl From<Result<usize>> for Outcome {
    fn from(r: Result<usize>) -> Outcome {
        match r {
            Ok(n) => Outcome::Done(n as isize),
            Err(Errno::TO_KERNEL) => Outcome::Pass,
            Err(e) => Outcome::Failed(e),
        }
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
