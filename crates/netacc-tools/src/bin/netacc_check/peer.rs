//! Says which transport a connection from here to HOST:PORT would get, by the library's own way of looking.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};

use netacc_conf::Config;
use netacc_stats::Reason;
use netacc_tools::holders::{holders, holders_of};
use netacc_tools::kernel_tcp;
use netacc_tools::standing::{self, Standing};
use netacc_transport::shm::owner::{self, Word};
use netacc_transport::shm::rendezvous::{self, NoLink};
use netacc_wire::{Name, Scope};

use crate::facts::Host;
use crate::finding::{Level, Report};
use crate::neighbour::{self, Prospect};
use crate::rdma_probe::{self, Verdict};
use crate::sockets::{self, Rendezvous};

/// The number of source ports for which the kernel is asked which listener it would choose. Of eight listeners that
/// share a port by SO_REUSEPORT one stays unseen with a probability of 1 in 5,000.
const ASKED: u16 = 64;
/// The number of listeners of a group of which the reasons are shown.
const NAMED: usize = 4;
/// The first source port that is asked about: one that clients get.
const FIRST_PORT: u16 = 40_000;

/// A destination as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    host: String,
    port: u16,
}

impl Target {
    /// Reads `HOST:PORT`, `[ADDRESS]:PORT` or `:PORT`. `None` if it is not meant to be one.
    pub(crate) fn parse(text: &str) -> Option<Result<Target, String>> {
        let (host, port) = text.rsplit_once(':').filter(|(host, _)| !host.contains('/'))?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if bare.is_none() && host.contains(':') {
            return Some(Err(format!("\"{text}\": an IPv6 address stands in brackets: [ADDRESS]:PORT")));
        }
        let host = bare.unwrap_or(host);
        let host = if host.is_empty() { "localhost" } else { host };
        match port.parse() {
            Ok(port @ 1..) if port_is_plain(text) => Some(Ok(Target { host: host.to_owned(), port })),
            _ => Some(Err(format!("\"{text}\": the port is \"{port}\"; allowed: 1..=65535"))),
        }
    }
}

/// Digits only: `parse` would take a sign too.
fn port_is_plain(text: &str) -> bool {
    text.bytes().next_back().is_some_and(|b| b.is_ascii_digit()) && !text.contains('+')
}

/// What would become of a connection to one address.
struct Answer {
    dest: SocketAddr,
    level: Level,
    text: String,
    advice: Option<String>,
    /// Somebody listens there, or nobody can tell.
    alive: bool,
    /// What else was found of the way there, each by the name of its check.
    beside: Vec<(&'static str, Verdict)>,
}

/// Judges a destination. A name is judged for each of its addresses, in the order in which programs try them.
pub(crate) fn judge(target: &Target, config: &Config, host: &Host, report: &mut Report) {
    let subject = format!("{}:{}", target.host, target.port);
    let addresses: Vec<SocketAddr> = match (target.host.as_str(), target.port).to_socket_addrs() {
        Ok(addresses) => {
            let mut seen = BTreeSet::new();
            addresses.filter(|address| seen.insert(*address)).collect()
        }
        Err(error) => {
            report
                .add(Level::Fail, subject, "address", format!("no address: {error}"))
                .advice("correct the name, or give the address; 'getent hosts NAME' shows what the system knows");
            return;
        }
    };
    let there = match Rendezvous::read() {
        Ok(there) => there,
        Err(error) => {
            report
                .add(Level::Fail, subject, "transport", format!("cannot be told: /proc/net/unix: {error}"))
                .advice("mount /proc, or ask as a user who may read it");
            return;
        }
    };
    let answers: Vec<Answer> = addresses.iter().map(|dest| answer(*dest, config, &there, host)).collect();
    let any = answers.iter().any(|answer| answer.alive);
    for answer in answers {
        // Of several addresses of a name the ones where nobody listens are tried and left.
        let level = if any && !answer.alive { Level::Note } else { answer.level };
        let detail = report.add(level, answer.dest.to_string(), "transport", answer.text);
        if let Some(advice) = answer.advice.filter(|_| !any || answer.alive) {
            detail.advice(advice);
        }
        for (check, Verdict { level, text, advice }) in answer.beside {
            let detail = report.add(level, answer.dest.to_string(), check, text);
            if let Some(advice) = advice {
                detail.advice(advice);
            }
        }
    }
    if let Some(dest) =
        addresses.iter().find(|dest| rendezvous::local_source(rendezvous::destination(dest.ip())).is_some())
    {
        group(*dest, &there, report);
    }
}

/// What would change a reason, in the manner of the other lines: the text before it has said why.
fn remedy(reason: Reason) -> &'static str {
    reason.why_and_remedy().1.trim_end_matches('.')
}

fn answer(dest: SocketAddr, config: &Config, there: &Rendezvous, host: &Host) -> Answer {
    let stay = |level, text: String, reason: Reason, alive| Answer {
        dest,
        level,
        text,
        advice: Some(remedy(reason).to_owned()),
        alive,
        beside: Vec::new(),
    };
    if matches!(dest.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local()) {
        return stay(Level::Warn, "TCP: a link-local address".into(), Reason::LinkLocal, true);
    }
    let target = SocketAddr::new(rendezvous::destination(dest.ip()), dest.port());
    let Some(source) = rendezvous::local_source(target.ip()) else { return other_host(dest, target, config, host) };
    let listeners = listeners(source, target);
    if listeners.as_ref().is_some_and(BTreeMap::is_empty) {
        return Answer {
            dest,
            level: Level::Fail,
            text: "none: nobody listens there, a connection would be refused".into(),
            advice: Some("start the server, with netacc_run; 'ss -ltn' shows who listens where".into()),
            alive: false,
            beside: Vec::new(),
        };
    }
    if !config.enable_rdma_default {
        return stay(Level::Warn, "TCP: acceleration is switched off".into(), Reason::Disabled, true);
    }
    if config.connect_rdma_percent == 0 {
        return stay(Level::Warn, "TCP: no connection is drawn for acceleration".into(), Reason::PercentDraw, true);
    }
    let mut tried = Vec::new();
    let mut found = None;
    // Of several listeners any that is accelerated; `group` says how many are. Without sock_diag it is one port's answer.
    let ports: Vec<u16> = match listeners {
        None => vec![FIRST_PORT],
        Some(members) => members.into_values().map(|(port, _)| port).collect(),
    };
    for port in ports {
        let looked = rendezvous::search(
            || owner::listener_cookie(SocketAddr::new(source, port), target),
            target,
            None,
            0,
            |name| {
                tried.push(*name);
                found = found.or_else(|| there.inode(name.as_bytes()).filter(|inode| !sockets::is_shut(*inode)));
                Ok::<bool, Infallible>(found.is_some())
            },
        );
        if matches!(looked, Ok(Some(_))) {
            break;
        }
    }
    let Some(inode) = found else {
        if let Some(version) = tried.iter().find_map(|name| there.other_version(name.as_bytes())) {
            let text = format!(
                "TCP: the server's NetACC speaks version {version} of the protocol, this one {}",
                netacc_wire::VERSION
            );
            return stay(Level::Warn, text, Reason::PeerVersion, true);
        }
        let inodes = kernel_tcp::listeners(&kernel_tcp::sockets("self"), target);
        let (text, advice) = without_rendezvous(&inodes);
        return Answer { advice: Some(advice), ..stay(Level::Warn, text, Reason::PeerPlain, true) };
    };
    shared_memory(dest, target, inode, config)
}

/// Why the first of these listeners whose processes may be looked into has no rendezvous, and what would change that.
fn without_rendezvous(inodes: &[u64]) -> (String, String) {
    let holders = holders_of(inodes);
    let known = inodes.iter().filter_map(|inode| holders.get(inode)).find_map(|those| standing::of_listener(those));
    match known {
        None => (
            "TCP: nobody offers shared memory there, and the process that listens cannot be seen".into(),
            "ask again as root, or as the server's user, for the server's own reason".into(),
        ),
        Some(standing) => {
            let who = standing.holder.described();
            let head = if standing.is_without() { "the server there has no NetACC" } else { "the server's own reason" };
            (format!("TCP: {head}: {who} {}", standing.text()), standing.remedy())
        }
    }
}

/// There is a rendezvous; what remains is whether it is believed.
fn shared_memory(dest: SocketAddr, target: SocketAddr, inode: u64, config: &Config) -> Answer {
    let holders = holders(inode);
    let named: Vec<String> = holders.iter().take(4).map(|holder| format!("{} ({})", holder.pid, holder.name)).collect();
    let who = match (named.is_empty(), holders.len()) {
        (true, _) => "a process that you may not look into".to_owned(),
        (false, 1) => format!("process {}", named.join(", ")),
        (false, many) => format!("{many} processes: {}{}", named.join(", "), if many > 4 { ", ..." } else { "" }),
    };
    let uid = sockets::owner(inode).or_else(|| holders.first().map(|holder| holder.uid));
    let make = |level, text: String, advice: Option<&str>| Answer {
        dest,
        level,
        text,
        advice: advice.map(str::to_owned),
        alive: true,
        beside: Vec::new(),
    };
    let word = owner::listener(Some(SocketAddr::new(target.ip(), FIRST_PORT)), target);
    let is_stranger = |uid| {
        let pids = holders.iter().map(|holder| holder.pid).chain(holders.is_empty().then_some(0));
        pids.into_iter().all(|pid| rendezvous::accepts(uid, pid, word) == Err(NoLink::Stranger))
    };
    match uid {
        None => make(
            Level::Note,
            format!("probably shared memory: the rendezvous of {who} is there, but not whose it is"),
            Some("ask again as root"),
        ),
        Some(uid) if is_stranger(uid) => make(
            Level::Warn,
            format!("TCP: the rendezvous is held by user {uid} ({who}), to whom the TCP listener does not belong"),
            Some(remedy(Reason::PeerUid)),
        ),
        Some(uid) => {
            let begins = if config.conn_tcp_first { ", after a beginning on TCP (NACC_CONN_TCP_FIRST)" } else { "" };
            make(
                Level::Ok,
                format!("shared memory{begins}: {who}, user {uid}, listens with NetACC in this network namespace"),
                None,
            )
        }
    }
}

fn other_host(dest: SocketAddr, target: SocketAddr, config: &Config, host: &Host) -> Answer {
    let any: IpAddr = if target.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let way = UdpSocket::bind(SocketAddr::new(any, 0)).and_then(|socket| {
        // Connecting a datagram socket sends nothing.
        socket.connect(target)?;
        socket.local_addr()
    });
    let make = |level, text: String, advice| Answer {
        dest,
        level,
        text,
        advice,
        alive: level < Level::Fail,
        beside: Vec::new(),
    };
    match way {
        Err(error) => make(
            Level::Fail,
            format!("none: there is no way to this address: {error}"),
            Some("look at 'ip route get ADDRESS'".into()),
        ),
        Ok(_) if !config.enable_rdma_default => {
            make(Level::Warn, "TCP: acceleration is switched off".into(), Some(remedy(Reason::Disabled).into()))
        }
        Ok(_) if config.connect_rdma_percent == 0 => make(
            Level::Warn,
            "TCP: no connection is drawn for acceleration".into(),
            Some(remedy(Reason::PercentDraw).into()),
        ),
        Ok(from) => {
            let (mut verdict, mut beside) = rdma_probe::judge(target, config, host);
            // RDMA is tried before a neighbour is looked for.
            if verdict.level != Level::Ok {
                match neighbour::judge(target, config) {
                    Prospect::Way(of) => verdict = of,
                    Prospect::None(why) => beside.push(("host-dir", why)),
                    Prospect::Off => {}
                }
            }
            let Verdict { level, text, advice } = verdict;
            let answer = make(level, format!("{text}; connections leave from {}", from.ip()), advice);
            Answer { beside, ..answer }
        }
    }
}

/// The listeners that a connection could reach, by their cookies, each with a source port for which the kernel chooses it
/// and its inode; `None` if the kernel does not tell (no sock_diag).
fn listeners(source: IpAddr, target: SocketAddr) -> Option<BTreeMap<u64, (u16, u64)>> {
    let mut found = BTreeMap::new();
    for port in (0..ASKED).map(|step| FIRST_PORT + step) {
        // Of a port that is in use, or in TIME_WAIT, the kernel names the connection instead, and the next ports are tried.
        if let Word::Listener(listener) = owner::listener(Some(SocketAddr::new(source, port)), target) {
            found.entry(listener.cookie).or_insert((port, listener.inode.into()));
        }
    }
    (!found.is_empty() || kernel_tells()).then_some(found)
}

/// Whether sock_diag names a listener that is there for certain: one of our own.
fn kernel_tells() -> bool {
    let names = |own: TcpListener| {
        let at = own.local_addr().ok()?;
        owner::listener_cookie(SocketAddr::new(at.ip(), FIRST_PORT), at)
    };
    let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
    loopback.into_iter().any(|ip| TcpListener::bind((ip, 0)).ok().and_then(names).is_some())
}

/// Several listeners on one port: how many of them are accelerated.
fn group(dest: SocketAddr, there: &Rendezvous, report: &mut Report) {
    let target = SocketAddr::new(rendezvous::destination(dest.ip()), dest.port());
    let Some(source) = rendezvous::local_source(target.ip()) else { return };
    let members = listeners(source, target).unwrap_or_default();
    if members.len() < 2 {
        return;
    }
    let has = |cookie: &&u64| {
        let name = |place| Name::at(Scope::One(**cookie), dest.port(), place);
        (0..rendezvous::PLACES)
            .any(|place| there.inode(name(place).as_bytes()).is_some_and(|inode| !sockets::is_shut(inode)))
    };
    let (all, with) = (members.len(), members.keys().filter(has).count());
    let text = format!("{all} listeners share the port (SO_REUSEPORT), {with} of them take accelerated connections");
    if with == all {
        report.add(Level::Ok, dest.to_string(), "group", text);
        return;
    }
    let others: Vec<u64> = members.iter().filter(|(cookie, _)| !has(cookie)).map(|(_, (_, inode))| *inode).collect();
    let holders = holders_of(&others);
    let each: Vec<Standing> =
        others.iter().filter_map(|inode| standing::of_listener(holders.get(inode)?)).take(NAMED).collect();
    let texts: Vec<String> = each.iter().map(|s| format!("{} {}", s.holder.described(), s.text())).collect();
    let advice: BTreeSet<String> = each.iter().map(Standing::remedy).collect();
    let advice = if advice.is_empty() {
        "start all of them with netacc_run; as root you see which do not have it".into()
    } else {
        advice.into_iter().collect::<Vec<_>>().join("; ")
    };
    let text = if texts.is_empty() { text } else { format!("{text}: {}", texts.join("; ")) };
    report.add(Level::Warn, dest.to_string(), "group", text).advice(advice);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Result<(String, u16), String>> {
        Target::parse(text).map(|target| target.map(|target| (target.host, target.port)))
    }

    #[test]
    fn destinations() {
        for (text, host, port) in [
            ("localhost:6379", "localhost", 6379),
            ("10.0.0.1:1", "10.0.0.1", 1),
            ("[::1]:65535", "::1", 65535),
            (":80", "localhost", 80),
        ] {
            assert_eq!(parse(text), Some(Ok((host.into(), port))), "{text}");
        }
        for text in ["redis-server", "./a:1", "/x:80", ""] {
            assert_eq!(parse(text), None, "{text}");
        }
        for (text, wanted) in [
            ("a:0", "the port is \"0\"; allowed: 1..=65535"),
            ("a:65536", "\"65536\""),
            ("a:+80", "\"+80\""),
            ("a:http", "\"http\""),
            ("a:", "\"\""),
            ("::1:80", "[ADDRESS]:PORT"),
        ] {
            assert!(parse(text).unwrap().unwrap_err().contains(wanted), "{text}");
        }
    }

    fn look(target: &str, config: &Config) -> Vec<(Level, String)> {
        let mut report = Report::default();
        judge(&Target::parse(target).unwrap().unwrap(), config, &Host::default(), &mut report);
        report.findings.into_iter().map(|finding| (finding.level, finding.text)).collect()
    }

    #[test]
    fn plain_listener_and_none() {
        let config = Config::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap().to_string();
        let found = look(&target, &config);
        assert_eq!((found.len(), found[0].0), (1, Level::Warn));
        assert!(found[0].1.starts_with("TCP: the server there has no NetACC"), "{found:?}");
        // Nobody connected to it.
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err());
        drop(listener);
        let found = look(&target, &config);
        assert_eq!(found[0].0, Level::Fail, "{found:?}");
        assert!(found[0].1.contains("nobody listens"));
    }

    #[test]
    fn names_and_addresses_that_lead_nowhere() {
        let config = Config::default();
        let found = look("no-such-name.invalid:80", &config);
        assert!(found[0].0 == Level::Fail && found[0].1.starts_with("no address: "), "{found:?}");
        let found = look("[fe80::1]:80", &config);
        assert!(found[0].1.starts_with("TCP: a link-local"), "{found:?}");
    }
}
