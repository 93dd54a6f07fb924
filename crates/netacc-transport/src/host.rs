//! The trait [`Host`]: all that a transport may ask or tell the program that it works for.
//!
//! A transport is below the socket layer and calls it only through this trait, which the socket layer implements and
//! [sets](set) before the first connection. So no code of this crate depends on the representation of a socket.

use crate::shm::claim::Claim;
use crate::shm::{Link, ShmEndpoint};
use core::net::{IpAddr, SocketAddr};
use netacc_conf::Config;
use netacc_stats::{Reason, SockEntry};
use netacc_sys::time::Deadline;
use netacc_sys::{AtomicRef, Guard};
use netacc_wire::companion::{OwnPort, TOKEN};

/// A token by which the socket layer names a socket of the program. It is opaque to the transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnToken {
    /// The address of the socket's object.
    pub object: usize,
    /// The object's generation.
    pub generation: u16,
}

/// A connection of the program that is in a ring at present.
#[derive(Clone, Copy, Debug)]
pub struct ProgramConn {
    /// The connection's socket.
    pub socket: ConnToken,
    /// The program's side of the ring.
    pub ep: &'static ShmEndpoint,
    /// The local address and the peer's, if they are known.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// The connection's entry on the stats page.
    pub stats: Option<&'static SockEntry>,
    /// Whether other processes share the connection since a fork.
    pub shared: bool,
}

/// A direction of a connection's bytes, seen from the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The bytes that the program reads.
    Read,
    /// The bytes that the program writes.
    Write,
}

/// A result about the reachability of a destination by RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// A queue pair to the host was established.
    Reached,
    /// The host has answered a probe, and no queue pair was established: later connects to it wait until one is.
    Broken,
    /// The destination refuses RDMA, for this reason.
    Refused(Reason),
}

/// The times after which silence of the peer ends a connection, from a socket's options (tcp(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patience {
    /// `TCP_USER_TIMEOUT` (ms); 0: the kernel's own default.
    pub user_timeout_ms: u32,
    /// `TCP_KEEPIDLE` and `TCP_KEEPINTVL` (s), `TCP_KEEPCNT`, if `SO_KEEPALIVE` is set.
    pub keepalive: Option<[u32; 3]>,
}

/// Whether a server's side of a connection can be upgraded to RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpgradeAnswer {
    /// The server's side is prepared. The client switches by writing this token into the TCP stream.
    Ready([u8; TOKEN]),
    /// The program has not read all bytes that the client has sent.
    NotYet,
    /// The connection cannot be upgraded.
    No,
}

/// The socket layer's functions for transports.
pub trait Host: Sync {
    /// The configuration in force; `None`: the process has none yet.
    fn config(&self) -> Option<&'static Config>;

    /// Whether no forked descendant can hold a connection of ours any more. Asks the kernel.
    fn is_alone(&self) -> bool;
    /// Whether no tracked descendant can hold a connection of ours. Does not ask the kernel.
    fn has_no_children(&self) -> bool;
    /// Whether a thread is about to fork: shared objects must not change until the child exists.
    fn is_fork_under_way(&self) -> bool;

    /// Claims a slot for a connect from `client`, on another host, to `server`, a listener of this host.
    fn claim(&self, client: SocketAddr, server: SocketAddr) -> Result<Claim, Reason>;
    /// Claims a slot for a connect to `server`, on another host, on exactly this link.
    fn claim_remote(&self, server: SocketAddr, link: &'static Link) -> Result<Claim, Reason>;

    /// Notes a result about the reachability of a destination.
    fn learn(&self, dest: SocketAddr, what: Reachability);
    /// Whether no queue pair was established after the host's last answer ([`Reachability::Broken`]).
    fn is_doubted(&self, ip: IpAddr) -> bool;
    /// Whether a companion may connect to this address of this host, at whose port the program listens.
    fn takes_companions(&self, at: SocketAddr) -> OwnPort;

    /// Calls `f` with each connection of the program that is in a ring.
    fn each_conn(&self, f: &mut dyn FnMut(&ProgramConn));
    /// The entry on the stats page of the socket at a client's end of a slot, if the program has it.
    fn stats_of(&self, ep: &'static ShmEndpoint) -> Option<&'static SockEntry>;
    /// Wakes the threads that sleep in the epoll instance to which the endpoint's registration belongs. Takes no lock.
    fn kick(&self, ep: &ShmEndpoint);
    /// The times after which silence of the peer ends the connection.
    fn patience(&self, socket: ConnToken) -> Patience;
    /// Whether any socket ever had `SO_KEEPALIVE` set. If not, a transport need not check each of them.
    fn has_keepalive(&self) -> bool;
    /// Takes the lock of one direction, which keeps other threads from moving bytes in it and from switching the
    /// connection while the guard lives. `None`: another thread holds it, or the socket no longer has the endpoint
    /// `ep`. Never waits.
    fn try_hold(&self, socket: ConnToken, ep: &'static ShmEndpoint, direction: Direction) -> Option<Guard<'static>>;

    /// Server: the connection between these addresses, which its client requests to upgrade, if this process has it.
    fn upgrade_candidate(&self, client: SocketAddr, server: SocketAddr) -> Option<ConnToken>;
    /// Server: prepares the switch of a connection to `ep`, after the `sent` bytes that its client has sent by TCP.
    fn prepare_upgrade(&self, socket: ConnToken, sent: u64, ep: &'static ShmEndpoint) -> UpgradeAnswer;
    /// Server: undoes the preparation after the client has answered that it did not switch to `ep`.
    fn withdraw_upgrade(&self, socket: ConnToken, ep: &'static ShmEndpoint);
    /// Client: sends the upgrade requests that are due. Returns whether others become due later.
    fn request_upgrades(&self) -> bool;
    /// Client: number of bytes that the connection has sent by TCP.
    fn sent_by_kernel(&self, socket: ConnToken) -> u64;
    /// Client: switches to `ep` after the server's side was prepared for the byte after `sent`. False: more bytes were
    /// sent meanwhile.
    fn commit_upgrade(&self, socket: ConnToken, sent: u64, token: [u8; TOKEN], ep: &'static ShmEndpoint) -> bool;
    /// Client: schedules another request after one that was refused or could not be sent.
    fn retry_upgrade_later(&self, socket: ConnToken);
    /// Called before the process ends: decides all prepared upgrades, since the kernel would reset a connection with an
    /// unread token.
    fn decide_upgrades(&self);

    /// Called before the process ends: makes connects that no queue pair has taken by TCP.
    fn settle_queued(&self, until: Deadline);
    /// Makes the due connects that wait for a queue pair and whose program may sleep in a call that is not intercepted.
    /// `before` is called before any wait for another host. Returns whether to check again soon.
    fn tend_queued(&self, before: &dyn Fn()) -> bool;
}

/// What was passed to [`set`].
static HOST: AtomicRef<&'static dyn Host> = AtomicRef::none();

/// Sets the socket layer that the transports of this process work for.
pub fn set(host: &'static &'static dyn Host) {
    HOST.store(Some(host));
}

/// The socket layer; `None`: it was not set yet, so there is no connection.
pub fn host() -> Option<&'static dyn Host> {
    HOST.load().copied()
}
