//! What every transport must do, and faults around the paths of its messages.
//!
//! The suite consists of functions over [`Endpoint`](netacc_transport::Endpoint), each generic over a [`Rig`], which
//! makes connected pairs of ends. A test program names a rig and the cases by the macro [`suite!`]. The rig over the
//! kernel's own TCP ([`kernel`]) checks the suite itself: what it expects is what TCP does, which
//! `tests/diff/facts.expected` lists.
//!
//! A transport's messages pass through the hands of a fault injector: between the control sockets of two links stands a
//! [`relay`], and below the verbs are the devices of `netacc-fabric`, whose faults a test chooses ([`world`]). Each
//! choice follows from a seed ([`chance`]), which a failure prints with the last messages.
//!
//! The crate is for tests only: nothing of it is loaded into a program.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

pub mod bytes;
pub mod chance;
pub mod closing;
pub mod ends;
pub mod kernel;
pub mod killed;
pub mod links;
pub mod relay;
pub mod sleeping;
pub mod world;

pub use ends::{End, Pair, Rig};

/// Makes a module of tests: the cases named, or all, for a rig.
#[macro_export]
macro_rules! suite {
    ($module:ident, $rig:ty) => {
        $crate::suite!($module, $rig:
            bytes::bytes_arrive_in_order, bytes::many_small_messages, bytes::full_then_room_again,
            bytes::a_full_connection_stops_no_other, bytes::vectored, bytes::peek_leaves_the_bytes,
            bytes::nothing_asked, closing::half_close, closing::shutdown_of_reading, closing::shutdown_of_both,
            closing::clean_close, closing::a_reset_is_told_once, closing::data_comes_before_a_reset,
            closing::a_reset_after_the_end, closing::a_reset_on_the_heels_of_the_end, closing::an_end_in_pieces,
            closing::an_end_behind_a_full_reader, closing::idle_readiness, sleeping::a_sleeping_reader_wakes,
            sleeping::a_sleeping_writer_wakes, sleeping::several_sleepers_wake, sleeping::disarmed_is_forgotten,
            sleeping::death_ends_a_connection, sleeping::ping_pong_with_sleep, sleeping::bulk_with_sleep,
            sleeping::close_in_the_middle);
    };
    ($module:ident, $rig:ty: $($file:ident::$case:ident),* $(,)?) => {
        mod $module {
            $(#[test]
            fn $case() {
                $crate::$file::$case::<$rig>();
            })*
        }
    };
}
