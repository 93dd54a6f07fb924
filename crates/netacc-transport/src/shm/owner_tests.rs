//! Tests of the queries: the kernel is asked about sockets of this process.

use super::*;
use std::net::TcpListener;

#[test]
fn finds_the_owner_of_a_listener() {
    let me = rustix::process::geteuid().as_raw();
    for bind in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
        let l = TcpListener::bind(bind).unwrap();
        let port = l.local_addr().unwrap().port();
        let at = SocketAddr::new([127, 0, 0, 1].into(), port);
        #[allow(unsafe_code)]
        // SAFETY: the descriptor is open as long as the listener lives.
        let fd = unsafe { rustix::fd::BorrowedFd::borrow_raw(std::os::fd::AsRawFd::as_raw_fd(&l)) };
        let inode = u32::try_from(rustix::fs::fstat(fd).unwrap().st_ino).unwrap();
        let cookie = rustix::net::sockopt::socket_cookie(fd).unwrap();
        let Word::Listener(found) = listener(None, at) else { panic!("{bind}: nobody") };
        let expected = Word::Listener(Owned { cookie, uid: me, inode, ..found });
        assert_eq!([listener(None, at), listener(Some(at), at)], [expected; 2], "{bind}");
        let _alone = crate::starting();
        drop(l);
        assert_eq!(listener(None, at), Word::Nobody);
    }
}

#[test]
fn a_mark_is_seen_on_the_listener_that_has_it() {
    for bind in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
        let l = TcpListener::bind(bind).unwrap();
        let at = l.local_addr().unwrap();
        let found = || match listener(Some(at), at) {
            Word::Listener(found) => found,
            word => panic!("{word:?}"),
        };
        let unmarked = || found().is_unmarked;
        // An older kernel does not show the option, and then any listener may have a mark.
        let told = unmarked();
        mark(std::os::fd::AsRawFd::as_raw_fd(&l));
        assert!(!unmarked(), "{bind}");
        let mut reply = NO_REPLY;
        exchange(&mut request(at, Some(at)), &mut reply).unwrap();
        let told_again = options(&reply).is_some();
        assert_eq!(told, told_again, "{bind}");
        assert!(!found().is_shared, "{bind}");
        mark_shared(std::os::fd::AsRawFd::as_raw_fd(&l));
        assert_eq!(found().is_shared, told, "{bind}");
    }
}

#[test]
fn attributes_that_are_cut_off_say_nothing() {
    let mut reply = [0u8; 512];
    put(&mut reply, 0, &100u32.to_ne_bytes());
    assert_eq!(options(&reply), None);
    put(&mut reply, ATTRIBUTES_AT, &[4, 0, 1, 0, 6, 0, 22, 0, 0x10, 0x02]);
    assert_eq!(options(&reply), Some([0x10, 0x02]));
    put(&mut reply, 0, &97u32.to_ne_bytes());
    assert_eq!(options(&reply), None);
    assert_eq!(options(&[]), None);
}

#[test]
fn says_how_many_connections_wait_at_a_listener() {
    let l = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = l.local_addr().unwrap();
    let found = || match listener(None, at) {
        Word::Listener(found) => found,
        word => panic!("{word:?}"),
    };
    let (none, connected) = (found(), [(); 3].map(|()| std::net::TcpStream::connect(at).unwrap()));
    let three = found();
    assert_eq!((none.waiting, three.waiting, none.room() - three.room()), (0, 3, 3));
    drop(l.accept().unwrap());
    assert_eq!(found().waiting, 2);
    drop(connected);
}

#[test]
fn a_kernel_that_answers_is_known_by_an_empty_list() {
    ANSWERS.store(false, Ordering::Relaxed);
    assert!(is_there());
}

#[test]
fn a_listener_is_found_behind_a_connection_from_the_same_port() {
    let l = TcpListener::bind("127.0.0.1:0").unwrap();
    let c = std::net::TcpStream::connect(l.local_addr().unwrap()).unwrap();
    let (from, to) = (c.local_addr().unwrap(), c.peer_addr().unwrap());
    assert_eq!(listener_cookie(from, to), None);
    assert_eq!(listener(Some(from), to), listener(None, to));
}

#[test]
fn several_threads_ask_at_once() {
    let l = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = l.local_addr().unwrap();
    let told = listener(None, at);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| (0..500).for_each(|_| assert_eq!(listener(None, at), told)));
        }
    });
}

#[test]
fn finds_the_owner_of_a_connection() {
    let me = rustix::process::geteuid().as_raw();
    let l = TcpListener::bind("127.0.0.1:0").unwrap();
    let c = std::net::TcpStream::connect(l.local_addr().unwrap()).unwrap();
    let (from, to) = (c.local_addr().unwrap(), c.peer_addr().unwrap());
    assert_eq!(connection_uid(from, to), Some(me));
    assert_eq!(connection_uid(to, to), None);
}

#[test]
fn a_connection_is_held_until_its_end_is_closed() {
    let l = TcpListener::bind("127.0.0.1:0").unwrap();
    let c = std::net::TcpStream::connect(l.local_addr().unwrap()).unwrap();
    let (s, _) = l.accept().unwrap();
    let (from, to) = (c.local_addr().unwrap(), c.peer_addr().unwrap());
    c.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(is_held(from, to));
    let _alone = crate::starting();
    drop(c);
    assert!(!is_held(from, to));
    assert!(is_held(to, from));
    drop(s);
}

#[test]
fn names_the_listener_of_a_group_that_the_kernel_chooses() {
    use rustix::net::sockopt::{set_socket_reuseport, socket_cookie};
    use std::collections::HashSet;

    let member = |port: u16| -> OwnedFd {
        let fd = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        set_socket_reuseport(&fd, true).unwrap();
        rustix::net::bind(&fd, &SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
        rustix::net::listen(&fd, 100).unwrap();
        fd
    };
    let first = member(0);
    let at = SocketAddr::try_from(rustix::net::getsockname(&first).unwrap()).unwrap();
    let group = [first, member(at.port())];
    let cookies: Vec<u64> = group.iter().map(|fd| socket_cookie(fd).unwrap()).collect();
    let mut seen = HashSet::new();
    for _ in 0..64 {
        // The socket is bound first, so that the kernel can be asked before it has chosen.
        let c = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&c, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let from = SocketAddr::try_from(rustix::net::getsockname(&c).unwrap()).unwrap();
        // If the port belongs to an earlier connection whose other end is in TIME_WAIT, the kernel names that
        // connection.
        let Some(told) = listener_cookie(from, at) else { continue };
        rustix::net::connect(&c, &at).unwrap();
        let mut ready = group.each_ref().map(|fd| rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN));
        rustix::event::poll(&mut ready, None).unwrap();
        let chosen = ready.iter().position(|p| !p.revents().is_empty()).unwrap();
        assert_eq!(cookies[chosen], told);
        rustix::net::accept(&group[chosen]).unwrap();
        seen.insert(told);
    }
    assert_eq!(seen.len(), 2, "64 connections went to one of two listeners");
}

#[test]
fn garbage_replies_name_nobody() {
    assert_eq!(parse(&[]), None);
    assert_eq!(parse(&[0xff; 40]), None);
    assert_eq!(error(&[0xff; 40]), None);
}
