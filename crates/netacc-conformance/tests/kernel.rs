//! The suite over the kernel's TCP, so that the suite is tested as well.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

macro_rules! over_the_kernel {
    ($module:ident, $rig:ty) => {
        // Not `disarmed_is_forgotten`: a poll of a kernel's descriptor needs no registration that could be undone.
        netacc_conformance::suite!($module, $rig:
            bytes::bytes_arrive_in_order, bytes::many_small_messages, bytes::full_then_room_again,
            bytes::a_full_connection_stops_no_other, bytes::vectored, bytes::peek_leaves_the_bytes,
            bytes::nothing_asked, closing::half_close, closing::shutdown_of_reading, closing::shutdown_of_both,
            closing::clean_close, closing::a_reset_is_told_once, closing::data_comes_before_a_reset,
            closing::a_reset_after_the_end, closing::a_reset_on_the_heels_of_the_end, closing::an_end_in_pieces,
            closing::an_end_behind_a_full_reader, closing::idle_readiness, sleeping::a_sleeping_reader_wakes,
            sleeping::a_sleeping_writer_wakes, sleeping::several_sleepers_wake, sleeping::death_ends_a_connection,
            sleeping::ping_pong_with_sleep, sleeping::bulk_with_sleep, sleeping::close_in_the_middle);
    };
}

over_the_kernel!(kernel_connecting, netacc_conformance::kernel::Connecting);
over_the_kernel!(kernel_accepted, netacc_conformance::kernel::Accepted);
