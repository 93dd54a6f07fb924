//! A connect at a process that goes off to serve another connection, while others that serve the listener are idle.

use crate::model;
use loom::sync::Arc;
use loom::thread;
use netacc_ring::sync::*;
use netacc_ring::*;

/// States of a connect, as `Open::outcome` has them.
const QUEUED: u32 = 0;
const TAKEN: u32 = 1;
const WITHDRAWN: u32 = 2;

/// One link's connect queue with room for one connect, and the line on which the server's thread registers.
#[derive(Default)]
struct Queue {
    server: SideLine,
    pushed: AtomicU32,
    outcome: AtomicU32,
}

impl Queue {
    fn decide(&self, outcome: u32) -> bool {
        self.outcome.compare_exchange(QUEUED, outcome, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The client: queues the connect, and withdraws it if nobody waits for it. Returns whether it goes elsewhere.
    fn connect(&self) -> bool {
        self.pushed.swap(1, Ordering::SeqCst);
        let heard = notify_data(&self.server, 0, |_| None) != Ring::default();
        !heard && self.decide(WITHDRAWN)
    }

    /// The server, before it goes off: returns whether it passes the connect on.
    fn leave(&self) -> bool {
        self.pushed.load(Ordering::SeqCst) != 0 && self.decide(TAKEN)
    }
}

/// (k) A thread that waited for connects at two links is woken by the connect of the first one and goes off to serve it. The
/// connect of the second link comes at any moment. Afterwards it is with the server, which passes it on, or with its client,
/// which makes it elsewhere, and not with both.
///
/// Mutations: the server looks at the queue before it takes its registration back; the client looks at the registration
/// before it queues the connect; the outcome loaded and stored instead of exchanged.
#[test]
fn no_connect_stays_with_a_busy_process() {
    model(3, || {
        let links = Arc::new([Queue::default(), Queue::default()]);
        for link in &*links {
            link.server.rx_waiter.store(7, Ordering::SeqCst);
        }
        let clients: Vec<_> = (0..2)
            .map(|i| {
                let links = links.clone();
                thread::spawn(move || links[i].connect())
            })
            .collect();
        // The server: as long as nothing has come, it would go on waiting.
        let mut served = None;
        while served.is_none() {
            served = links.iter().position(|link| link.pushed.load(Ordering::SeqCst) != 0);
            loom::thread::yield_now();
        }
        for link in &*links {
            // A waker that the client has taken is left to it.
            let _ = link.server.rx_waiter.compare_exchange(7, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
        let took = served.map(|i| links[i].decide(TAKEN));
        let passed = links.each_ref().map(Queue::leave);
        let elsewhere: Vec<_> = clients.into_iter().map(|t| t.join().unwrap()).collect();
        for (i, link) in links.iter().enumerate() {
            let here = u32::from(passed[i]) + u32::from(served == Some(i) && took == Some(true));
            assert_ne!(link.outcome.load(Ordering::Relaxed), QUEUED, "link {i}: nobody has the connect");
            assert_eq!(here + u32::from(elsewhere[i]), 1, "link {i}");
        }
    });
}
