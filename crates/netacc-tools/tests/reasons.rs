//! What the tools advise about a connection by TCP whose other end has NetACC, for each reason that the other end can
//! have. Both ends are in this very test process.

#![allow(clippy::expect_used, reason = "helpers of tests fail by panicking")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, id};
use std::sync::{LazyLock, Mutex};

use netacc_stats::{Reason, SockAddr, State, Transport};
use netacc_tools::standing::is_own;
use serde_json::Value;

/// A listener of this process and both ends of a connection to it. One test at a time says what the page shows of them.
struct Ends {
    _page: rustix::fd::OwnedFd,
    listener: TcpListener,
    client: TcpStream,
    server: TcpStream,
}

static ENDS: LazyLock<Mutex<Ends>> = LazyLock::new(|| {
    let page = netacc_stats::init(b"both-ends", id()).expect("a page");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (server, _) = listener.accept().expect("its other end");
    Mutex::new(Ends { _page: page, listener, client, server })
});

/// The configuration of the tools: nothing but defaults.
const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/netacc.conf");

impl Ends {
    fn show(&self, fd: impl AsFd, state: State, reason: Reason) {
        let number = fd.as_fd().as_raw_fd();
        let entry = netacc_stats::page().sock(number).expect("an entry");
        entry.open(state, Transport::Tcp, reason, 1_000_000_000);
        let of = |addr: std::io::Result<SocketAddr>| {
            let port = addr.expect("an address").port();
            SockAddr::v4([127, 0, 0, 1], port)
        };
        match state {
            State::Listening => entry.set_addrs(&of(self.listener.local_addr()), &SockAddr::default()),
            _ if number == self.client.as_raw_fd() => {
                entry.set_addrs(&of(self.client.local_addr()), &of(self.client.peer_addr()));
            }
            _ => entry.set_addrs(&of(self.server.local_addr()), &of(self.server.peer_addr())),
        }
    }

    fn tool(&self, path: &str, args: &[&str]) -> Value {
        let output = Command::new(path).args(args).env("NACC_CONFIG_FILE", CONFIG).output().expect("it runs");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// The text and the advice of `netacc_check` about the listener.
    fn check(&self) -> (String, String) {
        let target = self.listener.local_addr().expect("an address").to_string();
        let shown = self.tool(env!("CARGO_BIN_EXE_netacc_check"), &["--json", &target]);
        let findings = shown.get("findings").and_then(Value::as_array).expect("findings");
        let found = findings.iter().find(|found| word(found, "check") == "transport").expect("the transport");
        (word(found, "text"), word(found, "do"))
    }

    /// Why, and what `netacc_ss --explain` would change, about one end of the connection.
    fn explain(&self, end: &TcpStream) -> (String, String) {
        let question = format!("{}:{}", id(), end.as_raw_fd());
        let shown = self.tool(env!("CARGO_BIN_EXE_netacc_ss"), &["--json", "--explain", &question]);
        let found = shown.pointer("/sockets/0").expect("a socket");
        (word(found, "why"), word(found, "remedy"))
    }
}

fn word(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).expect("a text").to_owned()
}

/// Whether the text says that this process has no NetACC, or the advice is to start it with NetACC.
fn denies(text: &str, advice: &str) -> bool {
    let program = format!("start process {}", id());
    text.contains("no NetACC") || text.contains("without NetACC:") || advice.to_lowercase().contains(&program)
}

/// Whether this reason is given in full: its name and its cause in the text, and its remedy as the advice.
fn gives(text: &str, advice: &str, reason: Reason) -> bool {
    let (why, remedy) = reason.why_and_remedy();
    let remedy = remedy.trim_end_matches('.').replace("PID", &id().to_string());
    let remedy =
        if reason == Reason::Operator { remedy } else { reason.why_and_remedy().1.trim_end_matches('.').into() };
    let same = |a: &str, b: &str| a.to_lowercase().contains(&b.to_lowercase());
    text.contains(&format!("({})", reason.name())) && text.contains(why.trim_end_matches('.')) && same(advice, &remedy)
}

fn reasons() -> impl Iterator<Item = Reason> {
    Reason::ALL.iter().copied().filter(|reason| *reason != Reason::None)
}

#[test]
fn a_client_gets_the_reason_of_the_listener() {
    let ends = ENDS.lock().expect("no test has failed");
    ends.show(&ends.client, State::Established, Reason::PeerPlain);
    for reason in reasons() {
        ends.show(&ends.listener, State::Listening, reason);
        for (text, advice) in [ends.check(), ends.explain(&ends.client)] {
            assert!(text.contains(&format!("process {} (", id())), "{reason}: {text}");
            assert!(!denies(&text, &advice), "{reason}: {text} {advice}");
            // That it found nobody at the other end is nothing that a listener can say.
            let is_none = matches!(reason, Reason::PeerPlain | Reason::PlainClient);
            assert!(is_none || gives(&text, &advice, reason), "{reason}: {text} {advice}");
        }
    }
}

#[test]
fn a_server_gets_the_reason_of_the_client() {
    let ends = ENDS.lock().expect("no test has failed");
    let all = reasons().map(|reason| (Reason::PlainClient, reason));
    for (own, reason) in all.chain([(Reason::PeerMoved, Reason::Operator), (Reason::PeerMoved, Reason::PeerMoved)]) {
        ends.show(&ends.server, State::Established, own);
        ends.show(&ends.client, State::Established, reason);
        let (text, advice) = ends.explain(&ends.server);
        assert!(text.contains(&format!("process {} (", id())), "{reason}: {text}");
        assert!(!denies(&text, &advice), "{reason}: {text} {advice}");
        assert!(!is_own(reason) || gives(&text, &advice, reason), "{reason}: {text} {advice}");
    }
}
