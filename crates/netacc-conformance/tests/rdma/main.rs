//! The suite over a connection between two hosts. `remote` says how one process has both.
//!
//! What is in the modules `rdma_*` needs RDMA devices and is run in the virtual machine, by
//! `tests/rdma/test_conformance.py`. Their counterparts `fabric_*` run the same tests here, each in a process of its
//! own, over the devices of `netacc-fabric`.
//!
//! In `rdma_failed_over` and `rdma_cut` the queue pairs fail, which is once per process: with their companion
//! connections, and without (`NACC_TCP_COMPANION=0`). What is in `faults` needs devices that fail as the test wants.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod failing;
mod faults;
mod remote;
mod rest;

use failing::*;
use netacc_conformance::bytes::*;
use netacc_conformance::closing::*;
use netacc_conformance::sleeping::*;

type Settings = &'static [(&'static str, &'static str)];
const SHARED: Settings = &[("NACC_SOR_CONN_PER_QP", "8")];
const ALL_IN_ONE: Settings = &[("NACC_SOR_CONN_PER_QP", "64")];
const WITHOUT_COMPANION: Settings = &[("NACC_SOR_CONN_PER_QP", "64"), ("NACC_TCP_COMPANION", "0")];

macro_rules! conformance {
    ($module:ident, $fabric:ident($settings:ident): $($call:ident$(::<$rig:ty>)?),* $(,)?) => {
        mod $module {
            $(#[test]
            #[ignore = "needs RDMA devices"]
            fn $call() {
                crate::$call$(::<$rig>)?();
            })*
        }
        mod $fabric {
            $(#[test]
            fn $call() {
                let name = concat!(stringify!($module), "::", stringify!($call));
                netacc_conformance::world::run(name, crate::$settings);
            })*
        }
    };
    ($module:ident, $fabric:ident($settings:ident), $rig:ty: $($case:ident),* $(,)?) => {
        conformance!($module, $fabric($settings): $($case::<$rig>),*);
    };
}

// Not `death_ends_a_connection`, since both ends are in one process: see `rdma_cut` and `tests/rdma/test_transport.py`.
conformance!(rdma_client, fabric_client(SHARED), crate::remote::Client:
    bytes_arrive_in_order, many_small_messages, full_then_room_again, a_full_connection_stops_no_other, vectored,
    peek_leaves_the_bytes, nothing_asked, half_close, shutdown_of_reading, shutdown_of_both, clean_close,
    a_reset_is_told_once, data_comes_before_a_reset, a_reset_after_the_end, a_reset_on_the_heels_of_the_end,
    an_end_in_pieces, an_end_behind_a_full_reader, idle_readiness, a_sleeping_reader_wakes, a_sleeping_writer_wakes,
    several_sleepers_wake, disarmed_is_forgotten);
conformance!(rdma_server, fabric_server(SHARED), crate::remote::Server:
    full_then_room_again, half_close, shutdown_of_reading, shutdown_of_both, clean_close, a_reset_is_told_once,
    data_comes_before_a_reset, a_reset_on_the_heels_of_the_end, an_end_in_pieces, an_end_behind_a_full_reader,
    a_sleeping_reader_wakes, a_sleeping_writer_wakes);
conformance!(rdma_busy, fabric_busy(SHARED), crate::remote::Busy: ping_pong_with_sleep, bulk_with_sleep, close_in_the_middle);
conformance!(rdma_failed_over, fabric_failed_over(ALL_IN_ONE), crate::remote::FailoverCase:
    a_full_connection_stops_no_other, peek_leaves_the_bytes, nothing_asked, half_close, shutdown_of_reading,
    shutdown_of_both, a_reset_is_told_once, data_comes_before_a_reset, a_reset_after_the_end, a_reset_on_the_heels_of_the_end,
    an_end_in_pieces, an_end_behind_a_full_reader, a_sleeping_reader_wakes);
conformance!(rdma_failed_over_on, fabric_failed_over_on(ALL_IN_ONE): a_failure_loses_nothing);
conformance!(rdma_cut, fabric_cut(WITHOUT_COMPANION): a_failure_without_a_companion);
