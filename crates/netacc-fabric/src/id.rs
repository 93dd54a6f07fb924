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

/// The state of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The identifier is made, and perhaps bound or resolved.
    Idle,
    /// The identifier takes connect requests.
    Listening,
    /// The kernel has accepted the TCP connection, whose request has not come. The program does not know the
    /// identifier.
    Expected,
    /// The TCP connection is being made.
    Connecting,
    /// The request is sent.
    Requested,
    /// The request has come, and the program has to decide.
    Asked,
    /// The acceptance is sent, and the other side has not confirmed it.
    Accepted,
    /// Both sides know that they are connected.
    Connected,
    /// The connection is over.
    Ended,
}

/// An identifier. It begins with the `rdma_cm_id` that the program sees.
#[repr(C)]
pub struct Id {
    pub cm: rdma_cm_id,
    pub number: u64,
    pub note: Option<Note>,
    pub phase: Phase,
    pub socket: Option<OwnedFd>,
    /// The number of the listener at which the connection came; 0 for an identifier that the program made.
    pub listener: u64,
    pub local: Option<SocketAddr>,
    pub peer: Option<SocketAddr>,
    pub reuse: bool,
    pub v6_only: bool,
    /// Private data that is sent with the request once the TCP connection is made.
    pub request: Vec<u8>,
    pub input: Vec<u8>,
    pub output: VecDeque<u8>,
    /// Whether the program has got the event of the end.
    pub told: bool,
    /// Whether this side has disconnected.
    pub left: bool,
    /// Number of messages that were received.
    pub received: u32,
    /// Number of received messages that were acknowledged to the other side.
    pub acknowledged: u32,
    /// Number of messages of this side that the other one has acknowledged.
    pub confirmed: u32,
    /// When (ms of the monotonic clock) the frames that are held back are due; 0: none is held back.
    pub due: u64,
    /// When (ms) an acknowledgement that is held back is due; 0: none is held back.
    pub ack_due: u64,
    /// Whether the first message of `input` was held back already.
    pub kept_back: bool,
    /// Since when (ms) messages of this side wait to be acknowledged; 0: none waits.
    pub waiting: u64,
}

impl Id {
    /// A new identifier.
    pub fn new(number: u64, channel: *mut rdma_event_channel, context: *mut c_void) -> Id {
        // SAFETY: the structure consists of numbers and pointers, for which all zeroes are a valid value.
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

    /// Sets the addresses, here and in the program's structure. An IPv4-mapped address is stored as IPv4.
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

    /// Sends pending output, as much as the connection takes. An error means that the connection is broken.
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
                // The thread notices the end when it reads.
                Err(_) => {
                    self.output.clear();
                    return Err(());
                }
            }
        }
        Ok(())
    }

    /// Reads the bytes that have arrived, and returns whether the connection is over.
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

    /// Private data as the program sees it: on InfiniBand it is padded to the length of its field.
    pub fn padded(&self, data: &[u8], field: usize) -> Vec<u8> {
        let context = self.cm.verbs.cast::<Context>();
        // SAFETY: the pointer is null or leads to an open context.
        let exact = unsafe { context.as_ref() }.is_some_and(|c| c.iwarp);
        let mut data = data.to_vec();
        if !exact && data.len() < field {
            data.resize(field, 0);
        }
        data
    }
}
