//! Shared memory within one host.
//!
//! A [`Link`] joins two processes: a control socket, a sealed memfd ([`segment`]) with slots for many
//! connections, and doorbells. An [`ShmEndpoint`] is one side of one slot.

/// A shared line of a [`segment::Slot`] by its side.
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

mod bytes;
mod contract;
pub mod control;
mod cork;
mod delays;
mod depart;
mod doorbells;
pub mod endpoint;
pub mod family;
mod far;
pub mod guard;
pub mod identity;
mod kin;
pub mod link;
mod liveness;
mod mapping;
pub mod numbers;
mod open;
pub mod owner;
mod passed;
pub mod patience;
mod pending;
pub mod promote;
mod queue;
pub mod rendezvous;
pub mod segment;
mod shown;
pub mod slots;
mod sockets;
mod state;
pub mod strangers;
pub mod tail;
pub mod users;
mod waiters;
mod witness;

pub use endpoint::ShmEndpoint;
pub use link::{Link, Side};
pub use patience::Patience;
pub use sockets::{end_at_close, reset_at_close};
pub use state::Marks;
