//! Events of the connection manager, copied out and acknowledged.
#![allow(unsafe_code)]

use super::id::CmId;
use crate::error::{Error, Result, static_text};
use crate::load::loaded;
use crate::sys::*;
use core::fmt;
use netacc_sys::Errno;

/// What happened, `RDMA_CM_EVENT_*`.
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
    ADDR_RESOLVED = RDMA_CM_EVENT_ADDR_RESOLVED: "A device leads to the address, and the identifier is on it.";
    ADDR_ERROR = RDMA_CM_EVENT_ADDR_ERROR: "No device leads to the address.";
    ROUTE_RESOLVED = RDMA_CM_EVENT_ROUTE_RESOLVED: "The way is known: connect now.";
    ROUTE_ERROR = RDMA_CM_EVENT_ROUTE_ERROR: "No way was found.";
    CONNECT_REQUEST = RDMA_CM_EVENT_CONNECT_REQUEST: "Somebody wants to connect; the event has the new identifier.";
    CONNECT_ERROR = RDMA_CM_EVENT_CONNECT_ERROR: "The connection could not be made.";
    UNREACHABLE = RDMA_CM_EVENT_UNREACHABLE: "The other side does not answer.";
    REJECTED = RDMA_CM_EVENT_REJECTED: "The other side has refused, or nobody listens there.";
    ESTABLISHED = RDMA_CM_EVENT_ESTABLISHED: "Connected.";
    DISCONNECTED = RDMA_CM_EVENT_DISCONNECTED: "The connection has ended, or the other side's process has.";
    DEVICE_REMOVAL = RDMA_CM_EVENT_DEVICE_REMOVAL:
        "The device goes away. Its removal waits until the identifier is dropped.";
    ADDR_CHANGE = RDMA_CM_EVENT_ADDR_CHANGE: "The address has moved to other hardware.";
    TIMEWAIT_EXIT = RDMA_CM_EVENT_TIMEWAIT_EXIT: "The queue pair's number may be used again.";
}

impl CmEventType {
    /// Whether a step of connecting has failed with it.
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

    /// What connect(2) would report. A negative status is an errno; a positive one is a reason of the
    /// other side's connection manager.
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
            // SAFETY: any number may be asked for.
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
/// after what the other side has given: a format of one's own must say how long it is. It comes from a peer
/// that nothing is known of yet.
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
            // SAFETY: the event has that many bytes, and 255 are the most that its length can say.
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
    /// The cookie of the identifier it happened to; of the listener, for a connect request. The
    /// identifier may have been dropped meanwhile.
    pub cookie: u64,
    /// The identifier of a connect request. Dropped unused, it rejects.
    pub request: Option<CmId>,
    /// What the other side sent along with a request, an acceptance or a rejection.
    pub private_data: PrivateData,
    /// How many RDMA reads the other side will have under way.
    pub responder_resources: u8,
    /// How many it takes.
    pub initiator_depth: u8,
}

impl CmEvent {
    /// Copies what the library says, before it is acknowledged. The identifier of a request is left out.
    ///
    /// # Safety
    /// `event` is one that is not acknowledged yet.
    pub(super) unsafe fn copy(event: &rdma_cm_event) -> CmEvent {
        let about = if event.listen_id.is_null() { event.id } else { event.listen_id };
        CmEvent {
            event_type: CmEventType(event.event),
            status: event.status,
            // SAFETY: an identifier cannot go before its events are acknowledged.
            cookie: unsafe { CmId::cookie_of(about) },
            request: None,
            // SAFETY: the private data of an event is valid until the event is acknowledged.
            private_data: unsafe { PrivateData::copy(&event.conn) },
            responder_resources: event.conn.responder_resources,
            initiator_depth: event.conn.initiator_depth,
        }
    }

    /// An error if the event says that a step has failed.
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
        // SAFETY: stands for an event's parameters.
        assert_eq!(unsafe { PrivateData::copy(&conn) }.as_slice(), bytes);
        conn.private_data = core::ptr::null();
        // SAFETY: stands for an event's parameters.
        assert_eq!(unsafe { PrivateData::copy(&conn) }.as_slice(), []);
    }
}
