//! Start of the runtime at a process's first TCP socket: reads the configuration and opens the stats page.

use crate::config_file::ConfigFile;
use crate::operator::requests;
use crate::runtime::Runtime;
use crate::{go, host, own_calls, process_mode, runtime};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::CStr;
use netacc_conf::{Config, Diagnostic};
use netacc_stats::{OFF_BEFORE_THE_PAGE, Reason};
use netacc_sys::errno::Errno;
use netacc_sys::{AtomicRef, Lock, SharedCell, libc_kind, lock_rank, own_limit, raw, reserved_fds};
use netacc_transport::shm::strangers::Offence;
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Smallest number of descriptors that the library must be able to have, or else the process stays on TCP: that of a limit of
/// 40 which cannot be raised.
const DESCRIPTORS: usize = 10;

static STARTING: Lock<{ lock_rank::STARTUP }> = Lock::new();

/// Number of the thread that is making the runtime; 0: none.
static STARTER: SharedCell<u32> = SharedCell::<u32>::new(0);

/// What the exported functions prepare for a process that has TCP sockets.
static PREPARE: AtomicRef<fn()> = AtomicRef::none();

/// To be called when the library is loaded: `prepare` is called once, before the process has its first TCP socket.
pub fn before_first_socket(prepare: &'static fn()) {
    PREPARE.store(Some(prepare));
}

/// Calls what [`before_first_socket`] was given.
fn prepare() {
    if let Some(prepare) = PREPARE.load() {
        prepare();
    }
}

/// The runtime, made now if need be.
#[inline]
pub fn ensure() -> Option<&'static Runtime> {
    runtime::get().or_else(start)
}

#[cold]
fn start() -> Option<&'static Runtime> {
    if !libc_kind::is_known() {
        return None;
    }
    // A signal handler that opens a socket while its own thread is making the runtime must not wait for that thread;
    // other threads wait until it is done.
    let me = raw::gettid();
    if STARTER.get() == me {
        return None;
    }
    let _guard = STARTING.lock();
    if let Some(rt) = runtime::get() {
        return Some(rt);
    }
    STARTER.set(me);
    prepare();
    let pid = raw::getpid();
    let mut comm = [0u8; 64];
    let comm = command_name(&mut comm, pid == me);
    let file = ConfigFile::new(env(netacc_conf::ENV_CONFIG_FILE).filter(|v| !v.is_empty()), comm);
    let (mut conf, diags, unread) = read_conf(&file);
    let mut rules = core::mem::take(&mut conf.rules);
    file.keep_own(&mut rules);
    // A program that may open so few files needs all of them.
    let has_room = own_limit::room() >= DESCRIPTORS;
    if has_room {
        open_page(comm, pid);
    }
    let seed = netacc_sys::time::now() ^ u64::from(pid) << 32;
    let rt = Runtime::new(conf, file, seed);
    rt.load(&rules);
    let own = own_calls::examine(rt);
    let unfollowed = go::examine(rt);
    netacc_transport::shm::strangers::on_offence(log_offence);
    netacc_transport::host::set(&host::HOST);
    requests::begin(switched_off());
    netacc_log::begin(&rt.conf);
    rt.publish();
    if !has_room {
        process_mode::leave_to_kernel(Reason::NoDescriptors);
    }
    STARTER.set(0);
    if let Some(e) = unread {
        netacc_log::log!(Warn, "{}: cannot be read ({e}); the defaults are used", rt.file.shown());
    }
    for d in &diags {
        netacc_log::log!(Warn, "{d}");
    }
    own_calls::log(own);
    go::log(unfollowed);
    Some(rt)
}

/// The configuration of the file, the environment and the command line, with what is wrong in them and why the file could not
/// be read.
fn read_conf(file: &ConfigFile) -> (Config, Vec<Diagnostic>, Option<Errno>) {
    let mut conf = Config::default();
    let mut diags = Vec::new();
    let unread = match file.read() {
        Ok(text) => {
            conf.apply_file(&file.shown(), &text, &mut diags);
            None
        }
        Err(e) => Some(e).filter(|e| *e != Errno::NOENT),
    };
    each_env(|k, v| {
        if let Ok(k) = core::str::from_utf8(k) {
            conf.apply_env(k, v, &mut diags);
        }
    });
    if let Some(v) = env(netacc_conf::ENV_CMDLINE) {
        conf.apply_cmdline(v, &mut diags);
    }
    conf.finish(&mut diags);
    (conf, diags, unread)
}

/// Whether an operator has switched the process off before it had a page. The mark is taken back: programs that this
/// one executes are not meant.
fn switched_off() -> bool {
    let limit = getrlimit(Resource::Locks);
    let off = limit.current == Some(OFF_BEFORE_THE_PAGE);
    if off {
        let _ = setrlimit(Resource::Locks, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    off
}

/// Logs the protocol violation of a peer, which ends its connection.
fn log_offence(o: &Offence) {
    let Offence { pid, uid, slot, what } = o;
    netacc_log::log!(Warn, "peer {pid} of user {uid}: {what} (slot {slot}); its connection is reset");
}

/// The name of the program as the kernel has it (proc_pid_comm(5)): of a script its own, not its interpreter's.
/// That is the name of its first thread, which `is_first` says the calling one is.
fn command_name(buf: &mut [u8], is_first: bool) -> &[u8] {
    let n = if is_first {
        let name = raw::thread_name();
        buf.iter_mut().zip(name.iter().take_while(|b| **b != 0)).map(|(to, from)| *to = *from).count()
    } else {
        read_into(b"/proc/self/comm", buf)
    };
    buf.get(..n).unwrap_or(&[]).trim_ascii_end()
}

/// Makes the stats page.
fn open_page(name: &[u8], pid: u32) {
    if netacc_sys::mem::is_locking() {
        netacc_stats::note_locking();
    }
    if let Ok(fd) = netacc_stats::init(name, pid) {
        runtime::keep_page(fd);
    }
}

fn read_into(path: &[u8], buf: &mut [u8]) -> usize {
    let Ok(fd) = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return 0 };
    let n = raw::read(fd.as_raw_fd(), buf.as_mut_ptr(), buf.len(), None).unwrap_or(0);
    reserved_fds::drop_raw(fd);
    n
}

#[allow(unsafe_code)]
fn each_env(mut f: impl FnMut(&[u8], &[u8])) {
    // SAFETY: the C environment: a null-terminated array of NUL-terminated strings (environ(7)). It is
    // read once, when the process opens its first socket; a program that changes its environment in
    // another thread at that moment races with every getenv(3) as well.
    unsafe {
        let mut p = netacc_sys::weak::environment();
        while !p.is_null() && !(*p).is_null() {
            let s = CStr::from_ptr(*p).to_bytes();
            if s.starts_with(b"NACC_")
                && let Some(eq) = s.iter().position(|b| *b == b'=')
            {
                f(s.get(..eq).unwrap_or(&[]), s.get(eq + 1..).unwrap_or(&[]));
            }
            p = p.add(1);
        }
    }
}

/// The value of a variable of the environment whose name begins with `NACC_`.
pub(crate) fn env(name: &str) -> Option<&'static [u8]> {
    let mut found = None;
    each_env(|k, v| {
        if k == name.as_bytes() {
            found = Some(v.to_vec());
        }
    });
    found.map(|v| &*Box::leak(v.into_boxed_slice()))
}

/// Called in the child of a fork: the thread that was starting the library is the parent's.
pub fn after_fork() {
    STARTER.set(0);
}
