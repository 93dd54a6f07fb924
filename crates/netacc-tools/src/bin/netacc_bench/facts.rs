//! What the results say of a host.

use std::fs;

use netacc_tools::bench_wire::HostFacts;

pub(crate) fn own() -> HostFacts {
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let cores = std::thread::available_parallelism().map_or(0, |count| u32::try_from(count.get()).unwrap_or(u32::MAX));
    let cpu = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| model(&text));
    let cpu = cpu.unwrap_or_else(|| std::env::consts::ARCH.into());
    HostFacts { kernel, cpu, cores, version: env!("CARGO_PKG_VERSION").into() }
}

fn model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    let (_, name) = line.split_once(':')?;
    Some(name.trim().to_owned())
}

/// In a line, for people.
pub(crate) fn line(host: &HostFacts) -> String {
    let cpus = if host.cores == 1 { "1 CPU".to_owned() } else { format!("{} CPUs", host.cores) };
    netacc_tools::text::clean(&format!("{}, {cpus}, Linux {}", host.cpu, host.kernel))
}
