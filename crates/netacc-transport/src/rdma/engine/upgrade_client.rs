//! Client's host: requests of connections on kernel TCP to continue by a queue pair (see
//! [`upgrade`](crate::socket::upgrade)).

use crate::Endpoint;
use crate::host::{ConnToken, host};
use crate::rdma::engine::cell::{self, EngineCell};
use crate::rdma::engine::lookup::{RouteLookup, find_route};
use crate::rdma::engine::mux::Mux;
use crate::rdma::engine::mux::upgrade_pending::{PendingUpgrade, Step};
use crate::rdma::engine::progress;
use crate::rdma::engine::routes::RouteHandle;
use crate::rdma::engine::routes::Routes;
use crate::shm::Link;
use core::net::SocketAddr;
use netacc_stats::Reason;
use netacc_wire::frame::Upgrade;

/// Begins to look for the route to a server.
pub fn begin_lookup(server: SocketAddr) {
    if let Ok(RouteLookup::Open(RouteHandle { link, .. })) = find_route(server) {
        link.put();
    }
}

/// Asks `server` to go on by a queue pair with the connection that `client`, a socket of ours, has by TCP. False: that
/// is not possible yet.
pub fn request_upgrade(socket: ConnToken, client: SocketAddr, server: SocketAddr) -> Result<bool, Reason> {
    let RouteLookup::Open(RouteHandle { link, source, .. }) = find_route(server)? else { return Ok(false) };
    // A route from another address of ours may lead elsewhere.
    let done = if client.ip() == source && client.port() >= 1024 {
        let cell = link.engine().and_then(cell::at);
        Ok(cell
            .and_then(|cell: &EngineCell| {
                cell.with_from_app(|e| e.routes.send_upgrade_request(&mut e.mux, link, socket, client, server))
            })
            .unwrap_or(false))
    } else {
        Err(Reason::OtherHost)
    };
    let engine = link.engine();
    link.put();
    progress::begin(engine);
    done
}

impl Routes {
    fn send_upgrade_request(
        &mut self,
        mux: &mut Mux,
        link: &'static Link,
        socket: ConnToken,
        client: SocketAddr,
        server: SocketAddr,
    ) -> bool {
        let route = self.table.each().find(|(_, e)| e.link.is_some_and(|l| core::ptr::eq(l, link)));
        let Some((route, Some(local))) = route.map(|(at, e)| (at, e.local)) else { return false };
        let Some(qp_index) = self.choose_qp(mux, route, 1) else { return false };
        let Some(host) = host() else { return false };
        let claim = match host.claim_remote(server, link) {
            Ok(claim) => claim,
            Err(why) => {
                if why == Reason::NoMemory
                    && let Some(wider) = self.add_route_link(mux, server, link)
                {
                    // The new link is used when the connection repeats its request.
                    wider.put();
                }
                return false;
            }
        };
        let Some((program, ours)) = mux.seat(link, local, claim.claimed, (client, server)) else { return false };
        drop(claim);
        let Some(at) = mux.begin(ours, local, qp_index, None, None) else {
            program.side.withdraw();
            program.close(false);
            return false;
        };
        self.show_taken(mux, qp_index, ours, local);
        let request = Upgrade { client, server, sent: host.sent_by_kernel(socket) };
        let pending = PendingUpgrade::new(Step::SendRequest, request, Some(socket), program);
        if let Some(conn) = mux.conns.table.get_mut(at) {
            conn.upgrade = Some(pending);
        }
        true
    }
}
