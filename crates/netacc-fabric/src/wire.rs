//! The protocol on the TCP connection of a queue pair: frames of a fixed head and a body.

/// The size of a head in bytes: kind, flags, two bytes of padding, length of the body, immediate data, a count.
pub const HEAD: usize = 16;
/// The most bytes of a body; no message of NetACC is longer.
const LONGEST: u32 = 16 << 20;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The connecting side asks for the connection; the body is its private data.
    Request = 1,
    /// The other side accepts; the body is its private data.
    Accept,
    /// The other side refuses; the body is its private data.
    Reject,
    /// The connecting side has got the acceptance.
    Ready,
    /// The body is a message.
    Send,
    /// An RDMA write of no bytes, which is only acknowledged.
    Nothing,
    /// The count is the number of messages received so far.
    Ack,
    /// A message found no receive, or one that was too short.
    NoReceive,
    /// The sender disconnects.
    Disconnect,
}

/// Flag: the sender has marked the message as solicited.
pub const SOLICITED: u8 = 1;
/// Flag: the message has immediate data.
pub const IMMEDIATE: u8 = 2;

/// A frame's head.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// The kind of the frame.
    pub kind: Kind,
    /// A combination of [`SOLICITED`] and [`IMMEDIATE`].
    pub flags: u8,
    /// Length (bytes) of the body.
    pub len: u32,
    /// Immediate data, in network byte order.
    pub immediate: u32,
    /// In a [`Kind::Ack`], the number of messages received so far.
    pub count: u32,
}

impl Frame {
    /// A frame without a body.
    pub fn bare(kind: Kind) -> Frame {
        Frame { kind, flags: 0, len: 0, immediate: 0, count: 0 }
    }

    /// Appends the head to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend([self.kind as u8, self.flags, 0, 0]);
        for n in [self.len, self.immediate, self.count] {
            out.extend(n.to_le_bytes());
        }
    }

    /// Decodes the head at the beginning of `bytes`: `Ok(None)` if it is not complete, an error if it is invalid.
    pub fn decode(bytes: &[u8]) -> Result<Option<Frame>, ()> {
        let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let kind = match head[0] {
            1 => Kind::Request,
            2 => Kind::Accept,
            3 => Kind::Reject,
            4 => Kind::Ready,
            5 => Kind::Send,
            6 => Kind::Nothing,
            7 => Kind::Ack,
            8 => Kind::NoReceive,
            9 => Kind::Disconnect,
            _ => return Err(()),
        };
        let frame = Frame { kind, flags: head[1], len: word(4), immediate: word(8), count: word(12) };
        if frame.len > LONGEST { Err(()) } else { Ok(Some(frame)) }
    }
}
