//! When nothing is under way any more, of connections that have both ends in this process.

use netacc_core::engine::progress::{self, ArmOutcome, ProgressScope};
use netacc_stats::page;
use netacc_sys::{raw, time};
use netacc_transport::WaitSet;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Only turns a hang into a failure.
pub const LIMIT: u64 = 30_000_000_000;
/// One of this many sends has a completion, so up to one less may stay without one for ever.
const UNSIGNALED: u64 = 4;
/// Number of looks in a row that have to find nothing under way.
const LOOKS: u32 = 20;
/// The companion connections of queue pairs that fail.
static COMPANIONS: OnceLock<Vec<i32>> = OnceLock::new();

/// Messages that were sent and received by all queue pairs of this process. `None`: some are under way.
fn messages() -> Option<(u64, u64)> {
    let (mut sent, mut received) = (0, 0);
    for entry in (0..).map_while(|place| page().link(place)).filter(|entry| entry.id() != 0 && entry.is_rdma()) {
        let [posted, completed, came] = entry.messages();
        if posted.saturating_sub(completed) >= UNSIGNALED {
            return None;
        }
        (sent, received) = (sent + posted, received + came);
    }
    (sent == received).then_some((sent, received))
}

/// Ends of queue pairs that there are and have not failed.
pub fn queue_pairs() -> usize {
    (0..).map_while(|place| page().link(place)).filter(|entry| entry.id() != 0 && entry.is_rdma()).count()
}

/// Bytes written and received by a TCP connection.
fn tcp_bytes(fd: i32) -> Option<(u64, u64)> {
    const ESTABLISHED: u8 = 1;
    // `struct tcp_info`.
    let mut info = [0u64; 32];
    let mut len = size_of_val(&info) as u32;
    raw::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len).ok()?;
    let [received, not_sent, sent, again] = [info[16], info[18] & u64::from(u32::MAX), info[25], info[26]];
    (info[0].to_ne_bytes()[0] == ESTABLISHED).then_some((sent - again + not_sent, received))
}

/// Whether a TCP connection is a queue pair of `netacc-fabric`: one end has the port of the listener for RDMA.
fn is_queue_pair(fd: i32) -> bool {
    let port = crate::remote::port() + 20_000;
    [netacc_sys::addr::local_of(fd), netacc_sys::addr::peer_of(fd)].into_iter().flatten().any(|at| at.port() == port)
}

/// Returns when both ends of each queue pair have their companion connection: from here on bytes may be under way there.
pub fn await_companions() {
    let limit = time::now() + LIMIT;
    loop {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap();
        let fds = fds.filter_map(|entry| entry.unwrap().file_name().into_string().ok()?.parse::<i32>().ok());
        let companions: Vec<i32> = fds.filter(|fd| tcp_bytes(*fd).is_some() && !is_queue_pair(*fd)).collect();
        if companions.len() == queue_pairs() {
            return COMPANIONS.set(companions).expect("queue pairs fail once");
        }
        assert!(time::now() < limit, "{} companions of {} ends", companions.len(), queue_pairs());
        raw::sched_yield();
    }
}

/// Bytes that companion connections have carried. `None`: some are under way. That they are not acknowledged yet says
/// nothing: the kernel takes its time for that.
fn bytes_by_tcp() -> Option<u64> {
    let (mut written, mut received) = (0, 0);
    for (fd, (out, into)) in COMPANIONS.get().into_iter().flatten().filter_map(|fd| Some((*fd, tcp_bytes(*fd)?))) {
        let mut left = 0i32;
        if raw::ioctl(fd, libc::FIONREAD as usize, (&raw mut left).addr()).is_ok() && left > 0 {
            return None;
        }
        (written, received) = (written + out, received + into);
    }
    (written == received).then_some(written)
}

/// Whether the engine thread sleeps. It is woken for what nobody else does, as registering more memory: then it runs as
/// soon as it is told.
fn thread_sleeps() -> bool {
    static STAT: OnceLock<PathBuf> = OnceLock::new();
    let stat = STAT.get_or_init(|| {
        let named = |task: &PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "netacc-io\n");
        let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
        tasks.find(named).expect("the engine thread").join("stat")
    });
    // proc_pid_stat(5): after the name, which is in brackets.
    std::fs::read_to_string(stat).unwrap().rsplit(") ").next().unwrap().starts_with('S')
}

/// Returns when all that was done has come to the other end, as far as there is room.
pub fn settle() {
    let limit = time::now() + LIMIT;
    let (mut before, mut same) = (None, 0);
    loop {
        assert!(time::now() < limit, "there is always something under way");
        progress::progress();
        // Waits for the thread that does the work just now, and says whether there is more.
        let mut set = WaitSet::new();
        let busy = match progress::arm(&mut set, ProgressScope::All) {
            ArmOutcome::Ready => true,
            ArmOutcome::No => false,
            ArmOutcome::Yes(token) => {
                progress::disarm(token, &set, true);
                false
            }
        };
        // Often the same: while the one was looked at, another one may have become busy, and a thread that waits for a lock
        // looks as one that sleeps.
        let now = messages().zip(bytes_by_tcp()).filter(|_| !busy && thread_sleeps());
        same = if now.is_some() && now == before { same + 1 } else { 0 };
        if same >= LOOKS {
            return;
        }
        before = now;
        raw::sched_yield();
    }
}
