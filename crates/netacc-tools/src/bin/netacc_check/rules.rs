//! `--rules PROGRAM HOST:PORT`: which rule of the configuration file decides for a program, and what it permits.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use netacc_conf::{Call, Config, Source};

use crate::finding::{Level, Report};

const ENABLE: &str = "NACC_ENABLE_RDMA_DEFAULT";

/// Reports for the program what is permitted when it listens at a place, and when it connects to it. `place` is
/// `HOST:PORT`, or `:PORT` for a listener at every address. An error says why the place cannot be understood.
pub(crate) fn judge(program: &OsStr, place: &str, mut config: Config, report: &mut Report) -> Result<(), String> {
    let name = Path::new(program).file_name().unwrap_or(program);
    config.keep_rules_for(&[name.as_bytes()]);
    let shown = netacc_tools::text::clean(&name.to_string_lossy());
    for call in calls(place)? {
        let (level, text) = decision(call, &config);
        report.add(level, &shown, "rule", text);
    }
    Ok(())
}

/// The calls that a place stands for.
fn calls(place: &str) -> Result<Vec<Call>, String> {
    if let Some(port) = place.strip_prefix(':').or_else(|| place.strip_prefix("*:")) {
        let port = port.parse().map_err(|_| format!("\"{place}\": the port is \"{port}\"; allowed: 0..=65535"))?;
        let everywhere = [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
        return Ok(everywhere.map(|ip| Call::Listen(SocketAddr::new(ip, port))).to_vec());
    }
    let found = place.to_socket_addrs().map_err(|error| {
        format!("\"{place}\": {error}; allowed: HOST:PORT, [IPV6]:PORT, or :PORT for a listener at every address")
    })?;
    let addresses: BTreeSet<SocketAddr> = found.collect();
    Ok(addresses.into_iter().flat_map(|addr| [Call::Connect(addr), Call::Listen(addr)]).collect())
}

/// What is permitted for a call, and by what.
fn decision(call: Call, config: &Config) -> (Level, String) {
    let choice = config.choose(call);
    let what = match call {
        Call::Listen(addr) => format!("listening at {addr}"),
        Call::Connect(addr) => format!("connecting to {addr}"),
    };
    let by = match choice.rule.and_then(|rule| config.rules.as_slice().get(rule)) {
        Some(rule) => format!("by {}: {rule}", Source::File { line: rule.line }.describe(config.file())),
        None => {
            let source = config.source(ENABLE).unwrap_or(Source::Default).describe(config.file());
            format!("no rule matches: {ENABLE}={} ({source})", u8::from(config.enable_rdma_default))
        }
    };
    let level = if choice.transports.any() { Level::Ok } else { Level::Note };
    (level, format!("{what} uses {}, {by}", choice.transports))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(program: &str, place: &str) -> Vec<String> {
        let mut config = Config::default();
        let file = b"[rules]\nuse=tcp program=redis-cli connect=127.0.0.0/8:6379\nuse=shm listen=6379\n";
        config.apply_file("/etc/netacc.conf", file, &mut Vec::new());
        let mut report = Report::default();
        judge(program.as_ref(), place, config, &mut report).unwrap();
        let json = report.json();
        let findings = json["findings"].as_array().unwrap().iter();
        findings.map(|finding| format!("{} {}", finding["level"], finding["text"]).replace('"', "")).collect()
    }

    #[test]
    fn the_rule_is_named_with_its_line() {
        assert_eq!(
            told("/usr/bin/redis-cli", "127.0.0.1:6379"),
            [
                "note connecting to 127.0.0.1:6379 uses tcp, by /etc/netacc.conf:2: use=tcp program=redis-cli connect=127.0.0.0/8:6379",
                "ok listening at 127.0.0.1:6379 uses shm, by /etc/netacc.conf:3: use=shm listen=6379",
            ]
        );
        assert_eq!(
            told("nginx", "127.0.0.1:6379").first().unwrap(),
            "ok connecting to 127.0.0.1:6379 uses shm,rdma, no rule matches: NACC_ENABLE_RDMA_DEFAULT=1 (default)"
        );
        assert_eq!(told("redis-server", ":6379").len(), 2);
    }

    #[test]
    fn a_wrong_place_is_refused() {
        for place in ["localhost", ":x", "[::1]", "127.0.0.1:99999"] {
            let config = Config::default();
            assert!(judge("x".as_ref(), place, config, &mut Report::default()).is_err(), "{place}");
        }
    }
}
