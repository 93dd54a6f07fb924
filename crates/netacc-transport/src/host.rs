//! What a transport may know of the program that it works for.
//!
//! A transport lies below the socket layer and calls nothing of it but this trait, which the socket layer implements and
//! [sets](set) before the first connection. So nothing in this crate depends on what a socket is.

use crate::shm::claim::Claim;
use crate::shm::{Link, ShmEndpoint};
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicPtr, Ordering};
use netacc_conf::Config;
use netacc_stats::{Reason, SockEntry};
use netacc_sys::Guard;
use netacc_sys::time::Deadline;
use netacc_wire::companion::{OwnPort, TOKEN};

/// A socket of the program as the socket layer names it: an address and an incarnation, which mean nothing here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnToken {
    /// The address of the socket's object.
    pub object: usize,
    /// The object's generation.
    pub generation: u16,
}

/// A connection of the program that goes over rings at present.
#[derive(Clone, Copy, Debug)]
pub struct ProgramConn {
    /// Its socket.
    pub socket: ConnToken,
    /// Its side of the ring.
    pub ep: &'static ShmEndpoint,
    /// Its local and its peer's address, if they are known.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// Its entry on the stats page.
    pub stats: Option<&'static SockEntry>,
    /// Whether other processes have it as well since a fork.
    pub shared: bool,
}

/// A direction of a connection's bytes, seen from the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// What the program reads.
    Read,
    /// What the program writes.
    Write,
}

/// What has become known of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// A queue pair to the host was established.
    Reached,
    /// The host has answered, and no queue pair was established: connects to it wait until one was.
    Broken,
    /// The destination does not want to be reached by RDMA, for this reason.
    Refused(Reason),
}

/// When silence ends a connection, by a socket's options (tcp(7)).
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
    /// It is prepared. The client goes over by writing this token into the TCP stream.
    Ready([u8; TOKEN]),
    /// The program has not read all that the client has sent.
    NotYet,
    /// The client may not go over.
    No,
}

/// The socket layer, as a transport sees it.
pub trait Host: Sync {
    /// The configuration in force; `None`: the process has none yet.
    fn config(&self) -> Option<&'static Config>;

    /// Whether no forked descendant can hold a connection of ours any more. Asks the kernel.
    fn is_alone(&self) -> bool;
    /// As [`Host::is_alone`], as far as is known without asking the kernel.
    fn has_no_children(&self) -> bool;
    /// Whether a thread is about to fork: what it has shared stays where it is until the child exists.
    fn is_fork_under_way(&self) -> bool;

    /// Claims a slot for a connect from `client`, on another host, to `server`, a listener of this host.
    fn claim(&self, client: SocketAddr, server: SocketAddr) -> Result<Claim, Reason>;
    /// Claims a slot for a connect to `server`, on another host, on exactly this link.
    fn claim_remote(&self, server: SocketAddr, link: &'static Link) -> Result<Claim, Reason>;

    /// Notes what has become known of a destination.
    fn learn(&self, dest: SocketAddr, what: Reachability);
    /// Whether the host's last answer led to no queue pair ([`Reachability::Broken`]).
    fn is_doubted(&self, ip: IpAddr) -> bool;
    /// Whether the companion connection of a queue pair may come to this port, at which the program listens.
    fn takes_companions(&self, port: u16) -> OwnPort;

    /// Calls `f` with each connection of the program that goes over rings.
    fn each_conn(&self, f: &mut dyn FnMut(&ProgramConn));
    /// The entry on the stats page of the socket at a client's end of a slot, if the program has it.
    fn stats_of(&self, ep: &'static ShmEndpoint) -> Option<&'static SockEntry>;
    /// When silence ends the connection.
    fn patience(&self, socket: ConnToken) -> Patience;
    /// Whether any socket ever had `SO_KEEPALIVE` set: a transport need not ask each of them otherwise.
    fn has_keepalive(&self) -> bool;
    /// Keeps other threads from moving bytes of the connection in this direction, and from moving the connection, as long
    /// as the guard lives. `None`: another thread does so just now, or the socket no longer stands for `ep`. Never waits.
    fn try_hold(&self, socket: ConnToken, ep: &'static ShmEndpoint, direction: Direction) -> Option<Guard<'static>>;

    /// Server: the connection between these addresses that its client asks to upgrade, if it is one of this process.
    fn upgrade_candidate(&self, client: SocketAddr, server: SocketAddr) -> Option<ConnToken>;
    /// Server: the client has sent `sent` bytes by TCP, and would go over to `ep`.
    fn prepare_upgrade(&self, socket: ConnToken, sent: u64, ep: &'static ShmEndpoint) -> UpgradeAnswer;
    /// Server: the client says that it has not gone over to `ep`.
    fn withdraw_upgrade(&self, socket: ConnToken, ep: &'static ShmEndpoint);
    /// Client: has the connections ask for their upgrade that want to. Returns whether some want to ask later.
    fn request_upgrades(&self) -> bool;
    /// Client: number of bytes that the connection has sent by TCP.
    fn sent_by_kernel(&self, socket: ConnToken) -> u64;
    /// Client: the server's side is prepared for the byte after `sent`. Goes over to `ep`; false: more was sent meanwhile.
    fn commit_upgrade(&self, socket: ConnToken, sent: u64, token: [u8; TOKEN], ep: &'static ShmEndpoint) -> bool;
    /// Client: the upgrade was refused, or could not be asked for; the connection asks again later.
    fn retry_upgrade_later(&self, socket: ConnToken);
    /// Before the process ends: decides what is prepared, since the kernel would reset a connection for a token that
    /// nobody has read.
    fn decide_upgrades(&self);

    /// Before the process ends: connects that no queue pair has taken are made by TCP.
    fn settle_queued(&self, until: Deadline);
    /// Looks after connects that wait for a queue pair and whose program may wait in a call that is none of ours. `before`
    /// is called before anything that may wait for another host. Returns whether to look again soon.
    fn tend_queued(&self, before: &dyn Fn()) -> bool;
}

/// Address of the reference that [`set`] was given; null: none.
static HOST: AtomicPtr<&'static dyn Host> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the socket layer that the transports of this process work for.
pub fn set(host: &'static &'static dyn Host) {
    // Release: a thread that finds the reference finds what it refers to.
    HOST.store(core::ptr::from_ref(host).cast_mut(), Ordering::Release);
}

/// The socket layer; `None`: there is none yet, and no connection that anything could be asked about.
#[allow(unsafe_code)]
pub fn host() -> Option<&'static dyn Host> {
    // SAFETY: null, or a reference that lives for ever.
    unsafe { HOST.load(Ordering::Acquire).as_ref() }.copied()
}
