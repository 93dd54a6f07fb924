//! Messages that are to be posted together.
//!
//! The last of them takes further frames as long as it has room. So frames that several connections of a queue pair
//! have to send at the same time cost one message and one credit.

use crate::rdma::bounds::{LONGEST_INLINE, SENDS};
use crate::rdma::pool::{Buffer, Pool};
use alloc::vec::Vec;
use netacc_wire::frame::{Brief, FRAME, Frame, LONGEST, NEXT};

extern crate alloc;

/// Most messages that are posted at a time: each posting is a call of the kernel on some devices, and wakes the
/// receiver.
pub(super) const CHAIN: usize = 8;

/// A message that is to be posted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    /// The message goes inline: its bytes, their number, and whether the other side has a reason to answer.
    Short([u8; LONGEST_INLINE], usize, bool),
    /// The message goes from a buffer; its immediate data stands for its beginning, if that is possible.
    Long(Buffer, usize, Option<Brief>),
    /// The message goes from a buffer that has no room for its beginning: that is in the immediate data, which stands
    /// for these bytes.
    Whole(Buffer, usize, Brief, [u8; FRAME]),
}

#[derive(Debug)]
pub(super) struct Chain {
    messages: Vec<Message>,
    /// Where the last frame of the last message begins.
    last: usize,
}

impl Default for Chain {
    fn default() -> Chain {
        // Progress that only moves bytes does not allocate.
        Chain { messages: Vec::with_capacity(SENDS), last: 0 }
    }
}

impl Chain {
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Adds a message of one frame.
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
        self.last = 0;
    }

    /// Takes all messages; [`Chain::put_back`] keeps their memory.
    pub fn take(&mut self) -> Vec<Message> {
        core::mem::take(&mut self.messages)
    }

    /// Gives the memory back, which is used again.
    pub fn put_back(&mut self, mut messages: Vec<Message>) {
        messages.clear();
        self.messages = messages;
    }

    /// Number of bytes that may belong to a further frame in the last message, which may have at most `most`.
    pub fn room(&self, pool: &Pool, most: usize) -> usize {
        let (len, size) = match self.messages.last() {
            None | Some(Message::Whole(..)) => return 0,
            Some(Message::Short(_, len, _)) => (*len, pool.size()),
            Some(Message::Long(buffer, len, _)) => (*len, pool.size_of(*buffer)),
        };
        if len.saturating_sub(self.last + FRAME) > LONGEST {
            return 0;
        }
        most.min(size).saturating_sub(len + FRAME)
    }

    /// Puts the last message into a buffer, if one is free, and returns where the bytes of a further frame go.
    pub fn append_buffer(&mut self, pool: &mut Pool) -> Option<*mut u8> {
        let message = self.messages.last_mut()?;
        if let Message::Short(bytes, len, _) = message {
            let (buffer, ..) = pool.take_to_send(*len)?;
            pool.write(buffer, 0, bytes.get(..*len)?);
            *message = Message::Long(buffer, *len, None);
        }
        match message {
            Message::Long(buffer, len, _) => pool.at(*buffer, *len + FRAME).map(<*const u8>::cast_mut),
            Message::Short(..) | Message::Whole(..) => None,
        }
    }

    /// Adds a further frame, whose `len` bytes are in their [`Chain::append_buffer`].
    pub fn placed(&mut self, pool: &Pool, frame: Frame, len: usize) -> bool {
        let Some(Message::Long(buffer, end, brief)) = self.messages.last_mut() else { return false };
        let done =
            pool.write(*buffer, *end, &frame.encode()) && pool.write(*buffer, self.last + NEXT, &next(self.last, *end));
        self.last = *end;
        *end += FRAME + len;
        // The beginning has to say where the next frame is.
        *brief = None;
        done
    }

    /// Adds a further frame with few bytes, if a message of at most `inline` bytes has room for it or a buffer is free.
    pub fn add(&mut self, pool: &mut Pool, inline: usize, frame: Frame, payload: &[u8]) -> bool {
        if let Some(Message::Short(bytes, len, asks)) = self.messages.last_mut()
            && *len + FRAME + payload.len() <= inline.min(LONGEST_INLINE)
        {
            let (begin, before) = (*len, self.last);
            let end = frame.encode().into_iter().chain(payload.iter().copied());
            bytes.iter_mut().skip(begin).zip(end).for_each(|(to, from)| *to = from);
            bytes.iter_mut().skip(before + NEXT).zip(next(before, begin)).for_each(|(to, from)| *to = from);
            (*len, *asks, self.last) = (begin + FRAME + payload.len(), true, begin);
            return true;
        }
        if self.append_buffer(pool).is_none() {
            return false;
        }
        let Some(Message::Long(buffer, end, _)) = self.messages.last() else { return false };
        pool.write(*buffer, *end + FRAME, payload) && self.placed(pool, frame, payload.len())
    }

    /// The buffers of all messages.
    pub fn buffers(&self) -> impl Iterator<Item = Buffer> {
        self.messages.iter().filter_map(|m| match m {
            Message::Long(buffer, ..) | Message::Whole(buffer, ..) => Some(*buffer),
            Message::Short(..) => None,
        })
    }
}

/// The field of a frame at `begin` that names a further one at `end`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "`Chain::room` lets a frame follow only one that is not longer than LONGEST"
)]
fn next(begin: usize, end: usize) -> [u8; 2] {
    debug_assert!(end - begin - FRAME <= LONGEST);
    ((end - begin - FRAME) as u16 + 1).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_wire::frame::Kind;

    fn frame(conn: u16) -> Frame {
        Frame { kind: Kind::Data, credits: 0, large: false, conn, generation: 7, window: 0, acked: 0, next: 0 }
    }

    fn short(conn: u16, payload: &[u8]) -> Message {
        let mut bytes = [0; LONGEST_INLINE];
        bytes[..FRAME].copy_from_slice(&frame(conn).encode());
        bytes[FRAME..FRAME + payload.len()].copy_from_slice(payload);
        Message::Short(bytes, FRAME + payload.len(), false)
    }

    #[test]
    fn frames_behind_each_other_come_out_as_they_went_in() {
        let mut pool = Pool::numbers();
        let mut chain = Chain::default();
        assert_eq!(chain.room(&pool, 100), 0, "nothing to put it behind");
        chain.push(short(1, b"first"));
        assert_eq!(chain.room(&pool, 100), 100 - 2 * FRAME - 5);
        assert!(chain.add(&mut pool, LONGEST_INLINE, frame(2), b""));
        assert!(chain.add(&mut pool, LONGEST_INLINE, frame(3), b"third"));
        assert!(!chain.add(
            &mut pool,
            LONGEST_INLINE,
            frame(4),
            b"there is no buffer for this one, and inline no room"
        ));
        let Some(Message::Short(bytes, len, true)) = chain.take().pop() else { panic!() };
        let (mut rest, mut found) = (&bytes[..len], Vec::new());
        loop {
            let (head, payload) = rest.split_first_chunk().unwrap();
            let head = Frame::decode(head).unwrap();
            let (len, more) = head.payload(payload.len()).unwrap();
            found.push((head.conn, payload[..len].to_vec()));
            if !more {
                break;
            }
            rest = &payload[len..];
        }
        assert_eq!(found, [(1, b"first".to_vec()), (2, Vec::new()), (3, b"third".to_vec())]);
    }

    #[test]
    fn a_frame_that_is_too_long_to_say_so_is_the_last() {
        let (mut chain, pool) = (Chain::default(), Pool::numbers());
        chain.push(Message::Long(0, FRAME + LONGEST, None));
        assert_eq!(chain.room(&pool, 1 << 20), (1 << 20) - LONGEST - 2 * FRAME);
        chain.push(Message::Long(0, FRAME + LONGEST + 1, None));
        assert_eq!(chain.room(&pool, 1 << 20), 0);
    }
}
