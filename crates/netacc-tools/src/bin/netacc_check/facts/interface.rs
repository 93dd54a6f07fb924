//! The facts of network interfaces, from /sys/class/net and the drivers.

use std::fs;
use std::io;
use std::path::Path;

use super::ethtool::Ethtool;
use super::live::{System, number, text};
use super::{Interface, module, names};

/// All interfaces but loopback, by name.
pub(super) fn all(system: &System, kernel: &str, kernels: &[String], problems: &mut Vec<String>) -> Vec<Interface> {
    let folder = system.path("/sys/class/net");
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) => {
            problems.push(format!("network interfaces: {}: {error}", folder.display()));
            return Vec::new();
        }
    };
    let ethtool = Ethtool::open();
    if let Err(error) = &ethtool {
        problems.push(format!("ethtool: no socket to ask drivers by: {error}"));
    }
    let mut found: Vec<Interface> = entries
        .flatten()
        .filter(|entry| fs::metadata(entry.path()).is_ok_and(|meta| meta.is_dir()))
        .filter(|entry| number(&entry.path().join("type")) != Some(LOOPBACK))
        .map(|entry| one(system, &entry.path(), ethtool.as_ref().ok(), kernel, kernels))
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// ARPHRD_LOOPBACK.
const LOOPBACK: u32 = 772;

fn one(system: &System, folder: &Path, ethtool: Option<&Ethtool>, kernel: &str, kernels: &[String]) -> Interface {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let target =
        |path: &str| Some(fs::canonicalize(folder.join(path)).ok()?.file_name()?.to_string_lossy().into_owned());
    let mut facts = Interface {
        device: folder.join("device").exists(),
        mac: text(&folder.join("address")).filter(|mac| !mac.is_empty()),
        state: text(&folder.join("operstate")),
        mtu: number(&folder.join("mtu")),
        // -1, or an error, where there is no link.
        speed_mbit: number(&folder.join("speed")).filter(|speed| *speed > 0),
        driver: target("device/driver"),
        queues: queues(&folder.join("queues")),
        ..Interface::default()
    };
    if let Err(error) = fs::read_to_string(folder.join("operstate")) {
        facts.problems.push(format!("{}: {error}", folder.join("operstate").display()));
    }
    if let Some(ethtool) = ethtool {
        ask(ethtool, &name, &mut facts);
    }
    if facts.device {
        // The name of a module may have other dashes than that of its driver.
        let module = target("device/driver/module").or_else(|| facts.driver.clone());
        facts.module = module.map(|module| module::find(system, &module, kernel, kernels));
    }
    facts.naming = names::find(system, &name, facts.mac.as_deref(), number(&folder.join("name_assign_type")));
    facts.name = name;
    facts
}

/// What only the driver knows. A driver need not have an answer to everything; that it says so is no problem.
fn ask(ethtool: &Ethtool, name: &str, facts: &mut Interface) {
    let some = |text: String| Some(text).filter(|text| !text.is_empty() && text != "N/A");
    match ethtool.driver(name) {
        Ok(driver) => {
            facts.driver = some(driver.name).or(facts.driver.take());
            facts.driver_version = some(driver.version);
            facts.firmware = some(driver.firmware);
            facts.bus = some(driver.bus);
        }
        // Many that exist only in the kernel have nothing to tell.
        Err(error) if facts.device => facts.problems.push(format!("ethtool -i {name}: {}", reason(&error))),
        Err(_) => {}
    }
    if let Ok((rx_usecs, adaptive)) = ethtool.coalescing(name) {
        facts.rx_usecs = Some(rx_usecs);
        facts.adaptive_rx = Some(adaptive);
    }
    if let Ok((ring, most)) = ethtool.ring(name) {
        facts.ring_rx = Some(ring);
        facts.ring_rx_max = Some(most);
    }
    if let Ok((channels, most)) = ethtool.channels(name) {
        facts.queues = Some(channels).filter(|channels| *channels > 0).or(facts.queues);
        facts.queues_max = Some(most).filter(|most| *most > 0);
    }
    if facts.driver.as_deref() == Some("ena") {
        facts.srd = ethtool.statistics(name, "ena_srd_").unwrap_or_default();
    }
    facts.offloads = ethtool.offloads(name).map(|(name, on)| (name.to_owned(), on)).collect();
}

fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        // EOPNOTSUPP
        Some(95) => "the driver has no ethtool interface".into(),
        _ => error.to_string(),
    }
}

fn queues(folder: &Path) -> Option<u32> {
    let entries = fs::read_dir(folder).ok()?;
    let receiving = entries.flatten().filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"rx-")).count();
    u32::try_from(receiving).ok().filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::super::live::tests::Tree;
    use super::*;

    #[test]
    fn an_interface_without_ethtool_still_has_facts() {
        let tree = Tree::new("interface");
        for (file, content) in [
            ("type", "1\n"),
            ("address", "02:00:00:00:00:01\n"),
            ("operstate", "up\n"),
            ("mtu", "9001\n"),
            ("speed", "-1\n"),
            ("queues/rx-0/x", ""),
            ("queues/rx-1/x", ""),
            ("queues/tx-0/x", ""),
            ("device/x", ""),
        ] {
            // No interface of this machine has such a name.
            tree.put(&format!("sys/class/net/nic-no-ioctl/{file}"), content);
        }
        tree.put("sys/class/net/lo/type", "772\n");
        tree.put("sys/class/net/bonding_masters", "");
        let mut problems = Vec::new();
        let found = all(&tree.system(), "6.1.0", &[], &mut problems);
        assert_eq!(problems, [""; 0]);
        let [facts] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((facts.mtu, facts.queues, facts.speed_mbit), (Some(9001), Some(2), None));
        assert_eq!((facts.driver.as_deref(), facts.device), (None, true));
        assert!(facts.problems[0].starts_with("ethtool -i nic-no-ioctl: "), "{:?}", facts.problems);
    }

    #[test]
    fn unreadable_sysfs_is_told() {
        let tree = Tree::new("no-sysfs");
        let mut problems = Vec::new();
        assert!(all(&tree.system(), "6.1.0", &[], &mut problems).is_empty());
        assert!(problems[0].contains("/sys/class/net"), "{problems:?}");
        tree.put("sys/class/net/eth9/type", "1\n");
        let found = all(&tree.system(), "6.1.0", &[], &mut problems);
        assert!(found[0].problems[0].contains("operstate"), "{found:?}");
    }
}
