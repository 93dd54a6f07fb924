//! Connections: how they are made, what their calls do, how they end.

pub mod abort;
pub mod accept;
mod accept_turn;
mod after_close;
pub mod beliefs;
pub mod candidate;
pub mod connect;
pub mod control;
pub mod current;
pub mod file;
pub mod held_port;
pub mod io;
pub mod kernel_queue;
pub mod msg;
mod msg_header;
pub mod neighbour_links;
pub mod neighbours;
pub mod pin;
pub mod pool;
pub mod ports;
pub mod reuseport;
pub(crate) mod shown;
mod source_port;
pub mod targets;
pub mod transfer;
