//! A way between the control sockets of two links on which messages come late: a thread passes them on in order, each
//! after a while that follows from the seed, and remembers the last ones.
//!
//! It also stands between a side and the wakers that the other side has given it: the side gets an eventfd of the relay,
//! and what it writes there reaches the waker late.

use crate::chance::Chance;
use crate::links::control_sockets;
use netacc_sys::time;
use netacc_transport::shm::control::{Received, receive_message, send_message};
use netacc_wire::Message;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Number of messages that are remembered.
const LAST: usize = 40;

/// What the relay does to messages.
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    /// Longest time (ns) for which a message is held back.
    pub message: u64,
    /// Longest time (ns) for which the write of a waker is held back.
    pub wake: u64,
}

/// A message on its way.
struct Late {
    due: u64,
    message: Message,
    passed: Option<OwnedFd>,
}

/// An eventfd that a side takes for a waker of the other side.
struct Stand {
    ours: OwnedFd,
    theirs: OwnedFd,
    /// When its writes are due.
    due: Option<u64>,
}

/// A running relay. It ends when both sockets have ended; a drop waits for that.
pub struct Relay {
    thread: Option<JoinHandle<()>>,
    last: Arc<Mutex<VecDeque<String>>>,
    stop: OwnedFd,
}

impl Relay {
    /// The sockets for both links, and the relay between them. The choices follow from the seed and from `name`.
    pub fn between(name: &str, delays: Delays) -> (OwnedFd, OwnedFd, Relay) {
        let ((client, from_client), (server, from_server)) = (control_sockets(), control_sockets());
        let last = Arc::new(Mutex::new(VecDeque::new()));
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let run = Run {
            sockets: [Some(from_client), Some(from_server)],
            under_way: Default::default(),
            stands: Vec::new(),
            chance: Chance::of(name),
            delays,
            last: last.clone(),
            stop: stop.try_clone().unwrap(),
        };
        let thread = Some(std::thread::spawn(move || run.run()));
        (client, server, Relay { thread, last, stop })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).unwrap();
        let ended = self.thread.take().map(JoinHandle::join);
        if std::thread::panicking() || ended.is_some_and(|end| end.is_err()) {
            eprintln!("the last messages on the control sockets:");
            let last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            last.iter().for_each(|line| eprintln!("    {line}"));
        }
    }
}

struct Run {
    /// The client's side, and the server's; none once it has ended.
    sockets: [Option<OwnedFd>; 2],
    /// What comes from each side.
    under_way: [VecDeque<Late>; 2],
    stands: Vec<Stand>,
    chance: Chance,
    delays: Delays,
    last: Arc<Mutex<VecDeque<String>>>,
    stop: OwnedFd,
}

impl Run {
    fn run(mut self) {
        loop {
            self.pass_on();
            let next = self.under_way.iter().filter_map(|queue| queue.front().map(|late| late.due));
            let next = next.chain(self.stands.iter().filter_map(|stand| stand.due)).min();
            let left = next.map(|due| due.saturating_sub(time::now()));
            let timeout = left.map(|ns| Timespec { tv_sec: 0, tv_nsec: ns.min(999_999_999) as i64 });
            let sockets: Vec<usize> = (0..2).filter(|side| self.sockets[*side].is_some()).collect();
            let mut fds: Vec<PollFd<'_>> = Vec::new();
            fds.push(PollFd::new(&self.stop, PollFlags::IN));
            for socket in sockets.iter().filter_map(|side| self.sockets[*side].as_ref()) {
                fds.push(PollFd::new(socket, PollFlags::IN));
            }
            for stand in &self.stands {
                fds.push(PollFd::new(&stand.ours, PollFlags::IN));
            }
            poll(&mut fds, timeout.as_ref()).unwrap();
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready[0] {
                return;
            }
            for (n, side) in sockets.iter().enumerate() {
                if ready[1 + n] {
                    self.take_in(*side);
                }
            }
            let woken: Vec<usize> = (0..self.stands.len())
                .filter(|n| ready.get(1 + sockets.len() + n).is_some_and(|ready| *ready))
                .collect();
            for n in woken {
                rustix::io::read(&self.stands[n].ours, &mut [0u8; 8]).unwrap();
                let due = time::now() + self.chance.below(self.delays.wake + 1);
                self.stands[n].due.get_or_insert(due);
                self.note(|| "a waker is written".into());
            }
        }
    }

    fn note(&self, line: impl FnOnce() -> String) {
        let mut last = self.last.lock().unwrap();
        if last.len() == LAST {
            last.pop_front();
        }
        last.push_back(format!("{} {}", time::now(), line()));
    }

    /// Takes the messages of one side.
    fn take_in(&mut self, side: usize) {
        while let Some(socket) = &self.sockets[side] {
            match receive_message(socket.as_fd()) {
                Received::Message(message, mut passed) => {
                    let is_waker = matches!(message, Message::Waker { .. });
                    if let Some(theirs) = passed.take_if(|_| is_waker) {
                        let ours = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
                        passed = Some(ours.try_clone().unwrap());
                        self.stands.push(Stand { ours, theirs, due: None });
                    }
                    let due = time::now() + self.chance.below(self.delays.message + 1);
                    let due = self.under_way[side].back().map_or(due, |before| due.max(before.due));
                    self.note(|| format!("{} {message:?}", ["client:", "server:"][side]));
                    self.under_way[side].push_back(Late { due, message, passed });
                }
                Received::Nothing => return,
                // A side that has ended; the suite sends nothing that is not a message through here.
                Received::End | Received::Garbage | Received::Version => {
                    self.note(|| format!("{} the end", ["client", "server"][side]));
                    self.sockets[side] = None;
                }
            }
        }
    }

    /// Passes on what is due.
    fn pass_on(&mut self) {
        let now = time::now();
        for stand in &mut self.stands {
            if stand.due.is_some_and(|due| due <= now) {
                stand.due = None;
                // A write fails only if the counter of the waker is full, and then its reader is woken in any case.
                let _ = rustix::io::write(&stand.theirs, &1u64.to_ne_bytes());
            }
        }
        for side in 0..2 {
            while let Some(late) = self.under_way[side].front().filter(|late| late.due <= now)
                && let Some(to) = &self.sockets[1 - side]
            {
                if send_message(to.as_fd(), late.message, late.passed.as_ref().map(AsFd::as_fd)).is_err() {
                    // The socket is full, or its owner has ended, which a read will tell.
                    self.under_way[side][0].due = now + 100_000;
                    break;
                }
                self.under_way[side].pop_front();
            }
            // After the last message of a side that has ended, the other side learns of its end.
            if self.sockets[side].is_none() && (self.under_way[side].is_empty() || self.sockets[1 - side].is_none()) {
                self.sockets[1 - side] = None;
                self.under_way[side].clear();
            }
        }
    }
}
