//! The protocol on the TCP connection of a queue pair: frames of a fixed head and a body.

/// Bytes of a head: kind, flags, two of padding, length of the body, immediate data, a count.
pub const HEAD: usize = 16;
/// Most bytes of a body: no message of NetACC is longer.
const LONGEST: u32 = 16 << 20;

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The connecting side's private data.
    Request = 1,
    /// The other side's private data: it accepts.
    Accept,
    /// The other side's private data: it refuses.
    Reject,
    /// The connecting side has got the acceptance.
    Ready,
    /// A message.
    Send,
    /// A write of no bytes: only to be acknowledged.
    Nothing,
    /// The number of messages received so far is in the count.
    Ack,
    /// A message found no receive, or one that was too short.
    NoReceive,
    /// The side that sends this disconnects.
    Disconnect,
}

/// The sender has marked the message as solicited.
pub const SOLICITED: u8 = 1;
/// The message has immediate data.
pub const IMMEDIATE: u8 = 2;

/// A frame's head.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// What it says.
    pub kind: Kind,
    /// [`SOLICITED`], [`IMMEDIATE`].
    pub flags: u8,
    /// Length (bytes) of the body.
    pub len: u32,
    /// Immediate data, in network byte order.
    pub immediate: u32,
    /// Of an [`Kind::Ack`]: number of messages received so far.
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

    /// The head at the beginning of `bytes`: `Ok(None)` if it is not complete, an error if it is none.
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
