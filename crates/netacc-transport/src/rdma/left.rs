//! What is left of a pipe whose queue pair has failed.

use crate::rdma::pipe::CREDITS;
use crate::rdma::shown::Shown;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use netacc_wire::frame::{Frame, Kind};

extern crate alloc;

/// What is left of a pipe whose queue pair has failed.
#[derive(Debug)]
pub struct Left {
    /// Messages that the other side has not confirmed, oldest first, and the number of the first, modulo 65,536.
    pub again: VecDeque<Vec<u8>>,
    /// The number of the first of them.
    pub first: u16,
    /// Number of messages that were received, modulo 65,536.
    pub heard: u16,
    /// Length (bytes) of the longest message that is made anew. Messages that are sent again may be longer.
    pub most: usize,
    /// Length (bytes) of the longest message that we take.
    pub size: usize,
    /// Its place on the stats page.
    pub shown: Shown,
}

impl Left {
    /// The frame of our first message by TCP.
    pub fn resume(&self) -> Frame {
        Frame { kind: Kind::Resume, heard: self.heard, ..CREDITS }
    }

    /// The other side has received `heard` messages: keeps only those after them. False: it cannot have.
    pub fn confirm(&mut self, heard: u16) -> bool {
        let news = usize::from(heard.wrapping_sub(self.first));
        if news > self.again.len() {
            return false;
        }
        self.again.drain(..news);
        self.first = heard;
        true
    }
}
