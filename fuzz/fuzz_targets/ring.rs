//! Fuzzes both ends of a ring with a peer that writes arbitrary values: no chunk lies outside of the
//! windows, and no loop is endless. The input is a script of 10-byte steps.
#![no_main]

use core::ptr::NonNull;
use libfuzzer_sys::fuzz_target;
use netacc_ring::{
    Area, ReadySet, Consumer, ConsumerLine, LARGE, Producer, ProducerLine, SMALL, SideLine,
    Violation, notify_data, notify_room,
};
use std::sync::atomic::Ordering;

struct Windows {
    small: Box<[u8; SMALL]>,
    large: Box<[u8]>,
}

impl Windows {
    fn area(&mut self) -> Area {
        let p = |p: *mut u8| NonNull::new(p).unwrap();
        // SAFETY: the boxes have the windows' sizes and outlive the area.
        unsafe { Area::new(p(self.small.as_mut_ptr()), p(self.large.as_mut_ptr())) }
    }

    /// Checks that the chunk lies within a window, and accesses it so that the address sanitizer checks it too.
    fn check(&self, (p, len): (NonNull<u8>, usize), fill: bool) {
        let at = p.as_ptr() as usize;
        let inside =
            |base: *const u8, size: usize| at >= base as usize && at + len <= base as usize + size;
        assert!(len > 0);
        assert!(inside(self.small.as_ptr(), SMALL) || inside(self.large.as_ptr(), LARGE));
        // SAFETY: the assertions above say that the chunk lies within one of the windows.
        unsafe {
            if fill {
                core::ptr::write_bytes(p.as_ptr(), 0x5a, len);
            } else {
                core::ptr::read_volatile(p.as_ptr().add(len - 1));
            }
        }
    }
}

fuzz_target!(|script: &[u8]| {
    let mut w = Windows {
        small: Box::new([0; SMALL]),
        large: vec![0; LARGE].into_boxed_slice(),
    };
    let area = w.area();
    let (data, room, side) = (
        ProducerLine::default(),
        ConsumerLine::default(),
        SideLine::default(),
    );
    let (tx, rx) = (Producer::default(), Consumer::default());
    let ready_set = ReadySet::default();
    for step in script.chunks_exact(10).take(200) {
        let v = u64::from_le_bytes(step[2..10].try_into().unwrap());
        let n = (v % (300 * 1024)) as usize;
        let known = |id: u32| (id == 1).then_some(&ready_set);
        match step[0] % 16 {
            0 => data.head.store(v, Ordering::SeqCst),
            1 => data.layout.store(v, Ordering::SeqCst),
            2 => room.tail.store(v, Ordering::SeqCst),
            3 => room.layout.store(v, Ordering::SeqCst),
            4 => drop(data.head.fetch_add(v % 4096, Ordering::SeqCst)),
            5 => drop(room.tail.fetch_add(v % 4096, Ordering::SeqCst)),
            6..=8 => {
                if tx.prepare(&data, &room, n, |extent| extent.min(v as usize >> 20)).is_ok() {
                    let mut left = n;
                    while left > 0 {
                        let Ok(Some(c)) = tx.chunk(&area, &room, left) else {
                            break;
                        };
                        assert!(c.1 <= left);
                        w.check(c, true);
                        tx.advance(c.1);
                        left -= c.1;
                    }
                    tx.publish(&data);
                }
            }
            9..=11 => {
                let mut left = n;
                while left > 0 {
                    let Ok(Some(c)) = rx.chunk(&area, &room, &data, 0) else {
                        break;
                    };
                    w.check(c, false);
                    let len = c.1.min(left);
                    rx.advance(len);
                    left -= len;
                }
                rx.publish(&room);
            }
            12 => {
                let mut skip = 0;
                while skip < n {
                    let Ok(Some(c)) = rx.chunk(&area, &room, &data, skip) else {
                        break;
                    };
                    w.check(c, false);
                    skip += c.1;
                }
            }
            13 => {
                let (t, r) = (tx.resync(&data, &room), rx.resync(&room, &data));
                assert!(t.is_ok() || t == Err(Violation));
                assert!(r.is_ok() || r == Err(Violation));
            }
            14 => {
                side.subscriber.store(v as u32, Ordering::SeqCst);
                side.rx_waiter.store((v >> 32) as u32, Ordering::SeqCst);
                side.tx_waiter.store((v >> 16) as u32, Ordering::SeqCst);
                side.want_room.store(step[1].into(), Ordering::SeqCst);
                ready_set.arm();
                notify_data(&side, n, known);
                data.limit.store((v >> 8) as u32, Ordering::SeqCst);
                notify_room(&side, n, known, || rx.room_to_announce(&room, &data));
                assert!(ready_set.take().all(|slot| slot == n));
            }
            _ => {
                let _ = tx.writable(&room, || v & 1 == 0);
                let _ = tx.unread(&room);
                let _ = rx.available(&data);
                rx.readable(&data);
                tx.close_large(&data, &room);
            }
        }
    }
});
