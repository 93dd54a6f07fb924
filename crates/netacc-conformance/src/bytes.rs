//! Bytes, in order and in pieces.

use crate::ends::*;
use netacc_sys::Errno;
use netacc_transport::{Iov, Shut};

/// Messages of all sizes arrive whole and in order, both ways.
pub fn bytes_arrive_in_order<R: Rig>() {
    for size in [1, 2, 100, 2047, 2048, 2049, 4096, 65_536, 262_143, 262_144, 262_145, 264_192, 264_193, 1 << 20] {
        let p = R::pair();
        // Twice each way: from fresh and from used windows.
        for (from, to) in [(&p.a, &p.b), (&p.b, &p.a), (&p.a, &p.b), (&p.b, &p.a)] {
            let data = pattern(size, size);
            let (mut sent, mut got) = (0, Vec::new());
            while got.len() < size {
                if sent < size {
                    match write(&**from, &data[sent..]) {
                        Ok(n) => sent += n,
                        Err(e) => assert_eq!(e, Errno::AGAIN),
                    }
                }
                let part = get(&**to, 1 << 20, false).unwrap();
                assert!(!part.is_empty());
                got.extend(part);
            }
            assert!(got == data, "{size} bytes were garbled");
            assert_eq!(read(&**to, 1), AGAIN);
        }
    }
}

/// A stream of small messages with a long one now and then arrives message by message.
pub fn many_small_messages<R: Rig>() {
    let p = R::pair();
    // Long enough to go through every change of windows, up and down again.
    let mut at = 0;
    for i in 0..6000 / R::PART {
        let n = if i % 2500 == 10 { 150_000 } else { 1 + i % 900 };
        assert_eq!(write(&*p.a, &pattern(at, n)), Ok(n));
        assert!(get(&*p.b, n + 1, false).unwrap() == pattern(at, n), "message {i}");
        at += n;
    }
}

/// A connection takes no byte once it is full, and takes some again after the reader has made room.
pub fn full_then_room_again<R: Rig>() {
    let p = R::pair();
    for round in 0..3 {
        let n = fill(&*p.a);
        assert!(n > 0);
        assert_eq!(write(&*p.a, &[0]), AGAIN, "full, and takes a byte");
        assert_eq!(ready(&*p.a), 0);
        assert_eq!(ready(&*p.b), IN | OUT, "the other direction is free");
        assert!(p.b.unread() == n || !R::DIRECT);
        assert!(p.a.unsent() <= n);
        let mut drained = 0;
        while ready(&*p.a) & OUT == 0 {
            let late = if R::DIRECT { n / 4 + 4096 } else { n };
            assert!(drained <= late, "{drained} of {n} bytes are drained and there is no room");
            assert!(get(&*p.b, 1024, false).unwrap() == pattern(drained, 1024));
            drained += 1024;
        }
        assert!(
            drained >= n / 5 || !R::DIRECT,
            "room after {drained} of {n} bytes: a writer would be woken for little"
        );
        let more = write(&*p.a, &pattern(0, R::HELD)).unwrap();
        assert!(more > 0 && more < R::HELD, "a part");
        let mut rest = 0;
        while let Ok(k) = read(&*p.b, 1 << 20) {
            rest += k;
        }
        assert_eq!(rest, n - drained + more, "round {round}");
        assert_eq!((p.b.unread(), p.a.unsent()), (0, 0));
        assert_eq!((ready(&*p.a), ready(&*p.b)), (OUT, OUT));
    }
}

/// A write from several buffers and a read into several ones use them in order, and the cursor says how far.
pub fn vectored<R: Rig>() {
    let p = R::pair();
    let parts: Vec<Vec<u8>> = [3, 0, 2048, 1, 0, 70_000, 5].iter().map(|n| pattern(*n, *n)).collect();
    let all: Vec<u8> = parts.concat();
    let vecs: Vec<_> = parts.iter().map(|b| iovec(b)).collect();
    #[allow(unsafe_code)]
    // SAFETY: `vecs` and its buffers outlive the call.
    let mut src = unsafe { Iov::new(vecs.as_ptr(), vecs.len()) }.unwrap();
    assert_eq!(p.a.try_write(&mut src), Ok(all.len()));
    assert_eq!(src.left(), 0);
    let mut bufs = [vec![0u8; 1], vec![], vec![0u8; 5000], vec![0u8; 100_000]];
    let vecs: Vec<_> =
        bufs.iter_mut().map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() }).collect();
    for peek in [true, false] {
        #[allow(unsafe_code)]
        // SAFETY: `vecs` and its buffers outlive the call; nothing else uses the buffers meanwhile.
        let mut dst = unsafe { Iov::new(vecs.as_ptr(), vecs.len()) }.unwrap();
        assert_eq!(p.b.try_read(&mut dst, peek), Ok(all.len()));
        assert!(bufs.concat()[..all.len()] == all[..]);
        for b in &mut bufs {
            b.fill(0);
        }
    }
    assert_eq!(p.b.unread(), 0);
    // A full ring takes a part of a vectored write, and the cursor says which.
    let big = vec![7u8; R::HELD / 3];
    let vecs = [iovec(&big), iovec(&big), iovec(&big)];
    #[allow(unsafe_code)]
    // SAFETY: `vecs` and its buffers outlive the call; nothing else uses the buffers meanwhile.
    let mut src = unsafe { Iov::new(vecs.as_ptr(), vecs.len()) }.unwrap();
    let mut n = p.a.try_write(&mut src).unwrap();
    while !R::DIRECT
        && let Ok(more) = p.a.try_write(&mut src)
    {
        n += more;
    }
    assert!(n < 3 * big.len());
    assert_eq!(src.left(), 3 * big.len() - n);
    assert_eq!(p.a.try_write(&mut src), AGAIN);
    assert_eq!(src.left(), 3 * big.len() - n, "EAGAIN moves no cursor");
}

/// A look at bytes leaves them to be read.
pub fn peek_leaves_the_bytes<R: Rig>() {
    let p = R::pair();
    assert_eq!(get(&*p.b, 1, true), Err(Errno::AGAIN));
    // Across the border of two windows.
    for n in [2000, 3000, 100_000] {
        assert_eq!(write(&*p.a, &pattern(n, n)), Ok(n));
    }
    let all = [pattern(2000, 2000), pattern(3000, 3000), pattern(100_000, 100_000)].concat();
    for n in [1, 2000, 2048, 2049, 5001, 105_000, 200_000] {
        assert!(get(&*p.b, n, true).unwrap() == all[..n.min(all.len())], "peek of {n}");
        assert_eq!(p.b.unread(), all.len());
    }
    assert!(get(&*p.b, 2100, false).unwrap() == all[..2100]);
    assert!(get(&*p.b, 200_000, true).unwrap() == all[2100..]);
    assert!(get(&*p.b, 200_000, false).unwrap() == all[2100..]);
    assert_eq!(get(&*p.b, 1, true), Err(Errno::AGAIN));
}

/// A write or a read of no bytes does nothing.
pub fn nothing_asked<R: Rig>() {
    let p = R::pair();
    assert_eq!(write(&*p.a, &[]), Ok(0));
    assert_eq!(ready(&*p.b), OUT, "an empty write is no data");
    assert_eq!(write(&*p.a, &[1]), Ok(1));
    assert_eq!(read(&*p.b, 0), Ok(0));
    assert_eq!(p.b.unread(), 1);
}

/// A reader that does not read holds up its own writer and nobody else.
pub fn a_full_connection_stops_no_other<R: Rig>() {
    let full = R::pair();
    let mut n = fill(&*full.a);
    let others = [R::pair(), R::pair()];
    for round in 0..2 {
        for p in &others {
            for (from, to) in [(&p.a, &p.b), (&p.b, &p.a)] {
                // More than a window, in all.
                for at in 0..20 {
                    assert_eq!(write(&**from, &pattern(at, 20_000)), Ok(20_000));
                    assert!(get(&**to, 30_000, false).unwrap() == pattern(at, 20_000), "round {round}");
                }
            }
        }
        // A transport may tell its writer late of room that there was from the beginning, but no more comes of it.
        n += fill_from(&*full.a, n);
        assert!(n < R::HELD, "{n} bytes in round {round}");
        assert_eq!(ready(&*full.b), IN | OUT);
    }
    // Its other direction is one more.
    assert_eq!((write(&*full.b, b"abc"), read(&*full.a, 9)), (Ok(3), Ok(3)));
    let [first, second] = others;
    first.b.close(true);
    assert_eq!((read(&*first.a, 9), read(&*first.a, 9)), (RESET, Ok(0)));
    second.b.close(false);
    assert_eq!((read(&*second.a, 9), ready(&*second.a)), (Ok(0), IN | OUT | RDHUP));
    full.a.shutdown(Shut::Write);
    assert_eq!(drain(&*full.b), (n, Ok(0)));
}
