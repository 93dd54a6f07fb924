//! What the stats page says of links and slots. One test: the counters belong to the process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use netacc_stats::{Counter, Reason, page};
use netacc_sys::reserved_fds;
use netacc_transport::Endpoint;
use netacc_transport::shm::admission::{Taken, receive_hello};
use netacc_transport::shm::segment::{SEGMENT, Segment};
use netacc_transport::shm::users::Trust;
use netacc_transport::shm::{Link, ShmEndpoint, Side};
use netacc_wire::Message;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

fn sockets() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn links() -> (&'static Link, &'static Link) {
    let memfd = Segment::create().unwrap();
    let (c, s) = sockets();
    let link = |side, socket| {
        let seg = Segment::map(memfd.as_fd()).unwrap();
        Link::new(side, seg, reserved_fds::adopt(socket).unwrap(), Trust::User, 0).unwrap()
    };
    (link(Side::Client, c), link(Side::Server, s))
}

fn connect(client: &'static Link, server: &'static Link) -> (&'static ShmEndpoint, &'static ShmEndpoint) {
    let claimed = client.claim().unwrap();
    let (c, s) = (client.endpoint(claimed.slot).unwrap(), server.endpoint(claimed.slot).unwrap());
    assert!(c.begin(claimed.generation) && s.side.take() && s.begin(claimed.generation));
    (c, s)
}

#[test]
fn counters_of_links_and_slots() {
    let count = || {
        let [opened, closed, lost] =
            [Counter::LinksOpened, Counter::LinksClosed, Counter::LinksLost].map(|c| page().value(c));
        [opened, closed, lost, page().slots_in_use()]
    };
    // Without a page, as here, a link has no entry, and its slots are counted all the same.
    let (client, server) = links();
    let (c, s) = connect(client, server);
    assert_eq!(count(), [2, 0, 0, 2]);
    // A page made in between changes nothing for them.
    let mark = netacc_stats::init(b"test", 1).unwrap();
    // A link's connections as its entry has them.
    let in_use = |id: u32| {
        let links = netacc_stats_reader::read_fd(&mark).unwrap().links;
        links.iter().find(|link| link.id == id).map(|link| link.in_use)
    };
    assert_eq!(count(), [2, 0, 0, 2]);
    s.close(false);
    c.close(false);
    client.put();
    server.put();
    assert_eq!(count(), [2, 2, 0, 0]);

    // The peer ends its streams and goes: closed, not lost.
    let (client, server) = links();
    let (c, s) = connect(client, server);
    let (c2, s2) = connect(client, server);
    assert_eq!(count(), [4, 2, 0, 4]);
    assert_eq!(in_use(client.id()), Some(2));
    s.close(false);
    c.close(false);
    s2.close(false);
    assert_eq!(count(), [4, 2, 0, 1]);
    server.put();
    client.service();
    assert!(client.is_lost());
    assert_eq!(in_use(client.id()), Some(1));
    let id = client.id();
    c2.close(false);
    client.put();
    assert_eq!(in_use(id), None, "its entry is free");
    assert_eq!(count(), [4, 4, 0, 0]);

    // It goes with a connection open: lost, and not closed as well.
    let (client, server) = links();
    let (c, s) = connect(client, server);
    server.close_descriptors();
    client.service();
    assert_eq!(count(), [6, 4, 1, 2]);
    s.close(false);
    c.close(false);
    client.put();
    server.put();
    assert_eq!(count(), [6, 5, 1, 0]);

    // Why a client could not be taken up.
    let refused = |bytes: &[u8]| {
        let (c, s) = sockets();
        let sent = rustix::net::send(&c, bytes, rustix::net::SendFlags::empty());
        assert_eq!(sent, Ok(bytes.len()));
        assert!(s.as_raw_fd() >= 0 && matches!(receive_hello(s, 1, |_| true), Taken::Refused));
    };
    let mut hello = Message::Hello { pid: 1, segment: SEGMENT as u64 }.encode();
    hello[4] += 1;
    refused(&hello);
    refused(b"GET / HTTP/1.1\r\n\r\n");
    let why = [Reason::PeerVersion, Reason::ProtocolError].map(|r| page().fallbacks(r));
    assert_eq!((why, page().value(Counter::ProtocolErrors)), ([1, 1], 1));
}
