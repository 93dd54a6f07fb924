//! Making a queue pair.

use crate::num;
use crate::rdma::bounds::{LONGEST_INLINE, MOST, SENDS};
use crate::rdma::device::Device;
use netacc_verbs::sys::ibv_qp_cap;
use netacc_verbs::{CmId, Cq, Error, QpInit, Result};

/// Sizes (bytes) of inline messages that are tried: the beginning of a message and 64 bytes or more. Devices differ;
/// each that we know takes 64 bytes, so that all messages but those with many bytes of a connection need no buffer.
const INLINE: [u32; 3] = [num::constant(LONGEST_INLINE), 80, 64];

/// Makes a queue pair with as much inline room as the device gives; returns the room.
pub(super) fn create_qp(id: &mut CmId, device: &Device, cq: &Cq) -> Result<usize> {
    let [most, ..] = INLINE;
    let mut last = Error::NoDevice;
    for max_inline_data in INLINE {
        let cap = ibv_qp_cap {
            max_send_wr: const { num::constant(SENDS) },
            max_recv_wr: u32::from(MOST),
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data,
        };
        let init = QpInit { send_cq: cq, recv_cq: cq, cap, sq_sig_all: false };
        match id.create_qp(device.pd()?, &init) {
            Ok(qp) => return Ok(qp.cap().max_inline_data.min(most) as usize),
            Err(e) => last = e,
        }
    }
    Err(last)
}
