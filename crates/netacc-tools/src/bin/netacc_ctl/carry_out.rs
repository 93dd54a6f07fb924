//! Sends requests to processes, and waits until they have been carried out.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use netacc_conf::ENV_CONFIG_FILE;
use netacc_stats::{ControlCommand, Reloaded};
use netacc_stats_reader::{self as reader, Control, Controller, Refusal};
use netacc_tools::before_page;

use crate::find::{Complaint, Target};
use crate::show::is_plain;

/// Interval between two checks of the processes.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// What a process is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// To be off or on.
    Switch(ControlCommand),
    /// To load its rules anew.
    Reload,
}

/// Why a request cannot be sent.
pub(crate) enum Refused {
    /// Another controller is at work, and will have ended soon.
    Busy,
    /// A sentence about the process.
    Because(String),
}

/// Sends a request to each process, and waits for all of them together. Returns a sentence for each that has not
/// followed within `limit`, or cannot. A process that has followed is free for other controllers at once, so two of
/// them that want the same processes in another order do not wait for each other.
pub(crate) fn carry_out(targets: &[Target], request: Request, limit: Duration) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let mut asked = Vec::new();
    let mut waiting: Vec<&Target> = targets.iter().collect();
    let until = Instant::now() + limit;
    loop {
        waiting.retain(|target| match ask(target, request) {
            Ok(Some(controller)) => {
                asked.push((*target, controller));
                false
            }
            Ok(None) => false,
            Err(Refused::Busy) => true,
            Err(Refused::Because(why)) => {
                complaints.push(target.about(why));
                false
            }
        });
        asked.retain(|(target, controller)| {
            let followed = follows(target, controller, request);
            if followed && request == Request::Reload {
                complaints.extend(controller.read().ok().and_then(|control| why_kept(target, &control)));
            }
            !followed
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
    for (target, controller) in &asked {
        if let Ok(control) = controller.read() {
            complaints.push(target.about(why_not(target, &control, request)));
        }
    }
    complaints
}

/// Sends a request to one process. `None`: the process finds it later, and there is nothing to wait for.
fn ask(target: &Target, request: Request) -> Result<Option<Controller>, Refused> {
    let Some(page) = target.page() else {
        let Request::Switch(command) = request else { return Ok(None) };
        if let Err(why) = before_page::mark(target.process(), command) {
            return if has_ended(target) { Ok(None) } else { Err(Refused::Because(why.into())) };
        }
        // It may have opened its first socket just now.
        let Ok((page, _)) = reader::again(target.process()) else { return Ok(None) };
        let _ = before_page::mark(target.process(), ControlCommand::On);
        return ask_page(&page, request).map(Some);
    };
    ask_page(page, request).map(Some)
}

pub(crate) fn ask_page(page: &reader::Page, request: Request) -> Result<Controller, Refused> {
    let because = |why: &str| Refused::Because(why.into());
    let controller = page.control().map_err(|refusal| match refusal {
        Refusal::Busy => Refused::Busy,
        Refusal::Denied => because("belongs to another user or is protected; run netacc_ctl as that user or as root"),
        Refusal::NoPage => because("has a damaged statistics page; restart the process"),
        Refusal::Io(error) => Refused::Because(format!("cannot be asked: {error}")),
    })?;
    let now = controller.read().map_err(|error| because(&error.to_string()))?;
    if now.state == 0 {
        return Err(because("runs an older NetACC, which follows no netacc_ctl; restart it"));
    }
    if request == Request::Reload && !now.can_reload() {
        return Err(because("runs an older NetACC, which loads its rules only when it starts; restart it"));
    }
    let sent = match request {
        Request::Switch(command) => controller.request(command),
        Request::Reload => controller.request_reload(),
    };
    sent.map_err(|error| because(&error.to_string()))?;
    Ok(controller)
}

/// Whether the process has ended, of which its parent may not know yet. Nothing is left to be done to it.
fn has_ended(target: &Target) -> bool {
    state(target).is_none_or(|state| "ZX".contains(state))
}

/// Whether the process has followed, has no connection that would have to switch, or has ended.
fn follows(target: &Target, controller: &Controller, request: Request) -> bool {
    let page = || target.page().and_then(|page| page.read().ok());
    let answered = |control: Control| match request {
        Request::Switch(_) => control.is_settled(),
        Request::Reload => control.has_answered(),
    };
    controller.read().is_ok_and(answered)
        || has_ended(target)
        || (request == Request::Switch(ControlCommand::Off) && page().is_some_and(|page| is_plain(&page)))
}

/// Why a process that was asked to load its rules anew, and has answered, keeps those that it has.
fn why_kept(target: &Target, control: &Control) -> Option<Complaint> {
    let why = match control.reloaded() {
        // It has ended.
        _ if !control.has_answered() => return None,
        Some(Reloaded::Loaded) => return None,
        Some(Reloaded::Unreadable) => {
            let error = io::Error::from_raw_os_error(control.detail.cast_signed());
            format!("it cannot read {}: {error}", file_of(target))
        }
        Some(Reloaded::Mistaken) => {
            let line = if control.detail == 0 { String::new() } else { format!(":{}", control.detail) };
            format!(
                "{}{line} has a mistake, and the file was changed since it was checked; its log says more",
                file_of(target)
            )
        }
        Some(Reloaded::Confined) => {
            "it has installed a filter on system calls (seccomp), and opens no more files".into()
        }
        None => "it says so with an answer that this netacc_ctl does not know".into(),
    };
    Some(target.about(format!("keeps the rules that it has: {why}")))
}

/// The configuration file of a process.
fn file_of(target: &Target) -> String {
    let page = target.page().and_then(|page| page.read().ok());
    let line = page.and_then(|page| page.cfg.into_iter().find(|line| line.key == ENV_CONFIG_FILE));
    line.map_or_else(|| "its configuration file".into(), |line| line.value)
}

/// The state of a process (proc_pid_stat(5), field 3).
pub(crate) fn state(target: &Target) -> Option<char> {
    let stat = target.process().text("stat").ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Why a process has not followed.
pub(crate) fn why_not(target: &Target, control: &Control, request: Request) -> String {
    if state(target).is_some_and(|state| "Tt".contains(state)) {
        return "is stopped; it follows when it goes on".into();
    }
    if request != Request::Reload && control.left > 0 {
        let (many, have) = if control.left == 1 { ("connection", "has") } else { ("connections", "have") };
        return format!(
            "is going off: {} {many} {have} not reached kernel TCP, since what is under way there is to be read first or the \
             other end does not answer; the process goes on with it",
            control.left
        );
    }
    "has made no call on a socket since; it follows at its next one".into()
}
