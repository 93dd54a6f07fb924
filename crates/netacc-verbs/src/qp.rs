//! Queue pairs.
//!
//! # Safety
//! A queue pair belongs to the connection's identifier ([`crate::CmId`]), which destroys it before it is freed itself.
//! Requests point to registered memory that owns itself (see [`crate::mr`]) or, inline, to borrowed
//! memory that is read while they are posted.
#![allow(unsafe_code)]

use crate::cq::Cq;
use crate::error::{Error, Result, check};
use crate::pd::Pd;
use crate::sys::*;
use crate::wr::{RecvWr, Request, SendWr, chain};
use core::ffi::c_int;
use core::fmt;
use core::ptr::{self, NonNull};
use netacc_sys::Errno;

/// The attributes of a new queue pair (`struct ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct QpInit<'a> {
    /// The queue on which sends complete.
    pub send_cq: &'a Cq,
    /// The queue on which receives complete.
    pub recv_cq: &'a Cq,
    /// The wanted capacity. A device may give more, never less.
    pub cap: ibv_qp_cap,
    /// Whether every send produces a completion, also without [`SendWr::signaled`].
    pub sq_sig_all: bool,
}

/// The state of a queue pair: one of `IBV_QPS_*` (ibv_query_qp(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpState(pub u32);

impl QpState {
    /// The pair is connected and ready to send.
    pub const RTS: QpState = QpState(IBV_QPS_RTS);
    /// The pair has failed or is disconnected; all posted requests complete with an error.
    pub const ERR: QpState = QpState(IBV_QPS_ERR);
}

/// The error of posting a list of requests of which not all were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostError {
    /// Why the first request that was not taken was refused.
    pub error: Error,
    /// How many requests before it were taken.
    pub posted: usize,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, after {} requests", self.error, self.posted)
    }
}

impl From<PostError> for Error {
    fn from(e: PostError) -> Error {
        e.error
    }
}

/// A reliable-connected queue pair (`struct ibv_qp`).
#[derive(Debug)]
pub struct Qp {
    raw: NonNull<ibv_qp>,
    post_send: PostSend,
    post_recv: PostRecv,
    cap: ibv_qp_cap,
    pd: Pd,
    // The queues must exist as long as the pair.
    _cqs: [Cq; 2],
}

// SAFETY: libibverbs is thread-safe: several threads may use one queue pair at once.
unsafe impl Send for Qp {}
// SAFETY: libibverbs is thread-safe: several threads may use one queue pair at once.
unsafe impl Sync for Qp {}

impl Qp {
    /// Wraps a queue pair that the connection manager made.
    ///
    /// # Safety
    /// `raw` is a pair of `pd` with these queues, and its maker destroys it after the last use of the result
    /// and before the result is dropped.
    pub(crate) unsafe fn wrap(raw: NonNull<ibv_qp>, cap: ibv_qp_cap, pd: &Pd, init: &QpInit<'_>) -> Result<Qp> {
        // SAFETY: the context is open, and its table does not change after it has been opened.
        let ops = unsafe { &(*pd.context().raw()).ops };
        let (Some(post_send), Some(post_recv)) = (ops.post_send, ops.post_recv) else {
            return Err(Error::Misuse { verb: "rdma_create_qp", why: "the provider cannot post" });
        };
        let cqs = [init.send_cq.clone(), init.recv_cq.clone()];
        Ok(Qp { raw, post_send, post_recv, cap, pd: pd.clone(), _cqs: cqs })
    }

    /// The pair's number, by which completions and events name it.
    pub fn qp_num(&self) -> u32 {
        // SAFETY: the pair exists as long as this wrapper, as the caller of `wrap` guarantees.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// The capacity that the device gave the pair.
    pub fn cap(&self) -> ibv_qp_cap {
        self.cap
    }

    /// The protection domain whose memory the pair reaches.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Posts messages to be sent in this order (`ibv_post_send`). An error says how many were taken.
    pub fn post_send(&self, requests: &mut [SendWr<'_>]) -> core::result::Result<(), PostError> {
        let head = chain(requests);
        if head.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the pair exists, and the list and the memory that it names live until the call returns.
        let result = unsafe { (self.post_send)(self.raw.as_ptr(), head, &raw mut bad) };
        posted("ibv_post_send", result, requests, bad)
    }

    /// Posts buffers to receive into, in this order (`ibv_post_recv`). An error says how many were taken.
    pub fn post_recv(&self, requests: &mut [RecvWr<'_>]) -> core::result::Result<(), PostError> {
        let head = chain(requests);
        if head.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the pair exists, and the list and the memory that it names live until the call returns.
        let result = unsafe { (self.post_recv)(self.raw.as_ptr(), head, &raw mut bad) };
        posted("ibv_post_recv", result, requests, bad)
    }

    /// The pair's state (`ibv_query_qp`). siw leaves the state out of its answer, so there it is always
    /// `IBV_QPS_RESET`.
    pub fn query_state(&self) -> Result<QpState> {
        let mut attr = ibv_qp_attr::default();
        let mut init = core::mem::MaybeUninit::<ibv_qp_init_attr>::zeroed();
        let verbs = &self.pd.context().api().verbs;
        // SAFETY: the pair exists, and `attr` and `init` are room for the answers.
        check("ibv_query_qp", unsafe {
            (verbs.ibv_query_qp)(self.raw.as_ptr(), &raw mut attr, IBV_QP_STATE, init.as_mut_ptr())
        })?;
        Ok(QpState(attr.qp_state))
    }

    /// Makes all posted requests complete with an error (`ibv_modify_qp` to `IBV_QPS_ERR`).
    pub fn set_error(&self) -> Result<()> {
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::default() };
        let verbs = &self.pd.context().api().verbs;
        // SAFETY: the pair exists, and `attr` lives until the call returns.
        check("ibv_modify_qp", unsafe { (verbs.ibv_modify_qp)(self.raw.as_ptr(), &raw mut attr, IBV_QP_STATE) })
    }
}

/// The outcome of posting a list: how many requests were taken is told by `bad`, the address of the first that was not.
fn posted<R: Request>(
    verb: &'static str,
    result: c_int,
    requests: &mut [R],
    bad: *mut R::Raw,
) -> core::result::Result<(), PostError> {
    let refused = requests.iter_mut().position(|r| ptr::eq(r.raw(), bad));
    match (check(verb, result), refused) {
        (Ok(()), None) => Ok(()),
        // siw's provider names the refused request but returns 0 if one before it in the list was taken.
        (Ok(()), Some(posted)) => Err(PostError { error: Error::Verb { verb, errno: Errno::INVAL }, posted }),
        // A provider that fails and names no request has taken none.
        (Err(error), posted) => Err(PostError { error, posted: posted.unwrap_or(0) }),
    }
}
