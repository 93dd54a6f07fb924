//! Whether the program makes system calls by its own instructions, which no function of the library sees.

use crate::process_mode;
use crate::runtime::Runtime;
use core::sync::atomic::{AtomicU32, Ordering};
use netacc_stats::Reason;
use netacc_sys::own_calls::{Kind, OwnCall, loaded};

/// Nonzero once the program was examined.
static EXAMINED: AtomicU32 = AtomicU32::new(0);

/// Examines the program when something of it may be accelerated for the first time. Returns the call for which it is
/// not accelerated, if one was found just now.
pub(crate) fn examine(rt: &Runtime) -> Option<OwnCall> {
    // Relaxed: threads that examine the program are serialised by the caller.
    if !rt.accelerates() || EXAMINED.swap(1, Ordering::Relaxed) != 0 {
        return None;
    }
    let own = loaded::own_call();
    if let Some(call) = own {
        process_mode::leave_to_kernel(reason_of(call));
    }
    own
}

/// Logs what [`examine`] has found.
pub(crate) fn log(own: Option<OwnCall>) {
    if let Some(call) = own {
        netacc_log::log!(
            Info,
            "program: calls {} by an instruction of its own; its connections use kernel TCP",
            call.name
        );
    }
}

/// The reason for which a program that makes such a system call by its own instruction is not accelerated.
fn reason_of(call: OwnCall) -> Reason {
    match call.kind {
        Kind::Sockets => Reason::OwnCalls,
        Kind::IoUring => Reason::IoUring,
    }
}
