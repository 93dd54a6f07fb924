//! What the child of a fork does with the parent's engine: it only closes its copies of the descriptors.

use crate::rdma::Device;
use crate::rdma::engine::worker::Engine;
use netacc_sys::reserved_fds;
use netacc_verbs::EventChannel;

impl Engine {
    /// Before a fork: finds out what librdmacm has open, unless nothing has changed since that was asked last.
    pub(super) fn note_open_devices(&mut self) {
        let now = (self.companions.there, self.companions.removals);
        if self.events.is_none() || (self.companions.open_at == Some(now) && !self.companions.open.is_empty()) {
            return;
        }
        if let Ok(open) = netacc_verbs::cm::release_removed_devices() {
            self.companions.open = open;
            self.companions.open_at = Some(now);
        }
    }

    /// In the child of a fork: closes what would keep the queue pairs alive beyond the parent's end.
    pub fn close_inherited(&self) {
        for (_, local) in self.locals.each() {
            local.link.inherit();
            local.link.drop_passed_for_closed();
        }
        for (link, _) in &self.seats {
            link.inherit();
        }
        // The other ends are the companion connections by which the child's own connections hear that the parent is
        // gone: from ends that the child holds itself it would hear nothing.
        for (_, conn) in self.conns.each() {
            conn.ep.drop_passed();
            if conn.kernel >= 0 {
                reserved_fds::close(conn.kernel);
            }
        }
        let fds = self
            .devices
            .iter()
            .flat_map(Device::descriptors)
            .chain(self.events.as_ref().map(EventChannel::fd))
            .chain(self.doors());
        for fd in fds {
            reserved_fds::close(fd);
        }
        // Also those of devices on which nothing of ours is: their removal would wait for the child's end.
        for device in &self.companions.open {
            device.descriptors().into_iter().flatten().for_each(reserved_fds::close);
        }
        reserved_fds::close(self.waker);
        self.all_companions().for_each(reserved_fds::close);
    }
}
