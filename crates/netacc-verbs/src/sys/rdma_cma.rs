//! `rdma/rdma_cma.h`.

use super::verbs::*;
use core::ffi::{c_int, c_uint, c_void};

/// Room for any socket address, aligned as `struct sockaddr_storage`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct sockaddr_storage {
    pub bytes: [u8; 128],
}

#[repr(C)]
#[derive(Debug)]
pub struct rdma_ib_addr {
    pub sgid: [u64; 2],
    pub dgid: [u64; 2],
    pub pkey: u16,
}

#[repr(C)]
#[derive(Debug)]
pub struct rdma_addr {
    pub src_storage: sockaddr_storage,
    pub dst_storage: sockaddr_storage,
    pub addr: rdma_ib_addr,
}

#[repr(C)]
#[derive(Debug)]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut Opaque,
    pub num_paths: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub struct rdma_event_channel {
    pub fd: c_int,
}

/// A prefix of the C structure, see [`sys`](super).
#[repr(C)]
#[derive(Debug)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: c_uint,
    pub port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

/// A prefix of the C structure, see [`sys`](super). `conn` is the member of the union of parameters that connections
/// use; the one of datagrams is left out.
#[repr(C)]
#[derive(Debug)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: c_uint,
    pub status: c_int,
    pub conn: rdma_conn_param,
}

/// The type to which functions take pointers as addresses: a pointer to [`sockaddr_storage`] is cast to it.
pub type sockaddr = Opaque;
