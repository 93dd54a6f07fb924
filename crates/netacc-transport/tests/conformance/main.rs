//! What every transport must do: one suite over [`Endpoint`], run for each [`Rig`] at the end of the file.
//!
//! What TCP does in each state, and so what is expected here, is listed in `tests/diff/facts.expected`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod bytes;
mod closing;
mod ends;
mod forking;
mod lies;
mod shm;
mod sleeping;
mod strangers;

use bytes::*;
use closing::*;
use sleeping::*;

macro_rules! conformance {
    ($module:ident, $rig:ty) => {
        conformance!($module, $rig:
            bytes_arrive_in_order, many_small_messages, full_then_room_again, a_full_connection_stops_no_other, vectored, peek_leaves_the_bytes,
            nothing_asked, half_close, shutdown_of_reading, shutdown_of_both, clean_close, a_reset_is_told_once,
            data_comes_before_a_reset, a_reset_after_the_end, a_reset_on_the_heels_of_the_end, an_end_in_pieces, an_end_behind_a_full_reader, idle_readiness, a_sleeping_reader_wakes,
            a_sleeping_writer_wakes, several_sleepers_wake, disarmed_is_forgotten, death_ends_a_connection,
            ping_pong_with_sleep, bulk_with_sleep, close_in_the_middle);
    };
    ($module:ident, $rig:ty: $($case:ident),*) => {
        mod $module {
            $(#[test]
            fn $case() {
                crate::$case::<$rig>();
            })*
        }
    };
}

conformance!(shm_client, crate::shm::Client);
conformance!(shm_server, crate::shm::Server);
// Peers of another user get no descriptors of ours and are woken by messages.
conformance!(shm_strangers, crate::shm::Strangers);
