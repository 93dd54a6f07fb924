//! Communication identifiers: listeners and connections.
//!
//! # Safety
//! The pointer is valid until the identifier is dropped; its queue pair goes before it and its channel
//! after it. The library fills in fields (device, addresses) while it handles the identifier's own
//! calls and events, before these are reported.
#![allow(unsafe_code)]

use super::channel::EventChannel;
use crate::context::Context;
use crate::error::{Error, Result, check};
use crate::pd::Pd;
use crate::qp::{Qp, QpInit};
use crate::sys::*;
use core::ffi::{c_int, c_uint, c_void};
use core::net::SocketAddr;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};

/// The parameters of a new connection (`struct rdma_conn_param`).
#[derive(Clone, Copy, Debug)]
pub struct ConnParam<'a> {
    /// Bytes that the other side gets with the request or the acceptance; at most
    /// [`super::CONNECT_PRIVATE_DATA`] or [`super::ACCEPT_PRIVATE_DATA`].
    pub private_data: &'a [u8],
    /// How many RDMA reads of the other side we serve at once.
    pub responder_resources: u8,
    /// How many RDMA reads we have under way at once.
    pub initiator_depth: u8,
    /// How often an unacknowledged message is sent again, at most 7 times.
    pub retry_count: u8,
    /// How often a message is sent again because the other side has no receive posted; 7 means for ever. iWARP gives up
    /// at once.
    pub rnr_retry_count: u8,
}

impl Default for ConnParam<'_> {
    fn default() -> Self {
        // The retry count is 6 because soft RoCE takes 7 as "for ever" there too.
        ConnParam { private_data: &[], responder_resources: 1, initiator_depth: 1, retry_count: 6, rnr_retry_count: 7 }
    }
}

impl ConnParam<'_> {
    fn raw(&self, verb: &'static str) -> Result<rdma_conn_param> {
        let private_data_len = u8::try_from(self.private_data.len())
            .map_err(|_| Error::Misuse { verb, why: "more than 255 bytes of private data" })?;
        Ok(rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: 0,
            qp_num: 0,
        })
    }
}

/// A communication identifier (`struct rdma_cm_id`), of a listener or of a connection.
#[derive(Debug)]
pub struct CmId {
    raw: NonNull<rdma_cm_id>,
    qp: Option<Qp>,
    channel: EventChannel,
}

// SAFETY: librdmacm is thread-safe: several threads may use one identifier at once.
unsafe impl Send for CmId {}
// SAFETY: librdmacm is thread-safe: several threads may use one identifier at once.
unsafe impl Sync for CmId {}

impl Drop for CmId {
    fn drop(&mut self) {
        self.destroy_qp();
        // SAFETY: the identifier is ours, has no queue pair any more, and all of its events are acknowledged.
        unsafe { (self.channel.api().cma.rdma_destroy_id)(self.raw()) };
    }
}

impl CmId {
    /// A new identifier for reliable connections (`rdma_create_id`). Its events go to `channel` and name it by
    /// `cookie`.
    pub fn create(channel: &EventChannel, cookie: u64) -> Result<CmId> {
        let mut raw = ptr::null_mut();
        let context = ptr::without_provenance_mut(cookie as usize);
        // SAFETY: the channel exists, and `raw` is room for the identifier's address.
        check("rdma_create_id", unsafe {
            (channel.api().cma.rdma_create_id)(channel.raw(), &raw mut raw, context, RDMA_PS_TCP)
        })?;
        let raw = NonNull::new(raw).ok_or(Error::Misuse { verb: "rdma_create_id", why: "gave no identifier" })?;
        Ok(CmId { raw, qp: None, channel: channel.clone() })
    }

    /// Takes over an identifier that came with an event.
    ///
    /// # Safety
    /// Nobody else has the identifier; it is on `channel`, has no queue pair, and its event is acknowledged.
    pub(super) unsafe fn wrap(raw: NonNull<rdma_cm_id>, channel: EventChannel) -> CmId {
        CmId { raw, qp: None, channel }
    }

    fn raw(&self) -> *mut rdma_cm_id {
        self.raw.as_ptr()
    }

    fn cma(&self) -> &'static Cma {
        &self.channel.api().cma
    }

    fn misuse(verb: &'static str, why: &'static str) -> Error {
        Error::Misuse { verb, why }
    }

    /// The device that the identifier is on, or an error if there is none yet: in many calls the library follows this
    /// pointer without checking it.
    fn need_device(&self, verb: &'static str) -> Result<NonNull<ibv_context>> {
        // SAFETY: the identifier exists, and the library writes the field only before it reports the step that sets it.
        let verbs = unsafe { (*self.raw()).verbs };
        NonNull::new(verbs).ok_or(Self::misuse(verb, "the identifier is on no device yet"))
    }

    /// # Safety
    /// `raw` is an identifier that exists while the result is used.
    unsafe fn cookie_place<'a>(raw: *mut rdma_cm_id) -> &'a AtomicPtr<c_void> {
        // SAFETY: the identifier exists, and its `context` is for our use: the library only copies it for a connect
        // request. It is atomic, because one thread may set it while another gets an event.
        unsafe { AtomicPtr::from_ptr(&raw mut (*raw).context) }
    }

    /// # Safety
    /// `raw` is an identifier that exists.
    pub(super) unsafe fn cookie_of(raw: *mut rdma_cm_id) -> u64 {
        // SAFETY: the caller guarantees that the identifier exists. Relaxed suffices: the cookie is a number that
        // orders nothing else.
        unsafe { Self::cookie_place(raw) }.load(Ordering::Relaxed).addr() as u64
    }

    /// The cookie by which events name the identifier.
    pub fn cookie(&self) -> u64 {
        // SAFETY: the identifier exists until it is dropped.
        unsafe { Self::cookie_of(self.raw()) }
    }

    /// Sets the cookie by which events name the identifier. One that came with a connect request has the listener's
    /// cookie at first; the first event about itself can come after [`CmId::accept`].
    pub fn set_cookie(&self, cookie: u64) {
        let cookie = ptr::without_provenance_mut(cookie as usize);
        // SAFETY: the identifier exists until it is dropped.
        unsafe { Self::cookie_place(self.raw()) }.store(cookie, Ordering::Relaxed);
    }

    /// The channel on which its events arrive.
    pub fn channel(&self) -> &EventChannel {
        &self.channel
    }

    /// Moves its events to another channel, including those that are waiting (`rdma_migrate_id`).
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<()> {
        // SAFETY: the identifier and the new channel exist.
        check("rdma_migrate_id", unsafe { (self.cma().rdma_migrate_id)(self.raw(), channel.raw()) })?;
        self.channel = channel.clone();
        Ok(())
    }

    fn set_option<T>(&self, name: c_int, mut value: T) -> Result<()> {
        let value = (&raw mut value).cast();
        // SAFETY: the identifier exists, and `value` points to as many bytes as the last argument says.
        check("rdma_set_option", unsafe {
            (self.cma().rdma_set_option)(self.raw(), RDMA_OPTION_ID, name, value, size_of::<T>())
        })
    }

    /// Sets the type of service of its packets (`RDMA_OPTION_ID_TOS`).
    pub fn set_tos(&self, tos: u8) -> Result<()> {
        self.set_option(RDMA_OPTION_ID_TOS, tos)
    }

    /// Sets how long a message may remain unacknowledged before it is sent again: 4.096 microseconds times two to the
    /// power of `exponent` (`RDMA_OPTION_ID_ACK_TIMEOUT`). It must be set before the route is resolved; the other
    /// side's queue pair gets it too. iWARP has no such time.
    pub fn set_ack_timeout(&self, exponent: u8) -> Result<()> {
        self.set_option(RDMA_OPTION_ID_ACK_TIMEOUT, exponent)
    }

    /// Sets whether other identifiers may have its port too, as `SO_REUSEADDR` does.
    pub fn set_reuse_addr(&self, on: bool) -> Result<()> {
        self.set_option(RDMA_OPTION_ID_REUSEADDR, c_int::from(on))
    }

    /// Sets whether an IPv6 listener takes IPv6 only, as `IPV6_V6ONLY` does.
    pub fn set_af_only(&self, on: bool) -> Result<()> {
        self.set_option(RDMA_OPTION_ID_AFONLY, c_int::from(on))
    }

    /// Gives it a local address and port (`rdma_bind_addr`); the kernel chooses a port for 0. A wildcard address
    /// leaves it without a device.
    pub fn bind_addr(&self, address: SocketAddr) -> Result<()> {
        let mut address = sockaddr_storage::new(address);
        // SAFETY: the identifier exists, and `address` has room for any address of the family that it names.
        check("rdma_bind_addr", unsafe { (self.cma().rdma_bind_addr)(self.raw(), (&raw mut address).cast()) })
    }

    /// Finds the device that leads to an address (`rdma_resolve_addr`). An event reports the outcome.
    ///
    /// Ask with a short time-out first and again with a longer one. The kernel (6.1 at least) misses a neighbour's
    /// answer that comes while it is still asking, as it always does over veth, and looks again only when
    /// the time is over: then it reports success, but late. After an `ADDR_ERROR` the same identifier may ask again.
    pub fn resolve_addr(&self, source: Option<SocketAddr>, destination: SocketAddr, timeout_ms: u32) -> Result<()> {
        let mut from = source.map(sockaddr_storage::new);
        let mut to = sockaddr_storage::new(destination);
        let from = from.as_mut().map_or(ptr::null_mut(), |from| (&raw mut *from).cast());
        let timeout = c_int::try_from(timeout_ms).unwrap_or(c_int::MAX);
        // SAFETY: the identifier exists; `to` and, unless it is null, `from` have room for any address of their family.
        check("rdma_resolve_addr", unsafe {
            (self.cma().rdma_resolve_addr)(self.raw(), from, (&raw mut to).cast(), timeout)
        })
    }

    /// Finds the route (`rdma_resolve_route`), once the address is resolved. An event reports the outcome.
    pub fn resolve_route(&self, timeout_ms: u32) -> Result<()> {
        const VERB: &str = "rdma_resolve_route";
        self.need_device(VERB)?;
        let timeout = c_int::try_from(timeout_ms).unwrap_or(c_int::MAX);
        // SAFETY: the identifier exists and is on a device, as the library takes for granted.
        check(VERB, unsafe { (self.cma().rdma_resolve_route)(self.raw(), timeout) })
    }

    /// Takes connect requests from now on (`rdma_listen`). siw listens on the TCP port of the same number, so the call
    /// fails with `EADDRINUSE` if that is taken, even though the port was free for RDMA.
    pub fn listen(&self, backlog: u32) -> Result<()> {
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        // SAFETY: the identifier exists until it is dropped.
        check("rdma_listen", unsafe { (self.cma().rdma_listen)(self.raw(), backlog) })
    }

    /// Asks the other side for the connection (`rdma_connect`). An event reports the outcome. Receives must be posted
    /// before.
    ///
    /// siw connects its TCP socket before this returns, so there the call itself fails when it is refused,
    /// and a host that does not answer blocks it. The local port may be taken as well: see [`Error::is_port_taken`].
    pub fn connect(&self, param: &ConnParam<'_>) -> Result<()> {
        self.answer("rdma_connect", self.cma().rdma_connect, param)
    }

    /// Accepts a connect request (`rdma_accept`). Receives must be posted before.
    pub fn accept(&self, param: &ConnParam<'_>) -> Result<()> {
        self.answer("rdma_accept", self.cma().rdma_accept, param)
    }

    fn answer(
        &self,
        verb: &'static str,
        call: unsafe extern "C" fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int,
        param: &ConnParam<'_>,
    ) -> Result<()> {
        self.need_device(verb)?;
        if self.qp.is_none() {
            return Err(Self::misuse(verb, "the identifier has no queue pair"));
        }
        let mut param = param.raw(verb)?;
        // SAFETY: the identifier is on a device and has a queue pair; the private data outlives the call.
        check(verb, unsafe { call(self.raw(), &raw mut param) })
    }

    /// Refuses a connect request, with private data for the other side (`rdma_reject`).
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        const VERB: &str = "rdma_reject";
        let len =
            u8::try_from(private_data.len()).map_err(|_| Self::misuse(VERB, "more than 255 bytes of private data"))?;
        // SAFETY: the identifier exists, and `private_data` has `len` bytes.
        check(VERB, unsafe { (self.cma().rdma_reject)(self.raw(), private_data.as_ptr().cast(), len) })
    }

    /// Ends the connection (`rdma_disconnect`): everything posted completes with an error, and the other side
    /// gets an event. A side that gets that event calls this too: InfiniBand's connection manager waits for it as for an
    /// answer, and the receives on that side are flushed only then. With iWARP this second call may fail, because the
    /// connection is over already. Whether requests that are posted afterwards ever complete depends on the device.
    pub fn disconnect(&self) -> Result<()> {
        const VERB: &str = "rdma_disconnect";
        self.need_device(VERB)?;
        // SAFETY: the identifier exists and is on a device, as the library takes for granted.
        check(VERB, unsafe { (self.cma().rdma_disconnect)(self.raw()) })
    }

    /// Our address, once the identifier is bound, resolved or accepted.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier exists, and the library writes the address only before it reports the step that sets
        // it.
        unsafe { (*self.raw()).route.addr.src_storage.get() }
    }

    /// The other side's address, as the connection manager knows it. For a request it is the address to which the
    /// answer goes, not one that the peer claims.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier exists, and the library writes the address only before it reports the step that sets
        // it.
        unsafe { (*self.raw()).route.addr.dst_storage.get() }
    }

    /// Whether the identifier is on the device of this context. Unlike [`CmId::context`] this is cheap.
    pub fn is_on(&self, context: &Context) -> bool {
        // SAFETY: the identifier exists, and the library writes the field only before it reports the step that sets it.
        unsafe { ptr::eq((*self.raw()).verbs, context.raw()) }
    }

    /// The device that the identifier is on, to make objects that live longer than the identifier. librdmacm opens each
    /// device once for all identifiers, so one call per device suffices.
    pub fn context(&self) -> Result<Context> {
        Context::of_cma(self.need_device("rdma_get_devices")?)
    }

    /// Gives the identifier a queue pair (`rdma_create_qp`), on which receives can be posted at once.
    pub fn create_qp(&mut self, pd: &Pd, init: &QpInit<'_>) -> Result<&Qp> {
        const VERB: &str = "rdma_create_qp";
        self.need_device(VERB)?;
        if self.qp.is_some() {
            return Err(Self::misuse(VERB, "the identifier already has a queue pair"));
        }
        for context in [pd.context(), init.send_cq.context(), init.recv_cq.context()] {
            if !self.is_on(context) {
                return Err(Self::misuse(VERB, "the domain or a queue belongs to another device"));
            }
        }
        let mut attr = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: init.send_cq.raw(),
            recv_cq: init.recv_cq.raw(),
            srq: ptr::null_mut(),
            cap: init.cap,
            qp_type: IBV_QPT_RC as c_uint,
            sq_sig_all: init.sq_sig_all.into(),
        };
        // SAFETY: the identifier, the domain and the queues exist and are on one device, as checked above.
        check(VERB, unsafe { (self.cma().rdma_create_qp)(self.raw(), pd.raw(), &raw mut attr) })?;
        // SAFETY: the identifier exists, and a successful call has set the field.
        let raw = NonNull::new(unsafe { (*self.raw()).qp }).ok_or(Self::misuse(VERB, "gave no queue pair"))?;
        // SAFETY: the pair was just made with this domain and these queues; `destroy_qp` destroys it before the wrapper
        // goes.
        match unsafe { Qp::wrap(raw, attr.cap, pd, init) } {
            Ok(qp) => Ok(self.qp.insert(qp)),
            Err(error) => {
                // SAFETY: the pair was made above, and nothing uses it.
                unsafe { (self.cma().rdma_destroy_qp)(self.raw()) };
                Err(error)
            }
        }
    }

    /// Its queue pair, if it has one.
    pub fn qp(&self) -> Option<&Qp> {
        self.qp.as_ref()
    }

    /// Destroys its queue pair (`rdma_destroy_qp`). Requests that were posted and have not completed never will;
    /// completions that are already in the queue can still be polled.
    pub fn destroy_qp(&mut self) {
        if self.qp.is_some() {
            // SAFETY: `create_qp` made the pair, and nothing uses it now: every use borrows this identifier, and we
            // have it exclusively.
            unsafe { (self.cma().rdma_destroy_qp)(self.raw()) };
            self.qp = None;
        }
    }
}
