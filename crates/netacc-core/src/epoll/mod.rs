//! epoll(7) for accelerated connections together with all other descriptors.
//!
//! An application's epoll instance stays a kernel one: foreign descriptors live in it as always. Beside
//! them it holds descriptors of ours (wakers, control sockets, rendezvous), whose events carry a cookie
//! instead of the application's data. Accelerated connections are not in the kernel's set at all; their
//! [registrations](crate::object::instance::Registration) are ours, hints come by the ready sets of the links (an
//! instance has a [subscription](crate::object::subscription::Subscription) to one of each), and each hint is verified
//! before it is reported.
//!
//! Locks: `STRUCTURE` guards the lists of registrations and subscriptions; an instance's own lock guards its
//! ready queue and active subscriptions. The order is `STRUCTURE`, then instance (a parent before a nested one),
//! then listener.

pub mod absorb;
pub(crate) mod arrivals;
pub mod call;
pub(crate) mod children;
pub(crate) mod cookies;
pub mod create;
pub mod ctl;
pub(crate) mod fairness;
pub(crate) mod handover;
pub mod instance;
pub(crate) mod kernel_set;
pub mod listeners;
pub(crate) mod modify;
pub(crate) mod nested;
pub mod paths;
pub(crate) mod queues;
pub mod ready;
pub(crate) mod registration;
pub mod shared;
pub(crate) mod sift;
pub(crate) mod stash;
pub mod subscription;
pub(crate) mod threads;
pub(crate) mod unheard;
pub(crate) mod unlink;
pub mod wait;
