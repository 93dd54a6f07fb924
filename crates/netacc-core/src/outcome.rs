//! The answer of the socket layer to an intercepted call.

use netacc_sys::errno::{Errno, Result};

/// The result of an intercepted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The call is done; the application gets this value, and errno is unchanged.
    Done(isize),
    /// The call failed; the application gets -1 and this errno.
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
