//! What goes over a queue pair: the greeting in the connection manager's private data, and the messages.
//!
//! A message is one SEND: a [`Frame`] of [`FRAME`] bytes and what belongs to it. Everything is little endian. Several
//! connections share a queue pair; `conn` says which one, by a number that its opener chose, and `epoch` tells one use
//! of the number from the next.

use crate::{VERSION, u16};
use core::net::{IpAddr, SocketAddr};

/// Bytes before the payload of every message.
pub const FRAME: usize = 16;

/// Bytes of a [`Greeting`].
pub const GREETING: usize = 20;

/// Bytes of the two addresses in the message that opens a connection.
pub const ADDRESSES: usize = 38;

/// So many bytes of a connection and direction may be under way: sent, and not yet in the reader's ring.
pub const WINDOW: u32 = 256 * 1024;

const MAGIC: [u8; 4] = *b"NACQ";

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A connection begins; the payload is who connects to whom.
    Open,
    /// Bytes of a connection.
    Data,
    /// The sender's direction of a connection has ended.
    Fin,
    /// A connection is over at once.
    Reset,
    /// Bytes of a connection have reached its reader.
    Window,
    /// Receive buffers are free again; of no connection.
    Credit,
}

/// The beginning of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is about.
    pub kind: Kind,
    /// So many more messages may be sent in the other direction.
    pub credits: u16,
    /// The connection.
    pub conn: u16,
    /// Which use of that number.
    pub epoch: u32,
    /// So many bytes of the connection's other direction have reached their reader since the last message said so.
    pub window: u32,
}

impl Frame {
    /// As it is sent.
    #[must_use]
    pub fn encode(self) -> [u8; FRAME] {
        let kind: u16 = match self.kind {
            Kind::Open => 1,
            Kind::Data => 2,
            Kind::Fin => 3,
            Kind::Reset => 4,
            Kind::Window => 5,
            Kind::Credit => 6,
        };
        let [k0, k1] = kind.to_le_bytes();
        let [r0, r1] = self.credits.to_le_bytes();
        let [c0, c1] = self.conn.to_le_bytes();
        let [e0, e1, e2, e3] = self.epoch.to_le_bytes();
        let [w0, w1, w2, w3] = self.window.to_le_bytes();
        [k0, k1, r0, r1, c0, c1, 0, 0, e0, e1, e2, e3, w0, w1, w2, w3]
    }

    /// The beginning of a received message, if it is one of ours.
    #[must_use]
    pub fn decode(bytes: &[u8; FRAME]) -> Option<Frame> {
        let [k0, k1, r0, r1, c0, c1, 0, 0, e0, e1, e2, e3, w0, w1, w2, w3] = *bytes else { return None };
        let kind = match u16::from_le_bytes([k0, k1]) {
            1 => Kind::Open,
            2 => Kind::Data,
            3 => Kind::Fin,
            4 => Kind::Reset,
            5 => Kind::Window,
            6 => Kind::Credit,
            _ => return None,
        };
        Some(Frame {
            kind,
            credits: u16::from_le_bytes([r0, r1]),
            conn: u16::from_le_bytes([c0, c1]),
            epoch: u32::from_le_bytes([e0, e1, e2, e3]),
            window: u32::from_le_bytes([w0, w1, w2, w3]),
        })
    }
}

/// What both ends of a queue pair tell each other while they connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// So many receives are posted.
    pub receives: u16,
    /// Bytes of each.
    pub size: u32,
}

/// What a greeting is that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// Of a NetACC with another protocol.
    Version,
    /// Not of a NetACC, or with impossible numbers.
    Garbage,
}

impl Greeting {
    /// As it is sent.
    #[must_use]
    pub fn encode(self) -> [u8; GREETING] {
        let [m0, m1, m2, m3] = MAGIC;
        let [v0, v1] = VERSION.to_le_bytes();
        let [r0, r1] = self.receives.to_le_bytes();
        let [s0, s1, s2, s3] = self.size.to_le_bytes();
        let [w0, w1, w2, w3] = WINDOW.to_le_bytes();
        [m0, m1, m2, m3, v0, v1, r0, r1, s0, s1, s2, s3, w0, w1, w2, w3, 0, 0, 0, 0]
    }

    /// The greeting at the beginning of private data, which may have zeroes after it (InfiniBand's fields have a fixed
    /// length).
    pub fn decode(data: &[u8]) -> Result<Greeting, Stranger> {
        let Some([m0, m1, m2, m3, v0, v1, r0, r1, s0, s1, s2, s3, w0, w1, w2, w3, 0, 0, 0, 0]) = data.first_chunk()
        else {
            return Err(Stranger::Garbage);
        };
        if [*m0, *m1, *m2, *m3] != MAGIC {
            return Err(Stranger::Garbage);
        }
        if u16::from_le_bytes([*v0, *v1]) != VERSION || u32::from_le_bytes([*w0, *w1, *w2, *w3]) != WINDOW {
            return Err(Stranger::Version);
        }
        let greeting =
            Greeting { receives: u16::from_le_bytes([*r0, *r1]), size: u32::from_le_bytes([*s0, *s1, *s2, *s3]) };
        // One message is kept back for credits, and one has to be left.
        let usable = greeting.receives >= 2 && greeting.size as usize >= FRAME + ADDRESSES;
        usable.then_some(greeting).ok_or(Stranger::Garbage)
    }
}

/// The payload of [`Kind::Open`]: the client's address, and the one it connected to.
#[must_use]
pub fn encode_addresses(client: SocketAddr, server: SocketAddr) -> [u8; ADDRESSES] {
    let mut out = [0; ADDRESSES];
    for (half, a) in out.chunks_exact_mut(ADDRESSES / 2).zip([client, server]) {
        let (family, bytes) = match a.ip() {
            IpAddr::V4(ip) => (4, ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => (6, ip.octets()),
        };
        let [port0, port1] = a.port().to_le_bytes();
        for (to, from) in half.iter_mut().zip([family, port0, port1].into_iter().chain(bytes)) {
            *to = from;
        }
    }
    out
}

/// Client's and server's address; `None` if they are none.
#[must_use]
pub fn decode_addresses(bytes: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    if bytes.len() != ADDRESSES {
        return None;
    }
    let one = |half: &[u8]| {
        let ip = core::net::Ipv6Addr::from(*half.get(3..)?.first_chunk::<16>()?);
        let ip: IpAddr = match *half.first()? {
            4 => ip.to_ipv4_mapped()?.into(),
            6 => ip.into(),
            _ => return None,
        };
        Some(SocketAddr::new(ip, u16(half, 1)?))
    };
    let (client, server) = bytes.split_at_checked(ADDRESSES / 2)?;
    Some((one(client)?, one(server)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_encoded_decodes(credits: u16, conn: u16, epoch: u32, window: u32) {
            for kind in [Kind::Open, Kind::Data, Kind::Fin, Kind::Reset, Kind::Window, Kind::Credit] {
                let f = Frame { kind, credits, conn, epoch, window };
                prop_assert_eq!(Frame::decode(&f.encode()), Some(f));
            }
        }

        #[test]
        fn garbage_decodes_only_to_itself(bytes: [u8; FRAME]) {
            if let Some(f) = Frame::decode(&bytes) {
                prop_assert_eq!(f.encode(), bytes);
            }
        }

        #[test]
        fn greetings_survive_padding(receives in 2u16.., size in 1024u32.., zeroes in 0usize..40) {
            let g = Greeting { receives, size };
            let mut data = g.encode().to_vec();
            data.resize(GREETING + zeroes, 0);
            prop_assert_eq!(Greeting::decode(&data), Ok(g));
            data[4] ^= 1;
            prop_assert_eq!(Greeting::decode(&data), Err(Stranger::Version));
            data[0] ^= 1;
            prop_assert_eq!(Greeting::decode(&data), Err(Stranger::Garbage));
        }

        #[test]
        fn a_stranger_is_no_panic(data in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Greeting::decode(&data);
            let _ = decode_addresses(&data);
        }

        #[test]
        fn addresses_survive(a: [u8; 16], b: [u8; 4], p: u16, q: u16) {
            let six = SocketAddr::new(core::net::Ipv6Addr::from(a).into(), p);
            let four = SocketAddr::new(core::net::Ipv4Addr::from(b).into(), q);
            prop_assert_eq!(decode_addresses(&encode_addresses(six, four)), Some((six, four)));
        }
    }

    #[test]
    fn greetings_with_impossible_numbers_are_refused() {
        for g in [Greeting { receives: 1, size: 4096 }, Greeting { receives: 4, size: 50 }] {
            assert_eq!(Greeting::decode(&g.encode()), Err(Stranger::Garbage));
        }
    }
}
