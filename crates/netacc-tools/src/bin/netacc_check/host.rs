//! Judges a host.

use netacc_conf::{Config, ENV_CMDLINE};
use netacc_transport::shm::host_access::{self, Access, Unfit};
use netacc_transport::shm::users::OVERFLOW;
use netacc_verbs::fork;

use crate::drivers::{Drivers, compare};
use crate::facts::{Config as Written, Host, Limits};
use crate::finding::{Level, Report};
use crate::interface;

const SUBJECT: &str = "host";
/// What a link to another process maps, with few connections.
const LINK_BYTES: u64 = 5 << 20;
/// All links together map at most this part (1/8) of a limited address space, and so does every other large mapping.
const SHARE: u64 = 8;
/// The table of a process's descriptors, without which nothing is accelerated.
const TABLE_BYTES: u64 = 8 << 20;
/// The page of a process's figures, and some more.
const PAGE_BYTES: u64 = 20 << 20;
const MIB: u64 = 1 << 20;
/// An RDMA connection to TCP port P goes to this port above it.
const RDMA_PORT_OFFSET: u32 = 20000;

/// Judges everything; `only` one interface if that was asked for. `all` judges those without a device too.
pub(crate) fn judge(host: &Host, drivers: &Drivers, only: Option<&str>, all: bool, report: &mut Report) {
    if let Some(name) = only {
        match host.interfaces.iter().find(|facts| facts.name == name) {
            Some(facts) => interface::judge(host, facts, drivers, report),
            None if name == "lo" => {
                report
                    .add(Level::Note, name, "interface", "the loopback has no device: there is nothing to check")
                    .advice(
                        "what it carries goes over shared memory if both programs run with NetACC: ask for HOST:PORT",
                    );
            }
            None => {
                let names: Vec<&str> = host.interfaces.iter().map(|facts| facts.name.as_str()).collect();
                report
                    .add(Level::Fail, name, "interface", "there is no such interface")
                    .advice(format!("name one of: {}", names.join(", ")));
            }
        }
        return;
    }
    for problem in &host.problems {
        report.add(Level::Note, SUBJECT, "facts", format!("not to be found out: {problem}"));
    }
    for facts in host.interfaces.iter().filter(|facts| facts.device || all) {
        interface::judge(host, facts, drivers, report);
    }
    let virtuals: Vec<&str> =
        host.interfaces.iter().filter(|facts| !facts.device).map(|facts| facts.name.as_str()).collect();
    if !virtuals.is_empty() && !all {
        report.add(
            Level::Ok,
            SUBJECT,
            "interfaces",
            format!("without a device, not looked at: {}", virtuals.join(", ")),
        );
    }
    loose_rdma(host, report);
    system(host, report);
    rdma_kernel(host, report);
    let config = configuration(&host.config, report);
    library(host, report);
    limits(host, &config, report);
    ports(host, report);
}

/// RDMA devices that belong to no interface (InfiniBand, or an interface that is not there).
fn loose_rdma(host: &Host, report: &mut Report) {
    for device in &host.rdma {
        for port in device.ports.iter().filter(|port| port.interfaces.is_empty()) {
            let (level, text, advice) = interface::port_state(device, port);
            let detail = report.add(level, &device.name, "rdma", text);
            if let Some(advice) = advice {
                detail.advice(advice);
            }
        }
    }
    if host.rdma.is_empty() {
        report.add(Level::Ok, SUBJECT, "rdma", "no RDMA device: shared memory within the host, TCP to other hosts");
    }
}

fn system(host: &Host, report: &mut Report) {
    let older = |version: &str, than: &str| compare(version, than) == Some(std::cmp::Ordering::Less);
    match host.machine.as_str() {
        "x86_64" => report.add(Level::Ok, SUBJECT, "machine", host.machine.clone()),
        "aarch64" => {
            report.add(Level::Note, SUBJECT, "machine", format!("{}: built, but not tested there", host.machine))
        }
        other => report.add(Level::Fail, SUBJECT, "machine", format!("{other}: NetACC is for x86-64 and AArch64")),
    };
    match host.kernel.as_str() {
        kernel if host.memfd == Some(false) || (host.memfd.is_none() && older(kernel, "3.17")) => report
            .add(Level::Fail, SUBJECT, "kernel", format!("Linux {kernel}: no memfd that can be sealed"))
            .why("shared memory is a sealed memfd, which came with Linux 3.17; a sandbox may forbid it")
            .advice(
                "use a newer kernel, or allow memfd_create and fcntl F_ADD_SEALS; until then everything stays on TCP",
            ),
        old if older(old, "5.11") => {
            let newer = "epoll_pwait2 (5.11)";
            let missing = if older(old, "5.9") { format!("close_range (5.9) and {newer}") } else { newer.to_owned() };
            report.add(
                Level::Note,
                SUBJECT,
                "kernel",
                format!("Linux {old}: without {missing}; older calls do the same there"),
            )
        }
        kernel => report.add(Level::Ok, SUBJECT, "kernel", format!("Linux {kernel}")),
    };
    match host.glibc.as_deref() {
        None => report
            .add(Level::Fail, SUBJECT, "glibc", "the C library is not glibc")
            .advice("run the programs on a system with glibc, or in a container that has it"),
        Some(old) if older(old, "2.35") => report
            .add(Level::Note, SUBJECT, "glibc", format!("{old}: without rseq"))
            .why("a waiter asks the kernel on which CPU it runs (AArch64: it spins where it should yield), which takes longer")
            .advice("use a system with glibc 2.35 or newer where latency counts"),
        Some(version) => report.add(Level::Ok, SUBJECT, "glibc", version.to_owned()),
    };
    match host.ipv6_disabled {
        Some(true) => report.add(Level::Ok, SUBJECT, "ipv6", "off; NetACC needs neither that nor the contrary"),
        _ => report.add(Level::Ok, SUBJECT, "ipv6", "accelerated like IPv4; it need not be switched off"),
    };
    if let Some(container) = &host.container {
        report
            .add(Level::Note, SUBJECT, "container", format!("this is a container ({container})"))
            .why(
                "two containers are one host to NetACC if they share a network namespace; else connections stay on TCP",
            )
            .advice("put programs that talk to each other into one pod, or one network (--network container:NAME)");
    }
    if let Some(size) = host.dev_shm {
        report.add(
            Level::Ok,
            SUBJECT,
            "dev-shm",
            format!("{} MiB, not used: NetACC's memory has no name (memfd)", size / MIB),
        );
    }
}

/// Whether the kernel lets programs fork that have given memory to an RDMA device.
fn rdma_kernel(host: &Host, report: &mut Report) {
    let kernel = host.kernel.as_str();
    if host.rdma.is_empty() {
        return;
    }
    if fork::copies_ordinary_pages(kernel.as_bytes()) {
        let text = format!("Linux {kernel}: copies what a device has of a program when that forks, so RDMA is used");
        report.add(Level::Ok, SUBJECT, "rdma-fork", text);
        return;
    }
    report
        .add(
            Level::Warn,
            SUBJECT,
            "rdma-fork",
            format!("Linux {kernel}: RDMA is not used, connections to other hosts stay on TCP"),
        )
        .why(
            "before Linux 5.9 a program that forks may be left with copies of the pages that a device writes to; \
             some older kernels of distributions have that change, which the library asks the kernel for",
        )
        .advice(
            "use Linux 5.9 or newer; 'NACC_LOG_LEVEL=3' in a program's environment shows what the library has found",
        );
}

/// Reads the configuration as the library would, and checks it.
pub(crate) fn configuration(written: &Written, report: &mut Report) -> Config {
    let mut config = Config::default();
    let mut diags = Vec::new();
    if let Some(text) = &written.text {
        config.apply_file(&written.path, text.as_bytes(), &mut diags);
    }
    for (key, value) in &written.environment {
        config.apply_env(key, value.as_bytes(), &mut diags);
    }
    if let Some(options) = written.environment.get(ENV_CMDLINE) {
        config.apply_cmdline(options.as_bytes(), &mut diags);
    }
    config.finish(&mut diags);
    if let Some(error) = &written.error {
        report
            .add(Level::Warn, SUBJECT, "config", format!("{}: {error}; defaults are used", written.path))
            .advice("correct the file's name or its permissions");
    }
    for diag in &diags {
        report.add(Level::Warn, SUBJECT, "config", diag.to_string()).advice("correct it; netacc.conf(5) has all keys");
    }
    if diags.is_empty() && written.error.is_none() {
        let text = match written.text {
            Some(_) => format!("{} is in order", written.path),
            None => format!("there is no {}; defaults are used", written.path),
        };
        report.add(Level::Ok, SUBJECT, "config", text);
    }
    share(&config, report);
    host_directory(&config, report);
    config
}

/// Whether programs in other containers of this host can be reached over shared memory.
fn host_directory(config: &Config, report: &mut Report) {
    const KEY: &str = "NACC_HOST_DIR";
    let dir = config.host_dir.as_str();
    if dir.is_empty() {
        return;
    }
    match host_access::check(dir) {
        Ok(access) => {
            let whose = match access {
                Access::User => "of the same user",
                Access::Group => "of its group, whatever their users,",
            };
            let text = format!("{dir}: programs {whose} in other containers are found by it");
            report.add(Level::Ok, SUBJECT, "host-dir", text);
        }
        // Without containers nobody needs it.
        Err(Unfit::Absent) => {}
        Err(why) => {
            let text = format!("{KEY}={dir} is not used, programs in other containers are reached by TCP: {why}");
            let advice = match why {
                Unfit::Group(gid) if gid != OVERFLOW => format!("run the program with the supplementary group {gid}"),
                Unfit::Mode(mode) if mode & 0o7 == 0 => {
                    format!("'chmod 3770 {dir}' to have its group trusted, or 'chmod 1777 {dir}'")
                }
                _ => format!("'chown root {dir}; chmod 1777 {dir}', or name another directory in {KEY}"),
            };
            report.add(Level::Warn, SUBJECT, "host-dir", text).advice(advice);
        }
    }
}

/// What the configuration leaves on TCP.
fn share(config: &Config, report: &mut Report) {
    let from = |key: &str| config.source(key).map(|source| source.describe(config.file())).unwrap_or_default();
    const ENABLE: &str = "NACC_ENABLE_RDMA_DEFAULT";
    const PERCENT: &str = "NACC_CONNECT_RDMA_PERCENT";
    const TCP_FIRST: &str = "NACC_CONN_TCP_FIRST";
    if !config.enable_rdma_default {
        report
            .add(Level::Warn, SUBJECT, "config", format!("{ENABLE}=0 ({}) leaves programs on TCP", from(ENABLE)))
            .advice("set it to 1, or start programs with NACC_ENABLE_RDMA_DEFAULT=1");
    } else if config.connect_rdma_percent < 100 {
        let percent = config.connect_rdma_percent;
        report
            .add(
                Level::Note,
                SUBJECT,
                "config",
                format!("{PERCENT}={percent} ({}): {percent} % of connections are accelerated", from(PERCENT)),
            )
            .advice("set it to 100 to accelerate all of them");
    }
    if config.enable_rdma_default && config.conn_tcp_first {
        report.add(
            Level::Note,
            SUBJECT,
            "config",
            format!("{TCP_FIRST}=1 ({}): connections begin on TCP and go over while they live", from(TCP_FIRST)),
        );
    }
}

fn library(host: &Host, report: &mut Report) {
    match host.libraries.first() {
        Some(path) if host.found_by_name == Some(false) => {
            // In a build folder nobody expects it to be found.
            let level = if host.beside_library { Level::Note } else { Level::Warn };
            report
                .add(level, SUBJECT, "library", format!("{path}, where the dynamic linker does not find it by its name"))
                .why("netacc_run names the whole path; LD_PRELOAD=libnetacc-preload.so, as in a unit of systemd, does nothing")
                .advice(
                    "write the whole path in LD_PRELOAD, or install the library in a folder of the linker (make install \
                     LIBDIR=DIR; /etc/ld.so.conf) and run 'ldconfig'",
                )
        }
        Some(path) => report.add(Level::Ok, SUBJECT, "library", path),
        None => report
            .add(
                Level::Warn,
                SUBJECT,
                "library",
                "libnetacc-preload.so is neither beside this program nor in the linker's cache",
            )
            .advice("install it ('make install'), then run 'ldconfig'; 'ldconfig -p | grep netacc' shows it"),
    };
}

fn limits(host: &Host, config: &Config, report: &mut Report) {
    let Limits { memlock, nofile, nofile_hard, address_space, memory } = host.limits;
    let mib = |bytes: u64| if bytes < MIB { format!("{} KiB", bytes / 1024) } else { format!("{} MiB", bytes / MIB) };
    // Regions double from the smallest to the largest, and are all kept.
    let (least, most) = (u64::from(config.mr_min_inc_size), u64::from(config.mr_max_inc_size));
    let growth = most.saturating_mul(2).saturating_sub(least);
    let needs = format!("regions grow from {} to {}, together {}", mib(least), mib(most), mib(growth));
    match memlock {
        None => report.add(Level::Ok, SUBJECT, "memlock", "unlimited"),
        Some(limit) if host.rdma.is_empty() => {
            report.add(Level::Ok, SUBJECT, "memlock", format!("{}; only RDMA locks memory, and there is no device", mib(limit)))
        }
        Some(limit) if limit < growth => report
            .add(Level::Warn, SUBJECT, "memlock", format!("{}, but by the configuration {needs}", mib(limit)))
            .why("what RDMA registers is locked in memory; beyond the limit connections fall back to TCP")
            .advice("'ulimit -l unlimited' in the shell, LimitMEMLOCK=infinity in the unit, or 'memlock unlimited' in /etc/security/limits.conf"),
        Some(limit) => report
            .add(Level::Note, SUBJECT, "memlock", format!("{} for each process; {needs}", mib(limit)))
            .advice("'ulimit -l unlimited' (LimitMEMLOCK=infinity) for programs with many connections"),
    };
    let hard = nofile_hard.map_or("unlimited".to_owned(), |hard| hard.to_string());
    match nofile {
        Some(soft) if soft < 256 => report
            .add(Level::Warn, SUBJECT, "nofile", format!("{soft} (hard {hard}): too few for a server"))
            .why("NetACC takes its own descriptors from the upper quarter of the limit")
            .advice("'ulimit -n 65536', LimitNOFILE=65536 in the unit"),
        Some(soft) => report.add(Level::Ok, SUBJECT, "nofile", format!("{soft} (hard {hard})")),
        None => report.add(Level::Ok, SUBJECT, "nofile", "unlimited"),
    };
    match address_space {
        Some(limit) if limit < SHARE * PAGE_BYTES => report
            .add(
                if limit < SHARE * TABLE_BYTES { Level::Fail } else { Level::Warn },
                SUBJECT,
                "address-space",
                format!("{}: {} for links, {} each", mib(limit), mib(limit / SHARE), mib(LINK_BYTES)),
            )
            .why(
                "most of a limited address space is left to the program: with so little, connections stay on TCP and \
                 netacc_ss does not see the process",
            )
            .advice("'ulimit -v unlimited', LimitAS=infinity in the unit; limit memory by the control group instead"),
        Some(limit) => report.add(Level::Ok, SUBJECT, "address-space", mib(limit)),
        None => report.add(Level::Ok, SUBJECT, "address-space", "unlimited"),
    };
    match memory {
        Some(limit) if limit < 64 * MIB => report
            .add(Level::Warn, SUBJECT, "memory", format!("the control group has {}", mib(limit)))
            .why("a connection that carries large blocks touches up to half a MiB, and is counted there")
            .advice("raise the limit of the container or unit (MemoryMax=, --memory)"),
        Some(limit) => report.add(Level::Ok, SUBJECT, "memory", format!("the control group has {}", mib(limit))),
        None => report.add(Level::Ok, SUBJECT, "memory", "no limit by a control group"),
    };
}

/// The ports on which listeners would be reached by RDMA.
fn ports(host: &Host, report: &mut Report) {
    // Without a device nobody will listen there.
    let level = if host.rdma.is_empty() { Level::Ok } else { Level::Note };
    let mut fine = 0;
    for port in &host.listeners {
        let rdma = u32::from(*port) + RDMA_PORT_OFFSET;
        let taken = u16::try_from(rdma).is_ok_and(|rdma| host.listeners.contains(&rdma));
        let text = match (u16::try_from(rdma), taken) {
            (Err(_), _) => format!("listener {port}: {rdma} is no port, so it cannot be reached by RDMA"),
            (Ok(rdma), true) => format!("listener {port}: its port for RDMA, {rdma}, has a listener of its own"),
            _ => {
                fine += 1;
                continue;
            }
        };
        let detail = report.add(level, SUBJECT, "ports", text);
        if level > Level::Ok {
            detail
                .why("a listener on port P is reached by RDMA on P + 20000; without it connections stay on TCP")
                .advice("move one of the two to another port");
        }
    }
    let text = format!("listeners (port P) whose port for RDMA (P + {RDMA_PORT_OFFSET}) is free: {fine}");
    report.add(Level::Ok, SUBJECT, "ports", text);
}
