//! What a copy of the library tells the one that takes its place ([`super::exchange`]): lines of words, each of which
//! begins with what it is about. The two may be of different versions. A line that is not known is left out, and words
//! that are added at the end of a known one are not read by an older version.

use crate::conn::kernel_queue;
use crate::epoll::handover::{Instance, Taken, Watch};
use crate::epoll::{handover as epolls, shared};
use crate::fd::create::enter;
use crate::fd::table;
use crate::fd::table::Entry;
use crate::fork::descendants;
use crate::listen::adopt;
use crate::object::socket::{ConnState, LINGER_RESET, NONBLOCK, Path, Socket, notes_of};
use crate::operator::requests;
use crate::switch::comeback::{self, Rest};
use crate::{process_mode, startup};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use core::net::SocketAddr;
use core::str::SplitAsciiWhitespace;
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_stats::{ControlState, Reason, State, Transport, Upgraded, page};
use netacc_sys::errno::Result;
use netacc_sys::{cancel, mem, origin, raw, reserved_fds, time};

/// A kernel socket of the old copy's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Connection {
    fd: i32,
    domain: i32,
    /// Whether it was in shared memory once, so that the kernel has other addresses for it.
    demoted: bool,
    /// Why it is on kernel TCP, a number of [`Reason`].
    reason: u32,
    /// The addresses that it shows.
    addresses: Option<(SocketAddr, SocketAddr)>,
    /// Set if it may come back to a ring.
    rest: Option<Rest>,
}

/// What one line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// An operator has switched the process off.
    Off,
    /// The program has called mlockall(MCL_FUTURE): see [`mem::is_locking`].
    Locking,
    /// Where the library lay when the program started ([`origin`]).
    Origin([u64; 4]),
    /// A descriptor by which an ancestor sees that this process lives.
    Held(i32),
    /// The page of the flags that processes with the same epoll instances share.
    Flags(usize),
    /// A thread that was cancelled and may not have ended yet.
    Cancelled(usize),
    /// A destination to which a connect has gone by TCP that may still wait in the kernel's queue.
    Queue(SocketAddr),
    /// A listener, or a socket that is not connected yet, and whether the program has waited on it. What the other copy does not
    /// know connects by TCP unseen, and later connects over shared memory would be accepted before.
    Listener(i32, bool),
    Connection(Connection),
    /// SO_RCVTIMEO and SO_SNDTIMEO (ns), SO_LINGER as [`Socket::linger`] has it, and [`Socket::member`], of a connection that
    /// may come back.
    Times(i32, [u64; 4]),
    /// An option of such a connection: the descriptor, level, name and value.
    Option(i32, i32, i32, i32),
    /// What SO_COOKIE has told the program of a socket.
    Cookie(i32, u64),
    Epoll(Instance),
    /// Another number of an epoll instance, and the one that was said before.
    EpollToo(i32, i32),
    Watch(Watch),
    Taken(Taken),
}

/// Writes down what the new copy has to know, and takes everything of ours out of the kernel's epoll sets.
///
/// # Errors
/// The kernel cannot serve an epoll instance alone; nothing has changed then.
pub(super) fn write(was_off: bool) -> Result<String> {
    let mut lines = Vec::new();
    lines.extend(was_off.then_some(Line::Off));
    lines.extend(mem::is_locking().then_some(Line::Locking));
    lines.extend(origin::noted().map(|origin| Line::Origin(origin.words())));
    lines.extend(descendants::held().map(Line::Held));
    lines.extend(cancel::noted().map(Line::Cancelled));
    lines.extend(kernel_queue::noted().map(Line::Queue));
    lines.extend(Some(shared::page_of_flags()).filter(|page| *page != 0).map(Line::Flags));
    let mut instances = Vec::new();
    table::each(0, usize::MAX, |fd, entry| match entry {
        Entry::Socket(r) if r.obj.path() == Path::New || adopt::may_listen(fd) => {
            if !epolls::is_one_shot(fd) {
                lines.push(Line::Listener(fd, !r.obj.is_inherited() && adopt::listens(fd)));
            }
        }
        Entry::Socket(r) if r.obj.path() == Path::Tcp => {
            let mut connection = connection(fd, r.obj);
            // Each line becomes a socket of its own, and two candidates must not have one kernel socket.
            if table::number_of(r, fd).is_some() {
                connection.rest = None;
            }
            lines.push(Line::Connection(connection));
            if connection.rest.is_some() {
                lines.push(Line::Times(fd, words(r.obj).map(|w| w.load(Ordering::Relaxed))));
                let options = r.obj.opts.all().map(|(level, name, value)| Line::Option(fd, level, name, value));
                lines.extend(options);
            }
        }
        Entry::Socket(_) => {}
        Entry::Epoll(r) => instances.push((fd, r.obj)),
    });
    for (_, e) in &instances {
        epolls::check(e)?;
    }
    let listens = |fd| lines.iter().any(|line| matches!(line, Line::Listener(n, _) if *n == fd));
    let (mut seen, mut watches) = (Vec::<(i32, usize)>::new(), Vec::new());
    let mut entered = Vec::new();
    for (fd, e) in instances {
        let object = core::ptr::from_ref(e).addr();
        if let Some((first, _)) = seen.iter().find(|(_, other)| *other == object) {
            entered.push(Line::EpollToo(fd, *first));
            continue;
        }
        watches.extend(epolls::taken(fd, e).map(Line::Taken));
        let instance = epolls::leave(e, listens, |watch| watches.push(Line::Watch(watch)));
        seen.push((instance.fd, object));
        entered.push(Line::Epoll(instance));
        if instance.fd != fd {
            entered.push(Line::EpollToo(fd, instance.fd));
        }
    }
    // Sockets first, then what belongs to them, then instances, then what is registered with them.
    table::each_socket(|fd, r| lines.extend(cookie(fd, r.obj)));
    lines.extend(entered);
    lines.extend(watches);
    let mut text = String::new();
    lines.iter().for_each(|line| put(&mut text, line));
    Ok(text)
}

fn cookie(fd: i32, s: &Socket) -> Option<Line> {
    Some(s.cookie.load(Ordering::Relaxed)).filter(|cookie| *cookie != 0).map(|cookie| Line::Cookie(fd, cookie))
}

/// The words of [`Line::Times`].
fn words(s: &Socket) -> [&AtomicU64; 4] {
    [&s.rcvtimeo, &s.sndtimeo, &s.linger, &s.member]
}

fn connection(fd: i32, s: &Socket) -> Connection {
    let demoted = s.is(ConnState::Demoted) || comeback::was_in_ring(s);
    Connection {
        fd,
        domain: s.domain(),
        demoted,
        reason: s.stats().map_or(Reason::Operator, netacc_stats::SockEntry::reason) as u32,
        addresses: s.local.get().zip(s.peer.get()),
        rest: comeback::rest_of(s),
    }
}

fn put(text: &mut String, line: &Line) {
    // Writing to a string does not fail.
    let _ = match *line {
        Line::Off => writeln!(text, "off"),
        Line::Locking => writeln!(text, "locking"),
        Line::Origin([root, root_inode, folder, folder_inode]) => {
            writeln!(text, "origin {root} {root_inode} {folder} {folder_inode}")
        }
        Line::Held(fd) => writeln!(text, "held {fd}"),
        Line::Cancelled(thread) => writeln!(text, "cancelled {thread}"),
        Line::Queue(destination) => writeln!(text, "queue {destination}"),
        Line::Flags(page) => writeln!(text, "flags {page}"),
        Line::Listener(fd, awake) => writeln!(text, "listener {fd} {}", u8::from(awake)),
        Line::Connection(Connection { fd, domain, demoted, reason, addresses, rest }) => {
            let _ = write!(text, "connection {fd} {domain} {} {reason}", u8::from(demoted));
            if let Some((local, peer)) = addresses {
                let _ = write!(text, " {local} {peer}");
                if let Some(Rest { client, sent, read }) = rest {
                    let _ = write!(text, " {} {sent} {read}", u8::from(client));
                }
            }
            writeln!(text)
        }
        Line::Times(fd, [rcv, snd, linger, member]) => writeln!(text, "times {fd} {rcv} {snd} {linger} {member}"),
        Line::Cookie(fd, cookie) => writeln!(text, "cookie {fd} {cookie}"),
        Line::Option(fd, level, name, value) => writeln!(text, "option {fd} {level} {name} {value}"),
        Line::Epoll(Instance { fd, flags, usage, mixed }) => {
            writeln!(text, "epoll {fd} {flags} {usage} {}", u8::from(mixed))
        }
        Line::EpollToo(fd, first) => writeln!(text, "epoll-too {fd} {first}"),
        Line::Watch(Watch { epoll, fd, events, data, disabled }) => {
            writeln!(text, "watch {epoll} {fd} {events} {data} {}", u8::from(disabled))
        }
        Line::Taken(Taken { epoll, events, data }) => writeln!(text, "taken {epoll} {events} {data}"),
    };
}

fn word<T: core::str::FromStr>(words: &mut SplitAsciiWhitespace<'_>) -> Option<T> {
    words.next()?.parse().ok()
}

fn rest(words: &mut SplitAsciiWhitespace<'_>) -> Option<Rest> {
    Some(Rest { client: word::<u8>(words)? != 0, sent: word(words)?, read: word(words)? })
}

/// What a line says; `None`: it is not known, or damaged.
fn parse(line: &str) -> Option<Line> {
    let mut words = line.split_ascii_whitespace();
    let kind = words.next()?;
    let words = &mut words;
    Some(match kind {
        "off" => Line::Off,
        "locking" => Line::Locking,
        "origin" => Line::Origin([word(words)?, word(words)?, word(words)?, word(words)?]),
        "held" => Line::Held(word(words)?),
        "cancelled" => Line::Cancelled(word(words)?),
        "queue" => Line::Queue(word(words)?),
        "flags" => Line::Flags(word(words)?),
        "listener" => Line::Listener(word(words)?, word::<u8>(words)? != 0),
        "connection" => Line::Connection(Connection {
            fd: word(words)?,
            domain: word(words)?,
            demoted: word::<u8>(words)? != 0,
            reason: word(words)?,
            addresses: word(words).zip(word(words)),
            rest: rest(words),
        }),
        "times" => Line::Times(word(words)?, [word(words)?, word(words)?, word(words)?, word(words)?]),
        "option" => Line::Option(word(words)?, word(words)?, word(words)?, word(words)?),
        "cookie" => Line::Cookie(word(words)?, word(words)?),
        "epoll" => Line::Epoll(Instance {
            fd: word(words)?,
            flags: word(words)?,
            usage: word(words)?,
            mixed: word::<u8>(words).is_some_and(|mixed| mixed != 0),
        }),
        "epoll-too" => Line::EpollToo(word(words)?, word(words)?),
        "watch" => Line::Watch(Watch {
            epoll: word(words)?,
            fd: word(words)?,
            events: word(words)?,
            data: word(words)?,
            disabled: word::<u8>(words)? != 0,
        }),
        "taken" => Line::Taken(Taken { epoll: word(words)?, events: word(words)?, data: word(words)? }),
        _ => return None,
    })
}

/// Takes over what the old copy has written down. Called once, before the first other call of this copy.
pub(super) fn read(text: &str) {
    // Before anything is mapped, all of which the kernel would bring into memory.
    if text.lines().any(|line| parse(line) == Some(Line::Locking)) {
        mem::note_locking();
    }
    if startup::ensure().is_none() {
        return;
    }
    for line in text.lines().filter_map(parse) {
        match line {
            Line::Off => requests::begin(true),
            Line::Locking => {}
            Line::Origin(words) => origin::take_over(words),
            Line::Held(fd) => {
                reserved_fds::take_over(fd);
                descendants::go_on_holding(fd);
            }
            Line::Cancelled(thread) => cancel::note(thread),
            Line::Queue(destination) => kernel_queue::note(destination),
            Line::Flags(page) => shared::take_page_of_flags(page),
            Line::Listener(fd, awake) => {
                adopt::received(fd);
                if awake && let Some(r) = table::socket(fd) {
                    adopt::wake(fd, r);
                }
            }
            Line::Connection(connection) => enter_connection(connection),
            Line::Times(fd, values) => {
                if let Some(r) = table::socket(fd) {
                    words(r.obj).iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
                    // On, with no time.
                    r.obj.set(LINGER_RESET, r.obj.linger.load(Ordering::Relaxed) == 1 << 32);
                }
            }
            Line::Option(fd, level, name, value) => {
                if let Some(r) = table::socket(fd) {
                    let _g = r.obj.meta.lock();
                    r.obj.opts.set(level, name, value);
                }
            }
            Line::Cookie(fd, cookie) => {
                if let Some(r) = table::socket(fd) {
                    r.obj.cookie.store(cookie, Ordering::Relaxed);
                }
            }
            Line::Epoll(instance) => epolls::enter(instance),
            Line::EpollToo(fd, first) => epolls::enter_also(fd, first),
            Line::Watch(watch) => epolls::register(watch),
            Line::Taken(taken) => epolls::report(taken),
        }
    }
    let state = if process_mode::is_off() { ControlState::Off } else { ControlState::On };
    page().control().set_state(state, 0);
    page().control().set_upgraded(Upgraded::Replaced, 0);
    netacc_log::log!(Info, "process: this library has taken the place of the one before it");
}

fn enter_connection(c: Connection) {
    let stays = if c.demoted { ConnState::Demoted } else { ConnState::Tcp };
    let state = c.rest.map_or(stays, |rest| ConnState::Candidate(rest.upgrade()));
    let notes = raw::fcntl(c.fd, libc::F_GETFL, 0).map_or(NONBLOCK, notes_of);
    let Ok(r) = Socket::alloc(c.fd, c.domain, state, notes) else { return };
    if let Some((local, peer)) = c.addresses {
        r.obj.local.set(local);
        r.obj.peer.set(peer);
    }
    if c.rest.is_some_and(|rest| !comeback::rest_on(r.obj, c.fd, rest)) {
        r.obj.set_state(stays);
    }
    let shown = r.obj.stats();
    if enter(c.fd, r).is_ok()
        && let Some(entry) = shown
    {
        let reason = Reason::from_u32(c.reason).unwrap_or(Reason::Operator);
        entry.open(State::Established, Transport::Tcp, reason, time::realtime_coarse());
        if let Some((local, peer)) = c.addresses {
            entry.set_addrs(&local.into(), &peer.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Line> {
        let connection = Connection { fd: 7, domain: 2, demoted: true, reason: 3, addresses: None, rest: None };
        let rest = Some(Rest { client: true, sent: 1 << 40, read: 0 });
        let addresses = Some(("127.0.0.1:80".parse().unwrap(), "127.0.0.1:4711".parse().unwrap()));
        let six = Some(("[::1]:80".parse().unwrap(), "[fe80::1%3]:4711".parse().unwrap()));
        vec![
            Line::Off,
            Line::Locking,
            Line::Origin([64769, 2, 64770, 1 << 40]),
            Line::Held(8190),
            Line::Cancelled(0x7fff_f7d8_a6c0),
            Line::Queue("[2001:db8::1]:80".parse().unwrap()),
            Line::Flags(0x7fff_0000_1000),
            Line::Listener(3, true),
            Line::Connection(connection),
            Line::Connection(Connection { addresses, demoted: false, ..connection }),
            Line::Connection(Connection { addresses: six, ..connection }),
            Line::Connection(Connection { addresses: six, rest, ..connection }),
            Line::Times(7, [50_000_000, 0, 1 << 32 | 3, 0]),
            Line::Option(7, 6, 1, -1),
            Line::Cookie(7, 650_085),
            Line::Epoll(Instance { fd: 5, flags: 9, usage: 1, mixed: true }),
            Line::Epoll(Instance { fd: 8, flags: 9, usage: 2, mixed: false }),
            Line::EpollToo(6, 5),
            Line::Watch(Watch { epoll: 5, fd: 3, events: 1 << 31 | 1, data: u64::MAX, disabled: false }),
            Line::Watch(Watch { epoll: 5, fd: 4, events: 1 << 30, data: 0, disabled: true }),
            Line::Taken(Taken { epoll: 5, events: 5, data: 77 }),
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        let mut text = String::new();
        all().iter().for_each(|line| put(&mut text, line));
        assert_eq!(text.lines().filter_map(parse).collect::<Vec<_>>(), all());
    }

    #[test]
    fn another_version_is_understood() {
        assert_eq!(parse("off since yesterday"), Some(Line::Off));
        assert_eq!(parse("listener 3 0 511"), Some(Line::Listener(3, false)));
        let instance = Instance { fd: 5, flags: 9, usage: 1, mixed: false };
        assert_eq!(parse("epoll 5 9 1"), Some(Line::Epoll(instance)));
        for unknown in ["", "weather 3", "held", "held x", "watch 5 3 1 2", "epoll 5 9", "connection 1 2 3"] {
            assert_eq!(parse(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn damaged_lines_do_no_harm() {
        let mut text = String::new();
        all().iter().for_each(|line| put(&mut text, line));
        for at in 0..text.len() {
            for with in ["", " ", "9", "-", "x", "\u{e4}"] {
                let mut damaged = text.clone();
                damaged.replace_range(at..=at, with);
                assert!(damaged.lines().filter_map(parse).count() <= all().len() + 1);
            }
        }
    }
}
