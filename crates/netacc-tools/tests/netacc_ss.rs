//! `netacc_ss` from the outside, looking at this very test process.

#![allow(clippy::expect_used, reason = "helpers of tests fail by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use netacc_stats::{Counter, LinkKind, NewLink, Reason, SockAddr, State, Transport};
use serde_json::Value;

/// The page of this process. It is filled once; the descriptor stays open.
static PAGE: LazyLock<rustix::fd::OwnedFd> = LazyLock::new(|| {
    let made = netacc_stats::init(b"redis-server", std::process::id()).expect("a page");
    let page = netacc_stats::page();
    page.add(Counter::ConnectsShm, 12);
    page.add(Counter::LinksOpened, 3);
    page.add(Counter::LinksLost, 1);
    // A gauge caught between down and up.
    page.sub(Counter::SlotsInUse, 1);
    page.fallback(Reason::PeerPlain);
    page.demoted(Reason::Exec);
    page.promoted(Reason::TcpFirst);
    let link = NewLink {
        id: 4,
        kind: LinkKind::Shm,
        server: true,
        peer_pid: 77,
        now_ns: 1_000_000_000,
        capacity: 511,
        address: 4096,
    };
    let entry = page.open_link(&link).and_then(|place| page.link(place)).expect("a link");
    entry.taken();
    assert!(entry.left());
    let pair = NewLink { id: 9, kind: LinkKind::Rdma, server: false, peer_pid: 0, address: 0x2b, ..link };
    let pair = page.open_link(&pair).and_then(|place| page.link(place)).expect("a queue pair");
    pair.lead_to("rxe_test", &SockAddr::v4([10, 8, 0, 1], 26379));
    pair.set_credits(3, 4);
    pair.completed(7);
    pair.expires_at(u64::MAX);
    page.add(Counter::RegisteredBytes, 81920);
    page.fallback(Reason::PeerPlain);
    page.set_cfg(b"NACC_LOG_LEVEL\t4\t/etc/netacc.conf:7\nNACC_SOR_AFFINITY\t\tdefault\n");
    let sock = |fd, state, transport, reason, peer: SockAddr| {
        let entry = page.sock(fd).expect("an entry");
        entry.open(state, transport, reason, 1_000_000_000);
        entry.set_addrs(&SockAddr::v4([127, 0, 0, 1], 6379), &peer);
        entry
    };
    let none = SockAddr::default();
    sock(6, State::Listening, Transport::Shm, Reason::None, none);
    let peer = SockAddr::v4([127, 0, 0, 1], 40000);
    let fast = sock(7, State::Established, Transport::Shm, Reason::None, peer);
    fast.set_peer_pid(4242);
    fast.set_link(5);
    fast.received(512);
    fast.sent(1024);
    let peer = SockAddr::v6([0x20; 16], 40001);
    sock(8, State::Established, Transport::Tcp, Reason::PlainClient, peer).sent(9);
    made
});

fn ss(args: &[&str]) -> Output {
    LazyLock::force(&PAGE);
    Command::new(env!("CARGO_BIN_EXE_netacc_ss")).args(args).output().expect("netacc_ss runs")
}

/// What a call that works prints.
fn good(args: &[&str]) -> String {
    let output = ss(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&good(args)).expect("JSON")
}

/// What a call that fails with `status` says.
fn bad(args: &[&str], status: i32) -> String {
    let output = ss(args);
    assert_eq!(output.status.code(), Some(status), "{args:?}");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).expect("text")
}

fn own() -> String {
    std::process::id().to_string()
}

/// The words of each line.
fn words(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn counters_are_the_default() {
    let text = good(&[&own()]);
    assert_eq!(text, good(&["-p", &own()]));
    assert_eq!(text, good(&["-s", "cnt", "-p", &own()]));
    let lines = words(&text);
    assert_eq!(lines[0], ["Counter", "Value"]);
    for expected in [
        ["connects_shm", "12"],
        ["slots_in_use", "-1"],
        ["fallbacks", "2"],
        ["fallbacks.peer-plain", "2"],
        ["demotions.exec", "1"],
        ["promotions.tcp-first", "1"],
        ["shm.bytes_in", "512"],
        ["tcp.bytes_out", "9"],
        ["syscalls_avoided", "2"],
    ] {
        assert!(lines.iter().any(|line| *line == expected), "{expected:?} in {text}");
    }
    assert!(!text.contains("other-host"));
    assert!(text.contains(Reason::PeerPlain.sentence()));
}

#[test]
fn sockets_are_columns_with_the_volumes_rightmost() {
    let text = good(&["-p", &own(), "-s", "sock"]);
    let lines = words(&text);
    assert!(lines[0].ends_with(&["Msgs-In", "Bytes-In", "Msgs-Out", "Bytes-Out"]));
    assert_eq!(lines[1], ["6", "SHM", "LISTEN", "127.0.0.1:6379", "-", "-", "-", "-", "0", "0", "0", "0"]);
    let shm = "7 SHM ESTAB 127.0.0.1:6379 127.0.0.1:40000 4242 - 5 1 512 1 1024";
    assert_eq!(lines[2].join(" "), shm);
    let peer = "[2020:2020:2020:2020:2020:2020:2020:2020]:40001";
    let tcp = format!("8 TCP ESTAB 127.0.0.1:6379 {peer} - plain-client - 0 0 1 9");
    assert_eq!(lines[3].join(" "), tcp);
    assert!(text.contains(Reason::PlainClient.sentence()));
    let width = |line: &str| line.chars().count();
    let table: Vec<usize> = text.lines().take(4).map(width).collect();
    assert!(table.iter().all(|columns| *columns == table[0]), "{text}");
}

#[test]
fn configuration_names_its_sources() {
    let text = good(&["-p", &own(), "-s", "cfg"]);
    let lines = words(&text);
    assert_eq!(lines[1], ["NACC_LOG_LEVEL", "4", "/etc/netacc.conf:7"]);
    assert_eq!(lines[2], ["NACC_SOR_AFFINITY", "\"\"", "default"]);
}

#[test]
fn memory_and_queue_pairs() {
    let text = good(&["-p", &own(), "-s", "qp,mem"]);
    assert!(text.starts_with("memory (mem):\n"), "{text}");
    let lines = words(&text);
    assert!(lines.iter().any(|line| line.starts_with(&["netacc-stats", "1"])), "{text}");
    assert!(lines.iter().any(|line| *line == ["links_open", "2"]), "{text}");
    // A link with an entry, and one that only a socket tells of.
    let row = lines.iter().find(|line| line.starts_with(&["4", "SHM"])).expect("link 4");
    assert_eq!((&row[2..7], &row[9..]), (&["server", "77", "0", "511", "1"][..], &["never", "0", "0"][..]), "{text}");
    let row = lines.iter().find(|line| line.starts_with(&["9", "rxe_test", "43"])).expect("the queue pair");
    assert_eq!(row[3..14].join(" "), "0 RDMA client 10.8.0.1:26379 0 511 0 3/4 0 7 0", "{text}");
    assert!(lines.iter().any(|line| line.join(" ") == "rxe_test not known -"), "{text}");
    assert!(lines.iter().any(|line| line.join(" ") == "registered for RDMA 81920"), "{text}");
    let row = "5 SHM - 4242 1 - - - - - 512 1024";
    assert!(lines.iter().any(|line| line.join(" ") == row), "{text}");
    assert!(lines.iter().any(|line| line.join(" ") == "pinned for devices 0"), "{text}");
    assert!(text.contains("resident per connection"), "{text}");
}

#[test]
fn json_holds_what_was_asked_for() {
    let all = json(&["-p", &own(), "-s", "all", "--json"]);
    assert_eq!(all["program"], "redis-server");
    assert_eq!(all["cnt"]["connects_shm"], 12);
    assert_eq!(all["cnt"]["slots_in_use"], -1);
    assert_eq!(all["cnt"]["fallbacks"]["reasons"]["peer-plain"], 2);
    assert_eq!(all["cfg"][0]["source"], "/etc/netacc.conf:7");
    assert_eq!(all["sock"][1]["peer"], "127.0.0.1:40000");
    assert_eq!(all["sock"][1]["reason"], Value::Null);
    assert_eq!(all["sock"][1]["since"], "1970-01-01T00:00:01Z");
    assert_eq!(all["sock"][2]["reason"], "plain-client");
    assert_eq!(all["cnt"]["moved"]["shm"]["bytes_out"], 1024);
    assert_eq!(all["cnt"]["demotion_reasons"]["reasons"]["exec"], 1);
    assert_eq!(all["qp"]["links"][0]["ever"], 1);
    assert!(all["qp"]["links"][0]["idle_seconds"].as_f64().expect("idle") > 1e8);
    assert_eq!(all["qp"]["links"][0]["expires_seconds"], Value::Null);
    assert_eq!(all["qp"]["links"][1]["link"], 5);
    assert_eq!(all["qp"]["links"][1]["age_seconds"], Value::Null);
    assert_eq!(all["qp"]["links"][1]["queue_pair"], Value::Null);
    let pair = &all["qp"]["links"][2];
    assert_eq!((&pair["link"], &pair["transport"]), (&Value::from(9), &Value::from("RDMA")));
    assert!(pair["expires_seconds"].as_f64().expect("when it expires") > 1e9);
    assert_eq!(pair["queue_pair"]["peer"], "10.8.0.1:26379");
    assert_eq!(pair["queue_pair"]["sends_completed"], 7);
    assert_eq!(all["qp"]["devices"][0]["retries"], Value::Null);
    assert_eq!(all["mem"]["registered_bytes"], 81920);
    assert_eq!(all["mem"]["areas"]["netacc-stats"]["mappings"], 1);
    let some = json(&["-s", "sock", "--json", &own()]);
    assert_eq!(some["cnt"], Value::Null);
}

#[test]
fn without_a_pid_processes_are_listed() {
    let text = good(&[]);
    let own = own();
    let lines = words(&text);
    let line = lines.iter().find(|line| line[0] == own).expect("this process");
    assert_eq!(line[1..9], ["redis-server", "on", "1", "1", "1", "0", "512", "1033"]);
    let list = json(&["--json"]);
    let mut processes = list.as_array().expect("a list").iter();
    let found = processes.find(|process| process["pid"] == std::process::id()).expect("this process");
    assert_eq!(found["state"], "on");
    assert_eq!(found["sockets"]["shm"], 1, "a listener is no connection");
    assert_eq!(found["sockets"]["listen"], 1);
}

/// What only a host with a device prints, which no test has; each with its labels beside those of a process.
const OF_DEVICES: [(&str, [&str; 2]); 1] = [("netacc_device_retries_total", ["device", "counter"])];

/// Each metric that is printed, with its labels and their values.
fn samples() -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    let mut found: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for line in good(&["--openmetrics", "-s", "all", "-p", &own()]).lines().filter(|line| !line.starts_with('#')) {
        let (name, labels) = line.split_once(['{', ' ']).expect("a sample");
        let known = found.entry(name.to_owned()).or_default();
        for (label, value) in labels.split("\",").filter_map(|pair| pair.split_once("=\"")) {
            let value = value.split('"').next().unwrap_or_default();
            known.entry(label.to_owned()).or_default().insert(value.to_owned());
        }
    }
    found
}

/// The words of a text that begin with `netacc_`, each with what follows it.
fn metrics_in(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let word = |c: char| c.is_ascii_lowercase() || c == '_';
    text.match_indices("netacc_").map(move |(at, _)| {
        let rest = &text[at..];
        rest.split_at(rest.find(|c| !word(c)).unwrap_or(rest.len()))
    })
}

/// The labels that clauses like `by (a, b)` name.
fn labels_of_clauses(expression: &str) -> Vec<&str> {
    let clauses = ["by (", "on (", "group_left ("].into_iter().flat_map(|clause| expression.split(clause).skip(1));
    clauses.flat_map(|rest| rest.split(')').next().unwrap_or_default().split(", ")).collect()
}

#[test]
fn the_dashboard_asks_for_what_there_is() {
    let mut samples = samples();
    let of_process = samples["netacc_process_info"].clone();
    for (name, labels) in OF_DEVICES {
        let mut known = of_process.clone();
        known.extend(labels.map(|label| (label.to_owned(), BTreeSet::new())));
        assert!(samples.insert(name.to_owned(), known).is_none(), "{name} is printed");
    }
    let board = include_str!("../../../dist/grafana-netacc.json");
    let board: Value = serde_json::from_str(board).expect("JSON");
    let panels = board["panels"].as_array().expect("panels");
    let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "numbers of panels");
    let mut used = BTreeSet::new();
    for target in panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets")) {
        let expression = target["expr"].as_str().expect("an expression");
        let mut labels = BTreeSet::from(["instance"]);
        for (name, rest) in metrics_in(expression) {
            let known = samples.get(name).unwrap_or_else(|| panic!("no {name}: {expression}"));
            labels.extend(known.keys().map(String::as_str));
            used.insert(name.to_owned());
            let filters = rest.strip_prefix('{').and_then(|rest| rest.split('}').next()).unwrap_or_default();
            for filter in filters.split("\",").filter(|filter| !filter.is_empty()) {
                let (label, value) = filter.split_once(['=', '!']).expect("a filter");
                let value = value.trim_start_matches(['=', '~', '"']).trim_end_matches('"');
                assert!(label == "instance" || known.contains_key(label), "no {label} at {name}: {expression}");
                assert!(value.starts_with('$') || known[label].contains(value), "no {value} at {name}: {expression}");
            }
            // A rate is that of a counter.
            assert!(!expression.contains(&format!("rate({name}")) || name.ends_with("_total"), "{expression}");
        }
        let clauses = labels_of_clauses(expression);
        assert!(clauses.iter().all(|label| labels.contains(label)), "{expression}");
        let legend = target["legendFormat"].as_str().expect("a legend");
        for label in legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next()) {
            assert!(clauses.contains(&label), "{label} of {legend} is not there: {expression}");
        }
    }
    for name in ["netacc_queue_pair_info", "netacc_queue_pair_credits", "netacc_registered_bytes"] {
        assert!(used.contains(name), "{name} is not drawn");
    }
    for variable in board["templating"]["list"].as_array().expect("variables") {
        let query = variable["query"].as_str().expect("a query");
        for (name, _) in metrics_in(query) {
            let label = query.rsplit_once(", ").and_then(|(_, rest)| rest.strip_suffix(')')).expect("a label");
            assert!(label == "instance" || samples[name].contains_key(label), "{query}");
        }
    }
}

#[test]
fn the_manual_page_names_every_metric() {
    let page = include_str!("../../../man/netacc_ss.1");
    let section = page.split(".SH OPENMETRICS").nth(1).and_then(|rest| rest.split("\n.SH ").next()).expect("a section");
    let promised: BTreeSet<&str> =
        metrics_in(section).map(|(name, _)| name).filter(|name| *name != "netacc_ss").collect();
    let text = good(&["--openmetrics", "-s", "all", "-p", &own()]);
    let mut printed: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    printed.extend(OF_DEVICES.map(|(name, _)| name.trim_end_matches("_total")));
    // The links of this page have no memory.
    printed.insert("netacc_connection_memory_bytes");
    // Its configuration has no rules, and its listener no reason.
    printed.extend(["netacc_rule_decisions", "netacc_listeners_on_tcp"]);
    assert_eq!(printed, promised);
}

/// Other tests of this host may run accelerated programs at the same time.
#[test]
fn without_a_pid_the_sockets_of_every_process_are_shown() {
    let text = good(&["-s", "sock"]);
    let lines = words(&text);
    assert_eq!(lines[0][..4], ["Pid", "Program", "Fd", "Transport"]);
    let pid = own();
    let ours: Vec<_> = lines.iter().filter(|line| line.first() == Some(&pid.as_str())).collect();
    assert_eq!(ours.len(), 3, "{text}");
    assert_eq!(ours[1][..5], [pid.as_str(), "redis-server", "7", "SHM", "ESTAB"]);
    assert!(text.contains(Reason::PlainClient.sentence()));
    let all = json(&["-s", "sock,mem", "--json"]);
    let own = all.as_array().and_then(|all| all.iter().find(|one| one["pid"] == std::process::id())).expect("this one");
    assert_eq!(own["sock"].as_array().map(Vec::len), Some(3));
    assert!(own["mem"].is_object() && own.get("cnt").is_none());
    let text = good(&["-s", "cnt,cfg"]);
    assert!(text.contains(&format!("{pid} redis-server:\n")) && text.contains("counters (cnt):"), "{text}");
}

#[test]
fn processes_by_name_and_sockets_by_filter() {
    let all = json(&["redis-serv*", "-s", "sock", "--json", "state", "established", "dport", "40000"]);
    let ours = match &all {
        Value::Array(several) => several.iter().find(|one| one["pid"] == std::process::id()).expect("this one"),
        one => one,
    };
    let fds: Vec<_> = ours["sock"].as_array().expect("sockets").iter().map(|sock| sock["fd"].clone()).collect();
    assert_eq!(fds, [7]);
    let text = good(&[&own(), "reason", "plain-client"]);
    assert!(words(&text)[1].starts_with(&["8", "TCP"]) && words(&text)[2].is_empty(), "{text}");
    let nobody = bad(&["no-such-program"], 1);
    assert!(nobody.contains("no process with NetACC has the name no-such-program"), "{nobody}");
}

#[test]
fn usage_errors_exit_with_2() {
    assert!(bad(&["-s", "all", "-w", "1"], 2).contains("-s with -w needs the PID"));
    assert!(bad(&["-p", &own(), "-s", "nonsense"], 2).contains("cnt"));
    let filter = bad(&["-s", "sock", "sport", "=", "x"], 2);
    assert!(
        filter.contains("expected a port, from 0 to 65535 or the name of a service\n  sport = x\n          ^"),
        "{filter}"
    );
    bad(&["0"], 2);
    bad(&["-p", "1", "2"], 2);
    bad(&["--nonsense"], 2);
}

#[test]
fn help_version_and_clear() {
    let help = good(&["-h"]);
    assert!(help.contains("netacc_ss [-p] <PID|NAME>") && help.contains("-s mem,cnt"), "{help}");
    assert_eq!(good(&["-v"]), concat!("netacc_ss ", env!("CARGO_PKG_VERSION"), "\n"));
    assert!(good(&["-c"]).starts_with("Nothing to clear"));
    assert_eq!(json(&["-c", "--json"])["cleared"], 0);
}

#[test]
fn processes_that_cannot_be_shown() {
    let unknown = bad(&["-p", "4294967295"], 1);
    assert!(unknown.contains("process 4294967295 does not exist"), "{unknown}");
    let mut plain = Command::new("sleep").arg("60").spawn().expect("sleep");
    let found = bad(&["-p", &plain.id().to_string()], 1);
    plain.kill().expect("kill");
    plain.wait().expect("wait");
    assert!(found.contains("(sleep) is not accelerated"), "{found}");
    assert!(found.contains("netacc_run"), "{found}");
}

#[test]
fn a_process_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        // Only root can look with the eyes of another user.
        return;
    }
    LazyLock::force(&PAGE);
    // Where cargo builds may be closed to other users. Another process makes the copy: what is open for writing here, the
    // programs that other tests start just then have open too until they run, and nobody can execute it.
    let copy = std::env::temp_dir().join(format!("netacc_ss-{}", std::process::id()));
    let copied = Command::new("cp").arg("-p").arg(env!("CARGO_BIN_EXE_netacc_ss")).arg(&copy).status();
    assert!(copied.expect("cp runs").success(), "a copy");
    let output = Command::new(&copy).uid(65534).gid(65534).arg(own()).current_dir("/").output();
    fs::remove_file(&copy).expect("removed");
    let output = output.expect("netacc_ss runs");
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("belongs to another user"), "{errors}");
}

/// Not a test: the process that the next test stops.
#[test]
#[ignore = "started by a_stopped_process_is_shown"]
fn stopped_process() {
    LazyLock::force(&PAGE);
    println!("ready");
    std::thread::sleep(std::time::Duration::from_secs(60));
}

#[test]
fn a_stopped_process_is_shown() {
    use rustix::process::{Pid, Signal, kill_process};

    let mut child = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "stopped_process", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test again");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert!(lines.any(|line| line.expect("a line").contains("ready")));
    kill_process(Pid::from_raw(child.id() as i32).expect("a number"), Signal::STOP).expect("stopped");
    let state = format!("/proc/{}/stat", child.id());
    while !fs::read_to_string(&state).expect("stat").contains(") T ") {
        std::thread::yield_now();
    }
    let text = good(&["-s", "all", "-p", &child.id().to_string()]);
    child.kill().expect("kill");
    child.wait().expect("wait");
    assert!(text.contains("plain-client"), "{text}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    LazyLock::force(&PAGE);
    let program = env!("CARGO_BIN_EXE_netacc_ss");
    // The pipe has no reader left when netacc_ss writes.
    let script = format!("{{ sleep 0.2; {program} {}; echo $? >&2; }} | true", own());
    let output = Command::new("sh").args(["-c", &script]).output().expect("sh");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "0\n");
}
