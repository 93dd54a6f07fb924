//! Routes to servers that another engine has reached before.

use crate::carrier::engine::Engine;
use crate::carrier::meet::{State, why};
use core::net::{IpAddr, SocketAddr};
use netacc_sys::time;
use netacc_transport::shm::Link;

impl Engine {
    /// The way to a server that another engine has reached from our address `source`; without that, only if it is known.
    /// Nothing is waited for: connects that come before the first queue pair is there wait on the link.
    pub fn follow_route(&mut self, dest: SocketAddr, source: Option<IpAddr>) -> Option<(&'static Link, IpAddr)> {
        let known = self.routes.each().find(|(_, r)| r.dest == dest).map(|(at, _)| at);
        if let Some(r) = known.and_then(|at| self.routes.get(at)) {
            match (r.state, r.link) {
                (State::Open, Some(link)) if link.accepting() => {
                    link.hold();
                    return Some((link, r.source));
                }
                (State::Closed(_, until), _) if time::now() < until => return None,
                _ => {}
            }
        }
        let source = source?;
        let at = self.route_anew(dest)?;
        // One whose other side is doubted is none: its base has ended, and so may have the process there.
        let begun = |p: &usize| self.pipes.get(*p).is_some_and(|e| !e.is_up() || e.takes_more());
        if !self.routes.get(at).is_some_and(|r| r.pipes.iter().any(begun))
            && let Err(e) = self.begin_pipe(at)
        {
            self.close_route(at, why(&e), &e);
            return None;
        }
        self.lead(at, Some(source));
        let link = self.routes.get(at)?.link?;
        link.hold();
        Some((link, source))
    }
}
