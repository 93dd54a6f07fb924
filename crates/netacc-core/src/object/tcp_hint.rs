//! A hint that connections wait at a listener's kernel socket, which several threads set and take back.
//!
//! A thread that finds no connection takes the hint back. If another thread is told of a connection in between, by an event
//! that the kernel reports once, its hint must stay: nobody would look for that connection. So the hint is a count of such
//! events, and a thread takes back only the count that it saw before it asked the kernel.

use core::sync::atomic::{AtomicU32, Ordering};

/// The hint. 0: no connection waits, as far as is known.
#[derive(Debug, Default)]
pub struct TcpHint(AtomicU32);

/// What a thread has seen before it asked the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(u32);

impl Seen {
    /// Whether the kernel has reported a connection.
    pub fn is_told(self) -> bool {
        self.0 != 0
    }
}

impl TcpHint {
    /// Forgets everything, for a new listener.
    pub fn start(&self) {
        // Relaxed: no other thread has the listener yet.
        self.0.store(0, Ordering::Relaxed);
    }

    /// Notes that the kernel has reported a connection.
    pub fn note(&self) {
        // Relaxed, as all accesses of the count: it stands for itself, and what it tells of is asked of the kernel.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// To be called before the kernel is asked.
    pub fn see(&self) -> Seen {
        Seen(self.0.load(Ordering::Relaxed))
    }

    /// The kernel has no connection, although the hint was `seen`.
    pub fn take_back(&self, seen: Seen) {
        if seen.is_told() {
            // On failure there is a newer report.
            let _ = self.0.compare_exchange(seen.0, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_comes_while_the_kernel_is_asked_stays() {
        let hint = TcpHint::default();
        for before in 0..3 {
            (0..before).for_each(|_| hint.note());
            let seen = hint.see();
            assert_eq!(seen.is_told(), before != 0);
            hint.note();
            hint.take_back(seen);
            assert!(hint.see().is_told());
            hint.take_back(hint.see());
            assert!(!hint.see().is_told());
        }
    }
}
