//! What the links of an engine report.

use crate::rdma::engine::worker::Engine;
use crate::shm::slots::CONTROL_SLOT;
use alloc::vec::Vec;

impl Engine {
    /// Looks for connections that have news.
    pub(super) fn check_locals(&mut self) -> bool {
        let mut busy = false;
        let mut at = 0;
        while at < self.mux.links.table.len() {
            if let Some(local) = self.mux.links.table.get(at)
                && let Some(ready_set) = local.link.my_ready_set(local.ready_set)
            {
                for slot in ready_set.take() {
                    busy = true;
                    if slot == CONTROL_SLOT {
                        self.routes.take_connects(&mut self.mux, at);
                    } else if let Some(c) = self.mux.links.conn_at(at, slot) {
                        self.mux.conns.queue(c);
                    }
                }
            }
            at += 1;
        }
        busy
    }

    /// Handles what a link's control socket has: messages, or the end.
    pub(super) fn serve_local(&mut self, at: usize) {
        let Some(local) = self.mux.links.table.get_mut(at) else { return };
        local.link.service();
        local.ended = local.link.is_lost();
        let here: Vec<usize> = local.slots.iter().filter_map(|c| (*c as usize).checked_sub(1)).collect();
        let (ended, route) = (local.ended, local.route);
        if !ended {
            return;
        }
        for c in &here {
            self.mux.conns.queue(*c);
        }
        if here.is_empty() {
            self.mux.links.drop(at);
        }
        if let Some(route) = route {
            self.routes.detach_route(&mut self.mux, route);
        }
    }
}
