//! Both ends of a connection over RDMA in one process, as the program at each end has it.
//!
//! `T_ADDRESS` is an address of this network namespace to which the way leads out by one device and in by another
//! (`round_trip` in `tests/rdma/world.py`), so that it is another host's for the library.
//!
//! The suite looks at one end right after it has done something at the other. Here that takes a while: a look at an end,
//! or the use of the other one than before, waits until nothing is under way any more ([`settle`]).

use crate::rest::{LIMIT, settle};
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use netacc_conformance::ends::{End, Pair, Rig, get, write};
use netacc_core::Outcome;
use netacc_core::conn::{accept, connect};
use netacc_core::engine::progress;
use netacc_core::fd::{closing, create, table};
use netacc_core::listen::opening;
use netacc_core::object::socket::LINGER_RESET;
use netacc_sys::addr;
use netacc_sys::{Errno, raw, time};
use netacc_transport::shm::ShmEndpoint;
use netacc_transport::{Endpoint, Interest, Iov, Readiness, Shut, WaitSet};
use std::sync::{Mutex, OnceLock};

/// Bytes may also lie at the writer's end and in between: two rings and a window.
const HELD: usize = 3 << 20;
/// Emulation makes everything some 10 times slower.
const PART: usize = 16;

macro_rules! rigs {
    ($($(#[$doc:meta])* $rig:ident: $pair:expr;)*) => {
        $($(#[$doc])*
        pub struct $rig;

        impl Rig for $rig {
            const DIRECT: bool = false;
            const HELD: usize = HELD;
            const PART: usize = PART;

            fn pair() -> Pair {
                $pair
            }
        })*
    };
}

rigs! {
    /// `a` is the client's end.
    Client: connect_two().pair(0, true);
    /// `a` is the server's end.
    Server: connect_two().pair(1, true);
    /// For threads at both ends, of which none may wait until the other one does nothing: as programs have it.
    Busy: connect_two().pair(0, false);
    /// The queue pair has failed, and the connection goes on by TCP.
    FailoverCase: crate::failing::failed_over();
}

/// A connection: first the client's end, then the server's.
pub struct RemoteKind {
    ends: [&'static ShmEndpoint; 2],
    fds: [i32; 2],
    gone: [AtomicBool; 2],
    /// The end that something was done at last.
    last: AtomicUsize,
}

/// One end of it.
struct Remote {
    kind: &'static RemoteKind,
    me: usize,
    /// Whether a check first waits until everything that is under way has arrived.
    settled: bool,
}

fn number(done: Outcome) -> Option<i32> {
    match done {
        Outcome::Done(n) => Some(n as i32),
        Outcome::Failed(Errno::AGAIN) => None,
        other => panic!("{other:?}"),
    }
}

fn new_socket(flags: i32) -> i32 {
    number(create::socket(libc::AF_INET, libc::SOCK_STREAM | flags, 0)).unwrap()
}

fn with_address<T>(a: SocketAddr, f: impl FnOnce(*const core::ffi::c_void, u32) -> T) -> T {
    let mut buf = [0u64; 4];
    let mut len = size_of_val(&buf) as u32;
    addr::write(a, libc::AF_INET, buf.as_mut_ptr().cast(), &raw mut len);
    f(buf.as_ptr().cast(), len)
}

fn host() -> IpAddr {
    std::env::var("T_ADDRESS").expect("T_ADDRESS is an address that RDMA leads to").parse().unwrap()
}

fn try_accept(listener: i32) -> Option<i32> {
    number(accept::accept4(listener, core::ptr::null_mut(), core::ptr::null_mut(), 0))
}

/// The one listener of all tests.
fn listener() -> (i32, SocketAddr) {
    static LISTENER: OnceLock<(i32, SocketAddr)> = OnceLock::new();
    *LISTENER.get_or_init(|| {
        let fd = new_socket(libc::SOCK_NONBLOCK);
        assert_eq!(connect::before_bind(fd), Outcome::Pass);
        with_address(SocketAddr::new(host(), 0), |p, n| raw::bind(fd, p, n)).unwrap();
        assert_eq!(number(opening::listen(fd, 100)), Some(0));
        // From here on other hosts find it.
        assert_eq!(try_accept(fd), None);
        (fd, addr::local_of(fd).unwrap())
    })
}

/// The port of the listener.
pub fn port() -> u16 {
    listener().1.port()
}

fn remote_end(fd: i32) -> Option<&'static ShmEndpoint> {
    table::socket(fd)?.obj.endpoint().filter(|ep| ep.side.is_remote())
}

/// A new connection.
pub fn connect_two() -> RemoteKind {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _g = ONE_AT_A_TIME.lock();
    let (listener, at) = listener();
    // The way is not always found out in time; then the connection goes by TCP.
    (0..20).find_map(|_| connected(listener, at)).expect("a connection over RDMA")
}

fn connected(listener: i32, at: SocketAddr) -> Option<RemoteKind> {
    let client = new_socket(0);
    assert_eq!(
        number(with_address(at, |p, n| match connect::connect(client, p, n) {
            Outcome::Pass => raw::connect(client, p, n).into(),
            done => done,
        })),
        Some(0)
    );
    let limit = time::now() + LIMIT;
    let server = loop {
        assert!(time::now() < limit, "the connection does not arrive");
        progress::progress();
        match try_accept(listener) {
            Some(fd) => break fd,
            None => raw::sched_yield(),
        };
    };
    let fds = [client, server];
    let Some((c, s)) = remote_end(client).zip(remote_end(server)) else {
        for fd in fds {
            let _ = closing::close(fd);
        }
        return None;
    };
    Some(RemoteKind { ends: [c, s], fds, gone: Default::default(), last: AtomicUsize::new(0) })
}

impl RemoteKind {
    /// Returns when a byte has come from each end to the other. A connection whose queue pair has failed goes on by its
    /// companion from then on: before, its ends may still have to agree on where, and nothing is under way meanwhile that
    /// [`settle`] could see.
    pub fn exchange(&self) {
        for (from, to) in [(self.ends[0], self.ends[1]), (self.ends[1], self.ends[0])] {
            let limit = time::now() + LIMIT;
            assert_eq!(write(from, b"x"), Ok(1));
            while get(to, 1, false) != Ok(b"x".to_vec()) {
                assert!(time::now() < limit, "a byte does not arrive");
                progress::progress_for(from);
                progress::progress_for(to);
                raw::sched_yield();
            }
        }
    }

    /// As the suite has it: `a` is the end of this number.
    pub fn pair(self, a: usize, settled: bool) -> Pair {
        let way: &'static RemoteKind = Box::leak(Box::new(self));
        let end = |me| End::new(Box::leak(Box::new(Remote { kind: way, me, settled })));
        Pair {
            a: end(a),
            b: end(1 - a),
            // As near as one process comes to it.
            kill_b: Box::new(move || Remote { kind: way, me: 1 - a, settled }.close_once(true)),
            _keep: Box::new(()),
        }
    }
}

impl Remote {
    fn ep(&self) -> &'static ShmEndpoint {
        self.kind.ends[self.me]
    }

    /// Something is to be done here: after what was done at the other end, and on the heels of what was done at this one.
    fn begin(&self) {
        if self.kind.last.swap(self.me, Ordering::SeqCst) != self.me {
            self.look();
        }
    }

    /// Somebody looks at what has come.
    fn look(&self) {
        if self.settled {
            settle();
        } else {
            progress::progress_for(self.ep());
        }
    }

    fn close_once(&self, abort: bool) {
        if self.kind.gone[self.me].swap(true, Ordering::SeqCst) {
            return;
        }
        self.begin();
        let fd = self.kind.fds[self.me];
        if abort {
            table::socket(fd).unwrap().obj.set(LINGER_RESET, true);
        }
        assert_eq!(number(closing::close(fd)), Some(0));
    }
}

impl Endpoint for Remote {
    fn try_write(&self, src: &mut Iov<'_>) -> Result<usize, Errno> {
        self.begin();
        let mut done = self.ep().try_write(src);
        if done == Err(Errno::AGAIN) {
            self.look();
            done = self.ep().try_write(src);
        }
        progress::progress_for(self.ep());
        done
    }

    fn try_read(&self, dst: &mut Iov<'_>, peek: bool) -> Result<usize, Errno> {
        self.kind.last.store(self.me, Ordering::SeqCst);
        self.look();
        self.ep().try_read(dst, peek)
    }

    fn readiness(&self) -> Readiness {
        self.look();
        self.ep().readiness()
    }

    fn arm(&'static self, interest: Interest, set: &mut WaitSet) -> bool {
        self.look();
        self.ep().arm(interest, set)
    }

    fn disarm(&self, interest: Interest, set: &WaitSet) {
        self.ep().disarm(interest, set);
    }

    fn shutdown(&self, how: Shut) {
        self.begin();
        self.ep().shutdown(how);
    }

    fn close(&'static self, abort: bool) {
        self.close_once(abort);
    }

    fn unread(&self) -> usize {
        self.look();
        self.ep().unread()
    }

    fn unsent(&self) -> usize {
        self.look();
        self.ep().unsent()
    }

    fn take_error(&self) -> i32 {
        self.look();
        self.ep().take_error()
    }

    fn peer_cpu(&self) -> u32 {
        self.ep().peer_cpu()
    }
}
