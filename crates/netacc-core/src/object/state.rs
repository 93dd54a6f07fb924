//! The states of a socket, with the substates of candidates and listeners.
//!
//! The state is one word ([`Socket::state`](crate::object::socket::Socket::state)), so a thread that loads it without a
//! lock sees a consistent state. Facts that hold in several states, such as O_NONBLOCK, are flags of the socket.

use crate::machine::{Edge, allows};

/// The path that a socket is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Path {
    /// Not connected and not listening.
    New = 0,
    /// A kernel socket: every call passes through, except on a candidate.
    Tcp = 1,
    /// A connection with an endpoint in shared memory.
    Shm = 2,
    /// A listener with a rendezvous.
    Listener = 3,
}

/// State of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnState {
    /// Neither connected nor listening.
    New,
    /// Unconnected after a connection was dissolved: its kernel socket shows a port that it does not hold.
    Aborted,
    /// Unconnected, and other processes may have the socket: another program made it, or this one has forked or passed it
    /// on. Only the kernel can connect it, since only the kernel can show all of them that it is connected.
    InheritedNew,
    /// A kernel socket that other processes may have. Once it listens and this program waits on it, it gets a rendezvous
    /// ([`crate::listen::adopt`]).
    InheritedTcp,
    /// A kernel socket, which stays one if it is connected.
    Tcp,
    /// A kernel socket that replaced a ring and stays. Its addresses are not those of the connection.
    Demoted,
    /// A connection on kernel TCP that may switch to a ring. Its reads and writes do not pass to libc.
    Candidate(Upgrade),
    /// An accelerated connection: over shared memory, or over RDMA through a ring.
    Shm,
    /// A listener with a rendezvous.
    Listener(ListenState),
}

/// Progress of a candidate towards a ring ([`crate::switch::promote`] within a host, [`crate::switch::upgrade`] to
/// another one).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Upgrade {
    /// At a server with a client on this host: the client may offer a promotion.
    AwaitOffer = 0,
    /// At a server with a client on another host: the client may request the upgrade.
    AwaitRequest = REMOTE,
    /// At a server with a client on another host: the client may switch at the next byte to be read, to the socket's
    /// endpoint.
    Prepared = REMOTE + 1,
    /// At a client of a server on this host: the offer is yet to be made.
    ToOffer = CLIENT,
    /// At a client of a server on this host: a thread is making the offer.
    Linking = CLIENT + 1,
    /// At a client of a server on this host: the offer was made, for the socket's endpoint.
    Offered = CLIENT + 2,
    /// At a client of a server on another host: the request is yet to be sent.
    ToRequest = CLIENT + REMOTE,
    /// At a client of a server on another host: the request was sent, and is not answered yet.
    Requested = CLIENT + REMOTE + 1,
}

/// Added to the number of an [`Upgrade`] whose other end is on another host.
const REMOTE: u32 = 4;
/// Added to the number of an [`Upgrade`] at the client.
const CLIENT: u32 = 8;

/// Whether clients on other hosts find a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ListenState {
    /// The program has not waited on the listener, so clients on other hosts do not find it yet.
    Dormant = 0,
    /// The program waits on the listener, and it is registered with the RDMA engines.
    Announced = 1,
    /// The program waits on the listener, and clients on other hosts do not find it because there is no RDMA device.
    Unheard = 2,
}

/// The variants of [`ConnState`] without their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    New,
    Aborted,
    InheritedNew,
    InheritedTcp,
    Tcp,
    Demoted,
    Candidate,
    Shm,
    Listener,
}

/// Allowed transitions of a socket. Every state ends with the last reference to the socket.
const CONNECTION: &[Edge<Kind>] = &[
    (None, Some(Kind::New), "socket(2)"),
    (None, Some(Kind::Tcp), "accept(2) by TCP"),
    (None, Some(Kind::Candidate), "accept(2) by TCP, the client may go over"),
    (None, Some(Kind::Demoted), "the library before this one had demoted it"),
    (None, Some(Kind::InheritedNew), "an unconnected socket came from another program"),
    (None, Some(Kind::InheritedTcp), "a listener came from another program"),
    (Some(Kind::New), Some(Kind::Shm), "connect(2) or accept(2) in shared memory"),
    (Some(Kind::New), Some(Kind::Tcp), "a call that only the kernel can serve"),
    (Some(Kind::New), Some(Kind::InheritedNew), "a fork, or another process gets it"),
    (Some(Kind::Aborted), Some(Kind::New), "connect(2) again"),
    (Some(Kind::Aborted), Some(Kind::Tcp), "a call that only the kernel can serve"),
    (
        Some(Kind::InheritedNew),
        Some(Kind::InheritedTcp),
        "listen(2), connect(2), or a call that only the kernel can serve",
    ),
    (Some(Kind::InheritedNew), Some(Kind::Listener), "the program waits on it, and it listens"),
    (Some(Kind::InheritedNew), Some(Kind::New), "the program waits on it, and there is no rendezvous"),
    (Some(Kind::InheritedTcp), Some(Kind::Tcp), "it is connected, or there is no rendezvous"),
    (Some(Kind::InheritedTcp), Some(Kind::Listener), "the program waits on it, and it listens"),
    (Some(Kind::Tcp), Some(Kind::New), "connect(2) is refused"),
    (Some(Kind::Tcp), Some(Kind::InheritedTcp), "a fork, while the listener is the kernel's alone"),
    (Some(Kind::Tcp), Some(Kind::Candidate), "connect(2) by TCP first"),
    (Some(Kind::Tcp), Some(Kind::Listener), "listen(2)"),
    (Some(Kind::Candidate), Some(Kind::Shm), "goes over to its ring"),
    (Some(Kind::Candidate), Some(Kind::Tcp), "is given up"),
    (Some(Kind::Candidate), Some(Kind::Demoted), "is given up, and was in a ring before"),
    (Some(Kind::Shm), Some(Kind::Demoted), "leaves the ring"),
    (Some(Kind::Shm), Some(Kind::Candidate), "leaves the ring for now"),
    (Some(Kind::Shm), Some(Kind::Tcp), "a queued connect is made by TCP, or is the parent's"),
    (Some(Kind::Shm), Some(Kind::Aborted), "connect(2) with AF_UNSPEC, or after the end"),
    (Some(Kind::Shm), Some(Kind::New), "the connect could not be queued"),
    (Some(Kind::Listener), Some(Kind::New), "the kernel's alone, or an ordinary socket again"),
    (Some(Kind::Listener), Some(Kind::InheritedTcp), "the kernel's alone, and only other processes serve it"),
];

/// Allowed transitions of a candidate. The candidacy may be given up in each of these states, which ends it.
const UPGRADE: &[Edge<Upgrade>] = &[
    (None, Some(Upgrade::AwaitOffer), "accept(2) of a client on this host, or the ring is left for now"),
    (Some(Upgrade::AwaitOffer), None, "the offer is taken"),
    (None, Some(Upgrade::AwaitRequest), "accept(2) of a client on another host"),
    (Some(Upgrade::AwaitRequest), Some(Upgrade::Prepared), "the client asks at the byte that is read next"),
    (Some(Upgrade::Prepared), Some(Upgrade::AwaitRequest), "the client stays"),
    (Some(Upgrade::Prepared), None, "the client's token comes"),
    (None, Some(Upgrade::ToOffer), "connect(2) to this host, or the ring is left for now"),
    (Some(Upgrade::ToOffer), Some(Upgrade::Linking), "the kernel has connected"),
    (Some(Upgrade::Linking), Some(Upgrade::Offered), "there is a place for it on a link"),
    (Some(Upgrade::Linking), Some(Upgrade::ToOffer), "the server is not back"),
    (Some(Upgrade::Offered), Some(Upgrade::Linking), "the link takes no offer"),
    (Some(Upgrade::Offered), Some(Upgrade::ToOffer), "another process may have it"),
    (Some(Upgrade::Offered), None, "the offer was taken"),
    (None, Some(Upgrade::ToRequest), "connect(2) to another host"),
    (Some(Upgrade::ToRequest), Some(Upgrade::Requested), "the question is put"),
    (Some(Upgrade::Requested), Some(Upgrade::ToRequest), "no, or not yet"),
    (Some(Upgrade::Requested), None, "the token is said"),
];

/// Allowed transitions of a listener.
const LISTENER: &[Edge<ListenState>] = &[
    (None, Some(ListenState::Dormant), "there is a rendezvous"),
    (Some(ListenState::Dormant), Some(ListenState::Announced), "the program waits on it"),
    (Some(ListenState::Announced), Some(ListenState::Unheard), "no RDMA device listens"),
    (Some(ListenState::Unheard), Some(ListenState::Dormant), "a client came by TCP some time later"),
    (Some(ListenState::Dormant), None, "the listener ends"),
    (Some(ListenState::Announced), None, "the listener ends"),
    (Some(ListenState::Unheard), None, "the listener ends"),
];

/// Mask of the word's bits that are the [`Path`].
pub(super) const PATH: u32 = 3;
/// Bit that is set in the word of a candidate.
pub(super) const CANDIDATE: u32 = 1 << 2;
/// Bit that is set in the word of a socket that another program made, and on which this one has not waited.
pub(super) const INHERITED: u32 = 1 << 3;
/// Bit that is set in the word of a dormant listener.
pub(super) const DORMANT: u32 = 1 << 4;
/// Position in the word of the number that tells the states of one path apart.
const NUMBER: u32 = 5;

impl ConnState {
    /// Encodes the state in a word.
    #[inline]
    pub(super) const fn encode(self) -> u32 {
        let (path, marks, number) = match self {
            ConnState::New => (Path::New, 0, 0),
            ConnState::Aborted => (Path::New, 0, 1),
            ConnState::InheritedNew => (Path::New, INHERITED, 0),
            ConnState::InheritedTcp => (Path::Tcp, INHERITED, 0),
            ConnState::Tcp => (Path::Tcp, 0, 0),
            ConnState::Demoted => (Path::Tcp, 0, 1),
            ConnState::Candidate(u) => (Path::Tcp, CANDIDATE, u as u32),
            ConnState::Shm => (Path::Shm, 0, 0),
            ConnState::Listener(ListenState::Dormant) => (Path::Listener, DORMANT, 0),
            ConnState::Listener(l) => (Path::Listener, 0, l as u32),
        };
        path as u32 | marks | number << NUMBER
    }

    /// Decodes a word that [`ConnState::encode`] made.
    #[inline]
    pub(super) const fn decode(word: u32) -> ConnState {
        let number = word >> NUMBER;
        match (Path::decode(word), word & (CANDIDATE | INHERITED | DORMANT), number) {
            (Path::New, INHERITED, _) => ConnState::InheritedNew,
            (Path::New, _, 1) => ConnState::Aborted,
            (Path::New, ..) => ConnState::New,
            (Path::Tcp, INHERITED, _) => ConnState::InheritedTcp,
            (Path::Tcp, CANDIDATE, n) => ConnState::Candidate(Upgrade::decode(n)),
            (Path::Tcp, _, 1) => ConnState::Demoted,
            (Path::Tcp, ..) => ConnState::Tcp,
            (Path::Shm, ..) => ConnState::Shm,
            (Path::Listener, DORMANT, _) => ConnState::Listener(ListenState::Dormant),
            (Path::Listener, _, 2) => ConnState::Listener(ListenState::Unheard),
            (Path::Listener, ..) => ConnState::Listener(ListenState::Announced),
        }
    }

    const fn kind(self) -> Kind {
        match self {
            ConnState::New => Kind::New,
            ConnState::Aborted => Kind::Aborted,
            ConnState::InheritedNew => Kind::InheritedNew,
            ConnState::InheritedTcp => Kind::InheritedTcp,
            ConnState::Tcp => Kind::Tcp,
            ConnState::Demoted => Kind::Demoted,
            ConnState::Candidate(_) => Kind::Candidate,
            ConnState::Shm => Kind::Shm,
            ConnState::Listener(_) => Kind::Listener,
        }
    }

    const fn upgrade(self) -> Option<Upgrade> {
        match self {
            ConnState::Candidate(u) => Some(u),
            _ => None,
        }
    }

    const fn listen_state(self) -> Option<ListenState> {
        match self {
            ConnState::Listener(l) => Some(l),
            _ => None,
        }
    }

    /// Decodes the listener state of a listener's word.
    #[inline]
    pub(super) const fn listening(word: u32) -> Option<ListenState> {
        if word & PATH == Path::Listener as u32 { ConnState::decode(word).listen_state() } else { None }
    }

    /// Whether a socket may change to this state from `before`; `None`: it was just made.
    pub(super) fn may_follow(self, before: Option<ConnState>) -> bool {
        let upgrade = (before.and_then(ConnState::upgrade), self.upgrade());
        let given_up = matches!(self, ConnState::Tcp | ConnState::Demoted);
        allows(CONNECTION, &before.map(ConnState::kind), &Some(self.kind()))
            && (given_up || allows(UPGRADE, &upgrade.0, &upgrade.1))
            && allows(LISTENER, &before.and_then(ConnState::listen_state), &self.listen_state())
    }
}

impl Path {
    #[inline]
    pub(super) const fn decode(word: u32) -> Path {
        match word & PATH {
            1 => Path::Tcp,
            2 => Path::Shm,
            3 => Path::Listener,
            _ => Path::New,
        }
    }
}

impl Upgrade {
    #[inline]
    const fn decode(number: u32) -> Upgrade {
        match number {
            4 => Upgrade::AwaitRequest,
            5 => Upgrade::Prepared,
            8 => Upgrade::ToOffer,
            9 => Upgrade::Linking,
            10 => Upgrade::Offered,
            12 => Upgrade::ToRequest,
            13 => Upgrade::Requested,
            _ => Upgrade::AwaitOffer,
        }
    }

    /// Decodes the upgrade state of a candidate's word.
    #[inline]
    pub(super) const fn of(word: u32) -> Option<Upgrade> {
        if word & CANDIDATE == 0 { None } else { Some(Upgrade::decode(word >> NUMBER)) }
    }

    /// Whether the other end is on another host.
    pub fn is_remote(self) -> bool {
        self as u32 & REMOTE != 0
    }

    /// Whether this end is the client, which makes the offer or sends the request.
    pub fn is_client(self) -> bool {
        self as u32 & CLIENT != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::assert_shown;

    fn all() -> Vec<ConnState> {
        let mut all = vec![
            ConnState::New,
            ConnState::Aborted,
            ConnState::InheritedNew,
            ConnState::InheritedTcp,
            ConnState::Tcp,
            ConnState::Demoted,
            ConnState::Shm,
        ];
        all.extend((0..16).map(Upgrade::decode).map(ConnState::Candidate));
        all.extend([ListenState::Dormant, ListenState::Announced, ListenState::Unheard].map(ConnState::Listener));
        all
    }

    #[test]
    fn the_documents_show_the_tables() {
        assert_shown("switch.md", CONNECTION);
        assert_shown("switch.md", UPGRADE);
        assert_shown("switch.md", LISTENER);
    }

    #[test]
    fn a_word_is_one_state() {
        for s in all() {
            assert_eq!(ConnState::decode(s.encode()), s);
            assert_eq!(s.encode() & CANDIDATE != 0, s.upgrade().is_some(), "{s:?}");
            assert_eq!(Upgrade::of(s.encode()), s.upgrade());
            assert_eq!(ConnState::listening(s.encode()), s.listen_state());
        }
        assert_eq!(ConnState::Shm.encode(), Path::Shm as u32);
        assert_eq!(ConnState::New.encode(), 0, "a fresh object's word");
    }

    #[test]
    fn each_table_judges_its_part() {
        let candidate = ConnState::Candidate;
        assert!(candidate(Upgrade::ToOffer).may_follow(Some(ConnState::Tcp)));
        assert!(!candidate(Upgrade::Offered).may_follow(Some(ConnState::Tcp)), "no offer was made");
        assert!(ConnState::Shm.may_follow(Some(candidate(Upgrade::Offered))));
        assert!(!ConnState::Shm.may_follow(Some(candidate(Upgrade::ToOffer))), "nothing was offered");
        assert!(ConnState::Tcp.may_follow(Some(candidate(Upgrade::ToOffer))), "each may be given up");
        assert!(!candidate(Upgrade::Requested).may_follow(Some(candidate(Upgrade::Offered))), "another host's");
        assert!(ConnState::Listener(ListenState::Dormant).may_follow(Some(ConnState::Tcp)));
        assert!(!ConnState::Listener(ListenState::Announced).may_follow(Some(ConnState::Tcp)), "nobody waits on it");
        assert!(ConnState::New.may_follow(Some(ConnState::Listener(ListenState::Unheard))));
        assert!(!ConnState::Shm.may_follow(Some(ConnState::Demoted)), "a demoted connection does not come back");
        assert!(candidate(Upgrade::ToOffer).may_follow(Some(ConnState::Shm)), "unless an operator demoted it");
        assert!(!candidate(Upgrade::Offered).may_follow(Some(ConnState::Shm)), "no offer was made");
        assert!(ConnState::New.may_follow(None) && !ConnState::Shm.may_follow(None));
    }
}
