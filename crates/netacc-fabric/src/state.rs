//! The state of the process: its devices, identifiers and queue pairs, under one lock.

use crate::channel::Channel;
use crate::device::Page;
use crate::id::Id;
use crate::queue::{CompQueue, Held, QueuePair};
use crate::thread::Server;
use netacc_verbs::sys::*;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, Once};

/// An open device. It begins with the `ibv_context` that the program sees.
#[repr(C)]
pub struct Context {
    pub verbs: ibv_context,
    pub device: Device,
    pub page: &'static Page,
    /// The asynchronous events of the device.
    pub says: Channel<ibv_async_event>,
    /// The address and the length of each memory region, by its local key.
    pub regions: HashMap<u32, (usize, usize)>,
    /// Whether librdmacm has opened the device for its identifiers; such a context stays open until the process ends.
    pub is_cm: bool,
    pub iwarp: bool,
    /// Whether the device's file is gone.
    pub removed: bool,
}

/// A device. It begins with the `ibv_device` that the program sees.
#[repr(C)]
pub struct Device {
    pub verbs: ibv_device,
}

/// An event of the connection manager, with its private data. It begins with the `rdma_cm_event` that the program sees.
#[repr(C)]
pub struct Event {
    pub cm: rdma_cm_event,
    pub data: Vec<u8>,
}

/// The state of the process.
#[derive(Default)]
pub struct State {
    pub contexts: Vec<*mut Context>,
    pub ids: HashMap<u64, *mut Id>,
    pub channels: HashMap<usize, Channel<*mut Event>>,
    pub completions: HashMap<usize, Channel<*mut ibv_cq>>,
    pub queues: HashMap<usize, CompQueue>,
    pub pairs: HashMap<u32, QueuePair>,
    /// Events that are held back: when (ms) each is due, its channel, and the event.
    pub later: Vec<(u64, usize, *mut Event)>,
    /// Completions that are held back, the first one first.
    pub held: Vec<Held>,
    pub next: u64,
    /// Whether the thread sleeps without a time-out, until a descriptor has an event.
    pub asleep: bool,
    pub server: Option<Server>,
}

// SAFETY: the pointers lead to objects that this library has allocated, and are followed only under the lock.
unsafe impl Send for State {}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// The guard of the lock while it is held across a fork.
struct AcrossFork(core::cell::UnsafeCell<Option<MutexGuard<'static, Option<State>>>>);

// SAFETY: only the thread that forks accesses the cell, in the handlers of one fork, while it holds the lock.
unsafe impl Sync for AcrossFork {}

static HELD: AcrossFork = AcrossFork(core::cell::UnsafeCell::new(None));

extern "C" fn before_fork() {
    let guard = STATE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // SAFETY: this thread forks and holds the lock, so no other thread accesses the cell.
    unsafe { *HELD.0.get() = Some(guard) };
}

extern "C" fn after_fork_in_parent() {
    // SAFETY: this thread forks and holds the lock, so no other thread accesses the cell.
    drop(unsafe { (*HELD.0.get()).take() });
}

extern "C" fn after_fork_in_child() {
    // SAFETY: this thread forks and holds the lock, so no other thread accesses the cell.
    if let Some(mut guard) = unsafe { (*HELD.0.get()).take() } {
        // A device's objects belong to the process that made them. The child closes its copies of the sockets and
        // leaves the memory alone, since wrappers that the child inherited may still point into it.
        if let Some(mut old) = guard.take() {
            for id in old.ids.values() {
                // SAFETY: the identifier is listed, so it exists, and the lock is held.
                drop(unsafe { (**id).socket.take() });
            }
            drop(old.server.take());
            core::mem::forget(old);
        }
    }
}

/// The state of this process, locked.
pub struct Locked(MutexGuard<'static, Option<State>>);

impl core::ops::Deref for Locked {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_ref().unwrap_or_else(|| unreachable!())
    }
}

impl core::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        self.0.get_or_insert_with(State::default)
    }
}

/// Takes the lock.
pub fn lock() -> Locked {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the three functions live as long as the library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child)) };
    });
    let mut guard = STATE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    guard.get_or_insert_with(State::default);
    Locked(guard)
}

/// The time of the monotonic clock, in milliseconds.
pub fn now() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1000 + t.tv_nsec as u64 / 1_000_000
}

impl State {
    /// A number that nothing else has.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        // Programs see the numbers of queue pairs and may give 0 and 1 a special meaning, as InfiniBand does.
        self.next + 16
    }

    /// Puts an event on the channel of the identifier, or of the listener if that is not null.
    pub fn tell(&mut self, id: *mut Id, kind: core::ffi::c_uint, status: i32, data: &[u8], listener: *mut Id) {
        // SAFETY: the caller passes an identifier that exists, and null or a listener that exists.
        let (channel, page) = unsafe {
            let about = if listener.is_null() { id } else { listener };
            ((*about).cm.channel as usize, page_of(&*id))
        };
        let late = match page {
            Some(page) if kind == RDMA_CM_EVENT_ESTABLISHED => {
                page.late_established.load(core::sync::atomic::Ordering::Relaxed)
            }
            _ => 0,
        };
        let mut event = Box::new(Event {
            cm: rdma_cm_event {
                id: id.cast(),
                listen_id: listener.cast(),
                event: kind,
                status,
                conn: rdma_conn_param {
                    private_data: core::ptr::null(),
                    private_data_len: 0,
                    responder_resources: 1,
                    initiator_depth: 1,
                    flow_control: 1,
                    retry_count: 7,
                    rnr_retry_count: 7,
                    srq: 0,
                    qp_num: 0,
                },
            },
            data: data.to_vec(),
        });
        if !event.data.is_empty() {
            event.cm.conn.private_data = event.data.as_ptr().cast();
            event.cm.conn.private_data_len = event.data.len() as u8;
        }
        let event = Box::into_raw(event);
        if late != 0 {
            self.later.push((now() + late, channel, event));
            self.wake();
        } else {
            self.put(channel, event);
        }
    }

    /// Puts an event on a channel; the event is dropped if the channel no longer exists.
    pub fn put(&mut self, channel: usize, event: *mut Event) {
        match self.channels.get_mut(&channel) {
            Some(channel) => channel.push(event),
            // SAFETY: `tell` made the event from a box, and the program has not got it.
            None => drop(unsafe { Box::from_raw(event) }),
        }
    }

    /// Wakes the thread, so that it checks for changes.
    pub fn wake(&mut self) {
        self.asleep = false;
        if let Some(server) = &self.server {
            server.wake();
        }
    }
}

/// The page of the device that an identifier is on.
pub fn page_of(id: &Id) -> Option<&'static Page> {
    let context = id.cm.verbs.cast::<Context>();
    // SAFETY: the pointer is null or leads to an open context, which lives as long as identifiers are on it.
    unsafe { context.as_ref() }.map(|context| context.page)
}
