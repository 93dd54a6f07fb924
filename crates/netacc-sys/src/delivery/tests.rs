use super::*;

const SIGNAL: i32 = FIRST_QUEUED + 9;
static GOT: [AtomicU32; 8192] = [const { AtomicU32::new(0) }; 8192];
static LENGTH: AtomicUsize = AtomicUsize::new(0);
/// Number of signals that the handler sends to its own thread.
static IN_HANDLER: AtomicU32 = AtomicU32::new(0);
static SENT: AtomicU32 = AtomicU32::new(0);

fn send() {
    let mut words = [0u64; WORDS];
    words[0] = SIGNAL as u64;
    words[1] = u64::from(libc::SI_QUEUE.cast_unsigned());
    words[2] = u64::from(raw::getpid());
    words[3] = u64::from(SENT.fetch_add(1, Ordering::Relaxed));
    let info = Info(words);
    let args = [raw::getpid() as usize, raw::gettid() as usize, SIGNAL as usize, (&raw const info) as usize, 0, 0];
    // SAFETY: a siginfo of the kernel's size.
    assert_eq!(unsafe { raw::syscall6(libc::SYS_rt_tgsigqueueinfo, args) }, 0);
}

extern "C" fn entry(signal: i32, info: *mut Info, context: *mut c_void) {
    let arrival = Arrival { signal, info, context, entry: 0, restarts: false, resets: false };
    // SAFETY: this is the handler.
    if unsafe { arrived(&arrival) } == Verdict::Run {
        // SAFETY: the frame's siginfo.
        let info = unsafe { &*info };
        assert_eq!((info.errno(), info.code()), (0, libc::SI_QUEUE));
        GOT[LENGTH.fetch_add(1, Ordering::Relaxed)].store(info.low(3), Ordering::Relaxed);
        if IN_HANDLER.load(Ordering::Relaxed) > 0 {
            IN_HANDLER.fetch_sub(1, Ordering::Relaxed);
            send();
        }
    }
}

/// Signals that come inside and outside, from the thread and from its handlers, in any order.
#[test]
fn kept_signals_are_delivered_once_and_in_order() {
    std::thread::spawn(|| {
        // SAFETY: a zeroed action is valid, and the handler is one with a siginfo, for a signal of this test alone.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = entry as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(SIGNAL, &raw const action, core::ptr::null_mut()), 0);
        }
        let line = thread_state::own_line().unwrap();
        let mut seed = 7u64;
        let mut draw = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % n
        };
        for _ in 0..1000 {
            IN_HANDLER.store(draw(3) as u32, Ordering::Relaxed);
            let inside = thread_state::enter();
            let before = LENGTH.load(Ordering::Relaxed);
            (0..draw(4)).for_each(|_| send());
            let is_blocked = (draw(3) == 0).then(signals::Blocked::all);
            (0..draw(3)).for_each(|_| send());
            drop(is_blocked);
            assert_eq!(LENGTH.load(Ordering::Relaxed), before, "none runs inside");
            thread_state::leave(inside);
            if draw(2) == 0 {
                send();
            }
            deliver(line);
            let sent = SENT.load(Ordering::Relaxed);
            assert_eq!(LENGTH.load(Ordering::Relaxed), sent as usize, "each has run once");
            assert!(!line.has_kept() && KEPT.iter().all(|place| !place.is_whole(this_thread())));
        }
        let in_order = |n: u32| GOT[n as usize].load(Ordering::Relaxed) == n;
        assert!((0..SENT.load(Ordering::Relaxed)).all(in_order));
    })
    .join()
    .unwrap();
}

/// A signal that was kept and is ignored by the time of its delivery takes no place any more.
#[test]
fn a_signal_that_is_ignored_by_then_is_forgotten() {
    extern "C" fn never(signal: i32, info: *mut Info, context: *mut c_void) {
        let arrival = Arrival { signal, info, context, entry: 0, restarts: false, resets: false };
        // SAFETY: this is the handler.
        assert_eq!(unsafe { arrived(&arrival) }, Verdict::Return);
    }
    const OTHER: i32 = libc::SIGURG;
    std::thread::spawn(|| {
        let line = thread_state::own_line().unwrap();
        // SAFETY: a zeroed action is valid, and the handler is one with a siginfo, for a signal of this test alone.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = never as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(OTHER, &raw const action, core::ptr::null_mut()), 0);
        }
        let inside = thread_state::enter();
        raw::raise(OTHER);
        assert!(line.is_due());
        thread_state::leave(inside);
        // SAFETY: as above.
        unsafe { libc::signal(OTHER, libc::SIG_IGN) };
        deliver(line);
        assert!(!line.has_kept() && KEPT.iter().all(|place| !place.is_whole(this_thread())));
    })
    .join()
    .unwrap();
}
