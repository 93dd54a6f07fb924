//! Has processes replace the library by the one that is in its file now. A process that has done so has another page.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use netacc_stats::{ControlCommand, Upgraded};
use netacc_stats_reader::{Controller, Page};

use crate::carry_out::{POLL_INTERVAL, Refused, Request, ask_page, state, why_not};
use crate::find::{Complaint, Target};

/// The request.
const REQUEST: Request = Request::Switch(ControlCommand::Upgrade);

/// Time between two attempts. Each may hold the program's other calls for a tenth of a second.
const BETWEEN_TRIES: Duration = Duration::from_millis(500);

/// Sends the request to each process, and waits for all of them together. Returns a sentence for each that goes on with
/// the library that it has.
pub(crate) fn carry_out(targets: &[Target], limit: Duration) -> Vec<Complaint> {
    let until = Instant::now() + limit;
    let mut complaints = Vec::new();
    let mut waiting: Vec<&Target> = targets.iter().collect();
    let mut asked: Vec<(&Target, &Page, Controller, Instant)> = Vec::new();
    loop {
        waiting.retain(|target| {
            // A process that has opened no TCP socket has nothing but the library's code, and no page by which it hears.
            let Some(page) = target.page() else {
                complaints
                    .push(target.about("has opened no TCP socket yet, and keeps the library until it is started anew"));
                return false;
            };
            match ask_page(page, REQUEST) {
                Ok(controller) => asked.push((target, page, controller, Instant::now())),
                Err(Refused::Busy) => return true,
                Err(Refused::Because(why)) => complaints.push(target.about(why)),
            }
            false
        });
        asked.retain_mut(|(target, page, controller, last)| match answer(target, page, controller) {
            Answer::None => true,
            Answer::Done => false,
            Answer::TryAgain(_) if Instant::now() < until => {
                if last.elapsed() < BETWEEN_TRIES {
                    return true;
                }
                *last = Instant::now();
                controller.request(ControlCommand::Upgrade).is_ok()
            }
            Answer::TryAgain(why) | Answer::Kept(why) => {
                complaints.push(target.about(format!("goes on with the library that it has: {why}")));
                false
            }
        });
        if (waiting.is_empty() && asked.is_empty()) || Instant::now() >= until {
            break;
        }
        sleep(POLL_INTERVAL);
    }
    for target in waiting {
        let why = "is being switched by another netacc_ctl at this moment; try again when that has ended";
        complaints.push(target.about(why));
    }
    for (target, _, controller, _) in &asked {
        if let Ok(control) = controller.read() {
            complaints.push(target.about(why_not(target, &control, REQUEST)));
        }
    }
    complaints
}

enum Answer {
    None,
    Done,
    /// A thread did not come out, or has made a connection at the last moment: it lacked the processor, perhaps, or was in
    /// a call that has ended by now.
    TryAgain(String),
    Kept(String),
}

const THREAD_INSIDE: &str =
    "a thread did not come out of a call within a tenth of a second, and again; try again when it is less busy";

/// What a process has done with the request.
fn answer(target: &Target, page: &Page, controller: &Controller) -> Answer {
    if state(target).is_none_or(|state| "ZX".contains(state)) {
        return Answer::Done;
    }
    let Ok(control) = controller.read() else { return Answer::None };
    if !control.is_settled() {
        // The page of the new library says that it has taken over.
        let other = page.again().ok().filter(|(other, _)| !other.is(page));
        let replaced = other.and_then(|(_, snapshot)| snapshot.upgraded());
        return if matches!(replaced, Some((Upgraded::Replaced, _))) { Answer::Done } else { Answer::None };
    }
    match control.upgraded() {
        None => Answer::Kept("it is an older one, which cannot be replaced; restart the process".into()),
        Some((Upgraded::Replaced, _)) => {
            Answer::Kept("another netacc_ctl has asked for something else meanwhile".into())
        }
        Some((what, errno)) => {
            let is_busy = io::Error::from_raw_os_error(errno).kind() == io::ErrorKind::ResourceBusy;
            let passes = what == Upgraded::ThreadInside || (what == Upgraded::NotLeft && is_busy);
            if passes { Answer::TryAgain(why(what, errno)) } else { Answer::Kept(why(what, errno)) }
        }
    }
}

/// Why a process keeps its library.
fn why(what: Upgraded, errno: i32) -> String {
    let error = io::Error::from_raw_os_error(errno);
    match what {
        Upgraded::Replaced => String::new(),
        Upgraded::ThreadInside => THREAD_INSIDE.into(),
        Upgraded::Unreadable => format!("the library's file cannot be read: {error}"),
        Upgraded::Damaged => {
            "the library's file is not whole, or of a version that cannot take over; install it by a rename".into()
        }
        Upgraded::NotMapped => format!("the kernel does not map the library's file: {error}"),
        Upgraded::Rdma => "it uses RDMA, whose queue pairs cannot change hands; restart it".into(),
        Upgraded::OwnCalls => "it is a Go program, whose code was changed for this library; restart it".into(),
        Upgraded::KernelOnly => "NetACC leaves it to the kernel for good; netacc_ss --explain says why".into(),
        Upgraded::NoBarrier => format!("membarrier(2) is not permitted: {error}"),
        Upgraded::RelativePath => {
            "LD_PRELOAD has a relative path for it, which may lead elsewhere by now; restart it with the whole path"
                .into()
        }
        Upgraded::Elsewhere => {
            "the library's path leads it elsewhere than at its start, as after chroot(2), or to a file \
                                that strangers may write; restart it"
                .into()
        }
        Upgraded::NotLeft => format!("one of its sockets cannot be left to the kernel: {error}"),
    }
}
