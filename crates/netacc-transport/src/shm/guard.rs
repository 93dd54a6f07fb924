//! Inspecting the descriptors of a peer's message before they are received.
//!
//! A received descriptor is a file of the peer's choice, and even its close may block the thread that does it
//! ([`netacc_sys::closer`]). A peek (`MSG_PEEK`) leaves it in the socket, whatever happens to the duplicate that the
//! peek makes. So a process peeks first, receives descriptors only from a sender that may pass them, and leaves a
//! socket with other descriptors to the thread that closes such sockets.
//!
//! # Safety
//! `recvmsg` is given buffers on our own stack with their right lengths.
#![allow(unsafe_code)]

use netacc_sys::errno::Errno;
use netacc_sys::{closer, raw, reserved_fds};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::fs::fcntl_get_seals;

/// The first message in a control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstMessage {
    /// A message. `uid` is its sender's real user id at the time of sending, if the socket requests it (`SO_PASSCRED`);
    /// `descriptors` tells whether it passes descriptors.
    Message { uid: Option<u32>, descriptors: bool },
    /// There is no message for now.
    Nothing,
    /// No message will come.
    End,
}

/// Size (bytes) of a control message with credentials (`struct ucred`).
const CREDENTIALS: usize = size_of::<libc::cmsghdr>() + 16;
/// Size (bytes) of a control message with credentials and of a following one with a descriptor.
const WITH_DESCRIPTOR: usize = CREDENTIALS + size_of::<libc::cmsghdr>() + 8;

/// Buffer for control messages, aligned as `struct cmsghdr` has to be.
#[repr(align(8))]
struct Control<const N: usize>([u8; N]);

impl<const N: usize> Control<N> {
    fn word(&self, at: usize) -> Option<i32> {
        self.0.get(at..at + 4).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes)
    }

    /// Offset and length of the data of the first control message of this type (cmsg(3)).
    fn find(&self, used: usize, kind: i32) -> Option<(usize, usize)> {
        const HEAD: usize = size_of::<libc::cmsghdr>();
        let mut at = 0;
        while at + HEAD <= used {
            // The length is a size_t, of which only the lower half matters for a buffer of this size.
            let len = usize::try_from(self.word(at)?).unwrap_or(0).max(HEAD);
            if (self.word(at + 8)?, self.word(at + 12)?) == (libc::SOL_SOCKET, kind) {
                return Some((at + HEAD, len - HEAD));
            }
            at += len.next_multiple_of(8);
        }
        None
    }

    /// Calls `f` for the duplicates of descriptors that a peek has made, and returns their number. Each can be closed
    /// at any time, since the message keeps its own.
    fn take_descriptors(&self, used: usize, mut f: impl FnMut(OwnedFd)) -> usize {
        let Some((at, len)) = self.find(used, libc::SCM_RIGHTS) else { return 0 };
        let copies = (at..at + len).step_by(size_of::<i32>()).filter_map(|at| self.word(at));
        // SAFETY: the kernel has just made the descriptors for this process, and no other code knows them.
        copies.map(|copy| f(unsafe { OwnedFd::from_raw_fd(copy) })).count()
    }
}

/// Peeks at the first message with room for `N` bytes of control messages. Returns the length of the message, the used
/// bytes of control messages, and whether some of them found no room.
fn peek<const N: usize>(fd: i32, control: &mut Control<N>) -> Result<(usize, usize, bool), Errno> {
    let mut byte = 0u8;
    let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    loop {
        // SAFETY: a zeroed message header is valid: it has no address, buffers or control messages.
        let mut m: libc::msghdr = unsafe { core::mem::zeroed() };
        m.msg_iov = &raw mut iov;
        m.msg_iovlen = 1;
        m.msg_control = control.0.as_mut_ptr().cast();
        m.msg_controllen = N as _;
        match raw::recvmsg(fd, &raw mut m, libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) {
            Ok(n) => return Ok((n, (m.msg_controllen as usize).min(N), m.msg_flags & libc::MSG_CTRUNC != 0)),
            // The kernel reports a reset once, before it returns earlier messages.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Peeks at the first message of a socket that requests the senders' credentials. There is room for them alone, and the
/// truncation flag reports descriptors (unix(7)), of which the peek makes no duplicates.
pub(super) fn first_message(fd: i32) -> FirstMessage {
    let mut control = Control([0; CREDENTIALS]);
    match peek(fd, &mut control) {
        Ok((n, used, more)) => {
            let descriptors = control.take_descriptors(used, reserved_fds::drop_raw) > 0 || more;
            let at = control.find(used, libc::SCM_CREDENTIALS);
            let uid = at.and_then(|(at, _)| control.word(at + 4)).map(i32::cast_unsigned);
            // An empty message can be told from the end only by its credentials or descriptors.
            if n == 0 && uid.is_none() && !descriptors {
                FirstMessage::End
            } else {
                FirstMessage::Message { uid, descriptors }
            }
        }
        Err(Errno::AGAIN) => FirstMessage::Nothing,
        Err(_) => FirstMessage::End,
    }
}

/// Peeks at the first message of a socket that requests no credentials. Without room for control messages the peek makes
/// no duplicates of descriptors: even the close of a duplicate may block, since a file of a FUSE file system asks its
/// server at each close.
pub(super) fn first_bare_message(fd: i32) -> FirstMessage {
    match peek(fd, &mut Control([0; 0])) {
        Ok((0, _, false)) => FirstMessage::End,
        Ok((_, _, descriptors)) => FirstMessage::Message { uid: None, descriptors },
        Err(Errno::AGAIN) => FirstMessage::Nothing,
        Err(_) => FirstMessage::End,
    }
}

/// Whether the first message of a socket passes exactly one descriptor, which is that of a sealed memfd: no operation
/// on such a file blocks.
pub(super) fn brings_memfd(fd: i32) -> bool {
    let mut control = Control([0; WITH_DESCRIPTOR]);
    let Ok((_, used, more)) = peek(fd, &mut control) else { return false };
    let mut sealed = true;
    let count = control.take_descriptors(used, |copy| {
        // Only shared memory knows seals (fcntl(2)).
        if fcntl_get_seals(&copy).is_ok_and(|seals| !seals.is_empty()) {
            reserved_fds::drop_raw(copy);
        } else {
            sealed = false;
            // The file may be of a kind whose every close blocks. It keeps its number, since moving it would close one.
            let copy = copy.into_raw_fd();
            reserved_fds::take_over(copy);
            closer::close_as_it_is(copy);
        }
    });
    count == 1 && sealed && !more
}

/// Closes a socket whose other end a stranger has. Descriptors that the stranger has put into it may block the thread
/// that closes it.
pub fn dismiss(fd: OwnedFd) {
    if holds_descriptors(fd.as_raw_fd()) {
        // If `adopt` has no memory for its mark, it closes the socket itself, and this thread may block.
        if let Ok(fd) = reserved_fds::adopt(fd) {
            closer::close(fd);
        }
    } else {
        reserved_fds::drop_raw(fd);
    }
}

/// Closes a stranger's socket as [`dismiss`] does, if it is a reserved descriptor.
pub(super) fn dismiss_reserved(fd: i32) {
    if holds_descriptors(fd) { closer::close(fd) } else { reserved_fds::close(fd) }
}

/// Closes a stranger's socket that other sharers may have, too, and continue to use: it is not shut down, and its
/// messages are left to them. On a kernel with `SO_PASSRIGHTS` no descriptor can arrive after the check
/// ([`refuse_descriptors`]).
pub(super) fn dismiss_shared(fd: i32) {
    match first_bare_message(fd) {
        FirstMessage::Message { descriptors: true, .. } => closer::close_as_it_is(fd),
        _ => reserved_fds::close(fd),
    }
}

/// Has the kernel refuse descriptors that are sent to the socket, where the kernel can (Linux 6.16, `SO_PASSRIGHTS`), and
/// returns whether it can. Sockets that are accepted from a listening one inherit this.
pub(super) fn refuse_descriptors(fd: BorrowedFd<'_>) -> bool {
    const SO_PASSRIGHTS: i32 = 83;
    raw::setsockopt_int(fd.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, 0).is_ok()
}

/// Shuts the socket down, so that no more messages can come, and returns whether it has descriptors. Messages without
/// descriptors are discarded.
fn holds_descriptors(fd: i32) -> bool {
    // Largest number of messages that are read: more than a socket holds.
    const MESSAGES: usize = 4096;
    let _ = raw::shutdown(fd, libc::SHUT_RDWR);
    // The credentials take the room in which a peek would make duplicates.
    pass_credentials_to(fd);
    for _ in 0..MESSAGES {
        match first_message(fd) {
            FirstMessage::Nothing | FirstMessage::End => return false,
            FirstMessage::Message { descriptors: true, .. } => return true,
            FirstMessage::Message { .. } => {
                let mut byte = 0u8;
                let _ = raw::recv(fd, &raw mut byte, 1, libc::MSG_DONTWAIT);
            }
        }
    }
    true
}

/// Has the kernel add the sender's credentials to each message that is received (`SO_PASSCRED`, unix(7)).
pub(super) fn pass_credentials(fd: BorrowedFd<'_>) {
    pass_credentials_to(fd.as_raw_fd());
}

fn pass_credentials_to(fd: i32) {
    let _ = raw::setsockopt_int(fd, libc::SOL_SOCKET, libc::SO_PASSCRED, 1);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::io::IoSlice;
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
        socketpair,
    };

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn pass(to: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut anc = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(anc.push(SendAncillaryMessage::ScmRights(fds)));
        }
        sendmsg(to, &[IoSlice::new(bytes)], &mut anc, SendFlags::NOSIGNAL).unwrap();
    }

    #[test]
    fn a_peek_reports_descriptors_and_senders_and_removes_nothing() {
        let (ours, theirs) = pair();
        pass_credentials(ours.as_fd());
        assert_eq!(first_message(ours.as_raw_fd()), FirstMessage::Nothing);
        pass(&theirs, b"plain", &[]);
        pass(&theirs, b"more", &[theirs.as_fd()]);
        let uid = Some(rustix::process::getuid().as_raw());
        for descriptors in [false, true] {
            assert_eq!(first_message(ours.as_raw_fd()), FirstMessage::Message { uid, descriptors });
            assert_eq!(first_message(ours.as_raw_fd()), FirstMessage::Message { uid, descriptors });
            assert!(rustix::io::read(&ours, &mut [0; 8]).is_ok());
        }
        drop(theirs);
        assert_eq!(first_message(ours.as_raw_fd()), FirstMessage::End);
    }

    #[test]
    fn without_credentials_descriptors_are_found_and_not_kept() {
        let (ours, theirs) = pair();
        let (read, write) = rustix::pipe::pipe().unwrap();
        assert_eq!(first_bare_message(ours.as_raw_fd()), FirstMessage::Nothing);
        pass(&theirs, b"x", &[]);
        pass(&theirs, b"x", &[write.as_fd()]);
        pass(&theirs, b"x", &[write.as_fd(), write.as_fd(), write.as_fd()]);
        drop(write);
        for descriptors in [false, true, true] {
            assert_eq!(first_bare_message(ours.as_raw_fd()), FirstMessage::Message { uid: None, descriptors });
            assert!(rustix::io::read(&ours, &mut [0; 8]).is_ok());
        }
        assert_eq!(rustix::io::read(&read, &mut [0; 1]), Ok(0), "nobody holds one");
        drop(theirs);
        assert_eq!(first_bare_message(ours.as_raw_fd()), FirstMessage::End);
    }

    /// Whether this process holds a lock on the file that fcntl(2) gives to a process. The close of any descriptor of the
    /// file takes it away, so it shows what no later look at the table of descriptors shows.
    fn is_locked(file: &OwnedFd) -> bool {
        // SAFETY: a zeroed lock is valid.
        let mut other: libc::flock = unsafe { core::mem::zeroed() };
        other.l_type = libc::F_WRLCK.try_into().unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let again = rustix::fs::open(path.as_str(), rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
        raw::fcntl(again.as_raw_fd(), libc::F_OFD_GETLK, (&raw mut other).addr()).unwrap();
        // Its close would take the lock away.
        core::mem::forget(again);
        i32::from(other.l_type) != libc::F_UNLCK
    }

    #[test]
    fn a_look_at_a_message_closes_no_descriptor_of_it() {
        let file = rustix::fs::memfd_create("locked", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        // SAFETY: a zeroed lock is valid.
        let mut lock: libc::flock = unsafe { core::mem::zeroed() };
        lock.l_type = libc::F_WRLCK.try_into().unwrap();
        raw::fcntl(file.as_raw_fd(), libc::F_SETLK, (&raw const lock).addr()).unwrap();
        assert!(is_locked(&file));
        for credentials in [false, true] {
            let (ours, theirs) = pair();
            if credentials {
                pass_credentials(ours.as_fd());
            }
            pass(&theirs, b"x", &[file.as_fd()]);
            let seen = if credentials { first_message(ours.as_raw_fd()) } else { first_bare_message(ours.as_raw_fd()) };
            assert!(matches!(seen, FirstMessage::Message { descriptors: true, .. }));
            assert!(holds_descriptors(ours.as_raw_fd()));
            assert!(is_locked(&file), "with credentials: {credentials}");
        }
        drop(rustix::io::dup(&file).unwrap());
        assert!(!is_locked(&file), "the lock shows what it should");
    }

    #[test]
    fn an_empty_message_is_not_the_end() {
        let (ours, theirs) = pair();
        pass_credentials(ours.as_fd());
        pass(&theirs, b"", &[]);
        pass(&theirs, b"", &[theirs.as_fd()]);
        assert!(matches!(first_message(ours.as_raw_fd()), FirstMessage::Message { descriptors: false, .. }));
        assert!(holds_descriptors(ours.as_raw_fd()), "it follows the empty one");
    }

    #[test]
    fn of_all_files_only_a_sealed_memfd_is_taken_from_a_stranger() {
        let sealed = crate::shm::segment::Segment::create().unwrap();
        let (pipe, _write) = rustix::pipe::pipe().unwrap();
        for (fds, good) in [
            (vec![sealed.as_fd()], true),
            (vec![pipe.as_fd()], false),
            (vec![sealed.as_fd(), pipe.as_fd()], false),
            (vec![pipe.as_fd(), sealed.as_fd()], false),
            (vec![], false),
        ] {
            let (ours, theirs) = pair();
            pass_credentials(ours.as_fd());
            pass(&theirs, b"hello", &fds);
            assert_eq!(brings_memfd(ours.as_raw_fd()), good, "{} descriptors", fds.len());
        }
    }
}
