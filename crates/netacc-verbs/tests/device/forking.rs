//! Registered memory and fork(2).
#![allow(unsafe_code)]

use crate::rig::*;
use netacc_verbs::fork::{ForkStatus, is_safe, status};
use netacc_verbs::{Mr, RecvWr};

/// Runs `child` in a forked process and says whether it found things right.
fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only looks at memory and ends.
    match unsafe { libc::fork() } {
        // SAFETY: ends the child without anything of the parent's running in it.
        0 => unsafe { libc::_exit(if child() { 0 } else { 1 }) },
        pid => {
            let mut code = 0;
            // SAFETY: our own child, and room for its status.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut code, 0) }, pid);
            code == 0
        }
    }
}

/// Messages arrive where the parent looks, though both processes have written to the pages since the fork.
#[test]
#[ignore = "needs an RDMA device"]
fn the_parent_keeps_its_pages() {
    // A kernel before 5.12 copies all pages but hugetlb's, of which it says that fork is not safe.
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
    // Once through the buffers that were registered before the fork, then into the other region.
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
