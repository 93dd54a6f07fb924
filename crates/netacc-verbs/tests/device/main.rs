//! Tests of netacc-verbs on a real device, with both ends in one process. They are ignored unless asked for: `make
//! test-rdma` runs them in its virtual machine, on soft RoCE and soft iWARP. `NETACC_RDMA_ADDRESS` is an address of the
//! device.
#![allow(missing_docs, reason = "a test")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod connecting;
mod devices;
mod forking;
mod lifetime;
mod posting;
mod rig;
