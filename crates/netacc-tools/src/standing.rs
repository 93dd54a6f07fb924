//! What a process makes of a TCP socket that it holds, as its statistics page says. Both ends decide about a connection,
//! so advice about it is true only if the other end was asked as well.

use std::fs;
use std::path::Path;

use netacc_stats::{ControlState, Reason, State, Transport};
use netacc_stats_reader::{self as reader, Error, Known, Process, Snapshot, Sock};

use crate::before_page;
use crate::holders::Holder;
use crate::program::{self, Obstacle};

const ENABLE: &str = "NACC_ENABLE_RDMA_DEFAULT";

/// What a process that holds a socket makes of it.
#[derive(Debug)]
pub struct Standing {
    /// The process.
    pub holder: Holder,
    /// Whether the socket listens.
    listens: bool,
    what: What,
}

/// The variants stand in the order in which they are preferred: of several processes that share a socket, the one that
/// knows most about it speaks for all.
#[derive(Debug)]
enum What {
    /// The process leaves the socket to kernel TCP and says why; the text has the settings behind the reason.
    Kept(Reason, String),
    /// Only clients on other hosts are accelerated, by RDMA. The text is the rule behind that.
    RdmaOnly(String),
    /// The process would accelerate the socket.
    Ready,
    /// The process has NetACC, which has not seen the socket.
    Unseen,
    /// The page cannot be read; the text follows the name of the process.
    Unreadable(String),
    /// The process has no NetACC, and perhaps it is known what keeps its program from it.
    Without(Option<Obstacle>),
}

impl What {
    fn rank(&self) -> u8 {
        match self {
            Self::Kept(..) => 0,
            Self::RdmaOnly(_) => 1,
            Self::Ready => 2,
            Self::Unseen => 3,
            Self::Unreadable(_) => 4,
            Self::Without(_) => 5,
        }
    }
}

/// What the holders of a listener make of it; `None` if there is none that may be looked into.
#[must_use]
pub fn of_listener(holders: &[Holder]) -> Option<Standing> {
    best(holders, true)
}

/// What the holders of one end of a connection make of it; `None` if there is none that may be looked into.
#[must_use]
pub fn of_connection(holders: &[Holder]) -> Option<Standing> {
    best(holders, false)
}

fn best(holders: &[Holder], listens: bool) -> Option<Standing> {
    let each = holders.iter().map(|holder| Standing { holder: holder.clone(), listens, what: look(holder, listens) });
    each.min_by_key(|standing| standing.what.rank())
}

fn look(holder: &Holder, listens: bool) -> What {
    match reader::open(holder.pid) {
        Ok(page) => on_page(&page, &holder.fds, listens),
        // The library is there, but no socket of the process has begun with it.
        Err(Error::Unused) if Process::open(holder.pid).is_ok_and(|process| before_page::is_off(&process)) => {
            What::Kept(Reason::Operator, String::new())
        }
        Err(Error::Unused | Error::Inherited(_) | Error::Starting) => What::Unseen,
        Err(Error::NotAccelerated) => {
            What::Without(program::judge(Path::new(&format!("/proc/{}/exe", holder.pid))).obstacle)
        }
        Err(error) => What::Unreadable(error.to_string()),
    }
}

fn on_page(page: &Snapshot, fds: &[u32], listens: bool) -> What {
    let is_it = |sock: &&Sock| fds.contains(&sock.fd) && (sock.state.get() == Some(State::Listening)) == listens;
    let Some(sock) = page.socks.iter().find(is_it) else {
        return match of_process(page) {
            Some(reason) => What::Kept(reason, setting(page, reason)),
            None => What::Unseen,
        };
    };
    match (sock.transport.get(), sock.reason) {
        (Some(Transport::Rdma), _) if listens => What::RdmaOnly(facts(page, sock, Reason::Rule)),
        (Some(transport), _) if transport.is_fast() => What::Ready,
        (_, Known::Is(Reason::None)) => What::Ready,
        // That the process had found nobody at this end is no reason of its own: this end has NetACC.
        (_, Known::Is(Reason::PeerPlain | Reason::PlainClient)) => What::Ready,
        (_, Known::Is(reason)) if listens || is_own(reason) => What::Kept(reason, facts(page, sock, reason)),
        (_, Known::Is(_)) => What::Ready,
        (_, Known::Number(number)) => What::Unreadable(format!(
            "has NetACC {} and gives a reason that is not known here (?{number}); use the tools of that version",
            page.library_version
        )),
    }
}

/// Why the process as a whole is on kernel TCP, if it is. Then the page has no entry for what it inherited or received.
fn of_process(page: &Snapshot) -> Option<Reason> {
    const FOR_GOOD: [Reason; 4] = [Reason::OwnCalls, Reason::Go, Reason::Confined, Reason::Namespace];
    if page.control.state() == Some(ControlState::Off) {
        return Some(Reason::Operator);
    }
    let is_disabled = page.cfg.iter().any(|line| line.key == ENABLE && line.value == "0");
    if is_disabled && page.rules().next().is_none() {
        return Some(Reason::Disabled);
    }
    FOR_GOOD.into_iter().find(|reason| page.fallback(*reason) > 0)
}

/// Whether a reason is about the process that gives it, or its system, and not about the other end or the way there.
#[must_use]
pub fn is_own(reason: Reason) -> bool {
    match reason {
        Reason::None
        | Reason::PeerPlain
        | Reason::PeerVersion
        | Reason::OtherHost
        | Reason::PlainClient
        | Reason::ReusePort
        | Reason::Refused
        | Reason::PeerUid
        | Reason::LinkLost
        | Reason::ProtocolError
        | Reason::PeerMoved
        | Reason::NotTaken
        | Reason::QpFailed
        | Reason::KernelQueue
        | Reason::Translated
        | Reason::ShortLived
        | Reason::NoNeighbour
        | Reason::Unproven
        | Reason::NoTimeStamps
        // About both ends of one connection.
        | Reason::Standstill
        // These are about connections to other hosts.
        | Reason::Musl
        | Reason::GoOtherHost => false,
        Reason::Disabled
        | Reason::PercentDraw
        | Reason::BacklogFull
        | Reason::NoDescriptors
        | Reason::NoMemory
        | Reason::NameTaken
        | Reason::TcpFirst
        | Reason::Exec
        | Reason::Fork
        | Reason::Unsupported
        | Reason::Passed
        | Reason::Stdio
        | Reason::NoPort
        | Reason::LinkLocal
        | Reason::Packets
        | Reason::Namespace
        | Reason::Confined
        | Reason::IoUring
        | Reason::FileSize
        | Reason::OwnCalls
        | Reason::Rule
        | Reason::Operator
        | Reason::Go
        | Reason::Memory
        | Reason::FewerRights
        | Reason::SharedSocket => true,
    }
}

/// Whether the other end of a connection decides about this reason, so that it is to be asked before advice is given.
#[must_use]
pub fn is_others(reason: Reason) -> bool {
    matches!(reason, Reason::PeerPlain | Reason::PlainClient | Reason::PeerMoved | Reason::ReusePort)
}

impl Standing {
    /// Whether the process runs without NetACC.
    #[must_use]
    pub fn is_without(&self) -> bool {
        matches!(self.what, What::Without(_))
    }

    /// Whether there is something that keeps the socket on kernel TCP.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        !matches!(self.what, What::Ready)
    }

    fn socket(&self) -> &'static str {
        if self.listens { "listener" } else { "connection" }
    }

    /// What the process makes of the socket, as text that follows its name, without a full stop.
    #[must_use]
    pub fn text(&self) -> String {
        let socket = self.socket();
        match &self.what {
            What::Kept(reason, facts) => {
                let why = reason.why_and_remedy().0.trim_end_matches('.');
                let text =
                    format!("has NetACC and leaves the {socket} to kernel TCP ({}): {why}.{facts}", reason.name());
                text.trim_end_matches('.').to_owned()
            }
            What::RdmaOnly(facts) => {
                let text =
                    format!("has NetACC and serves the listener by RDMA alone, which is for other hosts.{facts}");
                text.trim_end_matches('.').to_owned()
            }
            What::Ready if self.listens => "has NetACC and accepts accelerated connections there".into(),
            What::Ready => "has NetACC".into(),
            What::Unseen => format!(
                "has NetACC, which has not seen the {socket}: it was made before NetACC began, inherited or received"
            ),
            What::Unreadable(text) => text.split_once("; ").map_or(text.as_str(), |(text, _)| text).to_owned(),
            What::Without(None) => "runs without NetACC".into(),
            What::Without(Some(obstacle)) => format!("runs without NetACC: {obstacle}"),
        }
    }

    /// What would change that, without a full stop.
    #[must_use]
    pub fn remedy(&self) -> String {
        match &self.what {
            What::Kept(reason, _) => remedy(*reason, self.holder.pid),
            What::RdmaOnly(_) => remedy(Reason::Rule, self.holder.pid),
            What::Ready => {
                "connections that begin now are accelerated; 'netacc_check HOST:PORT' says what they get".into()
            }
            What::Unseen if self.listens => {
                "NetACC takes it up when the program waits on it (accept, poll, epoll)".into()
            }
            What::Unseen => "connections that begin now are accelerated".into(),
            What::Unreadable(text) => text.split_once("; ").map_or("", |(_, advice)| advice).to_owned(),
            What::Without(None) => format!("start {} with netacc_run too", self.holder.described()),
            What::Without(Some(_)) => "'netacc_check PROGRAM' says what can be done about that".into(),
        }
    }
}

/// What would change a reason that process `pid` gives, without a full stop.
fn remedy(reason: Reason, pid: u32) -> String {
    let remedy = reason.why_and_remedy().1.trim_end_matches('.');
    if reason == Reason::Operator { remedy.replace("PID", &pid.to_string()) } else { remedy.to_owned() }
}

/// The settings of a process that led to a reason, as sentences that begin with a space; empty if no setting did.
#[must_use]
pub fn facts(page: &Snapshot, socket: &Sock, reason: Reason) -> String {
    match reason {
        Reason::NoDescriptors => {
            let limits = fs::read_to_string(format!("/proc/{}/limits", page.pid)).unwrap_or_default();
            let soft = limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next());
            soft.map_or_else(String::new, |soft| format!(" Its limit is {soft}."))
        }
        Reason::Rule => {
            let number = socket.rule.and_then(|rule| usize::try_from(rule).ok());
            match number.and_then(|number| page.rules().nth(number)) {
                Some((rule, _)) => format!(" It is {}: {}.", rule.source, rule.value),
                None if socket.since_ns < page.control.rules_loaded_ns => {
                    " The rules have been loaded anew since then.".into()
                }
                None => String::new(),
            }
        }
        reason => setting(page, reason),
    }
}

/// The setting behind a reason, and where its value comes from.
fn setting(page: &Snapshot, reason: Reason) -> String {
    let key = match reason {
        Reason::Disabled => ENABLE,
        Reason::PercentDraw => "NACC_CONNECT_RDMA_PERCENT",
        Reason::TcpFirst => "NACC_CONN_TCP_FIRST",
        _ => return String::new(),
    };
    let line = page.cfg.iter().find(|line| line.key == key);
    line.map_or_else(String::new, |line| format!(" Here {key}={} comes from: {}.", line.value, line.source))
}
