//! `netacc_bench server`: a plain control connection, and a measuring process of each kind behind it.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread;
use std::time::Duration;

use netacc_tools::bench_wire::{BenchHello, Door, Reply, Request, Side, Welcome, parse};
use netacc_tools::text::quote;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::args::ServerArgs;
use crate::child::Child;
use crate::listener::{self, Opened};
use crate::timed::{Wire, hear, tell, tell_line, wire};
use crate::{bound, facts, note, say};

/// The most clients that have connected and not yet introduced themselves.
const MOST_GUESTS: usize = 32;
/// For how long they may stay so.
const GREETING: Duration = Duration::from_secs(5);
/// What a client is given beyond the time that it has asked for.
const GRACE: Duration = Duration::from_secs(30);
/// The longest time that a client may ask for.
const LONGEST: u32 = 3600;
/// How long a measuring process may take to say a line.
const CHILD: Duration = Duration::from_secs(20);

/// One measuring process and where it listens.
struct Listener {
    child: Child,
    door: Door,
}

/// Both listeners. The client that is measured holds the lock around them.
struct House {
    plain: Listener,
    netacc: Listener,
}

/// What every guest's thread needs.
struct Shared {
    house: Mutex<House>,
    guests: AtomicUsize,
    /// The address of the client that is measured.
    client: Mutex<String>,
    ended: Sender<Session>,
}

/// How a client went.
enum Session {
    Well,
    /// It did not end as it should.
    Badly(String),
    /// The server is of no further use.
    Lost(String),
}

pub(crate) fn run(args: &ServerArgs) -> Result<(), String> {
    if args.with_parent {
        end_with_parent()?;
    }
    let control = bound::listen(args.bind, args.port)?;
    let port = control.local_addr().map_err(|error| error.to_string())?.port();
    let next = |step: u16| if args.port == 0 { 0 } else { args.port.saturating_add(step) };
    let plain = Listener::start(args, Side::Plain, next(1))?;
    let netacc = Listener::start(args, Side::Netacc, next(2))?;
    if let Some(why) = &netacc.door.obstacle {
        note(&format!("this end cannot be accelerated: {why}"));
    }
    let ports = (plain.door.port, netacc.door.port);
    say(&format!("listens on port {port} (data: port {} plain, port {} accelerated)\n", ports.0, ports.1))?;

    let (ended, end) = channel();
    let house = Mutex::new(House { plain, netacc });
    let shared = Shared { house, guests: AtomicUsize::new(0), client: Mutex::new(String::new()), ended };
    thread::spawn(move || serve_control(&control, &Arc::new(shared)));
    for session in end {
        match session {
            Session::Well if args.one_off => return Ok(()),
            Session::Badly(text) if args.one_off => return Err(text),
            Session::Lost(text) => return Err(text),
            Session::Well => {}
            Session::Badly(text) => note(&text),
        }
    }
    Err("the control port is lost".into())
}

/// Asks the kernel to end us with the process that started us: with its thread, to be exact, which is its main one.
/// SIGTERM, so that redis removes its UNIX socket.
pub(crate) fn end_with_parent() -> Result<(), String> {
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(|error| error.to_string())?;
    // It may have ended just before.
    if getppid() == parent { Ok(()) } else { Err("the process that started this one has ended".into()) }
}

impl Listener {
    fn start(args: &ServerArgs, side: Side, port: u16) -> Result<Self, String> {
        let name = match side {
            Side::Plain => "plain listener",
            Side::Netacc => "accelerated listener",
        };
        let mut child = Child::start(name, &listener::words(args.bind, port), side, args.cpu)?;
        let line = child.hear(CHILD)?;
        match serde_json::from_str(&line) {
            Ok(Opened::Listens { port, obstacle }) => {
                let obstacle = obstacle.filter(|_| side == Side::Netacc);
                Ok(Self { child, door: Door { port, obstacle } })
            }
            Ok(Opened::Failed(text)) => Err(text),
            Err(error) => Err(format!("the {name} said {}: {error}", quote(&line))),
        }
    }

    fn cpu_ns(&mut self) -> Result<u64, String> {
        self.child.tell("\n")?;
        let line = self.child.hear(CHILD)?;
        line.parse().map_err(|_| format!("a listener said {} instead of a number", quote(&line)))
    }
}

fn serve_control(control: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let (stream, from) = match control.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                note(&format!("a client could not be accepted: {error}"));
                // Mostly no descriptor is free; those of waiting clients are free again within seconds.
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        // Where one socket serves both families, IPv4 addresses are told as such.
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        // Beyond these the connection just closes; a client may try again.
        if shared.guests.fetch_add(1, Relaxed) >= MOST_GUESTS {
            shared.guests.fetch_sub(1, Relaxed);
            continue;
        }
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            let known = meet(stream);
            shared.guests.fetch_sub(1, Relaxed);
            match known {
                Ok(wire) => serve(wire, from, &shared),
                Err(text) => note(&format!("{from} {text}")),
            }
        });
    }
}

/// Learns whether a guest is a client of our version.
fn meet(stream: TcpStream) -> Result<Wire, String> {
    let mut wire = wire(stream).map_err(|error| error.to_string())?;
    let line = hear(&mut wire, GREETING).map_err(|ended| format!("is no netacc_bench client: it {ended}"))?;
    let hello = BenchHello::parse(&line)
        .ok_or_else(|| format!("is no netacc_bench client: it begins with {}", quote(&line)))?;
    // The answer tells the client the same about us.
    tell_line(&mut wire, &format!("{}\n", BenchHello::own()))
        .map_err(|error| format!("cannot be answered: {error}"))?;
    match hello.objection() {
        None => Ok(wire),
        Some(objection) => Err(objection),
    }
}

fn serve(mut wire: Wire, from: SocketAddr, shared: &Shared) {
    let mut house = match shared.house.try_lock() {
        Ok(house) => house,
        Err(TryLockError::WouldBlock) => {
            let with = shared.client.lock().map(|client| client.clone()).unwrap_or_default();
            // Whether it hears that or not, it is not measured now.
            let _ = tell(&mut wire, &Reply::Busy { with });
            return;
        }
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
    };
    if let Ok(mut client) = shared.client.lock() {
        *client = from.to_string();
    }
    note(&format!("{from} measures"));
    let session = session(&mut wire, from, &mut house);
    // Released before the end is reported, since a client that reads the report may begin a session at once.
    drop(house);
    if matches!(session, Session::Well) {
        note(&format!("{from} is done"));
    }
    // An error means that no thread waits for the end any more, since the process ends.
    let _ = shared.ended.send(session);
}

fn session(wire: &mut Wire, from: SocketAddr, house: &mut House) -> Session {
    let welcome = Welcome { plain: house.plain.door.clone(), netacc: house.netacc.door.clone(), host: facts::own() };
    if let Err(error) = tell(wire, &Reply::Welcome(welcome)) {
        return Session::Badly(format!("{from} cannot be answered: {error}"));
    }
    let mut patience = GRACE;
    loop {
        let request = match hear(wire, patience) {
            Ok(line) => parse(&line),
            Err(ended) => return Session::Badly(format!("{from} {ended} before it was done")),
        };
        match request {
            Ok(Request::Bye {}) => return Session::Well,
            Ok(Request::Mark { side, seconds }) => {
                patience = GRACE + Duration::from_secs(seconds.min(LONGEST).into());
                let listener = match side {
                    Side::Plain => &mut house.plain,
                    Side::Netacc => &mut house.netacc,
                };
                match listener.cpu_ns() {
                    Ok(cpu_ns) => {
                        if let Err(error) = tell(wire, &Reply::Mark { cpu_ns }) {
                            return Session::Badly(format!("{from} cannot be answered: {error}"));
                        }
                    }
                    Err(text) => {
                        let _ = tell(wire, &Reply::Failed { text: text.clone() });
                        return Session::Lost(text);
                    }
                }
            }
            Err(text) => {
                let reply = Reply::Failed { text: format!("the server was sent what it does not understand: {text}") };
                let _ = tell(wire, &reply);
                return Session::Badly(format!("{from} {text}"));
            }
        }
    }
}
