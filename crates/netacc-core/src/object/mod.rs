//! The objects that descriptors stand for, with their parts: sockets, listeners, epoll instances.
//!
//! They refer to each other, and do not depend on the code of the calls.

pub mod address;
pub mod candidate;
pub mod entrance;
pub(crate) mod family;
pub mod held_by;
pub(crate) mod holders;
pub mod instance;
pub mod kept;
pub mod kernel_turn;
pub mod listener;
pub mod name;
pub(crate) mod pair_name;
pub mod reference;
pub(crate) mod servers;
pub mod socket;
mod socket_flags;
pub(crate) mod source;
pub mod state;
pub mod subscription;
pub mod tcp_hint;
