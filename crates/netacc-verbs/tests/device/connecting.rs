//! Tests of connecting, refusing and disconnecting.

use crate::rig::*;
use netacc_sys::Errno;
use netacc_verbs::sys::{IBV_WC_WR_FLUSH_ERR, ibv_qp_cap};
use netacc_verbs::{CmEventType, CmId, ConnParam, Cq, Error, Pd, QpInit, QpState, SendWr, WcStatus};
use std::net::SocketAddr;

#[test]
#[ignore = "needs an RDMA device"]
fn both_ends_agree_on_addresses() {
    let Pair { client, server } = pair();
    assert_eq!(client.id.local_addr(), server.id.peer_addr());
    assert_eq!(client.id.peer_addr(), server.id.local_addr());
    assert_eq!(client.id.peer_addr().map(|a| a.ip()), Some(address()));
    // siw leaves the state out of its answer, so it reads as 0.
    let state = if is_iwarp(&client.context) { QpState(0) } else { QpState::RTS };
    assert_eq!(client.qp().query_state(), Ok(state));
    server.say(&client, 1, b"back");
}

#[test]
#[ignore = "needs an RDMA device"]
fn nobody_listens() {
    let events = channel();
    let (listener, to) = listener(&events);
    drop(listener);
    // siw fails at once, since it connects by TCP; other devices learn it from the other side by an event.
    let (client, asked) = ask(to, &ConnParam::default());
    let outcome = asked.and_then(|()| next_event(client.id.channel()).check());
    let error = outcome.unwrap_err();
    assert_eq!(error.errno(), Errno::CONNREFUSED, "{error}");
    let text = error.to_string();
    assert!(text.starts_with("RDMA_CM_EVENT_REJECTED (status ") || text.starts_with("rdma_connect: "), "{error}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_rejection_carries_a_word() {
    let events = channel();
    let (_listener, to) = listener(&events);
    let client = asking(to, b"");
    let request = expect(&events, CmEventType::CONNECT_REQUEST, LISTENER);
    request.request.as_ref().unwrap().reject(b"port 7").unwrap();
    let event = client.expect(CmEventType::REJECTED);
    assert_eq!(trimmed(&event), b"port 7");
    assert_eq!(event.check().unwrap_err().errno(), Errno::CONNREFUSED);
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_request_that_is_dropped_is_refused() {
    let events = channel();
    let (_listener, to) = listener(&events);
    let client = asking(to, b"");
    drop(expect(&events, CmEventType::CONNECT_REQUEST, LISTENER));
    assert!(next_event(client.id.channel()).check().is_err());
}

#[test]
#[ignore = "needs an RDMA device"]
fn after_a_disconnect_everything_posted_fails() {
    let Pair { client, server } = pair();
    client.id.disconnect().unwrap();
    server.hear_the_end();
    client.hear_the_end();
    for end in [&server, &client] {
        for _ in 0..RECEIVES {
            let flushed = end.completion();
            let Err(error @ Error::Completion { status, .. }) = flushed.check() else { panic!("{flushed:?}") };
            assert_eq!(status, WcStatus(IBV_WC_WR_FLUSH_ERR));
            assert!(error.to_string().contains("Flush"), "{error}");
            assert_eq!(error.errno(), Errno::CONNRESET);
        }
    }
    // A later send is refused at once, or flushed. On siw it never completes.
    let late = server.qp().post_send(&mut [SendWr::send_inline(9, b"late").unwrap()]);
    if late.is_ok() && !is_iwarp(&server.context) {
        assert!(server.completion().check().is_err());
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn an_end_that_is_dropped_ends_the_other() {
    let Pair { client, server } = pair();
    drop(client);
    server.hear_the_end();
    assert!(server.completion().check().is_err());
}

#[test]
#[ignore = "needs an RDMA device"]
fn an_identifier_moves_to_another_channel() {
    let Pair { client, mut server } = pair();
    let other = channel();
    server.id.migrate(&other).unwrap();
    client.id.disconnect().unwrap();
    assert_eq!(server.id.channel().fd(), other.fd());
    server.hear_the_end();
    client.expect(CmEventType::DISCONNECTED);
}

#[test]
#[ignore = "needs an RDMA device"]
fn options_are_taken() {
    let events = channel();
    let (_v6, v4) = until_port_is_free(|| {
        let id = CmId::create(&events, 1)?;
        id.set_tos(0x10)?;
        id.set_reuse_addr(true)?;
        id.set_af_only(true)?;
        id.bind_addr("[::]:0".parse().unwrap())?;
        id.listen(1)?;
        // The listener takes IPv6 only, so the same port is free for IPv4.
        let v4 = CmId::create(&events, 2)?;
        v4.bind_addr(SocketAddr::new("0.0.0.0".parse().unwrap(), id.local_addr().unwrap().port()))?;
        v4.listen(1)?;
        Ok((id, v4))
    });
    // The port is taken by a listener that does not share it.
    let again = CmId::create(&events, 3).unwrap();
    assert_eq!(again.bind_addr(v4.local_addr().unwrap()).unwrap_err().errno(), Errno::ADDRNOTAVAIL);
}

#[test]
#[ignore = "needs an RDMA device"]
fn no_device_leads_there() {
    let events = channel();
    let id = CmId::create(&events, CLIENT).unwrap();
    // No host routes TEST-NET-1 (RFC 5737). The error may come at once or as an event.
    match id.resolve_addr(None, "192.0.2.1:1".parse().unwrap(), 500) {
        Err(error) => assert_eq!(error.errno(), Errno::NETUNREACH),
        Ok(()) => assert!(next_event(&events).check().is_err()),
    }
}

/// A call that would make the library follow a null pointer is refused before the library is called.
#[test]
#[ignore = "needs an RDMA device"]
fn calls_out_of_order_are_errors() {
    let events = channel();
    let mut id = CmId::create(&events, 1).unwrap();
    let refused = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Misuse { .. })), "{result:?}");
    refused(id.resolve_route(100));
    refused(id.connect(&ConnParam::default()));
    refused(id.accept(&ConnParam::default()));
    refused(id.disconnect());
    refused(id.context().map(drop));
    let context = context();
    let pd = Pd::alloc(&context).unwrap();
    let cq = Cq::create(&context, 4, 0, None, 0).unwrap();
    let cap = ibv_qp_cap { max_send_wr: 1, max_recv_wr: 1, ..cap() };
    let init = QpInit { send_cq: &cq, recv_cq: &cq, cap, sq_sig_all: true };
    refused(id.create_qp(&pd, &init).map(drop));
    id.bind_addr(SocketAddr::new(address(), 0)).unwrap();
    refused(id.connect(&ConnParam::default()));
    id.create_qp(&pd, &init).unwrap();
    refused(id.create_qp(&pd, &init).map(drop));
    refused(id.connect(&ConnParam { private_data: &[0; 256], ..ConnParam::default() }));
    // The library's own errors come with their errno.
    let error = id.connect(&ConnParam::default()).unwrap_err();
    assert!(matches!(error, Error::Verb { verb: "rdma_connect", .. }), "{error}");
}
