//! A TCP socket as the application knows it: what its descriptors refer to, whichever path its bytes take.

pub mod abort;
pub mod accept;
pub mod adopt;
pub mod beliefs;
pub mod closing;
pub mod connect;
pub mod connected;
pub mod control;
mod cork;
pub mod create;
mod crowd;
mod current;
pub mod demote;
pub mod fd_cache;
pub mod file;
mod held_port;
pub mod io;
pub mod kernel_options;
pub mod listen;
pub mod listener;
pub mod msg;
pub mod opts;
pub mod pair;
pub mod pool;
pub mod ports;
pub mod promote;
pub mod queued_connects;
pub mod redispatch;
pub mod relay;
pub mod remembered;
pub mod reuseport;
pub mod ring_relay;
pub mod shed;
mod taking;
pub mod upgrade;
pub mod upgrade_client;
pub mod withdrawal;

use crate::epoll::Registration;
use crate::fdtable::Ref;
use crate::socket::listen::Listener;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use netacc_stats::{SockEntry, page};
use netacc_sys::Lock;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::mem::Zeroed;
use netacc_sys::slab::{Pooled, Slab};
use netacc_transport::Endpoint;
use netacc_transport::shm::ShmEndpoint;

/// The path that a socket is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Path {
    /// Not connected and not listening.
    New = 0,
    /// It is the kernel's: every call passes through.
    Tcp = 1,
    /// A endpoint in shared memory.
    Shm = 2,
    /// A listener with a rendezvous.
    Listener = 3,
}

netacc_sys::flags! { SocketFlag:
    /// [`Socket::flags`]: O_NONBLOCK of the file description.
    pub const NONBLOCK;
    /// The descriptor is a duplicate of a template: it stands for a socket the kernel does not have yet.
    pub const PLACEHOLDER;
    /// A non-blocking connect was answered with EINPROGRESS; the next connect(2) reports success.
    pub const CONNECTING;
    /// SO_LINGER is on with time 0: close resets.
    pub const LINGER_RESET;
    /// On TCP, and may be promoted: its bytes pass through our hands.
    pub const CANDIDATE;
    /// Of a candidate: we connected, so we make the offer.
    pub const OFFERS;
    /// Of a candidate that makes the offer: a thread has begun to, or the other host is being asked.
    pub const LINKING;
    /// Of a candidate: the other end is on another host; see [`upgrade`].
    pub const REMOTE;
    /// Of a candidate at a server, whose client is on another host: the client may go over at the byte that is read next.
    pub const PREPARED;
    /// Accepted under a number that is closed on exec, and that nothing else has been made of: see [`cached`].
    pub const KEEPABLE;
    /// The process forked while this connection was open.
    pub const SHARED;
    /// A connection was aborted: the kernel's socket shows a port that it does not hold.
    pub const ABORTED;
    /// Left shared memory for a kernel socket, whose addresses are not those of the connection.
    pub const DEMOTED;
    /// A program that is started is meant to have a number of this socket.
    pub const HANDED;
    /// bind(2) was called on a dead connection.
    pub const REBOUND;
    /// A listener that the program did not make and has not waited on: see [`adopt`].
    pub const INHERITED;
    /// A listener that clients on other hosts cannot find yet: the program has not waited on it.
    pub const DORMANT;
    /// A listener on which the program waits, and that clients on other hosts cannot find for want of an RDMA device.
    pub const UNHEARD;
    /// Another file was put over one of its numbers (dup2, dup3).
    pub const REPLACED;
    /// An option about the connection's packets was set, of which the kernel can be asked: see [`kernel_options`].
    pub const KERNEL_OPTIONS;
    /// TCP_INQ: recvmsg(2) tells how many bytes are left to read.
    pub const INQ;
    /// An accepted connection whose listener is closed: see [`held_port`].
    pub const HOLDS_PORT;
    /// As [`KERNEL_OPTIONS`], and it cannot be asked.
    pub const SIGNED;
}

/// An IP address and port in atomics.
#[derive(Debug, Default)]
pub struct Addr {
    ip: [AtomicU64; 2],
    /// Bit 32: set; bit 33: IPv6; low 16: port.
    port: AtomicU64,
}

impl Addr {
    /// Stores an address.
    pub fn set(&self, a: SocketAddr) {
        let (n, v6) = match a.ip() {
            IpAddr::V4(ip) => (u128::from(u32::from(ip)), 0),
            IpAddr::V6(ip) => (u128::from(ip), 1 << 33),
        };
        let [hi, lo] = &self.ip;
        hi.store((n >> 64) as u64, Ordering::Relaxed);
        lo.store(n as u64, Ordering::Relaxed);
        self.port.store(1 << 32 | v6 | u64::from(a.port()), Ordering::Release);
    }

    /// The address, if one was stored.
    pub fn get(&self) -> Option<SocketAddr> {
        let p = self.port.load(Ordering::Acquire);
        if p & 1 << 32 == 0 {
            return None;
        }
        let [hi, lo] = &self.ip;
        let low = lo.load(Ordering::Relaxed);
        let ip = if p & 1 << 33 == 0 {
            Ipv4Addr::from(low as u32).into()
        } else {
            Ipv6Addr::from(u128::from(hi.load(Ordering::Relaxed)) << 64 | u128::from(low)).into()
        };
        Some(SocketAddr::new(ip, p as u16))
    }

    fn clear(&self) {
        self.port.store(0, Ordering::Relaxed);
    }
}

/// A socket. Objects are recycled, never freed.
///
/// Reads are serialised by `rx`, writes by `tx`; both are held to retire the object. `meta` guards the
/// remembered options.
#[derive(Debug)]
#[repr(align(64))]
pub struct Socket {
    next_free: AtomicPtr<Socket>,
    /// Which life of the object this is; compared under `rx` or `tx`.
    generation: AtomicU32,
    /// Number of descriptors that refer to it, and of calls that sleep on it.
    refs: AtomicU32,
    /// Held by the thread that reads.
    pub rx: Lock,
    /// Held by the thread that writes.
    pub tx: Lock,
    /// Guards `opts` and state changes.
    pub meta: Lock,
    path: AtomicU32,
    flags: AtomicU32,
    ep: AtomicPtr<ShmEndpoint>,
    listener: AtomicPtr<Listener>,
    /// Registrations with epoll instances; see [`crate::epoll`] for the lock.
    pub(crate) registrations: AtomicPtr<Registration>,
    /// The descriptor that opened it: its entry on the stats page.
    fd: AtomicI32,
    /// AF_INET or AF_INET6.
    domain: AtomicU32,
    /// SO_RCVTIMEO and SO_SNDTIMEO in nanoseconds; 0: none.
    pub rcvtimeo: AtomicU64,
    /// See `rcvtimeo`.
    pub sndtimeo: AtomicU64,
    /// The cookie of the kernel's listener that its connection goes to, if the kernel was asked; see [`reuseport`].
    pub(crate) member: AtomicU64,
    /// Number of calls that were made while it was a candidate for promotion.
    pub(crate) calls: AtomicU32,
    /// How many times its connect was made again over another link.
    pub(crate) redispatched: AtomicU32,
    /// Number of bytes that the kernel sent while it was a candidate.
    pub(crate) kernel_sent: AtomicU64,
    /// Number of bytes that were received from the kernel while it was a candidate.
    pub(crate) kernel_read: AtomicU64,
    /// What [`upgrade`] keeps of a candidate whose other end is on another host.
    pub(crate) upgrade: upgrade::Candidate,
    /// SO_LINGER: on/off in the upper, seconds in the lower half.
    pub linger: AtomicU64,
    /// How much spinning for this socket pays; see [`crate::wait`].
    pub spin: crate::wait::Spin,
    /// The local address.
    pub local: Addr,
    /// The peer's address.
    pub peer: Addr,
    pub(crate) opts: opts::Remembered,
}

#[allow(unsafe_code)]
mod zeroed {
    // SAFETY: only atomics, locks and structs of them; zero is a fresh object.
    unsafe impl super::Zeroed for super::Socket {}
}

impl Pooled for Socket {
    fn next_free(&self) -> &AtomicPtr<Socket> {
        &self.next_free
    }
}

static SOCKETS: Slab<Socket> = Slab::new();

impl Socket {
    /// A fresh object with one reference.
    pub fn alloc(fd: i32, domain: i32, flags: u32) -> Result<Ref<Socket>> {
        let s = SOCKETS.alloc().ok_or(Errno::NOMEM)?;
        s.path.store(Path::New as u32, Ordering::Relaxed);
        s.flags.store(flags, Ordering::Relaxed);
        s.fd.store(fd, Ordering::Relaxed);
        s.domain.store(domain as u32, Ordering::Relaxed);
        for w in [&s.rcvtimeo, &s.sndtimeo, &s.linger, &s.kernel_sent, &s.kernel_read, &s.member] {
            w.store(0, Ordering::Relaxed);
        }
        s.calls.store(0, Ordering::Relaxed);
        s.redispatched.store(0, Ordering::Relaxed);
        s.upgrade.reset();
        s.spin.reset();
        s.local.clear();
        s.peer.clear();
        s.opts.clear();
        s.refs.store(1, Ordering::Release);
        Ok(Ref { obj: s, generation: s.generation.load(Ordering::Relaxed) as u16 })
    }

    /// The path that it is on.
    #[inline]
    pub fn path(&self) -> Path {
        match self.path.load(Ordering::Acquire) {
            1 => Path::Tcp,
            2 => Path::Shm,
            3 => Path::Listener,
            _ => Path::New,
        }
    }

    /// Changes the path; everything that the new path needs was stored before.
    pub fn set_path(&self, p: Path) {
        self.path.store(p as u32, Ordering::Release);
    }

    /// Whether a flag is set. Acquire, with the release in `set`: a thread that sees `CANDIDATE` gone sees the path
    /// that was stored before.
    #[inline]
    pub fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    /// Sets or clears a flag and returns what it was.
    pub fn set(&self, flag: u32, on: bool) -> bool {
        let old = if on {
            self.flags.fetch_or(flag, Ordering::AcqRel)
        } else {
            self.flags.fetch_and(!flag, Ordering::AcqRel)
        };
        old & flag != 0
    }

    /// The endpoint, if the socket is on the shm path.
    #[inline]
    #[allow(unsafe_code)]
    pub fn endpoint(&self) -> Option<&'static ShmEndpoint> {
        // SAFETY: null or an endpoint, which lives inside a link and is never freed.
        unsafe { self.ep.load(Ordering::Acquire).as_ref() }
    }

    /// Attaches an endpoint.
    pub fn set_endpoint(&'static self, ep: &'static ShmEndpoint) {
        ep.owner.store(core::ptr::from_ref(self) as usize, Ordering::Release);
        if let Some(n) = self.opts.get(libc::SOL_SOCKET, libc::SO_RCVLOWAT) {
            ep.set_lowat(n as u32);
        }
        self.opts.bound(ep);
        if self.opts.is_corked() {
            ep.set_cork(true);
        }
        self.ep.store(core::ptr::from_ref(ep).cast_mut(), Ordering::Release);
    }

    /// The listener part, if the socket is a listener.
    #[inline]
    #[allow(unsafe_code)]
    pub fn listener(&self) -> Option<&'static Listener> {
        // SAFETY: null or a listener object, which is never freed.
        unsafe { self.listener.load(Ordering::Acquire).as_ref() }
    }

    /// Makes it a listener.
    pub fn set_listener(&self, l: &'static Listener) {
        self.listener.store(core::ptr::from_ref(l).cast_mut(), Ordering::Release);
    }

    /// Detaches the endpoint.
    pub fn drop_endpoint(&self) {
        self.ep.store(core::ptr::null_mut(), Ordering::Release);
    }

    /// In the child of a fork: another thread of the parent opened the connection at the same moment, and it was not
    /// prepared for two processes. It belongs to the parent alone.
    pub fn disown(&self) {
        self.drop_endpoint();
        self.set_path(Path::Tcp);
        self.set(CANDIDATE, false);
    }

    /// Makes it an ordinary socket: it is a listener no longer.
    pub fn forget_listener(&self) {
        self.set_path(Path::New);
        self.listener.store(core::ptr::null_mut(), Ordering::Release);
    }

    /// Shows its addresses as those of an IPv4 socket from now on; it was an IPv6 one.
    pub fn became_ipv4(&self) {
        self.domain.store(libc::AF_INET as u32, Ordering::Relaxed);
    }

    /// AF_INET or AF_INET6.
    pub fn domain(&self) -> i32 {
        self.domain.load(Ordering::Relaxed) as i32
    }

    /// The descriptor that opened it.
    pub fn first_fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Its entry on the stats page.
    #[inline]
    pub fn stats(&self) -> Option<&'static SockEntry> {
        page().sock(self.fd.load(Ordering::Relaxed))
    }

    /// Its current generation.
    pub fn generation(&self) -> u16 {
        self.generation.load(Ordering::Relaxed) as u16
    }

    /// Whether anything but a single descriptor refers to it.
    pub fn is_pinned(&self) -> bool {
        self.refs.load(Ordering::Acquire) > 1
    }

    /// Whether a call refers to it in addition to `descriptors` descriptors.
    pub fn is_pinned_beside(&self, descriptors: u32) -> bool {
        self.refs.load(Ordering::Acquire) > descriptors
    }

    /// Counts one more descriptor that refers to it.
    pub fn add_ref(&self) {
        self.refs.fetch_add(1, Ordering::Relaxed);
    }
}

impl Ref<Socket> {
    /// Whether the object is still the one that was looked up. Decisive only under `rx` or `tx`.
    #[inline]
    pub fn valid(&self) -> bool {
        self.obj.generation() == self.generation
    }

    /// Keeps the object from being retired while a call sleeps on it: close(2) in another thread then
    /// takes effect when the call returns, as in the kernel.
    pub fn pin(self) -> Option<Pin> {
        let s = self.obj;
        let mut n = s.refs.load(Ordering::Relaxed);
        loop {
            if n == 0 {
                return None;
            }
            match s.refs.compare_exchange_weak(n, n + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => n = now,
            }
        }
        let pin = Pin { sock: self };
        // A recycled object has another generation; dropping the pin gives its reference back.
        self.valid().then_some(pin)
    }
}

/// A reference held by a sleeping call.
#[derive(Debug)]
pub struct Pin {
    sock: Ref<Socket>,
}

impl Pin {
    /// The socket it holds.
    pub fn sock(&self) -> Ref<Socket> {
        self.sock
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        put(self.sock.obj);
    }
}

/// Drops a reference; the last one ends the connection. True if that left nothing behind the number, so that the number
/// may be kept.
pub fn put(s: &'static Socket) -> bool {
    s.refs.fetch_sub(1, Ordering::AcqRel) == 1 && retire(s)
}

fn retire(s: &'static Socket) -> bool {
    crate::epoll::forget_socket(s);
    // Both directions: a call that looked the object up before finishes first, and a later one sees the new generation
    // and reports EBADF.
    let rx = s.rx.lock();
    let tx = s.tx.lock();
    let path = s.path();
    // Under the locks: a thread that puts a kernel socket under the number holds them, and finds the socket retired
    // from here on.
    let cached = path == Path::Shm
        && s.flags.load(Ordering::Acquire) & (KEEPABLE | PLACEHOLDER | SHARED | HANDED) == KEEPABLE | PLACEHOLDER;
    if let Some(e) = s.stats() {
        e.close();
    }
    // No other thread writes it: we had the last reference.
    s.generation.store(s.generation.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    crate::fork::unshare_if_alone(s);
    let ep = s.ep.swap(core::ptr::null_mut(), Ordering::AcqRel);
    let listener = s.listener();
    s.listener.store(core::ptr::null_mut(), Ordering::Relaxed);
    s.set_path(Path::New);
    #[allow(unsafe_code)]
    // SAFETY: as in `endpoint`.
    if let Some(ep) = unsafe { ep.as_ref() } {
        if path != Path::Shm {
            // A promotion was offered and not taken up.
            ep.withdraw();
            ep.close(false);
        } else if s.has(SHARED) {
            ep.leave_shared();
        } else {
            ep.close(s.has(LINGER_RESET));
        }
    }
    drop((rx, tx));
    if s.has(HOLDS_PORT) {
        held_port::left(s);
    }
    if let Some(l) = listener {
        if l.many.load(Ordering::Relaxed) == 0 {
            held_port::keep(s);
        }
        l.close();
    }
    SOCKETS.release(s);
    cached
}

/// Called in the child of a fork: frees the locks of objects that other threads of the parent held.
pub fn reset_locks() {
    SOCKETS.reset_lock();
    listener::LISTENERS.reset_lock();
}

impl Socket {
    /// Undoes an acceleration that failed; the peer sees a reset, if it sees anything.
    pub fn detach(&self) {
        if let Some(ep) = self.endpoint() {
            ep.close(true);
        }
        self.ep.store(core::ptr::null_mut(), Ordering::Release);
    }
}

/// Writes an address as the kernel has it into a buffer of ours.
pub(crate) fn addr_of(a: SocketAddr, domain: i32, buf: &mut [u64; 4], len: &mut u32) {
    *len = 32;
    netacc_sys::addr::write(a, domain, buf.as_mut_ptr().cast(), len);
}
