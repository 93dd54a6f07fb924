//! The socket layer's implementation of the trait that the transports below it use (see [`netacc_transport::host`]).

use crate::conn::pool::{self, ClaimFor};
use crate::conn::ports;
use crate::epoll::subscription;
use crate::fd::table::{self, Entry};
use crate::fork::descendants;
use crate::listen::opening;
use crate::object::reference::{self, Ref};
use crate::object::socket::{SHARED, Socket};
use crate::options::remembered;
use crate::runtime;
use crate::switch::{queued_connects, redispatch, upgrade, upgrade_client};
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering;
use libc::{IPPROTO_TCP, SOL_SOCKET};
use netacc_conf::Config;
use netacc_stats::{Reason, SockEntry};
use netacc_sys::Guard;
use netacc_sys::time::{self, Deadline};
use netacc_transport::host::{ConnToken, Direction, Host, Patience, ProgramConn, Reachability, UpgradeAnswer};
use netacc_transport::shm::claim::Claim;
use netacc_transport::shm::{Link, ShmEndpoint};
use netacc_wire::companion::{OwnPort, TOKEN};

/// The program in this process.
struct Program;

/// The object that is passed to the transports.
pub(crate) static HOST: &dyn Host = &Program;

/// The socket of a token. The object may stand for another connection by now ([`Ref::valid`]).
fn socket(token: ConnToken) -> Option<Ref<Socket>> {
    let obj = reference::at::<Socket>(token.object)?;
    Some(Ref { obj, generation: token.generation })
}

impl Host for Program {
    fn config(&self) -> Option<&'static Config> {
        Some(&runtime::get()?.conf)
    }

    fn is_alone(&self) -> bool {
        descendants::alone()
    }

    fn has_no_children(&self) -> bool {
        descendants::has_no_children()
    }

    fn is_fork_under_way(&self) -> bool {
        descendants::under_way()
    }

    fn claim(&self, client: SocketAddr, server: SocketAddr) -> Result<Claim, Reason> {
        pool::claim(client, server, None, ClaimFor::Late)
    }

    fn claim_remote(&self, server: SocketAddr, link: &'static Link) -> Result<Claim, Reason> {
        pool::claim_remote(server, link, true)
    }

    fn learn(&self, dest: SocketAddr, what: Reachability) {
        match what {
            Reachability::Reached => ports::note_reached(dest.ip()),
            Reachability::Broken => ports::note_broken(dest.ip()),
            Reachability::Refused(why) => ports::note_refused(dest, why, time::coarse()),
        }
    }

    fn is_doubted(&self, ip: IpAddr) -> bool {
        ports::is_doubted(ip)
    }

    fn takes_companions(&self, at: SocketAddr) -> OwnPort {
        opening::takes_companions(at)
    }

    fn each_conn(&self, f: &mut dyn FnMut(&ProgramConn)) {
        table::each(0, usize::MAX, |_, e| {
            if let Entry::Socket(r) = e
                && r.obj.is_shm()
                && let Some(ep) = r.obj.endpoint()
            {
                f(&ProgramConn {
                    socket: r.token(),
                    ep,
                    addresses: r.obj.local.get().zip(r.obj.peer.get()),
                    stats: r.obj.stats(),
                    shared: r.obj.has(SHARED),
                });
            }
        });
    }

    fn stats_of(&self, ep: &'static ShmEndpoint) -> Option<&'static SockEntry> {
        let s = reference::at::<Socket>(ep.owner.load(Ordering::Acquire))?;
        s.endpoint().filter(|e| core::ptr::eq(*e, ep))?;
        s.stats()
    }

    fn kick(&self, ep: &ShmEndpoint) {
        subscription::kick(ep);
    }

    fn patience(&self, token: ConnToken) -> Patience {
        let Some(r) = socket(token) else { return Patience::default() };
        let _g = r.obj.meta.lock();
        // The defaults are those of a host that was not configured (tcp(7)).
        let option = |level, name, default| r.obj.opts.get(level, name).map_or(default, |v| v.max(0) as u32);
        let keepalive = (option(SOL_SOCKET, libc::SO_KEEPALIVE, 0) != 0).then(|| {
            [(libc::TCP_KEEPIDLE, 7200), (libc::TCP_KEEPINTVL, 75), (libc::TCP_KEEPCNT, 9)]
                .map(|(name, default)| option(IPPROTO_TCP, name, default))
        });
        Patience { user_timeout_ms: option(IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 0), keepalive }
    }

    fn has_keepalive(&self) -> bool {
        remembered::has_keepalive()
    }

    fn try_hold(&self, token: ConnToken, ep: &'static ShmEndpoint, direction: Direction) -> Option<Guard<'static>> {
        let r = socket(token)?;
        let held = match direction {
            Direction::Read => r.obj.rx.try_lock(),
            Direction::Write => r.obj.tx.try_lock(),
        }?;
        let stands = r.valid() && r.obj.ring().is_some_and(|e| core::ptr::eq(e, ep));
        stands.then_some(held)
    }

    fn upgrade_candidate(&self, client: SocketAddr, server: SocketAddr) -> Option<ConnToken> {
        upgrade::find(client, server).map(Ref::token)
    }

    fn prepare_upgrade(&self, token: ConnToken, sent: u64, ep: &'static ShmEndpoint) -> UpgradeAnswer {
        socket(token).map_or(UpgradeAnswer::No, |r| upgrade::prepare(r, sent, ep))
    }

    fn withdraw_upgrade(&self, token: ConnToken, ep: &'static ShmEndpoint) {
        if let Some(r) = socket(token) {
            upgrade::unprepare(r, ep);
        }
    }

    fn request_upgrades(&self) -> bool {
        let mut left = false;
        table::each(0, usize::MAX, |fd, e| {
            if let Entry::Socket(r) = e
                && r.obj.candidate().is_some_and(|upgrade| upgrade.is_remote() && upgrade.is_client())
            {
                left |= upgrade_client::try_upgrade(fd, r);
            }
        });
        left
    }

    fn sent_by_kernel(&self, token: ConnToken) -> u64 {
        socket(token).map_or(0, |r| upgrade_client::sent(r.obj))
    }

    fn commit_upgrade(&self, token: ConnToken, sent: u64, proof: [u8; TOKEN], ep: &'static ShmEndpoint) -> bool {
        socket(token).is_some_and(|r| upgrade_client::commit(r, sent, proof, ep))
    }

    fn retry_upgrade_later(&self, token: ConnToken) {
        if let Some(r) = socket(token) {
            upgrade_client::retry_later(r);
        }
    }

    fn decide_upgrades(&self) {
        upgrade::decide_all();
    }

    fn settle_queued(&self, until: Deadline) {
        redispatch::settle_queued(until);
    }

    fn tend_queued(&self, before: &dyn Fn()) -> bool {
        queued_connects::maintain(before)
    }
}
