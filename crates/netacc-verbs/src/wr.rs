//! Work requests: the sends and receives that are posted to a queue pair.

use crate::sys::*;
use core::marker::PhantomData;
use core::ptr;

/// A piece of memory that a request sends from or receives into (`struct ibv_sge`).
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Sge<'a> {
    raw: ibv_sge,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Sge<'a> {
    /// A piece of a registered region, which lives at least until the request is posted. If it is deregistered
    /// afterwards, the device no longer knows its key and fails the request.
    pub(crate) fn registered(start: *const u8, length: u32, lkey: u32) -> Sge<'a> {
        Sge { raw: ibv_sge { addr: start.expose_provenance() as u64, length, lkey }, memory: PhantomData }
    }

    /// The length in bytes.
    pub fn length(&self) -> u32 {
        self.raw.length
    }
}

/// A request to send a message (`struct ibv_send_wr`).
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    raw: ibv_send_wr,
    sge: ibv_sge,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> SendWr<'a> {
    fn new(wr_id: u64, sge: ibv_sge, send_flags: u32) -> SendWr<'a> {
        let raw = ibv_send_wr {
            wr_id,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 1,
            opcode: IBV_WR_SEND,
            send_flags,
            imm_data: 0,
            wr: [0; 4],
            qp_type: 0,
            bind_mw: [0; 6],
        };
        SendWr { raw, sge, memory: PhantomData }
    }

    /// Sends from registered memory, which must not change before the request has completed.
    pub fn send(wr_id: u64, sge: Sge<'a>) -> SendWr<'a> {
        SendWr::new(wr_id, sge.raw, 0)
    }

    /// Sends `data` inline: it is copied when the request is posted and need not be registered. `None` if
    /// it is longer than any device could take; the queue pair's own limit is checked by the provider.
    pub fn send_inline(wr_id: u64, data: &'a [u8]) -> Option<SendWr<'a>> {
        let length = u32::try_from(data.len()).ok()?;
        let sge = ibv_sge { addr: data.as_ptr().expose_provenance() as u64, length, lkey: 0 };
        Some(SendWr::new(wr_id, sge, IBV_SEND_INLINE))
    }

    /// An RDMA write of no bytes, which tests the connection: the other device acknowledges it, or ours gives up and
    /// the request fails. It uses no receive of the other side and needs no right to its memory. (By InfiniBand's
    /// specification no key is checked for a length of 0, and by RFC 6581 connections over iWARP can begin in this
    /// way.)
    pub fn write_nothing(wr_id: u64) -> SendWr<'a> {
        let mut wr = SendWr::new(wr_id, ibv_sge { addr: 0, length: 0, lkey: 0 }, 0);
        wr.raw.opcode = IBV_WR_RDMA_WRITE;
        wr.raw.num_sge = 0;
        wr
    }

    /// Sets the number that the completion will have.
    pub fn numbered(mut self, wr_id: u64) -> SendWr<'a> {
        self.raw.wr_id = wr_id;
        self
    }

    /// Asks for a completion (`IBV_SEND_SIGNALED`). A request that is not signalled has none unless it fails, but its
    /// place in the queue is free again only when a later signalled one has completed.
    pub fn signaled(mut self) -> SendWr<'a> {
        self.raw.send_flags |= IBV_SEND_SIGNALED;
        self
    }

    /// Marks the message as solicited (`IBV_SEND_SOLICITED`), so that it wakes a receiver that has armed its queue for
    /// solicited messages only.
    pub fn solicited(mut self) -> SendWr<'a> {
        self.raw.send_flags |= IBV_SEND_SOLICITED;
        self
    }

    /// Sends a number with the message (`IBV_WR_SEND_WITH_IMM`). iWARP has no immediate data: siw refuses the request.
    pub fn with_imm(mut self, imm_data: u32) -> SendWr<'a> {
        self.raw.opcode = IBV_WR_SEND_WITH_IMM;
        self.raw.imm_data = imm_data.to_be();
        self
    }
}

/// A request to receive a message (`struct ibv_recv_wr`) into one piece of memory; every device supports one.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    raw: ibv_recv_wr,
    sge: ibv_sge,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> RecvWr<'a> {
    /// A request to receive into `sge`. The message is there when the request has completed.
    pub fn new(wr_id: u64, sge: Sge<'a>) -> RecvWr<'a> {
        let raw = ibv_recv_wr { wr_id, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 1 };
        RecvWr { raw, sge: sge.raw, memory: PhantomData }
    }
}

/// Requests that can be posted as one list.
pub(crate) trait Request {
    type Raw;

    /// Sets the request's pointers, to its own `sge` and to the next request. It must not be moved afterwards.
    fn link(&mut self, next: *mut Self::Raw);
    fn raw(&mut self) -> *mut Self::Raw;
}

macro_rules! request {
    ($name:ident, $raw:ident) => {
        impl Request for $name<'_> {
            type Raw = $raw;

            fn link(&mut self, next: *mut $raw) {
                self.raw.sg_list = &raw mut self.sge;
                self.raw.next = next;
            }

            fn raw(&mut self) -> *mut $raw {
                &raw mut self.raw
            }
        }
    };
}

request!(SendWr, ibv_send_wr);
request!(RecvWr, ibv_recv_wr);

/// Links the requests into one list and returns its head; null if there are none.
pub(crate) fn chain<R: Request>(requests: &mut [R]) -> *mut R::Raw {
    let mut next = ptr::null_mut();
    for request in requests.iter_mut().rev() {
        request.link(next);
        next = request.raw();
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(unsafe_code)]
    fn a_chain_is_in_order_and_ends() {
        let data = [[1u8; 3], [2; 3], [3; 3]];
        let mut requests: Vec<SendWr> =
            data.iter().zip(10..).map(|(d, id)| SendWr::send_inline(id, d).unwrap()).collect();
        let mut at = chain(&mut requests);
        for (number, bytes) in (10..).zip(&data) {
            // SAFETY: the pointers are those of the list that was just made, and its requests still live.
            unsafe {
                assert_eq!((*at).wr_id, number);
                assert_eq!((*(*at).sg_list).addr, bytes.as_ptr().addr() as u64);
                assert_eq!((*(*at).sg_list).length, 3);
                at = (*at).next;
            }
        }
        assert!(at.is_null());
        assert!(chain::<SendWr>(&mut []).is_null());
    }

    #[test]
    #[allow(unsafe_code)]
    fn what_writes_nothing_has_no_memory() {
        let mut wr = [SendWr::write_nothing(7).signaled()];
        let head = chain(&mut wr);
        // SAFETY: `head` is the head of the list that was just made, and its request still lives.
        let raw = unsafe { *head };
        assert_eq!((raw.wr_id, raw.opcode, raw.num_sge, raw.wr), (7, IBV_WR_RDMA_WRITE, 0, [0; 4]));
        assert_eq!(raw.send_flags, IBV_SEND_SIGNALED);
    }

    #[test]
    fn flags_add_up() {
        let wr = SendWr::send_inline(1, b"x").unwrap().signaled().solicited().with_imm(0x0102_0304);
        assert_eq!(wr.raw.send_flags, IBV_SEND_INLINE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
        assert_eq!(wr.raw.opcode, IBV_WR_SEND_WITH_IMM);
        assert_eq!(wr.raw.imm_data, 0x0102_0304u32.to_be());
    }
}
