//! Asks the processes, and waits until they have followed.

use std::thread::sleep;
use std::time::{Duration, Instant};

use netacc_stats::Wish;
use netacc_stats_reader::{self as reader, Control, Controller, Refusal};

use crate::before_page;
use crate::find::Target;
use crate::show::is_plain;

/// How often the processes are looked at.
const LOOK: Duration = Duration::from_millis(2);

/// Asks all of them, and waits together for them. What is not done then, in words.
pub(crate) fn carry_out(targets: &[Target], wish: Wish, patience: Duration) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut asked = Vec::new();
    for target in targets {
        match ask(target, wish) {
            Ok(Some(controller)) => asked.push((target, controller)),
            Ok(None) => {}
            Err(why) => complaints.push(target.about(why)),
        }
    }
    let until = Instant::now() + patience;
    while asked.iter().any(|(target, controller)| !follows(target, controller, wish)) && Instant::now() < until {
        sleep(LOOK);
    }
    for (target, controller) in &asked {
        if !follows(target, controller, wish)
            && let Ok(control) = controller.read()
        {
            complaints.push(target.about(why_not(target, &control, wish)));
        }
    }
    complaints
}

/// Asks one. `None`: it will find what is asked of it, and need not be waited for.
fn ask(target: &Target, wish: Wish) -> Result<Option<Controller>, String> {
    let Some(page) = &target.page else {
        before_page::mark(target.pid, wish)?;
        // It may have opened its first socket just now.
        let Ok((page, _)) = reader::hold(target.pid) else { return Ok(None) };
        let _ = before_page::mark(target.pid, Wish::On);
        return ask_page(&page, wish).map(Some);
    };
    ask_page(page, wish).map(Some)
}

fn ask_page(page: &reader::Page, wish: Wish) -> Result<Controller, String> {
    let controller = page.control().map_err(|refusal| match refusal {
        Refusal::Busy => "is being switched by another netacc_ctl at this moment; try again when that has ended".into(),
        Refusal::Denied => "belongs to another user or is protected; run netacc_ctl as that user or as root".into(),
        Refusal::NoPage => "has a damaged statistics page; restart the process".into(),
        Refusal::Io(error) => format!("cannot be asked: {error}"),
    })?;
    let now = controller.read().map_err(|error| error.to_string())?;
    if now.state == 0 {
        return Err("runs an older NetACC, which follows no netacc_ctl; restart it".into());
    }
    controller.ask(wish).map_err(|error| error.to_string())?;
    Ok(controller)
}

/// Whether the process has followed, has nothing that would have to follow, or is there no more.
fn follows(target: &Target, controller: &Controller, wish: Wish) -> bool {
    let page = || target.page.as_ref().and_then(|page| page.read().ok());
    controller.read().is_ok_and(|control| control.is_settled())
        || state(target.pid).is_none_or(|state| "ZX".contains(state))
        || (wish == Wish::Off && page().is_some_and(|page| is_plain(&page)))
}

/// The kernel's letter for what the process does.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Why a process has not followed.
fn why_not(target: &Target, control: &Control, wish: Wish) -> String {
    if state(target.pid).is_some_and(|state| "Tt".contains(state)) {
        return "is stopped; it follows when it goes on".into();
    }
    if wish == Wish::Off && control.left > 0 {
        let (many, have) = if control.left == 1 { ("connection", "has") } else { ("connections", "have") };
        return format!(
            "is going off: {} {many} {have} not reached kernel TCP, since what is under way there is to be read first or the \
             other end does not answer; the process goes on with it",
            control.left
        );
    }
    "has made no call on a socket since; it follows at its next one".into()
}
