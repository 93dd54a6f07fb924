//! The thread that serves the connections: what hardware would do by itself.

use crate::device::{self, Page};
use crate::queue::descriptor;
use crate::state::{Context, Event, Id, Locked, Phase, State, lock, now, page_of};
use crate::trace::{self, Direction};
use crate::wire::{Frame, HEAD, Kind};
use core::sync::atomic::Ordering;
use netacc_verbs::sys::*;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::inotify;
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;

/// Numbers of what is not an identifier.
const WAKER: u64 = 0;
const FOLDER: u64 = 1;
/// Descriptors of this library are at least this, out of the way of programs that count on small numbers.
const LOWEST: i32 = 600;
/// Time (ms) after which a message that is not acknowledged counts as lost for good.
const GIVE_UP: u64 = 3000;
/// Time (ms) between two looks while anything is under way.
const LOOK: i64 = 20;

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

/// Gives a descriptor a number that is out of the way.
pub fn raised(fd: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, LOWEST).unwrap_or(fd)
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
        let dup = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, LOWEST);
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
        busy.then_some(LOOK)
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
                    } else if time - id.waiting > GIVE_UP && !page_of(id).is_some_and(Page::retries_for_ever) {
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

    /// Deals with the frames that have come.
    fn parse(&mut self, number: u64) {
        loop {
            let Some(raw) = self.ids.get(&number).copied() else { return };
            // SAFETY: listed, so it exists; the lock is held.
            let id = unsafe { &mut *raw };
            if id.due > now() {
                return;
            }
            let frame = match Frame::decode(&id.input) {
                Ok(Some(frame)) if id.input.len() >= HEAD + frame.len as usize => frame,
                Ok(_) => break,
                Err(()) => return self.over(number),
            };
            let rest = id.input.split_off(HEAD + frame.len as usize);
            let body = core::mem::replace(&mut id.input, rest).split_off(HEAD);
            if !self.handle(raw, &frame, &body) {
                return;
            }
        }
        self.acknowledge(number);
    }

    /// Tells the other side how many of its messages have come.
    fn acknowledge(&mut self, number: u64) {
        let Some(id) = self.ids.get(&number).copied() else { return };
        // SAFETY: listed, so it exists; the lock is held.
        let id = unsafe { &mut *id };
        if id.received != id.acknowledged {
            let late = page_of(id).map_or(0, |page| page.late_acks.load(Ordering::Relaxed));
            if late != 0 && id.ack_due == 0 {
                id.ack_due = now() + late;
            }
            if id.ack_due > now() {
                id.due = id.ack_due;
                return;
            }
            id.ack_due = 0;
            id.acknowledged = id.received;
            let frame = Frame { count: id.received, ..Frame::bare(Kind::Ack) };
            self.write(number, &frame, &[]);
        }
    }

    /// One frame. False: the rest has to wait, or there is nothing any more.
    fn handle(&mut self, raw: *mut Id, frame: &Frame, body: &[u8]) -> bool {
        // SAFETY: listed, so it exists; the lock is held.
        let id = unsafe { &mut *raw };
        let (number, pair) = (id.number, self.pair_of(id));
        let none = core::ptr::null_mut();
        // Messages may be kept back; those have their line when they count as arrived.
        if !matches!(frame.kind, Kind::Send | Kind::Nothing) {
            trace::message(pair, Direction::In, frame);
        }
        match (frame.kind, id.phase) {
            (Kind::Request, Phase::Expected) => {
                let Some(listener) = self.ids.get(&id.listener).copied() else {
                    self.over(number);
                    return false;
                };
                id.phase = Phase::Asked;
                id.cm.verbs = self.context_of(id.local.map(|a| a.ip())).cast();
                if id.cm.verbs.is_null() {
                    self.over(number);
                    return false;
                }
                let data = id.padded(body, 56);
                self.tell(raw, RDMA_CM_EVENT_CONNECT_REQUEST, 0, &data, listener);
            }
            (Kind::Accept, Phase::Requested) => {
                id.phase = Phase::Connected;
                if let Some(pair) = self.pairs.get_mut(&pair) {
                    pair.state = IBV_QPS_RTS;
                }
                let data = id.padded(body, 196);
                self.write(number, &Frame::bare(Kind::Ready), &[]);
                self.tell(raw, RDMA_CM_EVENT_ESTABLISHED, 0, &data, none);
            }
            (Kind::Reject, Phase::Requested) => {
                id.phase = Phase::Ended;
                let data = id.padded(body, 148);
                // 28: by the program (IB_CM_REJ_CONSUMER_DEFINED).
                self.tell(raw, RDMA_CM_EVENT_REJECTED, 28, &data, none);
            }
            (Kind::Ready, Phase::Accepted) => {
                id.phase = Phase::Connected;
                self.tell(raw, RDMA_CM_EVENT_ESTABLISHED, 0, &[], none);
            }
            (Kind::Send | Kind::Nothing, Phase::Connected) => {
                let late = page_of(id).map_or(0, |page| page.late_messages.load(Ordering::Relaxed));
                if late != 0 && !id.kept_back {
                    // Put back in front, and looked at again when it is due.
                    let mut again = Vec::new();
                    frame.encode(&mut again);
                    again.extend_from_slice(body);
                    again.append(&mut id.input);
                    id.input = again;
                    (id.kept_back, id.due) = (true, now() + late);
                    return false;
                }
                id.kept_back = false;
                trace::message(pair, Direction::In, frame);
                if frame.kind == Kind::Send && page_of(id).is_some_and(|page| Page::comes_due(&page.fail_receive_after))
                {
                    id.received = id.received.wrapping_add(1);
                    self.write(number, &Frame { count: id.received, ..Frame::bare(Kind::Ack) }, &[]);
                    self.flush(pair, IBV_WC_WR_FLUSH_ERR);
                    self.hang_up(number);
                    return false;
                }
                if frame.kind == Kind::Send && !self.received(pair, frame, body) {
                    self.write(number, &Frame::bare(Kind::NoReceive), &[]);
                    self.flush(pair, IBV_WC_WR_FLUSH_ERR);
                    return false;
                }
                id.received = id.received.wrapping_add(1);
            }
            (Kind::Ack, Phase::Connected | Phase::Accepted) => {
                let news = frame.count.wrapping_sub(id.confirmed);
                (id.confirmed, id.waiting) = (frame.count, 0);
                self.acknowledged(pair, news);
            }
            (Kind::NoReceive, Phase::Connected) => self.flush(pair, IBV_WC_RNR_RETRY_EXC_ERR),
            (Kind::Disconnect, Phase::Connected | Phase::Accepted) => self.disconnected(raw),
            _ => {
                self.over(number);
                return false;
            }
        }
        true
    }

    /// The other side has disconnected, or is gone.
    fn disconnected(&mut self, raw: *mut Id) {
        // SAFETY: listed, so it exists; the lock is held.
        let id = unsafe { &mut *raw };
        let context = id.cm.verbs.cast::<Context>();
        // SAFETY: connected, so it is on an open device.
        if id.left || unsafe { context.as_ref() }.is_some_and(|c| c.iwarp) {
            // On InfiniBand the receives of a side stay until it disconnects as well.
            self.flush(self.pair_of(id), IBV_WC_WR_FLUSH_ERR);
        }
        if !id.told {
            id.told = true;
            self.tell(raw, RDMA_CM_EVENT_DISCONNECTED, 0, &[], core::ptr::null_mut());
        }
    }

    /// The TCP connection has ended.
    fn over(&mut self, number: u64) {
        let Some(raw) = self.ids.get(&number).copied() else { return };
        // SAFETY: the identifier is listed, so it exists; the lock is held.
        let id = unsafe { &mut *raw };
        drop(id.socket.take());
        let none = core::ptr::null_mut();
        match id.phase {
            Phase::Expected => {
                self.ids.remove(&number);
                // SAFETY: no program knows of it.
                drop(unsafe { Box::from_raw(raw) });
            }
            Phase::Requested => {
                id.phase = Phase::Ended;
                self.tell(raw, RDMA_CM_EVENT_UNREACHABLE, -libc::ECONNRESET, &[], none);
            }
            Phase::Accepted | Phase::Connected => {
                self.disconnected(raw);
                id.phase = Phase::Ended;
            }
            _ => id.phase = Phase::Ended,
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

impl Id {
    /// Sends what there is to send, as far as the connection takes it.
    pub fn pump(&mut self) -> Result<(), ()> {
        if page_of(self).is_some_and(|page| page.silent.load(Ordering::Relaxed) != 0) {
            return Ok(());
        }
        while !self.output.is_empty() {
            let Some(socket) = &self.socket else {
                self.output.clear();
                return Ok(());
            };
            let (first, _) = self.output.as_slices();
            match rustix::net::send(socket, first, rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT)
            {
                Ok(n) => drop(self.output.drain(..n)),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                // The thread finds the end when it reads.
                Err(_) => {
                    self.output.clear();
                    return Err(());
                }
            }
        }
        Ok(())
    }

    /// Takes in what has come. True: the connection is over.
    fn pull(&mut self) -> bool {
        let mut buffer = [0u8; 65536];
        loop {
            let Some(socket) = &self.socket else { return false };
            match rustix::net::recv(socket, &mut buffer[..], rustix::net::RecvFlags::DONTWAIT) {
                Ok((0, _)) => return true,
                Ok((n, _)) => self.input.extend_from_slice(&buffer[..n]),
                Err(Errno::AGAIN) => return false,
                Err(Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }

    /// Private data as the other side sees it: InfiniBand's has the length of its field.
    fn padded(&self, data: &[u8], field: usize) -> Vec<u8> {
        let context = self.cm.verbs.cast::<Context>();
        // SAFETY: null or an open context.
        let exact = unsafe { context.as_ref() }.is_some_and(|c| c.iwarp);
        let mut data = data.to_vec();
        if !exact && data.len() < field {
            data.resize(field, 0);
        }
        data
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
