//! Reads the statistics pages of other processes.
//!
//! A page is copied with `read`, never mapped: a process that shortens or scribbles over its page can give us wrong
//! numbers, but no SIGBUS and no read beyond a buffer. The process is not involved and need not run.

mod control;
mod error;
mod parse;
mod process;
mod processes;
mod source;

use core::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, fstat};

use netacc_stats::layout::DEVICE_LEN;
use netacc_stats::{Counter, LinkKind, MEMFD_NAME, Reason, SockAddr, State, Transport};

pub use control::{Control, Controller, Refusal};
pub use error::Error;
pub use parse::clean;
pub use process::Process;
pub use processes::{Leftover, Listing, leftovers, list_processes, list_unused};

/// How the path of the preloaded library ends, as `/proc/PID/maps` shows it.
const LIBRARY: &str = "/libnetacc-preload.so";

/// A copy of the page of a process.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The process's number in the reader's PID namespace; from [`parse`], the
    /// number that the page says.
    pub pid: u32,
    /// Name of the program, cut to 63 bytes.
    pub program: String,
    /// Version of the NetACC library in the process.
    pub library_version: String,
    /// When the page was made: CLOCK_REALTIME in nanoseconds.
    pub start_ns: u64,
    /// Counters by slot, as many as the writer uses.
    pub counters: Vec<u64>,
    /// Fallbacks by the number of their reason, as many as the writer uses.
    pub fallbacks: Vec<u64>,
    /// Promotions by the number of the reason that had kept the connection back.
    pub promotions: Vec<u64>,
    /// Demotions by the number of their reason.
    pub demotions: Vec<u64>,
    /// How often each rule decided, in the order of the rules.
    pub rules: Vec<u64>,
    /// What an operator has asked for, and how far the process is.
    pub control: Control,
    /// The effective configuration.
    pub cfg: Vec<CfgLine>,
    /// The links in use, in the order of their numbers.
    pub links: Vec<Link>,
    /// TCP ports of listeners that clients on other hosts reach by RDMA, each with the port for that.
    pub rdma_ports: Vec<(u16, u16)>,
    /// The entries in use, in the order of their descriptors.
    pub socks: Vec<Sock>,
    /// The volumes that all sockets moved, including closed ones, as far as NetACC saw them.
    pub moved: Moved,
}

impl Snapshot {
    /// The value of a counter; 0 if the writer does not know it.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters.get(counter as usize).copied().unwrap_or(0)
    }

    /// The port for RDMA of the listeners at TCP port `tcp`, if they have one.
    #[must_use]
    pub fn rdma_port(&self, tcp: u16) -> Option<u16> {
        self.rdma_ports.iter().find(|(port, _)| *port == tcp).map(|(_, rdma)| *rdma)
    }

    /// The rules of the program in the order in which they are tried, with the number of times that each decided.
    pub fn rules(&self) -> impl Iterator<Item = (&CfgLine, u64)> {
        self.cfg.iter().filter(|line| line.key == "rule").zip(self.rules.iter().copied())
    }

    /// How many connections fell back for `reason`.
    #[must_use]
    pub fn fallback(&self, reason: Reason) -> u64 {
        self.fallbacks.get(reason as usize).copied().unwrap_or(0)
    }
}

/// Messages and bytes in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Messages received.
    pub msgs_in: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Messages sent.
    pub msgs_out: u64,
    /// Bytes sent.
    pub bytes_out: u64,
}

impl Volume {
    /// The sum of both. It wraps, since a part may be below zero (see [`netacc_stats::SockEntry::set_transport`]).
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            msgs_in: self.msgs_in.wrapping_add(other.msgs_in),
            bytes_in: self.bytes_in.wrapping_add(other.bytes_in),
            msgs_out: self.msgs_out.wrapping_add(other.msgs_out),
            bytes_out: self.bytes_out.wrapping_add(other.bytes_out),
        }
    }
}

/// The volumes that all sockets of a process moved, by transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// The volume over kernel TCP.
    pub tcp: Volume,
    /// The volume over shared memory.
    pub shm: Volume,
    /// The volume over RDMA.
    pub rdma: Volume,
}

impl Moved {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { tcp: self.tcp.plus(other.tcp), shm: self.shm.plus(other.shm), rdma: self.rdma.plus(other.rdma) }
    }
}

/// A link or queue pair, which carries connections to one other process.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// The link's number in the process.
    pub id: u32,
    /// What the link is made of.
    pub kind: Known<LinkKind>,
    /// Whether the process listened.
    pub server: bool,
    /// The process at the other end; 0 if it is not known.
    pub peer_pid: u32,
    /// When the link was made: CLOCK_REALTIME in nanoseconds.
    pub opened_ns: u64,
    /// When the last connection left; it has no meaning while there are connections.
    pub idle_ns: u64,
    /// When the link ends if it stays idle; 0: never.
    pub expires_ns: u64,
    /// The number of connections now.
    pub in_use: u32,
    /// The number of connections since the link was made.
    pub ever: u32,
    /// The number of connections for which there is room.
    pub capacity: u32,
    /// The address at which the segment is mapped in the process; for a queue pair, its number on the device.
    pub address: u64,
    /// Data that only a queue pair has.
    pub qp: Option<QueuePair>,
}

/// The data of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePair {
    /// The queue pair's number on the device.
    pub number: u32,
    /// The I/O thread of the process that carries the queue pair.
    pub thread: u16,
    /// The name of the device.
    pub device: DeviceName,
    /// The other host's address; the port is the RDMA port of the listener.
    pub peer: SockAddr,
    /// How many receives of the other side are free.
    pub credits: u16,
    /// How many receives the other side has.
    pub receives: u16,
    /// Sends that were posted.
    pub posted: u64,
    /// Sends that have completed.
    pub completed: u64,
    /// Messages received.
    pub received: u64,
}

/// The name of a device, cut to 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceName([u8; DEVICE_LEN]);

/// Displays as text that can be shown on a terminal, whatever bytes the process stored.
impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.split(|&byte| byte == 0).next().unwrap_or_default();
        f.pad(&parse::text(used))
    }
}

/// One setting of the configuration in effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CfgLine {
    /// The name of the key.
    pub key: String,
    /// The value of the key.
    pub value: String,
    /// The source of the value.
    pub source: String,
}

/// A value of an enumeration, or the number of one that this version does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known<T> {
    /// A value of the enumeration.
    Is(T),
    /// A number that this version does not know.
    Number(u32),
}

impl<T: Copy> Known<T> {
    fn new(raw: u32, known: impl Fn(u32) -> Option<T>) -> Self {
        known(raw).map_or(Self::Number(raw), Self::Is)
    }

    /// The value, if it is known.
    #[must_use]
    pub fn get(self) -> Option<T> {
        match self {
            Self::Is(value) => Some(value),
            Self::Number(_) => None,
        }
    }
}

/// Displays as the value's name, or as `?` and the number.
impl<T: fmt::Display> fmt::Display for Known<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(value) => value.fmt(f),
            Self::Number(raw) => f.pad(&format!("?{raw}")),
        }
    }
}

/// A copy of one socket entry.
#[derive(Clone, Copy, Debug)]
pub struct Sock {
    /// The descriptor.
    pub fd: u32,
    /// What the socket is doing.
    pub state: Known<State>,
    /// The transport that carries its bytes.
    pub transport: Known<Transport>,
    /// Why the transport is not a faster one.
    pub reason: Known<Reason>,
    /// The socket's own address.
    pub local: SockAddr,
    /// The address of the other end.
    pub peer: SockAddr,
    /// The process at the other end; 0 if it is not known.
    pub peer_pid: u32,
    /// The number of the rule that decided about the socket, counted from 0; `None` as well if the rules have been
    /// loaded anew since.
    pub rule: Option<u32>,
    /// The link that carries the connection; 0 for none.
    pub link: u64,
    /// When the entry was opened: CLOCK_REALTIME in nanoseconds.
    pub since_ns: u64,
    /// Messages received.
    pub msgs_in: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Messages sent.
    pub msgs_out: u64,
    /// Bytes sent.
    pub bytes_out: u64,
}

impl Sock {
    /// The volume that the socket moved.
    #[must_use]
    pub fn volume(&self) -> Volume {
        Volume { msgs_in: self.msgs_in, bytes_in: self.bytes_in, msgs_out: self.msgs_out, bytes_out: self.bytes_out }
    }
}

/// Checks and decodes the bytes of a page.
///
/// # Errors
///
/// [`Error::Starting`], [`Error::Layout`], [`Error::Truncated`] or [`Error::Corrupt`].
pub fn parse(bytes: &[u8]) -> Result<Snapshot, Error> {
    parse::snapshot(&bytes)
}

/// Checks and decodes a page of `len` bytes that are zero except for `stretches`: pairs of an offset and bytes, in the
/// order of the offsets.
///
/// # Errors
///
/// The errors are those of [`parse`].
pub fn parse_sparse(len: u64, stretches: &[(u64, &[u8])]) -> Result<Snapshot, Error> {
    parse::snapshot(&source::Sparse { len, stretches })
}

/// Copies the page behind a descriptor.
///
/// # Errors
///
/// The errors are those of [`parse`], and [`Error::Io`].
pub fn read_fd(page: impl AsFd) -> Result<Snapshot, Error> {
    parse::snapshot(&page.as_fd())
}

/// The page of a process, held open so that it can be read even after the process has ended.
#[derive(Debug)]
pub struct Page {
    process: Process,
    file: OwnedFd,
}

impl Page {
    /// Copies the page once more.
    ///
    /// # Errors
    ///
    /// The errors are those of [`parse`], and [`Error::Io`].
    pub fn read(&self) -> Result<Snapshot, Error> {
        read_fd(&self.file).map(|page| Snapshot { pid: self.process.pid(), ..page })
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The page that the same process has now. After an upgrade it is another one.
    ///
    /// # Errors
    ///
    /// The errors are those of [`open`].
    pub fn again(&self) -> Result<(Page, Snapshot), Error> {
        again(&self.process)
    }

    /// Whether both are the page of the same library in a process. After a fork or an upgrade there is another one.
    #[must_use]
    pub fn is(&self, other: &Page) -> bool {
        let file = |page: &Page| fstat(&page.file).ok().map(|about| (about.st_dev, about.st_ino));
        file(self) == file(other)
    }
}

/// Copies the page of process `pid`.
///
/// # Errors
///
/// The variant of the error says why there is no snapshot.
pub fn open(pid: u32) -> Result<Snapshot, Error> {
    hold(pid).map(|(_, page)| page)
}

/// Copies the page of process `pid` and keeps it open.
///
/// # Errors
///
/// The errors are those of [`open`].
pub fn hold(pid: u32) -> Result<(Page, Snapshot), Error> {
    hold_of(Process::open(pid)?).map_err(|(error, _)| error)
}

/// Copies the page of a process and keeps it open.
///
/// # Errors
///
/// The errors are those of [`open`], with the process.
pub fn hold_of(process: Process) -> Result<(Page, Snapshot), (Error, Process)> {
    match page_of(&process) {
        Ok((file, page)) => {
            let pid = process.pid();
            Ok((Page { process, file }, Snapshot { pid, ..page }))
        }
        Err(error) => Err((error, process)),
    }
}

/// Copies the page that a process has now and keeps it open.
///
/// # Errors
///
/// The errors are those of [`open`].
pub fn again(process: &Process) -> Result<(Page, Snapshot), Error> {
    let process = process.copy().map_err(|error| Error::Io(source::system(error)))?;
    hold_of(process).map_err(|(error, _)| error)
}

fn page_of(process: &Process) -> Result<(OwnedFd, Snapshot), Error> {
    // The name in it may be of any bytes.
    let status = process.text("status").map_err(Error::of_proc)?;
    if field(&status, "State:").is_some_and(|state| state.starts_with(['Z', 'X'])) {
        return Err(Error::Exited);
    }
    // A process that was forked just now holds its parent's page, which is told by
    // the number in the page: that of the innermost PID namespace.
    let own: Vec<u32> = field(&status, "NSpid:")
        .map_or_else(Vec::new, |ids| ids.split_whitespace().filter_map(|id| id.parse().ok()).collect());
    let mut failure = Error::NotAccelerated;
    for fd in fs::read_dir(process.path("fd")).map_err(Error::of_proc)? {
        let path = fd.map_err(Error::of_proc)?.path();
        if !is_page(&path) {
            continue;
        }
        match read_page(&path) {
            Ok((file, page)) if own.is_empty() || own.contains(&page.pid) => return Ok((file, page)),
            Ok((_, page)) => failure = Error::Inherited(page.pid),
            Err(error) => failure = error,
        }
    }
    if matches!(failure, Error::NotAccelerated) && has_library(process) {
        return Err(Error::Unused);
    }
    Err(failure)
}

/// Whether the process has the preloaded library mapped.
fn has_library(process: &Process) -> bool {
    let Ok(maps) = fs::read(process.path("maps")) else {
        return false;
    };
    // After an upgrade the path is followed by " (deleted)", so it is searched for anywhere in the text.
    maps.windows(LIBRARY.len()).any(|piece| piece == LIBRARY.as_bytes())
}

/// The value of a line of `/proc/PID/status`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim())
}

/// Whether a link in `/proc/PID/fd` leads to a page.
fn is_page(link: &Path) -> bool {
    let target = fs::read_link(link).ok();
    let target = target.as_deref().and_then(Path::to_str);
    target
        .and_then(|target| target.strip_prefix("/memfd:"))
        .is_some_and(|name| name.trim_end_matches(" (deleted)") == MEMFD_NAME)
}

fn read_page(path: &Path) -> Result<(OwnedFd, Snapshot), Error> {
    // The file may be of another type than its name says: opening a FIFO must not
    // block, and a device must not be read.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let proc_error = |error| Error::of_proc(source::system(error));
    let file = rustix::fs::open(path.as_os_str().as_bytes(), flags, Mode::empty()).map_err(proc_error)?;
    let mode = fstat(&file).map_err(proc_error)?.st_mode;
    if FileType::from_raw_mode(mode) != FileType::RegularFile {
        return Err(Error::Corrupt("it is not a file in memory"));
    }
    let page = read_fd(&file)?;
    Ok((file, page))
}
