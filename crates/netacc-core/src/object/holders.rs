//! How many processes hold a connection after forks, in memory that they share.
//!
//! A server that forks for each connection accepts it in the parent, and the child alone uses it. So each fork counts a
//! further holder, and each process that closes its last number for the connection counts one less ([`HoldersWord`]).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use netacc_ring::{HoldersCount, HoldersWord};
use netacc_sys::{AtomicRef, mem, time};

/// Number of connections that can be counted at a time. For further ones nothing is gained and nothing lost.
const CELLS: usize = 1024;

/// Age (ns) from which a count is given to another connection if no cell is free: a process that ended by a signal leaves
/// its count behind. Holders that lose their count this way go on as if other processes had the connection.
const OLDEST: u64 = 4 * time::ns(crate::timeouts::NEIGHBOUR_CANDIDATE);

/// One count. A process that writes nonsense here, such as a child that goes astray in its memory, can only harm the
/// processes of its own program.
struct Cell {
    word: HoldersWord,
    /// When it was taken ([`time::coarse`]).
    since: AtomicU64,
    /// A number for the user of the count, 0 at first.
    note: AtomicU32,
}

// SAFETY: it consists of atomics, for which zero is valid.
#[allow(unsafe_code)]
unsafe impl mem::Zeroed for Cell {}

static CELLS_AT: AtomicRef<[Cell; CELLS]> = AtomicRef::none();

/// A connection's count, as one of its holders has found it.
#[derive(Clone, Copy)]
pub(super) struct Found {
    cell: &'static Cell,
    pub(super) count: HoldersCount,
}

impl Found {
    /// The number that the user of the count has stored beside it.
    pub(super) fn note(self) -> &'static AtomicU32 {
        &self.cell.note
    }
}

/// A connection's reference to its count: generation in the upper half, index + 1 in the lower; 0: there is none.
#[derive(Debug, Default)]
pub struct Holders(AtomicU64);

fn generation(handle: u64) -> u64 {
    handle >> 32
}

/// The first cell that no connection uses, or else the first that has been used for too long.
fn vacant(cells: &'static [Cell], now: u64) -> Option<(u64, Found)> {
    let all = || (1..).zip(cells).map(|(at, cell)| (at, Found { cell, count: cell.word.look() }));
    let is_old = |found: &Found| now.saturating_sub(found.cell.since.load(Ordering::Relaxed)) > OLDEST;
    all().find(|(_, found)| found.count.number() == 0).or_else(|| all().find(|(_, found)| is_old(found)))
}

/// The cell of a handle.
fn cell(handle: u64) -> Option<&'static Cell> {
    let index = usize::try_from(handle & u64::from(u32::MAX)).ok()?.checked_sub(1)?;
    CELLS_AT.load()?.get(index)
}

impl Holders {
    /// Forgets the count without counting this process out: from here on it is not known who holds the connection.
    pub(crate) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether there is a count, so that another process may hold the connection.
    #[inline]
    pub(crate) fn is_counted(&self) -> bool {
        // SeqCst: see `upgrade_client::Sending`. A thread that begins to send without a lock sees the count, or the thread
        // that forks sees that it sends.
        self.0.load(Ordering::SeqCst) != 0
    }

    /// The connection's count, if there is one that was not given to another connection.
    pub(super) fn find(&self) -> Option<Found> {
        let handle = self.0.load(Ordering::SeqCst);
        let cell = cell(handle)?;
        let count = cell.word.look();
        (count.generation() == generation(handle) && count.number() != 0).then_some(Found { cell, count })
    }

    /// Begins a count with this process and the one that it is about to fork. False: no cell is left. The caller holds both
    /// direction locks.
    pub(crate) fn begin(&self) -> bool {
        let Some(cells) = CELLS_AT.or_make(|| mem::shared().ok()) else { return false };
        let now = time::coarse();
        while let Some((at, Found { cell, count })) = vacant(cells, now) {
            let taken = count.taken();
            if cell.word.replace(count, taken) {
                cell.since.store(now, Ordering::Relaxed);
                cell.note.store(0, Ordering::Relaxed);
                self.0.store(taken.generation() << 32 | at, Ordering::SeqCst);
                return true;
            }
        }
        false
    }

    /// Counts a further holder before a fork. False: there is no count. Called under both direction locks.
    pub(crate) fn fork(&self) -> bool {
        let handle = self.0.load(Ordering::Relaxed);
        cell(handle).is_some_and(|cell| cell.word.more(generation(handle)))
    }

    /// Counts one holder less, since the child that [`Holders::fork`] or [`Holders::begin`] has counted was not made.
    pub(crate) fn take_back(&self) {
        let handle = self.0.load(Ordering::Relaxed);
        cell(handle).map(|cell| cell.word.less(generation(handle)));
    }

    /// Counts this process out. It has made its last access to the connection.
    pub(crate) fn leave(&self) {
        // One load for all connections that no fork has shared.
        if self.0.load(Ordering::Relaxed) != 0 {
            let handle = self.0.swap(0, Ordering::AcqRel);
            cell(handle).map(|cell| cell.word.less(generation(handle)));
        }
    }

    /// Gives the count back, because no other process has the connection any more. The caller holds both direction locks.
    pub(crate) fn end(&self) {
        // Release: a thread that finds no count does so after all that made this process the only one.
        let handle = self.0.swap(0, Ordering::AcqRel);
        cell(handle).map(|cell| cell.word.end(generation(handle)));
    }

    /// Gives the count back as [`Holders::end`] does, without the locks: a count that has changed meanwhile stays.
    pub(super) fn end_at(&self, found: Found) {
        let handle = self.0.load(Ordering::Relaxed);
        // Release: see `Holders::end`.
        if generation(handle) == found.count.generation()
            && self.0.compare_exchange(handle, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            let _ = found.cell.word.replace(found.count, found.count.free());
        }
    }

    /// Whether this process is counted as the only holder. The caller keeps its own threads from forking, by the direction
    /// locks, if it acts on the answer.
    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        self.find().is_some_and(|found| found.count.number() == 1)
    }

    /// Marks the count for all holders.
    pub(super) fn mark(&self) {
        let handle = self.0.load(Ordering::Relaxed);
        cell(handle).map(|cell| cell.word.mark(generation(handle)));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A copy of the reference, as the child of a fork has it.
    pub(crate) fn copy(of: &Holders) -> Holders {
        Holders(AtomicU64::new(of.0.load(Ordering::Relaxed)))
    }

    #[test]
    fn who_remains_is_alone() {
        let parent = Holders::default();
        assert!(!parent.is_counted() && !parent.is_alone() && !parent.fork());
        assert!(parent.begin());
        let child = copy(&parent);
        assert!(!parent.is_alone() && !child.is_alone());
        assert!(child.fork());
        let grandchild = copy(&child);
        parent.leave();
        assert!(!parent.is_counted() && !child.is_alone());
        grandchild.leave();
        assert!(child.is_alone());
        child.end();
        assert!(!child.is_counted());
    }

    #[test]
    fn a_fork_that_failed_leaves_its_process_alone() {
        let parent = Holders::default();
        assert!(parent.begin());
        parent.take_back();
        assert!(parent.is_alone());
        parent.end();
    }

    #[test]
    fn a_process_that_does_not_count_itself_out_keeps_the_others_from_being_alone() {
        let parent = Holders::default();
        assert!(parent.begin());
        let child = copy(&parent);
        // As if it were killed, or had executed another program.
        parent.forget();
        assert!(!child.is_alone());
        child.leave();
    }

    #[test]
    fn a_count_that_was_given_to_another_connection_says_nothing() {
        let late = Holders(AtomicU64::new(1 | u64::from(u32::MAX) << 32));
        assert!(late.is_counted() && !late.is_alone() && !late.fork());
        late.leave();
    }
}
