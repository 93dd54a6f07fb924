//! The messages of a queue pair.
//!
//! A message is one SEND: one or several times a [`Frame`] of [`FRAME`] bytes with its payload. All numbers are
//! little endian. Several connections share a queue pair; `conn` names one by a number that its opener chose, and
//! `generation` tells one use of the number from the next. Where devices have immediate data, a message of one frame
//! may have its head there ([`Brief`]).

use crate::u16;
use core::net::{IpAddr, SocketAddr};

/// The size of a frame in bytes; it precedes every payload.
pub const FRAME: usize = 16;

/// The offset of [`Frame::next`] in an encoded frame.
pub const NEXT: usize = 2;

/// The longest payload in bytes of a frame that another one follows.
pub const LONGEST: usize = u16::MAX as usize - 1;

/// The size in bytes of the two addresses in the message that opens a connection.
pub const ADDRESSES: usize = 38;

/// The most bytes of one direction of a connection that may be under way: sent, and not yet in the reader's ring.
pub const WINDOW: u32 = 256 * 1024;

/// The most credits that a message can bring.
pub const CREDITS: u8 = 0x7f;

/// The bit of a message's credits that says that they are for long messages.
const LARGE: u8 = 0x80;

/// The most bytes that the receives of a queue pair hold together, unless its first ones hold more.
pub const ENOUGH: usize = 256 * 1024;

/// By which factor long receives may exceed the first ones: for a stream, few long messages cost less than many short
/// ones.
const LARGER: usize = 4;

/// The size in bytes of the receives for [long](Frame::large) messages of a side whose first receives have `size`
/// bytes. Both sides can compute it, so a message only has to say that credits are for long ones. A program often
/// writes a power of two at a time, so the size has room for the frame besides.
#[must_use]
pub const fn larger(size: usize) -> usize {
    let (most, enough) = (size.saturating_mul(LARGER), ENOUGH / LARGER);
    let most = if most < enough { most } else { enough };
    if most > size { most + FRAME } else { size }
}

/// The kind of a frame. Some kinds concern the queue pair and no single connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A connection begins; the payload has its two addresses.
    Open,
    /// The payload is data of a connection, and the sender has no more for now.
    Data,
    /// The payload is data of a connection, and more follows: a stream that breaks off here is not whole.
    Part,
    /// The sender's direction of a connection has ended.
    Fin,
    /// A connection is reset.
    Reset,
    /// Data of a connection has reached its reader, as `window` says.
    Window,
    /// Receives are posted again, as `credits` says. It concerns no connection.
    Credit,
    /// The receiver answers with a message, by which the sender knows that the queue pair works. It concerns no
    /// connection.
    Probe,
    /// The first message over the companion connection, after the queue pair has failed; `acked` says what the sender
    /// has received over the queue pair. It concerns no connection.
    Resume,
    /// A client asks to upgrade a connection from TCP to the queue pair: see [`Upgrade`].
    Upgrade,
    /// The server's program has read all bytes that came by TCP so far, and the client may switch. The payload is a
    /// token of [`TOKEN`] bytes, which the client sends by TCP as its last bytes there.
    Ready,
    /// The server cancels the upgrade. A client that has not switched answers with [`Kind::Reset`].
    Cancel,
    /// The client asks whether the companion connection may come to the listener's own port, and the server answers.
    /// The answer is in `generation`: see [`OwnPort`](crate::companion::OwnPort). It concerns no connection.
    OwnPort,
}

/// The head of a part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The kind of the frame.
    pub kind: Kind,
    /// How many more messages may be sent in the other direction, at most [`CREDITS`]. Like `acked`, it counts only in
    /// the first frame of a message.
    pub credits: u8,
    /// Whether these messages may be long ones: see [`larger`].
    pub large: bool,
    /// The number of the connection.
    pub conn: u16,
    /// The generation of that number.
    pub generation: u32,
    /// The number of bytes of the connection's other direction that have reached their reader since the last message
    /// that told of any.
    pub window: u32,
    /// The number of messages that the sender's queue pair has received so far, modulo 65,536; all of these are
    /// acknowledged.
    pub acked: u16,
    /// 0: the rest of the message is this frame's payload. Otherwise the payload has one byte less than this, and
    /// another frame follows it.
    pub next: u16,
}

impl Frame {
    /// The length of the frame's payload, if `left` bytes of the message come after the frame, and whether another
    /// frame follows. `None` if the message is too short.
    #[must_use]
    pub fn payload(&self, left: usize) -> Option<(usize, bool)> {
        match usize::from(self.next) {
            0 => Some((left, false)),
            n => (left >= n - 1 + FRAME).then_some((n - 1, true)),
        }
    }

    /// Encodes the frame as it is sent.
    #[must_use]
    pub fn encode(self) -> [u8; FRAME] {
        let kind: u8 = match self.kind {
            Kind::Open => 1,
            Kind::Data => 2,
            Kind::Fin => 3,
            Kind::Reset => 4,
            Kind::Window => 5,
            Kind::Credit => 6,
            Kind::Probe => 7,
            Kind::Resume => 8,
            Kind::Upgrade => 9,
            Kind::Ready => 10,
            Kind::Cancel => 11,
            Kind::Part => 12,
            Kind::OwnPort => 13,
        };
        let [n0, n1] = self.next.to_le_bytes();
        let [c0, c1] = self.conn.to_le_bytes();
        let [e0, e1, e2, e3] = self.generation.to_le_bytes();
        let [w0, w1, w2, w3] = self.window.to_le_bytes();
        let [h0, h1] = self.acked.to_le_bytes();
        let credits = self.credits & CREDITS | if self.large { LARGE } else { 0 };
        [kind, credits, n0, n1, c0, c1, h0, h1, e0, e1, e2, e3, w0, w1, w2, w3]
    }

    /// Decodes a received frame; `None` if its kind is unknown.
    #[must_use]
    pub fn decode(bytes: &[u8; FRAME]) -> Option<Frame> {
        let [kind, credits, n0, n1, c0, c1, h0, h1, e0, e1, e2, e3, w0, w1, w2, w3] = *bytes;
        let kind = match kind {
            1 => Kind::Open,
            2 => Kind::Data,
            3 => Kind::Fin,
            4 => Kind::Reset,
            5 => Kind::Window,
            6 => Kind::Credit,
            7 => Kind::Probe,
            8 => Kind::Resume,
            9 => Kind::Upgrade,
            10 => Kind::Ready,
            11 => Kind::Cancel,
            12 => Kind::Part,
            13 => Kind::OwnPort,
            _ => return None,
        };
        Some(Frame {
            kind,
            credits: credits & CREDITS,
            large: credits & LARGE != 0,
            conn: u16::from_le_bytes([c0, c1]),
            generation: u32::from_le_bytes([e0, e1, e2, e3]),
            window: u32::from_le_bytes([w0, w1, w2, w3]),
            acked: u16::from_le_bytes([h0, h1]),
            next: u16::from_le_bytes([n0, n1]),
        })
    }
}

/// The head of a message with data of one connection, in the 32 bits of its immediate data. The data then begins where
/// the message does, so data that fills a packet does not need a second packet for the head.
///
/// It has no room for the connection's generation, so it may come only after a whole frame of the connection: then
/// everything in that direction is of the same generation, until the client uses the number for its next connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brief {
    conn: u16,
    /// True for [`Kind::Part`], false for [`Kind::Data`].
    part: bool,
    /// The number of further messages that have been received, which is also the number of credits.
    news: u8,
    /// Whether the credits are for long messages.
    large: bool,
    window: u16,
}

/// The number of bits of [`Brief::conn`]; the bit after it is [`Brief::part`].
const CONN_BITS: u32 = 11;
/// The number of bits of [`Brief::news`]; the bit after it is [`Brief::large`].
const NEWS_BITS: u32 = 4;
/// The number of bits of [`Brief::window`].
const WINDOW_BITS: u32 = 15;
/// The lowest bit of [`Brief::news`].
const NEWS: u32 = CONN_BITS + 1;
/// The lowest bit of [`Brief::window`].
const WINDOWS: u32 = NEWS + NEWS_BITS + 1;

impl Brief {
    /// The largest window that fits.
    pub const WINDOW: u32 = (1 << WINDOW_BITS) - 1;

    /// The short form of `frame`, if it has one. `acked` is that of the sender's last message.
    #[must_use]
    pub fn of(frame: &Frame, acked: u16) -> Option<Brief> {
        let news = frame.acked.wrapping_sub(acked);
        let part = frame.kind == Kind::Part;
        let usual = (part || frame.kind == Kind::Data) && frame.next == 0 && u16::from(frame.credits) == news;
        let fits = u32::from(frame.conn) >> CONN_BITS == 0 && u32::from(news) >> NEWS_BITS == 0;
        let window = u16::try_from(frame.window).ok().filter(|w| w >> WINDOW_BITS == 0)?;
        (usual && fits).then_some(Brief { conn: frame.conn, part, news: frame.credits, large: frame.large, window })
    }

    /// The frame that this stands for, except for the generation. `acked` is that of the sender's last message.
    #[must_use]
    pub fn frame(self, acked: u16) -> Frame {
        let Brief { conn, part, news, large, window } = self;
        let acked = acked.wrapping_add(news.into());
        let kind = if part { Kind::Part } else { Kind::Data };
        Frame { kind, credits: news, large, conn, generation: 0, window: window.into(), acked, next: 0 }
    }

    /// Encodes the immediate data.
    #[must_use]
    pub fn encode(self) -> u32 {
        let news = u32::from(self.news) << NEWS | u32::from(self.large) << (NEWS + NEWS_BITS);
        u32::from(self.conn) | u32::from(self.part) << CONN_BITS | news | u32::from(self.window) << WINDOWS
    }

    /// Decodes immediate data. Every number is valid.
    #[must_use]
    pub fn decode(number: u32) -> Brief {
        Brief {
            conn: (number & ((1 << CONN_BITS) - 1)) as u16,
            part: number >> CONN_BITS & 1 != 0,
            news: (number >> NEWS & ((1 << NEWS_BITS) - 1)) as u8,
            large: number >> (NEWS + NEWS_BITS) & 1 != 0,
            window: (number >> WINDOWS & ((1 << WINDOW_BITS) - 1)) as u16,
        }
    }
}

/// The payload of [`Kind::Open`]: the client's address, and the address to which it connected.
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

/// Decodes the client's and the server's address; `None` if the bytes are not addresses.
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

/// The payload of [`Kind::Upgrade`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// The client's address on its TCP connection.
    pub client: SocketAddr,
    /// The server's address on that connection.
    pub server: SocketAddr,
    /// The number of bytes that the client has sent by TCP.
    pub sent: u64,
}

/// The size of an [`Upgrade`] in bytes.
pub const UPGRADE: usize = ADDRESSES + 8;

impl Upgrade {
    /// Encodes the payload as it is sent.
    #[must_use]
    pub fn encode(self) -> [u8; UPGRADE] {
        let mut out = [0; UPGRADE];
        let bytes = encode_addresses(self.client, self.server).into_iter().chain(self.sent.to_le_bytes());
        out.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        out
    }

    /// Decodes a received payload; `None` if its addresses are invalid.
    #[must_use]
    pub fn decode(bytes: &[u8; UPGRADE]) -> Option<Upgrade> {
        let (addresses, sent) = bytes.split_at_checked(ADDRESSES)?;
        let (client, server) = decode_addresses(addresses)?;
        Some(Upgrade { client, server, sent: u64::from_le_bytes(*sent.first_chunk()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_encoded_decodes(
            credits in 0..=CREDITS, large: bool, conn: u16, generation: u32, window: u32, acked: u16, next: u16
        ) {
            let all = [
                Kind::Open, Kind::Data, Kind::Fin, Kind::Reset, Kind::Window, Kind::Credit, Kind::Probe, Kind::Resume,
                Kind::Upgrade, Kind::Ready, Kind::Cancel, Kind::Part, Kind::OwnPort,
            ];
            for kind in all {
                let f = Frame { kind, credits, large, conn, generation, window, acked, next };
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
        fn every_immediate_means_something_else(number: u32, other: u32, acked: u16) {
            let brief = Brief::decode(number);
            prop_assert_eq!(brief.encode(), number);
            prop_assert_eq!(Brief::of(&brief.frame(acked), acked), Some(brief));
            prop_assert_eq!(Brief::decode(other) == brief, other == number);
        }

        #[test]
        fn a_brief_says_what_its_frame_says(
            credits in 0u8..20, conn in 0u16..3000, window in 0u32..70_000, before: u16, more in 0u16..20, next in 0u16..3,
            part: bool, large: bool,
        ) {
            let acked = before.wrapping_add(more);
            let kind = if part { Kind::Part } else { Kind::Data };
            let frame = Frame { kind, credits, large, conn, generation: 0, window, acked, next };
            match Brief::of(&frame, before) {
                Some(brief) => prop_assert_eq!(Brief::decode(brief.encode()).frame(before), frame),
                None => prop_assert!(
                    u16::from(credits) != more || more > 15 || conn > 2047 || window > Brief::WINDOW || next != 0
                ),
            }
            prop_assert_eq!(Brief::of(&Frame { kind: Kind::Fin, ..frame }, before), None);
        }

        #[test]
        fn what_belongs_to_a_frame_leaves_room_for_the_next(next: u16, left in 0usize..100_000) {
            let f = Frame { kind: Kind::Data, credits: 0, large: false, conn: 0, generation: 0, window: 0, acked: 0, next };
            match f.payload(left) {
                Some((len, false)) => prop_assert!(next == 0 && len == left),
                Some((len, true)) => prop_assert!(len + FRAME <= left && len <= LONGEST),
                None => prop_assert!(next != 0 && usize::from(next) + FRAME > left),
            }
        }

        #[test]
        fn garbage_is_no_panic(data in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode_addresses(&data);
        }

        #[test]
        fn addresses_survive(a: [u8; 16], b: [u8; 4], p: u16, q: u16, sent: u64) {
            let six = SocketAddr::new(core::net::Ipv6Addr::from(a).into(), p);
            let four = SocketAddr::new(core::net::Ipv4Addr::from(b).into(), q);
            prop_assert_eq!(decode_addresses(&encode_addresses(six, four)), Some((six, four)));
            let upgrade = Upgrade { client: six, server: four, sent };
            prop_assert_eq!(Upgrade::decode(&upgrade.encode()), Some(upgrade));
        }
    }

    #[test]
    fn long_messages_have_no_more_in_all_than_the_first_ones_or_enough() {
        let k = 1024;
        for (size, large) in [(1, 4), (16, 64), (32, 64), (64, 64), (128, 128)] {
            assert_eq!(larger(size * k), if large > size { large * k + FRAME } else { size * k });
        }
        assert_eq!(larger(usize::MAX), usize::MAX);
    }
}
