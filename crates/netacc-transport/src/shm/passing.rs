//! Messages over a liveness socket of either side that pass descriptors, among them the socket on which a connection
//! goes on.
//!
//! # Safety
//! Descriptors are borrowed by their numbers while the caller keeps them open.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::reserved_fds;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// The byte that accompanies descriptors on a liveness socket of either side.
pub(super) const PASSES: u8 = 0x02;
/// The byte that accompanies descriptors of which the last one is an old subflow (see
/// [`netacc_wire::Message::OldSubflow`]).
pub(super) const PASSES_OLD_SUBFLOW: u8 = 0x03;

/// Descriptors that were received over a liveness socket of either side, because a process has left the rings.
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// The socket on which the connection goes on.
    pub(super) kernel: Option<OwnedFd>,
    /// An [`enclosed`] descriptor of the other end of that socket, to be sent back for the sender's other sharers.
    pub(super) sibling_copy: Option<OwnedFd>,
    /// The old subflow, with bytes that the receiver sent before it switched to the ring.
    pub(super) old_subflow: Option<OwnedFd>,
    /// Set if some descriptors could not be received, since the process has reached its limit: then all others were
    /// closed.
    pub(super) lost: bool,
}

/// Encloses a copy of a descriptor in a UNIX socket, from which [`take_out`] receives it.
///
/// Descriptors that are passed over a liveness socket stay there for all sharers of the receiving side, as long as any
/// of them has the connection. In an enclosing socket a descriptor stays only until the first sharer has received it.
pub(super) fn enclosed(fd: i32) -> Result<OwnedFd> {
    let (outside, inside) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let done = pass_descriptors(inside.as_raw_fd(), &[fd], None);
    reserved_fds::drop_raw(inside);
    if let Err(e) = done {
        reserved_fds::drop_raw(outside);
        return Err(e);
    }
    Ok(outside)
}

/// Calls `pass` with the [`enclosed`] descriptor, and removes it from its socket once it has been passed on or no
/// receiver is left. If a process is killed in between, the others still find it.
pub(super) fn take_out(enclosing: i32, pass: impl FnOnce(i32) -> Result<()>) {
    let mut byte = [0u8; 1];
    let Passed { kernel: Some(copy), .. } = receive_descriptors(enclosing, &mut byte, true).1 else { return };
    let passed = pass(copy.as_raw_fd());
    reserved_fds::drop_raw(copy);
    if !matches!(passed, Err(Errno::AGAIN))
        && let Some(copy) = receive_descriptors(enclosing, &mut byte, false).1.kernel
    {
        reserved_fds::drop_raw(copy);
    }
}

/// Passes up to two descriptors, and perhaps an old subflow, over a liveness socket of either side without waiting.
pub(super) fn pass_descriptors(fd: i32, pass: &[i32], old_subflow: Option<i32>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut anc = SendAncillaryBuffer::new(&mut space);
    // SAFETY: the caller keeps these descriptors open during the call.
    let borrow = |fd: &i32| unsafe { BorrowedFd::borrow_raw(*fd) };
    let mut all = [borrow(&fd); 3];
    let count = pass.len() + usize::from(old_subflow.is_some());
    for (cell, one) in all.iter_mut().zip(pass.iter().chain(&old_subflow)) {
        *cell = borrow(one);
    }
    anc.push(SendAncillaryMessage::ScmRights(all.get(..count).ok_or(Errno::INVAL)?));
    let byte = [if old_subflow.is_some() { PASSES_OLD_SUBFLOW } else { PASSES }];
    sendmsg(borrow(&fd), &[IoSlice::new(&byte)], &mut anc, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives bytes and descriptors from a liveness socket of either side without waiting. With `peek` they stay in the
/// socket, and the descriptors are duplicates (unix(7)), for which the reserve is given back if the program has used up
/// all other numbers.
pub(super) fn receive_descriptors(fd: i32, bytes: &mut [u8], peek: bool) -> (Result<usize>, Passed) {
    let received = receive(fd, bytes, peek);
    if received.1.lost && peek && reserved_fds::is_exhausted(fd) && reserved_fds::release_reserve() {
        return receive(fd, bytes, true);
    }
    received
}

fn receive(fd: i32, bytes: &mut [u8], peek: bool) -> (Result<usize>, Passed) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut anc = RecvAncillaryBuffer::new(&mut space);
    // SAFETY: the caller keeps this descriptor open during the call.
    let from = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    flags.set(RecvFlags::PEEK, peek);
    let got = recvmsg(from, &mut [IoSliceMut::new(bytes)], &mut anc, flags);
    let lost = got.as_ref().is_ok_and(|r| r.flags.contains(ReturnFlags::CTRUNC));
    let got = got.map(|r| r.bytes).map_err(Errno::from);
    let mut fds = [const { None }; 3];
    for m in anc.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = m {
            for fd in received {
                match fds.iter_mut().find(|f| f.is_none() && !lost) {
                    Some(cell) => *cell = Some(fd),
                    None => reserved_fds::drop_raw(fd),
                }
            }
        }
    }
    // One call reads no bytes beyond those that came with descriptors (unix(7)), so their byte is the last one.
    let last = got.ok().and_then(|n| bytes.get(n.checked_sub(1)?)).copied();
    let old_subflow = if last == Some(PASSES_OLD_SUBFLOW) {
        fds.iter_mut().rfind(|f| f.is_some()).and_then(Option::take)
    } else {
        None
    };
    let [kernel, sibling_copy, surplus] = fds;
    if let Some(fd) = surplus {
        reserved_fds::drop_raw(fd);
    }
    (got, Passed { kernel, sibling_copy, old_subflow, lost })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn if_some_descriptors_are_lost_none_is_taken() {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        // More descriptors are sent than the receiver has room for, which the kernel reports like a process that has
        // reached its limit.
        let many = [writer.as_fd(); 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut anc = SendAncillaryBuffer::new(&mut space);
        assert!(anc.push(SendAncillaryMessage::ScmRights(&many)));
        sendmsg(&theirs, &[IoSlice::new(&[PASSES_OLD_SUBFLOW])], &mut anc, SendFlags::NOSIGNAL).unwrap();
        drop(writer);
        let (got, passed) = receive_descriptors(ours.as_raw_fd(), &mut [0; 9], false);
        assert!(matches!(
            (got, passed),
            (Ok(1), Passed { kernel: None, sibling_copy: None, old_subflow: None, lost: true })
        ));
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(0), "nobody holds one");
    }
}
