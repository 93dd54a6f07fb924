//! The end of a stream and of a connection.

use crate::ends::*;
use netacc_sys::Errno;
use netacc_transport::Shut;

/// One direction ends, and the other one goes on.
pub fn half_close<R: Rig>() {
    let p = R::pair();
    assert_eq!(write(&*p.a, b"abc"), Ok(3));
    p.a.shutdown(Shut::Write);
    assert_eq!(ready(&*p.a), OUT);
    assert_eq!((write(&*p.a, b"x"), write(&*p.a, b"")), (PIPE, PIPE));
    assert_eq!(p.a.take_error(), 0);
    assert_eq!(read(&*p.a, 9), AGAIN);
    // The other end reads the rest, then the end, again and again.
    assert_eq!(ready(&*p.b), IN | OUT | RDHUP);
    assert_eq!(p.b.unread(), 3);
    assert_eq!(get(&*p.b, 2, false).unwrap(), b"ab");
    assert_eq!(get(&*p.b, 9, true).unwrap(), b"c");
    assert_eq!((read(&*p.b, 9), read(&*p.b, 9), read(&*p.b, 9)), (Ok(1), Ok(0), Ok(0)));
    assert_eq!(ready(&*p.b), IN | OUT | RDHUP);
    // And its own direction goes on, however much.
    for _ in 0..50 {
        assert_eq!(write(&*p.b, &pattern(1, 20_000)), Ok(20_000));
        assert!(get(&*p.a, 30_000, false).unwrap() == pattern(1, 20_000));
    }
    assert_eq!(write(&*p.b, b"last"), Ok(4));
    p.b.shutdown(Shut::Write);
    assert_eq!((ready(&*p.a), ready(&*p.b)), (IN | OUT | HUP | RDHUP, IN | OUT | HUP | RDHUP));
    assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (Ok(4), Ok(0)));
    assert_eq!((write(&*p.a, b"x"), write(&*p.b, b"x")), (PIPE, PIPE));
    assert_eq!((p.a.take_error(), p.b.take_error()), (0, 0));
}

/// A side that ends its reading reads the end, and the peer is not told.
pub fn shutdown_of_reading<R: Rig>() {
    let p = R::pair();
    p.a.shutdown(Shut::Read);
    assert_eq!(ready(&*p.a), IN | OUT | RDHUP);
    assert_eq!(ready(&*p.b), OUT, "the peer is not told");
    assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (Ok(0), Ok(0)));
    // What comes nevertheless can be read.
    assert_eq!(write(&*p.b, b"abc"), Ok(3));
    assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (Ok(3), Ok(0)));
    assert_eq!(write(&*p.a, b"x"), Ok(1));
    assert_eq!(read(&*p.b, 9), Ok(1));
    p.a.shutdown(Shut::Write);
    assert_eq!(ready(&*p.a), IN | OUT | HUP | RDHUP);
    assert_eq!(write(&*p.a, b"x"), PIPE);
}

/// A side ends both directions, and what the peer still writes is answered by a reset.
pub fn shutdown_of_both<R: Rig>() {
    let p = R::pair();
    p.a.shutdown(Shut::Both);
    assert_eq!(ready(&*p.a), IN | OUT | HUP | RDHUP);
    assert_eq!((read(&*p.a, 9), write(&*p.a, b"x")), (Ok(0), PIPE));
    assert_eq!(ready(&*p.b), IN | OUT | RDHUP);
    assert_eq!(read(&*p.b, 9), Ok(0));
    assert_eq!(write(&*p.b, b"x"), Ok(1), "it goes out, and is answered by a reset");
    assert_eq!(ready(&*p.b), DEAD);
    assert_eq!(read(&*p.b, 9), Ok(0));
    assert_eq!((write(&*p.b, b"x"), write(&*p.b, b"x")), (PIPE, PIPE));
}

/// A side closes, and the peer reads the rest and then the end, and learns by its second write.
pub fn clean_close<R: Rig>() {
    for sent in [0usize, 3, 200_000] {
        // Reading on.
        let p = R::pair();
        assert_eq!(write(&*p.b, &pattern(0, sent)), Ok(sent));
        p.b.close(false);
        assert_eq!(ready(&*p.a), IN | OUT | RDHUP);
        assert_eq!((p.a.unread(), p.a.take_error()), (sent, 0));
        assert!(get(&*p.a, 300_000, false).unwrap() == pattern(0, sent));
        assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (Ok(0), Ok(0)));
        assert_eq!(write(&*p.a, b""), Ok(0));
        assert_eq!(ready(&*p.a), IN | OUT | RDHUP);
        // Writing on: the first goes out and is answered by a reset.
        let p = R::pair();
        assert_eq!(write(&*p.b, &pattern(0, sent)), Ok(sent));
        p.b.close(false);
        assert_eq!(ready(&*p.a), IN | OUT | RDHUP);
        assert_eq!(write(&*p.a, b"hello"), Ok(5));
        assert_eq!(ready(&*p.a), DEAD);
        assert_eq!((write(&*p.a, b"x"), write(&*p.a, b"")), (PIPE, PIPE));
        assert!(get(&*p.a, 300_000, false).unwrap() == pattern(0, sent), "data that had come stays");
        assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (Ok(0), Ok(0)));
        // The error can be asked for once instead.
        let p = R::pair();
        p.b.close(false);
        assert_eq!(ready(&*p.a), IN | OUT | RDHUP);
        assert_eq!(write(&*p.a, b"hello"), Ok(5));
        assert_eq!((p.a.take_error(), p.a.take_error()), (Errno::PIPE.0, 0));
        assert_eq!(write(&*p.a, b"x"), PIPE);
    }
}

/// How a test makes the other end reset the connection.
pub fn resets<R: Rig>() -> Vec<(&'static str, Pair)> {
    let unread = R::pair();
    assert_eq!(write(&*unread.a, b"x"), Ok(1));
    unread.b.close(false);
    let abort = R::pair();
    abort.b.close(true);
    let half = R::pair();
    half.a.shutdown(Shut::Write);
    half.b.close(true);
    vec![("closed with unread data", unread), ("aborted", abort), ("aborted after our end", half)]
}

/// A reset is reported by one call, whichever comes first.
pub fn a_reset_is_told_once<R: Rig>() {
    for (how, p) in resets::<R>() {
        assert_eq!(ready(&*p.a), DEAD, "{how}");
        assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (RESET, Ok(0)), "{how}");
        assert_eq!(ready(&*p.a) & (IN | OUT | HUP | RDHUP), DEAD & !ERR, "{how}");
        assert_eq!((write(&*p.a, b"x"), write(&*p.a, b"")), (PIPE, PIPE), "{how}");
        assert_eq!(p.a.take_error(), 0);
    }
    for (how, p) in resets::<R>() {
        assert_eq!((write(&*p.a, b"x"), write(&*p.a, b"x")), (RESET, PIPE), "{how}");
        assert_eq!(read(&*p.a, 9), Ok(0), "{how}");
    }
    for (how, p) in resets::<R>() {
        assert_eq!(get(&*p.a, 9, true), Err(Errno::CONNRESET), "{how}");
        assert_eq!(read(&*p.a, 9), Ok(0), "{how}");
    }
    for (how, p) in resets::<R>() {
        assert_eq!((p.a.take_error(), p.a.take_error()), (Errno::CONNRESET.0, 0), "{how}");
        assert_eq!((read(&*p.a, 9), write(&*p.a, b"x")), (Ok(0), PIPE), "{how}");
    }
}

/// Bytes that arrived before a reset are read before it is reported.
pub fn data_comes_before_a_reset<R: Rig>() {
    let p = R::pair();
    assert_eq!((write(&*p.a, b"x"), write(&*p.b, b"abc")), (Ok(1), Ok(3)));
    p.b.close(false);
    assert_eq!(ready(&*p.a), DEAD);
    assert_eq!(p.a.unread(), 3);
    assert_eq!(get(&*p.a, 9, true).unwrap(), b"abc");
    assert_eq!((read(&*p.a, 9), read(&*p.a, 9), read(&*p.a, 9)), (Ok(3), RESET, Ok(0)));
}

/// After the end of a stream a reset is a broken pipe, unless both directions had ended.
pub fn a_reset_after_the_end<R: Rig>() {
    for how in 0..2 {
        let p = R::pair();
        p.b.shutdown(Shut::Write);
        assert_eq!(ready(&*p.a), IN | OUT | RDHUP);
        p.b.close(true);
        assert_eq!(ready(&*p.a), DEAD);
        if how == 0 {
            assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (Ok(0), Ok(0)));
            assert_eq!(write(&*p.a, b"x"), PIPE);
        } else {
            assert_eq!((p.a.take_error(), p.a.take_error()), (Errno::PIPE.0, 0));
        }
    }
}

/// The reset is sent before anybody has looked at the end.
pub fn a_reset_on_the_heels_of_the_end<R: Rig>() {
    for sent in [0usize, 3, 3000] {
        let p = R::pair();
        assert_eq!(write(&*p.b, &pattern(0, sent)), Ok(sent));
        p.b.shutdown(Shut::Write);
        p.b.close(true);
        assert_eq!(ready(&*p.a), DEAD);
        assert!(get(&*p.a, 4000, false).unwrap() == pattern(0, sent), "what was sent before the end stays");
        assert_eq!((read(&*p.a, 9), read(&*p.a, 9)), (Ok(0), Ok(0)));
        assert_eq!((p.a.take_error(), p.a.take_error()), (Errno::PIPE.0, 0));
        assert_eq!(write(&*p.a, b"x"), PIPE);
    }
    let p = R::pair();
    assert_eq!(write(&*p.b, b"abc"), Ok(3));
    p.b.close(true);
    assert_eq!((read(&*p.a, 9), read(&*p.a, 9), read(&*p.a, 9)), (Ok(3), RESET, Ok(0)));
}

/// First the one direction ends, then the other one, then the connection.
pub fn an_end_in_pieces<R: Rig>() {
    let p = R::pair();
    p.b.shutdown(Shut::Write);
    assert_eq!((read(&*p.a, 9), ready(&*p.a)), (Ok(0), IN | OUT | RDHUP));
    assert_eq!((write(&*p.a, b"abc"), read(&*p.b, 9)), (Ok(3), Ok(3)));
    p.b.shutdown(Shut::Read);
    assert_eq!(ready(&*p.a), IN | OUT | RDHUP);
    // Nobody is there to read: that write is answered by a reset, and the end of the stream came before.
    assert_eq!(write(&*p.a, b"x"), Ok(1));
    assert_eq!(ready(&*p.a), DEAD);
    assert_eq!((read(&*p.a, 9), p.a.take_error(), write(&*p.a, b"x")), (Ok(0), Errno::PIPE.0, PIPE));
    // The same by a close.
    let p = R::pair();
    p.b.shutdown(Shut::Write);
    assert_eq!((write(&*p.a, b"abc"), read(&*p.b, 9)), (Ok(3), Ok(3)));
    p.b.close(false);
    assert_eq!((write(&*p.a, b"x"), ready(&*p.a)), (Ok(1), DEAD));
    assert_eq!((write(&*p.a, b"x"), read(&*p.a, 9)), (PIPE, Ok(0)));
    // What was not read makes it a reset.
    let p = R::pair();
    p.b.shutdown(Shut::Write);
    assert_eq!(write(&*p.a, b"abc"), Ok(3));
    p.b.close(false);
    assert_eq!((ready(&*p.a), write(&*p.a, b"x"), read(&*p.a, 9)), (DEAD, PIPE, Ok(0)));
    // Both ends were sent: that is the end.
    let p = R::pair();
    p.b.shutdown(Shut::Write);
    p.a.shutdown(Shut::Write);
    assert_eq!(ready(&*p.a), IN | OUT | HUP | RDHUP);
    p.b.close(true);
    assert_eq!((read(&*p.a, 9), write(&*p.a, b"x"), p.a.take_error()), (Ok(0), PIPE, 0));
}

/// The end waits behind bytes for which the reader has no room.
pub fn an_end_behind_a_full_reader<R: Rig>() {
    for close in [false, true] {
        let p = R::pair();
        let n = fill(&*p.a);
        if close {
            p.a.close(false);
        } else {
            p.a.shutdown(Shut::Write);
            assert_eq!(write(&*p.a, b"x"), PIPE);
        }
        assert_eq!(ready(&*p.b) & (IN | OUT | ERR | HUP), IN | OUT);
        assert_eq!(drain(&*p.b), (n, Ok(0)));
        assert_eq!((ready(&*p.b), read(&*p.b, 9)), (IN | OUT | RDHUP, Ok(0)));
        // The other direction is as open as before.
        assert_eq!(write(&*p.b, b"abc"), Ok(3));
        if close {
            assert_eq!((ready(&*p.b), write(&*p.b, b"x")), (DEAD, PIPE));
        } else {
            assert_eq!((read(&*p.a, 9), p.b.take_error()), (Ok(3), 0));
        }
    }
    // A reset does not wait: what has arrived is read, in order, and the rest is lost.
    let p = R::pair();
    let n = fill(&*p.a);
    p.a.close(true);
    assert_eq!(ready(&*p.b), DEAD);
    let (got, end) = drain(&*p.b);
    assert!(got <= n && end == RESET, "{got} of {n} bytes, then {end:?}");
    assert_eq!((read(&*p.b, 9), write(&*p.b, b"x")), (Ok(0), PIPE));
}

/// A connection without bytes is writable and nothing else.
pub fn idle_readiness<R: Rig>() {
    let p = R::pair();
    for e in [&p.a, &p.b] {
        assert_eq!(ready(&**e), OUT);
        assert_eq!((e.unread(), e.unsent(), e.take_error()), (0, 0, 0));
        assert_eq!(read(&**e, 1), AGAIN);
    }
    assert_eq!(write(&*p.a, b"x"), Ok(1));
    assert_eq!((ready(&*p.a), ready(&*p.b)), (OUT, IN | OUT));
    assert_eq!(read(&*p.b, 1), Ok(1));
    assert_eq!((ready(&*p.a), ready(&*p.b)), (OUT, OUT));
}
