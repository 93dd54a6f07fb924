//! Where a driver's module comes from, and whether other kernels of the host have it.

use std::fs;
use std::path::Path;

use super::Module;
use super::live::{System, text};

/// Looks a module up by its name.
pub(super) fn find(system: &System, name: &str, kernel: &str, kernels: &[String]) -> Module {
    let folder = |release: &str| system.path("/lib/modules").join(release);
    let file = in_index(&folder(kernel).join("modules.dep"), name);
    let loaded = system.path("/sys/module").join(name.replace('-', "_"));
    let builtin = in_index(&folder(kernel).join("modules.builtin"), name).is_some()
        // A kernel without modules does not list what is in it.
        || (file.is_none() && !loaded.join("initstate").exists());
    // The taint of a running module is the kernel's word; a path is only what would be loaded next.
    let by_taint = text(&loaded.join("taint")).map(|taint| taint.contains('O'));
    let by_path = file.as_deref().map(|file| !file.starts_with("kernel/"));
    let (dkms, dkms_autoinstall) = dkms(system, name);
    let [mut file_version, file_srcversion] =
        file.as_deref().map_or([None, None], |file| in_file(&folder(kernel).join(file)));
    if file_version.is_none() && file.as_deref().is_some_and(|file| !file.starts_with("kernel/")) {
        // A compressed file tells nothing; what DKMS has built for this kernel is what lies there.
        let built = |version: &&String| system.path("/var/lib/dkms").join(name).join(version).join(kernel).is_dir();
        file_version = dkms.as_ref().filter(built).cloned();
    }
    let others = || kernels.iter().filter(|release| *release != kernel);
    let elsewhere = |release: &str| {
        in_index(&folder(release).join("modules.dep"), name)
            .or_else(|| in_index(&folder(release).join("modules.builtin"), name))
    };
    Module {
        name: name.to_owned(),
        builtin,
        out_of_tree: if builtin { Some(false) } else { by_taint.or(by_path) },
        file,
        version: text(&loaded.join("version")),
        srcversion: text(&loaded.join("srcversion")),
        file_version,
        file_srcversion,
        dkms,
        dkms_autoinstall,
        missing_in: others().filter(|release| elsewhere(release).is_none()).cloned().collect(),
        in_tree_in: others()
            .filter(|release| elsewhere(release).is_some_and(|file| file.starts_with("kernel/")))
            .cloned()
            .collect(),
    }
}

/// A larger file is no module.
const MAX_BYTES: u64 = 64 << 20;

/// `version` and `srcversion` of a module's file, as modinfo(8) shows them: strings of the form KEY=VALUE, each with a
/// zero behind it. One that is compressed shows neither.
fn in_file(path: &Path) -> [Option<String>; 2] {
    let small = fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() <= MAX_BYTES);
    let Some(bytes) = small.then(|| fs::read(path).ok()).flatten().filter(|bytes| bytes.starts_with(b"\x7fELF")) else {
        return [None, None];
    };
    ["version=", "srcversion="].map(|key| {
        let entry = bytes.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(key.as_bytes()))?;
        let value = std::str::from_utf8(entry).ok()?.trim();
        // Strings of the program's text may begin alike.
        (!value.is_empty() && value.len() < 64 && !value.contains('%')).then(|| value.to_owned())
    })
}

/// The path of a module in modules.dep (`PATH: PATHS`) or modules.builtin (`PATH`).
fn in_index(index: &Path, name: &str) -> Option<String> {
    let wanted = name.replace('-', "_");
    let listing = fs::read(index).ok()?;
    let listing = String::from_utf8_lossy(&listing);
    let mut paths = listing.lines().filter_map(|line| line.split(':').next());
    let is_it = |path: &&str| {
        let file = path.rsplit('/').next().unwrap_or(path);
        file.split_once(".ko").is_some_and(|(stem, _)| stem.replace('-', "_") == wanted)
    };
    paths.find(is_it).map(str::to_owned)
}

/// The version under which DKMS keeps a module, and whether it builds it for new kernels by itself.
fn dkms(system: &System, name: &str) -> (Option<String>, bool) {
    let Ok(versions) = fs::read_dir(system.path("/var/lib/dkms").join(name)) else { return (None, false) };
    for entry in versions.flatten() {
        let folder = entry.path();
        // Beside the versions there are links named after kernels (`kernel-6.1.0-x86_64`).
        let conf = folder.join("source/dkms.conf");
        let version = entry.file_name().to_string_lossy().into_owned();
        let Ok(conf) = fs::read(&conf) else { continue };
        if version.starts_with("kernel-") {
            continue;
        }
        let conf = String::from_utf8_lossy(&conf);
        let automatic = conf.lines().filter_map(|line| line.trim().strip_prefix("AUTOINSTALL=")).next_back();
        let automatic = automatic.map(|value| value.trim_matches(['"', '\'']).to_ascii_lowercase());
        // DKMS takes any word that begins with a y.
        return (Some(version), automatic.is_some_and(|value| value.starts_with('y')));
    }
    (None, false)
}

#[cfg(test)]
mod tests {
    use super::super::live::tests::Tree;
    use super::*;

    const KERNELS: [&str; 3] = ["3.10.0-1", "3.10.0-2", "3.10.0-3"];

    fn look(tree: &Tree, name: &str) -> Module {
        find(&tree.system(), name, KERNELS[0], &KERNELS.map(str::to_owned))
    }

    #[test]
    fn built_by_dkms() {
        let tree = Tree::new("dkms");
        tree.put("lib/modules/3.10.0-1/modules.dep", "kernel/net/x.ko:\nupdates/dkms/ixgbevf.ko.xz: kernel/net/x.ko\n");
        tree.put("lib/modules/3.10.0-2/modules.dep", "kernel/drivers/net/ixgbevf.ko:\n");
        tree.put("sys/module/ixgbevf/initstate", "live\n");
        tree.put("sys/module/ixgbevf/taint", "OE\n");
        tree.put("var/lib/dkms/ixgbevf/3.1.2/source/dkms.conf", "PACKAGE_NAME=\"ixgbevf\"\nAUTOINSTALL=\"yes\"\n");
        let module = look(&tree, "ixgbevf");
        assert_eq!((module.builtin, module.out_of_tree), (false, Some(true)));
        assert_eq!(module.file.as_deref(), Some("updates/dkms/ixgbevf.ko.xz"));
        assert_eq!((module.dkms.as_deref(), module.dkms_autoinstall), (Some("3.1.2"), true));
        assert_eq!((module.in_tree_in, module.missing_in), (vec![KERNELS[1].into()], vec![KERNELS[2].to_owned()]));
        tree.put("var/lib/dkms/ixgbevf/3.1.2/source/dkms.conf", "PACKAGE_NAME=\"ixgbevf\"\n");
        assert!(!look(&tree, "ixgbevf").dkms_autoinstall);
    }

    #[test]
    fn a_newer_file_than_the_module_that_runs() {
        let tree = Tree::new("pending");
        tree.put("lib/modules/3.10.0-1/modules.dep", "extra/ixgbevf.ko:\n");
        tree.put("sys/module/ixgbevf/initstate", "live\n");
        tree.put("sys/module/ixgbevf/version", "2.12.1-k\n");
        tree.put("sys/module/ixgbevf/srcversion", "0123456789ABCDEF\n");
        tree.put("lib/modules/3.10.0-1/extra/ixgbevf.ko", "\x7fELF\0\0license=GPL\0version=3.1.2\0srcversion=FEDC\0");
        let module = look(&tree, "ixgbevf");
        let told = [&module.version, &module.srcversion, &module.file_version, &module.file_srcversion];
        let wanted = ["2.12.1-k", "0123456789ABCDEF", "3.1.2", "FEDC"];
        assert_eq!(told.map(|text| text.as_deref()), wanted.map(Some));
        // Compressed: by what DKMS has built for this kernel.
        tree.put("lib/modules/3.10.0-1/modules.dep", "updates/dkms/ixgbevf.ko.xz:\n");
        tree.put("lib/modules/3.10.0-1/updates/dkms/ixgbevf.ko.xz", "\u{fd}7zXZ");
        tree.put("var/lib/dkms/ixgbevf/3.1.2/source/dkms.conf", "AUTOINSTALL=\"yes\"\n");
        assert_eq!(look(&tree, "ixgbevf").file_version, None);
        tree.put("var/lib/dkms/ixgbevf/3.1.2/3.10.0-1/x86_64/log/make.log", "");
        assert_eq!(look(&tree, "ixgbevf").file_version.as_deref(), Some("3.1.2"));
    }

    #[test]
    fn in_the_kernel_and_of_the_kernel() {
        let tree = Tree::new("in-tree");
        tree.put("lib/modules/3.10.0-1/modules.dep", "kernel/drivers/net/virtio_net.ko.zst:\n");
        tree.put("lib/modules/3.10.0-1/modules.builtin", "kernel/drivers/net/xen-netfront.ko\n");
        tree.put("sys/module/virtio_net/initstate", "live\n");
        let loaded = look(&tree, "virtio-net");
        assert_eq!((loaded.builtin, loaded.out_of_tree), (false, Some(false)));
        assert!(look(&tree, "xen_netfront").builtin);
        // A kernel without any modules.
        assert!(look(&tree, "ena").builtin);
    }
}
