//! The watch on a terminal: what is shown, and what the keys do.

use std::time::{Duration, Instant};

use netacc_tools::terminal::{Style, colours_welcome, paragraph};
use netacc_tools::time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use super::keys::{self, Key};
use super::rates::{self, Sort};
use super::screen::Screen;
use super::{Order, Round, Watcher};
use crate::args::Group;
use crate::complaint;

const KEYS: &str = "q: quit. Up, down (k, j), page up, page down, Home, End: choose a process, or scroll. Enter, right: open \
                    it. Backspace, left: back to all. < >: sort by another column. r: reverse. 1 cfg, 2 cnt, 3 mem, 4 \
                    qp, 5 sock, a: all of them. + -: longer or shorter interval. Space: pause. Ctrl-Z: suspend. ?: \
                    these lines.";

/// What is on the screen.
struct View {
    order: Order,
    /// One process, or the overview.
    pid: Option<u32>,
    groups: Vec<Group>,
    interval: Duration,
    sort: Sort,
    /// The line of the overview that is marked.
    chosen: Option<u32>,
    /// Lines that are scrolled away above.
    scrolled: usize,
    /// Lines that there was room for when it was drawn.
    room: usize,
    paused: bool,
    help: bool,
    /// What could not be seen.
    trouble: Option<String>,
    watcher: Watcher,
    before: Option<Round>,
    now: Option<Round>,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Go,
    End,
}

pub(super) fn run(order: &Order) -> Result<String, String> {
    let mut view = View {
        order: order.clone(),
        pid: order.pid,
        groups: order.groups.clone(),
        interval: order.interval,
        sort: Sort::default(),
        chosen: None,
        scrolled: 0,
        room: 1,
        paused: false,
        help: false,
        trouble: None,
        watcher: Watcher::default(),
        before: None,
        now: None,
    };
    // A process that is not there is told before the screen is taken.
    view.now = Some(view.watcher.look(view.pid, &view.groups, &view.order.chosen)?);
    let screen = Screen::take()?;
    let done = view.run(&screen);
    drop(screen);
    done.map(|()| String::new())
}

impl View {
    fn run(&mut self, screen: &Screen) -> Result<(), String> {
        let mut due = Instant::now() + self.interval;
        let mut rounds = 0;
        loop {
            self.draw(screen).map_err(|error| format!("the terminal cannot be written: {error}"))?;
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                if !self.paused {
                    self.look();
                    rounds += 1;
                    if self.order.count.is_some_and(|count| rounds >= count) {
                        return Ok(());
                    }
                }
                due = Instant::now() + self.interval;
                continue;
            }
            let interval = self.interval;
            if self.wait(screen, left)? == Next::End {
                return Ok(());
            }
            // Another interval begins with the key.
            if self.interval != interval {
                due = Instant::now() + self.interval;
            }
        }
    }

    fn look(&mut self) {
        match self.watcher.look(self.pid, &self.groups, &self.order.chosen) {
            Ok(round) => {
                self.before = self.now.replace(round);
                self.trouble = None;
            }
            Err(text) => self.trouble = Some(text),
        }
    }

    /// Turns to a process, or to all.
    fn turn(&mut self, pid: Option<u32>) {
        if self.pid == pid {
            return;
        }
        self.pid = pid;
        self.scrolled = 0;
        self.watcher.forget();
        self.before = None;
        self.now = None;
        self.look();
    }

    /// Waits for a key or a signal, until the next look is due.
    fn wait(&mut self, screen: &Screen, left: Duration) -> Result<Next, String> {
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut fds = [PollFd::new(&screen.terminal, PollFlags::IN), PollFd::new(&screen.signals, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(format!("waiting failed: {error}")),
        }
        let [terminal, _] = fds;
        let terminal = terminal.revents();
        while let Some(signal) = screen.signals.next() {
            if self.signal(screen, signal)? == Next::End {
                return Ok(Next::End);
            }
        }
        if terminal.is_empty() {
            return Ok(Next::Go);
        }
        let mut buffer = [0; 64];
        let count = match rustix::io::read(&screen.terminal, &mut buffer) {
            Ok(count) => count,
            Err(Errno::INTR | Errno::AGAIN) => return Ok(Next::Go),
            // The terminal is gone.
            Err(_) => return Ok(Next::End),
        };
        if count == 0 && terminal.contains(PollFlags::HUP) {
            return Ok(Next::End);
        }
        for key in keys::read(buffer.get(..count).unwrap_or_default()) {
            if self.key(screen, key)? == Next::End {
                return Ok(Next::End);
            }
        }
        Ok(Next::Go)
    }

    fn signal(&mut self, screen: &Screen, signal: i32) -> Result<Next, String> {
        let wrong = |error| format!("the terminal cannot be used: {error}");
        match signal {
            signal if signal == Signal::TSTP.as_raw() => screen.suspend().map_err(wrong)?,
            // After a stop that we did not make: somebody else may have changed the terminal meanwhile. Drawing
            // follows in any case, also for a new size.
            signal if signal == Signal::CONT.as_raw() || signal == Signal::WINCH.as_raw() => {}
            _ => return Ok(Next::End),
        }
        Ok(Next::Go)
    }

    fn key(&mut self, screen: &Screen, key: Key) -> Result<Next, String> {
        match key {
            Key::Interrupt | Key::Letter('q' | 'Q') => return Ok(Next::End),
            Key::Suspend => screen.suspend().map_err(|error| format!("the terminal cannot be used: {error}"))?,
            Key::Up | Key::Letter('k') => self.step(-1),
            Key::Down | Key::Letter('j') => self.step(1),
            Key::PageUp => self.step(self.page().saturating_neg()),
            Key::PageDown => self.step(self.page()),
            Key::Home => self.step(-isize::MAX),
            Key::End => self.step(isize::MAX),
            Key::Enter | Key::Right if self.pid.is_none() => self.turn(self.chosen),
            Key::Back | Key::Left => self.turn(None),
            Key::Letter('<') => self.sort.step(false),
            Key::Letter('>') => self.sort.step(true),
            Key::Letter('r') => self.sort.reverse = !self.sort.reverse,
            Key::Letter('+') => self.interval = (self.interval * 2).min(Duration::from_secs(86_400)),
            Key::Letter('-') => self.interval = (self.interval / 2).max(Duration::from_millis(100)),
            Key::Letter(' ') => self.paused = !self.paused,
            Key::Letter('?' | 'h') => self.help = !self.help,
            Key::Letter(letter) => self.group(letter),
            Key::Enter | Key::Right => {}
        }
        Ok(Next::Go)
    }

    fn group(&mut self, letter: char) {
        self.groups = match letter {
            '1' => vec![Group::Cfg],
            '2' => vec![Group::Cnt],
            '3' => vec![Group::Mem],
            '4' => vec![Group::Qp],
            '5' => vec![Group::Sock],
            'a' => vec![Group::Cfg, Group::Cnt, Group::Mem, Group::Qp, Group::Sock],
            _ => return,
        };
        self.scrolled = 0;
        if self.pid.is_some() {
            self.look();
        }
    }

    /// Lines of a page: one of the last stays in sight.
    fn page(&self) -> isize {
        isize::try_from(self.room.saturating_sub(1).max(1)).unwrap_or(1)
    }

    /// Goes down by this many lines: in the overview the mark moves, in a process's page the page.
    fn step(&mut self, by: isize) {
        if self.pid.is_some() {
            // How far there is something is known when it is drawn.
            self.scrolled = self.scrolled.saturating_add_signed(by);
            return;
        }
        let order = self.order_shown();
        let next = self.marked(&order).map_or(0, |at| at.saturating_add_signed(by).min(order.len().saturating_sub(1)));
        self.chosen = order.get(next).copied();
    }

    /// The processes as the overview has them.
    fn order_shown(&self) -> Vec<u32> {
        let Some(now) = &self.now else { return Vec::new() };
        rates::sorted(self.before.as_ref().unwrap_or(now), now, self.sort, self.order.filter.as_ref())
    }

    fn marked(&self, order: &[u32]) -> Option<usize> {
        self.chosen.and_then(|chosen| order.iter().position(|pid| *pid == chosen))
    }

    /// Marks the first process where the marked one is not there.
    fn choose(&mut self) {
        if self.now.is_none() || self.pid.is_some() {
            return;
        }
        let order = self.order_shown();
        if !order.iter().any(|pid| Some(*pid) == self.chosen) {
            self.chosen = order.first().copied();
        }
    }

    fn draw(&mut self, screen: &Screen) -> std::io::Result<()> {
        let (columns, rows) = screen.size();
        let style = Style { colour: colours_welcome(), width: Some(columns) };
        self.choose();
        let head: String = self.head().chars().take(columns).collect();
        let body = self.body(style);
        // Head, foot, and an empty line behind the head.
        let room = rows.saturating_sub(3);
        self.room = room;
        let lines: Vec<&str> = body.lines().collect();
        self.scroll(lines.len());
        let shown = lines.iter().skip(self.scrolled).take(room).copied();
        let foot: String = self.foot(lines.len()).chars().take(columns).collect();
        let head = style.paint("7", &format!("{head:<columns$}"));
        let foot = style.paint("2", &foot);
        let fill = room.saturating_sub(lines.len().saturating_sub(self.scrolled));
        let lines = [head.as_str(), ""].into_iter().chain(shown).chain(std::iter::repeat_n("", fill));
        screen.show(lines.chain([foot.as_str()]))
    }

    /// Keeps what is shown within what there is; of the overview the marked line, which the title precedes, is shown.
    fn scroll(&mut self, lines: usize) {
        if self.pid.is_none() && !self.help {
            let marked = self.marked(&self.order_shown()).map_or(0, |at| at + 1);
            let first = if marked <= 1 { 0 } else { marked };
            self.scrolled = self.scrolled.min(first).max((marked + 1).saturating_sub(self.room));
        }
        self.scrolled = self.scrolled.min(lines.saturating_sub(self.room));
    }

    fn foot(&self, lines: usize) -> String {
        let usual = "q quit  ? keys";
        if lines <= self.room {
            return usual.into();
        }
        let last = lines.min(self.scrolled + self.room);
        format!("{usual}  (lines {} to {last} of {lines})", self.scrolled + 1)
    }

    fn head(&self) -> String {
        let what = match self.pid {
            None => {
                let many = self.order_shown().len();
                let processes = if many == 1 { "process" } else { "processes" };
                format!("{many} accelerated {processes}, by {}", self.sort.title())
            }
            Some(pid) => {
                let name = self.now.as_ref().and_then(|round| round.seen.first()).map(|seen| seen.page.program.clone());
                complaint::named(pid, name.as_deref(), "")
            }
        };
        let ended = if self.now.as_ref().is_some_and(|round| round.ended) { ", ended: last figures" } else { "" };
        let paused = if self.paused { ", paused" } else { "" };
        let seconds = self.interval.as_secs_f64();
        // What matters most comes first: a narrow terminal cuts the end.
        format!("{}{ended}  every {seconds} s{paused}  {}", what.trim_end(), time::utc(time::now()))
    }

    fn body(&self, style: Style) -> String {
        if self.help {
            let mut out = String::new();
            paragraph("", KEYS, 0, style.width, &mut out);
            return out;
        }
        if let Some(trouble) = &self.trouble {
            let mut out = String::new();
            paragraph("", trouble, 0, style.width, &mut out);
            return out;
        }
        let Some(now) = &self.now else { return String::new() };
        // The first look has nothing to compare with: it shows what there is, at no rate.
        let before = self.before.as_ref().unwrap_or(now);
        let filter = self.order.filter.as_ref();
        match self.pid {
            None => rates::overview(before, now, self.sort, self.chosen, filter, style),
            Some(_) => rates::process(before, now, &self.groups, filter, style),
        }
    }
}
