//! Work completions.

use crate::error::{Error, Result, WcStatus};
use crate::sys::*;

/// A work completion (`struct ibv_wc`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub struct Wc(pub(crate) ibv_wc);

impl Wc {
    /// The number that the work request was given.
    pub fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// How the request ended.
    pub fn status(&self) -> WcStatus {
        WcStatus(self.0.status)
    }

    /// Returns [`Error::Completion`] if the request failed. Then only `wr_id`, `status`, `qp_num` and `vendor_err` are
    /// valid (ibv_poll_cq(3)).
    pub fn check(&self) -> Result<()> {
        if self.0.status == IBV_WC_SUCCESS {
            return Ok(());
        }
        Err(Error::Completion { status: self.status(), vendor_err: self.0.vendor_err, wr_id: self.0.wr_id })
    }

    /// Whether it completes a receive; valid only if the request succeeded.
    pub fn is_recv(&self) -> bool {
        self.0.opcode & IBV_WC_RECV != 0
    }

    /// How many bytes were received; valid only for a receive that succeeded.
    pub fn byte_len(&self) -> usize {
        self.0.byte_len as usize
    }

    /// The number of the queue pair.
    pub fn qp_num(&self) -> u32 {
        self.0.qp_num
    }

    /// The immediate data of the message, if it has any.
    pub fn imm_data(&self) -> Option<u32> {
        (self.0.wc_flags & IBV_WC_WITH_IMM != 0).then(|| u32::from_be(self.0.imm_data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediate_data_is_in_network_order() {
        let mut wc = Wc::default();
        assert_eq!(wc.imm_data(), None);
        wc.0.imm_data = 0x0102_0304u32.to_be();
        wc.0.wc_flags = IBV_WC_WITH_IMM;
        assert_eq!(wc.imm_data(), Some(0x0102_0304));
    }

    #[test]
    fn a_bad_status_is_an_error() {
        let mut wc = Wc::default();
        assert_eq!(wc.check(), Ok(()));
        wc.0.status = IBV_WC_RNR_RETRY_EXC_ERR;
        wc.0.wr_id = 5;
        wc.0.vendor_err = 9;
        let status = WcStatus(IBV_WC_RNR_RETRY_EXC_ERR);
        assert_eq!(wc.check(), Err(Error::Completion { status, vendor_err: 9, wr_id: 5 }));
    }
}
