//! What is known of a host. This is the one interface between looking and judging: filled from the live machine
//! ([`live`]) or from a recording ([`record`]). `None` means that it could not be found out; where that needs
//! explaining, `problems` says why.

pub(crate) mod ethtool;
pub(crate) mod interface;
pub(crate) mod live;
pub(crate) mod module;
pub(crate) mod names;
pub(crate) mod rdma;
pub(crate) mod record;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A host.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Host {
    /// The layout of a recording: [`record::FORMAT`].
    pub(crate) format: u32,
    /// `x86_64`, `aarch64`.
    pub(crate) machine: String,
    /// The release of the kernel.
    pub(crate) kernel: String,
    /// Releases of all kernels in /lib/modules.
    pub(crate) kernels: Vec<String>,
    /// What the command line of the kernel says of interface names.
    pub(crate) cmdline: Option<String>,
    /// What firmware and hypervisor call the machine: names of manufacturer, product, versions.
    pub(crate) platform: Vec<String>,
    /// The version of glibc.
    pub(crate) glibc: Option<String>,
    /// Whether the kernel makes memfds that can be sealed.
    pub(crate) memfd: Option<bool>,
    /// How many CPUs are online.
    pub(crate) cpus: Option<u32>,
    /// What runs us in a container, if something does.
    pub(crate) container: Option<String>,
    /// Whether udev runs, which gives interfaces their names.
    pub(crate) udev: bool,
    /// Whether IPv6 is off.
    pub(crate) ipv6_disabled: Option<bool>,
    /// The limits of this process.
    pub(crate) limits: Limits,
    /// The size of /dev/shm in bytes.
    pub(crate) dev_shm: Option<u64>,
    /// The ports of TCP listeners that are not only on loopback.
    pub(crate) listeners: Vec<u16>,
    /// Where the library was found: beside this program, then by `ldconfig`.
    pub(crate) libraries: Vec<String>,
    /// Whether the dynamic linker finds the library by its name alone.
    pub(crate) found_by_name: Option<bool>,
    /// Whether this program lies in the folder of the library, as in a build folder.
    pub(crate) beside_library: bool,
    /// The configuration.
    pub(crate) config: Config,
    /// Network interfaces.
    pub(crate) interfaces: Vec<Interface>,
    /// RDMA devices.
    pub(crate) rdma: Vec<Rdma>,
    /// What could not be looked at, and why.
    pub(crate) problems: Vec<String>,
}

/// Limits; `None` is "unlimited" or, of `memory`, "not known" as well.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    /// RLIMIT_MEMLOCK in bytes, the soft one.
    pub(crate) memlock: Option<u64>,
    /// RLIMIT_NOFILE, the soft one.
    pub(crate) nofile: Option<u64>,
    /// The same, the hard one.
    pub(crate) nofile_hard: Option<u64>,
    /// RLIMIT_AS in bytes.
    pub(crate) address_space: Option<u64>,
    /// The memory limit of the control group in bytes.
    pub(crate) memory: Option<u64>,
}

/// The configuration of NetACC as it was written.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// The name of the file.
    pub(crate) path: String,
    /// Its content; `None` if there is none.
    pub(crate) text: Option<String>,
    /// Why it could not be read though it is there, or was asked for.
    pub(crate) error: Option<String>,
    /// `NACC_*` variables.
    pub(crate) environment: BTreeMap<String, String>,
}

/// A network interface.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Interface {
    pub(crate) name: String,
    /// Whether a device stands behind it, real or of the virtual machine; a bridge or veth has none.
    pub(crate) device: bool,
    pub(crate) mac: Option<String>,
    /// `up`, `down`, ...
    pub(crate) state: Option<String>,
    pub(crate) mtu: Option<u32>,
    pub(crate) speed_mbit: Option<u32>,
    /// The driver, by ethtool or else by sysfs.
    pub(crate) driver: Option<String>,
    pub(crate) driver_version: Option<String>,
    pub(crate) firmware: Option<String>,
    pub(crate) bus: Option<String>,
    /// Queues in use (receiving) and the most that the device has.
    pub(crate) queues: Option<u32>,
    pub(crate) queues_max: Option<u32>,
    /// Descriptors of a receive ring, and the most there may be.
    pub(crate) ring_rx: Option<u32>,
    pub(crate) ring_rx_max: Option<u32>,
    /// How long (microseconds) the device may wait before it reports a packet.
    pub(crate) rx_usecs: Option<u32>,
    /// The driver adapts that to the load.
    pub(crate) adaptive_rx: Option<bool>,
    /// Offloads by name: `rx-checksum`, `tx-checksum`, `sg`, `tso`, `gso`, `gro`.
    pub(crate) offloads: BTreeMap<String, bool>,
    /// What an ENA driver counts of ENA Express, and its mode: the statistics `ena_srd_*`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) srd: BTreeMap<String, u64>,
    /// Where the driver comes from.
    pub(crate) module: Option<Module>,
    /// How the name came about.
    pub(crate) naming: Naming,
    /// What could not be looked at, and why.
    pub(crate) problems: Vec<String>,
}

/// Where a driver comes from.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Module {
    pub(crate) name: String,
    /// Part of the kernel's image.
    pub(crate) builtin: bool,
    /// Built from sources outside of the kernel's; `None` if neither taint nor path tell.
    pub(crate) out_of_tree: Option<bool>,
    /// The file that is loaded by its name, below /lib/modules/RELEASE: at the next start, if another one was before.
    pub(crate) file: Option<String>,
    /// The version of the module that runs, and the checksum of its sources.
    pub(crate) version: Option<String>,
    pub(crate) srcversion: Option<String>,
    /// The version and checksum of the file of the module, which may have been installed since.
    pub(crate) file_version: Option<String>,
    pub(crate) file_srcversion: Option<String>,
    /// The version that DKMS has of it.
    pub(crate) dkms: Option<String>,
    /// DKMS builds it for a new kernel by itself (AUTOINSTALL).
    pub(crate) dkms_autoinstall: bool,
    /// Other kernels of this host that do not have a module of this name.
    pub(crate) missing_in: Vec<String>,
    /// Other kernels of this host that have one only from their own sources.
    pub(crate) in_tree_in: Vec<String>,
}

/// How an interface got its name.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Naming {
    /// `name_assign_type`: 1 counted by the kernel, 2 predictable, 3 by a user, 4 renamed.
    pub(crate) assigned: Option<u32>,
    /// The file that ties this name to the device.
    pub(crate) pinned_by: Option<String>,
}

/// An RDMA device, as far as sysfs shows it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Rdma {
    pub(crate) name: String,
    /// `1: CA`, `4: RNIC`.
    pub(crate) node_type: Option<String>,
    pub(crate) firmware: Option<String>,
    /// The parameter of this name that eRDMA's driver has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) compat_mode: Option<String>,
    pub(crate) ports: Vec<RdmaPort>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RdmaPort {
    pub(crate) number: u32,
    /// `4: ACTIVE`.
    pub(crate) state: Option<String>,
    /// `5: LinkUp`.
    pub(crate) physical: Option<String>,
    /// `Ethernet`, `InfiniBand`.
    pub(crate) link_layer: Option<String>,
    pub(crate) rate: Option<String>,
    /// The network interfaces it belongs to.
    pub(crate) interfaces: Vec<String>,
}
