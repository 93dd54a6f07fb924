//! A side that becomes several processes while the other one leaves the rings: no byte and no socket gets lost, however
//! long either side loses its processor in the middle.

use netacc_conformance::links::Links;
use netacc_ring::SWITCHED;
use netacc_transport::Endpoint;
use netacc_transport::shm::control::send_message;
use netacc_transport::shm::segment::Leave;
use netacc_transport::shm::unread::Unread;
use netacc_transport::shm::{ShmEndpoint, WaitBudget};
use netacc_wire::Message;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use std::sync::atomic::Ordering;
use std::thread;

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

fn borrowed<'a>(fd: i32) -> BorrowedFd<'a> {
    // SAFETY: only asked about.
    #[allow(unsafe_code)]
    unsafe {
        BorrowedFd::borrow_raw(fd)
    }
}

fn until(what: impl Fn() -> bool) {
    while !what() {
        thread::yield_now();
    }
}

/// Whether the server has marked that it leaves the rings.
fn has_left(l: &Links, c: &ShmEndpoint) -> bool {
    let seg = l.client.segment().unwrap();
    let [_, server] = &seg.slot(c.side.slot_index()).unwrap().own;
    server.producer.fin.load(Ordering::SeqCst) & SWITCHED != 0
}

fn is_empty(control: BorrowedFd<'_>) -> bool {
    recv(control, &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) == Err(rustix::io::Errno::AGAIN)
}

#[test]
fn a_fork_in_the_middle_of_a_switch_is_told_of_the_socket() {
    let l = Links::new(true);
    let (c, s) = l.connect().unwrap();
    // The server's message waits until the client reads. The socket would be widened if it were smaller.
    set_socket_send_buffer_size(Links::control(l.server), 1 << 20).unwrap();
    while send_message(Links::control(l.server), Message::Wake { id: 100 }, None).is_ok() {}
    let (local_end, peer_end) = sockets();
    let liveness = thread::scope(|scope| {
        scope.spawn(|| s.offer_switch(&local_end, &peer_end, Leave::ForGood).unwrap());
        until(|| has_left(&l, c));
        // It reads while it waits for room, and has looked for a fork of the client by then.
        send_message(Links::control(l.client), Message::Wake { id: 100 }, None).unwrap();
        until(|| is_empty(Links::control(l.server)));
        c.share(&WaitBudget::of_a_fork()).unwrap().unwrap()
    });
    let mut byte = [0u8; 1];
    let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    assert_eq!(recv(&liveness, &mut byte, look), Ok((1, 1)), "for the child, which cannot read the control socket");
    // The parent takes the one that it finds first, and keeps it.
    let nobody_reads = l.client.control.stop_reading(0).unwrap();
    c.set_liveness(liveness.as_raw_fd());
    c.readiness();
    assert!(c.must_switch());
    let socket = c.passed.kernel_fd();
    assert!(socket >= 0);
    drop(nobody_reads);
    l.client.service();
    assert_eq!(c.passed.kernel_fd(), socket);
    assert!(rustix::io::fcntl_getfd(borrowed(socket)).is_ok(), "another thread may be working with it");
    s.let_go();
    c.close(false);
}

#[test]
fn a_child_knows_the_end_of_its_peer_or_is_reset() {
    let l = Links::new(true);
    let (c, s) = l.connect().unwrap();
    let budget = WaitBudget::of_a_fork();
    let _of_server = s.share(&budget).unwrap();
    let _of_client = c.share(&budget).unwrap();
    let mut unread = Unread::default();
    unread.stop(l.client, 0);
    c.about_to_fork(&unread);
    assert!(c.liveness.peer_fd() >= 0 && !c.side.is_untold());
    unread.go_on();
    // A peer that forks when no thread reads any more.
    let (c, s) = l.connect().unwrap();
    let _of_client = c.share(&budget).unwrap();
    let mut unread = Unread::default();
    unread.stop(l.client, 0);
    let _of_server = s.share(&budget).unwrap();
    c.about_to_fork(&unread);
    assert!(c.liveness.peer_fd() >= 0 && !c.side.is_untold());
    unread.go_on();
    // One that says so, and whose liveness socket does not come.
    let (c, _s) = l.connect().unwrap();
    let _of_client = c.share(&budget).unwrap();
    let seg = l.client.segment().unwrap();
    seg.slot(c.side.slot_index()).unwrap().own[1].side.forked.store(1, Ordering::SeqCst);
    let mut unread = Unread::default();
    unread.stop(l.client, 0);
    c.about_to_fork(&unread);
    unread.go_on();
    assert!(c.side.is_untold());
}

#[test]
fn what_comes_for_a_connection_that_was_left_is_not_kept() {
    let l = Links::new(true);
    let (c, s) = l.connect().unwrap();
    let _of_server = s.share(&WaitBudget::of_a_fork()).unwrap();
    let seg = l.client.segment().unwrap();
    let slot = c.side.slot_index();
    let generation = seg.slot(slot).unwrap().open.generation.load(Ordering::Relaxed);
    // A child goes on with it.
    s.leave_shared();
    let (ours, theirs) = sockets();
    let message = Message::SwitchToKernel { slot: slot as u32, generation };
    send_message(Links::control(l.client), message, Some(theirs.as_fd())).unwrap();
    drop(theirs);
    l.server.service();
    assert_eq!(recv(&ours, &mut [0u8; 1], RecvFlags::DONTWAIT), Ok((0, 0)), "nobody has the other end");
    c.close(false);
}
