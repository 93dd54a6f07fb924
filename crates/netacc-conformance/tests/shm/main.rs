//! The suite over shared memory, and what only links have.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod forking;
mod killed;
mod lies;
mod links;
mod strangers;

netacc_conformance::suite!(shm_client, netacc_conformance::links::Client);
netacc_conformance::suite!(shm_server, netacc_conformance::links::Server);
// Peers of another user get no descriptors of ours and are woken by messages.
netacc_conformance::suite!(shm_strangers, netacc_conformance::links::Strangers);
// Control messages and wake-ups come late.
netacc_conformance::suite!(shm_late, netacc_conformance::links::Late);
netacc_conformance::suite!(shm_late_strangers, netacc_conformance::links::LateStrangers);
