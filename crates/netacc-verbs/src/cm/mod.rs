//! The RDMA connection manager.

mod channel;
mod event;
mod id;

pub use channel::EventChannel;
pub use event::{CmEvent, CmEventType, PrivateData};
pub use id::{CmId, ConnParam};

/// Bytes of private data that a connect request can carry on any transport (InfiniBand's limit).
pub const CONNECT_PRIVATE_DATA: usize = 56;
/// The same for the answer that accepts.
pub const ACCEPT_PRIVATE_DATA: usize = 196;
/// The same for the answer that rejects.
pub const REJECT_PRIVATE_DATA: usize = 148;
