//! Shared memory within one host.
//!
//! A [`Link`] joins two processes: a control socket, a sealed memfd ([`segment`]) with slots for many
//! connections, and doorbells. An [`ShmEndpoint`] is one side of one slot.

pub mod control;
pub mod endpoint;
pub mod link;
mod owner;
pub mod rendezvous;
pub mod segment;
pub mod slots;

pub use endpoint::ShmEndpoint;
pub use link::{Link, Side};
