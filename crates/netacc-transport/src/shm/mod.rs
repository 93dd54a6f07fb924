//! Shared memory within one host.
//!
//! A [`Link`] joins two processes: a control socket, a sealed memfd ([`segment`]) with slots for many
//! connections, and wakers. An [`ShmEndpoint`] is one side of one slot.

/// The shared words of a [`segment::Slot`] that belong to the given side.
macro_rules! line {
    ($view:expr, producer, $side:expr) => {
        &line!($view, own, $side).producer
    };
    ($view:expr, side, $side:expr) => {
        &line!($view, own, $side).side
    };
    ($view:expr, $field:ident, $side:expr) => {
        match $side {
            Side::Client => {
                let [c, _] = &$view.slot.$field;
                c
            }
            Side::Server => {
                let [_, s] = &$view.slot.$field;
                s
            }
        }
    };
}

pub mod admission;
mod after_fork;
mod blocks;
pub mod budget;
mod bytes;
pub mod claim;
mod contract;
pub mod control;
mod control_socket;
mod cork;
mod delays;
mod drain;
mod edges;
pub mod end_look;
pub mod endpoint;
pub mod enough;
mod follow;
pub mod guard;
pub mod heir_waker;
pub mod host_access;
pub mod host_dir;
pub mod identity;
pub mod inherited;
mod last_look;
pub mod link;
mod link_wakers;
mod liveness;
mod machine;

mod mapping;
mod memory_limit;
mod named_waker;
mod numbers;
mod old_subflow;
mod open;
mod owed_dial;
pub mod owner;
pub mod parts;
mod passed;
mod passing;
mod peer_listener;
mod peer_liveness;
mod peer_process;
mod pending;
mod procfs;
pub mod promote;
mod queue;
mod queued_connect;
pub mod redial;
mod registry;
mod remote;
pub mod rendezvous;
mod replay;
mod rings;
pub mod segment;
mod server_state;
pub mod sharers;
mod side;
mod side_machines;
mod side_state;
mod slot_side;
pub mod slots;
mod sockets;
pub mod standstill;
mod state;
mod stats;
pub mod strangers;
pub mod switch;
pub mod unread;
pub mod users;
pub mod wait_budget;
mod waiters;
mod wake;
mod wake_peer;
pub mod waker;
pub mod windows;

pub use after_fork::after_fork;
pub use control_socket::ControlSocket;
pub use edges::{EdgeSeq, Edges};
pub use endpoint::ShmEndpoint;
pub use link::Link;
pub use link_wakers::Wakers;
pub use liveness::Liveness;
pub use mapping::give_back_all_segments;
pub use old_subflow::OldSubflow;
pub use passed::PassedSockets;
pub use peer_listener::PeerListener;
pub use peer_process::PeerProcess;
pub use queue::ConnectQueue;
pub use queued_connect::QueuedConnect;
pub use remote::has_failed_over;
pub use server_state::{ServerState, is_handing_on};
pub use side::Side;
pub use side_state::SideState;
pub use slot_side::SlotSide;
pub use sockets::{end_at_close, reset_at_close};
pub use wait_budget::WaitBudget;
pub use waiters::Waiters;
