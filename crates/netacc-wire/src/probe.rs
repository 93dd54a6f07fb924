//! The probe: the first question of a client, whether a server is reachable by RDMA. It is one UDP datagram, and one
//! comes back.
//!
//! The client sends it to the port at which the server listens for RDMA. The listener answers with the question's
//! nonce, so that nobody can answer without having seen the question; an answer is no longer than a question. All
//! versions have the fields up to the kind, and the nonce, at the same offsets.

use crate::VERSION;
use crate::qp_hello::Stranger;

/// The size of a question, and of an answer, in bytes.
pub const RDMA_PROBE: usize = 24;
/// The size in bytes of the nonce, which an answer repeats.
pub const NONCE: usize = 16;

const MAGIC: [u8; 4] = *b"NAPR";

/// The datagram of a probe or of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaProbe {
    /// The client asks whether a server listens there.
    Question([u8; NONCE]),
    /// A server listens there.
    Answer([u8; NONCE]),
}

impl RdmaProbe {
    /// Encodes the datagram as it is sent.
    #[must_use]
    pub fn encode(self) -> [u8; RDMA_PROBE] {
        let (kind, nonce) = match self {
            RdmaProbe::Question(nonce) => (1, nonce),
            RdmaProbe::Answer(nonce) => (2, nonce),
        };
        let mut out = [0; RDMA_PROBE];
        let all = MAGIC.into_iter().chain(VERSION.to_le_bytes()).chain([kind, 0]).chain(nonce);
        out.iter_mut().zip(all).for_each(|(to, from)| *to = from);
        out
    }

    /// Decodes a received datagram. The error has the datagram too if it is of another version, since its sender must
    /// learn that there is a listener.
    pub fn decode(data: &[u8]) -> Result<RdmaProbe, (Stranger, Option<RdmaProbe>)> {
        let Some((head, nonce)) = data.first_chunk::<RDMA_PROBE>().and_then(|d| d.split_first_chunk::<8>()) else {
            return Err((Stranger::Garbage, None));
        };
        let ([m0, m1, m2, m3, v0, v1, kind, last], Some(nonce)) = (*head, nonce.first_chunk().copied()) else {
            return Err((Stranger::Garbage, None));
        };
        let what = match kind {
            1 if [m0, m1, m2, m3] == MAGIC => RdmaProbe::Question(nonce),
            2 if [m0, m1, m2, m3] == MAGIC => RdmaProbe::Answer(nonce),
            _ => return Err((Stranger::Garbage, None)),
        };
        if u16::from_le_bytes([v0, v1]) != VERSION {
            return Err((Stranger::Version, Some(what)));
        }
        if last != 0 || data.len() != RDMA_PROBE {
            return Err((Stranger::Garbage, None));
        }
        Ok(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_sent_is_understood(nonce: [u8; NONCE]) {
            for what in [RdmaProbe::Question(nonce), RdmaProbe::Answer(nonce)] {
                let mut said = what.encode();
                prop_assert_eq!(RdmaProbe::decode(&said), Ok(what));
                said[4] ^= 1;
                prop_assert_eq!(RdmaProbe::decode(&said), Err((Stranger::Version, Some(what))));
                said[0] ^= 1;
                prop_assert_eq!(RdmaProbe::decode(&said), Err((Stranger::Garbage, None)));
            }
        }

        #[test]
        fn whatever_is_understood_is_what_would_be_sent(data in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(what) = RdmaProbe::decode(&data) {
                prop_assert_eq!(&what.encode()[..], &data[..]);
            }
        }
    }

    #[test]
    fn one_byte_more_or_less_is_garbage() {
        let said = RdmaProbe::Question([7; NONCE]).encode();
        let more: Vec<u8> = said.iter().copied().chain([0]).collect();
        assert_eq!(RdmaProbe::decode(&said[..RDMA_PROBE - 1]), Err((Stranger::Garbage, None)));
        assert_eq!(RdmaProbe::decode(&more), Err((Stranger::Garbage, None)));
    }
}
