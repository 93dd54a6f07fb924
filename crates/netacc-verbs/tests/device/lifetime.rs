//! Everything is released, whatever the order in which the objects are dropped.

use crate::rig::*;
use netacc_verbs::sys::ibv_qp_cap;
use netacc_verbs::{CmEventType, CmId, Cq, Pd, QpInit};
use std::net::SocketAddr;
use std::process::Command;

/// How many objects of this type the kernel holds for this thread, which `rdma resource show` gives as the process.
fn held(what: &str) -> usize {
    let shown = Command::new("rdma").args(["-j", "resource", "show", what]).output().unwrap();
    assert!(shown.status.success());
    let text = String::from_utf8(shown.stdout).unwrap();
    let ours = format!("\"pid\":{}", netacc_sys::raw::gettid());
    text.split('{').filter(|entry| entry.split([',', '}']).any(|field| field.trim() == ours)).count()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

const KINDS: [&str; 5] = ["cm_id", "qp", "cq", "mr", "pd"];

#[test]
#[ignore = "needs an RDMA device"]
fn nothing_is_left() {
    // The first pair makes the objects that the libraries keep for ever.
    drop(pair());
    let before: Vec<_> = KINDS.iter().map(|kind| held(kind)).collect();
    let (fds, alive) = (descriptors(), pair());
    let during: Vec<_> = KINDS.iter().map(|kind| held(kind)).collect();
    assert!(before.iter().zip(&during).all(|(b, d)| b + 2 <= *d), "the count is blind: {before:?} {during:?}");
    drop(alive);
    for _ in 0..20 {
        drop(pair());
    }
    let after: Vec<_> = KINDS.iter().map(|kind| held(kind)).collect();
    assert_eq!(before, after, "{KINDS:?}");
    assert_eq!(fds, descriptors());
}

#[test]
#[ignore = "needs an RDMA device"]
fn handles_may_go_before_what_needs_them() {
    let Pair { client, server } = pair();
    let End { id, mr, cq, completions, pd, context } = client;
    drop((context, pd, completions));
    // The connection still works, because its queue pair holds the objects that it needs.
    id.qp().unwrap().post_send(&mut [netacc_verbs::SendWr::send_inline(1, b"still").unwrap()]).unwrap();
    assert_eq!(server.completion().byte_len(), 5);
    drop(cq);
    drop(mr);
    drop(id);
    server.hear_the_end();
    assert!(server.completion().check().is_err());
}

/// When making a queue pair fails, the objects that were made before it are still released.
#[test]
#[ignore = "needs an RDMA device"]
fn a_refused_queue_pair_leaves_nothing() {
    let events = channel();
    let context = context();
    let before: Vec<_> = KINDS.iter().map(|kind| held(kind)).collect();
    {
        let mut id = CmId::create(&events, 1).unwrap();
        id.bind_addr(SocketAddr::new(address(), 0)).unwrap();
        let pd = Pd::alloc(&context).unwrap();
        let cq = Cq::create(&context, 4, 0, None, 0).unwrap();
        let cap = ibv_qp_cap { max_send_wr: u32::MAX / 2, ..cap() };
        assert!(id.create_qp(&pd, &QpInit { send_cq: &cq, recv_cq: &cq, cap, sq_sig_all: true }).is_err());
        assert!(id.qp().is_none());
    }
    let after: Vec<_> = KINDS.iter().map(|kind| held(kind)).collect();
    assert_eq!(before, after, "{KINDS:?}");
}

/// When a listener is dropped with requests waiting for it, none of these is established.
#[test]
#[ignore = "needs an RDMA device"]
fn a_listener_goes_with_its_requests() {
    let events = channel();
    let (listening, to) = listener(&events);
    let clients: Vec<End> = (0..3).map(|_| asking(to, b"")).collect();
    await_readable(events.fd(), "a request");
    drop(listening);
    for client in &clients {
        let event = next_event(client.id.channel());
        assert_ne!(event.event_type, CmEventType::ESTABLISHED);
    }
}
