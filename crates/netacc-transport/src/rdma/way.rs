//! The path of messages: a queue pair, or the TCP connection that stands in for it.

use crate::rdma::pipe::Pipe;
use crate::rdma::pool::{Buffer, Pool};
use crate::rdma::stream::Stream;
use netacc_verbs::Result;
use netacc_wire::frame::{FRAME, Frame};

/// Number of bytes of a message by TCP for which a look into a short buffer first is worthwhile.
const SHORT: usize = 80;

/// The place in which the bytes of a frame are put.
#[derive(Debug)]
pub enum Place {
    /// In a message of its own.
    New(Buffer),
    /// In a message of its own that is all bytes: its beginning goes in the immediate data.
    Whole(Buffer),
    /// Behind another frame.
    Behind,
}

/// One of the two paths.
#[derive(Debug)]
pub enum Way<'a> {
    /// A queue pair that works, and its device's buffers.
    Qp(&'a mut Pipe, &'a mut Pool),
    /// The TCP stream, since the queue pair has failed. Errors come to the reader.
    Base(&'a mut Stream),
}

impl Way<'_> {
    /// Whether a frame with few bytes may be sent now by [`Way::add`].
    pub fn can_add(&mut self) -> bool {
        match self {
            Way::Qp(pipe, pool) => pipe.can_add(pool),
            Way::Base(stream) => stream.can_send(),
        }
    }

    /// Whether a message may be sent now.
    pub fn can_send(&self) -> bool {
        match self {
            Way::Qp(pipe, _) => pipe.can_send(),
            Way::Base(stream) => stream.can_send(),
        }
    }

    /// Whether after the next message another one may be sent, whatever the other side does.
    pub fn can_follow(&self) -> bool {
        match self {
            Way::Qp(pipe, _) => pipe.can_follow(),
            // Nobody can say how much the kernel takes.
            Way::Base(_) => false,
        }
    }

    /// Whether a message may be sent now before which nothing waits, and after which another one may be sent as well:
    /// what it tells is true until that one tells otherwise.
    pub fn is_free(&self) -> bool {
        match self {
            Way::Qp(pipe, _) => pipe.can_send() && pipe.can_follow() && !pipe.is_waiting(),
            // The other side hears at least a part of the next message, since the kernel has room.
            Way::Base(stream) => stream.can_send() && !stream.is_full(),
        }
    }

    /// Whether a message may be all bytes: its beginning `frame`, but for what the queue pair says in it, goes in the
    /// immediate data.
    pub fn can_be_brief(&self, frame: &Frame) -> bool {
        matches!(self, Way::Qp(pipe, _) if pipe.can_be_brief(frame))
    }

    /// Bytes that fit into a message that needs no buffer.
    pub fn payload_inline(&self) -> usize {
        match self {
            Way::Qp(pipe, _) => pipe.payload_inline(),
            Way::Base(stream) => stream.payload().min(SHORT),
        }
    }

    /// Sends a frame with few bytes, at [`Way::post`] or before, if that [can be](Way::can_add).
    pub fn add(&mut self, frame: Frame, payload: &[u8]) -> Result<()> {
        match self {
            Way::Qp(pipe, pool) => pipe.add(pool, frame, payload),
            Way::Base(stream) => {
                stream.send(frame, payload);
                Ok(())
            }
        }
    }

    /// Sends a message without a buffer. Behind messages that wait for [`Way::post`] it waits too.
    pub fn send(&mut self, frame: Frame, payload: &[u8]) -> Result<()> {
        match self {
            Way::Qp(pipe, pool) if pipe.is_waiting() => pipe.add(pool, frame, payload),
            Way::Qp(pipe, _) => pipe.send(frame, payload),
            Way::Base(stream) => {
                stream.send(frame, payload);
                Ok(())
            }
        }
    }

    /// Takes a place for `wanted` bytes of a frame, or for as many as there is room for; returns where it begins, and
    /// how many bytes. It is to be sent or given back before anything else. With `brief` the frame [can
    /// be](Way::can_be_brief), and the other side knows which use of the connection's number it is.
    pub fn take(&mut self, wanted: usize, brief: bool) -> Option<(Place, *mut u8, usize)> {
        match self {
            Way::Qp(pipe, pool) => {
                // A part is sent in a message of its own, if that can be sent.
                let least = if pipe.can_send() { wanted } else { 1 };
                if let Some((start, room)) = pipe.place(pool, least) {
                    return Some((Place::Behind, start, room));
                }
                if !pipe.can_send() {
                    return None;
                }
                let longest = pipe.longest();
                let len = if brief { wanted } else { wanted.saturating_add(FRAME) };
                let (n, start, size) = pool.take_to_send(len.min(longest))?;
                let (whole, payload) = (longest.min(size), longest.min(size).saturating_sub(FRAME));
                if wanted > payload && brief && !pool.is_large(n) {
                    return Some((Place::Whole(n), start, whole));
                }
                Some((Place::New(n), start.wrapping_add(FRAME), payload))
            }
            Way::Base(stream) => Some((Place::Behind, stream.place().wrapping_add(FRAME), stream.payload())),
        }
    }

    /// Gives a place back that is not needed.
    pub fn give_back(&mut self, place: Place) {
        match (self, place) {
            (Way::Qp(_, pool), Place::New(n) | Place::Whole(n)) => pool.sent(n),
            (Way::Qp(..), Place::Behind) => {}
            (Way::Base(stream), _) => stream.forget(),
        }
    }

    /// Sends a place with `len` bytes of payload, at [`Way::post`] or before. With `known` the other side knows which
    /// use of the connection's number it is.
    pub fn send_placed(&mut self, frame: Frame, place: Place, len: usize, known: bool) -> Result<()> {
        match (self, place) {
            (Way::Qp(pipe, pool), Place::New(n)) => pipe.send_buffer(pool, frame, n, len, known),
            (Way::Qp(pipe, pool), Place::Whole(n)) => pipe.send_whole(pool, frame, n, len),
            (Way::Qp(pipe, pool), Place::Behind) => pipe.placed(pool, frame, len),
            (Way::Base(stream), _) => {
                stream.send_placed(frame, len);
                Ok(())
            }
        }
    }

    /// Whether something waits for [`Way::post`].
    pub fn is_waiting(&self) -> bool {
        match self {
            Way::Qp(pipe, _) => pipe.is_waiting(),
            Way::Base(_) => false,
        }
    }

    /// Sends the messages that wait for it.
    pub fn post(&mut self) -> Result<()> {
        match self {
            Way::Qp(pipe, pool) => pipe.post(pool),
            Way::Base(_) => Ok(()),
        }
    }

    /// Whether more buffers could be had, for which a message waits: see [`Pool::more`].
    pub fn is_short(&self) -> bool {
        match self {
            Way::Qp(_, pool) => pool.is_short(),
            Way::Base(_) => false,
        }
    }

    /// Whether a message that waits for a buffer would wait for ever.
    pub fn is_dry(&self) -> bool {
        match self {
            Way::Qp(_, pool) => pool.is_dry(),
            Way::Base(_) => false,
        }
    }
}
