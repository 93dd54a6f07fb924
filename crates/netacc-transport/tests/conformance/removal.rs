//! A link that is removed while something still uses it.

use crate::shm::Links;
use netacc_transport::WaitSet;

#[test]
fn a_wait_keeps_a_link_that_another_thread_removes() {
    let links = Links::new(true);
    let (client, server) = (links.client, links.server);
    std::mem::forget(links);
    let mut wait = WaitSet::new();
    assert_ne!(wait.waker(server), 0);
    wait.hold(server);
    // It counts once, however often it is held.
    wait.hold(server);
    assert!(server.is_idle(), "a thread that sleeps opens no connection");
    // The listener's reference goes, as when the link is removed from its list.
    server.put();
    assert!(server.segment().is_some());
    drop(wait);
    assert!(server.segment().is_none(), "the last user is gone");
    client.put();
}
