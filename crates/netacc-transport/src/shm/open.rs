//! What a connect says about itself ([`Open`]), written and read.

use crate::shm::segment::Open;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::Ordering;

/// Bits above a client's address family: 0, or, if the client is on another host, the number of the engine that carries
/// it plus one.
const FAR: u32 = 21;
/// Bits above a server's address family: the entry (number + 1) of the client's stats page for the queue pair that
/// carries the connection; 0: none yet.
const CARRIER: u32 = 21;
const FAMILY: u32 = (1 << (CARRIER - 16)) - 1;
const _: () = assert!(netacc_stats::LINK_ENTRIES < 1 << (32 - CARRIER));

impl Open {
    /// Writes the addresses of both ends; the queue's push publishes them.
    pub fn tell(&self, local: SocketAddr, remote: SocketAddr) {
        self.when.store(netacc_sys::time::now(), Ordering::Relaxed);
        for (i, a) in [local, remote].into_iter().enumerate() {
            let (words, family) = match a.ip() {
                IpAddr::V4(ip) => ([u32::from(ip), 0, 0, 0], libc::AF_INET),
                IpAddr::V6(ip) => {
                    let n = u128::from(ip);
                    ([(n >> 96) as u32, (n >> 64) as u32, (n >> 32) as u32, n as u32], libc::AF_INET6)
                }
            };
            if let (Some(ip), Some(fp)) = (self.ip.get(i), self.family_port.get(i)) {
                for (w, n) in ip.iter().zip(words) {
                    w.store(n, Ordering::Relaxed);
                }
                fp.store((family as u32) << 16 | u32::from(a.port()), Ordering::Relaxed);
            }
        }
    }

    /// Writes the addresses of a client on another host, whose process is not the one that writes this, but the
    /// carrier's `engine`.
    pub fn tell_far(&self, client: SocketAddr, server: SocketAddr, engine: usize) {
        self.tell(client, server);
        let [fp, _] = &self.family_port;
        fp.fetch_or((engine as u32 + 1) << FAR, Ordering::Relaxed);
    }

    /// Stores the entry of the stats page by which its queue pair is shown.
    pub fn tell_carrier(&self, entry: u32) {
        let [_, fp] = &self.family_port;
        fp.fetch_or((entry + 1) << CARRIER, Ordering::Relaxed);
    }

    /// The entry that was stored by [`Open::tell_carrier`]. A hint.
    pub fn carrier(&self) -> Option<u32> {
        let [_, fp] = &self.family_port;
        (fp.load(Ordering::Relaxed) >> CARRIER).checked_sub(1)
    }

    /// By the client's own claim, the engine that carries it on another host, plus one; 0: the client is on this host.
    pub fn far(&self) -> u32 {
        let [fp, _] = &self.family_port;
        fp.load(Ordering::Relaxed) >> FAR
    }

    /// An address that a client wrote: side 0 is its own, side 1 the one that it wants to reach. `None` if that is no
    /// address.
    pub fn told(&self, side: usize) -> Option<SocketAddr> {
        let fp = self.family_port.get(side)?.load(Ordering::Relaxed);
        let mut w = [0u32; 4];
        for (out, cell) in w.iter_mut().zip(self.ip.get(side)?) {
            *out = cell.load(Ordering::Relaxed);
        }
        let [a, b, c, d] = w;
        let ip: IpAddr = match (fp >> 16 & FAMILY) as i32 {
            libc::AF_INET => Ipv4Addr::from(a).into(),
            libc::AF_INET6 => {
                let n = u128::from(a) << 96 | u128::from(b) << 64 | u128::from(c) << 32 | u128::from(d);
                Ipv6Addr::from(n).into()
            }
            _ => return None,
        };
        Some(SocketAddr::new(ip, fp as u16))
    }
}
