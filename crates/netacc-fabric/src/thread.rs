//! The thread that serves the connections: what hardware would do by itself.

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

/// Numbers of what is not an identifier.
const WAKER: u64 = 0;
const FOLDER: u64 = 1;
/// Time after which a message that is not acknowledged counts as lost for good.
const UNACKNOWLEDGED_MS: u64 = 3000;
/// Time between two looks while anything is under way.
const LOOK_INTERVAL_MS: i64 = 20;

/// The thread's descriptors.
pub struct Server {
    epoll: OwnedFd,
    waker: OwnedFd,
    folder: Option<OwnedFd>,
}

impl Server {
    /// Has the thread look again.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }
}

impl State {
    /// Starts the thread unless it is there.
    pub fn serve(&mut self) -> rustix::io::Result<()> {
        if self.server.is_some() {
            return Ok(());
        }
        let epoll = raised(epoll::create(CreateFlags::CLOEXEC)?);
        // SAFETY: just made.
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
        // No signal of the program is for this thread.
        let mut all = core::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = core::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: room for both sets; the calling thread's mask is put back.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        }
        let started = std::thread::Builder::new().name("netacc-fabric".into()).spawn(run);
        // SAFETY: filled above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
        started.map(drop).map_err(|_| Errno::AGAIN)
    }

    /// Has the thread watch an identifier's socket.
    pub fn watch(&mut self, id: u64, events: EventFlags) {
        if let (Some(server), Some(id)) = (&self.server, self.ids.get(&id)) {
            // SAFETY: listed, so it exists; the lock is held.
            let id = unsafe { &**id };
            if let Some(socket) = &id.socket {
                let data = EventData::new_u64(id.number);
                if epoll::modify(&server.epoll, socket, data, events).is_err() {
                    let _ = epoll::add(&server.epoll, socket, data, events);
                }
            }
        }
    }

    /// Has the thread send what could not be sent at once.
    pub fn watch_output(&mut self, id: u64) {
        self.watch(id, EventFlags::IN | EventFlags::OUT);
        self.wake();
    }

    /// Ends the connection at once, as a failure does.
    pub fn hang_up(&mut self, id: u64) {
        if let Some(id) = self.ids.get(&id) {
            // SAFETY: listed, so it exists; the lock is held.
            drop(unsafe { (**id).socket.take() });
        }
    }

    /// The queue pair of an identifier; 0: none.
    pub fn pair_of(&self, id: &Id) -> u32 {
        // SAFETY: null or a pair that exists.
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
    /// Time (ms) to sleep; `None`: until something happens.
    fn wait(&mut self) -> Option<i64> {
        let busy = !self.later.is_empty()
            || self.pairs.values().any(|p| !p.sends.is_empty())
            // SAFETY: listed, so they exist; the lock is held.
            || self.ids.values().any(|id| unsafe { (**id).due != 0 || !(**id).output.is_empty() });
        self.asleep = !busy;
        busy.then_some(LOOK_INTERVAL_MS)
    }
}

impl State {
    /// What is due: events and messages that were kept back, messages that nobody has acknowledged for too long.
    fn look(&mut self) {
        let time = now();
        let (due, later) = self.later.drain(..).partition(|(when, _, _)| *when <= time);
        self.later = later;
        for (_, channel, event) in due {
            self.put(channel, event);
        }
        let numbers: Vec<u64> = self.ids.keys().copied().collect();
        for number in numbers {
            let Some(id) = self.ids.get(&number).copied() else { continue };
            // SAFETY: listed, so it exists; the lock is held.
            let id = unsafe { &mut *id };
            if id.due != 0 && id.due <= time {
                id.due = 0;
                self.parse(number);
            }
            let Some(id) = self.ids.get(&number).copied() else { continue };
            // SAFETY: listed, so it exists; the lock is held.
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
        // SAFETY: listed, so it exists; the lock is held.
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

    /// Requests have come, or what may become one.
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

    /// The TCP connection is made, or cannot be.
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
                // 8: nobody listens there (IB_CM_REJ_INVALID_SERVICE_ID).
                let (kind, status) = if e == Errno::CONNREFUSED {
                    (RDMA_CM_EVENT_REJECTED, 8)
                } else {
                    (RDMA_CM_EVENT_UNREACHABLE, -e.raw_os_error())
                };
                self.tell(raw, kind, status, &[], core::ptr::null_mut());
            }
        }
    }

    /// Devices may have been removed.
    fn devices_changed(&mut self) {
        let gone: Vec<*mut Context> = self
            .contexts
            .iter()
            .copied()
            // SAFETY: listed, so it exists; the lock is held.
            .filter(|c| unsafe { !(**c).removed && !device::exists(&(**c).name()) })
            .collect();
        for context in gone {
            // SAFETY: listed, so it exists; the lock is held.
            let device = unsafe { &mut *context };
            device.removed = true;
            let element = ibv_async_element { port_num: 0 };
            device.says.push(ibv_async_event { element, event_type: IBV_EVENT_DEVICE_FATAL });
            let on_it: Vec<*mut Id> =
                // SAFETY: listed, so it exists; the lock is held.
                self.ids.values().copied().filter(|id| unsafe { (**id).cm.verbs } == context.cast()).collect();
            for raw in on_it {
                // SAFETY: listed, so it exists; the lock is held.
                let id = unsafe { &mut *raw };
                drop(id.socket.take());
                self.flush(self.pair_of(id), IBV_WC_WR_FLUSH_ERR);
                id.phase = Phase::Ended;
                self.tell(raw, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, &[], core::ptr::null_mut());
            }
        }
    }
}

/// What waits on a channel for an identifier.
pub fn is_about(event: &*mut Event, id: *mut Id) -> bool {
    // SAFETY: events on channels exist.
    unsafe { (**event).cm.id.cast::<Id>() == id || (**event).cm.listen_id.cast::<Id>() == id }
}

/// Frees events that nobody will take.
pub fn forget(events: Vec<*mut Event>) {
    for event in events {
        // SAFETY: taken off their channel.
        drop(unsafe { Box::from_raw(event) });
    }
}
