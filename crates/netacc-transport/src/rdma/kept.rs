//! Messages that the other side has not confirmed: should the queue pair fail, they go out again by TCP.
//!
//! That a send has completed says no more than that the other side's device has the message. Each message says how many
//! its sender has received (`heard`); those that are not among them are kept. A long one stays in the buffer it was sent
//! from as long as buffers are plenty, and is copied when it is the last but a few; a short one is copied at once.

use crate::rdma::device::Sends;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

extern crate alloc;

/// Unconfirmed messages of a queue pair.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Oldest first.
    messages: VecDeque<Message>,
    /// Copies, each at the place that its number gives it.
    area: Vec<u8>,
    /// Bytes of a place; 0: nothing is kept.
    size: usize,
    /// So many messages are confirmed: the number of the oldest one here.
    confirmed: usize,
}

#[derive(Debug)]
struct Message {
    len: usize,
    /// It is (also) in this buffer.
    buffer: Option<u16>,
    /// The send has completed: the buffer is ours.
    completed: bool,
    /// The other side has a reason to answer.
    asks: bool,
}

impl Kept {
    /// From the first message on, up to `most` are kept, of at most `size` bytes.
    pub fn begin(&mut self, most: usize, size: usize) {
        // Untouched pages of it cost nothing.
        self.area = vec![0; most * size];
        self.messages.reserve(most);
        self.size = size;
    }

    /// Whether one more can be kept.
    pub fn has_room(&self) -> bool {
        self.size == 0 || (self.messages.len() + 1) * self.size <= self.area.len()
    }

    /// Whether a message waits for an answer that the other side owes.
    pub fn asks(&self) -> bool {
        self.messages.iter().any(|m| m.asks)
    }

    fn place(&mut self, index: usize) -> Option<&mut [u8]> {
        let places = self.area.len().checked_div(self.size)?;
        let at = self.confirmed.wrapping_add(index).checked_rem(places)? * self.size;
        self.area.get_mut(at..at + self.size)
    }

    /// A message that goes inline.
    pub fn inline(&mut self, bytes: &[u8], asks: bool) {
        if self.size == 0 {
            return;
        }
        let index = self.messages.len();
        if let Some(to) = self.place(index).and_then(|place| place.get_mut(..bytes.len())) {
            to.copy_from_slice(bytes);
        }
        self.messages.push_back(Message { len: bytes.len(), buffer: None, completed: true, asks });
    }

    /// A message of `len` bytes that is sent from buffer `n`.
    pub fn buffer(&mut self, n: u16, len: usize) {
        if self.size != 0 {
            self.messages.push_back(Message { len, buffer: Some(n), completed: false, asks: true });
        }
    }

    /// The message in buffer `n` has been sent. Whether the buffer stays with us.
    pub fn completed(&mut self, n: u16, sends: &Sends) -> bool {
        let Some(index) = self.messages.iter().position(|m| m.buffer == Some(n) && !m.completed) else { return false };
        let stays = !sends.are_scarce();
        if !stays {
            self.copy_out(index, n, sends);
        }
        if let Some(m) = self.messages.get_mut(index) {
            m.completed = true;
            m.buffer = m.buffer.filter(|_| stays);
        }
        stays
    }

    fn copy_out(&mut self, index: usize, n: u16, sends: &Sends) {
        let Some(len) = self.messages.get(index).map(|m| m.len) else { return };
        if let Some(to) = self.place(index).and_then(|place| place.get_mut(..len)) {
            let _ = sends.read(n, to);
        }
    }

    /// The other side has received `heard` messages. False: it cannot have.
    pub fn confirm(&mut self, heard: u16, sends: &mut Sends) -> bool {
        if self.size == 0 {
            return true;
        }
        let news = usize::from(heard.wrapping_sub(self.confirmed as u16));
        if news > self.messages.len() {
            return false;
        }
        for m in self.messages.drain(..news) {
            // One that has not completed is given back when it does.
            if let Some(n) = m.buffer.filter(|_| m.completed) {
                sends.give_back(n);
            }
        }
        self.confirmed = self.confirmed.wrapping_add(news);
        true
    }

    /// Nothing is kept any more.
    pub fn end(&mut self, sends: &mut Sends) {
        for m in self.messages.drain(..) {
            if let Some(n) = m.buffer.filter(|_| m.completed) {
                sends.give_back(n);
            }
        }
        (self.area, self.size) = (Vec::new(), 0);
    }

    /// All that is kept, oldest first, and the number of the oldest, modulo 65,536.
    pub fn take(&mut self, sends: &mut Sends) -> (VecDeque<Vec<u8>>, u16) {
        for index in 0..self.messages.len() {
            if let Some(n) = self.messages.get(index).and_then(|m| m.buffer) {
                self.copy_out(index, n, sends);
            }
        }
        let lens: Vec<usize> = self.messages.iter().map(|m| m.len).collect();
        let copy = |(index, len): (usize, usize)| self.place(index)?.get(..len).map(<[u8]>::to_vec);
        let all = lens.into_iter().enumerate().filter_map(copy).collect();
        self.end(sends);
        (all, self.confirmed as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_confirmed_goes_and_the_rest_comes_back() {
        let mut sends = Sends::numbers();
        let mut kept = Kept::default();
        kept.inline(b"before", true);
        assert!(kept.confirm(7, &mut sends), "nothing is kept, and nothing is known");
        kept.begin(3, 8);
        for text in [b"one", b"two", b"six"] {
            assert!(kept.has_room());
            kept.inline(text, true);
        }
        assert!(!kept.has_room());
        assert!(kept.confirm(2, &mut sends) && kept.has_room());
        assert!(!kept.confirm(1, &mut sends) && !kept.confirm(4, &mut sends));
        kept.inline(b"ten", false);
        let (all, first) = kept.take(&mut sends);
        assert_eq!((all.into_iter().collect::<Vec<_>>(), first), (vec![b"six".to_vec(), b"ten".to_vec()], 2));
    }

    #[test]
    fn buffers_stay_while_there_are_many_and_all_come_back() {
        let mut sends = Sends::numbers();
        let all = core::iter::from_fn(|| sends.number()).count();
        (0..all as u16).for_each(|n| sends.give_back(n));
        let mut kept = Kept::default();
        kept.begin(all, 8);
        let mut copied = 0;
        for _ in 0..all {
            let n = sends.number().unwrap();
            kept.buffer(n, 4);
            if !kept.completed(n, &sends) {
                copied += 1;
                sends.give_back(n);
            }
        }
        assert!(kept.asks());
        assert!(copied > 0 && copied < all, "some stay where they are, the others are copied");
        assert!(kept.confirm(3, &mut sends));
        let (left, first) = kept.take(&mut sends);
        assert_eq!((left.len(), first), (all - 3, 3));
        assert_eq!(core::iter::from_fn(|| sends.number()).count(), all);
    }

    #[test]
    fn a_confirmation_may_come_before_the_completion() {
        let mut sends = Sends::numbers();
        let mut kept = Kept::default();
        kept.begin(2, 8);
        let n = sends.number().unwrap();
        kept.buffer(n, 4);
        assert!(kept.confirm(1, &mut sends));
        assert!(!kept.completed(n, &sends), "whoever hears of the completion gives it back");
    }

    #[test]
    fn numbers_go_beyond_16_bits() {
        let mut sends = Sends::numbers();
        let mut kept = Kept::default();
        kept.begin(3, 8);
        for number in 0..70_000u32 {
            kept.inline(&number.to_le_bytes(), true);
            assert!(kept.confirm(number as u16, &mut sends), "the one before");
        }
        let (left, _) = kept.take(&mut sends);
        assert_eq!(left.into_iter().collect::<Vec<_>>(), [69_999u32.to_le_bytes()]);
    }
}
