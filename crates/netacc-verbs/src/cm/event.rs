//! Events of the connection manager, copied out and acknowledged.
#![allow(unsafe_code)]

use super::id::CmId;
use crate::error::{Error, Result, static_text};
use crate::load::loaded;
use crate::sys::*;
use core::fmt;
use netacc_sys::Errno;

/// The kind of an event: one of `RDMA_CM_EVENT_*` (rdma_get_cm_event(3)).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CmEventType(pub u32);

macro_rules! kinds {
    ($($name:ident = $value:ident: $doc:literal;)*) => {
        impl CmEventType {
            $(#[doc = $doc] pub const $name: CmEventType = CmEventType($value);)*
        }
    };
}

kinds! {
    ADDR_RESOLVED = RDMA_CM_EVENT_ADDR_RESOLVED: "A device leads to the address, and the identifier is bound to it.";
    ADDR_ERROR = RDMA_CM_EVENT_ADDR_ERROR: "No device leads to the address.";
    ROUTE_RESOLVED = RDMA_CM_EVENT_ROUTE_RESOLVED: "The route is known, so the identifier can connect now.";
    ROUTE_ERROR = RDMA_CM_EVENT_ROUTE_ERROR: "No route was found.";
    CONNECT_REQUEST = RDMA_CM_EVENT_CONNECT_REQUEST: "A client wants to connect; the event has the new identifier.";
    CONNECT_ERROR = RDMA_CM_EVENT_CONNECT_ERROR: "The connection could not be made.";
    UNREACHABLE = RDMA_CM_EVENT_UNREACHABLE: "The other side does not answer.";
    REJECTED = RDMA_CM_EVENT_REJECTED: "The other side has refused, or nobody listens there.";
    ESTABLISHED = RDMA_CM_EVENT_ESTABLISHED: "The connection is established.";
    DISCONNECTED = RDMA_CM_EVENT_DISCONNECTED: "The connection has ended, or the other side's process has.";
    DEVICE_REMOVAL = RDMA_CM_EVENT_DEVICE_REMOVAL:
        "The device is being removed. The removal waits until the identifier is dropped.";
    ADDR_CHANGE = RDMA_CM_EVENT_ADDR_CHANGE:
        "The hardware address of the network device has changed, as after a failover of a bond.";
    TIMEWAIT_EXIT = RDMA_CM_EVENT_TIMEWAIT_EXIT: "The queue pair's number may be used again.";
}

impl CmEventType {
    /// Whether the event says that a step of connecting has failed.
    pub fn is_failure(self) -> bool {
        matches!(
            self,
            CmEventType::ADDR_ERROR
                | CmEventType::ROUTE_ERROR
                | CmEventType::CONNECT_ERROR
                | CmEventType::UNREACHABLE
                | CmEventType::REJECTED
        )
    }

    /// The errno that connect(2) would report for this event with this status. A negative status is an errno; a
    /// positive one is a reason of the other side's connection manager.
    pub fn errno(self, status: i32) -> Errno {
        match self {
            CmEventType::REJECTED => Errno::CONNREFUSED,
            CmEventType::DEVICE_REMOVAL => Errno::NODEV,
            CmEventType::DISCONNECTED => Errno::CONNRESET,
            _ if status < 0 => Errno(status.saturating_neg()),
            CmEventType::UNREACHABLE => Errno::TIMEDOUT,
            CmEventType::ADDR_ERROR | CmEventType::ROUTE_ERROR => Errno::HOSTUNREACH,
            CmEventType::CONNECT_ERROR => Errno::CONNREFUSED,
            _ => Errno(0),
        }
    }
}

impl fmt::Display for CmEventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match loaded() {
            // SAFETY: the function takes any number.
            Some(api) => f.write_str(static_text(unsafe { (api.cma.rdma_event_str)(self.0) })),
            None => write!(f, "RDMA_CM_EVENT {}", self.0),
        }
    }
}

impl fmt::Debug for CmEventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The private data of an event. On InfiniBand and RoCE it has the full length of its field, with zeroes
/// after what the other side gave, so a format must carry its own length. It comes from a peer that is not
/// yet known, and must be checked.
#[derive(Clone, Copy)]
pub struct PrivateData {
    len: u8,
    bytes: [u8; 255],
}

impl PrivateData {
    /// # Safety
    /// The parameters are those of an event that is not acknowledged yet.
    unsafe fn copy(conn: &rdma_conn_param) -> PrivateData {
        let mut data = PrivateData { len: 0, bytes: [0; 255] };
        if !conn.private_data.is_null() {
            data.len = conn.private_data_len;
            // SAFETY: the event has that many bytes, and its length, a `u8`, cannot exceed the 255 bytes of `data`.
            unsafe {
                core::ptr::copy_nonoverlapping(conn.private_data.cast(), data.bytes.as_mut_ptr(), data.len.into());
            }
        }
        data
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or_default()
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

/// An event of the connection manager, acknowledged.
#[derive(Debug)]
pub struct CmEvent {
    /// What happened.
    pub event_type: CmEventType,
    /// Nonzero if a step has failed; see [`CmEventType::errno`].
    pub status: i32,
    /// The cookie of the identifier that the event is about; of the listener, for a connect request. The
    /// identifier may have been dropped meanwhile.
    pub cookie: u64,
    /// The new identifier of a connect request. Dropping it without accepting rejects the request.
    pub request: Option<CmId>,
    /// What the other side sent along with a request, an acceptance or a rejection.
    pub private_data: PrivateData,
    /// How many RDMA reads the other side will have under way at once.
    pub responder_resources: u8,
    /// How many RDMA reads of ours the other side serves at once.
    pub initiator_depth: u8,
}

impl CmEvent {
    /// Copies an event of the library before it is acknowledged. The identifier of a request is left out.
    ///
    /// # Safety
    /// `event` is not acknowledged yet.
    pub(super) unsafe fn copy(event: &rdma_cm_event) -> CmEvent {
        let about = if event.listen_id.is_null() { event.id } else { event.listen_id };
        CmEvent {
            event_type: CmEventType(event.event),
            status: event.status,
            // SAFETY: an identifier is not freed before its events are acknowledged, so `about` exists.
            cookie: unsafe { CmId::cookie_of(about) },
            request: None,
            // SAFETY: the private data of an event is valid until the event is acknowledged.
            private_data: unsafe { PrivateData::copy(&event.conn) },
            responder_resources: event.conn.responder_resources,
            initiator_depth: event.conn.initiator_depth,
        }
    }

    /// Returns [`Error::Cm`] if the event says that a step has failed.
    pub fn check(&self) -> Result<()> {
        if self.event_type.is_failure() || self.status != 0 {
            return Err(Error::Cm { event: self.event_type, status: self.status });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errnos_as_connect_would_give_them() {
        assert_eq!(CmEventType::REJECTED.errno(8), Errno::CONNREFUSED);
        assert_eq!(CmEventType::REJECTED.errno(-libc::ECONNREFUSED), Errno::CONNREFUSED);
        assert_eq!(CmEventType::ADDR_ERROR.errno(-libc::ENETUNREACH), Errno::NETUNREACH);
        assert_eq!(CmEventType::UNREACHABLE.errno(-libc::ETIMEDOUT), Errno::TIMEDOUT);
        assert_eq!(CmEventType::UNREACHABLE.errno(0), Errno::TIMEDOUT);
    }

    #[test]
    fn private_data_is_copied() {
        let bytes = [7u8; 3];
        let mut conn = rdma_conn_param {
            private_data: bytes.as_ptr().cast(),
            private_data_len: 3,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            srq: 0,
            qp_num: 0,
        };
        // SAFETY: `private_data` is null or points to `private_data_len` bytes, as in an event.
        assert_eq!(unsafe { PrivateData::copy(&conn) }.as_slice(), bytes);
        conn.private_data = core::ptr::null();
        // SAFETY: `private_data` is null or points to `private_data_len` bytes, as in an event.
        assert_eq!(unsafe { PrivateData::copy(&conn) }.as_slice(), []);
    }
}
