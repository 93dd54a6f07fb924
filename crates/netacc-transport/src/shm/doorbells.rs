//! How threads are woken over a link: channels and the doorbells of both sides.

use crate::bells;
use crate::shm::link::{BELLS, Link};
use crate::shm::segment::CHANNELS;
use core::sync::atomic::Ordering;
use netacc_ring::{Channel, Ring};
use netacc_stats::{Counter, page};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::private;
use netacc_wire::Message;

impl Link {
    /// Our channel `n`.
    #[inline]
    pub fn my_channel(&self, n: u32) -> Option<&'static Channel> {
        self.segment()?.channel(self.side(), n)
    }

    /// Takes a channel with its doorbell. `EMFILE` when all are in use.
    pub fn open_channel(&self) -> Result<u32> {
        // In the child of a fork the channels are the parent's.
        if self.is_inherited() {
            return Err(Errno::PIPE);
        }
        let _g = self.lock.lock();
        let used = self.channels.load(Ordering::Relaxed);
        let n = (!used).trailing_zeros();
        if n as usize >= CHANNELS {
            return Err(Errno::MFILE);
        }
        if self.bell_fd(n) < 0 {
            self.make_bell(n)?;
        }
        self.channels.store(used | 1 << n, Ordering::Relaxed);
        if let Some(c) = self.my_channel(n) {
            let _ = c.take();
        }
        Ok(n)
    }

    /// Gives a channel back; its doorbell is kept for the next user.
    pub fn close_channel(&self, n: u32) {
        let _g = self.lock.lock();
        // In the child of a fork the channel is the parent's, which may sleep on it.
        if let Some(c) = self.my_channel(n)
            && !self.is_inherited()
        {
            c.disarm();
        }
        self.channels.fetch_and(!(1 << n), Ordering::Relaxed);
    }

    /// The descriptor of our doorbell `id`, or -1.
    #[inline]
    pub fn bell_fd(&self, id: u32) -> i32 {
        self.bell(id).map_or(0, |b| b.mine.load(Ordering::Relaxed)) - 1
    }

    fn make_bell(&self, id: u32) -> Result<i32> {
        let fd = bells::create()?;
        // In the child of a fork it is for threads of the child. A peer that may not have it wakes us by messages.
        let sent = if self.is_inherited() {
            Ok(())
        } else {
            match self.hand_bell(id, fd) {
                Ok(true) => Ok(()),
                Ok(false) if !self.trust_is_mutual() => Ok(()),
                Ok(false) => self.send(Message::Doorbell { id }, Some(fd)),
                Err(e) => Err(e),
            }
        };
        match (sent, self.bell(id)) {
            (Ok(()), Some(bell)) => bell.mine.store(fd + 1, Ordering::Relaxed),
            (r, _) => {
                private::close(fd);
                return Err(r.err().unwrap_or(Errno::MFILE));
            }
        }
        Ok(fd)
    }

    /// Borrows a doorbell for a thread that goes to sleep.
    pub fn borrow_bell(&self) -> Result<u32> {
        let _g = self.lock.lock();
        for (i, w) in self.idle_bells.iter().enumerate() {
            let word = w.load(Ordering::Relaxed);
            if word != 0 {
                w.store(word & (word - 1), Ordering::Relaxed);
                return Ok(i as u32 * 64 + word.trailing_zeros());
            }
        }
        let id = self.next_bell.load(Ordering::Relaxed);
        if id as usize >= BELLS {
            return Err(Errno::MFILE);
        }
        self.make_bell(id)?;
        self.next_bell.store(id + 1, Ordering::Relaxed);
        Ok(id)
    }

    /// Gives a borrowed doorbell back.
    pub fn return_bell(&self, id: u32) {
        let _g = self.lock.lock();
        if self.bell_fd(id) >= 0
            && let Some(w) = self.idle_bells.get(id as usize / 64)
        {
            w.fetch_or(1 << (id % 64), Ordering::Relaxed);
        }
    }

    /// Rings the peer's doorbells that a publication asked for.
    #[inline]
    pub fn ring(&'static self, ring: Ring) {
        for id in [ring.channel, ring.thread] {
            if id != 0 {
                self.ring_peer(id);
            }
        }
    }

    /// Rings a doorbell whose eventfd we have; false if we have not.
    pub(crate) fn ring_known(&self, id: u32) -> bool {
        match self.peer_bell(id) {
            Some(fd) => {
                page().count(Counter::Doorbells);
                bells::ring(fd);
                true
            }
            None => false,
        }
    }

    #[cold]
    pub(crate) fn ring_peer(&'static self, id: u32) {
        page().count(Counter::Doorbells);
        if let Some(fd) = self.peer_bell(id) {
            bells::ring(fd);
            return;
        }
        // Its announcement is still in the control socket, or the peer's doorbells may not be written to.
        self.service();
        match self.peer_bell(id) {
            Some(fd) => bells::ring(fd),
            None => {
                if self.send(Message::Wake { id }, None).is_err()
                    && let Some(cell) =
                        self.segment().and_then(|s| s.header().kick_all.get(self.side().other().index()))
                {
                    // The socket is full, so the peer will be awake to read it; then the peer rings them all.
                    cell.store(1, Ordering::SeqCst);
                }
            }
        }
    }

    /// The peer's doorbell, if we have it and may write to it: a write to an eventfd of another user's process may
    /// block.
    fn peer_bell(&self, id: u32) -> Option<i32> {
        let fd = self.bell(id)?.peers.load(Ordering::Acquire);
        (fd != 0 && self.trusts_peer()).then_some(fd - 1)
    }

    /// Remembers a doorbell the peer sent.
    pub(crate) fn learn_bell(&self, id: u32, fd: i32) {
        let old = self.bell(id).map_or(fd + 1, |b| b.peers.swap(fd + 1, Ordering::AcqRel));
        if old != 0 {
            private::close(old - 1);
        }
    }

    /// Rings our own doorbell, on the peer's word or for a thread of ours.
    pub fn ring_own(&self, id: u32) {
        let fd = self.bell_fd(id);
        if fd >= 0 {
            bells::ring(fd);
        }
    }

    /// Rings every doorbell of ours.
    pub(crate) fn ring_all_own(&self) {
        for id in 0..BELLS as u32 {
            self.ring_own(id);
        }
    }
}
