//! Devices, contexts, descriptors.

use crate::rig::*;
use netacc_verbs::sys::IBV_PORT_ACTIVE;
use netacc_verbs::{CompChannel, Context, Cq, DeviceList, Error, fd};

fn opened() -> Context {
    let name = context().name().to_string();
    DeviceList::get().unwrap().iter().find(|d| d.name() == name).unwrap().open().unwrap()
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_device_says_what_it_is() {
    let (ours, shared) = (opened(), context());
    assert_eq!(ours.name(), shared.name());
    assert_eq!(ours.transport(), shared.transport());
    assert!(!ours.same(&shared) && ours.same(&ours.clone()) && shared.same(&context()));
    assert!(ours.num_comp_vectors() >= 1);
    let attr = ours.query_device().unwrap();
    assert!(attr.max_qp > 0 && attr.max_qp_wr >= 64 && attr.max_mr > 0 && attr.phys_port_cnt >= 1);
    let port = ours.query_port(1).unwrap();
    assert_eq!(port.state, IBV_PORT_ACTIVE);
    assert!(port.max_msg_sz >= 1 << 20 || is_iwarp(&ours));
    let error = ours.query_port(99).unwrap_err();
    assert!(matches!(error, Error::Verb { verb: "ibv_query_port", .. }), "{error}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn objects_of_two_contexts_do_not_mix() {
    let (a, b) = (opened(), context());
    let channel = CompChannel::create(&a).unwrap();
    let error = Cq::create(&b, 4, 0, Some(&channel), 0).unwrap_err();
    assert!(matches!(error, Error::Misuse { verb: "ibv_create_cq", .. }), "{error}");
    assert!(Cq::create(&a, 4, 0, Some(&channel), 0).unwrap().cqe() >= 4);
    assert!(Cq::create(&a, u32::MAX, 0, None, 0).is_err());
    assert!(Cq::create(&a, 4, 0, None, a.num_comp_vectors()).is_err());
}

fn flag(number: i32, get: i32) -> i32 {
    netacc_sys::raw::fcntl(number, get, 0).unwrap()
}

#[test]
#[ignore = "needs an RDMA device"]
fn descriptors_can_be_waited_on() {
    let context = opened();
    let (events, completions) = (channel(), CompChannel::create(&context).unwrap());
    completions.set_nonblocking(true).unwrap();
    fd::set_nonblocking(context.async_fd(), true).unwrap();
    // Nothing has happened yet, and nobody waits.
    assert!(events.get_event().unwrap().is_none());
    assert_eq!(completions.get_cq_event(), Ok(None));
    assert_eq!(context.get_async_event(), Ok(None));
    for number in [events.fd(), completions.fd(), context.async_fd(), context.cmd_fd()] {
        assert_eq!(flag(number, libc::F_GETFD) & libc::FD_CLOEXEC, libc::FD_CLOEXEC, "descriptor {number}");
    }
    fd::set_cloexec(events.fd(), false).unwrap();
    assert_eq!(flag(events.fd(), libc::F_GETFD) & libc::FD_CLOEXEC, 0);
}
