//! The limit of descriptors (`RLIMIT_NOFILE`, getrlimit(2)) under which the library takes numbers.
//!
//! The kernel compares a number with the soft limit only at the moment when the number is taken. So the soft limit is raised for
//! that moment, the library's numbers lie above the program's, and the program has all of its own, sees its limit and passes
//! it on. Another thread that asks for the limit or forks in that moment, a few hundred nanoseconds, may find the higher one;
//! the child of a fork corrects that.

use crate::errno::{Errno, Result};
use crate::signals::Blocked;
use crate::{Guard, Lock, lock_rank};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The soft limit while it is raised, if the hard limit allows that. No administrator sets this number, so a limit that the
/// program sets meanwhile is told from it and stays.
const RAISED_TO: u64 = 108_203;

/// Held by the thread that has the limit raised. Nobody takes another lock meanwhile, so it has no place in their order.
static TURN: Lock<{ lock_rank::NONE }> = Lock::new();
/// The program's soft limit + 1 while it is raised; 0: it is not. Under [`TURN`], or by the only thread of a process.
static RAISED_FROM: AtomicU64 = AtomicU64::new(0);
/// Set if the process must make no such system calls any more.
static IS_FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// The limits: the soft one and the hard one.
fn limits() -> (u64, u64) {
    let now = getrlimit(Resource::Nofile);
    (now.current.unwrap_or(u64::MAX), now.maximum.unwrap_or(u64::MAX))
}

fn set(soft: u64, hard: u64) {
    let maximum = Some(hard).filter(|hard| *hard != u64::MAX);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum });
}

/// The program's limits, also while another thread has the soft one raised.
fn limits_of_program() -> (u64, u64) {
    // SeqCst: the word is stored before the limit is raised, and cleared after it was lowered. So a raised limit is found with
    // the word before it or after it.
    let word = || RAISED_FROM.load(Ordering::SeqCst);
    let before = word();
    let (soft, hard) = limits();
    match before.max(word()).checked_sub(1) {
        Some(from) if soft == RAISED_TO.min(hard) => (from, hard),
        _ => (soft, hard),
    }
}

/// The numbers that the library has for its descriptors: above what the program may open, if the hard limit leaves room there,
/// and otherwise so high that programs of ordinary size do not come so far.
fn numbers() -> Range<u64> {
    let (soft, hard) = limits_of_program();
    let above = soft..RAISED_TO.min(hard).max(soft);
    if above.end - above.start > soft / 4 { above } else { soft / 4 * 3..soft }
}

/// The number from which on the library has its descriptors.
pub(crate) fn floor() -> u64 {
    numbers().start
}

/// Number of descriptors that the library may have.
#[must_use]
pub fn room() -> usize {
    let numbers = numbers();
    usize::try_from(numbers.end - numbers.start).unwrap_or(usize::MAX)
}

/// The hard limit.
#[must_use]
pub fn hard() -> u64 {
    limits().1
}

/// The program's soft limit.
#[must_use]
pub fn of_program() -> u64 {
    limits_of_program().0
}

/// The raised limit, as long as it lives.
struct Raised {
    #[expect(dead_code, reason = "held as long as it lives")]
    turn: Guard<'static>,
    /// All signals are blocked: a handler may need the lock itself, or leave by longjmp(3).
    #[expect(dead_code, reason = "held as long as it lives")]
    signals: Blocked,
}

impl Raised {
    /// Raises the limit; `None` if it is as high as it can be, or if it must not be touched.
    fn begin() -> Option<Raised> {
        if IS_FORBIDDEN.load(Ordering::Relaxed) {
            return None;
        }
        let signals = Blocked::all();
        let turn = TURN.lock();
        let (soft, hard) = limits();
        let most = RAISED_TO.min(hard);
        if soft >= most {
            return None;
        }
        // Before the limit is raised, so that the child of a fork finds what it has to lower.
        RAISED_FROM.store(soft + 1, Ordering::SeqCst);
        set(most, hard);
        Some(Raised { turn, signals })
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        lower();
    }
}

/// Gives the program its limit back, unless it has set another one meanwhile.
fn lower() {
    if let Some(soft) = RAISED_FROM.load(Ordering::SeqCst).checked_sub(1) {
        let (now, hard) = limits();
        if now == RAISED_TO.min(hard) {
            set(soft, hard);
        }
        RAISED_FROM.store(0, Ordering::SeqCst);
    }
}

/// Makes a descriptor of ours by `make`, again with the limit raised if the limit was in the way. `make` neither waits nor
/// makes a descriptor of the program's.
pub fn raised<T>(make: impl Fn() -> Result<T>) -> Result<T> {
    match make() {
        // `EINVAL` is fcntl(2)'s word for a number above the limit, and `EBADF` dup3(2)'s.
        Err(refused @ (Errno::MFILE | Errno::INVAL | Errno::BADF)) => while_raised(make).unwrap_or(Err(refused)),
        made => made,
    }
}

/// Calls `make`, which does not wait, with the limit raised; `None` if it cannot be raised.
pub fn while_raised<T>(make: impl FnOnce() -> T) -> Option<T> {
    let raised = Raised::begin()?;
    let made = make();
    drop(raised);
    Some(made)
}

/// Called before the process gives up what such a system call needs (seccomp(2)): the limit is raised no more.
pub fn forbid() {
    IS_FORBIDDEN.store(true, Ordering::Relaxed);
}

/// Called in the child of a fork: no thread of the parent lowers the limit for this process.
pub(crate) fn after_fork() {
    lower();
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::raw;
    use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};

    #[test]
    fn a_number_above_the_limit_and_the_limit_as_before() {
        let (soft, hard) = limits();
        if hard < 4096 {
            eprintln!("skipped: the hard limit is {hard}, which leaves no room");
            return;
        }
        // Tests of the same process use numbers of their own below this.
        let low = 2048;
        set(low, hard);
        let file = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let at = i32::try_from(low).unwrap() + 7;
        assert_eq!(raw::dup_above(file.as_raw_fd(), at), Err(Errno::INVAL));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let fd = file.as_raw_fd();
                std::thread::spawn(move || {
                    for _ in 0..2000 {
                        let n = raised(|| raw::dup_above(fd, at)).unwrap();
                        assert!(n >= at);
                        #[allow(unsafe_code)]
                        // SAFETY: the descriptor was just made, and nobody else has it.
                        drop(unsafe { OwnedFd::from_raw_fd(n) });
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(limits(), (low, hard));
        assert_eq!(while_raised(of_program), Some(low));
        // A limit that the program sets meanwhile stays.
        let kept = while_raised(|| set(low - 1, hard));
        assert_eq!((kept, limits()), (Some(()), (low - 1, hard)));
        set(soft, hard);
    }
}
