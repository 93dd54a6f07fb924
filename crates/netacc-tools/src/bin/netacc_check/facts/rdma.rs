//! RDMA devices as /sys/class/infiniband shows them: what `ibv_devinfo` would say, without verbs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::live::{System, text};
use super::{Rdma, RdmaPort};

/// All devices, by name. A host without any does not have the folder.
pub(super) fn all(system: &System) -> Vec<Rdma> {
    let folder = system.path("/sys/class/infiniband");
    let mut found: Vec<Rdma> = names(&folder).map(|name| one(system, &folder.join(&name), name)).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn names(folder: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

fn one(system: &System, folder: &Path, name: String) -> Rdma {
    let mut below = on_same_device(system, folder);
    if below.is_empty() {
        below = of_same_address(system, folder);
    }
    let mut ports: Vec<RdmaPort> = names(&folder.join("ports"))
        .filter_map(|number| Some((folder.join("ports").join(&number), number.parse().ok()?)))
        .map(|(port, number)| {
            // The interfaces of the port's addresses; an iWARP port has none, then those of the device.
            let told: BTreeSet<String> = names(&port.join("gid_attrs/ndevs"))
                .filter_map(|index| text(&port.join("gid_attrs/ndevs").join(index)))
                .filter(|name| !name.is_empty())
                .collect();
            RdmaPort {
                number,
                state: text(&port.join("state")),
                physical: text(&port.join("phys_state")),
                link_layer: text(&port.join("link_layer")),
                rate: text(&port.join("rate")),
                interfaces: if told.is_empty() { below.clone() } else { told.into_iter().collect() },
            }
        })
        .collect();
    ports.sort_by_key(|port| port.number);
    // The parameter is the driver's, and a device may have been given another name.
    let driver = fs::canonicalize(folder.join("device/driver")).ok();
    let is_erdma = name.starts_with("erdma") || driver.is_some_and(|driver| driver.ends_with("erdma"));
    let compat_mode = is_erdma.then(|| text(&system.path("/sys/module/erdma/parameters/compat_mode"))).flatten();
    let (node_type, firmware) = (text(&folder.join("node_type")), text(&folder.join("fw_ver")));
    Rdma { name, node_type, firmware, compat_mode, ports }
}

/// The network interfaces of the device (a PCI function) that this RDMA device belongs to.
fn on_same_device(system: &System, folder: &Path) -> Vec<String> {
    let Ok(device) = fs::canonicalize(folder.join("device")) else { return Vec::new() };
    interfaces(system, |net| fs::canonicalize(net.join("device")).is_ok_and(|other| other == device))
}

/// The network interfaces with the address from which the device's GUID was made, as iWARP drivers (eRDMA, siw) do it.
fn of_same_address(system: &System, folder: &Path) -> Vec<String> {
    let guid = text(&folder.join("node_guid")).unwrap_or_default();
    interfaces(system, |net| text(&net.join("address")).and_then(|mac| eui64(&mac)).is_some_and(|eui| eui == guid))
}

fn interfaces(system: &System, is_it: impl Fn(&Path) -> bool) -> Vec<String> {
    let net = system.path("/sys/class/net");
    let mut found: Vec<String> = names(&net).filter(|name| is_it(&net.join(name))).collect();
    found.sort();
    found
}

/// The EUI-64 of an Ethernet address as sysfs writes a GUID: `02:fc:00:00:00:01` is `00fc:00ff:fe00:0001`.
fn eui64(mac: &str) -> Option<String> {
    let bytes: Vec<u8> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect::<Option<_>>()?;
    let [a, b, c, d, e, f] = bytes.as_slice() else { return None };
    Some(format!("{:02x}{b:02x}:{c:02x}ff:fe{d:02x}:{e:02x}{f:02x}", a ^ 2))
}

#[cfg(test)]
mod tests {
    use super::super::live::tests::Tree;
    use super::*;

    #[test]
    fn a_device_with_its_port_and_interface() {
        let tree = Tree::new("rdma");
        let base = "sys/class/infiniband/erdma_0";
        for (file, content) in [
            ("node_type", "4: RNIC\n"),
            ("fw_ver", "0.2.0\n"),
            ("ports/1/state", "4: ACTIVE\n"),
            ("ports/1/phys_state", "5: LinkUp\n"),
            ("ports/1/link_layer", "Ethernet\n"),
            ("ports/1/gid_attrs/ndevs/0", "eth0\n"),
            ("ports/1/gid_attrs/ndevs/1", "eth0\n"),
        ] {
            tree.put(&format!("{base}/{file}"), content);
        }
        let [device] = &all(&tree.system())[..] else { panic!() };
        assert_eq!((device.name.as_str(), device.node_type.as_deref()), ("erdma_0", Some("4: RNIC")));
        let port = &device.ports[0];
        assert_eq!((port.number, port.state.as_deref(), port.rate.as_deref()), (1, Some("4: ACTIVE"), None));
        assert_eq!(port.interfaces, ["eth0"]);
    }

    #[test]
    fn by_the_address_of_the_interface() {
        let tree = Tree::new("rdma-address");
        tree.put("sys/class/infiniband/erdma_0/node_guid", "00fc:00ff:fe00:0001\n");
        tree.put("sys/class/infiniband/erdma_0/ports/1/state", "4: ACTIVE\n");
        tree.put("sys/class/net/eth0/address", "02:fc:00:00:00:01\n");
        tree.put("sys/class/net/eth1/address", "02:fc:00:00:00:02\n");
        tree.put("sys/class/net/odd/address", "02:fc\n");
        assert_eq!(all(&tree.system())[0].ports[0].interfaces, ["eth0"]);
    }

    #[test]
    fn by_the_device_below_both() {
        let tree = Tree::new("rdma-device");
        tree.put("sys/devices/pci/x", "");
        tree.put("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
        tree.put("sys/class/net/eth1/mtu", "1500\n");
        for link in ["sys/class/infiniband/mlx5_0/device", "sys/class/net/eth1/device"] {
            tree.link(link, "sys/devices/pci");
        }
        assert_eq!(all(&tree.system())[0].ports[0].interfaces, ["eth1"]);
        assert!(all(&Tree::new("rdma-none").system()).is_empty());
    }
}
