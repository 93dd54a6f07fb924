//! All that processes send to each other: the messages on a link's control socket, the names of the rendezvous, the
//! protocols of a queue pair ([`frame`]) and of its companion connection ([`companion`]), and the datagram by which a
//! client asks whether a server is reachable by RDMA ([`probe`]).
//!
//! Every message on a control socket is one `SOCK_SEQPACKET` record of exactly [`LEN`] bytes, little endian, with at
//! most one descriptor beside it. A record that does not decode is a violation, for which the link is dropped.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![warn(
    clippy::cast_lossless,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::ptr_as_ptr
)]

pub mod companion;
mod entrance;
pub mod frame;
mod name;
pub mod probe;
pub mod qp_hello;
pub use entrance::Entrance;
pub use name::{Name, Scope, proof};

/// The version of everything that two processes share: messages, segment layout, ring protocol. It is part
/// of the rendezvous name, so processes of different versions do not find each other and stay on TCP.
pub const VERSION: u16 = if cfg!(netacc_next_version) { NUMBER + 1 } else { NUMBER };

/// The version of this source, which must be raised with every change of what two processes share. The tests also build
/// a library of the next version.
const NUMBER: u16 = 16;

/// The other versions that a client looks for when it finds no rendezvous of its own version, so that it can report
/// that the server has another version of NetACC. Versions before 3 were never released; versions far above ours are
/// not found.
pub fn other_versions() -> impl Iterator<Item = u16> {
    (3..=VERSION.saturating_add(3)).filter(|version| *version != VERSION)
}

/// The size of every message in bytes.
pub const LEN: usize = 32;

const MAGIC: [u8; 4] = *b"NACC";

/// A message on the control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first message, which the connecting side sends with the segment's memfd beside it.
    Hello {
        /// The process number of the sender, which is only shown to users.
        pid: u32,
        /// The size of the segment in bytes, which must be the one that the receiver expects.
        segment: u64,
    },
    /// The sender has a new waker.
    Waker {
        /// The number by which shared memory refers to the waker.
        id: u32,
        /// 0: the waker is the eventfd beside the message. Otherwise it is the datagram socket with the name that
        /// [`Name::waker`] derives from the token, since strangers pass no descriptors.
        token: u64,
    },
    /// The receiver must ring its own waker, because the sender does not have the eventfd (or does not trust its maker),
    /// or cannot reach the socket.
    Wake {
        /// The number of the waker.
        id: u32,
    },
    /// The sender is about to fork; the liveness socket tells the receiver when the last sharer of the connection has
    /// ended.
    Liveness {
        /// The slot of the connection.
        slot: u32,
        /// The generation of the slot, so that a late message cannot affect the next connection.
        generation: u32,
        /// 0: the receiver's end of a socket pair lies beside the message. Otherwise the receiver connects to the UNIX
        /// socket that [`Name::liveness`] derives from it, since strangers pass no descriptors.
        token: u64,
    },
    /// The sender is about to fork, and the eventfd beside the message wakes the process that goes on alone with the
    /// connection. A receiver that does not have it wakes that process by the liveness socket.
    HeirWaker {
        /// The slot of the connection.
        slot: u32,
        /// The generation of the slot.
        generation: u32,
    },
    /// The sender has left the connection's rings; the receiver's end of the socket pair on which the connection goes
    /// on lies beside the message.
    SwitchToKernel {
        /// The slot of the connection.
        slot: u32,
        /// The generation of the slot.
        generation: u32,
    },
    /// This precedes [`Message::SwitchToKernel`] for a connection that began on TCP: beside the message lies its old
    /// subflow, with bytes that the receiver sent before it switched to the ring and that the sender has not read.
    OldSubflow {
        /// The slot of the connection.
        slot: u32,
        /// The generation of the slot.
        generation: u32,
    },
    /// The TCP connection whose addresses are in the slot goes on in that slot.
    Promote {
        /// The slot of the connection.
        slot: u32,
        /// The generation of the slot.
        generation: u32,
    },
    /// The TCP connection whose client has the address in the slot goes on in that slot. The receiver is in another
    /// network namespace, where addresses alone do not name a connection.
    PromoteNeighbour {
        /// The slot of the connection.
        slot: u32,
        /// The generation of the slot.
        generation: u32,
        /// The time stamp of the client's SYN (RFC 7323), which its kernel has moved by a random number that only the
        /// two ends of the connection can ask for.
        stamp: u32,
    },
    /// The sender of a [`Message::PromoteNeighbour`] has seen by the receiver's counts that it reads what the sender
    /// writes: the connection goes on in the slot.
    ConfirmNeighbour {
        /// The slot of the connection.
        slot: u32,
        /// The generation of the slot.
        generation: u32,
    },
}

impl Message {
    /// Encodes the message for the socket.
    pub fn encode(self) -> [u8; LEN] {
        let (kind, a, b, c): (u16, u32, u64, u64) = match self {
            Message::Hello { pid, segment } => (1, pid, segment, 0),
            Message::Waker { id, token } => (2, id, token, 0),
            Message::Wake { id } => (3, id, 0, 0),
            Message::Liveness { slot, generation, token } => (4, slot, generation.into(), token),
            Message::Promote { slot, generation } => (5, slot, generation.into(), 0),
            Message::SwitchToKernel { slot, generation } => (6, slot, generation.into(), 0),
            Message::OldSubflow { slot, generation } => (7, slot, generation.into(), 0),
            Message::PromoteNeighbour { slot, generation, stamp } => (8, slot, generation.into(), stamp.into()),
            Message::ConfirmNeighbour { slot, generation } => (9, slot, generation.into(), 0),
            Message::HeirWaker { slot, generation } => (10, slot, generation.into(), 0),
        };
        let mut out = [0u8; LEN];
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(dst) = out.get_mut(at..at + bytes.len()) {
                dst.copy_from_slice(bytes);
            }
        };
        put(0, &MAGIC);
        put(4, &VERSION.to_le_bytes());
        put(6, &kind.to_le_bytes());
        put(8, &a.to_le_bytes());
        put(16, &b.to_le_bytes());
        put(24, &c.to_le_bytes());
        out
    }

    /// The message in `bytes`, if it is exactly one of ours in our version.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let bytes: &[u8; LEN] = bytes.try_into().ok()?;
        if bytes.get(0..4)? != MAGIC || u16(bytes, 4)? != VERSION {
            return None;
        }
        let a = u32::from_le_bytes(bytes.get(8..12)?.try_into().ok()?);
        let b = u64::from_le_bytes(bytes.get(16..24)?.try_into().ok()?);
        let c = u64::from_le_bytes(bytes.get(24..32)?.try_into().ok()?);
        let m = match u16(bytes, 6)? {
            1 => Message::Hello { pid: a, segment: b },
            2 => Message::Waker { id: a, token: b },
            3 => Message::Wake { id: a },
            4 => Message::Liveness { slot: a, generation: u32::try_from(b).ok()?, token: c },
            5 => Message::Promote { slot: a, generation: u32::try_from(b).ok()? },
            6 => Message::SwitchToKernel { slot: a, generation: u32::try_from(b).ok()? },
            7 => Message::OldSubflow { slot: a, generation: u32::try_from(b).ok()? },
            8 => {
                Message::PromoteNeighbour { slot: a, generation: u32::try_from(b).ok()?, stamp: u32::try_from(c).ok()? }
            }
            9 => Message::ConfirmNeighbour { slot: a, generation: u32::try_from(b).ok()? },
            10 => Message::HeirWaker { slot: a, generation: u32::try_from(b).ok()? },
            _ => return None,
        };
        // Unused bytes must be zero, since a later version may give them a meaning.
        (m.encode() == *bytes).then_some(m)
    }
}

/// Whether `bytes` come from a NetACC of another version, of which only the magic and the version can be understood.
pub fn is_other_version(bytes: &[u8]) -> bool {
    bytes.get(0..4) == Some(&MAGIC[..]) && u16(bytes, 4).is_some_and(|v| v != VERSION)
}

fn u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_encoded_decodes(a: u32, b: u64, e: u32) {
            for m in [
                Message::Hello { pid: a, segment: b },
                Message::Waker { id: a, token: 0 },
                Message::Waker { id: a, token: b },
                Message::Wake { id: a },
                Message::Liveness { slot: a, generation: e, token: 0 },
                Message::Liveness { slot: a, generation: e, token: b },
                Message::Promote { slot: a, generation: e },
                Message::SwitchToKernel { slot: a, generation: e },
                Message::OldSubflow { slot: a, generation: e },
                Message::PromoteNeighbour { slot: a, generation: e, stamp: a },
                Message::ConfirmNeighbour { slot: a, generation: e },
                Message::HeirWaker { slot: a, generation: e },
            ] {
                prop_assert_eq!(Message::decode(&m.encode()), Some(m));
            }
        }

        #[test]
        fn garbage_never_panics_and_decodes_only_to_itself(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some(m) = Message::decode(&bytes) {
                prop_assert_eq!(&m.encode()[..], &bytes[..]);
            }
        }

        #[test]
        fn other_versions_are_told_from_strangers(version: u16, rest in proptest::collection::vec(any::<u8>(), 0..64)) {
            let text = [&MAGIC[..], &version.to_le_bytes(), &rest].concat();
            prop_assert_eq!(is_other_version(&text), version != VERSION);
            prop_assert!(!is_other_version(&rest) || rest.starts_with(&MAGIC));
        }

        #[test]
        fn one_flipped_bit_in_the_head_is_refused(bit in 0usize..48) {
            let mut b = Message::Wake { id: 7 }.encode();
            b[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Message::decode(&b), None);
        }
    }
}
