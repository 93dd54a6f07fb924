//! What the child of a fork does with the parent's engine: it only closes its copies of the descriptors.

use crate::rdma::Device;
use crate::rdma::engine::worker::Engine;
use netacc_sys::reserved_fds;
use netacc_verbs::EventChannel;

impl Engine {
    /// Before a fork: finds out what librdmacm has open, unless nothing has changed since that was asked last.
    pub(super) fn note_open_devices(&mut self) {
        if self.mux.qps.events.is_some() {
            self.removals.note_open();
        }
    }

    /// In the child of a fork: closes what would keep the queue pairs alive beyond the parent's end.
    pub fn close_inherited(&self) {
        for (_, local) in self.mux.links.table.each() {
            local.link.inherit();
            local.link.drop_passed_for_closed();
        }
        for (link, _) in &self.mux.links.seats {
            link.inherit();
        }
        // The other ends are the companion connections by which the child's own connections hear that the parent is
        // gone: from ends that the child holds itself it would hear nothing.
        for (_, conn) in self.mux.conns.table.each() {
            conn.ep.drop_passed();
            if conn.kernel >= 0 {
                reserved_fds::close(conn.kernel);
            }
        }
        let fds = self
            .mux
            .qps
            .devices
            .iter()
            .flat_map(Device::descriptors)
            .chain(self.mux.qps.events.as_ref().map(EventChannel::fd))
            .chain(self.listeners.doors());
        for fd in fds {
            reserved_fds::close(fd);
        }
        // Also those of devices on which nothing of ours is: their removal would wait for the child's end.
        self.removals.close_open();
        reserved_fds::close(self.waker);
        self.companions.fds(&self.mux.qps).for_each(reserved_fds::close);
    }
}
