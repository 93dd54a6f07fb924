//! An identifier of librdmacm: its state, and the TCP connection that stands for its queue pair's path.

use crate::address::storage;
use crate::device::Note;
use crate::state::{Context, page_of};
use core::ffi::c_void;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_verbs::sys::*;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::VecDeque;

/// Where an identifier stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Made; perhaps bound or resolved.
    Idle,
    /// Takes requests.
    Listening,
    /// Accepted by the kernel; its request has not come. No program knows of it.
    Expected,
    /// Its TCP connection is being made.
    Connecting,
    /// The request is sent.
    Requested,
    /// The request has come; the program has to decide.
    Asked,
    /// The answer is sent; the other side has not said that it has it.
    Accepted,
    /// Connected.
    Connected,
    /// Over.
    Ended,
}

/// An identifier: what `rdma_cm_id` is the beginning of.
#[repr(C)]
pub struct Id {
    pub cm: rdma_cm_id,
    pub number: u64,
    pub note: Option<Note>,
    pub phase: Phase,
    pub socket: Option<OwnedFd>,
    /// Of one that came with a request, until the program has it: its listener.
    pub listener: u64,
    pub local: Option<SocketAddr>,
    pub peer: Option<SocketAddr>,
    pub reuse: bool,
    pub v6_only: bool,
    /// Private data that goes out with the request once the connection is there.
    pub request: Vec<u8>,
    pub input: Vec<u8>,
    pub output: VecDeque<u8>,
    /// Whether the program has been told of the end.
    pub told: bool,
    /// Whether this side has disconnected.
    pub left: bool,
    /// Number of messages received, and the number that was acknowledged.
    pub received: u32,
    pub acknowledged: u32,
    /// Number of messages of this side that the other one has acknowledged.
    pub confirmed: u32,
    /// When (ms of the monotonic clock) what is kept back is due; 0: nothing is.
    pub due: u64,
    /// When (ms) an acknowledgement that is kept back is due; 0: none is.
    pub ack_due: u64,
    /// Whether the first message of `input` was kept back already.
    pub kept_back: bool,
    /// Since when (ms) messages of this side wait to be acknowledged; 0: none does.
    pub waiting: u64,
}

impl Id {
    /// A new identifier.
    pub fn new(number: u64, channel: *mut rdma_event_channel, context: *mut c_void) -> Id {
        // SAFETY: numbers and pointers, for which zeroes are values.
        let mut cm: rdma_cm_id = unsafe { core::mem::zeroed() };
        (cm.channel, cm.context, cm.ps, cm.port_num) = (channel, context, RDMA_PS_TCP, 1);
        Id {
            cm,
            number,
            note: None,
            phase: Phase::Idle,
            socket: None,
            listener: 0,
            local: None,
            peer: None,
            reuse: false,
            v6_only: false,
            request: Vec::new(),
            input: Vec::new(),
            output: VecDeque::new(),
            told: false,
            left: false,
            received: 0,
            acknowledged: 0,
            confirmed: 0,
            due: 0,
            ack_due: 0,
            kept_back: false,
            waiting: 0,
        }
    }

    /// Sets the addresses, as the program sees them too. IPv4 stays IPv4 where it came to an IPv6 socket.
    pub fn set_addresses(&mut self, local: Option<SocketAddr>, peer: Option<SocketAddr>) {
        let plain = |a: SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port());
        if let Some(local) = local.map(plain) {
            self.local = Some(local);
            self.cm.route.addr.src_storage = storage(local);
        }
        if let Some(peer) = peer.map(plain) {
            self.peer = Some(peer);
            self.cm.route.addr.dst_storage = storage(peer);
        }
    }

    /// Sends what there is to send, as far as the connection takes it.
    pub fn pump(&mut self) -> Result<(), ()> {
        if page_of(self).is_some_and(|page| page.silent.load(Ordering::Relaxed) != 0) {
            return Ok(());
        }
        while !self.output.is_empty() {
            let Some(socket) = &self.socket else {
                self.output.clear();
                return Ok(());
            };
            let (first, _) = self.output.as_slices();
            match rustix::net::send(socket, first, rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT)
            {
                Ok(n) => drop(self.output.drain(..n)),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                // The thread finds the end when it reads.
                Err(_) => {
                    self.output.clear();
                    return Err(());
                }
            }
        }
        Ok(())
    }

    /// Takes in what has come. True: the connection is over.
    pub fn pull(&mut self) -> bool {
        let mut buffer = [0u8; 65536];
        loop {
            let Some(socket) = &self.socket else { return false };
            match rustix::net::recv(socket, &mut buffer[..], rustix::net::RecvFlags::DONTWAIT) {
                Ok((0, _)) => return true,
                Ok((n, _)) => self.input.extend_from_slice(&buffer[..n]),
                Err(Errno::AGAIN) => return false,
                Err(Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }

    /// Private data as the other side sees it: InfiniBand's has the length of its field.
    pub fn padded(&self, data: &[u8], field: usize) -> Vec<u8> {
        let context = self.cm.verbs.cast::<Context>();
        // SAFETY: null or an open context.
        let exact = unsafe { context.as_ref() }.is_some_and(|c| c.iwarp);
        let mut data = data.to_vec();
        if !exact && data.len() < field {
            data.resize(field, 0);
        }
        data
    }
}
