//! The engines and their threads: how they begin, and what a thread does.

use crate::host::host;
use crate::rdma::engine::cell::{self, EngineCell};
use crate::rdma::engine::worker::{Engine, Step};
use crate::rdma::engine::{drain, exit_handoff, manager, process, status, upgrade_reminder};
use crate::timeouts;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use netacc_stats::Reason;
use netacc_sys::time;
use netacc_sys::{cpu, thread};

const QUEUED_CONNECT_CHECK: u32 = timeouts::ms(timeouts::QUEUED_CONNECT_CHECK);

/// Makes the engines and their threads, unless they are there.
pub(super) fn start() -> Result<(), Reason> {
    if status::count() > 0 {
        return Ok(());
    }
    let conf = host().and_then(|host| host.config()).ok_or(Reason::Disabled)?;
    process::own();
    let count = conf.io_threads as usize;
    let engine = |n, status| {
        Engine::new(conf, n, status).map_err(|e| {
            netacc_log::log!(Warn, "RDMA thread {n}: cannot be set up ({e}); connections use TCP");
            Reason::OtherHost
        })
    };
    let begin = |n, place| {
        let name = if count == 1 { String::from("netacc-io") } else { format!("netacc-io-{n}") };
        let cpus: Vec<u32> = conf.affinity_cpus().collect();
        // The thread inherits our signal mask, in which everything is blocked.
        let made = thread::spawn(&name, 256 * 1024, move || run(place, &cpus));
        made.map(drop).map_err(|e| {
            netacc_log::log!(Warn, "RDMA thread {n} of {count}: cannot be started ({e}); connections use TCP");
            Reason::NoMemory
        })
    };
    cell::start(count, engine, begin).inspect_err(|why| {
        if *why == Reason::OtherHost {
            process::note_no_device();
        }
    })
}

/// The work of an engine's thread.
fn run(cell: &EngineCell, cpus: &[u32]) {
    if !cpus.is_empty()
        && let Err(e) = cpu::run_on(cpus)
    {
        netacc_log::log!(Warn, "NACC_SOR_AFFINITY: cannot bind an RDMA thread to these CPUs ({e}); it runs on any");
    }
    let mut fds = Vec::new();
    let mut last = time::now();
    loop {
        let Some(step) = cell.with(|e| e.step(&mut fds, &mut last)) else {
            if cell.is_empty() {
                return;
            }
            exit_handoff::wait_aside();
            continue;
        };
        // One thread does this for all.
        let is_first = cell::first().is_some_and(|first| core::ptr::eq(first, cell));
        let soon = if is_first { upgrade_reminder::remind() } else { None };
        // This may wait for another host's TCP. The program's threads hear the channels unless this thread says that it
        // does.
        let tended = is_first
            && host().is_some_and(|host| {
                host.tend_queued(&|| {
                    let _ = cell.with(Engine::stay_awake);
                })
            });
        let soon = if tended { Some(soon.unwrap_or(i64::MAX).min(QUEUED_CONNECT_CHECK.into())) } else { soon };
        let soon = if drain::serve(cell) { Some(0) } else { soon };
        match step {
            Step::Again => {}
            Step::Load => manager::load(cell),
            Step::Poll => cpu::pause(),
            Step::Sleep { ms, naps } => {
                let (ms, naps) = soon.map_or((ms, naps), |soon| (soon.min(ms), 1));
                cell.sleep(&mut fds, ms, naps);
                let _ = cell.with(|e| e.wake(&fds));
            }
        }
    }
}
