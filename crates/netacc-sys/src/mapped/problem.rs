//! Why a program is executed without the library.

use crate::errno::Errno;
use core::fmt;

/// Number of bytes of the helper's answer.
pub(super) const ANSWER: usize = 8;

/// Why a program is executed without the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The library cannot be read.
    Library(Errno),
    /// The library is not one that can be mapped.
    Damaged,
    /// The program is not one into which it is mapped.
    Program,
    /// A traced process would execute it with fewer rights, or somebody traces the process already.
    Rights,
    /// There is no helper.
    Helper(Errno),
    /// The helper may not trace the process.
    Tracing(Errno),
    /// The helper has ended too early.
    Ended,
    /// The library cannot be mapped into the program.
    NotMapped(Errno),
}

impl Problem {
    /// Its two numbers, for the helper's answer; 0 is none.
    pub(super) fn encode(self) -> [u8; ANSWER] {
        let [kind, errno] = match self {
            Problem::Library(errno) => [1, errno.0],
            Problem::Damaged => [2, 0],
            Problem::Program => [3, 0],
            Problem::Helper(errno) => [4, errno.0],
            Problem::Tracing(errno) => [5, errno.0],
            Problem::Ended => [6, 0],
            Problem::NotMapped(errno) => [7, errno.0],
            Problem::Rights => [8, 0],
        };
        (u64::from(kind.cast_unsigned()) << 32 | u64::from(errno.cast_unsigned())).to_le_bytes()
    }

    pub(super) fn decode(answer: [u8; ANSWER]) -> Result<(), Problem> {
        let numbers = u64::from_le_bytes(answer);
        let (kind, errno) = (numbers >> 32, Errno((numbers as u32).cast_signed()));
        Err(match kind {
            0 => return Ok(()),
            1 => Problem::Library(errno),
            2 => Problem::Damaged,
            3 => Problem::Program,
            4 => Problem::Helper(errno),
            5 => Problem::Tracing(errno),
            7 => Problem::NotMapped(errno),
            8 => Problem::Rights,
            _ => Problem::Ended,
        })
    }

    /// The errno in it.
    #[must_use]
    pub fn errno(self) -> Option<Errno> {
        match self {
            Problem::Library(e) | Problem::Helper(e) | Problem::Tracing(e) | Problem::NotMapped(e) => Some(e),
            Problem::Damaged | Problem::Program | Problem::Ended | Problem::Rights => None,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Problem::Library(_) => "the library cannot be read",
            Problem::Damaged => "the library is not one that can be mapped",
            Problem::Program => "the library cannot follow its calls",
            Problem::Rights => "this process may not be traced without an effect on the program's rights",
            Problem::Helper(_) => "the process that would map the library cannot be made",
            Problem::Tracing(_) => "this process may not be traced",
            Problem::Ended => "the process that would map the library has ended, as by a filter of system calls",
            Problem::NotMapped(_) => "the library cannot be mapped into it",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_as_they_were_given() {
        let errno = Errno(libc::EPERM);
        for problem in [
            Problem::Library(errno),
            Problem::Damaged,
            Problem::Program,
            Problem::Rights,
            Problem::Helper(errno),
            Problem::Tracing(errno),
            Problem::Ended,
            Problem::NotMapped(errno),
        ] {
            assert_eq!(Problem::decode(problem.encode()), Err(problem));
        }
        assert_eq!(Problem::decode([0; ANSWER]), Ok(()));
        assert_eq!(Problem::decode([0xff; ANSWER]), Err(Problem::Ended));
    }
}
