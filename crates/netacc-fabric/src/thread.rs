//! The thread that serves the connections and so does what hardware would do by itself.

use crate::channel::{LOWEST_FD, descriptor, raised};
use crate::device::{self, Page};
use crate::id::{Id, Phase};
use crate::state::{Context, Event, Locked, State, lock, now, page_of};
use crate::wire::{Frame, Kind};
use netacc_verbs::sys::*;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::inotify;
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;

/// The epoll data of the waker; identifiers have larger numbers.
const WAKER: u64 = 0;
/// The epoll data of the folder's inotify descriptor; identifiers have larger numbers.
const FOLDER: u64 = 1;
/// Time after which a queue pair with an unacknowledged message fails.
const UNACKNOWLEDGED_MS: u64 = 3000;
/// Time between two checks while anything is under way.
const LOOK_INTERVAL_MS: i64 = 20;

/// The thread's descriptors.
pub struct Server {
    epoll: OwnedFd,
    waker: OwnedFd,
    folder: Option<OwnedFd>,
}

impl Server {
    /// Wakes the thread, so that it checks for changes.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }
}

impl State {
    /// Starts the thread unless it runs already.
    pub fn serve(&mut self) -> rustix::io::Result<()> {
        if self.server.is_some() {
            return Ok(());
        }
        let epoll = raised(epoll::create(CreateFlags::CLOEXEC)?);
        // SAFETY: the descriptor is new, and nothing else owns it.
        let waker = raised(unsafe { OwnedFd::from_raw_fd(descriptor().ok_or(Errno::NOMEM)?) });
        epoll::add(&epoll, &waker, EventData::new_u64(WAKER), EventFlags::IN)?;
        let folder = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).map(raised).ok();
        if let Some(folder) = &folder {
            let _ = inotify::add_watch(
                folder,
                device::folder().join("devices").as_os_str().as_bytes(),
                inotify::WatchFlags::DELETE,
            );
            epoll::add(&epoll, folder, EventData::new_u64(FOLDER), EventFlags::IN)?;
        }
        self.server = Some(Server { epoll, waker, folder });
        // The thread inherits a mask that blocks all signals, so that the program's signals go to its own threads.
        let mut all = core::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = core::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: `all` and `before` are room for the sets; the calling thread's mask is restored below.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        }
        let started = std::thread::Builder::new().name("netacc-fabric".into()).spawn(run);
        // SAFETY: `before` was filled above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
        started.map(drop).map_err(|_| Errno::AGAIN)
    }

    /// Makes the thread watch an identifier's socket for these events.
    pub fn watch(&mut self, id: u64, events: EventFlags) {
        if let (Some(server), Some(id)) = (&self.server, self.ids.get(&id)) {
            // SAFETY: the identifier is listed, so it exists, and the lock is held.
            let id = unsafe { &**id };
            if let Some(socket) = &id.socket {
                let data = EventData::new_u64(id.number);
                if epoll::modify(&server.epoll, socket, data, events).is_err() {
                    let _ = epoll::add(&server.epoll, socket, data, events);
                }
            }
        }
    }

    /// Makes the thread send the output that could not be sent at once.
    pub fn watch_output(&mut self, id: u64) {
        self.watch(id, EventFlags::IN | EventFlags::OUT);
        self.wake();
    }

    /// Ends the connection at once, as a failure does.
    pub fn hang_up(&mut self, id: u64) {
        if let Some(id) = self.ids.get(&id) {
            // SAFETY: the identifier is listed, so it exists, and the lock is held.
            drop(unsafe { (**id).socket.take() });
        }
    }

    /// The number of an identifier's queue pair; 0 if it has none.
    pub fn pair_of(&self, id: &Id) -> u32 {
        // SAFETY: the pointer is null or leads to a pair that exists.
        unsafe { id.cm.qp.as_ref() }.map_or(0, |qp| qp.qp_num)
    }
}

fn run() {
    let (epoll, waker, folder) = {
        let state = lock();
        let Some(server) = &state.server else { return };
        let dup = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, LOWEST_FD);
        let (Ok(epoll), Ok(waker)) = (dup(server.epoll.as_fd()), dup(server.waker.as_fd())) else { return };
        (epoll, waker, server.folder.as_ref().and_then(|fd| dup(fd.as_fd()).ok()))
    };
    let mut buffer = [const { core::mem::MaybeUninit::<epoll::Event>::uninit() }; 64];
    loop {
        let wait = lock().wait();
        let timeout = wait.map(|ms| rustix::event::Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 });
        let found: Vec<(u64, EventFlags)> = match epoll::wait(&epoll, &mut buffer, timeout.as_ref()) {
            Ok((events, _)) => events.iter().map(|e| (e.data.u64(), e.flags)).collect(),
            Err(_) => Vec::new(),
        };
        let mut state = lock();
        for (number, flags) in found {
            match number {
                WAKER => drop(rustix::io::read(&waker, &mut [0u8; 8])),
                FOLDER => {
                    if let Some(folder) = &folder {
                        let mut names = [0u8; 4096];
                        let _ = rustix::io::read(folder, &mut names);
                        state.devices_changed();
                    }
                }
                id => state.on_events(id, flags),
            }
        }
        state.look();
    }
}

impl Locked {
    /// The time (ms) for which the thread sleeps; `None`: until a descriptor has an event.
    fn wait(&mut self) -> Option<i64> {
        let time = now();
        // SAFETY: the identifiers are listed, so they exist, and the lock is held.
        let due = self.ids.values().map(|id| unsafe { (**id).due }).filter(|due| *due != 0);
        if let Some(first) = due.chain(self.held.iter().map(|held| held.due)).min() {
            self.asleep = false;
            return Some((first.saturating_sub(time) as i64).min(LOOK_INTERVAL_MS));
        }
        let busy = !self.later.is_empty()
            || self.pairs.values().any(|p| !p.sends.is_empty())
            // SAFETY: the identifiers are listed, so they exist, and the lock is held.
            || self.ids.values().any(|id| unsafe { !(**id).output.is_empty() });
        self.asleep = !busy;
        busy.then_some(LOOK_INTERVAL_MS)
    }
}

impl State {
    /// Does the work that is due: delivers events and messages that were held back, sends output, and fails queue pairs
    /// whose messages have not been acknowledged for too long.
    fn look(&mut self) {
        let time = now();
        let (due, later) = self.later.drain(..).partition(|(when, _, _)| *when <= time);
        self.later = later;
        for (_, channel, event) in due {
            self.put(channel, event);
        }
        self.put_due_completions();
        let numbers: Vec<u64> = self.ids.keys().copied().collect();
        for number in numbers {
            let Some(id) = self.ids.get(&number).copied() else { continue };
            // SAFETY: the identifier is listed, so it exists, and the lock is held.
            let id = unsafe { &mut *id };
            if id.due != 0 && id.due <= time {
                id.due = 0;
                self.parse(number);
            }
            let Some(id) = self.ids.get(&number).copied() else { continue };
            // SAFETY: the identifier is listed, so it exists, and the lock is held.
            let id = unsafe { &mut *id };
            if !id.output.is_empty() && id.pump().is_ok() && id.output.is_empty() {
                self.watch(number, EventFlags::IN);
            }
            let pair = self.pair_of(id);
            match self.pairs.get(&pair) {
                Some(p) if !p.sends.is_empty() && p.state == IBV_QPS_RTS => {
                    if id.waiting == 0 {
                        id.waiting = time;
                    } else if time - id.waiting > UNACKNOWLEDGED_MS && !page_of(id).is_some_and(Page::retries_for_ever)
                    {
                        self.flush(pair, IBV_WC_RETRY_EXC_ERR);
                        self.hang_up(number);
                    }
                }
                _ => id.waiting = 0,
            }
        }
    }

    fn on_events(&mut self, number: u64, flags: EventFlags) {
        let Some(id) = self.ids.get(&number).copied() else { return };
        // SAFETY: the identifier is listed, so it exists, and the lock is held.
        let id = unsafe { &mut *id };
        match id.phase {
            Phase::Listening => self.take_in(id),
            Phase::Connecting => self.connected(id),
            _ => {
                if flags.contains(EventFlags::OUT) && id.pump().is_ok() && id.output.is_empty() {
                    self.watch(number, EventFlags::IN);
                }
                let over = id.pull();
                self.parse(number);
                if over {
                    self.over(number);
                }
            }
        }
    }

    /// Accepts the TCP connections at a listener, each of which will bring a connect request.
    fn take_in(&mut self, listener: &mut Id) {
        use rustix::net::{SocketFlags, acceptfrom_with};
        loop {
            let Some(socket) = &listener.socket else { return };
            let Ok((socket, peer)) = acceptfrom_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else {
                return;
            };
            let (Some(peer), Ok(local)) = (peer.and_then(|a| a.try_into().ok()), rustix::net::getsockname(&socket))
            else {
                continue;
            };
            let number = self.number();
            let mut id = Id::new(number, listener.cm.channel, listener.cm.context);
            id.phase = Phase::Expected;
            id.listener = listener.number;
            id.set_addresses(local.try_into().ok(), Some(peer));
            id.socket = Some(raised(socket));
            self.ids.insert(number, Box::into_raw(Box::new(id)));
            self.watch(number, EventFlags::IN);
        }
    }

    /// Handles that the TCP connection is made, or has failed.
    fn connected(&mut self, id: &mut Id) {
        let raw: *mut Id = id;
        let Some(socket) = &id.socket else { return };
        match rustix::net::sockopt::socket_error(socket) {
            Ok(Ok(())) => {
                id.phase = Phase::Requested;
                let request = core::mem::take(&mut id.request);
                let number = id.number;
                self.watch(number, EventFlags::IN);
                self.write(number, &Frame { len: request.len() as u32, ..Frame::bare(Kind::Request) }, &request);
            }
            Ok(Err(e)) | Err(e) => {
                id.phase = Phase::Ended;
                drop(id.socket.take());
                // 8 is IB_CM_REJ_INVALID_SERVICE_ID: nobody listens there.
                let (kind, status) = if e == Errno::CONNREFUSED {
                    (RDMA_CM_EVENT_REJECTED, 8)
                } else {
                    (RDMA_CM_EVENT_UNREACHABLE, -e.raw_os_error())
                };
                self.tell(raw, kind, status, &[], core::ptr::null_mut());
            }
        }
    }

    /// Finds the open devices whose files have been removed, and reports the removal.
    fn devices_changed(&mut self) {
        let gone: Vec<*mut Context> = self
            .contexts
            .iter()
            .copied()
            // SAFETY: the context is listed, so it exists, and the lock is held.
            .filter(|c| unsafe { !(**c).removed && !device::exists(&(**c).name()) })
            .collect();
        for context in gone {
            // SAFETY: the context is listed, so it exists, and the lock is held.
            let device = unsafe { &mut *context };
            device.removed = true;
            let element = ibv_async_element { port_num: 0 };
            device.says.push(ibv_async_event { element, event_type: IBV_EVENT_DEVICE_FATAL });
            let on_it: Vec<*mut Id> =
                // SAFETY: the identifier is listed, so it exists, and the lock is held.
                self.ids.values().copied().filter(|id| unsafe { (**id).cm.verbs } == context.cast()).collect();
            for raw in on_it {
                // SAFETY: the identifier is listed, so it exists, and the lock is held.
                let id = unsafe { &mut *raw };
                drop(id.socket.take());
                self.flush(self.pair_of(id), IBV_WC_WR_FLUSH_ERR);
                id.phase = Phase::Ended;
                self.tell(raw, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, &[], core::ptr::null_mut());
            }
        }
    }
}

/// Whether an event is about this identifier or listener.
pub fn is_about(event: &*mut Event, id: *mut Id) -> bool {
    // SAFETY: the event is on a channel, so it exists.
    unsafe { (**event).cm.id.cast::<Id>() == id || (**event).cm.listen_id.cast::<Id>() == id }
}

/// Frees events that the program has acknowledged or will not get.
pub fn forget(events: Vec<*mut Event>) {
    for event in events {
        // SAFETY: the event came from a box and is on no channel any more.
        drop(unsafe { Box::from_raw(event) });
    }
}
