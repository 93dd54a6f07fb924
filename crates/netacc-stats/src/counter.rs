//! The process-wide counters: one table, one line per metric.

/// How the value of a [`Counter`] moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The value only grows.
    Total,
    /// The value rises and falls.
    Gauge,
}

/// Numbers the rows in order: a row's position is its slot in the page, so new
/// metrics are added at the end and old rows stay where they are.
macro_rules! counters {
    ( $( $variant:ident, $name:literal, $kind:ident, $help:literal; )+ ) => {
        /// A process-wide metric. The value is its slot in the page.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Counter {
            $( #[doc = $help] $variant, )+
        }

        impl Counter {
            /// Every metric, in the order of the page.
            pub const ALL: &'static [Self] = &[ $( Self::$variant, )+ ];

            /// The name shown to users.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Self::$variant => $name, )+ }
            }

            /// One sentence on what is counted.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $( Self::$variant => $help, )+ }
            }

            /// Whether the value only grows.
            #[must_use]
            pub const fn kind(self) -> Kind {
                match self { $( Self::$variant => Kind::$kind, )+ }
            }
        }
    };
}

counters! {
    ConnectsShm,    "connects_shm",    Total, "Outgoing connections that began on shared memory.";
    ConnectsRdma,   "connects_rdma",   Total, "Outgoing connections that began on RDMA.";
    ConnectsTcp,    "connects_tcp",    Total, "Outgoing connections that began on kernel TCP.";
    AcceptsShm,     "accepts_shm",     Total, "Accepted connections that began on shared memory.";
    AcceptsRdma,    "accepts_rdma",    Total, "Accepted connections that began on RDMA.";
    AcceptsTcp,     "accepts_tcp",     Total, "Accepted connections that began on kernel TCP.";
    Promotions,     "promotions",      Total, "Connections moved from kernel TCP to a faster transport.";
    Demotions,      "demotions",       Total, "Connections moved back to their kernel socket.";
    LinksOpened,    "links_opened",    Total, "Links to another process set up.";
    LinksClosed,    "links_closed",    Total, "Links closed in good order.";
    LinksLost,      "links_lost",      Total, "Links that ended because the peer process died or broke the protocol.";
    SlotsInUse,     "slots_in_use",    Gauge, "Connection slots of links in use now.";
    Wakeups,        "wakeups",         Total, "Sleeps in the kernel that a peer's waker ended.";
    Doorbells,      "doorbells",       Total, "Wakers written to wake a sleeping peer.";
    Sleeps,         "sleeps",          Total, "Times a thread slept in the kernel for a connection.";
    SpinsWon,       "spins_won",       Total, "Busy waits that saw their data before the budget ran out.";
    SpinsLost,      "spins_lost",      Total, "Busy waits that gave up and slept or returned.";
    EpollWaits,     "epoll_waits",     Total, "Calls of the epoll_wait family that NetACC handled.";
    KernelPolls,    "kernel_polls",    Total, "Times the kernel was asked for the readiness of other descriptors.";
    ProtocolErrors, "protocol_errors", Total, "Messages or indices of a peer that were refused as invalid.";
    LogLines,       "log_lines",       Total, "Lines written to the log.";
    Forks,          "forks",           Total, "Forks of this process.";
    RegisteredBytes, "registered_bytes", Gauge, "Bytes of memory registered with RDMA devices.";
    RegisteredUsed, "registered_used_bytes", Gauge, "Of them, bytes of buffers that are posted or hold a message.";
    RegisteredRegions, "registered_regions", Gauge, "Regions of memory registered with RDMA devices.";
    WindowBudgetBytes, "window_budget_bytes", Gauge, "Bytes that the windows of connections may use; 0: not needed yet.";
    WindowBytes,    "window_bytes",    Gauge, "Bytes that the windows of connections use.";
    WindowPeakBytes, "window_peak_bytes", Gauge, "Most bytes that the windows of connections have used at a time.";
    WindowGivenBackBytes, "window_given_back_bytes", Total, "Bytes of drained windows given back to the system.";
    WindowsRefused, "windows_refused", Total, "Times a window was not opened further for want of memory.";
    LogLinesDropped, "log_lines_dropped", Total, "Lines left out of the log: too many alike, or the file could not be written.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn slots_are_dense_and_names_unique() {
        let mut names = HashSet::new();
        for (slot, counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(*counter as usize, slot);
            assert!(names.insert(counter.name()));
            assert!(counter.help().ends_with('.'));
        }
        assert!(Counter::ALL.len() <= crate::COUNTER_SLOTS);
    }
}
