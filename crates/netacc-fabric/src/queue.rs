//! Completion queues and queue pairs.

use crate::device::{Note, Page};
use crate::state::{Context, State, now};
use crate::trace::{self, Direction};
use crate::wire::{Frame, IMMEDIATE, Kind, SOLICITED};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use netacc_verbs::sys::*;
use std::collections::VecDeque;
use std::hash::Hasher;

/// The completions for which a queue is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Armed {
    #[default]
    Nothing,
    Solicited,
    All,
}

/// A completion queue.
#[derive(Default)]
pub struct CompQueue {
    pub entries: VecDeque<ibv_wc>,
    pub armed: Armed,
    /// The address of the queue's channel; 0: it has none.
    pub channel: usize,
    pub room: usize,
}

/// A message that was posted and has not completed.
pub struct Sent {
    pub wr_id: u64,
    pub signaled: bool,
    /// The registered memory of the message, and a hash of its bytes: a device may read it until the message completes,
    /// so it must not change before.
    memory: Vec<ibv_sge>,
    hash: u64,
}

/// A hash of bytes.
fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// A queue pair.
pub struct QueuePair {
    pub raw: *mut ibv_qp,
    /// The number of the pair's identifier.
    pub id: u64,
    /// The note of the pair, which is removed with it.
    pub _note: Note,
    pub state: u32,
    pub cap: ibv_qp_cap,
    pub all_signaled: bool,
    pub sends: VecDeque<Sent>,
    pub receives: VecDeque<(u64, ibv_sge)>,
}

/// A completion that is held back.
pub struct Held {
    /// When (ms of the monotonic clock) it is due.
    pub due: u64,
    cq: *mut ibv_cq,
    wc: ibv_wc,
    solicited: bool,
}

/// Whether both are completions of the same queue of the same queue pair, whose order is certain.
fn same_queue(a: &ibv_wc, b: &ibv_wc) -> bool {
    a.qp_num == b.qp_num && (a.opcode == IBV_WC_RECV) == (b.opcode == IBV_WC_RECV)
}

/// The page of the device that a completion queue is on.
fn page_of_queue(cq: *mut ibv_cq) -> &'static Page {
    // SAFETY: the caller passes a queue that is listed, so it and its context exist.
    unsafe { (*(*cq).context.cast::<Context>()).page }
}

impl State {
    /// Adds a completion to a queue, perhaps after a while.
    pub fn complete(&mut self, cq: *mut ibv_cq, wc: ibv_wc, solicited: bool) {
        let Some(queue) = self.queues.get(&(cq as usize)) else { return };
        let waiting = self.held.iter().filter(|held| held.cq == cq).count();
        if queue.entries.len() + waiting >= queue.room {
            eprintln!("netacc-fabric: a completion queue of {} entries overflowed", queue.room);
            std::process::abort();
        }
        let page = page_of_queue(cq);
        let before = self.held.iter().rfind(|held| same_queue(&held.wc, &wc)).map(|held| held.due);
        let late = match page.late_completions.load(Ordering::Relaxed) {
            0 => 0,
            longest => page.draw() % (longest + 1),
        };
        if late != 0 || before.is_some() {
            let due = (now() + late).max(before.unwrap_or(0));
            self.held.push(Held { due, cq, wc, solicited });
            self.wake();
        } else {
            self.put_completion(cq, wc, solicited);
        }
    }

    /// Adds the completions that are due to their queues.
    pub fn put_due_completions(&mut self) {
        let time = now();
        let (due, later) = core::mem::take(&mut self.held).into_iter().partition(|held| held.due <= time);
        self.held = later;
        let due: Vec<Held> = due;
        for held in due {
            // The queue pair may be gone, and its completions with it.
            if self.pairs.contains_key(&held.wc.qp_num) {
                self.put_completion(held.cq, held.wc, held.solicited);
            }
        }
    }

    /// Adds a completion to a queue, and an event to its channel if the queue is armed for such a completion.
    fn put_completion(&mut self, cq: *mut ibv_cq, wc: ibv_wc, solicited: bool) {
        let Some(queue) = self.queues.get_mut(&(cq as usize)) else { return };
        let page = page_of_queue(cq);
        let mut at = queue.entries.len();
        if page.mixed_completions.load(Ordering::Relaxed) != 0 {
            let first = queue.entries.iter().rposition(|entry| same_queue(entry, &wc)).map_or(0, |last| last + 1);
            at = first + (page.draw() % (at - first + 1) as u64) as usize;
        }
        queue.entries.insert(at, wc);
        let told = match queue.armed {
            Armed::Nothing => false,
            Armed::Solicited => solicited || wc.status != IBV_WC_SUCCESS,
            Armed::All => true,
        };
        if told {
            queue.armed = Armed::Nothing;
            let channel = queue.channel;
            if let Some(channel) = self.completions.get_mut(&channel) {
                channel.push(cq);
                let doubled = page.doubled_events.load(Ordering::Relaxed);
                if doubled != 0 && page.draw().is_multiple_of(doubled) {
                    channel.push(cq);
                }
            }
        }
    }

    /// Makes the queue pair fail: all posted requests complete with errors, the first send with `status`.
    pub fn flush(&mut self, number: u32, status: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        if pair.state == IBV_QPS_ERR {
            return;
        }
        pair.state = IBV_QPS_ERR;
        let sends: Vec<Sent> = pair.sends.drain(..).collect();
        let receives: Vec<(u64, ibv_sge)> = pair.receives.drain(..).collect();
        // SAFETY: the pair is listed, so its structure exists.
        let (send_cq, recv_cq) = unsafe { ((*pair.raw).send_cq, (*pair.raw).recv_cq) };
        let mut status = status;
        for sent in sends {
            self.complete(send_cq, failed(sent.wr_id, status, number), false);
            status = IBV_WC_WR_FLUSH_ERR;
        }
        for (wr_id, _) in receives {
            let wc = ibv_wc { opcode: IBV_WC_RECV, ..failed(wr_id, IBV_WC_WR_FLUSH_ERR, number) };
            self.complete(recv_cq, wc, false);
        }
    }

    /// Completes the sends of `count` further messages that the other side has received.
    pub fn acknowledged(&mut self, number: u32, count: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        // SAFETY: the pair is listed, so its structure exists, and so does its context.
        let (cq, page) = unsafe { ((*pair.raw).send_cq, (*(*pair.raw).context.cast::<Context>()).page) };
        let mut done = Vec::new();
        // SAFETY: the pair is listed, so its structure and its context exist.
        let context = unsafe { &*(*pair.raw).context.cast::<Context>() };
        for _ in 0..count {
            let sent = pair.sends.pop_front();
            if sent.as_ref().is_some_and(|sent| !context.is_unchanged(sent)) {
                eprintln!("netacc-fabric: a message was changed before it was sent completely");
                std::process::abort();
            }
            match sent {
                Some(sent) if sent.signaled && !Page::takes_one(&page.lost_completions) => {
                    done.push(sent.wr_id);
                }
                Some(_) => {}
                None => break,
            }
        }
        for wr_id in done {
            let wc = ibv_wc { wr_id, opcode: IBV_WC_SEND, qp_num: number, ..ibv_wc::default() };
            self.complete(cq, wc, false);
        }
    }

    /// Takes in a message. Returns false if there was no receive for it, or one that cannot hold it.
    pub fn received(&mut self, number: u32, frame: &Frame, body: &[u8]) -> bool {
        let Some(pair) = self.pairs.get_mut(&number) else { return false };
        if pair.state == IBV_QPS_ERR {
            return true;
        }
        // SAFETY: the pair is listed, so its structure exists, and so does its context.
        let (cq, context) = unsafe { ((*pair.raw).recv_cq, &*(*pair.raw).context.cast::<Context>()) };
        let (page, fits) =
            (context.page, pair.receives.front().is_some_and(|(_, sge)| sge.length as usize >= body.len()));
        if !fits {
            page.without_receive.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let Some((wr_id, sge)) = pair.receives.pop_front() else { return false };
        if !context.has(&sge) {
            let wc = ibv_wc { opcode: IBV_WC_RECV, ..failed(wr_id, IBV_WC_LOC_PROT_ERR, number) };
            self.complete(cq, wc, false);
            return false;
        }
        // SAFETY: the memory is registered and long enough, and the program does not use it before the completion.
        unsafe { core::ptr::copy_nonoverlapping(body.as_ptr(), sge.addr as *mut u8, body.len()) };
        page.receives.fetch_add(1, Ordering::Relaxed);
        page.bytes_received.fetch_add(body.len() as u64, Ordering::Relaxed);
        let immediate = frame.flags & IMMEDIATE != 0;
        let wc = ibv_wc {
            wr_id,
            opcode: IBV_WC_RECV,
            byte_len: body.len() as u32,
            imm_data: frame.immediate,
            qp_num: number,
            wc_flags: if immediate { IBV_WC_WITH_IMM } else { 0 },
            ..ibv_wc::default()
        };
        self.complete(cq, wc, frame.flags & SOLICITED != 0);
        true
    }

    /// Takes a request to send, or returns the errno with which it is refused.
    pub fn send(&mut self, number: u32, wr: &ibv_send_wr) -> Result<(), c_int> {
        let pair = self.pairs.get_mut(&number).ok_or(libc::EINVAL)?;
        let signaled = pair.all_signaled || wr.send_flags & IBV_SEND_SIGNALED != 0;
        // SAFETY: the queue pair is listed, so it and its context exist.
        let (send_cq, context) = unsafe { ((*pair.raw).send_cq, &*(*pair.raw).context.cast::<Context>()) };
        let page = context.page;
        if pair.state == IBV_QPS_ERR {
            self.complete(send_cq, failed(wr.wr_id, IBV_WC_WR_FLUSH_ERR, number), false);
            return Ok(());
        }
        if pair.state != IBV_QPS_RTS || (wr.opcode == IBV_WR_SEND_WITH_IMM && context.iwarp) {
            return Err(libc::EINVAL);
        }
        if pair.sends.len() >= pair.cap.max_send_wr as usize {
            return Err(libc::ENOMEM);
        }
        let (mut body, mut memory) = (Vec::new(), Vec::new());
        for at in 0..wr.num_sge {
            // SAFETY: the caller's list has `num_sge` entries.
            let sge = unsafe { &*wr.sg_list.offset(at as isize) };
            let inline = wr.send_flags & IBV_SEND_INLINE != 0;
            if inline && sge.length > pair.cap.max_inline_data {
                return Err(libc::EINVAL);
            }
            if !inline && !context.has(sge) {
                self.pairs.get_mut(&number).ok_or(libc::EINVAL)?.sends.push_front(Sent {
                    wr_id: wr.wr_id,
                    signaled: true,
                    memory: Vec::new(),
                    hash: hash_of(&[]),
                });
                self.flush(number, IBV_WC_LOC_PROT_ERR);
                return Ok(());
            }
            if !inline {
                memory.push(*sge);
            }
            // SAFETY: the memory is the caller's own, for an inline send, or registered.
            body.extend_from_slice(unsafe { core::slice::from_raw_parts(sge.addr as *const u8, sge.length as usize) });
        }
        let hash = hash_of(if memory.is_empty() { &[] } else { &body });
        pair.sends.push_back(Sent { wr_id: wr.wr_id, signaled, memory, hash });
        if Page::comes_due(&page.fail_after) {
            let id = pair.id;
            self.flush(number, IBV_WC_RETRY_EXC_ERR);
            self.hang_up(id);
            return Ok(());
        }
        let nothing = wr.opcode == IBV_WR_RDMA_WRITE;
        let flags = if wr.send_flags & IBV_SEND_SOLICITED != 0 { SOLICITED } else { 0 }
            | if wr.opcode == IBV_WR_SEND_WITH_IMM { IMMEDIATE } else { 0 };
        let kind = if nothing { Kind::Nothing } else { Kind::Send };
        if !nothing {
            page.sends.fetch_add(1, Ordering::Relaxed);
            page.bytes_sent.fetch_add(body.len() as u64, Ordering::Relaxed);
        }
        let frame = Frame { kind, flags, len: body.len() as u32, immediate: wr.imm_data, count: 0 };
        let id = pair.id;
        self.write(id, &frame, &body);
        // Only the thread notices when the message is not acknowledged, so it must not sleep without a time-out.
        if self.asleep {
            self.wake();
        }
        Ok(())
    }

    /// Sends a frame over the identifier's connection.
    pub fn write(&mut self, id: u64, frame: &Frame, body: &[u8]) {
        let Some(id) = self.ids.get(&id).copied() else { return };
        // SAFETY: the identifier is listed, so it exists, and the lock is held.
        let id = unsafe { &mut *id };
        trace::message(self.pair_of(id), Direction::Out, frame, body);
        let mut bytes = Vec::with_capacity(body.len() + crate::wire::HEAD);
        frame.encode(&mut bytes);
        bytes.extend_from_slice(body);
        id.output.extend(bytes);
        if id.pump().is_err() {
            id.due = now();
            self.wake();
        } else if !id.output.is_empty() {
            self.watch_output(id.number);
        }
    }
}

impl Context {
    /// Whether the memory of a message is still registered and has the same bytes as when it was posted.
    fn is_unchanged(&self, sent: &Sent) -> bool {
        let mut bytes = Vec::new();
        for sge in &sent.memory {
            if !self.has(sge) {
                return false;
            }
            // SAFETY: the memory is registered. The program may write to it only if it breaks the rule that this checks.
            bytes.extend_from_slice(unsafe { core::slice::from_raw_parts(sge.addr as *const u8, sge.length as usize) });
        }
        hash_of(&bytes) == sent.hash
    }

    /// Whether the memory lies within the region that its key names.
    fn has(&self, sge: &ibv_sge) -> bool {
        let (start, len) = (sge.addr as usize, sge.length as usize);
        self.regions.get(&sge.lkey).is_some_and(|(at, room)| start >= *at && start + len <= *at + *room)
    }
}

fn failed(wr_id: u64, status: u32, qp_num: u32) -> ibv_wc {
    ibv_wc { wr_id, status, qp_num, ..ibv_wc::default() }
}
