//! The time stamp of a connection's SYN (RFC 7323), which tells connections of different network namespaces apart.
//!
//! Addresses name a connection in one network namespace only: containers on different bridges may have the same ones.
//! The kernel moves the time stamps by a random number of 32 bits, which depends on the addresses. So two connections have
//! the same time stamp only if they have the same addresses and began at the same time; those are told apart by
//! [`super::proof`]. The client's process can ask its socket for the present time stamp (`TCP_TIMESTAMP`) and computes the one of
//! its SYN; the server's process can ask for the SYN itself (`TCP_SAVED_SYN`, tcp(7)).

use core::sync::atomic::{AtomicU64, Ordering};
use netacc_sys::{raw, time};

/// getsockopt(2): the present time stamp of the connection.
const TCP_TIMESTAMP: i32 = 24;
/// setsockopt(2): whether the SYNs of a listener's connections are kept.
const TCP_SAVE_SYN: i32 = 27;
/// getsockopt(2): the headers of the SYN, which the kernel forgets then.
const TCP_SAVED_SYN: i32 = 28;

const MILLISECOND: u64 = 1_000_000;

/// Largest difference (ms) between a SYN's time stamp and the one that the client computes: both clocks are read in
/// whole milliseconds, and the thread may lose its processor between two calls.
const EARLIER: u32 = 100;
const LATER: u32 = 100;

/// A time stamp that is this close (ms) to the clock was not moved (net.ipv4.tcp_timestamps is 0 or 2), and proves
/// nothing.
const UNMOVED: u32 = 2000;

/// Bit of a known answer that is set once the SYN was asked for.
const ASKED: u64 = 1 << 33;
/// Bit that is set if the SYN has a time stamp, which is in the lower half.
const STAMPED: u64 = 1 << 32;

/// Has the kernel keep the SYNs of a listener's connections. A program that has it do so itself is left alone.
pub(crate) fn keep(listener: i32) {
    if raw::getsockopt_int(listener, libc::IPPROTO_TCP, TCP_SAVE_SYN) == Ok(0) {
        let _ = raw::setsockopt_int(listener, libc::IPPROTO_TCP, TCP_SAVE_SYN, 1);
    }
}

/// Client: the time stamp of the SYN of the connection `fd`, for which connect(2) was called at `begun`
/// ([`time::now`]). `None`: the kernel does not tell, or its time stamps are not random.
pub(crate) fn of_client(fd: i32, begun: u64) -> Option<u32> {
    let stamp = raw::getsockopt_int(fd, libc::IPPROTO_TCP, TCP_TIMESTAMP).ok()?.cast_unsigned();
    let now = time::now();
    let clock = (now / MILLISECOND) as u32;
    let moved = stamp.wrapping_sub(clock).min(clock.wrapping_sub(stamp)) > UNMOVED;
    let age = now.saturating_sub(begun) / MILLISECOND;
    moved.then(|| stamp.wrapping_sub(age as u32))
}

/// Server: whether the SYN of the accepted connection `fd` has the time stamp that a client computed. `known` keeps the
/// kernel's answer, and is 0 before the first call.
pub(crate) fn matches(fd: i32, known: &AtomicU64, stamp: u32) -> bool {
    of_server(fd, known).is_some_and(|own| is_close(own, stamp))
}

fn is_close(own: u32, stamp: u32) -> bool {
    own.wrapping_sub(stamp).wrapping_add(EARLIER) <= EARLIER + LATER
}

/// The time stamp of the SYN. The kernel is asked once, since it forgets the SYN then.
#[inline(never)]
fn of_server(fd: i32, known: &AtomicU64) -> Option<u32> {
    let mut word = known.load(Ordering::Relaxed);
    if word & ASKED == 0 {
        let mut syn = [0u8; 256];
        let mut len = size_of_val(&syn) as u32;
        let told = raw::getsockopt(fd, libc::IPPROTO_TCP, TCP_SAVED_SYN, syn.as_mut_ptr().cast(), &raw mut len);
        let stamp = told.ok().and_then(|()| parse(syn.get(..len as usize)?));
        word = ASKED | stamp.map_or(0, |stamp| STAMPED | u64::from(stamp));
        // Relaxed: the word stands for itself. Of two threads that ask at once, one is told nothing.
        known.fetch_max(word, Ordering::Relaxed);
    }
    (word & STAMPED != 0).then_some(word as u32)
}

/// The time stamp in the headers of a SYN: those of IP and of TCP.
fn parse(syn: &[u8]) -> Option<u32> {
    const TCP: u8 = libc::IPPROTO_TCP as u8;
    let first = *syn.first()?;
    let tcp = match first >> 4 {
        4 if *syn.get(9)? == TCP => syn.get(usize::from(first & 15) * 4..)?,
        // Extension headers are rare.
        6 if *syn.get(6)? == TCP => syn.get(40..)?,
        _ => return None,
    };
    let mut options = tcp.get(20..usize::from(*tcp.get(12)? >> 4) * 4)?;
    loop {
        match *options {
            [1, ref rest @ ..] => options = rest,
            [8, 10, a, b, c, d, ..] => return Some(u32::from_be_bytes([a, b, c, d])),
            [0, ..] | [] | [_] => return None,
            // A length below 2 would not lead on.
            [_, len, ..] => options = options.get(usize::from(len.max(2))..)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn syn_v4(options: &[u8]) -> Vec<u8> {
        let mut syn = vec![0u8; 40];
        syn[0] = 0x45;
        syn[9] = 6;
        syn[32] = (((20 + options.len()) / 4) << 4) as u8;
        syn.extend(options);
        syn
    }

    #[test]
    fn the_stamp_of_a_syn() {
        // MSS, SACK permitted, time stamps, no operation, window scale: what Linux sends.
        let options = [2, 4, 5, 180, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7];
        assert_eq!(parse(&syn_v4(&options)), Some(0x0102_0304));
        let mut v6 = vec![0u8; 40];
        (v6[0], v6[6]) = (0x60, 6);
        v6.extend(&syn_v4(&options)[20..]);
        assert_eq!(parse(&v6), Some(0x0102_0304));
        assert_eq!(parse(&syn_v4(&[2, 4, 5, 180])), None, "no time stamps");
        assert_eq!(parse(&syn_v4(&[0, 0, 0, 0])), None);
        assert_eq!(parse(&syn_v4(&[9, 0, 9, 0])), None, "a length that leads nowhere");
        assert_eq!(parse(&[]), None);
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(syn in proptest::collection::vec(any::<u8>(), 0..128)) {
            let _ = parse(&syn);
        }
    }

    #[test]
    fn stamps_that_are_close() {
        for (own, stamp, close) in [
            (100, 100, true),
            (0, 100, true),
            (0, 101, false),
            (200, 100, true),
            (201, 100, false),
            (1, u32::MAX, true),
        ] {
            assert_eq!(is_close(own, stamp), close, "{own} {stamp}");
        }
    }

    #[test]
    fn both_ends_of_a_connection_agree() {
        use std::os::fd::AsRawFd;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        keep(listener.as_raw_fd());
        let begun = time::now();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let known = AtomicU64::new(0);
        // The kernel of this machine may have been told not to use random time stamps.
        if let Some(stamp) = of_client(client.as_raw_fd(), begun) {
            assert!(!matches(server.as_raw_fd(), &known, stamp.wrapping_add(1000)));
            assert!(matches(server.as_raw_fd(), &known, stamp), "{stamp} {known:?}");
        }
    }
}
