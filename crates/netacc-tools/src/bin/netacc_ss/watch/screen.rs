//! The terminal while it is ours, and its return on every way out: the end of the scope, a panic, a signal (those
//! are read, see [`Screen::signals`]). Only SIGKILL leaves it as it is.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use netacc_sys::signals::Waiting;
use netacc_tools::terminal;
use rustix::fd::OwnedFd;
use rustix::process::Signal;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// The alternate screen, no cursor, and no further line where the terminal has just become narrower than a line.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// The first column of the first line.
const HOME: &str = "\x1b[H";
/// Removes what is behind the cursor.
const REST_OF_LINE: &str = "\x1b[K";
const REST_OF_SCREEN: &str = "\x1b[J";

/// What the terminal was like before; here and not in [`Screen`], because a panic has to find it, too.
static BEFORE: Mutex<Option<(OwnedFd, Termios)>> = Mutex::new(None);

/// A terminal in our hands.
pub(super) struct Screen {
    /// Also for keys: standard input may be something else.
    pub(super) terminal: OwnedFd,
    pub(super) signals: Waiting,
}

impl Screen {
    pub(super) fn take() -> Result<Self, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("the terminal cannot be used: {error}");
        let terminal = terminal::open_stdout().ok_or_else(|| wrong(&"it cannot be opened"))?;
        let all = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::TSTP, Signal::CONT, Signal::WINCH];
        let signals = Waiting::begin(&all.map(Signal::as_raw)).map_err(|error| wrong(&error))?;
        let screen = Self { terminal, signals };
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |what| {
            give_back();
            usual(what);
        }));
        screen.enter().map_err(|error| wrong(&error))?;
        Ok(screen)
    }

    /// Single keys without echo; Ctrl-C and its like are keys.
    pub(super) fn enter(&self) -> io::Result<()> {
        let system = |error: rustix::io::Errno| io::Error::from_raw_os_error(error.raw_os_error());
        let before = tcgetattr(&self.terminal).map_err(system)?;
        let mut raw = before.clone();
        raw.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN);
        // A read returns what is there, also nothing.
        raw.special_codes[SpecialCodeIndex::VMIN] = 0;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        let own = terminal::open_stdout().ok_or(io::ErrorKind::NotFound)?;
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some((own, before));
        tcsetattr(&self.terminal, OptionalActions::Now, &raw).map_err(system)?;
        put(ENTER)
    }

    /// Lets go for a while (Ctrl-Z).
    pub(super) fn suspend(&self) -> io::Result<()> {
        give_back();
        // Stops here until somebody continues us.
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
        self.enter()
    }

    /// Columns and rows.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = tcgetwinsize(&self.terminal).ok();
        let of = |side: Option<u16>, usual: usize| side.map(usize::from).filter(|side| *side > 0).unwrap_or(usual);
        (of(size.as_ref().map(|size| size.ws_col), 80), of(size.as_ref().map(|size| size.ws_row), 24))
    }

    /// Shows lines from the top; the terminal clears what was there before. Long lines are cut here, since a terminal would
    /// write all of the rest onto the last column.
    pub(super) fn show<'a>(&self, lines: impl Iterator<Item = &'a str>) -> io::Result<()> {
        let (width, _) = self.size();
        let mut text = String::from(HOME);
        let mut lines = lines.peekable();
        while let Some(line) = lines.next() {
            // What was there is removed first: behind a line as wide as the terminal the cursor stands on its last letter.
            text.push_str(if lines.peek().is_some() { REST_OF_LINE } else { REST_OF_SCREEN });
            text.push_str(&terminal::cut(line, width));
            if lines.peek().is_some() {
                text.push_str("\r\n");
            }
        }
        text.push_str(HOME);
        put(&text)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn put(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The terminal as it was; once.
fn give_back() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((terminal, modes)) = before {
        // A terminal that is gone needs nothing.
        let _ = put(LEAVE);
        let _ = tcsetattr(&terminal, OptionalActions::Now, &modes);
    }
}
