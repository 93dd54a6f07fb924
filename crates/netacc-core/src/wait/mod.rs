//! Waiting threads: for one connection, in poll(2) and in select(2).

pub mod bell;
pub mod call_signals;
pub mod connection;
pub(crate) mod end_look;
pub mod held;
pub mod idle_windows;
pub mod poll;
mod poll_entries;
mod poll_objects;
pub mod select;
pub mod sleep;
pub mod spin;
