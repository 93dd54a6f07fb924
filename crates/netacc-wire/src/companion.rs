//! The TCP connection beside a queue pair, its *companion connection*, over which the connections go on if the queue
//! pair fails.
//!
//! The accepting side of a queue pair says in its [`QpHello`](crate::qp_hello::QpHello) at which port it waits, with a
//! token that nobody else knows. The connecting side connects there and sends [`hello`]; the accepting side answers
//! with [`welcome`]. If a packet filter blocks that port, the connecting side asks over the queue pair whether it may
//! come to the listener's own port instead ([`OwnPort`]). Nothing more is sent while the queue pair works. After its
//! failure each side's first message is a [`Kind::Resume`](crate::frame::Kind), which says what it has received, and
//! the other side's messages follow from there on, each preceded by its length ([`LENGTH`] bytes).

use crate::VERSION;

/// The size of a token in bytes.
pub const TOKEN: usize = 16;
/// The size of [`hello`] in bytes.
pub const HELLO: usize = 8 + TOKEN;
/// The size of [`welcome`] in bytes.
pub const WELCOME: usize = 8;
/// The size in bytes of the length that precedes each message.
pub const LENGTH: usize = 4;

const MAGIC: [u8; 4] = *b"NACB";

/// What a side says of a companion connection while the queue pair is being connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompanionOffer {
    /// The side wants no companion connection.
    None,
    /// The connecting side is ready to connect one.
    Wanted,
    /// The accepting side waits at this port for a connection that has the token.
    At(u16, [u8; TOKEN]),
}

impl CompanionOffer {
    /// The port, the kind and the token, as they stand in a hello.
    pub(crate) fn encode(self) -> [u8; 3 + TOKEN] {
        let (port, kind, token) = match self {
            CompanionOffer::None => (0, 0, [0; TOKEN]),
            CompanionOffer::Wanted => (0, 1, [0; TOKEN]),
            CompanionOffer::At(port, token) => (port, 2, token),
        };
        let mut out = [0; 3 + TOKEN];
        out.iter_mut().zip(port.to_le_bytes().into_iter().chain([kind]).chain(token)).for_each(|(to, from)| *to = from);
        out
    }

    pub(crate) fn decode(port: [u8; 2], kind: u8, token: &[u8; TOKEN]) -> Option<CompanionOffer> {
        let port = u16::from_le_bytes(port);
        let nothing = port == 0 && *token == [0; TOKEN];
        match kind {
            0 if nothing => Some(CompanionOffer::None),
            1 if nothing => Some(CompanionOffer::Wanted),
            2 if port != 0 => Some(CompanionOffer::At(port, *token)),
            _ => None,
        }
    }
}

/// The accepting side's answer to the question whether the companion connection may come to the listener's own port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnPort {
    /// It may come: the process looks for it among the connections that its program accepts.
    Come,
    /// Another process may accept it, which knows nothing of the queue pair.
    Shared,
    /// The program waits for a connection by poll(2) and then calls a blocking accept(2), which would find nothing.
    Blocking,
    /// The program does not accept connections there, or no longer does.
    Closed,
}

impl OwnPort {
    /// The number that stands for the answer in a frame.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            OwnPort::Come => 0,
            OwnPort::Shared => 1,
            OwnPort::Blocking => 2,
            OwnPort::Closed => 3,
        }
    }

    /// The answer that a number of a frame stands for; `None` if it stands for none.
    #[must_use]
    pub fn of(code: u32) -> Option<OwnPort> {
        [OwnPort::Come, OwnPort::Shared, OwnPort::Blocking, OwnPort::Closed].into_iter().find(|o| o.code() == code)
    }
}

/// The accepting side's answer to a [`hello`] whose token it has given out.
#[must_use]
pub fn welcome() -> [u8; WELCOME] {
    let mut out = [0; WELCOME];
    let head = MAGIC.into_iter().chain(VERSION.to_le_bytes()).chain([1, 0]);
    out.iter_mut().zip(head).for_each(|(to, from)| *to = from);
    out
}

/// The first bytes that the connecting side sends.
#[must_use]
pub fn hello(token: &[u8; TOKEN]) -> [u8; HELLO] {
    let mut out = [0; HELLO];
    let head = MAGIC.into_iter().chain(VERSION.to_le_bytes()).chain([0, 0]);
    out.iter_mut().zip(head.chain(*token)).for_each(|(to, from)| *to = from);
    out
}

/// The token of a [`hello`]; `None` if the bytes are not one.
#[must_use]
pub fn token(bytes: &[u8; HELLO]) -> Option<[u8; TOKEN]> {
    let token = *bytes.last_chunk::<TOKEN>()?;
    (hello(&token) == *bytes).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_hello_has_its_token(mine: [u8; TOKEN], other: [u8; HELLO], at in 0usize..8) {
            let mut said = hello(&mine);
            prop_assert_eq!(token(&said), Some(mine));
            said[at] ^= 1;
            prop_assert_eq!(token(&said), None);
            if let Some(found) = token(&other) {
                prop_assert_eq!(hello(&found), other);
            }
        }

        #[test]
        fn an_answer_comes_back(code: u32) {
            prop_assert!(OwnPort::of(code).is_none_or(|answer| answer.code() == code));
            prop_assert_eq!(OwnPort::of(code).is_some(), code <= 3);
        }

        #[test]
        fn a_welcome_is_no_hello(token: [u8; TOKEN]) {
            prop_assert_ne!(&hello(&token)[..WELCOME], &welcome()[..]);
        }

        #[test]
        fn what_a_companion_is_comes_back(port: u16, kind: u8, token: [u8; TOKEN]) {
            if let Some(offer) = CompanionOffer::decode(port.to_le_bytes(), kind, &token) {
                let [p0, p1, k, rest @ ..] = offer.encode();
                prop_assert_eq!(([p0, p1], k, rest), (port.to_le_bytes(), kind, token));
            }
        }
    }
}
