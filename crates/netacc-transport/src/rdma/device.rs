//! What all queue pairs on one device share.

use crate::rdma::pipe::{RECEIVES, SENDS};
use crate::rdma::registered::Registered;
use alloc::vec::Vec;
use netacc_verbs::{CmId, CompChannel, Context, Cq, Error, Pd, Result, Sge};

extern crate alloc;

/// Pipes per completion queue.
const PIPES: usize = 128;
/// Send buffers per device.
const BUFFERS: usize = 32;

/// An RDMA device, opened.
#[derive(Debug)]
pub struct Device {
    context: Context,
    pd: Pd,
    channel: CompChannel,
    cqs: Vec<(Cq, usize)>,
    comp_vector: u32,
    /// Buffers for messages that are too long to go inline.
    pub sends: Sends,
}

impl Device {
    /// The device that `id` is on, with send buffers of `size` bytes. To be kept as long as the process lives.
    pub fn open(id: &CmId, size: usize, comp_vector: u32) -> Result<Device> {
        let context = id.context()?;
        let pd = Pd::alloc(&context)?;
        let channel = CompChannel::create(&context)?;
        channel.set_nonblocking(true)?;
        let sends = Sends::register(&pd, size)?;
        let comp_vector = comp_vector.min(context.num_comp_vectors().saturating_sub(1));
        context.raise_descriptors();
        Ok(Device { context, pd, channel, cqs: Vec::new(), comp_vector, sends })
    }

    /// Whether `id` is on this device.
    pub fn has(&self, id: &CmId) -> bool {
        id.is_on(&self.context)
    }

    /// Its domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Readable when an armed queue has something.
    pub fn fd(&self) -> i32 {
        self.channel.fd()
    }

    /// Takes the events of the channel: no queue is armed any more that had one. Whether there was any.
    pub fn take_events(&self) -> bool {
        let mut any = false;
        while let Ok(Some(_)) = self.channel.get_cq_event() {
            any = true;
        }
        any
    }

    /// Its completion queues.
    pub fn cqs(&self) -> impl Iterator<Item = &Cq> {
        self.cqs.iter().map(|(cq, _)| cq)
    }

    /// A completion queue with room for one more pipe, and its number.
    pub fn cq_for_one_more(&mut self) -> Result<(Cq, usize)> {
        if let Some((at, (cq, used))) = self.cqs.iter_mut().enumerate().find(|(_, (_, used))| *used < PIPES) {
            *used += 1;
            return Ok((cq.clone(), at));
        }
        // A queue that overflows is lost with all that use it: every send and receive may complete at once.
        let entries = PIPES * (usize::from(RECEIVES) + SENDS);
        let attr = self.context.query_device()?;
        let entries = entries.min(usize::try_from(attr.max_cqe).unwrap_or(entries));
        let at = self.cqs.len();
        let cq = Cq::create(&self.context, entries as u32, at as u64, Some(&self.channel), self.comp_vector)?;
        cq.req_notify(false)?;
        self.cqs.push((cq.clone(), 1));
        Ok((cq, at))
    }

    /// A pipe is gone from queue `at`.
    pub fn cq_has_one_less(&mut self, at: usize) {
        if let Some((_, used)) = self.cqs.get_mut(at) {
            *used = used.saturating_sub(1);
        }
    }

    /// What it has open.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> {
        [self.channel.fd(), self.context.cmd_fd(), self.context.async_fd()].into_iter()
    }

    /// Its name, for people.
    pub fn name(&self) -> &str {
        self.context.name()
    }
}

/// Registered buffers to send from.
#[derive(Debug)]
pub struct Sends {
    mr: Registered,
    size: usize,
    free: Vec<u16>,
}

impl Sends {
    fn register(pd: &Pd, size: usize) -> Result<Sends> {
        let mr = Registered::new(pd, size.checked_mul(BUFFERS).ok_or(Error::NoDevice)?)?;
        Ok(Sends { mr, size, free: (0..BUFFERS as u16).collect() })
    }

    /// Bytes of each buffer.
    pub fn size(&self) -> usize {
        self.size
    }

    /// A free buffer, and where it begins.
    pub fn take(&mut self) -> Option<(u16, *mut u8)> {
        let n = self.free.pop()?;
        Some((n, self.mr.as_ptr().wrapping_add(usize::from(n) * self.size)))
    }

    /// It is free again.
    pub fn give_back(&mut self, n: u16) {
        self.free.push(n);
    }

    /// Writes the beginning of a message into buffer `n`.
    pub(super) fn head(&self, n: u16, bytes: &[u8]) -> bool {
        self.mr.write(usize::from(n) * self.size, bytes)
    }

    /// The first `len` bytes of buffer `n`.
    pub(super) fn sge(&self, n: u16, len: usize) -> Option<Sge<'_>> {
        self.mr.sge(usize::from(n) * self.size, len)
    }
}
