//! Switches of a live byte stream from one path to another: see `docs/internals/switch.md`.

pub mod by_tcp;
pub mod comeback;
pub mod demote;
mod full_queue;
pub mod offers;
pub mod pair;
pub mod promote;
mod proof;
pub mod queued;
pub mod queued_connects;
pub mod redispatch;
pub mod relay;
pub mod ring_relay;
pub mod shed;
pub mod standstill;
pub mod syn_stamp;
pub mod to_kernel;
pub mod to_ring;
pub mod upgrade;
pub mod upgrade_client;
