//! Queue pairs.
//!
//! # Safety
//! A queue pair belongs to the connection's identifier ([`crate::CmId`]), which destroys it before it goes itself.
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

/// What a queue pair is to be made with (`struct ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct QpInit<'a> {
    /// Where sends complete.
    pub send_cq: &'a Cq,
    /// Where receives complete.
    pub recv_cq: &'a Cq,
    /// How much it is to hold. A device may give more, never less.
    pub cap: ibv_qp_cap,
    /// Whether every send has a visible completion.
    pub sq_sig_all: bool,
}

/// A queue pair's state, `IBV_QPS_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpState(pub u32);

impl QpState {
    /// Ready to send: connected.
    pub const RTS: QpState = QpState(IBV_QPS_RTS);
    /// Failed or disconnected: everything posted completes with an error.
    pub const ERR: QpState = QpState(IBV_QPS_ERR);
}

/// A list of requests of which not all were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostError {
    /// Why the next one was not.
    pub error: Error,
    /// How many were.
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
    // Held as long as the pair exists.
    _cqs: [Cq; 2],
}

// SAFETY: the library allows calls from several threads.
unsafe impl Send for Qp {}
// SAFETY: the library allows calls from several threads.
unsafe impl Sync for Qp {}

impl Qp {
    /// Wraps a pair that the connection manager has made.
    ///
    /// # Safety
    /// `raw` is a pair of `pd` with these queues, and its maker destroys it after the last use of the result
    /// and before the result is dropped.
    pub(crate) unsafe fn wrap(raw: NonNull<ibv_qp>, cap: ibv_qp_cap, pd: &Pd, init: &QpInit<'_>) -> Result<Qp> {
        // SAFETY: an open context; the table is filled when it is opened.
        let ops = unsafe { &(*pd.context().raw()).ops };
        let (Some(post_send), Some(post_recv)) = (ops.post_send, ops.post_recv) else {
            return Err(Error::Misuse { verb: "rdma_create_qp", why: "the provider cannot post" });
        };
        let cqs = [init.send_cq.clone(), init.recv_cq.clone()];
        Ok(Qp { raw, post_send, post_recv, cap, pd: pd.clone(), _cqs: cqs })
    }

    /// Its number; completions and events name it so.
    pub fn qp_num(&self) -> u32 {
        // SAFETY: a pair that exists.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// How much it holds.
    pub fn cap(&self) -> ibv_qp_cap {
        self.cap
    }

    /// The domain whose memory it reaches.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Gives it messages to send, in order (`ibv_post_send`).
    pub fn post_send(&self, requests: &mut [SendWr<'_>]) -> core::result::Result<(), PostError> {
        let head = chain(requests);
        if head.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: a pair that exists and a list that lives until the call returns.
        let result = unsafe { (self.post_send)(self.raw.as_ptr(), head, &raw mut bad) };
        posted("ibv_post_send", result, requests, bad)
    }

    /// Gives it places to receive into, in order (`ibv_post_recv`).
    pub fn post_recv(&self, requests: &mut [RecvWr<'_>]) -> core::result::Result<(), PostError> {
        let head = chain(requests);
        if head.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: a pair that exists and a list that lives until the call returns.
        let result = unsafe { (self.post_recv)(self.raw.as_ptr(), head, &raw mut bad) };
        posted("ibv_post_recv", result, requests, bad)
    }

    /// The state it is in (`ibv_query_qp`). siw leaves it out of its answer: it always reads as `IBV_QPS_RESET` there.
    pub fn query_state(&self) -> Result<QpState> {
        let mut attr = ibv_qp_attr::default();
        let mut init = core::mem::MaybeUninit::<ibv_qp_init_attr>::zeroed();
        let verbs = &self.pd.context().api().verbs;
        // SAFETY: a pair that exists, and room for both answers.
        check("ibv_query_qp", unsafe {
            (verbs.ibv_query_qp)(self.raw.as_ptr(), &raw mut attr, IBV_QP_STATE, init.as_mut_ptr())
        })?;
        Ok(QpState(attr.qp_state))
    }

    /// Makes everything that is posted complete with an error (`ibv_modify_qp` to `IBV_QPS_ERR`).
    pub fn set_error(&self) -> Result<()> {
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::default() };
        let verbs = &self.pd.context().api().verbs;
        // SAFETY: a pair that exists.
        check("ibv_modify_qp", unsafe { (verbs.ibv_modify_qp)(self.raw.as_ptr(), &raw mut attr, IBV_QP_STATE) })
    }
}

/// Which of the requests were taken, by the address of the first that was not.
fn posted<R: Request>(
    verb: &'static str,
    result: c_int,
    requests: &mut [R],
    bad: *mut R::Raw,
) -> core::result::Result<(), PostError> {
    let refused = requests.iter_mut().position(|r| ptr::eq(r.raw(), bad));
    match (check(verb, result), refused) {
        (Ok(()), None) => Ok(()),
        // siw's provider names the request, but forgets the error if one before it in the list was taken.
        (Ok(()), Some(posted)) => Err(PostError { error: Error::Verb { verb, errno: Errno::INVAL }, posted }),
        // A provider that names none of them has taken none.
        (Err(error), posted) => Err(PostError { error, posted: posted.unwrap_or(0) }),
    }
}
