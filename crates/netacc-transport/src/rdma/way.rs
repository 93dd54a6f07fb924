//! What messages go by: a queue pair, or the TCP connection that stands in for it.

use crate::rdma::pipe::Pipe;
use crate::rdma::pool::{Buffer, Pool};
use crate::rdma::stream::Stream;
use netacc_verbs::Result;
use netacc_wire::frame::{FRAME, Frame};

/// Bytes of a message by TCP that are worth a look into a short buffer first.
const SHORT: usize = 80;

/// One of both.
#[derive(Debug)]
pub enum Way<'a> {
    /// A queue pair that works, and its device's buffers.
    Qp(&'a mut Pipe, &'a mut Pool),
    /// Its queue pair has failed. Errors come to whoever reads.
    Base(&'a mut Stream),
}

impl Way<'_> {
    /// Whether a message may be sent now.
    pub fn can_send(&self) -> bool {
        match self {
            Way::Qp(pipe, _) => pipe.can_send(),
            Way::Base(stream) => stream.can_send(),
        }
    }

    /// Bytes that fit into one message.
    pub fn payload(&self) -> usize {
        match self {
            Way::Qp(pipe, _) => pipe.payload(),
            Way::Base(stream) => stream.payload(),
        }
    }

    /// The same for one that needs no buffer.
    pub fn payload_inline(&self) -> usize {
        match self {
            Way::Qp(pipe, _) => pipe.payload_inline(),
            Way::Base(stream) => stream.payload().min(SHORT),
        }
    }

    /// Sends a message without a buffer. Behind messages that wait for [`Way::post`] it waits too.
    pub fn send(&mut self, frame: Frame, payload: &[u8]) -> Result<()> {
        match self {
            Way::Qp(pipe, _) => pipe.send(frame, payload),
            Way::Base(stream) => {
                stream.send(frame, payload);
                Ok(())
            }
        }
    }

    /// A buffer, and where in it the payload may be put; to be sent or given back before anything else.
    pub fn take(&mut self) -> Option<(Buffer, *mut u8)> {
        let (n, start) = match self {
            Way::Qp(_, pool) => pool.take_to_send()?,
            Way::Base(stream) => (0, stream.place()),
        };
        Some((n, start.wrapping_add(FRAME)))
    }

    /// It is not needed.
    pub fn give_back(&mut self, n: Buffer) {
        match self {
            Way::Qp(_, pool) => pool.sent(n),
            Way::Base(stream) => stream.forget(),
        }
    }

    /// Sends it, with `len` bytes of payload, at [`Way::post`] or before.
    pub fn send_buffer(&mut self, frame: Frame, n: Buffer, len: usize) -> Result<()> {
        match self {
            Way::Qp(pipe, pool) => pipe.send_buffer(pool, frame, n, len),
            Way::Base(stream) => {
                stream.send_placed(frame, len);
                Ok(())
            }
        }
    }

    /// Sends what waits for it.
    pub fn post(&mut self) -> Result<()> {
        match self {
            Way::Qp(pipe, pool) => pipe.post(pool),
            Way::Base(_) => Ok(()),
        }
    }

    /// Whether more buffers could be had, for which somebody waits: see [`Pool::more`].
    pub fn is_short(&self) -> bool {
        match self {
            Way::Qp(_, pool) => pool.is_short(),
            Way::Base(_) => false,
        }
    }

    /// Whether who waits for a buffer would wait for ever.
    pub fn is_dry(&self) -> bool {
        match self {
            Way::Qp(_, pool) => pool.is_dry(),
            Way::Base(_) => false,
        }
    }
}
