//! Client's host: how the companion connection of a queue pair is made, the TCP connection beside it
//! ([`companion`](crate::rdma::engine::companions::companion)).
//!
//! The client tries the port that the server chose for companions. In a network that lets through what is documented
//! and nothing else, that port is closed; then the client asks by the queue pair whether it may come to the listener's
//! own port, P, which is open since programs connect there. Where P was the only way to a server, the next companion
//! begins with it.
//!
//! At P the server's host knows the companion by what it says first, so this has to be there as soon as the program
//! accepts the connection: it goes with the handshake. The client's kernel has it before it connects ([`open`]),
//! sends it with the first packet, which the server's kernel throws away there, and again with the packet that ends the
//! handshake. Where that is switched off (`net.ipv4.tcp_fastopen`), the kernel keeps that last packet back until there
//! are bytes to go with it ([`hold_back`]), and a companion that was connected without them is reset and made again.

use crate::rdma::engine::companions::Companions;
use crate::rdma::engine::companions::attempt::{
    Attempt, EMPTY, KNOWN, MOST_EMPTY, Port, Stage, TRIES, Why, hold_back, open, reset, socket_at, warn_of_none,
    was_too_slow,
};
use crate::rdma::engine::companions::companion::Companion;
use crate::rdma::engine::qp::{QpRecord, tag};
use crate::rdma::engine::qps::Qps;
use core::sync::atomic::Ordering;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT};
use netacc_sys::addr;
use netacc_sys::errno::Errno;
use netacc_sys::{raw, reserved_fds, time};
use netacc_wire::companion::{self as wire, HELLO, OwnPort, WELCOME};
use netacc_wire::frame::{Frame, Kind};

impl Companions {
    /// The companion of queue pair `at` begins to be connected, if the server waits for it.
    pub fn connect(&mut self, qps: &mut Qps, at: usize, offered: wire::CompanionOffer) {
        let wire::CompanionOffer::At(chosen, token) = offered else { return };
        let Some(qp) = qps.table.get_mut(at) else { return };
        let Some((_, theirs)) = qp.ips else { return };
        let port = if self.filtered.contains(&theirs) { Port::Own } else { Port::Chosen };
        qp.companion = Companion::Connecting(Attempt::new(token, chosen, port));
        if !qp.parts(&mut qps.devices).is_some_and(|(qp_index, _)| qp_index.keep()) {
            return qps.drop_companion(at);
        }
        self.try_port(qps, at);
    }

    fn try_port(&mut self, qps: &mut Qps, at: usize) {
        let Some(attempt) = qps.attempt(at) else { return };
        attempt.since = time::now();
        match attempt.port {
            Port::Chosen => self.dial_companion(qps, at),
            Port::Own => self.ask_for_own_port(qps, at),
        }
    }

    fn ask_for_own_port(&mut self, qps: &mut Qps, at: usize) {
        let Some(qp) = qps.table.get_mut(at) else { return };
        // A queue pair that has failed cannot ask; and a process that is stalled over and over is not to show more.
        if !qp.is_up() || EMPTY.load(Ordering::Relaxed) >= MOST_EMPTY {
            return self.port_failed(qps, at, Why::Error(Errno::TIMEDOUT));
        }
        let kind = Kind::OwnPort;
        qp.resets.push_back(Frame {
            kind,
            credits: 0,
            large: false,
            conn: 0,
            generation: 0,
            window: 0,
            acked: 0,
            next: 0,
        });
        if let Companion::Connecting(attempt) = &mut qp.companion {
            attempt.set_stage(Stage::Asking);
        }
        qps.send_resets(at);
    }

    /// Handles the server's answer whether the companion may connect to the listener's own port. False: there was no
    /// request.
    pub(in crate::rdma::engine) fn own_port_answered(&mut self, qps: &mut Qps, at: usize, answer: OwnPort) -> bool {
        match qps.attempt(at) {
            Some(attempt) if attempt.stage() == Stage::Asking && attempt.port == Port::Own => {}
            // The companion was given up, or is connected by the other port.
            _ => return true,
        }
        match answer {
            OwnPort::Come => self.dial_companion(qps, at),
            no => self.port_failed(qps, at, Why::Refused(no)),
        }
        true
    }

    fn dial_companion(&mut self, qps: &mut Qps, at: usize) {
        let Some((ours, there)) = qps.destination(at) else { return };
        let name = u64::from(tag(&qps.table, at));
        let own = qps.attempt(at).filter(|a| a.port == Port::Own).map(|a| wire::hello(&a.token));
        let done = socket_at(ours).and_then(|fd| {
            let begun = match own {
                Some(said) => {
                    hold_back(fd);
                    open(fd, there, &said)
                }
                None => match addr::with(there, |p, n| raw::connect(fd, p, n)) {
                    Ok(()) | Err(Errno::INPROGRESS) => Ok(false),
                    Err(e) => Err(e),
                },
            };
            let watched = begun.and_then(|said| {
                let (events, stage) =
                    if said { (EPOLLIN, Stage::Introduced(fd)) } else { (EPOLLOUT, Stage::Connecting(fd)) };
                self.watch.ctl(EPOLL_CTL_ADD, fd, events, name).map(|()| stage)
            });
            watched.inspect_err(|_| reserved_fds::close(fd))
        });
        match (done, qps.attempt(at)) {
            (Ok(stage), Some(attempt)) => attempt.set_stage(stage),
            (Ok(Stage::Connecting(fd) | Stage::Introduced(fd)), None) => reserved_fds::close(fd),
            (Ok(Stage::Asking), None) => {}
            (Err(e), _) => self.port_failed(qps, at, Why::Error(e)),
        }
    }

    /// The kernel has something to tell of a companion that is being made.
    pub(in crate::rdma::engine) fn attempt_has_news(&mut self, qps: &mut Qps, at: usize) {
        match qps.attempt(at).map(|a| a.stage()) {
            Some(Stage::Connecting(fd)) => self.say_hello(qps, at, fd),
            Some(Stage::Introduced(fd)) => self.hear_welcome(qps, at, fd),
            Some(Stage::Asking) | None => {}
        }
    }

    /// The companion is connected, or cannot be.
    fn say_hello(&mut self, qps: &mut Qps, at: usize, fd: i32) {
        let name = u64::from(tag(&qps.table, at));
        let Some(attempt) = qps.attempt(at) else { return };
        let failed = raw::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(libc::EIO);
        if failed != 0 {
            return self.port_failed(qps, at, Why::Error(Errno(failed)));
        }
        if attempt.port == Port::Own && was_too_slow(fd) {
            attempt.tries += 1;
            // Relaxed: nothing else depends on it.
            let again = EMPTY.fetch_add(1, Ordering::Relaxed) < MOST_EMPTY && attempt.tries < TRIES;
            attempt.set_stage(Stage::Asking);
            reset(fd);
            return if again {
                self.ask_for_own_port(qps, at)
            } else {
                self.port_failed(qps, at, Why::Error(Errno::TIMEDOUT))
            };
        }
        let said = wire::hello(&attempt.token);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        attempt.set_stage(Stage::Introduced(fd));
        if raw::send(fd, said.as_ptr(), HELLO, flags) != Ok(HELLO)
            || self.watch.ctl(EPOLL_CTL_MOD, fd, EPOLLIN, name).is_err()
        {
            self.port_failed(qps, at, Why::Error(Errno::IO));
        }
    }

    /// The server has answered, or the program that accepts connections there does not know the companion.
    fn hear_welcome(&mut self, qps: &mut Qps, at: usize, fd: i32) {
        let mut said = [0u8; WELCOME];
        let peek = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        let got = raw::recv(fd, said.as_mut_ptr(), WELCOME, peek);
        let welcome = wire::welcome();
        match got {
            Err(Errno::AGAIN | Errno::INTR) => return,
            // The rest is on its way.
            Ok(n @ 1..WELCOME) if said.get(..n) == welcome.get(..n) => return,
            Ok(WELCOME) if said == welcome => {}
            Ok(0) => return self.port_failed(qps, at, Why::Error(Errno::CONNRESET)),
            Err(e) => return self.port_failed(qps, at, Why::Error(e)),
            Ok(_) => return self.port_failed(qps, at, Why::Error(Errno::PROTO)),
        }
        let _ = raw::recv(fd, said.as_mut_ptr(), WELCOME, libc::MSG_DONTWAIT);
        self.note_way(qps, at);
        qps.companion_ready(at, fd);
    }

    /// Notes how a companion was connected: the next one to this server is made in the same way.
    fn note_way(&mut self, qps: &mut Qps, at: usize) {
        let Some((_, there)) = qps.destination(at) else { return };
        let Some((port, last)) = qps.attempt(at).map(|a| (a.port, a.last)) else { return };
        let known = self.filtered.iter().position(|ip| *ip == there.ip());
        netacc_log::log!(Debug, "{there}: the companion TCP connection is there");
        match (port, known) {
            (Port::Own, None) if last && self.filtered.len() < KNOWN => self.filtered.push(there.ip()),
            (Port::Chosen, Some(n)) if last => {
                self.filtered.swap_remove(n);
            }
            _ => {}
        }
    }

    /// This port will not do: the other one is tried, unless it was before.
    fn port_failed(&mut self, qps: &mut Qps, at: usize, why: Why) {
        let Some((_, there)) = qps.destination(at) else { return };
        let Some(attempt) = qps.attempt(at) else { return };
        if let Some(fd) = attempt.fd() {
            reserved_fds::close(fd);
        }
        attempt.set_stage(Stage::Asking);
        attempt.tries = 0;
        if core::mem::replace(&mut attempt.last, true) {
            warn_of_none(there, why);
            return qps.drop_companion(at);
        }
        netacc_log::log!(Debug, "{there}: no companion TCP connection at this port ({why})");
        attempt.port = attempt.port.other();
        self.try_port(qps, at);
    }

    /// A companion should be there by now, and is not.
    pub fn timed_out(&mut self, qps: &mut Qps, at: usize) {
        match qps.table.get(at) {
            Some(QpRecord { companion: Companion::Connecting(_), .. }) => {
                self.port_failed(qps, at, Why::Error(Errno::TIMEDOUT))
            }
            _ => qps.drop_companion(at),
        }
    }
}
