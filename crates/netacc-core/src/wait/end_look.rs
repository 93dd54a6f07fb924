//! Looking for the end of a peer in calls that do not wait ([`netacc_transport::shm::end_look`]).

use crate::object::reference::Ref;
use crate::object::socket::Socket;
use netacc_sys::time;
use netacc_transport::shm::end_look;

/// To be called without a lock, where a call that does not wait has found nothing: once in the call, which sets `looked`, since a
/// peer that goes on sending must not keep it. Returns whether it has looked, so that the caller looks at the connection again. A
/// killed peer is found at the next tick of the kernel's clock, some milliseconds after the last look: so a program that spins
/// makes hardly a system call.
pub(crate) fn look_for_end(r: Ref<Socket>, looked: &mut bool) -> bool {
    let now = time::coarse();
    if core::mem::replace(looked, true) || !r.obj.endpoint().is_some_and(|ep| end_look::is_due(ep, now)) {
        return false;
    }
    let Some(_pin) = r.pin() else { return false };
    // Pinned, the connection keeps what it has now.
    r.obj.ring().is_some_and(|ep| end_look::look(ep, now))
}
