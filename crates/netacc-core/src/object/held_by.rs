//! How many processes have a candidate after forks, in memory that they share.
//!
//! A server that forks for each connection accepts it in the parent, and the child uses it. The connection may switch in
//! the child once nobody else has it: the count of bytes that a switch needs is kept by one process, and another one
//! would go on reading a kernel's stream that has ended. So each fork counts a further holder, and each process that
//! closes its last number for the connection one less. A process that is killed, or executes another program, does not
//! say so: then the connection stays on TCP, as it does once a second process has used it.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use netacc_sys::{mem, raw, time};

/// Number of connections that can be counted at a time. For further ones nothing is gained and nothing lost.
const CELLS: usize = 1024;

/// Age (ns) from which a count is given to another connection: no candidate is that old, and a process that ended by a
/// signal leaves its count behind.
const OLDEST: u64 = 4 * time::ns(crate::timeouts::NEIGHBOUR_CANDIDATE);

/// Bit of a count that is set once the connection has to stay on TCP.
const SPOILED: u64 = 1 << 31;
const COUNT: u64 = SPOILED - 1;

/// One count. A process that writes nonsense here, such as a child that goes astray in its memory, can only harm the
/// processes of its own program.
struct Cell {
    /// The generation in the upper half, [`SPOILED`] and the number of holders in the lower; that number is 0 while the
    /// cell is free.
    word: AtomicU64,
    /// When it was taken ([`time::coarse`]).
    since: AtomicU64,
    /// The process that has used the connection since the fork; 0: none has.
    user: AtomicU32,
}

struct Cells([Cell; CELLS]);

static CELLS_AT: AtomicPtr<Cells> = AtomicPtr::new(core::ptr::null_mut());

/// A socket's reference to its count: generation in the upper half, index + 1 in the lower; 0: there is none, and no other
/// process has the connection.
#[derive(Debug, Default)]
pub struct HeldBy {
    handle: AtomicU64,
    /// Whether this process was forked with the connection: 1, and 2 once it has an entrance for it.
    pub(crate) heir: AtomicU32,
}

/// Which processes hold a connection, as one of them sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// This process alone, which knows all that was read and sent.
    Alone,
    /// Other processes have it, too.
    Shared,
    /// Other processes have used it, or it is not known: it stays on TCP.
    Lost,
}

#[allow(unsafe_code)]
fn cells() -> Option<&'static Cells> {
    // SAFETY: the mapping consists of atomics, for which zero is valid, and is never removed.
    unsafe { CELLS_AT.load(Ordering::Acquire).as_ref() }
}

fn cells_or_new() -> Option<&'static Cells> {
    if cells().is_none() {
        let at = mem::map_shared(size_of::<Cells>()).ok()?;
        let none = core::ptr::null_mut();
        // A mapping that comes second is left unused; it happens once, if at all.
        let _ = CELLS_AT.compare_exchange(none, at.cast().as_ptr(), Ordering::AcqRel, Ordering::Acquire);
    }
    cells()
}

fn generation(word: u64) -> u64 {
    word >> 32
}

fn free(word: u64) -> u64 {
    (generation(word).wrapping_add(1) & u64::from(u32::MAX)) << 32
}

impl HeldBy {
    pub(crate) fn reset(&self) {
        self.handle.store(0, Ordering::Relaxed);
        self.heir.store(0, Ordering::Relaxed);
    }

    /// Whether another process may have the connection.
    #[inline]
    pub(crate) fn is_counted(&self) -> bool {
        // SeqCst: see `upgrade_client::Sending`. A thread that begins to send without a lock sees the count, or the thread
        // that forks sees that it sends.
        self.handle.load(Ordering::SeqCst) != 0
    }

    /// The cell of a handle, and its word if that still is the connection's.
    fn cell(handle: u64) -> Option<(&'static Cell, u64)> {
        let index = usize::try_from(handle & u64::from(u32::MAX)).ok()?.checked_sub(1)?;
        let cell = cells()?.0.get(index)?;
        // Acquire: what a process did before it gave the connection up is seen with the lower count.
        let word = cell.word.load(Ordering::Acquire);
        (generation(word) == generation(handle) && word & COUNT != 0).then_some((cell, word))
    }

    /// Changes the count, if it still is the connection's.
    fn change(handle: u64, to: impl Fn(u64) -> u64) -> bool {
        while let Some((cell, word)) = Self::cell(handle) {
            if cell.word.compare_exchange(word, to(word), Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return true;
            }
        }
        false
    }

    /// Counts a further holder before a fork. False: that cannot be counted. Called under both direction locks.
    pub(crate) fn fork(&self) -> bool {
        let handle = self.handle.load(Ordering::Relaxed);
        if handle != 0 {
            return Self::change(handle, |word| if word & COUNT == COUNT { word | SPOILED } else { word + 1 });
        }
        let Some(cells) = cells_or_new() else { return false };
        let now = time::coarse();
        for (at, cell) in (1..).zip(&cells.0) {
            let word = cell.word.load(Ordering::Acquire);
            let old = now.saturating_sub(cell.since.load(Ordering::Relaxed)) > OLDEST;
            if word & COUNT != 0 && !old {
                continue;
            }
            let taken = free(word) | 2;
            if cell.word.compare_exchange(word, taken, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                cell.since.store(now, Ordering::Relaxed);
                cell.user.store(0, Ordering::Relaxed);
                self.handle.store(generation(taken) << 32 | at, Ordering::SeqCst);
                return true;
            }
        }
        false
    }

    /// In the child of a fork: the connection came by that.
    pub(crate) fn inherit(&self) {
        if self.is_counted() {
            self.heir.store(1, Ordering::Relaxed);
        }
    }

    /// This process no longer has the connection.
    pub(crate) fn leave(&self) {
        // One load for all connections that no fork has shared.
        if self.handle.load(Ordering::Relaxed) == 0 {
            return;
        }
        let handle = self.handle.swap(0, Ordering::AcqRel);
        if handle != 0 {
            Self::change(handle, |word| if word & COUNT == 1 { free(word) } else { word - 1 });
        }
    }

    /// The connection stays on TCP in every process: this one uses it without counting what it reads and sends.
    pub(crate) fn spoil(&self) {
        let handle = self.handle.load(Ordering::Relaxed);
        if handle != 0 {
            Self::change(handle, |word| word | SPOILED);
        }
    }

    /// Which processes hold the connection now. A count that has come down to this process alone is given back.
    pub(crate) fn standing(&self) -> Standing {
        let handle = self.handle.load(Ordering::SeqCst);
        if handle == 0 {
            return Standing::Alone;
        }
        let Some((cell, word)) = Self::cell(handle) else {
            // Another thread may have found it alone just now.
            return if self.is_counted() { Standing::Lost } else { Standing::Alone };
        };
        let user = cell.user.load(Ordering::Acquire);
        if word & SPOILED != 0 {
            return Standing::Lost;
        }
        if word & COUNT > 1 {
            return Standing::Shared;
        }
        if user != 0 && user != raw::getpid() {
            return Standing::Lost;
        }
        // Release: a thread that finds no handle does so after all that made this process the only one.
        if self.handle.compare_exchange(handle, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            let _ = cell.word.compare_exchange(word, free(word), Ordering::AcqRel, Ordering::Relaxed);
        }
        Standing::Alone
    }

    /// To be called before each read and write that is counted, under the lock of the direction. False: another process has
    /// used the connection, which stays on TCP.
    #[inline]
    pub(crate) fn may_use(&self) -> bool {
        !self.is_counted() || self.note_use()
    }

    #[cold]
    fn note_use(&self) -> bool {
        let handle = self.handle.load(Ordering::SeqCst);
        match (self.standing(), Self::cell(handle)) {
            (Standing::Alone, _) => true,
            (Standing::Shared, Some((cell, _))) => {
                let own = raw::getpid();
                let first = cell.user.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire);
                if first.is_err_and(|user| user != own) {
                    self.spoil();
                    return false;
                }
                true
            }
            _ => {
                self.spoil();
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy of the reference, as the child of a fork has it.
    fn copy(of: &HeldBy) -> HeldBy {
        let copied = HeldBy::default();
        copied.handle.store(of.handle.load(Ordering::Relaxed), Ordering::Relaxed);
        copied.inherit();
        copied
    }

    #[test]
    fn the_last_holder_is_alone() {
        let parent = HeldBy::default();
        assert_eq!(parent.standing(), Standing::Alone);
        assert!(parent.fork());
        let child = copy(&parent);
        assert_eq!((parent.standing(), child.standing()), (Standing::Shared, Standing::Shared));
        assert!(child.may_use());
        parent.leave();
        assert_eq!((child.standing(), child.is_counted()), (Standing::Alone, false));
        child.leave();
    }

    #[test]
    fn what_another_process_has_used_is_lost() {
        let parent = HeldBy::default();
        assert!(parent.fork());
        let child = copy(&parent);
        // As if another process had used it first.
        let (cell, _) = HeldBy::cell(parent.handle.load(Ordering::Relaxed)).unwrap();
        cell.user.store(raw::getpid() + 1, Ordering::Relaxed);
        assert!(!parent.may_use());
        parent.leave();
        assert_eq!(child.standing(), Standing::Lost);
        child.leave();
        let other = HeldBy::default();
        assert!(other.fork());
        let child = copy(&other);
        other.spoil();
        other.leave();
        assert_eq!(child.standing(), Standing::Lost);
        child.leave();
    }

    #[test]
    fn a_count_that_was_given_to_another_connection_is_lost() {
        let parent = HeldBy::default();
        assert!(parent.fork());
        let child = copy(&parent);
        child.leave();
        parent.leave();
        let late = HeldBy::default();
        late.handle.store(1 | u64::from(u32::MAX) << 32, Ordering::Relaxed);
        assert_eq!(late.standing(), Standing::Lost);
        assert!(!late.may_use());
        late.leave();
    }
}
