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

/// How a connection is to be made (`struct rdma_conn_param`).
#[derive(Clone, Copy, Debug)]
pub struct ConnParam<'a> {
    /// For the other side to read before it decides; at most [`super::CONNECT_PRIVATE_DATA`] or
    /// [`super::ACCEPT_PRIVATE_DATA`] bytes.
    pub private_data: &'a [u8],
    /// RDMA reads of the other side that we serve at once.
    pub responder_resources: u8,
    /// RDMA reads that we have under way at once.
    pub initiator_depth: u8,
    /// How often a message is sent again that nobody confirms; 7 is the most.
    pub retry_count: u8,
    /// How often if the other side has no receive posted; 7 means for ever. iWARP gives up at once.
    pub rnr_retry_count: u8,
}

impl Default for ConnParam<'_> {
    fn default() -> Self {
        // Soft RoCE takes 7 for "for ever", and not only for receives that are missing.
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

// SAFETY: the library allows calls from several threads.
unsafe impl Send for CmId {}
// SAFETY: the library allows calls from several threads.
unsafe impl Sync for CmId {}

impl Drop for CmId {
    fn drop(&mut self) {
        self.destroy_qp();
        // SAFETY: ours, without a queue pair, and all of its events are acknowledged.
        unsafe { (self.channel.api().cma.rdma_destroy_id)(self.raw()) };
    }
}

impl CmId {
    /// A new identifier for reliable connections whose events go to `channel` (`rdma_create_id`). They
    /// name it by `cookie`.
    pub fn create(channel: &EventChannel, cookie: u64) -> Result<CmId> {
        let mut raw = ptr::null_mut();
        let context = ptr::without_provenance_mut(cookie as usize);
        // SAFETY: a channel that exists, and room for the answer.
        check("rdma_create_id", unsafe {
            (channel.api().cma.rdma_create_id)(channel.raw(), &raw mut raw, context, RDMA_PS_TCP)
        })?;
        let raw = NonNull::new(raw).ok_or(Error::Misuse { verb: "rdma_create_id", why: "gave no identifier" })?;
        Ok(CmId { raw, qp: None, channel: channel.clone() })
    }

    /// Takes over an identifier that came with an event.
    ///
    /// # Safety
    /// It is nobody else's, on `channel`, without a queue pair, and its event is acknowledged.
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

    /// The library follows the pointer to the device without a look in many calls.
    fn need_device(&self, verb: &'static str) -> Result<NonNull<ibv_context>> {
        // SAFETY: see the module's safety note.
        let verbs = unsafe { (*self.raw()).verbs };
        NonNull::new(verbs).ok_or(Self::misuse(verb, "the identifier is on no device yet"))
    }

    /// # Safety
    /// An identifier that exists.
    unsafe fn cookie_place<'a>(raw: *mut rdma_cm_id) -> &'a AtomicPtr<c_void> {
        // SAFETY: the field is ours, the library only copies it for a connect request. Atomic, because
        // one thread may set it while another gets an event.
        unsafe { AtomicPtr::from_ptr(&raw mut (*raw).context) }
    }

    /// # Safety
    /// An identifier that exists.
    pub(super) unsafe fn cookie_of(raw: *mut rdma_cm_id) -> u64 {
        // SAFETY: the caller guarantees an identifier that exists; Relaxed: it is a number, and orders nothing.
        unsafe { Self::cookie_place(raw) }.load(Ordering::Relaxed).addr() as u64
    }

    /// What events call it.
    pub fn cookie(&self) -> u64 {
        // SAFETY: it exists.
        unsafe { Self::cookie_of(self.raw()) }
    }

    /// Sets what events call it. One that came with a connect request has the listener's cookie at first;
    /// the first event with its own name can come after [`CmId::accept`].
    pub fn set_cookie(&self, cookie: u64) {
        let cookie = ptr::without_provenance_mut(cookie as usize);
        // SAFETY: it exists.
        unsafe { Self::cookie_place(self.raw()) }.store(cookie, Ordering::Relaxed);
    }

    /// Where its events go.
    pub fn channel(&self) -> &EventChannel {
        &self.channel
    }

    /// Sends its events to another channel, those that are waiting too (`rdma_migrate_id`).
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<()> {
        // SAFETY: both exist.
        check("rdma_migrate_id", unsafe { (self.cma().rdma_migrate_id)(self.raw(), channel.raw()) })?;
        self.channel = channel.clone();
        Ok(())
    }

    fn set_option<T>(&self, name: c_int, mut value: T) -> Result<()> {
        let value = (&raw mut value).cast();
        // SAFETY: the option's value has the size that is said beside it.
        check("rdma_set_option", unsafe {
            (self.cma().rdma_set_option)(self.raw(), RDMA_OPTION_ID, name, value, size_of::<T>())
        })
    }

    /// The type of service of its packets.
    pub fn set_tos(&self, tos: u8) -> Result<()> {
        self.set_option(RDMA_OPTION_ID_TOS, tos)
    }

    /// How long a message may remain unconfirmed before it is sent again: 4.096 microseconds times two to the power of
    /// this. To be said before the route is resolved; the other side's queue pair gets it too. iWARP has no such time.
    pub fn set_ack_timeout(&self, exponent: u8) -> Result<()> {
        self.set_option(RDMA_OPTION_ID_ACK_TIMEOUT, exponent)
    }

    /// Whether others may have its port too, as with `SO_REUSEADDR`.
    pub fn set_reuse_addr(&self, on: bool) -> Result<()> {
        self.set_option(RDMA_OPTION_ID_REUSEADDR, c_int::from(on))
    }

    /// Whether an IPv6 listener takes IPv6 only, as with `IPV6_V6ONLY`.
    pub fn set_af_only(&self, on: bool) -> Result<()> {
        self.set_option(RDMA_OPTION_ID_AFONLY, c_int::from(on))
    }

    /// Gives it a local address and port (`rdma_bind_addr`); the kernel chooses a port for 0. A wildcard address
    /// leaves it without a device.
    pub fn bind_addr(&self, address: SocketAddr) -> Result<()> {
        let mut address = sockaddr_storage::new(address);
        // SAFETY: an address of a family whose size the library knows.
        check("rdma_bind_addr", unsafe { (self.cma().rdma_bind_addr)(self.raw(), (&raw mut address).cast()) })
    }

    /// Finds the device that leads to an address (`rdma_resolve_addr`). Answered by an event.
    ///
    /// Ask with a short time-out first and again with a longer one. The kernel (6.1 at least) misses a neighbour's
    /// answer that comes while it is still asking, as over veth it always does, and looks again only when
    /// the time is over: then it reports success, but late. After an `ADDR_ERROR` the same identifier may ask again.
    pub fn resolve_addr(&self, source: Option<SocketAddr>, destination: SocketAddr, timeout_ms: u32) -> Result<()> {
        let mut from = source.map(sockaddr_storage::new);
        let mut to = sockaddr_storage::new(destination);
        let from = from.as_mut().map_or(ptr::null_mut(), |from| (&raw mut *from).cast());
        let timeout = c_int::try_from(timeout_ms).unwrap_or(c_int::MAX);
        // SAFETY: addresses as above, or none.
        check("rdma_resolve_addr", unsafe {
            (self.cma().rdma_resolve_addr)(self.raw(), from, (&raw mut to).cast(), timeout)
        })
    }

    /// Finds the way (`rdma_resolve_route`), once the address is resolved. Answered by an event.
    pub fn resolve_route(&self, timeout_ms: u32) -> Result<()> {
        const VERB: &str = "rdma_resolve_route";
        self.need_device(VERB)?;
        let timeout = c_int::try_from(timeout_ms).unwrap_or(c_int::MAX);
        // SAFETY: it is on a device.
        check(VERB, unsafe { (self.cma().rdma_resolve_route)(self.raw(), timeout) })
    }

    /// Takes connect requests from now on (`rdma_listen`). siw listens on the same port of TCP: `EADDRINUSE` if
    /// somebody has that, though the port was free for RDMA.
    pub fn listen(&self, backlog: u32) -> Result<()> {
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        // SAFETY: it exists.
        check("rdma_listen", unsafe { (self.cma().rdma_listen)(self.raw(), backlog) })
    }

    /// Asks the other side for the connection (`rdma_connect`). Answered by an event. Post receives before.
    ///
    /// siw connects its TCP socket before this returns, so a refusal is the error of the call itself there,
    /// and a host that does not answer holds it up. And the port may be somebody else's: [`Error::is_port_taken`].
    pub fn connect(&self, param: &ConnParam<'_>) -> Result<()> {
        self.answer("rdma_connect", self.cma().rdma_connect, param)
    }

    /// Accepts a connect request (`rdma_accept`). Post receives before.
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
        // SAFETY: it is on a device and has a queue pair; the private data outlives the call.
        check(verb, unsafe { call(self.raw(), &raw mut param) })
    }

    /// Refuses a connect request, with a word to the other side (`rdma_reject`).
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        const VERB: &str = "rdma_reject";
        let len =
            u8::try_from(private_data.len()).map_err(|_| Self::misuse(VERB, "more than 255 bytes of private data"))?;
        // SAFETY: that many bytes are there.
        check(VERB, unsafe { (self.cma().rdma_reject)(self.raw(), private_data.as_ptr().cast(), len) })
    }

    /// Ends the connection (`rdma_disconnect`): everything posted completes with an error, and the other side
    /// gets an event. A side that gets that event calls this too: InfiniBand's connection manager waits for it as for an
    /// answer, and the receives on that side are flushed only then. iWARP may then say that it is over
    /// already. Whether anything is ever heard of what is posted afterwards depends on the device.
    pub fn disconnect(&self) -> Result<()> {
        const VERB: &str = "rdma_disconnect";
        self.need_device(VERB)?;
        // SAFETY: it is on a device.
        check(VERB, unsafe { (self.cma().rdma_disconnect)(self.raw()) })
    }

    /// Our address, once it is known: bound, resolved or accepted.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: see the module's safety note.
        unsafe { (*self.raw()).route.addr.src_storage.get() }
    }

    /// The other side's address, as the connection manager knows it: of a request, it is the one that the
    /// answer goes to, not something that the peer claims.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: see the module's safety note.
        unsafe { (*self.raw()).route.addr.dst_storage.get() }
    }

    /// Whether it is on the device of this context. Cheap, unlike [`CmId::context`].
    pub fn is_on(&self, context: &Context) -> bool {
        // SAFETY: see the module's safety note.
        unsafe { ptr::eq((*self.raw()).verbs, context.raw()) }
    }

    /// The device it is on, to make things that live longer than this identifier. librdmacm opens each device
    /// once for all identifiers, so this is to be asked once per device.
    pub fn context(&self) -> Result<Context> {
        Context::of_cma(self.need_device("rdma_get_devices")?)
    }

    /// Gives it a queue pair (`rdma_create_qp`), ready for receives to be posted.
    pub fn create_qp(&mut self, pd: &Pd, init: &QpInit<'_>) -> Result<&Qp> {
        const VERB: &str = "rdma_create_qp";
        self.need_device(VERB)?;
        if self.qp.is_some() {
            return Err(Self::misuse(VERB, "the identifier has a queue pair already"));
        }
        for context in [pd.context(), init.send_cq.context(), init.recv_cq.context()] {
            if !self.is_on(context) {
                return Err(Self::misuse(VERB, "domain or queue is another device's"));
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
        // SAFETY: it is on the device of the domain and the queues.
        check(VERB, unsafe { (self.cma().rdma_create_qp)(self.raw(), pd.raw(), &raw mut attr) })?;
        // SAFETY: a successful call has set it.
        let raw = NonNull::new(unsafe { (*self.raw()).qp }).ok_or(Self::misuse(VERB, "gave no queue pair"))?;
        // SAFETY: just made with these; `destroy_qp` destroys it before the wrapper goes.
        match unsafe { Qp::wrap(raw, attr.cap, pd, init) } {
            Ok(qp) => Ok(self.qp.insert(qp)),
            Err(error) => {
                // SAFETY: made above, and used by nobody.
                unsafe { (self.cma().rdma_destroy_qp)(self.raw()) };
                Err(error)
            }
        }
    }

    /// Its queue pair.
    pub fn qp(&self) -> Option<&Qp> {
        self.qp.as_ref()
    }

    /// Destroys its queue pair (`rdma_destroy_qp`). What was posted and has not completed never will; completions
    /// that are in the queue already can still be polled.
    pub fn destroy_qp(&mut self) {
        if self.qp.is_some() {
            // SAFETY: `create_qp` has made it, and nobody can be using it: that would borrow us.
            unsafe { (self.cma().rdma_destroy_qp)(self.raw()) };
            self.qp = None;
        }
    }
}
