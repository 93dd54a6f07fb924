//! Copies of this program, started with the library or without it.
//!
//! They speak by lines over their standard streams, which no library touches, and end when their standard input does:
//! so none stays behind, whatever becomes of us.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child as Process, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::containers;
use netacc_tools::bench_wire::Side;
use netacc_tools::library;
use netacc_tools::text::clean;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How much of what a child complains of is kept.
const KEPT: usize = 4096;
const ENDED: &str = "has ended";

pub(crate) struct Child {
    name: &'static str,
    process: Process,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    complaints: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

/// `command` with the library preloaded or not, whatever we have been started with.
pub(crate) fn on_side(command: &mut Command, side: Side) {
    let existing = env::var_os("LD_PRELOAD").unwrap_or_default();
    match side {
        Side::Netacc => command.env("LD_PRELOAD", library::preload(&library::find(), &existing)),
        Side::Plain => match library::without(&existing) {
            Some(others) => command.env("LD_PRELOAD", others),
            None => command.env_remove("LD_PRELOAD"),
        },
    };
}

/// This program with other arguments.
pub(crate) fn ourselves(words: &[impl AsRef<OsStr>]) -> Result<Command, String> {
    let program = env::current_exe().map_err(|error| format!("the file of this program cannot be found: {error}"))?;
    let mut command = Command::new(program);
    command.args(words);
    if let Some(directory) = containers::directory() {
        command.env("NACC_HOST_DIR", directory);
    }
    Ok(command)
}

impl Child {
    /// Starts this program as `words` say, on one CPU alone if that is given; `name` is what the child is called.
    pub(crate) fn start(name: &'static str, words: &[String], side: Side, on_cpu: Option<u16>) -> Result<Self, String> {
        let mut command = ourselves(words)?;
        on_side(&mut command, side);
        let Some(number) = on_cpu else { return Self::spawn(name, command) };
        // A child takes over the set of the thread that starts it.
        let before = sched_getaffinity(None).map_err(|error| format!("the CPUs of this process: {error}"))?;
        let mut only = CpuSet::new();
        only.set(usize::from(number));
        sched_setaffinity(None, &only).map_err(|error| format!("CPU {number} cannot be used: {error}"))?;
        let child = Self::spawn(name, command);
        // It was allowed before; and if not, this process only waits while the other measures.
        let _ = sched_setaffinity(None, &before);
        child
    }

    /// Starts any command whose standard streams are to be ours.
    pub(crate) fn spawn(name: &'static str, mut command: Command) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("the {name} cannot be started: {error}"))?;
        let (sender, lines) = channel();
        if let Some(output) = process.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        let complaints = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&complaints);
        let reader = process.stderr.take().map(|errors| thread::spawn(move || keep(errors, &kept)));
        let input = process.stdin.take();
        Ok(Self { name, process, input, lines, complaints, reader })
    }

    /// Its process number.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Says a line to it.
    pub(crate) fn tell(&mut self, line: &str) -> Result<(), String> {
        let written = self.input.as_mut().map(|input| input.write_all(line.as_bytes()).and_then(|()| input.flush()));
        if written.is_some_and(|result| result.is_ok()) { Ok(()) } else { Err(self.failure(ENDED)) }
    }

    /// Its next line.
    pub(crate) fn hear(&mut self, patience: Duration) -> Result<String, String> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => {
                Err(self.failure(&format!("has said nothing for {} seconds", patience.as_secs())))
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.failure(ENDED)),
        }
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Lets it end in its own way, and waits for that.
    pub(crate) fn finish(mut self) {
        drop(self.input.take());
        // It writes a last line or none; the end of its output is the end of what it does.
        while self.lines.recv_timeout(Duration::from_secs(5)).is_ok() {}
    }

    /// Why it has ended, in words for the user.
    pub(crate) fn ended(&mut self) -> String {
        self.failure(ENDED)
    }

    /// Its whole output once it has ended well, and what `look` sees of the process before it is waited for. While it
    /// runs, `meanwhile` is called with its process number every tenth of a second.
    pub(crate) fn outcome<T>(
        mut self,
        patience: Duration,
        mut meanwhile: impl FnMut(u32),
        look: impl Fn(u32) -> Result<T, String>,
    ) -> Result<(String, T), String> {
        const TICK: Duration = Duration::from_millis(100);
        drop(self.input.take());
        let end = Instant::now() + patience;
        let mut output = String::new();
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now()).min(TICK)) {
                Ok(line) => {
                    output.push_str(&line);
                    output.push('\n');
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => meanwhile(self.pid()),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(self.failure(&format!("has not ended within {} seconds", patience.as_secs())));
                }
            }
        }
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).ok_or("no process number")?;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), options).map_err(|error| format!("waitid: {error}"))?;
        let seen = look(self.pid())?;
        let status = self.process.wait().map_err(|error| format!("wait: {error}"))?;
        if status.success() { Ok((output, seen)) } else { Err(self.failure(&format!("has ended with {status}"))) }
    }

    /// Why it is of no further use, in words for the user.
    pub(crate) fn failure(&mut self, what: &str) -> String {
        // What it complained of is complete when the stream of complaints has ended.
        if what == ENDED {
            let _ = self.process.wait();
            let _ = self.reader.take().map(JoinHandle::join);
        }
        let said = self.complaints.lock().map(|text| text.trim().to_owned()).unwrap_or_default();
        let said = if said.is_empty() { String::new() } else { format!(": {}", clean(&said)) };
        format!("the {} {what}{said}", self.name)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn keep(mut from: impl Read, kept: &Mutex<String>) {
    let mut part = [0; 1024];
    while let Ok(count @ 1..) = from.read(&mut part) {
        let text = String::from_utf8_lossy(part.get(..count).unwrap_or_default()).into_owned();
        if let Ok(mut kept) = kept.lock()
            && kept.len() < KEPT
        {
            kept.push_str(&text);
        }
    }
}
