//! Judges network interfaces.

use std::cmp::Ordering;

use crate::drivers::{Driver, Drivers, compare};
use crate::facts::{Host, Interface, Module, Rdma, RdmaPort};
use crate::finding::{Level, Report};

/// A device that waits longer (microseconds) before it tells of a packet is felt in a round trip.
const LATE_USECS: u32 = 30;

/// Judges one interface.
pub(crate) fn judge(host: &Host, facts: &Interface, drivers: &Drivers, report: &mut Report) {
    for problem in &facts.problems {
        report.add(Level::Note, &facts.name, "facts", format!("not to be found out: {problem}"));
    }
    let entry = facts.driver.as_deref().and_then(|driver| drivers.find(driver, host));
    driver(host, facts, entry, report);
    if !facts.device {
        link(facts, entry, report);
        rdma(host, facts, entry, report);
        return;
    }
    version(host, facts, entry, report);
    module(host, facts, report);
    pending(facts, entry, report);
    name(host, facts, entry, report);
    offloads(facts, report);
    link(facts, entry, report);
    queues(host, facts, report);
    coalescing(facts, report);
    ena_express(facts, report);
    rdma(host, facts, entry, report);
    image(facts, entry, report);
}

fn driver(host: &Host, facts: &Interface, entry: Option<&Driver>, report: &mut Report) {
    let Some(driver) = &facts.driver else {
        report.add(Level::Note, &facts.name, "driver", "its driver tells neither ethtool nor sysfs its name").advice(
            format!(
                "nothing, if it is not a network card; else look at 'ls -l /sys/class/net/{}/device/driver'",
                facts.name
            ),
        );
        return;
    };
    let Some(entry) = entry else {
        report
            .add(Level::Note, &facts.name, "driver", format!("{driver}, which is not in the table of drivers"))
            .advice("judge it yourself, or add it to a table of your own (--drivers)");
        return;
    };
    let kind = entry.kind.replace('-', " ");
    // A bare device of the machine and a function passed to a virtual machine have one driver.
    let text = match (&entry.kind[..], &facts.firmware) {
        (_, Some(firmware)) => format!("{driver}: {} ({kind}), firmware {firmware}", entry.name),
        (_, None) => format!("{driver}: {} ({kind})", entry.name),
    };
    // Beside a virtual function with the same address the synthetic interface carries nothing.
    if let Some(function) = passed_through(host, facts).filter(|_| entry.kind == "paravirtual") {
        let text = format!("{text}; its packets go by the function {}", function.name);
        report.add(Level::Ok, &facts.name, "driver", text);
        return;
    }
    let mut detail = report.add(entry.level.unwrap_or(Level::Ok), &facts.name, "driver", text);
    if entry.recommended.is_none()
        && let Some(why) = &entry.why
    {
        detail = detail.why(why);
    }
    if let Some(advice) = &entry.advice {
        detail.advice(advice);
    }
}

/// Another interface with the same address and another driver: on Hyper-V one of them is the virtual function of the
/// other.
fn passed_through<'a>(host: &'a Host, facts: &Interface) -> Option<&'a Interface> {
    let same = |other: &&Interface| other.device && other.mac == facts.mac && other.driver != facts.driver;
    host.interfaces.iter().filter(|_| facts.mac.is_some()).find(same)
}

fn version(host: &Host, facts: &Interface, entry: Option<&Driver>, report: &mut Report) {
    let wanted =
        entry.and_then(|entry| entry.minimum.as_ref().or(entry.recommended.as_ref()).map(|wanted| (entry, wanted)));
    let shown = facts.driver_version.as_deref().filter(|version| !version.is_empty());
    let Some((entry, wanted)) = wanted else {
        if let Some(version) = shown {
            let whose = if version == host.kernel { " (the kernel's)" } else { "" };
            report.add(Level::Ok, &facts.name, "version", format!("{version}{whose}"));
        }
        return;
    };
    let below = |limit: &Option<String>| {
        limit.as_deref().zip(shown).and_then(|(limit, version)| compare(version, limit)) == Some(Ordering::Less)
    };
    let (level, text) = match shown {
        None => (Level::Note, format!("not told; recommended is {wanted} or newer")),
        // A driver of the kernel's own sources has no number of its own; such kernels are far newer.
        Some(version) if version == host.kernel => (Level::Ok, format!("{version}: that of the kernel's own sources")),
        Some(version) if compare(version, wanted).is_none() => {
            (Level::Note, format!("\"{version}\" cannot be compared; recommended is {wanted} or newer"))
        }
        Some(version) if below(&entry.recommended) && is_built(facts, wanted) => {
            (Level::Warn, format!("{version} runs, a newer one waits for a restart; recommended is {wanted} or newer"))
        }
        Some(version) if below(&entry.minimum) => (Level::Fail, format!("{version}; needed is {wanted} or newer")),
        Some(version) if below(&entry.recommended) => {
            let recommended = entry.recommended.as_deref().unwrap_or(wanted);
            (Level::Warn, format!("{version}; recommended is {recommended} or newer"))
        }
        Some(version) => (Level::Ok, format!("{version}; recommended is {wanted} or newer")),
    };
    let mut detail = report.add(level, &facts.name, "version", text);
    if level > Level::Ok {
        if let Some(why) = &entry.why {
            detail = detail.why(why);
        }
        if is_built(facts, wanted) {
            detail.advice("see 'module'");
        } else if let Some(update) = &entry.update {
            detail.advice(update);
        }
    }
}

/// Whether the module that would be loaded now is new enough.
fn is_built(facts: &Interface, wanted: &str) -> bool {
    let file = facts.module.as_ref().and_then(waiting).and_then(|(_, file)| compare(file, wanted));
    file.is_some_and(|order| order != Ordering::Less)
}

/// What runs of a module, and what lies in its file, where that is another one.
fn waiting(module: &Module) -> Option<(&str, &str)> {
    let pair = |runs: &'_ Option<String>, file: &'_ Option<String>| runs.is_some() && file.is_some() && runs != file;
    let module = Some(module).filter(|module| !module.builtin)?;
    let named = module.version.as_deref().zip(module.file_version.as_deref());
    let differs = pair(&module.version, &module.file_version) || pair(&module.srcversion, &module.file_srcversion);
    differs.then(|| named.unwrap_or(("another build", "this one")))
}

/// A module that was built or installed since the host was started runs after the next start only.
fn pending(facts: &Interface, entry: Option<&Driver>, report: &mut Report) {
    let Some(module) = &facts.module else { return };
    let Some((runs, file)) = waiting(module) else { return };
    let name = &module.name;
    let text = if runs == file || module.version.is_none() || module.file_version.is_none() {
        format!("another build of {name} than the one that runs waits for a restart")
    } else {
        format!("{name} {file} is in place and waits for a restart: {runs} runs")
    };
    let older = entry.and_then(|entry| entry.recommended.as_deref()).and_then(|wanted| compare(file, wanted));
    let advice = match older {
        Some(Ordering::Less) => "before the restart put a newer one there: this one is older than recommended",
        _ => {
            "restart the host; where the initramfs has network drivers make it anew before ('dracut -f', \
             'update-initramfs -u'), and look at 'ethtool -i' afterwards"
        }
    };
    report
        .add(Level::Warn, &facts.name, "module", text)
        .why("a driver that is in use is not exchanged; until then nothing is won by the new one")
        .advice(advice);
}

/// ENA Express, which carries TCP between two hosts of one zone by Amazon's own protocol (SRD) on several paths.
fn ena_express(facts: &Interface, report: &mut Report) {
    let Some(mode) = facts.srd.get("ena_srd_mode") else { return };
    let count = |name| facts.srd.get(name).copied().unwrap_or(0);
    let mut on = report.on(&facts.name, "ena-express");
    if mode & 1 == 0 {
        on.add(Level::Note, "ENA Express is off")
            .why("it gives a single TCP connection between two hosts more bandwidth and fewer late packets under load; a single small message may take longer")
            .advice(
                "for streams, on types that have it at both ends: 'aws ec2 modify-network-interface-attribute \
                 --network-interface-id ID --ena-srd-specification EnaSrdEnabled=true'; measure with netacc_bench before and after",
            );
        return;
    }
    let (eligible, sent) = (count("ena_srd_eligible_tx_pkts"), count("ena_srd_tx_pkts"));
    let text = format!("ENA Express is on: {sent} of {eligible} packets that could went by it");
    // Large frames do not fit into its packets.
    match eligible > 0 && sent == 0 {
        true => on
            .add(Level::Note, text)
            .advice("the other hosts need it, too, and an MTU of 8900 at most ('ip link set mtu')"),
        false => on.add(Level::Ok, text),
    };
}

/// What was set up here by hand need not be again on the next host.
fn image(facts: &Interface, entry: Option<&Driver>, report: &mut Report) {
    let Some(kept) = entry.and_then(|entry| entry.image.as_deref()) else { return };
    let open = report.open(&facts.name);
    match open.is_empty() {
        true => {
            report.add(Level::Ok, &facts.name, "image", "ready to be saved as an image for further hosts").why(kept)
        }
        false => report
            .add(Level::Note, &facts.name, "image", format!("not ready to be saved as an image: {}", open.join(", ")))
            .why(kept)
            .advice("do what these checks say, restart, look again, and save the image then"),
    };
}

/// Whether the driver will be there after an update of the kernel.
fn module(host: &Host, facts: &Interface, report: &mut Report) {
    let Some(module) = &facts.module else { return };
    let name = &module.name;
    let mut on = report.on(&facts.name, "module");
    if module.builtin {
        on.add(Level::Ok, format!("{name} is part of the kernel, so an update keeps it"));
        return;
    }
    let headers = "install the headers of the new kernel before it is started, so that DKMS can build the module";
    match (module.out_of_tree, &module.dkms) {
        (Some(false), _) if module.missing_in.is_empty() => {
            on.add(Level::Ok, format!("{name} comes with the kernel, so an update keeps it"));
        }
        (Some(false), _) => {
            let text = format!("{name} comes with this kernel, but is not in {}", module.missing_in.join(", "));
            on.add(Level::Warn, text)
                .advice("install the package with the further modules of that kernel before it is started");
        }
        (Some(true), Some(version)) if !module.dkms_autoinstall => {
            on.add(Level::Warn, format!("{name} {version} is in DKMS, but not built for a new kernel by itself"))
                .why("after an update of the kernel the host starts with another driver, or none")
                .advice(format!("put AUTOINSTALL=\"yes\" into /usr/src/{name}-{version}/dkms.conf"));
        }
        (Some(true), Some(version)) => {
            let behind: Vec<&str> = module
                .missing_in
                .iter()
                .chain(&module.in_tree_in)
                .filter(|other| newer(other, &host.kernel))
                .map(String::as_str)
                .collect();
            match behind.is_empty() {
                true => on.add(Level::Ok, format!("{name} {version} is built by DKMS for each new kernel")),
                false => on
                    .add(Level::Warn, format!("{name} {version} is in DKMS, but not built for {}", behind.join(", ")))
                    .advice(format!("{headers}: 'dkms install -m {name} -v {version} -k RELEASE'")),
            };
        }
        (Some(true), None) => {
            on.add(Level::Warn, format!("{name} was built from its own sources, without DKMS"))
                .why("after an update of the kernel the host starts with another driver, or none, and nobody is told")
                .advice("put it into DKMS: sources to /usr/src/NAME-VERSION with a dkms.conf (AUTOINSTALL=\"yes\"), then 'dkms add', 'build', 'install'");
        }
        (None, _) => {
            on.add(Level::Note, format!("where {name} comes from cannot be told"))
                .advice(format!("look at 'modinfo {name}'"));
        }
    }
}

fn newer(a: &str, b: &str) -> bool {
    // Releases of one version differ behind the dash: 3.10.0-229 and 3.10.0-327.
    compare(&a.replace('-', "."), &b.replace('-', ".")) == Some(Ordering::Greater)
}

/// Whether the address stays where it is when the driver changes.
fn name(host: &Host, facts: &Interface, entry: Option<&Driver>, report: &mut Report) {
    let naming = &facts.naming;
    let counted = facts.name.strip_prefix("eth").is_some_and(|rest| rest.parse::<u32>().is_ok());
    let cmdline = host.cmdline.as_deref().unwrap_or_default();
    let ifnames_off = cmdline.split_ascii_whitespace().any(|word| word == "net.ifnames=0");
    let mut on = report.on(&facts.name, "name");
    let outer = passed_through(host, facts).filter(|_| entry.is_none_or(|entry| entry.kind != "paravirtual"));
    if let Some(outer) = outer {
        on.add(Level::Ok, format!("does not matter: the addresses are on {}", outer.name));
    } else if let Some(file) = &naming.pinned_by {
        on.add(Level::Ok, format!("pinned by {file}"));
    } else if counted && ifnames_off {
        on.add(Level::Ok, "stays (net.ifnames=0: interfaces are counted)");
    } else if counted && !host.udev {
        on.add(Level::Ok, "stays: interfaces are counted, and no udev renames them");
    } else {
        // Where a change of driver is what we advise, the name is what locks the door behind it.
        let changing = entry.is_some_and(|entry| entry.kind == "paravirtual" && entry.level >= Some(Level::Warn));
        let level = if changing { Level::Warn } else { Level::Note };
        on.add(level, "not pinned: with another driver or place the interface gets another name")
            .why("the address is configured for the name; a host whose interface was renamed cannot be reached")
            .advice(pin(facts, counted));
    }
}

fn pin(facts: &Interface, counted: bool) -> String {
    let mac = facts.mac.as_deref().unwrap_or("ADDRESS");
    let link = format!(
        "write /etc/systemd/network/10-{0}.link with [Match] MACAddress={mac} and [Link] Name={0}, and make the initramfs anew",
        facts.name
    );
    // A link file that gives a name of the kernel's own kind can clash with another interface that gets it first.
    if counted {
        "add net.ifnames=0 to the kernel's command line (GRUB_CMDLINE_LINUX, then grub2-mkconfig or update-grub)".into()
    } else {
        link
    }
}

fn offloads(facts: &Interface, report: &mut Report) {
    if facts.offloads.is_empty() {
        return;
    }
    let off: Vec<&str> = facts.offloads.iter().filter(|(_, on)| !**on).map(|(name, _)| name.as_str()).collect();
    if off.is_empty() {
        let on: Vec<&str> = facts.offloads.keys().map(String::as_str).collect();
        report.add(Level::Ok, &facts.name, "offloads", format!("on: {}", on.join(", ")));
        return;
    }
    let keys: Vec<String> = off.iter().map(|name| format!("{} on", short(name))).collect();
    report
        .add(Level::Note, &facts.name, "offloads", format!("off: {}", off.join(", ")))
        .why("the CPU does for each packet what the device could do; it costs throughput more than latency")
        .advice(format!("unless somebody had a reason: 'ethtool -K {} {}'", facts.name, keys.join(" ")));
}

/// The names that `ethtool -K` takes.
fn short(offload: &str) -> &str {
    match offload {
        "rx-checksum" => "rx",
        "tx-checksum" => "tx",
        other => other,
    }
}

fn link(facts: &Interface, entry: Option<&Driver>, report: &mut Report) {
    let state = facts.state.as_deref().unwrap_or("unknown");
    let speed = facts.speed_mbit.map(|mbit| format!(", {mbit} Mbit/s")).unwrap_or_default();
    if state == "down" {
        report
            .add(Level::Note, &facts.name, "link", "down")
            .advice(format!("nothing, if it is not used; else 'ip link set {} up'", facts.name));
        return;
    }
    let Some(mtu) = facts.mtu else { return };
    match entry.and_then(|entry| entry.mtu) {
        Some(most) if mtu < most => report
            .add(
                Level::Ok,
                &facts.name,
                "link",
                format!("{state}, MTU {mtu}{speed}; this network carries up to {most}"),
            )
            .why("larger frames help streams between hosts of one network, not the latency of small messages"),
        _ => report.add(Level::Ok, &facts.name, "link", format!("{state}, MTU {mtu}{speed}")),
    };
}

fn queues(host: &Host, facts: &Interface, report: &mut Report) {
    let Some(queues) = facts.queues else { return };
    let ring = match (facts.ring_rx, facts.ring_rx_max) {
        (Some(ring), Some(most)) => format!(", rings of {ring} (at most {most})"),
        _ => String::new(),
    };
    let could = facts.queues_max.unwrap_or(queues).min(host.cpus.unwrap_or(queues));
    match queues < could {
        true => report
            .add(Level::Note, &facts.name, "queues", format!("{queues} of {could} that device and CPUs allow{ring}"))
            .why("fewer CPUs take packets than could")
            .advice(format!("'ethtool -L {} combined {could}'", facts.name)),
        false => report.add(Level::Ok, &facts.name, "queues", format!("{queues}{ring}")),
    };
}

fn coalescing(facts: &Interface, report: &mut Report) {
    let Some(usecs) = facts.rx_usecs else { return };
    let adaptive = facts.adaptive_rx == Some(true);
    let how = if adaptive { ", adapted to the load" } else { "" };
    if usecs < LATE_USECS || adaptive {
        report.add(Level::Ok, &facts.name, "coalescing", format!("rx-usecs {usecs}{how}"));
        return;
    }
    report
        .add(
            Level::Note,
            &facts.name,
            "coalescing",
            format!("rx-usecs {usecs}: the device may wait {usecs} microseconds before it reports a packet"),
        )
        .why("each round trip pays for it at both ends, as long as its packets come alone")
        .advice(format!("where latency counts more than CPU: 'ethtool -C {} rx-usecs 0'", facts.name));
}

/// The RDMA device on the interface.
fn rdma(host: &Host, facts: &Interface, entry: Option<&Driver>, report: &mut Report) {
    let on_us = |port: &&RdmaPort| port.interfaces.contains(&facts.name);
    let found: Vec<(&Rdma, &RdmaPort)> =
        host.rdma.iter().flat_map(|device| device.ports.iter().filter(on_us).map(move |port| (device, port))).collect();
    for (device, port) in &found {
        let (level, text, advice) = port_state(device, port);
        let detail = report.add(level, &facts.name, "rdma", text);
        if let Some(advice) = advice {
            detail.advice(advice);
        }
        compat_mode(&facts.name, device, report);
    }
    let advice = entry.and_then(|entry| entry.rdma_advice.as_ref());
    if let Some(advice) = advice.filter(|_| found.is_empty()) {
        report
            .add(Level::Note, &facts.name, "rdma", "no RDMA device on this interface")
            .why("connections between hosts stay on TCP without one at both ends")
            .advice(advice);
    }
}

/// The mode of eRDMA's driver in which queue pairs may be connected without the connection manager.
fn compat_mode(subject: &str, device: &Rdma, report: &mut Report) {
    match device.compat_mode.as_deref() {
        None => {}
        Some("Y" | "1") => {
            report
                .add(Level::Note, subject, "erdma-mode", "compat_mode=Y: for programs that connect queue pairs themselves")
                .why(
                    "NetACC connects them by the connection manager (RDMA-CM), as the driver's usual mode has it; this \
                     mode is for programs as NCCL, and was not tried with NetACC",
                )
                .advice(
                    "where connections stay on TCP and nothing else needs that mode: take 'options erdma compat_mode=Y' out of \
                     /etc/modprobe.d, and load the module again or restart",
                );
        }
        Some(_) => {
            report.add(Level::Ok, subject, "erdma-mode", "compat_mode=N: by the connection manager, as NetACC does it");
        }
    }
}

/// What `ibv_devinfo` would show of a port, and what to do about it.
pub(crate) fn port_state(device: &Rdma, port: &RdmaPort) -> (Level, String, Option<&'static str>) {
    // `4: ACTIVE`, `4: RNIC`: the word is what people know.
    let word = |value: &Option<String>| {
        value.as_deref().map_or("unknown", |text| text.split_once(": ").map_or(text, |(_, word)| word)).to_owned()
    };
    let state = word(&port.state);
    let mut text = format!("{} port {}: {state}", device.name, port.number);
    for (what, value) in [
        ("", &port.physical),
        ("", &port.link_layer),
        ("", &port.rate),
        ("node ", &device.node_type),
        ("firmware ", &device.firmware),
    ] {
        if value.is_some() {
            text.push_str(&format!(", {what}{}", word(value)));
        }
    }
    match state.as_str() {
        "ACTIVE" => (Level::Ok, text, None),
        "INIT" | "ARMED" => {
            (Level::Note, text, Some("wait: the port is coming up; on InfiniBand it needs a subnet manager"))
        }
        _ => (
            Level::Warn,
            text,
            Some("bring the network interface below it up ('ip link set'), and look at 'dmesg' for the RDMA driver"),
        ),
    }
}
