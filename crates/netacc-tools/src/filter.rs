//! Which sockets are meant: an expression as ss(8) has it, such as `state established and ( dport = :6379 or reason =
//! plain-client )`.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::net::IpAddr;

use netacc_stats::{Reason, SockAddr, State, Transport};
use netacc_stats_reader::{Snapshot, Sock};

use crate::args::who::Who;
use crate::text::clean;

mod reader;

/// An expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// All of them hold.
    All(Vec<Filter>),
    /// At least one of them holds.
    Any(Vec<Filter>),
    /// It does not hold.
    Not(Box<Filter>),
    /// What a socket is tested for.
    Test(Test),
}

/// What a socket is tested for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// It is in one of these states.
    State(&'static [State]),
    /// Its own port, or that of the other end, compares so.
    Port(End, Comparison, u16),
    /// Its own address, or that of the other end, is in a network.
    Address(End, Network),
    /// It uses this transport.
    Transport(Transport),
    /// It has this reason for not using a faster one.
    Reason(Reason),
    /// Its process is called so.
    Program(Who),
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The socket's own.
    Local,
    /// The other one.
    Peer,
}

/// How two numbers compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// They are equal.
    Equal,
    /// They differ.
    Unequal,
    /// The first is smaller.
    Less,
    /// The first is not greater.
    AtMost,
    /// The first is greater.
    Greater,
    /// The first is not smaller.
    AtLeast,
}

/// A part of all addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// An address, and how many of its bits count; `None` for every address.
    ip: Option<(IpAddr, u8)>,
    /// One port; `None` for every port.
    port: Option<u16>,
}

/// A mistake in an expression, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    line: String,
    at: usize,
    text: String,
}

/// Displays the mistake, and below it the expression with a mark at the place.
impl Display for Mistake {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let line = clean(&self.line);
        let before = self.line.get(..self.at).map_or(0, |before| clean(before).chars().count());
        write!(f, "filter: {}\n  {line}\n  {:before$}^", self.text, "")
    }
}

/// Whether a word of the command line begins an expression. A process of such a name is named after `-p`.
#[must_use]
pub fn begins(word: &str) -> bool {
    const WORDS: [&str; 10] =
        ["state", "exclude", "sport", "dport", "src", "dst", "transport", "reason", "program", "not"];
    let first = word.split(|c: char| c.is_whitespace() || "=<>!".contains(c)).next().unwrap_or_default();
    WORDS.contains(&first) || word.starts_with(['(', '!'])
}

/// Reads an expression from the words of a command line.
///
/// # Errors
///
/// What is wrong, and where.
pub fn parse<W: AsRef<str>>(words: &[W]) -> Result<Filter, Mistake> {
    let line = words.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(" ");
    reader::expression(&line)
}

/// The words that an expression has, each with those that may follow it, for completions.
#[must_use]
pub fn words() -> Vec<(&'static str, Vec<&'static str>)> {
    let states: Vec<&str> = reader::STATES.iter().map(|(name, _)| *name).collect();
    let mut words = vec![("state", states.clone()), ("exclude", states)];
    words.push(("reason", Reason::ALL.iter().map(|reason| reason.name()).collect()));
    words.push(("transport", vec!["tcp", "shm", "rdma"]));
    words.extend(["sport", "dport", "src", "dst", "program", "not"].map(|word| (word, Vec::new())));
    words
}

impl Filter {
    /// Whether it holds for a socket of a process.
    #[must_use]
    pub fn fits(&self, page: &Snapshot, sock: &Sock) -> bool {
        match self {
            Self::All(all) => all.iter().all(|one| one.fits(page, sock)),
            Self::Any(any) => any.iter().any(|one| one.fits(page, sock)),
            Self::Not(one) => !one.fits(page, sock),
            Self::Test(test) => test.holds(page, sock),
        }
    }

    /// A copy of the page with the sockets for which it holds.
    #[must_use]
    pub fn of(&self, page: &Snapshot) -> Snapshot {
        let socks = page.socks.iter().filter(|sock| self.fits(page, sock)).copied().collect();
        Snapshot { socks, ..page.clone() }
    }
}

impl Test {
    fn holds(&self, page: &Snapshot, sock: &Sock) -> bool {
        match self {
            Self::State(states) => sock.state.get().is_some_and(|state| states.contains(&state)),
            Self::Port(end, comparison, port) => {
                let addr = end.of(sock);
                addr.ip().is_some() && comparison.holds(addr.port, *port)
            }
            Self::Address(end, network) => network.has(end.of(sock)),
            Self::Transport(transport) => sock.transport.get() == Some(*transport),
            Self::Reason(reason) => {
                // While a socket is on a fast transport, the reason of an earlier one is not shown either.
                let is_fast = sock.transport.get().is_some_and(Transport::is_fast);
                let shown = if is_fast { Some(Reason::None) } else { sock.reason.get() };
                shown == Some(*reason)
            }
            Self::Program(who) => who.means(page.pid, &page.program),
        }
    }
}

impl End {
    fn of(self, sock: &Sock) -> &SockAddr {
        match self {
            Self::Local => &sock.local,
            Self::Peer => &sock.peer,
        }
    }
}

impl Comparison {
    fn holds(self, a: u16, b: u16) -> bool {
        match self {
            Self::Equal => a == b,
            Self::Unequal => a != b,
            Self::Less => a < b,
            Self::AtMost => a <= b,
            Self::Greater => a > b,
            Self::AtLeast => a >= b,
        }
    }

    fn named(text: &str) -> Option<Self> {
        Some(match text {
            "=" | "==" | "eq" => Self::Equal,
            "!=" | "ne" | "neq" => Self::Unequal,
            "<" | "lt" => Self::Less,
            "<=" | "le" | "leq" => Self::AtMost,
            ">" | "gt" => Self::Greater,
            ">=" | "ge" | "geq" => Self::AtLeast,
            _ => return None,
        })
    }
}

impl Network {
    fn has(&self, addr: &SockAddr) -> bool {
        let Some(ip) = addr.ip() else { return false };
        self.port.is_none_or(|port| port == addr.port)
            && self.ip.is_none_or(|(own, bits)| is_within(ip.to_canonical(), own, bits))
    }

    /// `ADDRESS`, `ADDRESS/BITS`, either with `:PORT`; `[IPV6]`; `*` or nothing for every address.
    fn parse(text: &str) -> Option<Self> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Some(Self { ip: Some(whole(ip)), port: None });
        }
        let (ip, port) = match text.rsplit_once(':') {
            // A colon within an IPv6 address that has bits behind it.
            Some((_, after)) if after.contains(['/', ']']) => (text, None),
            Some((ip, port)) => (ip, Some(port)),
            None => (text, None),
        };
        let port = port.filter(|port| *port != "*").map(number_of_port).transpose().ok()?;
        if ip.is_empty() || ip == "*" {
            return Some(Self { ip: None, port });
        }
        let (ip, bits) = ip.split_once('/').map_or((ip, None), |(ip, bits)| (ip, Some(bits)));
        let ip = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(ip);
        let (ip, most) = whole(ip.parse().ok()?);
        let bits = bits.map_or(Ok(most), str::parse).ok().filter(|bits| *bits <= most)?;
        Some(Self { ip: Some((ip, bits)), port })
    }
}

/// An address with all of its bits.
fn whole(ip: IpAddr) -> (IpAddr, u8) {
    let ip = ip.to_canonical();
    (ip, if ip.is_ipv4() { 32 } else { 128 })
}

fn is_within(ip: IpAddr, network: IpAddr, bits: u8) -> bool {
    let differs = |a: u128, b: u128, size: u32| (a ^ b).checked_shr(size.saturating_sub(bits.into())).unwrap_or(0) != 0;
    match (ip, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => !differs(a.to_bits().into(), b.to_bits().into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => !differs(a.to_bits(), b.to_bits(), 128),
        _ => false,
    }
}

/// A port by its number, or by its name in services(5).
fn number_of_port(text: &str) -> Result<u16, ()> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map_err(|_| ());
    }
    let services = fs::read_to_string("/etc/services").unwrap_or_default();
    let port = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let (name, place) = (words.next()?, words.next()?);
        let is_it = name == text || words.any(|alias| alias == text);
        place.strip_suffix("/tcp").filter(|_| is_it)?.parse().ok()
    };
    services.lines().find_map(port).ok_or(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_stats_reader::Known;
    use proptest::prelude::*;

    fn read(text: &str) -> Filter {
        parse(&[text]).unwrap_or_else(|mistake| panic!("{mistake}"))
    }

    fn wrong(text: &str) -> (usize, String) {
        let mistake = parse(&[text]).unwrap_err();
        (mistake.at, mistake.text)
    }

    fn socket(local: SockAddr, peer: SockAddr, state: State, transport: Transport, reason: Reason) -> Sock {
        Sock {
            fd: 7,
            state: Known::Is(state),
            transport: Known::Is(transport),
            reason: Known::Is(reason),
            local,
            peer,
            peer_pid: 0,
            rule: None,
            link: 0,
            since_ns: 0,
            msgs_in: 0,
            bytes_in: 0,
            msgs_out: 0,
            bytes_out: 0,
        }
    }

    fn page() -> Snapshot {
        static PAGE: std::sync::LazyLock<rustix::fd::OwnedFd> =
            std::sync::LazyLock::new(|| netacc_stats::init(b"redis-server", std::process::id()).unwrap());
        netacc_stats_reader::read_fd(&*PAGE).unwrap()
    }

    #[test]
    fn sockets_that_fit() {
        let local = SockAddr::v4([127, 0, 0, 1], 6379);
        let peer = SockAddr::v4([10, 1, 2, 3], 40000);
        let sock = socket(local, peer, State::Established, Transport::Tcp, Reason::PlainClient);
        let page = page();
        for (text, fits) in [
            ("state established", true),
            ("state listening", false),
            ("exclude estab", false),
            ("sport = :6379", true),
            ("sport 6379", true),
            ("( sport = :6379 or dport = :6379 )", true),
            ("dport >= :1024 dport lt 40001", true),
            ("sport!=6379", false),
            ("src 127.0.0.0/8 and dst 10.1.0.0/16", true),
            ("dst 10.1.2.3:40000", true),
            ("dst 10.1.2.3:40001", false),
            ("dst != 10.1.2.4", true),
            ("src ::1", false),
            ("src [::ffff:127.0.0.1]:6379", true),
            ("src :6379", true),
            ("src *", true),
            ("transport tcp", true),
            ("transport = SHM", false),
            ("reason plain-client", true),
            ("reason != plain-client", false),
            ("program redis-server", true),
            ("program redis* and not state listening", true),
            ("program nginx", false),
            ("!transport shm && !(reason none || reason rule)", true),
            ("state listening or state established and transport shm", false),
        ] {
            assert_eq!(read(text).fits(&page, &sock), fits, "{text}");
        }
        let listener = socket(local, SockAddr::default(), State::Listening, Transport::Shm, Reason::PlainClient);
        for (text, fits) in [("dport != 80", false), ("not dport = 80", true), ("reason none", true), ("dst *", false)]
        {
            assert_eq!(read(text).fits(&page, &listener), fits, "{text}");
        }
    }

    #[test]
    fn a_mistake_has_its_place() {
        for (text, at, words) in [
            ("state", 5, "expected a state: all"),
            ("state open", 6, "expected a state"),
            ("state listening sport = x-y", 24, "expected a port"),
            ("src = 1.2.3", 6, "expected an address"),
            ("src 1.2.3.4/33", 4, "expected an address"),
            ("transport udp", 10, "tcp, shm or rdma"),
            ("reason because", 7, "expected a reason: none, disabled"),
            ("reason < rule", 7, "only = and !="),
            ("( state listening", 17, "\")\" is missing"),
            ("state listening )", 16, "\")\" is not expected"),
            ("state listening and", 19, "expected state, exclude"),
            ("state listening sprot 80", 16, "expected state, exclude"),
            ("sport = 65536", 8, "expected a port"),
        ] {
            let (place, said) = wrong(text);
            assert!(place == at && said.contains(words), "{text}: {place} {said}");
        }
        let shown = parse(&["sport", "=", "\x1b[2J"]).unwrap_err().to_string();
        assert_eq!(
            shown,
            "filter: expected a port, from 0 to 65535 or the name of a service\n  sport = \\u{1b}[2J\n          ^"
        );
        assert!(parse(&["("; 1000]).unwrap_err().to_string().contains("too deeply"));
    }

    #[test]
    fn what_begins_a_filter() {
        for word in ["state", "sport=80", "(", "(state", "!", "program"] {
            assert!(begins(word), "{word}");
        }
        for word in ["redis-server", "12", "all", "states", ""] {
            assert!(!begins(word), "{word}");
        }
    }

    proptest! {
        #[test]
        fn any_words_end(words in prop::collection::vec("[ -~é]{0,12}", 0..8)) {
            let _ = parse(&words).map_err(|mistake| mistake.to_string());
        }
    }
}
