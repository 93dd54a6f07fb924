//! The suite of `netacc-transport/tests/conformance` over a connection between two hosts. `remote` says where it runs.
//!
//! What is in `rdma_failed_over` and `rdma_cut` has its queue pairs fail, which is once per process: with their
//! companion connections, and without (`NACC_TCP_COMPANION=0`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

#[path = "../../../netacc-transport/tests/conformance/bytes.rs"]
mod bytes;
#[path = "../../../netacc-transport/tests/conformance/closing.rs"]
mod closing;
#[path = "../../../netacc-transport/tests/conformance/ends.rs"]
mod ends;
mod failing;
mod remote;
mod rest;
#[path = "../../../netacc-transport/tests/conformance/sleeping.rs"]
#[allow(dead_code)]
mod sleeping;

use bytes::*;
use closing::*;
use failing::*;
use sleeping::*;

macro_rules! conformance {
    ($module:ident: $($call:ident$(::<$rig:ty>)?),* $(,)?) => {
        mod $module {
            $(#[test]
            #[ignore = "needs RDMA devices"]
            fn $call() {
                crate::$call$(::<$rig>)?();
            })*
        }
    };
    ($module:ident, $rig:ty: $($case:ident),* $(,)?) => {
        conformance!($module: $($case::<$rig>),*);
    };
}

// Not `death_ends_a_connection`, since both ends are in one process: see `rdma_cut` and `tests/rdma/test_transport.py`.
conformance!(rdma_client, crate::remote::Client:
    bytes_arrive_in_order, many_small_messages, full_then_room_again, a_full_connection_stops_no_other, vectored,
    peek_leaves_the_bytes, nothing_asked, half_close, shutdown_of_reading, shutdown_of_both, clean_close,
    a_reset_is_told_once, data_comes_before_a_reset, a_reset_after_the_end, a_reset_on_the_heels_of_the_end,
    an_end_in_pieces, an_end_behind_a_full_reader, idle_readiness, a_sleeping_reader_wakes, a_sleeping_writer_wakes,
    several_sleepers_wake, disarmed_is_forgotten);
conformance!(rdma_server, crate::remote::Server:
    full_then_room_again, half_close, shutdown_of_reading, shutdown_of_both, clean_close, a_reset_is_told_once,
    data_comes_before_a_reset, a_reset_on_the_heels_of_the_end, an_end_in_pieces, an_end_behind_a_full_reader,
    a_sleeping_reader_wakes, a_sleeping_writer_wakes);
conformance!(rdma_busy, crate::remote::Busy: ping_pong_with_sleep, bulk_with_sleep, close_in_the_middle);
conformance!(rdma_failed_over, crate::remote::FailoverCase:
    a_full_connection_stops_no_other, peek_leaves_the_bytes, nothing_asked, half_close, shutdown_of_reading,
    shutdown_of_both, a_reset_is_told_once, data_comes_before_a_reset, a_reset_after_the_end, a_reset_on_the_heels_of_the_end,
    an_end_in_pieces, an_end_behind_a_full_reader, a_sleeping_reader_wakes);
conformance!(rdma_failed_over_on: a_failure_loses_nothing);
conformance!(rdma_cut: a_failure_without_a_companion);
