//! The path of messages: a queue pair, or the TCP connection that stands in for it.

use crate::rdma::conn::QpConn;
use crate::rdma::pool::{Buffer, Pool};
use crate::rdma::tcp_path::Stream;
use netacc_verbs::Result;
use netacc_wire::frame::{FRAME, Frame};

/// Number of bytes of a message by TCP for which a look into a short buffer first is worthwhile.
const SHORT: usize = 80;

/// The place in which the bytes of a frame are put.
#[derive(Debug)]
pub enum FrameBuffer {
    /// In a message of its own.
    New(Buffer),
    /// In a message of its own that is all bytes: its beginning goes in the immediate data.
    Whole(Buffer),
    /// Behind another frame.
    Behind,
}

/// One of the two paths.
#[derive(Debug)]
pub enum MsgPath<'a> {
    /// A queue pair that works, and its device's buffers.
    Qp(&'a mut QpConn, &'a mut Pool),
    /// The TCP stream, since the queue pair has failed. Errors come to the reader.
    Companion(&'a mut Stream),
}

impl MsgPath<'_> {
    /// Whether a frame with few bytes may be sent now by [`MsgPath::add`].
    pub fn can_add(&mut self) -> bool {
        match self {
            MsgPath::Qp(qp_conn, pool) => qp_conn.can_add(pool),
            MsgPath::Companion(stream) => stream.can_send(),
        }
    }

    /// Whether a message may be sent now.
    pub fn can_send(&self) -> bool {
        match self {
            MsgPath::Qp(qp_conn, _) => qp_conn.can_send(),
            MsgPath::Companion(stream) => stream.can_send(),
        }
    }

    /// Whether after the next message another one may be sent, whatever the other side does.
    pub fn can_send_two(&self) -> bool {
        match self {
            MsgPath::Qp(qp_conn, _) => qp_conn.can_send_two(),
            // It is not known how much the kernel accepts.
            MsgPath::Companion(_) => false,
        }
    }

    /// Whether a message may be sent now before which nothing waits, and after which another one may be sent as well:
    /// what it tells is true until that one tells otherwise.
    pub fn is_free(&self) -> bool {
        match self {
            MsgPath::Qp(qp_conn, _) => qp_conn.can_send() && qp_conn.can_send_two() && !qp_conn.is_waiting(),
            // The other side hears at least a part of the next message, since the kernel has room.
            MsgPath::Companion(stream) => stream.can_send() && !stream.is_full(),
        }
    }

    /// Whether a message may be all bytes: its beginning `frame`, but for what the queue pair says in it, goes in the
    /// immediate data.
    pub fn can_be_brief(&self, frame: &Frame) -> bool {
        matches!(self, MsgPath::Qp(qp_conn, _) if qp_conn.can_be_brief(frame))
    }

    /// Bytes that fit into a message that needs no buffer.
    pub fn payload_inline(&self) -> usize {
        match self {
            MsgPath::Qp(qp_conn, _) => qp_conn.payload_inline(),
            MsgPath::Companion(stream) => stream.payload().min(SHORT),
        }
    }

    /// Sends a frame with few bytes, at [`MsgPath::post`] or before, if that [can be](MsgPath::can_add).
    pub fn add(&mut self, frame: Frame, payload: &[u8]) -> Result<()> {
        match self {
            MsgPath::Qp(qp_conn, pool) => qp_conn.add(pool, frame, payload),
            MsgPath::Companion(stream) => {
                stream.send(frame, payload);
                Ok(())
            }
        }
    }

    /// Sends a message without a buffer. Behind messages that wait for [`MsgPath::post`] it waits too.
    pub fn send(&mut self, frame: Frame, payload: &[u8]) -> Result<()> {
        match self {
            MsgPath::Qp(qp_conn, pool) if qp_conn.is_waiting() => qp_conn.add(pool, frame, payload),
            MsgPath::Qp(qp_conn, _) => qp_conn.send(frame, payload),
            MsgPath::Companion(stream) => {
                stream.send(frame, payload);
                Ok(())
            }
        }
    }

    /// Takes a place for `wanted` bytes of a frame, or for as many as there is room for; returns where it begins, and
    /// how many bytes. It is to be sent or given back before anything else. With `brief` the frame [can
    /// be](MsgPath::can_be_brief), and the other side knows which use of the connection's number it is.
    pub fn take(&mut self, wanted: usize, brief: bool) -> Option<(FrameBuffer, *mut u8, usize)> {
        match self {
            MsgPath::Qp(qp_conn, pool) => {
                // A part is sent in a message of its own, if that can be sent.
                let least = if qp_conn.can_send() { wanted } else { 1 };
                if let Some((start, room)) = qp_conn.append_buffer(pool, least) {
                    return Some((FrameBuffer::Behind, start, room));
                }
                if !qp_conn.can_send() {
                    return None;
                }
                let longest = qp_conn.longest();
                let len = if brief { wanted } else { wanted.saturating_add(FRAME) };
                let (n, start, size) = pool.take_to_send(len.min(longest))?;
                let (whole, payload) = (longest.min(size), longest.min(size).saturating_sub(FRAME));
                if wanted > payload && brief && !pool.is_large(n) {
                    return Some((FrameBuffer::Whole(n), start, whole));
                }
                Some((FrameBuffer::New(n), start.wrapping_add(FRAME), payload))
            }
            MsgPath::Companion(stream) => {
                Some((FrameBuffer::Behind, stream.buffer().wrapping_add(FRAME), stream.payload()))
            }
        }
    }

    /// Gives a place back that is not needed.
    pub fn give_back(&mut self, place: FrameBuffer) {
        match (self, place) {
            (MsgPath::Qp(_, pool), FrameBuffer::New(n) | FrameBuffer::Whole(n)) => pool.sent(n),
            (MsgPath::Qp(..), FrameBuffer::Behind) => {}
            (MsgPath::Companion(stream), _) => stream.forget(),
        }
    }

    /// Sends a place with `len` bytes of payload, at [`MsgPath::post`] or before. With `known` the other side knows which
    /// use of the connection's number it is.
    pub fn send_placed(&mut self, frame: Frame, place: FrameBuffer, len: usize, known: bool) -> Result<()> {
        match (self, place) {
            (MsgPath::Qp(qp_conn, pool), FrameBuffer::New(n)) => qp_conn.send_buffer(pool, frame, n, len, known),
            (MsgPath::Qp(qp_conn, pool), FrameBuffer::Whole(n)) => qp_conn.send_whole(pool, frame, n, len),
            (MsgPath::Qp(qp_conn, pool), FrameBuffer::Behind) => qp_conn.placed(pool, frame, len),
            (MsgPath::Companion(stream), _) => {
                stream.send_placed(frame, len);
                Ok(())
            }
        }
    }

    /// Whether something waits for [`MsgPath::post`].
    pub fn is_waiting(&self) -> bool {
        match self {
            MsgPath::Qp(qp_conn, _) => qp_conn.is_waiting(),
            MsgPath::Companion(_) => false,
        }
    }

    /// Sends the messages that wait for it.
    pub fn post(&mut self) -> Result<()> {
        match self {
            MsgPath::Qp(qp_conn, pool) => qp_conn.post(pool),
            MsgPath::Companion(_) => Ok(()),
        }
    }

    /// Whether more buffers could be had, for which a message waits: see [`Pool::more`].
    pub fn is_short(&self) -> bool {
        match self {
            MsgPath::Qp(_, pool) => pool.is_short(),
            MsgPath::Companion(_) => false,
        }
    }

    /// Whether a message that waits for a buffer would wait for ever.
    pub fn is_dry(&self) -> bool {
        match self {
            MsgPath::Qp(_, pool) => pool.is_dry(),
            MsgPath::Companion(_) => false,
        }
    }
}
