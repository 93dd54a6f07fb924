//! epoll(7) over accelerated connections and everything else at once.
//!
//! An application's epoll instance stays a kernel one: foreign descriptors live in it as always. Beside
//! them it holds descriptors of ours (doorbells, control sockets, rendezvous), whose events carry a cookie
//! instead of the application's data. Accelerated connections are not in the kernel's set at all; their
//! registrations ([`Reg`]) are ours, hints come by the ready sets of the links ([`Watch`]), and each hint
//! is verified before it is reported.
//!
//! Locks: `STRUCTURE` guards the lists of registrations and watches; an instance's own lock guards its
//! ready queue and active watches. The order is `STRUCTURE`, then instance (a parent before a nested one),
//! then listener.

mod arrivals;
mod call;
mod arrivals;
