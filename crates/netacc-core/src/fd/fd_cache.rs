//! Numbers of connections that were just closed, kept for the next accept.
//!
//! A server with a connection per request would spend an eighth of its time in fcntl(F_DUPFD) and close(2) of
//! placeholders. So the number of an accepted connection stays a placeholder when it is closed, and the next accept(2)
//! gets it without a system call. It is really closed
//!
//! - before a thread sleeps in an intercepted call, so that an idle process has no number that its program does not
//!   know of;
//! - when a call of the program names it: then the kernel answers that the number is closed;
//! - before an intercepted call makes another descriptor.
//!
//! Only close-on-exec numbers are kept, few of them, none of a standard stream, and none near the limit. Until a kept
//! number is closed, a call that is not intercepted, such as open(2), may get a higher number than the lowest free one,
//! as if another thread had not closed its file yet.

use crate::fd::table;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use netacc_sys::{raw, reserved_fds};

/// Most numbers that are kept.
const MOST: i32 = 64;
/// Number of words of a bitmap, for numbers up to 4095.
const WORDS: usize = 64;

/// Bitmap of the kept placeholders of one address family. A bit is a hint; the entry in [`table`] decides.
struct Numbers {
    /// Bitmap of the words that have a bit set.
    summary: AtomicU64,
    words: [AtomicU64; WORDS],
}

static HELD: [Numbers; 2] =
    [const { Numbers { summary: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; WORDS] } }; 2];
/// Number of numbers that are kept.
static COUNT: AtomicI32 = AtomicI32::new(0);

fn of(domain: i32) -> &'static Numbers {
    let [four, six] = &HELD;
    if domain == libc::AF_INET { four } else { six }
}

impl Numbers {
    /// Takes the lowest number. SeqCst: a thread that sets a bit then sets the one in `summary`, and a thread that
    /// clears the latter checks the word once more.
    fn pop(&self) -> Option<i32> {
        loop {
            let at = self.summary.load(Ordering::SeqCst).trailing_zeros() as usize;
            let word = self.words.get(at)?;
            let bit = word.load(Ordering::SeqCst).trailing_zeros();
            if bit == 64 {
                self.summary.fetch_and(!(1 << at), Ordering::SeqCst);
                if word.load(Ordering::SeqCst) != 0 {
                    self.summary.fetch_or(1 << at, Ordering::SeqCst);
                }
            } else if word.fetch_and(!(1 << bit), Ordering::SeqCst) & 1 << bit != 0 {
                return Some((at * 64) as i32 + bit as i32);
            }
        }
    }
}

/// Keeps the close-on-exec placeholder `fd` of a closed connection; false if it is not kept.
pub fn keep(fd: i32, domain: i32) -> bool {
    let (at, bit) = (fd as usize / 64, fd as usize % 64);
    let Some(word) = of(domain).words.get(at).filter(|_| fd > 2 && fd < reserved_fds::lower_half()) else {
        return false;
    };
    if COUNT.fetch_add(1, Ordering::Relaxed) >= MOST {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        return false;
    }
    table::vacate(fd);
    word.fetch_or(1 << bit, Ordering::SeqCst);
    of(domain).summary.fetch_or(1 << at, Ordering::SeqCst);
    true
}

/// Takes a kept number for a new connection.
#[inline]
pub fn take(domain: i32) -> Option<i32> {
    // If a number is missed here, the caller makes a new one.
    if !any() {
        return None;
    }
    let fd = core::iter::from_fn(|| of(domain).pop()).find(|fd| table::occupy(*fd))?;
    COUNT.fetch_sub(1, Ordering::Relaxed);
    Some(fd)
}

/// Closes the kept number, since a call names it, unless another thread has taken it.
#[cold]
pub fn give_back(fd: i32) {
    if table::occupy(fd) {
        closed(fd);
    }
}

/// Closes `fd`, which is no longer in the table, in the kernel too.
pub fn closed(fd: i32) {
    COUNT.fetch_sub(1, Ordering::Relaxed);
    let _ = raw::close(fd);
}

/// Counts a cached number as lost: it was closed by a raw system call, and the kernel has given it to a new file.
pub fn lost() {
    COUNT.fetch_sub(1, Ordering::Relaxed);
}

/// Whether any number is kept.
#[inline]
pub fn any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// Closes all kept numbers. Called before a thread sleeps, and before an intercepted call makes another descriptor,
/// which has to get the lowest number.
#[inline]
pub fn close_all() {
    if any() {
        close_held();
    }
}

#[cold]
fn close_held() {
    for domain in [libc::AF_INET, libc::AF_INET6] {
        while let Some(fd) = take(domain) {
            let _ = raw::close(fd);
        }
    }
}
