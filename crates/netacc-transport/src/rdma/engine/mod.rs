//! Connections to other hosts: their bytes are carried between rings and queue pairs.
//!
//! For the socket layer such a connection is one over shared memory ([`crate::shm`]), whose other side is in the same
//! process: the *engine*. On the client's host the engine is the server of a link
//! ([`Link::pair`](crate::shm::Link::pair)); on the server's host it is a client of the listener's rendezvous, like any
//! other client, so that several processes can serve the listener. What comes by a ring it sends over a queue pair, and
//! the other way round:
//!
//! ```text
//! program | ring | engine | queue pair ... queue pair | engine | ring | program
//! ```
//!
//! - `worker`: one round of the work, and what to sleep on when there is none; `cell`: all of them; `thread`: their
//!   threads; `progress`: which thread does the work; `status`: what other threads look at without the lock; `sleep`:
//!   what a thread sleeps on.
//! - `qps`: the queue pairs (`qp`: one of them) and the devices that they are on; `cm`: queue pairs that come and go;
//!   `manager`: where that is loaded; `removal`: devices that go; `stats`: what the stats page says; `sysfs`: the
//!   host's devices.
//! - `mux`: the connections between their rings and the queue pairs; `message`: what has come by a queue pair; `local`:
//!   what links report; `ring_bypass`: bytes that go past the ring.
//! - `routes`: servers on other hosts, and the connects that wait for them; `lookup`: what a connect asks; `probe`:
//!   whether a server is reached at all; `order`: which connect is next; `upgrade_client`, `upgrade_reminder`,
//!   `upgrade_server`: those that began on kernel TCP.
//! - `listeners`: listeners that clients on other hosts find; `listen`: how those get queue pairs; `admission`: how
//!   many peers there may be that have said nothing.
//! - `companions`: the TCP connections beside queue pairs; `failover`: what goes on over one when the queue pair has
//!   failed (`failed`, `user_timeout`); `keepalive`: whether the other side is still there.
//! - `fork`, `after_fork`: what a fork leaves to the child; `drain`: what is done before the process ends;
//!   `exit_handoff`: what goes on afterwards; `process`: what this process is to its engines; `maintenance`: what grows
//!   old.
//!
//! A thread that writes or waits does the work on the way; for what is left, each engine has a thread of ours, with all
//! signals blocked, which starts with the first listener or destination that an RDMA device leads to. Each engine is
//! under a lock of its own, which is never held during a sleep.
//!
//! **fork**: the threads and the queue pairs stay the parent's, and go on carrying for the child, which shares the
//! rings. The child opens no queue pairs of its own: librdmacm would use what it inherited.

mod admission;
mod after_fork;
mod cell;
mod cm;
mod companions;
mod drain;
mod exit_handoff;
mod failed;
mod failover;
mod fork;
mod keepalive;
mod limits;
mod listen;
mod listeners;
mod local;
mod lookup;
mod maintenance;
mod manager;
mod message;
mod mux;
pub mod order;
mod probe;
mod process;
pub mod progress;
mod qp;
mod qps;
mod removal;
pub mod ring_bypass;
mod routes;
mod sleep;
mod state;
mod stats;
mod status;
mod sysfs;
mod table;
mod thread;
mod upgrade_client;
mod upgrade_reminder;
mod upgrade_server;
mod user_timeout;
mod worker;

pub use companions::own_port::{
    before_fork as share_companions, note_blocking, note_unknown_sharer, shared_answer, take as take_companion,
};
pub use drain::{before_exec, finish, go_on};
pub use exit_handoff::Fork;
pub use fork::{AtRest, after_fork, before_fork};
pub use listen::{listen, retry_due, unlisten};
pub use listeners::note_unheard;
pub use lookup::{connect_timeout, end_optimistic, is_late, reach, why_not, widen};
pub use process::{available, is_running, note_go};
pub use routes::RouteHandle;
pub use upgrade_client::{begin_lookup, request_upgrade};
pub use upgrade_reminder::upgrade_soon;
pub use upgrade_server::{accepted, cancel, may_be_upgraded};
