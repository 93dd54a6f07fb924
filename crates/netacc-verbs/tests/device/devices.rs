//! Tests of devices, contexts and descriptors.

use crate::rig::*;
use netacc_verbs::sys::{IBV_EVENT_GID_CHANGE, IBV_PORT_ACTIVE};
use netacc_verbs::{AsyncEventType, CompChannel, Context, Cq, DeviceList, Element, Error, fd};
use std::process::Command;

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
    // Nothing has happened yet, and no call waits.
    assert!(events.get_event().unwrap().is_none());
    assert_eq!(completions.get_cq_event(), Ok(None));
    assert_eq!(context.get_async_event(), Ok(None));
    for number in [events.fd(), completions.fd(), context.async_fd(), context.cmd_fd()] {
        assert_eq!(flag(number, libc::F_GETFD) & libc::FD_CLOEXEC, libc::FD_CLOEXEC, "descriptor {number}");
    }
    fd::set_cloexec(events.fd(), false).unwrap();
    assert_eq!(flag(events.fd(), libc::F_GETFD) & libc::FD_CLOEXEC, 0);
}

/// Runs `ip` and returns its output.
fn ip(arguments: &[&str]) -> String {
    let done = Command::new("ip").args(arguments).output().unwrap();
    assert!(done.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// A RoCE device has a GID for each address of its interface, and reports an event when these change.
#[test]
#[ignore = "needs an RDMA device"]
fn a_change_is_told_unasked() {
    let context = opened();
    if is_iwarp(&context) {
        return;
    }
    fd::set_nonblocking(context.async_fd(), true).unwrap();
    assert_eq!(context.get_async_event(), Ok(None));
    let shown = ip(&["-o", "addr", "show", "to", &address().to_string()]);
    let netdev = shown.split_whitespace().nth(1).unwrap();
    // The address is of TEST-NET-2 (RFC 5737), so no host has it.
    ip(&["addr", "add", "198.51.100.1/32", "dev", netdev]);
    await_readable(context.async_fd(), "an event of the device");
    let event = context.get_async_event().unwrap().unwrap();
    ip(&["addr", "del", "198.51.100.1/32", "dev", netdev]);
    assert_eq!((event.event_type, event.element), (AsyncEventType(IBV_EVENT_GID_CHANGE), Element::Port(1)));
    assert!(event.event_type.to_string().contains("GID"), "{}", event.event_type);
}
