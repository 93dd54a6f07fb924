//! The limit on how often one place in the code may log.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The time (ns) in which a site earns one line.
const INTERVAL: u64 = 1_000_000_000;
/// The most lines that a site can save up.
const BURST: u64 = 20;

/// A place in the code that logs. A peer can make a place log as often as it connects, so each has a token bucket.
#[derive(Debug)]
pub struct Site {
    /// When the bucket will be full again ([`netacc_sys::time::now`]).
    full_at: AtomicU64,
    /// The number of lines that were left out since the last one that was written.
    left_out: AtomicU32,
}

impl Site {
    /// A place that has not logged yet.
    #[must_use]
    pub const fn new() -> Site {
        Site { full_at: AtomicU64::new(0), left_out: AtomicU32::new(0) }
    }

    /// Takes a line from the bucket at time `now` and returns how many lines were left out before it; `None` if the
    /// bucket is empty and the line must be left out.
    pub(super) fn admit(&self, now: u64) -> Option<u32> {
        let taken = |full_at: u64| {
            let after = full_at.max(now) + INTERVAL;
            (after - now <= BURST * INTERVAL).then_some(after)
        };
        // Relaxed: only the counts matter.
        match self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken) {
            Ok(_) => Some(self.left_out.swap(0, Ordering::Relaxed)),
            Err(_) => {
                self.left_out.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

impl Default for Site {
    fn default() -> Site {
        Site::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_counted() {
        let (site, start) = (Site::new(), 5_000 * INTERVAL);
        let admitted = (0..1000).filter(|_| site.admit(start).is_some()).count();
        assert_eq!(admitted as u64, BURST);
        assert_eq!(site.admit(start + INTERVAL / 2), None);
        assert_eq!(site.admit(start + INTERVAL), Some(1000 - BURST as u32 + 1));
        assert_eq!(site.admit(start + INTERVAL), None);
        // After a pause the whole burst is available again.
        let later = start + 100 * INTERVAL;
        assert_eq!(site.admit(later), Some(1));
        assert_eq!((0..1000).filter(|_| site.admit(later) == Some(0)).count() as u64, BURST - 1);
    }
}
