//! A model of the reading of a control socket: of several threads to which the kernel reports messages one reads, and no
//! message stays behind.

use crate::model;
use loom::sync::Arc;
use loom::thread;
use netacc_ring::sync::*;
use netacc_ring::turn::in_turn;

/// A socket with messages, and what the threads of a process know of it.
#[derive(Default)]
struct Socket {
    /// Messages that wait. Each access is the kernel's, under the socket's lock.
    waiting: AtomicU32,
    lock: AtomicU32,
    more: AtomicU32,
    /// Not 0 while a thread reads: messages are processed in order.
    reading: AtomicU32,
}

struct Guard<'a>(&'a Socket);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.lock.store(0, Ordering::Release);
    }
}

impl Socket {
    fn try_lock(&self) -> Option<Guard<'_>> {
        self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok().map(|_| Guard(self))
    }

    /// The peer's message, and the kernel's report of it to the calling thread, which reads.
    fn message_reported_here(&self) {
        self.waiting.swap(1, Ordering::AcqRel);
        self.service();
    }

    fn service(&self) {
        in_turn(
            &self.more,
            || self.try_lock(),
            || {
                assert_eq!(self.reading.swap(1, Ordering::Relaxed), 0, "two threads read at once");
                self.waiting.swap(0, Ordering::AcqRel);
                self.reading.store(0, Ordering::Relaxed);
                None::<()>
            },
        );
    }
}

/// (s) Two threads are told of a message each, and one finds the other reading. Both messages are read when both threads
/// have left, however the reports and the reading interleave.
///
/// Mutations: `more` cleared after the work, or not looked at again; a thread that does not store `more` before it tries the
/// lock; the fence after the work left out.
#[test]
fn no_message_stays_behind() {
    model(4, || {
        let s = Arc::new(Socket::default());
        let q = s.clone();
        let t = thread::spawn(move || q.message_reported_here());
        s.message_reported_here();
        t.join().unwrap();
        assert_eq!(s.waiting.load(Ordering::Relaxed), 0, "a message stays in the socket, and nobody is told again");
    });
}

/// (s) The same with a third thread.
#[test]
fn no_message_stays_behind_with_three_threads() {
    model(2, || {
        let s = Arc::new(Socket::default());
        let others: Vec<_> = (0..2)
            .map(|_| {
                let q = s.clone();
                thread::spawn(move || q.message_reported_here())
            })
            .collect();
        s.message_reported_here();
        others.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(s.waiting.load(Ordering::Relaxed), 0, "a message stays in the socket, and nobody is told again");
    });
}
