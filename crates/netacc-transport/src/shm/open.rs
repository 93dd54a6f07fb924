//! Reading and writing the description of a connect ([`Open`]).

use crate::num;
use crate::shm::segment::Open;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::Ordering;

/// Shift of the bits above the client's address family: the number + 1 of the RDMA engine that carries the connection,
/// if the client is on another host; 0: it is on this host.
const REMOTE_SHIFT: u32 = 21;
/// Shift of the bits above the server's address family: the index + 1 of the entry on the client's stats page for the
/// queue pair that carries the connection; 0: none yet.
const QP_SHIFT: u32 = 21;
const AF_MASK: u32 = (1 << (QP_SHIFT - 16)) - 1;
const _: () = assert!(netacc_stats::LINK_ENTRIES < 1 << (32 - QP_SHIFT));

impl Open {
    /// Writes the addresses of both ends and the present time; [`crate::shm::segment::Segment::push`] publishes them.
    pub fn write(&self, local: SocketAddr, remote: SocketAddr) {
        self.when.store(netacc_sys::time::now(), Ordering::Relaxed);
        for (i, a) in [local, remote].into_iter().enumerate() {
            let (words, family) = match a.ip() {
                IpAddr::V4(ip) => ([u32::from(ip), 0, 0, 0], libc::AF_INET),
                IpAddr::V6(ip) => {
                    let mut words = [0; 4];
                    for (word, octets) in words.iter_mut().zip(ip.octets().as_chunks().0) {
                        *word = u32::from_be_bytes(*octets);
                    }
                    (words, libc::AF_INET6)
                }
            };
            if let (Some(ip), Some(fp)) = (self.ip.get(i), self.family_port.get(i)) {
                for (w, n) in ip.iter().zip(words) {
                    w.store(n, Ordering::Relaxed);
                }
                fp.store(family.cast_unsigned() << 16 | u32::from(a.port()), Ordering::Relaxed);
            }
        }
    }

    /// Writes the addresses of a client on another host, and the number of the engine of this process that carries the
    /// connection.
    pub fn write_remote(&self, client: SocketAddr, server: SocketAddr, engine: usize) {
        self.write(client, server);
        let [fp, _] = &self.family_port;
        fp.fetch_or((num::small(engine) + 1) << REMOTE_SHIFT, Ordering::Relaxed);
    }

    /// Stores the index of the entry on the stats page that shows the queue pair of the connection.
    pub fn write_qp(&self, entry: u32) {
        let [_, fp] = &self.family_port;
        fp.fetch_or((entry + 1) << QP_SHIFT, Ordering::Relaxed);
    }

    /// The index that [`Open::write_qp`] has stored. It is a hint, since a peer can write it.
    pub fn qp(&self) -> Option<u32> {
        let [_, fp] = &self.family_port;
        (fp.load(Ordering::Relaxed) >> QP_SHIFT).checked_sub(1)
    }

    /// The number + 1 of the RDMA engine that carries the connection, according to the client; 0: the client is on this
    /// host.
    pub fn remote_engine(&self) -> u32 {
        let [fp, _] = &self.family_port;
        fp.load(Ordering::Relaxed) >> REMOTE_SHIFT
    }

    /// An address that a client has written: that of side 0 is its own, that of side 1 the one that it wants to reach.
    /// `None`: the words are not an address.
    pub fn address(&self, side: usize) -> Option<SocketAddr> {
        let fp = self.family_port.get(side)?.load(Ordering::Relaxed);
        let mut w = [0u32; 4];
        for (out, cell) in w.iter_mut().zip(self.ip.get(side)?) {
            *out = cell.load(Ordering::Relaxed);
        }
        let [a, b, c, d] = w;
        let ip: IpAddr = match (fp >> 16 & AF_MASK).cast_signed() {
            libc::AF_INET => Ipv4Addr::from(a).into(),
            libc::AF_INET6 => {
                let n = u128::from(a) << 96 | u128::from(b) << 64 | u128::from(c) << 32 | u128::from(d);
                Ipv6Addr::from(n).into()
            }
            _ => return None,
        };
        Some(SocketAddr::new(ip, (fp & 0xffff) as u16))
    }
}
