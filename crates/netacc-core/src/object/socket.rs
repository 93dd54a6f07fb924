//! The socket object: a TCP socket as the application knows it, which its descriptors refer to whatever path the bytes
//! take.
//!
//! The functions of this file need only the object itself. The calls on it are in the higher folders, such as
//! [`crate::conn`].

use crate::object::address::Addr;
use crate::object::candidate::Candidate;
use crate::object::holders::Holders;
use crate::object::instance::Registration;
use crate::object::kept::Kept;
use crate::object::listener::Listener;
use crate::object::pair_name::PairName;
use crate::object::reference::Ref;
pub use crate::object::socket_flags::*;
use crate::object::state;
pub use crate::object::state::{ConnState, ListenState, Path, Upgrade};
use crate::options::remembered::Remembered;
use crate::wait::spin::Spin;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use netacc_stats::{SockEntry, page};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::mem::Zeroed;
use netacc_sys::slab::{Pooled, Slab};
use netacc_sys::{AtomicRef, Lock, lock_rank, raw};
use netacc_transport::Endpoint;
use netacc_transport::host::ConnToken;
use netacc_transport::shm::ShmEndpoint;

/// A TCP socket of the application. Objects are recycled, never freed.
///
/// The lock `rx` serialises reads and `tx` writes; both are held to retire the object. `meta` guards the remembered
/// options.
#[derive(Debug)]
#[repr(align(64))]
pub struct Socket {
    next_free: AtomicRef<Socket>,
    /// Generation of the object; compared under `rx` or `tx`.
    generation: AtomicU32,
    /// Number of descriptors that refer to the object, plus the calls that sleep on it.
    refs: AtomicU32,
    /// Held by the thread that reads.
    pub rx: Lock<{ lock_rank::RX }>,
    /// Held by the thread that writes.
    pub tx: Lock<{ lock_rank::TX }>,
    /// Guards `opts` and state changes.
    pub meta: Lock<{ lock_rank::LEAF }>,
    /// Encoded [`ConnState`], which only [`Socket::set_state`] and [`Socket::change`] change.
    state: AtomicU32,
    flags: AtomicU32,
    /// Held by the thread that is in the kernel's accept(2) at a listener where that may block. It is only tried.
    pub(crate) accepting: Lock<{ lock_rank::NONE }>,
    ep: AtomicRef<ShmEndpoint>,
    listener: AtomicRef<Listener>,
    /// Registrations with epoll instances; see [`crate::epoll`] for the lock.
    pub(crate) registrations: AtomicRef<Registration>,
    /// The descriptor that opened the socket, which is the index of its entry on the stats page.
    fd: AtomicI32,
    /// AF_INET or AF_INET6.
    domain: AtomicU32,
    /// Our own number for it while calls sleep on it whose number the program has closed.
    pub kept: Kept,
    /// SO_RCVTIMEO in nanoseconds; 0: none.
    pub rcvtimeo: AtomicU64,
    /// SO_SNDTIMEO in nanoseconds; 0: none.
    pub sndtimeo: AtomicU64,
    /// The cookie of the kernel's listener that its connection goes to, if the kernel was asked; see
    /// [`crate::conn::reuseport`].
    pub(crate) member: AtomicU64,
    /// Number of calls that were made while the connection was a candidate for promotion.
    pub(crate) calls: AtomicU32,
    /// Number of times that the connect was redispatched since its link was refused, or its process died.
    pub(crate) redispatched: AtomicU32,
    /// Number of bytes that the kernel sent while the connection was a candidate.
    pub(crate) kernel_sent: AtomicU64,
    /// Number of bytes that were received from the kernel while the connection was a candidate.
    pub(crate) kernel_read: AtomicU64,
    /// Data of [`crate::switch::upgrade`] about a candidate whose other end is on another host.
    pub(crate) upgrade: Candidate,
    /// The number of processes that have the connection in a ring. There is a count only while [`SHARED`] is set; if that
    /// is set without a count, it is not known who has the connection.
    pub(crate) holders: Holders,
    /// The forks under way (a bit each, see `Counting`) that have counted their child as a holder.
    pub(crate) counted_by: AtomicU32,
    /// The name of its pair of addresses, if other sockets may share the local port.
    pub(crate) pair_name: PairName,
    /// SO_COOKIE as the program has read it; 0: it has not.
    pub(crate) cookie: AtomicU64,
    /// SO_LINGER: on/off in the upper, seconds in the lower half.
    pub linger: AtomicU64,
    /// Record of how well spinning pays for this socket; see [`crate::wait::spin`].
    pub spin: Spin,
    /// The local address.
    pub local: Addr,
    /// The peer's address.
    pub peer: Addr,
    pub(crate) opts: Remembered,
}

#[allow(unsafe_code)]
mod zeroed {
    // SAFETY: the type consists of atomics, locks and structs of them, for which zero is valid and a fresh object.
    unsafe impl super::Zeroed for super::Socket {}
}

impl Pooled for Socket {
    fn next_free(&self) -> &AtomicRef<Socket> {
        &self.next_free
    }
}

static SOCKETS: Slab<Socket> = Slab::new();

impl Socket {
    /// A fresh object with one reference.
    pub fn alloc(fd: i32, domain: i32, state: ConnState, flags: u32) -> Result<Ref<Socket>> {
        debug_assert!(state.may_follow(None), "a socket that begins as {state:?}");
        let s = SOCKETS.alloc().ok_or(Errno::NOMEM)?;
        s.state.store(state.encode(), Ordering::Relaxed);
        s.flags.store(flags, Ordering::Relaxed);
        s.fd.store(fd, Ordering::Relaxed);
        s.domain.store(domain as u32, Ordering::Relaxed);
        for w in [&s.rcvtimeo, &s.sndtimeo, &s.linger, &s.kernel_sent, &s.kernel_read, &s.member, &s.cookie] {
            w.store(0, Ordering::Relaxed);
        }
        s.calls.store(0, Ordering::Relaxed);
        s.redispatched.store(0, Ordering::Relaxed);
        s.upgrade.reset();
        s.holders.forget();
        s.counted_by.store(0, Ordering::Relaxed);
        s.spin.reset();
        s.local.clear();
        s.peer.clear();
        s.opts.clear();
        s.refs.store(1, Ordering::Release);
        Ok(Ref { obj: s, generation: s.generation.load(Ordering::Relaxed) as u16 })
    }

    /// The encoded state. Acquire pairs with the release in [`Socket::set_state`] and [`Socket::change`]: a thread that
    /// sees a state also sees what that state needs, such as the endpoint.
    #[inline]
    fn word(&self) -> u32 {
        self.state.load(Ordering::Acquire)
    }

    /// The path that the socket is on.
    #[inline]
    pub fn path(&self) -> Path {
        Path::decode(self.word())
    }

    /// The socket's state.
    #[inline]
    pub fn state(&self) -> ConnState {
        ConnState::decode(self.word())
    }

    /// Whether the socket is in exactly this state.
    #[inline]
    pub fn is(&self, state: ConnState) -> bool {
        self.word() == state.encode()
    }

    /// Whether the socket is an accelerated connection.
    #[inline]
    pub fn is_shm(&self) -> bool {
        self.is(ConnState::Shm)
    }

    /// Whether the socket is a connection on kernel TCP that may still switch to a ring.
    #[inline]
    pub fn is_candidate(&self) -> bool {
        self.word() & state::CANDIDATE != 0
    }

    /// The upgrade state of a candidate; `None` for any other socket.
    #[inline]
    pub fn candidate(&self) -> Option<Upgrade> {
        Upgrade::of(self.word())
    }

    /// Whether every call on the socket passes through: it is the kernel's and not a candidate.
    #[inline]
    pub fn is_kernels(&self) -> bool {
        self.word() & (state::PATH | state::CANDIDATE) == Path::Tcp as u32
    }

    /// Whether other processes may have the socket, which is neither connected nor known to listen: another program made
    /// it, or this one has forked or passed it on, and this one has not waited on it.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.word() & state::INHERITED != 0
    }

    /// Whether [`crate::listen::adopt::wake`] has to be called when the program begins to wait on the socket.
    #[inline]
    pub fn sleeps(&self) -> bool {
        self.word() & (state::INHERITED | state::DORMANT) != 0
    }

    /// Changes the state. The caller has stored everything that the new one needs, and keeps other threads from
    /// changing it: by both direction locks if the socket is or becomes a connection in a ring.
    pub fn set_state(&self, to: ConnState) {
        // AcqRel: the release pairs with `word`, and the acquire makes the use of the previous state complete.
        let before = ConnState::decode(self.state.swap(to.encode(), Ordering::AcqRel));
        self.changed(before, to);
    }

    /// Changes the state from `from` to `to`. False: another thread has changed it before.
    pub fn change(&self, from: ConnState, to: ConnState) -> bool {
        // AcqRel: as in `set_state`. Relaxed on failure: the caller then loads the state anew by `word`.
        let done = self.state.compare_exchange(from.encode(), to.encode(), Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if done {
            self.changed(from, to);
        }
        done
    }

    /// Traces a change of the state and asserts that it is allowed.
    fn changed(&self, from: ConnState, to: ConnState) {
        debug_assert!(to.may_follow(Some(from)), "fd {}: {from:?} does not become {to:?}", self.first_fd());
        netacc_log::log!(Trace, "fd {}: {from:?} becomes {to:?}", self.first_fd());
    }

    /// Leaves a socket that neither is connected nor listens to the kernel. Its descriptor already is a real kernel
    /// socket.
    pub fn leave_to_kernel(&self) {
        let from = self.state();
        let to = match from {
            ConnState::New | ConnState::Aborted => ConnState::Tcp,
            ConnState::InheritedNew => ConnState::InheritedTcp,
            _ => return,
        };
        // If this fails, another thread has connected the socket or left it to the kernel.
        self.change(from, to);
    }

    /// Notes that other processes may have an unconnected socket from here on, so that the kernel connects it and shows its
    /// state to all of them. Its descriptor already is a real kernel socket. False: a connection was dissolved there, or
    /// another thread has connected it.
    pub fn let_others_have(&self) -> bool {
        self.is_inherited() || self.change(ConnState::New, ConnState::InheritedNew)
    }

    /// Notes in the child of a fork that a listener which is the kernel's alone is its parent's until the child waits on it.
    pub fn inherit_listener(&self) {
        let _ = self.let_others_have() || self.change(ConnState::Tcp, ConnState::InheritedTcp);
    }

    /// Makes an inherited socket this program's own. False: it was that already.
    pub fn end_inheritance(&self) -> bool {
        self.change(ConnState::InheritedNew, ConnState::New) || self.change(ConnState::InheritedTcp, ConnState::Tcp)
    }

    /// Whether a flag is set. Acquire pairs with the release in `set`.
    #[inline]
    pub fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    /// Sets or clears a flag and returns its previous value.
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
    pub fn endpoint(&self) -> Option<&'static ShmEndpoint> {
        self.ep.load()
    }

    /// The endpoint, if the connection is in a ring.
    #[inline]
    pub fn ring(&self) -> Option<&'static ShmEndpoint> {
        self.endpoint().filter(|_| self.is_shm())
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
        self.ep.store(Some(ep));
    }

    /// The listener part, if the socket is a listener.
    #[inline]
    pub fn listener(&self) -> Option<&'static Listener> {
        self.listener.load()
    }

    /// Attaches the listener part.
    pub fn set_listener(&self, l: &'static Listener) {
        self.listener.store(Some(l));
    }

    /// Detaches the endpoint.
    pub fn drop_endpoint(&self) {
        self.ep.store(None);
    }

    /// Called in the child of a fork for a connection that another thread of the parent was opening at that moment: it
    /// was not prepared for sharing, and belongs to the parent alone.
    pub fn disown(&self) {
        self.drop_endpoint();
        self.set_state(ConnState::Tcp);
    }

    /// Makes a listener an ordinary socket, or one that counts as `inherited`. Returns its state as a listener; `None`: it
    /// is no listener, or no longer one.
    pub fn forget_listener(&self, inherited: bool) -> Option<ListenState> {
        let to = if inherited { ConnState::InheritedTcp } else { ConnState::New };
        loop {
            let was = ConnState::listening(self.word())?;
            if self.change(ConnState::Listener(was), to) {
                self.listener.store(None);
                return Some(was);
            }
        }
    }

    /// Ends the state, whatever it was, after the last reference is gone. Returns a listener's state. Called under both
    /// direction locks.
    pub(crate) fn end_state(&self) -> Option<ListenState> {
        // No other thread changes the state of an object without references. Release: as in `set_state`.
        let before = ConnState::listening(self.word());
        self.state.store(ConnState::New.encode(), Ordering::Release);
        self.listener.store(None);
        before
    }

    /// Makes an IPv6 socket show its addresses as those of an IPv4 socket (IPV6_ADDRFORM).
    pub fn became_ipv4(&self) {
        self.domain.store(libc::AF_INET as u32, Ordering::Relaxed);
    }

    /// AF_INET or AF_INET6.
    pub fn domain(&self) -> i32 {
        self.domain.load(Ordering::Relaxed) as i32
    }

    /// The descriptor that opened the socket.
    pub fn first_fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// The number under which a call that was made with `fd` finds the socket's file: ours, if the program has closed
    /// one meanwhile.
    pub fn kernel_fd(&self, fd: i32) -> i32 {
        match self.kept.fd() {
            -1 => fd,
            kept => kept,
        }
    }

    /// The socket's entry on the stats page.
    #[inline]
    pub fn stats(&self) -> Option<&'static SockEntry> {
        page().sock(self.fd.load(Ordering::Relaxed))
    }

    /// The object's current generation.
    pub fn generation(&self) -> u16 {
        self.generation.load(Ordering::Relaxed) as u16
    }

    /// Whether a call holds a reference in addition to `descriptors` descriptors.
    pub fn is_pinned_beside(&self, descriptors: u32) -> bool {
        self.refs.load(Ordering::Acquire) > descriptors
    }

    /// Counts one more descriptor that refers to the object.
    pub fn add_ref(&self) {
        self.refs.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the reference of a call, unless the last reference is gone.
    pub(crate) fn add_ref_if_used(&self) -> bool {
        let mut n = self.refs.load(Ordering::Relaxed);
        while n != 0 {
            match self.refs.compare_exchange_weak(n, n + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => n = now,
            }
        }
        false
    }

    /// Drops a reference. True if it was the last one.
    pub(crate) fn drop_ref(&self) -> bool {
        self.refs.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// All flags. Acquire pairs with the release in [`Socket::set`].
    pub(crate) fn flags(&self) -> u32 {
        self.flags.load(Ordering::Acquire)
    }

    /// Makes all earlier references invalid by a new generation. Called under both direction locks.
    pub(crate) fn end_life(&self) {
        // A load and a store suffice: the caller had the last reference, so no other thread writes the generation.
        self.generation.store(self.generation.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Detaches the endpoint and returns it.
    pub(crate) fn take_endpoint(&self) -> Option<&'static ShmEndpoint> {
        self.ep.swap(None)
    }

    /// Returns an object whose last reference is gone to its slab.
    pub(crate) fn release(&'static self) {
        SOCKETS.release(self);
    }
}

impl Ref<Socket> {
    /// The token by which a transport names the socket.
    pub(crate) fn token(self) -> ConnToken {
        ConnToken { object: core::ptr::from_ref(self.obj).addr(), generation: self.generation }
    }

    /// Whether the object still is the socket that was looked up. The answer stays true only under `rx` or `tx`.
    #[inline]
    pub fn valid(&self) -> bool {
        self.obj.generation() == self.generation
    }
}

impl Socket {
    /// Applies all options of the socket to the kernel socket that replaces it.
    pub fn apply_options(&self, fd: i32) {
        self.opts.apply(fd);
        for (name, ns) in [(libc::SO_RCVTIMEO, &self.rcvtimeo), (libc::SO_SNDTIMEO, &self.sndtimeo)] {
            let ns = ns.load(Ordering::Relaxed) as i64;
            if ns != 0 {
                let tv = libc::timeval { tv_sec: ns / 1_000_000_000, tv_usec: ns % 1_000_000_000 / 1000 };
                let _ = raw::setsockopt(
                    fd,
                    libc::SOL_SOCKET,
                    name,
                    (&raw const tv).cast(),
                    size_of::<libc::timeval>() as u32,
                );
            }
        }
        let l = self.linger.load(Ordering::Relaxed);
        if l != 0 {
            let v = [(l >> 32) as i32, l as u32 as i32];
            let _ = raw::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, v.as_ptr().cast(), 8);
        }
    }

    /// Undoes an acceleration that failed. If the peer has seen the connection, it sees a reset.
    pub fn detach(&self) {
        if let Some(ep) = self.endpoint() {
            ep.close(true);
        }
        self.ep.store(None);
    }
}
