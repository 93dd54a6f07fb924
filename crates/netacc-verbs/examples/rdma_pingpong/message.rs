//! The messages that the two sides exchange.

use crate::link::Outcome;

/// The payload of a ping in bytes: with its header it is short enough for every device to take it inline.
pub const SMALL: usize = 48;
pub const HEADER: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ping = 1,
    Pong,
    Data,
    Done,
    /// A message that carries only credits.
    Credits,
}

#[derive(Debug)]
pub struct Message {
    pub kind: Kind,
    /// Receive buffers that the sender has posted again since its last message.
    pub credits: u16,
    pub seq: u32,
    pub payload: Vec<u8>,
}

/// The bytes of a payload: they differ from message to message and from place to place.
fn pattern(seq: u32, len: usize) -> impl Iterator<Item = u8> {
    (0..len as u32).map(move |i| (seq.wrapping_mul(31).wrapping_add(i.wrapping_mul(7)) >> 3) as u8)
}

pub fn encode(kind: Kind, credits: u16, seq: u32, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + len);
    bytes.extend([kind as u8, 0]);
    bytes.extend(credits.to_le_bytes());
    bytes.extend(seq.to_le_bytes());
    bytes.extend((len as u32).to_le_bytes());
    bytes.extend(pattern(seq, len));
    bytes
}

impl Message {
    pub fn decode(bytes: &[u8]) -> Outcome<Message> {
        let (header, payload) = bytes.split_at_checked(HEADER).ok_or("a message without a whole header")?;
        let [kind, _, c0, c1, s0, s1, s2, s3, l0, l1, l2, l3] = header else { return Err("header".into()) };
        let kind = [Kind::Ping, Kind::Pong, Kind::Data, Kind::Done, Kind::Credits]
            .into_iter()
            .find(|k| *k as u8 == *kind)
            .ok_or_else(|| format!("a message of kind {kind}"))?;
        let len = u32::from_le_bytes([*l0, *l1, *l2, *l3]) as usize;
        if len != payload.len() {
            return Err(format!("a message of {} bytes says {len}", payload.len()));
        }
        let credits = u16::from_le_bytes([*c0, *c1]);
        Ok(Message { kind, credits, seq: u32::from_le_bytes([*s0, *s1, *s2, *s3]), payload: payload.to_vec() })
    }

    /// Checks that the message has this number and that its payload is intact.
    pub fn check(&self, seq: u32) -> Outcome<()> {
        if self.seq != seq {
            return Err(format!("{:?} {} came where {seq} was due", self.kind, self.seq));
        }
        if !self.payload.iter().copied().eq(pattern(seq, self.payload.len())) {
            return Err(format!("the content of {:?} {seq} differs", self.kind));
        }
        Ok(())
    }

    pub fn expect(&self, kind: Kind, seq: u32) -> Outcome<()> {
        if self.kind != kind {
            return Err(format!("{:?} came where {kind:?} was due", self.kind));
        }
        self.check(seq)
    }
}
