//! What is kept of a queue pair that has failed.

use crate::rdma::engine::user_timeout::UserTimeout;
use crate::rdma::{FailoverState, Stream};
use netacc_sys::raw;

/// Time (ns) in which the other side has to report by TCP that it has ended the queue pair, or to end with its process.
const FIRST_WORD: u64 = 500_000_000;

/// What is kept of a queue pair that has failed.
#[derive(Debug)]
pub(super) struct Failover {
    pub stream: Stream,
    pub state: FailoverState,
    /// Since when (ns) we have not told what we had received; 0: we have.
    unsaid: u64,
    /// Set once the last connection is over, and the other side has been told that nothing more will come.
    ended: bool,
    full: bool,
    /// The patience that the kernel was told.
    user_timeout: UserTimeout,
}

impl Failover {
    /// What is left of a queue pair, which goes on by the companion connection `fd`. What we had received is told at
    /// once if `unsaid` is 0.
    pub fn new(fd: i32, left: FailoverState, unsaid: u64) -> Failover {
        let mut stream = Stream::new(fd, left.most, left.size);
        if unsaid == 0 {
            stream.send(left.resume(), &[]);
        }
        Failover { stream, state: left, unsaid, ended: false, full: false, user_timeout: UserTimeout::default() }
    }

    /// To be called when the move is over.
    pub fn end(self) {
        self.state.stats.hide();
    }

    /// Tells what we had received, unless that has been told.
    pub fn say(&mut self) {
        if core::mem::take(&mut self.unsaid) != 0 {
            self.stream.send(self.state.resume(), &[]);
        }
    }

    /// Tells what we had received, if the other side has taken too long to tell it first.
    pub fn say_if_late(&mut self, now: u64) {
        if now.saturating_sub(self.unsaid) > FIRST_WORD {
            self.say();
        }
    }

    /// The other side has received `heard` messages, by its first message: those after them are sent again. False: it
    /// broke the rules.
    pub fn resume(&mut self, heard: u16) -> bool {
        if self.stream.is_resumed() || !self.state.confirm(heard) {
            return false;
        }
        self.say();
        self.stream.resume(core::mem::take(&mut self.state.retransmit));
        true
    }

    /// Has the kernel give up as `least` says.
    pub fn be_patient(&mut self, least: UserTimeout) {
        if self.user_timeout != least && self.stream.fd() >= 0 {
            self.user_timeout = least;
            least.apply(self.stream.fd());
        }
    }

    /// Sends what the kernel takes; if nothing more will come (`idle`), the end of the stream as well. Returns the
    /// descriptor, and whether the kernel takes no more, if that has changed.
    pub fn push(&mut self, idle: bool) -> Option<(i32, bool)> {
        self.stream.flush();
        if idle && !self.ended && self.stream.can_send() && !self.stream.is_full() {
            self.ended = true;
            let _ = raw::shutdown(self.stream.fd(), libc::SHUT_WR);
        }
        let (fd, full) = (self.stream.fd(), self.stream.is_full());
        (core::mem::replace(&mut self.full, full) != full).then_some((fd, full))
    }
}
