//! What is left of a queue pair whose queue pair has failed.

use crate::rdma::stats::QpStats;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use netacc_wire::frame::{Frame, Kind};

extern crate alloc;

/// A message that only brings credits, and the fields of which all messages of no connection have the values.
pub(super) const CREDITS: Frame =
    Frame { kind: Kind::Credit, credits: 0, large: false, conn: 0, generation: 0, window: 0, acked: 0, next: 0 };

/// What is left of a queue pair whose queue pair has failed.
#[derive(Debug)]
pub struct FailoverState {
    /// Messages that the other side has not confirmed, oldest first, and the number of the first, modulo 65,536.
    pub retransmit: VecDeque<Vec<u8>>,
    /// The number of the first of them.
    pub first: u16,
    /// Number of messages that were received, modulo 65,536.
    pub received: u16,
    /// Length (bytes) of the longest message that is made anew. Messages that are sent again may be longer.
    pub most: usize,
    /// Length (bytes) of the longest message that we take.
    pub size: usize,
    /// Its place on the stats page.
    pub stats: QpStats,
}

impl FailoverState {
    /// The frame of our first message by TCP.
    pub fn resume(&self) -> Frame {
        Frame { kind: Kind::Resume, acked: self.received, ..CREDITS }
    }

    /// The other side has received `heard` messages: keeps only those after them. False: it cannot have.
    pub fn confirm(&mut self, heard: u16) -> bool {
        let news = usize::from(heard.wrapping_sub(self.first));
        if news > self.retransmit.len() {
            return false;
        }
        self.retransmit.drain(..news);
        self.first = heard;
        true
    }
}
