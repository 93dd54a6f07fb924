//! The statistics page of a NetACC process.
//!
//! Every accelerated process keeps one page of counters in a memfd called
//! [`MEMFD_NAME`] and writes to it with plain atomic stores. A tool finds the
//! page through `/proc/PID/fd` and copies it, without asking the process: a
//! stopped or hung process can still be read. The page disappears with the
//! process, so nothing is ever left behind.
//!
//! This crate is the writer, which runs inside other people's programs: it allocates
//! nothing, calls no libc and cannot panic. The reader is netacc-stats-reader.

#![cfg_attr(not(test), no_std)]

mod addr;
mod control;
mod counter;
mod link;
mod map;
mod page;
mod reason;
mod rules;
mod sock;
mod table;

pub use addr::SockAddr;
pub use control::{
    Command as ControlCommand, Control, OFF_BEFORE_THE_PAGE, Request as ControlRequest, State as ControlState, Upgraded,
};
pub use counter::{Counter, Kind};
pub use link::{LinkEntry, LinkKind, NewLink};
pub use map::{give_back, init, note_locking, page, reinit_after_fork};
pub use page::{
    CFG_CAPACITY, COUNTER_SLOTS, LAYOUT_VERSION, LINK_ENTRIES, MAGIC, PAGE_SIZE, Page, PageOf, REASON_SLOTS,
    RULE_SLOTS, SOCK_ENTRIES,
};
pub use reason::Reason;
pub use rules::{Reloaded, RulesInForce};
pub use sock::{SockEntry, State, Transport};

/// Name of the memfd that holds the page, as `/proc/PID/fd` shows it after
/// `/memfd:`.
pub const MEMFD_NAME: &str = "netacc-stats";

/// The offsets and sizes of the page's parts, for its reader.
#[doc(hidden)]
#[allow(missing_docs, reason = "the fields and their offsets are described where they are declared")]
pub mod layout {
    pub use crate::control::at as control;
    pub use crate::link::{DEVICE_LEN, THREAD, at as link};
    pub use crate::page::{Head, LIBRARY_LEN, PROGRAM_LEN};
    pub use crate::rules::{at as rules, rule_of};
    pub use crate::sock::at as sock;
}
