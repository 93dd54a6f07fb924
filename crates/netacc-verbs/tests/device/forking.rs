//! Tests of registered memory and fork(2).
#![allow(unsafe_code)]

use crate::rig::*;
use netacc_verbs::fork::{ForkStatus, is_safe, status};
use netacc_verbs::{Mr, RecvWr};

/// Runs `child` in a forked process and returns its result.
fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only reads and writes its own memory and ends, so it takes no lock that another thread had.
    match unsafe { libc::fork() } {
        // SAFETY: _exit(2) ends the child without running the parent's exit handlers.
        0 => unsafe { libc::_exit(if child() { 0 } else { 1 }) },
        pid => {
            let mut code = 0;
            // SAFETY: `pid` is our own child, and `code` is room for its status.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut code, 0) }, pid);
            code == 0
        }
    }
}

/// Messages arrive in the parent's pages, although the child has written to its copies of them since the fork.
#[test]
#[ignore = "needs an RDMA device"]
fn the_parent_keeps_its_pages() {
    // On a kernel before 5.12, which copies all pages but those of hugetlb, the status is not `Unneeded`.
    assert!(is_safe() && status() != Ok(ForkStatus::Enabled));
    let Pair { client, server } = pair();
    let wiped = Mr::register(&server.pd, BUFFER).unwrap();
    wiped.wipe_on_fork().unwrap();
    assert!(wiped.write(0, b"secret") && server.mr.write(0, b"copied"));
    let found = in_child(|| {
        let (mut a, mut b) = ([1; 6], [1; 6]);
        let read = wiped.read(0, &mut a) && server.mr.read(0, &mut b);
        read && a == [0; 6] && b == *b"copied" && wiped.write(0, b"child") && server.mr.write(0, b"child")
    });
    assert!(found, "the child sees zeroes in the one and a copy in the other");
    // The messages go once through the buffers that were registered before the fork, and then into the other region.
    for number in 0..RECEIVES {
        client.say(&server, number, b"after the fork");
    }
    for _ in 0..RECEIVES {
        client.send(1, b"taken");
        client.completion().check().unwrap();
        server.completion().check().unwrap();
    }
    server.qp().post_recv(&mut [RecvWr::new(50, wiped.sge(0, BUFFER).unwrap())]).unwrap();
    client.send(2, b"to the parent");
    let got = server.completion();
    got.check().unwrap();
    let mut text = [0; 13];
    assert!(got.wr_id() == 50 && wiped.read(0, &mut text));
    assert_eq!(&text, b"to the parent");
}
