//! Messages that the other side has not confirmed: should the queue pair fail, they go out again by TCP.
//!
//! A completed send only means that the other side's device has the message. Each message tells how many messages its
//! sender has received (`heard`); messages that are not among them are kept. A long message stays in the buffer from
//! which it was sent as long as there are plenty of buffers, and is copied when only a few are left, unless the buffer
//! is a large one; a short message is copied at once.

use crate::rdma::pool::{Buffer, Pool};
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use netacc_sys::mem::Owned;
use netacc_wire::frame::FRAME;

extern crate alloc;

/// Unconfirmed messages of a queue pair.
#[derive(Debug, Default)]
pub(super) struct Unacked {
    /// The messages, the oldest first.
    messages: VecDeque<Message>,
    /// The memory for copies.
    area: Owned,
    /// Places in it that are free: as many as more messages may be kept, since no message needs two.
    free: Vec<u16>,
    /// Size (bytes) of a place; 0: nothing is kept.
    size: usize,
    /// Number of messages that are confirmed, modulo 2^16, which is the number of the oldest one here.
    acked: u16,
}

#[derive(Debug)]
struct Message {
    len: usize,
    /// Its place, which belongs to it also while it is not copied.
    slot: u16,
    /// Set while the message is in this buffer, and not in its place.
    buffer: Option<Buffer>,
    /// The beginning that comes before the bytes in the buffer: a message that is all bytes has its beginning
    /// elsewhere.
    head: Option<[u8; FRAME]>,
    /// Set once the send has completed: the buffer is ours.
    completed: bool,
    /// Set if the other side has a reason to answer.
    asks: bool,
}

impl Unacked {
    /// From the first message on, up to `most` are kept, of at most `size` bytes. All memory is allocated now: a later
    /// send may run in a signal handler. False: there is no memory, and nothing is kept.
    #[must_use]
    pub fn begin(&mut self, most: u16, size: usize) -> bool {
        // Untouched pages of it cost nothing, and the place that was free last is taken first.
        let Ok(area) = Owned::new(usize::from(most) * size) else { return false };
        self.area = area;
        self.free = (0..most).rev().collect();
        self.messages.reserve(most.into());
        self.size = size;
        true
    }

    /// Whether one more can be kept, beside `others` that are still to come.
    pub fn has_room(&self, others: usize) -> bool {
        self.size == 0 || self.free.len() > others
    }

    /// Whether a message waits for an answer that the other side owes.
    pub fn asks(&self) -> bool {
        self.messages.iter().any(|m| m.asks)
    }

    fn slot_bytes(&mut self, n: u16) -> Option<&mut [u8]> {
        let at = usize::from(n) * self.size;
        self.area.get_mut(at..at + self.size)
    }

    /// Keeps a message that goes inline. False: there is no room for it.
    pub fn inline(&mut self, bytes: &[u8], asks: bool) -> bool {
        if self.size == 0 {
            return true;
        }
        let Some(place) = self.free.pop() else { return false };
        if let Some(to) = self.slot_bytes(place).and_then(|place| place.get_mut(..bytes.len())) {
            to.copy_from_slice(bytes);
        }
        self.messages.push_back(Message {
            len: bytes.len(),
            slot: place,
            buffer: None,
            head: None,
            completed: true,
            asks,
        });
        true
    }

    /// Keeps a message of `len` bytes that is sent from buffer `n`, where it begins unless it has a `head`. False:
    /// there is no room for it.
    pub fn buffer(&mut self, n: Buffer, len: usize, head: Option<[u8; FRAME]>) -> bool {
        if self.size == 0 {
            return true;
        }
        let Some(place) = self.free.pop() else { return false };
        let len = len + head.map_or(0, |head| head.len());
        self.messages.push_back(Message { len, slot: place, buffer: Some(n), head, completed: false, asks: true });
        true
    }

    /// To be called when the message in buffer `n` has been sent: the buffer is free, unless the message stays in it.
    pub fn completed(&mut self, n: Buffer, pool: &mut Pool) {
        let Some(index) = self.messages.iter().position(|m| m.buffer == Some(n) && !m.completed) else {
            return pool.sent(n);
        };
        let stays = pool.may_keep(n);
        if !stays {
            self.copy_out(index, n, pool);
        }
        if let Some(m) = self.messages.get_mut(index) {
            m.completed = true;
            m.buffer = m.buffer.filter(|_| stays);
        }
        if stays { pool.keep(n) } else { pool.sent(n) }
    }

    fn copy_out(&mut self, index: usize, n: Buffer, pool: &Pool) {
        let Some((place, len, head)) = self.messages.get(index).map(|m| (m.slot, m.len, m.head)) else { return };
        if let Some(to) = self.slot_bytes(place).and_then(|place| place.get_mut(..len)) {
            copy(n, head, pool, to);
        }
    }

    /// Takes in that the other side has received `heard` messages. False: it cannot have.
    pub fn confirm(&mut self, heard: u16, pool: &mut Pool) -> bool {
        if self.size == 0 {
            return true;
        }
        let news = usize::from(heard.wrapping_sub(self.acked));
        if news > self.messages.len() {
            return false;
        }
        self.forget(news, pool);
        self.acked = heard;
        true
    }

    fn forget(&mut self, oldest: usize, pool: &mut Pool) {
        for m in self.messages.drain(..oldest) {
            // There are as many places as that, so that this allocates nothing.
            self.free.push(m.slot);
            // The buffer of a send that has not completed is given back when it does.
            if let Some(n) = m.buffer.filter(|_| m.completed) {
                pool.acked(n);
            }
        }
    }

    /// Stops keeping messages.
    pub fn end(&mut self, pool: &mut Pool) {
        self.forget(self.messages.len(), pool);
        (self.area, self.free, self.size) = (Owned::default(), Vec::new(), 0);
    }

    /// Takes all that is kept, the oldest first, and the number of the oldest, modulo 65,536.
    pub fn take(&mut self, pool: &mut Pool) -> (VecDeque<Vec<u8>>, u16) {
        let mut all = VecDeque::with_capacity(self.messages.len());
        for index in 0..self.messages.len() {
            let Some((place, len, head, buffer)) = self.messages.get(index).map(|m| (m.slot, m.len, m.head, m.buffer))
            else {
                continue;
            };
            if let Some(n) = buffer {
                let mut bytes = vec![0; len];
                copy(n, head, pool, &mut bytes);
                all.push_back(bytes);
            } else if let Some(bytes) = self.slot_bytes(place).and_then(|place| place.get(..len)) {
                all.push_back(bytes.to_vec());
            }
        }
        self.end(pool);
        (all, self.acked)
    }
}

/// Copies the message in buffer `n`.
fn copy(n: Buffer, head: Option<[u8; FRAME]>, pool: &Pool, mut to: &mut [u8]) {
    if let Some(head) = head {
        let Some((first, rest)) = to.split_first_chunk_mut() else { return };
        (*first, to) = (head, rest);
    }
    let _ = pool.read(n, 0, to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_confirmed_goes_and_the_rest_comes_back() {
        let mut pool = Pool::numbers();
        let mut unacked = Unacked::default();
        assert!(unacked.inline(b"before", true));
        assert!(unacked.confirm(7, &mut pool), "nothing is kept, and nothing is known");
        assert!(unacked.begin(3, 8));
        for text in [b"one", b"two", b"six"] {
            assert!(unacked.has_room(0));
            assert!(unacked.inline(text, true));
        }
        assert!(!unacked.has_room(0));
        assert!(unacked.confirm(2, &mut pool) && unacked.has_room(0));
        assert!(!unacked.confirm(1, &mut pool) && !unacked.confirm(4, &mut pool));
        assert!(unacked.inline(b"ten", false));
        let (all, first) = unacked.take(&mut pool);
        assert_eq!((all.into_iter().collect::<Vec<_>>(), first), (vec![b"six".to_vec(), b"ten".to_vec()], 2));
    }

    #[test]
    fn buffers_stay_while_there_are_many_and_all_come_back() {
        const ALL: usize = 60;
        let mut pool = Pool::numbers();
        let mut unacked = Unacked::default();
        assert!(unacked.begin(ALL.try_into().unwrap(), 8));
        let buffers: Vec<Buffer> = (0..ALL).map(|_| pool.number()).collect();
        for n in &buffers {
            assert!(unacked.buffer(*n, 4, None));
        }
        assert!(!unacked.buffer(0, 4, None) && !unacked.inline(b"more", true), "no room");
        for n in &buffers {
            unacked.completed(*n, &mut pool);
        }
        assert!(unacked.asks());
        let (taken, stay) = pool.taken();
        assert_eq!(taken, stay, "none is under way");
        assert!(stay > 0 && stay < ALL, "some stay where they are, the others are copied");
        assert!(unacked.confirm(3, &mut pool));
        let (left, first) = unacked.take(&mut pool);
        assert_eq!((left.len(), first), (ALL - 3, 3));
        assert_eq!(pool.taken(), (0, 0));
    }

    #[test]
    fn a_message_of_bytes_alone_comes_back_with_its_beginning() {
        let mut pool = Pool::numbers();
        let mut unacked = Unacked::default();
        assert!(unacked.begin(1, 64));
        let n = pool.number();
        assert!(unacked.buffer(n, 3, Some([7; FRAME])));
        let (left, _) = unacked.take(&mut pool);
        let Some(message) = left.front() else { panic!() };
        assert_eq!((&message[..FRAME], message.len()), (&[7; FRAME][..], FRAME + 3));
    }

    #[test]
    fn a_confirmation_may_come_before_the_completion() {
        let mut pool = Pool::numbers();
        let mut unacked = Unacked::default();
        assert!(unacked.begin(2, 8));
        let n = pool.number();
        assert!(unacked.buffer(n, 4, None));
        assert!(unacked.confirm(1, &mut pool));
        assert_eq!(pool.taken(), (1, 0), "it is under way");
        unacked.completed(n, &mut pool);
        assert_eq!(pool.taken(), (0, 0));
    }

    #[test]
    fn numbers_go_beyond_16_bits() {
        let mut pool = Pool::numbers();
        let mut unacked = Unacked::default();
        assert!(unacked.begin(3, 8));
        for number in 0..70_000u32 {
            assert!(unacked.inline(&number.to_le_bytes(), true));
            assert!(unacked.confirm((number & 0xffff) as u16, &mut pool), "the one before");
        }
        let (left, _) = unacked.take(&mut pool);
        assert_eq!(left.into_iter().collect::<Vec<_>>(), [69_999u32.to_le_bytes()]);
    }
}
