//! `--explain PID[:FD]`: why connections are where they are, and what would change it.

use std::collections::BTreeMap;
use std::fs;

use netacc_stats::{Reason, SOCK_ENTRIES, State, Transport};
use netacc_stats_reader::{Known, Snapshot, Sock};
use netacc_tools::standing::{facts, is_others};
use netacc_tools::terminal::{Style, paragraph};
use serde_json::{Value, json};

use crate::args::Question;
use crate::other_end::Processes;
use crate::{between, complaint, reasons, rendezvous, sock};

/// One answer, for one socket or for several that are alike.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    fds: Vec<u32>,
    /// What they are.
    what: String,
    reason: String,
    why: String,
    remedy: String,
}

/// The explanation, as text or JSON.
pub(crate) fn run(question: Question, json: bool, style: Style) -> Result<String, String> {
    let pid = question.pid;
    let page = netacc_stats_reader::open(pid).map_err(|error| complaint::of(pid, &error))?;
    let names = rendezvous::held(pid);
    let processes = Processes::default();
    let sockets: Vec<&Sock> = match question.fd {
        None => page.socks.iter().collect(),
        Some(fd) => vec![page.socks.iter().find(|sock| sock.fd == fd).ok_or_else(|| absent(pid, fd))?],
    };
    let answers = answers(&page, &sockets, &names, &processes);
    let earlier = if question.fd.is_none() { earlier(&page) } else { Vec::new() };
    if json {
        let each = |answers: &[Answer]| answers.iter().map(Answer::json).collect::<Value>();
        let value = json!({
            "pid": pid, "program": page.program, "sockets": each(&answers), "earlier": each(&earlier)
        });
        return Ok(format!("{value:#}\n"));
    }
    let mut out = String::new();
    paragraph("", &format!("process {pid} ({})", page.program), 0, style.width, &mut out);
    if answers.is_empty() {
        // A program that makes its system calls itself may have some.
        match complaint::obstacle(pid) {
            Some(obstacle) => {
                let text = format!("NetACC does not see its sockets: {obstacle}.");
                paragraph("\n", &text, 0, style.width, &mut out);
            }
            None => paragraph("\n", "It has no TCP socket now.", 0, style.width, &mut out),
        }
    }
    for answer in answers.iter().chain(&earlier) {
        answer.text(style, &mut out);
    }
    Ok(out)
}

/// Why there is nothing to say of a descriptor.
fn absent(pid: u32, fd: u32) -> String {
    let link = fs::read_link(format!("/proc/{pid}/fd/{fd}"));
    let text = match link.as_deref().map(|target| target.to_string_lossy()) {
        Err(_) => format!("has no descriptor {fd} open; netacc_ss -p {pid} -s sock lists its sockets"),
        Ok(target) if !target.starts_with("socket:") => {
            format!("has no socket at descriptor {fd}: that is {}", target.escape_debug())
        }
        Ok(_) if fd as usize >= SOCK_ENTRIES => {
            format!("has a socket at descriptor {fd}, but those of {SOCK_ENTRIES} and above are not on its page")
        }
        Ok(_) => format!(
            "has a socket at descriptor {fd} that NetACC leaves alone: it is of another kind than TCP, not yet \
             connected, one of NetACC's own, or was made before NetACC began"
        ),
    };
    complaint::about(pid, text)
}

/// Sockets for which the same is to be said share an answer.
fn answers(page: &Snapshot, sockets: &[&Sock], names: &[String], processes: &Processes) -> Vec<Answer> {
    let mut groups: BTreeMap<(String, String, String, String), Vec<u32>> = BTreeMap::new();
    let alone = sockets.len() == 1;
    for sock in sockets {
        let what = what(page, sock, alone, names, processes);
        let (reason, why, remedy) = because(page, sock, processes);
        groups.entry((what, reason, why, remedy)).or_default().push(sock.fd);
    }
    let mut answers: Vec<Answer> = groups
        .into_iter()
        .map(|((what, reason, why, remedy), fds)| Answer { fds, what, reason, why, remedy })
        .collect();
    answers.sort_by_key(|answer| answer.fds.first().copied());
    answers
}

/// What a socket is. Only an answer about one socket names the ports of a connection.
fn what(page: &Snapshot, sock: &Sock, alone: bool, names: &[String], processes: &Processes) -> String {
    let state = sock.state.get();
    if state == Some(State::Listening) {
        return match rendezvous::of(&sock.local, names) {
            Some(name) => format!("listens at {}, and for shared memory at {name}", sock.local),
            None => format!("listens at {}", sock.local),
        };
    }
    if matches!(state, Some(State::New | State::Connecting)) {
        return format!("a socket that is not connected yet ({})", sock.state);
    }
    let on = match sock.transport.get() {
        Some(Transport::Shm) => "over shared memory",
        Some(Transport::Rdma) => "over RDMA",
        Some(Transport::Tcp) => "by kernel TCP",
        Some(Transport::None) | None => "by something that this netacc_ss does not know",
    };
    if let Some(end) = processes.across(page, sock) {
        let ends = if alone { format!(" {} to {}", sock.local, sock.peer) } else { String::new() };
        return format!("connection{ends} to {} {on}", end.described());
    }
    match (alone, sock.peer_pid) {
        (true, 0) => format!("connection {} to {} {on}", sock.local, sock.peer),
        (true, pid) => format!("connection {} to {} (process {pid}) {on}", sock.local, sock.peer),
        (false, 0) => format!("connection {on}"),
        (false, pid) => format!("connection to process {pid} {on}"),
    }
}

fn because(page: &Snapshot, socket: &Sock, processes: &Processes) -> (String, String, String) {
    let Some(reason) = reasons::of(socket) else {
        let (why, remedy) = if sock::listens(socket) {
            (
                "Programs on this host that run with NetACC come by shared memory, all others by TCP.",
                "Nothing needs to be changed.",
            )
        } else if socket.transport.get().is_some_and(Transport::is_fast) {
            ("This is the fastest transport to that peer.", "Nothing needs to be changed.")
        } else {
            ("Nothing is decided as long as it is not connected.", "Nothing needs to be changed.")
        };
        return ("none".into(), why.into(), remedy.into());
    };
    match reason {
        Known::Is(reason) => {
            let (why, remedy) = reason.why_and_remedy();
            if let Some((more, remedy)) = between::look(page, socket, reason, processes) {
                return (reason.name().into(), more, remedy);
            }
            let why = format!("{}.{}", why.trim_end_matches('.'), facts(page, socket, reason));
            if let Some((more, remedy)) = of_the_other_end(page, socket, reason, processes) {
                return (reason.name().into(), format!("{why} {more}"), remedy);
            }
            (reason.name().into(), why, sentence(&of_process(remedy, page.pid)))
        }
        Known::Number(number) => (
            format!("?{number}"),
            "The library in the process knows a reason that this netacc_ss does not.".into(),
            format!("Use the netacc_ss of NetACC {}.", page.library_version),
        ),
    }
}

/// For a reason that the other end decides about: what the process there makes of the connection, and what would change
/// that. `None`: the other end is not on this host, or may not be looked into.
fn of_the_other_end(page: &Snapshot, socket: &Sock, reason: Reason, processes: &Processes) -> Option<(String, String)> {
    if !is_others(reason) || socket.transport.get() != Some(Transport::Tcp) || sock::listens(socket) {
        return None;
    }
    // A connection that was made reaches the listener again when it is made again.
    let standing = processes.beside(page, socket, matches!(reason, Reason::PeerPlain))?;
    let who = standing.holder.described();
    let text = format!("At the other end, {who} {}.", standing.text());
    Some((text, format!("{}.", sentence(&standing.remedy()))))
}

/// Advice with the number of the process that it is about.
fn of_process(remedy: &str, pid: u32) -> String {
    remedy.replace("netacc_ctl on PID", &format!("netacc_ctl on {pid}"))
}

/// With a capital letter, unless it begins with a command.
fn sentence(text: &str) -> String {
    if text.starts_with("netacc_") {
        return text.to_owned();
    }
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// What befell connections since the process began, those included that have ended.
fn earlier(page: &Snapshot) -> Vec<Answer> {
    let counts = [("fell back or stayed on TCP", &page.fallbacks), ("went over to a kernel socket", &page.demotions)];
    counts
        .into_iter()
        .flat_map(|(how, counts)| reasons::occurred(counts).map(move |(number, count)| (how, number, count)))
        .map(|(how, number, count)| {
            let (why, remedy) = Reason::from_u32(number).map_or(("", ""), Reason::why_and_remedy);
            let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
            Answer {
                fds: Vec::new(),
                what: format!("since it began, a connection or listener {how} {times}"),
                reason: reasons::name(number),
                why: format!("{}.", why.trim_end_matches('.')),
                remedy: sentence(&of_process(remedy, page.pid)),
            }
        })
        .collect()
}

/// Most descriptors that are listed one by one.
const LISTED: usize = 12;

impl Answer {
    fn text(&self, style: Style, out: &mut String) {
        let shown: Vec<String> = self.fds.iter().take(LISTED).map(ToString::to_string).collect();
        let more =
            if self.fds.len() > LISTED { format!(" and {} more", self.fds.len() - LISTED) } else { String::new() };
        let head = if shown.is_empty() { String::new() } else { format!("fd {}{more}: ", shown.join(", ")) };
        out.push('\n');
        let reason = if self.reason == "none" { String::new() } else { format!(" ({})", self.reason) };
        paragraph(&style.paint("1", &head), &format!("{}{reason}", self.what), head.len(), style.width, out);
        paragraph("  why:  ", &self.why, 8, style.width, out);
        paragraph("  what: ", &self.remedy, 8, style.width, out);
    }

    fn json(&self) -> Value {
        json!({
            "fds": self.fds, "what": self.what, "reason": self.reason, "why": self.why, "remedy": self.remedy
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_begins_with_a_capital() {
        assert_eq!(sentence("ärger dich."), "Ärger dich.");
        assert_eq!(sentence(""), "");
    }
}
