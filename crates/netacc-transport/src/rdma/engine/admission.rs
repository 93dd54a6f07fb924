//! Admission of peers that have sent no message yet: how many of them there may be at a time, and which one makes room
//! when a further one comes. Anybody can be such a peer, so their number is bounded for each address and in all.

use alloc::collections::BTreeMap;
use core::net::IpAddr;

/// The most silent peers that there may be at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub per_address: usize,
    pub all: usize,
}

/// A peer that has sent no message yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Silent {
    /// The number by which its owner knows it.
    pub id: usize,
    pub ip: IpAddr,
    /// Since when (ns) it has been there.
    pub since: u64,
}

/// The one of `silent` that makes room for a newcomer from `ip`, if there are as many as `bounds` allows: the oldest
/// from that address, or, if there are too many in all, the oldest from the address that has most of them.
pub(super) fn evicted(silent: &[Silent], ip: IpAddr, bounds: Bounds) -> Option<Silent> {
    if silent.iter().filter(|s| s.ip == ip).count() >= bounds.per_address {
        return oldest_of(silent, ip);
    }
    if silent.len() < bounds.all {
        return None;
    }
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for s in silent {
        *counts.entry(s.ip).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count)?;
    oldest_of(silent, most.0)
}

fn oldest_of(silent: &[Silent], ip: IpAddr) -> Option<Silent> {
    silent.iter().filter(|s| s.ip == ip).min_by_key(|s| s.since).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    const BOUNDS: Bounds = Bounds { per_address: 3, all: 8 };

    fn host(n: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, n).into()
    }

    fn silent(id: usize, n: u8, since: u64) -> Silent {
        Silent { id, ip: host(n), since }
    }

    #[test]
    fn below_both_bounds_nobody_goes() {
        assert_eq!(evicted(&[], host(1), BOUNDS), None);
        assert_eq!(evicted(&[silent(0, 1, 5), silent(1, 1, 3)], host(1), BOUNDS), None);
    }

    #[test]
    fn the_oldest_of_the_same_address_goes_first() {
        let all = [silent(0, 2, 1), silent(1, 1, 5), silent(2, 1, 3), silent(3, 1, 4)];
        assert_eq!(evicted(&all, host(1), BOUNDS), Some(silent(2, 1, 3)));
        assert_eq!(evicted(&all, host(2), BOUNDS), None);
    }

    #[test]
    fn of_too_many_in_all_the_address_with_most_gives_way() {
        let mut all: Vec<Silent> = (0..6u8).map(|n| silent(n.into(), n, n.into())).collect();
        all.extend([silent(6, 9, 20), silent(7, 9, 10)]);
        assert_eq!(evicted(&all, host(77), BOUNDS), Some(silent(7, 9, 10)));
    }

    /// In whichever order they come, there are never more than both bounds allow.
    #[test]
    fn the_bounds_hold() {
        let mut all: Vec<Silent> = Vec::new();
        for n in 0..2_000usize {
            let newcomer = silent(n, u8::try_from(n * 7 % (1 + n % 40)).unwrap(), n as u64);
            if let Some(victim) = evicted(&all, newcomer.ip, BOUNDS) {
                all.retain(|s| s.id != victim.id);
            }
            all.push(newcomer);
            assert!(all.len() <= BOUNDS.all);
            assert!(all.iter().filter(|s| s.ip == newcomer.ip).count() <= BOUNDS.per_address);
        }
    }
}
