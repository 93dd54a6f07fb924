//! The hello of a queue pair, which each side sends in the connection manager's private data while they connect. All
//! numbers are little endian.

use crate::VERSION;
use crate::companion::{CompanionOffer, TOKEN};
use crate::frame::{FRAME, UPGRADE, WINDOW};

/// The size of a [`QpHello`] in bytes.
pub const QP_HELLO: usize = 20 + TOKEN;

const MAGIC: [u8; 4] = *b"NACQ";

/// The hello: what both ends of a queue pair tell each other while they connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpHello {
    /// The number of receives that the sender has posted.
    pub receives: u16,
    /// The size of each receive in bytes.
    pub size: u32,
    /// What the sender says of a companion connection.
    pub companion: CompanionOffer,
}

/// Why a peer's hello or probe cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// It is of a NetACC with another version of the protocol.
    Version,
    /// It is not of a NetACC, or has impossible numbers.
    Garbage,
}

impl QpHello {
    /// Encodes the hello as it is sent.
    #[must_use]
    pub fn encode(self) -> [u8; QP_HELLO] {
        let [v0, v1] = VERSION.to_le_bytes();
        let [r0, r1] = self.receives.to_le_bytes();
        let [p0, p1, kind, token @ ..] = self.companion.encode();
        let head = [v0, v1, r0, r1].into_iter().chain(self.size.to_le_bytes()).chain(WINDOW.to_le_bytes());
        let bytes = MAGIC.into_iter().chain(head).chain([p0, p1, kind, 0]).chain(token);
        let mut out = [0; QP_HELLO];
        out.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        out
    }

    /// The hello at the beginning of private data, which may have zeroes after it (InfiniBand's fields have a fixed
    /// length).
    pub fn decode(data: &[u8]) -> Result<QpHello, Stranger> {
        let [m0, m1, m2, m3, v0, v1, ..] = data else { return Err(Stranger::Garbage) };
        if [*m0, *m1, *m2, *m3] != MAGIC {
            return Err(Stranger::Garbage);
        }
        // Nothing more is known about another version's hello, not even its length.
        if u16::from_le_bytes([*v0, *v1]) != VERSION {
            return Err(Stranger::Version);
        }
        let Some((head, token)) = data.first_chunk::<QP_HELLO>().and_then(|d| d.split_first_chunk::<20>()) else {
            return Err(Stranger::Garbage);
        };
        let [_, _, _, _, _, _, r0, r1, s0, s1, s2, s3, w0, w1, w2, w3, p0, p1, kind, 0] = *head else {
            return Err(Stranger::Garbage);
        };
        if u32::from_le_bytes([w0, w1, w2, w3]) != WINDOW {
            return Err(Stranger::Version);
        }
        let companion = token
            .first_chunk()
            .and_then(|token| CompanionOffer::decode([p0, p1], kind, token))
            .ok_or(Stranger::Garbage)?;
        let hello =
            QpHello { receives: u16::from_le_bytes([r0, r1]), size: u32::from_le_bytes([s0, s1, s2, s3]), companion };
        // One receive is reserved for a message with credits, so there must be another one.
        let usable = hello.receives >= 2 && hello.size as usize >= FRAME + UPGRADE;
        usable.then_some(hello).ok_or(Stranger::Garbage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hellos_survive_padding(
            receives in 2u16.., size in 1024u32.., port in 1u16.., token: [u8; TOKEN], which in 0usize..3,
            zeroes in 0usize..40,
        ) {
            let companion = [CompanionOffer::None, CompanionOffer::Wanted, CompanionOffer::At(port, token)][which];
            let g = QpHello { receives, size, companion };
            let mut data = g.encode().to_vec();
            data.resize(QP_HELLO + zeroes, 0);
            prop_assert_eq!(QpHello::decode(&data), Ok(g));
            data[4] ^= 1;
            prop_assert_eq!(QpHello::decode(&data), Err(Stranger::Version));
            data[0] ^= 1;
            prop_assert_eq!(QpHello::decode(&data), Err(Stranger::Garbage));
        }

        #[test]
        fn garbage_is_no_panic(data in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = QpHello::decode(&data);
        }
    }

    #[test]
    fn hellos_with_impossible_numbers_are_refused() {
        let companion = CompanionOffer::None;
        for g in [QpHello { receives: 1, size: 4096, companion }, QpHello { receives: 4, size: 50, companion }] {
            assert_eq!(QpHello::decode(&g.encode()), Err(Stranger::Garbage));
        }
    }
}
