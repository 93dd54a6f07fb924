//! `--serve`: the metrics over HTTP, for a scraper.

use std::fmt::Display;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use httparse::Status;
use netacc_stats_reader as reader;

use crate::args::{Group, Place};
use crate::chosen::Chosen;
use crate::{metrics, note, openmetrics};

/// How long a client may take for its request, and once more for taking the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest request; what is beyond it is refused.
const REQUEST: usize = 8192;
/// The most lines of a header; what has more is refused.
const LINES: usize = 64;
/// Most clients at once; for a further one another has to go.
const CLIENTS: usize = 64;

/// How far a client is, in the order in which they have to go: one that has its answer misses nothing, and a silent one
/// must not be in the way of those that ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Answered,
    Silent,
    Asking,
}

/// One that is there.
struct Client {
    number: u64,
    stage: Stage,
    stream: TcpStream,
}

/// What was seen, or why nothing could be.
struct Look {
    began: Instant,
    text: Result<String, String>,
}

/// One client looks at a time, and what it sees is for all that asked before it began to look. Nobody holds the lock
/// while it looks: the others take the answer as soon as it is there, and need not wait for each other's turn.
#[derive(Default)]
struct Looks {
    last: Option<Look>,
    looking: bool,
}

/// What is served.
struct Service {
    chosen: Chosen,
    groups: Vec<Group>,
    /// The oldest first.
    clients: Mutex<Vec<Client>>,
    looks: Mutex<Looks>,
    /// A look has ended.
    looked: Condvar,
}

/// Serves until the program is ended.
pub(crate) fn run(place: &Place, chosen: Chosen, groups: Vec<Group>) -> Result<String, String> {
    let listener = TcpListener::bind(place.addresses.as_slice());
    let listener = listener.map_err(|error| format!("cannot listen at {}: {error}", place.text))?;
    let addr = listener.local_addr().map_err(|error| error.to_string())?;
    note(format_args!("metrics at http://{addr}/metrics"));
    let clients = Mutex::new(Vec::new());
    let service = Arc::new(Service { chosen, groups, clients, looks: Mutex::default(), looked: Condvar::new() });
    for number in 0.. {
        match listener.accept() {
            Ok((client, _)) => take(&service, number, client),
            Err(error) => {
                note(format_args!("a client could not be accepted: {error}"));
                // Out of descriptors or memory: the same again at once would not help.
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
    Ok(String::new())
}

impl Service {
    /// What there is to see, not older than the question.
    fn look(&self, asked: Instant) -> Result<String, String> {
        let mut looks = lock(&self.looks);
        loop {
            if let Some(look) = looks.last.as_ref().filter(|look| look.began >= asked) {
                return look.text.clone();
            }
            if !looks.looking {
                break;
            }
            looks = self.looked.wait(looks).unwrap_or_else(PoisonError::into_inner);
        }
        looks.looking = true;
        drop(looks);
        let began = Instant::now();
        let text = self.see();
        let mut looks = lock(&self.looks);
        *looks = Looks { last: Some(Look { began, text: text.clone() }), looking: false };
        self.looked.notify_all();
        text
    }

    fn see(&self) -> Result<String, String> {
        let listing = match self.chosen.pid() {
            None => {
                let mut listing = reader::list_processes().map_err(|error| error.to_string())?;
                self.chosen.keep(&mut listing);
                listing
            }
            // A process that has ended is no failure of the scrape: its metrics end.
            Some(pid) => reader::Listing { processes: reader::open(pid).into_iter().collect(), ..Default::default() },
        };
        Ok(metrics::text(listing, &self.groups))
    }
}

/// What a thread that panicked may leave behind is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a client a thread of its own, so that nobody waits for a slow one. Many cannot keep others out: one gives way.
fn take(service: &Arc<Service>, number: u64, client: TcpStream) {
    let Ok(handle) = client.try_clone() else { return };
    {
        let mut clients = lock(&service.clients);
        if clients.len() >= CLIENTS {
            // Of those that are equally far the oldest. Its thread sees the end.
            if let Some((index, _)) = clients.iter().enumerate().min_by_key(|(_, client)| client.stage) {
                let _ = clients.remove(index).stream.shutdown(Shutdown::Both);
            }
        }
        clients.push(Client { number, stage: Stage::Silent, stream: handle });
    }
    let turn = Turn { service: Arc::clone(service), number };
    let started = thread::Builder::new().name("client".into()).spawn(move || {
        // A client that goes away or is too slow is its own affair.
        let _ = serve(&turn, &client);
    });
    if let Err(error) = started {
        note(format_args!("no thread for a client: {error}"));
    }
}

/// The place of one client; free again when it is dropped.
struct Turn {
    service: Arc<Service>,
    number: u64,
}

impl Turn {
    fn comes_to(&self, stage: Stage) {
        for client in lock(&self.service.clients).iter_mut().filter(|client| client.number == self.number) {
            client.stage = stage;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.service.clients).retain(|client| client.number != self.number);
    }
}

fn serve(turn: &Turn, client: &TcpStream) -> io::Result<()> {
    let request = request(client, Instant::now() + PATIENCE)?;
    turn.comes_to(Stage::Asking);
    let answer = match request {
        Ok(Request::Metrics) => Answer::metrics(&turn.service),
        Ok(Request::Head) => Answer { head: true, ..Answer::metrics(&turn.service) },
        Ok(Request::Health { head }) => Answer { head, ..Answer::plain(200, "OK", "ok\n") },
        Err(answer) => answer,
    };
    // Its time begins anew: how long the look took was not the client's affair.
    send(client, &answer.bytes(!answer.head), Instant::now() + PATIENCE)?;
    // Before the client sees the end: what comes in its stead may not find all places taken by those that ask.
    turn.comes_to(Stage::Answered);
    client.shutdown(Shutdown::Write)?;
    // What the client still sends is read: closing with it unread would be a reset, and might cost it the answer.
    let until = Instant::now() + Duration::from_secs(1);
    let mut rest = [0; 4096];
    let mut left = 64 * 1024;
    while left > 0 {
        left -= match receive(client, &mut rest, until)? {
            0 => break,
            count => count.min(left),
        };
    }
    Ok(())
}

fn time_left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn receive(mut client: &TcpStream, buffer: &mut [u8], until: Instant) -> io::Result<usize> {
    client.set_read_timeout(Some(time_left(until)?))?;
    client.read(buffer)
}

fn send(mut client: &TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        client.set_write_timeout(Some(time_left(until)?))?;
        match client.write(bytes)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => bytes = bytes.get(count..).unwrap_or_default(),
        }
    }
    Ok(())
}

/// What a client wants.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Metrics,
    /// Only what the answer would be like.
    Head,
    /// Whether the service works.
    Health {
        /// Only what the answer would be like.
        head: bool,
    },
}

/// Reads a request to the end of its header; what is wrong with it is an answer, too.
fn request(client: &TcpStream, until: Instant) -> io::Result<Result<Request, Answer>> {
    let mut seen = Vec::new();
    let mut buffer = [0; 1024];
    while !is_whole(&seen) {
        match receive(client, &mut buffer, until) {
            // A client that says nothing at all, as one that looks whether the port is open.
            Ok(0) if seen.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(0) => break,
            Ok(count) => seen.extend_from_slice(buffer.get(..count).unwrap_or_default()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                // It gets its answer after its time, briefly.
                let late = Answer::plain(408, "Request Timeout", "the request took too long\n");
                send(client, &late.bytes(true), Instant::now() + Duration::from_secs(1))?;
                return Err(error);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if seen.len() > REQUEST {
            return Ok(Err(too_long()));
        }
    }
    Ok(understand(&seen))
}

/// Whether nothing more has to come: the header has its end, or is wrong already.
fn is_whole(seen: &[u8]) -> bool {
    !matches!(httparse::Request::new(&mut [httparse::EMPTY_HEADER; LINES]).parse(seen), Ok(Status::Partial))
}

/// Judges a request.
fn understand(seen: &[u8]) -> Result<Request, Answer> {
    let wrong = |what: &dyn Display| Answer::plain(400, "Bad Request", &format!("{what}\n"));
    let mut lines = [httparse::EMPTY_HEADER; LINES];
    let mut request = httparse::Request::new(&mut lines);
    match request.parse(seen) {
        Ok(Status::Complete(_)) => {}
        Ok(Status::Partial) => return Err(wrong(&"the request has no end")),
        Err(httparse::Error::TooManyHeaders) => return Err(too_long()),
        Err(error) => return Err(wrong(&error)),
    }
    let named = |line: &httparse::Header<'_>| line.name.eq_ignore_ascii_case("host");
    if request.version == Some(1) && !request.headers.iter().any(named) {
        return Err(wrong(&"the header names no host"));
    }
    let is_health = match request.path.and_then(path) {
        Some("/metrics") => false,
        Some("/healthz") => true,
        _ => return Err(Answer::plain(404, "Not Found", "the metrics are at /metrics\n")),
    };
    match (request.method, is_health) {
        (Some("GET"), false) => Ok(Request::Metrics),
        (Some("HEAD"), false) => Ok(Request::Head),
        (Some(method @ ("GET" | "HEAD")), true) => Ok(Request::Health { head: method == "HEAD" }),
        _ => Err(Answer::plain(405, "Method Not Allowed", "GET and HEAD only\n")),
    }
}

fn too_long() -> Answer {
    Answer::plain(431, "Request Header Fields Too Large", "the request is too long\n")
}

/// The path of a target, which may be a whole URL.
fn path(target: &str) -> Option<&str> {
    let local = match target.split_once("://") {
        Some((_, rest)) => rest.get(rest.find('/')?..)?,
        None => target,
    };
    local.split(['?', '#']).next()
}

/// What is answered.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    phrase: &'static str,
    kind: &'static str,
    body: String,
    /// Without its body.
    head: bool,
}

impl Answer {
    fn plain(status: u16, phrase: &'static str, body: &str) -> Self {
        Self { status, phrase, kind: "text/plain; charset=utf-8", body: body.to_owned(), head: false }
    }

    fn metrics(service: &Service) -> Self {
        match service.look(Instant::now()) {
            Ok(body) => Self { status: 200, phrase: "OK", kind: openmetrics::CONTENT_TYPE, body, head: false },
            Err(error) => Self::plain(500, "Internal Server Error", &format!("/proc cannot be read: {error}\n")),
        }
    }

    fn bytes(&self, body: bool) -> Vec<u8> {
        let allow = if self.status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
            self.status,
            self.phrase,
            self.kind,
            self.body.len()
        );
        let mut bytes = head.into_bytes();
        if body {
            bytes.extend_from_slice(self.body.as_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_tools::args::who::Who;

    #[test]
    fn requests() {
        let status = |text: &str| understand(text.as_bytes()).map_err(|answer| answer.status);
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), Ok(Request::Metrics));
        assert_eq!(status("GET http://x:9/metrics?a=b HTTP/1.1\r\nhost:x\r\n\r\n"), Ok(Request::Metrics));
        assert_eq!(status("HEAD /metrics HTTP/1.0\n\n"), Ok(Request::Head));
        assert_eq!(status("GET /healthz HTTP/1.0\n\n"), Ok(Request::Health { head: false }));
        assert_eq!(status("HEAD /healthz HTTP/1.0\n\n"), Ok(Request::Health { head: true }));
        for (text, code) in [
            ("POST /healthz HTTP/1.0\r\n\r\n", 405),
            ("GET / HTTP/1.0\r\n\r\n", 404),
            ("GET /metrics/ HTTP/1.0\r\n\r\n", 404),
            ("GET http://x HTTP/1.0\r\n\r\n", 404),
            ("POST /metrics HTTP/1.0\r\n\r\n", 405),
            ("GET /metrics HTTP/1.1\r\n\r\n", 400),
            ("GET /metrics HTTP/2\r\nHost: x\r\n\r\n", 400),
            ("GET  /metrics HTTP/1.0\r\n\r\n", 400),
            ("GET /metrics HTTP/1.0\r\nno colon\r\n\r\n", 400),
            ("GET /metrics HTTP/1.0\r\n: empty\r\n\r\n", 400),
            ("GET /metrics HTTP/1.0\r\nHost: x\r\n", 400),
            ("\r\n\r\n", 400),
            ("", 400),
        ] {
            assert_eq!(status(text), Err(code), "{text:?}");
        }
        assert_eq!(understand(b"GET /\xff HTTP/1.0\r\n\r\n").map_err(|answer| answer.status), Err(400));
    }

    #[test]
    fn a_look_is_for_those_who_asked_before() {
        let (clients, looks, looked) = (Mutex::default(), Mutex::default(), Condvar::new());
        let service =
            Service { chosen: Chosen::new(&[Who::Pid(u32::MAX)]), groups: Vec::new(), clients, looks, looked };
        let began = |service: &Service| lock(&service.looks).last.as_ref().map(|look| look.began);
        let asked = Instant::now();
        assert!(service.look(asked).unwrap().ends_with("# EOF\n"));
        let first = began(&service);
        assert!(first >= Some(asked));
        service.look(asked).unwrap();
        assert_eq!(began(&service), first, "a client that asked before the last look caused another one");
        let later = Instant::now();
        service.look(later).unwrap();
        assert!(began(&service) >= Some(later), "a client that asked later got older figures");
    }

    #[test]
    fn answers_say_their_length() {
        let answer = Answer::plain(405, "Method Not Allowed", "no\n");
        let text = String::from_utf8(answer.bytes(true)).unwrap();
        assert!(text.contains("\r\nContent-Length: 3\r\nAllow: GET, HEAD\r\n") && text.ends_with("\r\n\r\nno\n"));
        assert!(answer.bytes(false).ends_with(b"close\r\n\r\n"));
    }
}
