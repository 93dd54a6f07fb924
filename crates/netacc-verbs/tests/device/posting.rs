//! Tests of work requests, completions and memory.

use crate::rig::*;
use netacc_sys::Errno;
use netacc_verbs::{Mr, RecvWr, SendWr};

#[test]
#[ignore = "needs an RDMA device"]
fn a_list_is_sent_in_order() {
    let Pair { client, server } = pair();
    let texts: [&[u8]; 3] = [b"one", b"two", b"three"];
    let mut list: Vec<SendWr> = texts.iter().zip(20..).map(|(t, id)| SendWr::send_inline(id, t).unwrap()).collect();
    client.qp().post_send(&mut list).unwrap();
    for (text, number) in texts.iter().zip(20..) {
        assert_eq!(client.completion().wr_id(), number);
        let got = server.completion();
        assert_eq!(server.received(got.wr_id(), got.byte_len()), *text);
    }
    client.qp().post_send(&mut []).unwrap();
}

#[test]
#[ignore = "needs an RDMA device"]
fn registered_memory_is_sent() {
    let Pair { client, server } = pair();
    let data: Vec<u8> = (0..200).collect();
    let place = BUFFER * RECEIVES as usize;
    assert!(client.mr.write(place, &data));
    let sge = client.mr.sge(place, data.len()).unwrap();
    client.qp().post_send(&mut [SendWr::send(5, sge).signaled().solicited()]).unwrap();
    client.completion().check().unwrap();
    let got = server.completion();
    assert_eq!(server.received(got.wr_id(), got.byte_len()), data);
    assert_eq!(got.qp_num(), server.qp().qp_num());
}

#[test]
#[ignore = "needs an RDMA device"]
fn what_does_not_fit_is_refused_and_counted() {
    let Pair { client, server } = pair();
    let long = vec![1; 5000];
    let mut list = [SendWr::send_inline(1, b"short").unwrap(), SendWr::send_inline(2, &long).unwrap()];
    let refused = client.qp().post_send(&mut list).unwrap_err();
    assert_eq!(refused.posted, 1, "{refused}");
    assert!(refused.error.to_string().starts_with("ibv_post_send: "), "{refused}");
    // The one before it was sent.
    assert_eq!(server.completion().byte_len(), 5);
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_full_receive_queue_says_so() {
    let Pair { client, .. } = pair();
    let sge = client.mr.sge(0, BUFFER).unwrap();
    let refused = (0..100).find_map(|id| client.qp().post_recv(&mut [RecvWr::new(id, sge)]).err()).unwrap();
    assert_eq!(refused.error.errno(), Errno::NOMEM, "{refused}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn immediate_data_where_the_transport_has_it() {
    let Pair { client, server } = pair();
    let request = SendWr::send_inline(3, b"x").unwrap().with_imm(0x0102_0304);
    let posted = client.qp().post_send(&mut [request]);
    if is_iwarp(&client.context) {
        assert_eq!(posted.unwrap_err().error.errno(), Errno::INVAL);
    } else {
        posted.unwrap();
        assert_eq!(server.completion().imm_data(), Some(0x0102_0304));
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_region_has_bounds() {
    let Pair { client, .. } = pair();
    let mr = Mr::register(&client.pd, 5000).unwrap();
    assert_eq!(mr.len(), 5000);
    assert!(mr.sge(4999, 1).is_some() && mr.sge(5000, 0).is_some());
    assert!(mr.sge(4999, 2).is_none() && mr.sge(usize::MAX, 2).is_none());
    assert!(!mr.write(4999, b"xy") && mr.write(4998, b"xy"));
    let mut back = [0; 2];
    assert!(mr.read(4998, &mut back) && !mr.read(4999, &mut back));
    assert_eq!(&back, b"xy");
}

/// The device refuses a key that it no longer knows, so it writes nothing into memory that is no longer registered.
#[test]
#[ignore = "needs an RDMA device"]
fn memory_that_is_gone_fails_the_request() {
    let Pair { client, server } = pair();
    let gone = Mr::register(&server.pd, BUFFER).unwrap();
    // The new receive is used after the four that are posted already.
    for _ in 0..RECEIVES {
        client.say_only(&server);
    }
    server.qp().post_recv(&mut [RecvWr::new(77, gone.sge(0, BUFFER).unwrap())]).unwrap();
    drop(gone);
    client.send(9, b"into nothing");
    let failed = server.completion();
    assert_eq!(failed.wr_id(), 77);
    assert!(failed.check().is_err());
}

impl End {
    /// Sends a message whose receive is not posted again.
    fn say_only(&self, to: &End) {
        self.send(1, b"taken");
        self.completion().check().unwrap();
        to.completion().check().unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn polling_takes_many_at_once() {
    let Pair { client, server } = pair();
    let mut list: Vec<SendWr> = (0..RECEIVES).map(|id| SendWr::send_inline(id, b"m").unwrap()).collect();
    client.qp().post_send(&mut list).unwrap();
    for _ in 0..RECEIVES {
        client.completion().check().unwrap();
    }
    let mut found = 0;
    while found < RECEIVES as usize {
        let first = server.completion();
        let mut more = [netacc_verbs::Wc::default(); 16];
        let n = server.cq.poll(&mut more).unwrap();
        assert!(first.is_recv() && more.iter().take(n).all(|wc| wc.is_recv()));
        found += 1 + n;
    }
    assert_eq!(found, RECEIVES as usize);
}
