//! Routes to servers that another engine has reached before, and further links for those that are full.

use crate::rdma::engine::mux::Mux;
use crate::rdma::engine::routes::Routes;
use crate::rdma::engine::routes::{RouteHandle, State, why};
use crate::shm::Link;
use crate::shm::claim::segment_lacks;
use core::net::{IpAddr, SocketAddr};
use netacc_stats::Reason;
use netacc_sys::errno::Errno;
use netacc_sys::time;
use netacc_verbs::Error;

impl Routes {
    /// The route to a server that another engine has reached from our address `source`; without that address, only if
    /// the route is known. Nothing is waited for: connects that come before the first queue pair is there wait on the
    /// link.
    pub fn share_route(&mut self, mux: &mut Mux, dest: SocketAddr, source: Option<IpAddr>) -> Option<RouteHandle> {
        let known = self.to(dest);
        if let Some(r) = known.and_then(|at| self.table.get(at)) {
            match (r.state(), r.link) {
                (State::Open, Some(link)) if link.accepting() => return Some(self.handle(mux, link, r)),
                (State::Closed(_, until), _) if time::now() < until => return None,
                _ => {}
            }
        }
        let source = source?;
        let at = self.reset_route(mux, dest)?;
        // A queue pair whose other side is doubted does not count: its companion connection has ended, and so may have
        // the process there.
        let begun = |p: &usize| mux.qps.table.get(*p).is_some_and(|e| !e.is_up() || e.takes_more());
        if !self.table.get(at).is_some_and(|r| r.qps.iter().any(begun))
            && let Err(e) = self.begin_qp(mux, at)
        {
            self.close_route(mux, at, why(&e), &e);
            return None;
        }
        self.lead(mux, at, Some(source));
        let r = self.table.get(at)?;
        Some(self.handle(mux, r.link?, r))
    }

    /// Gives the route to `dest` a further link for new connects, since `full` has no place for one. The full link
    /// stays for the connections it has, and for a connect that takes a place that becomes free.
    pub fn add_route_link(&mut self, mux: &mut Mux, dest: SocketAddr, full: &'static Link) -> Option<&'static Link> {
        let at = self.table.each().find(|(_, r)| r.dest == dest && r.state() == State::Open).map(|(at, _)| at)?;
        let r = self.table.get_mut(at)?;
        // Another thread may have been first.
        if r.link.is_some_and(|link| core::ptr::eq(link, full)) {
            let (link, local) = self.link_to(mux, at).ok()?;
            let r = self.table.get_mut(at)?;
            (r.link, r.local) = (Some(link), Some(local));
            full.put();
            // The thread is to listen to the new link.
            mux.status.ring();
        }
        let link = self.table.get(at)?.link?;
        link.hold();
        Some(link)
    }

    /// Makes a link for the connects to a route's server: the socket layer's side, and ours.
    pub fn link_to(&self, mux: &mut Mux, route: usize) -> Result<(&'static Link, usize), (Reason, Error)> {
        let (client, server) = Link::pair(mux.qps.index)
            .map_err(|errno| (segment_lacks(errno), Error::Verb { verb: "memfd_create", errno }))?;
        let Some(local) = mux.links.add(server, Some(route)) else {
            client.put();
            return Err((Reason::NoDescriptors, Error::Verb { verb: "eventfd", errno: Errno::MFILE }));
        };
        Ok((client, local))
    }
}
