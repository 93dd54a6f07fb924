//! Whether an interface keeps its name when its driver changes.

use std::fs;

use super::Naming;
use super::live::System;

/// Where link files may be, what comes first wins (systemd.link(5)).
const LINKS: [&str; 4] =
    ["/etc/systemd/network", "/run/systemd/network", "/usr/local/lib/systemd/network", "/usr/lib/systemd/network"];
const RULES: [&str; 3] = ["/etc/udev/rules.d", "/run/udev/rules.d", "/usr/lib/udev/rules.d"];

pub(super) fn find(system: &System, name: &str, mac: Option<&str>, assigned: Option<u32>) -> Naming {
    let links = LINKS.iter().flat_map(|folder| files(system, folder, ".link"));
    let rules = RULES.iter().flat_map(|folder| files(system, folder, ".rules"));
    let by_link = links.filter(|(_, text)| link_pins(text, name, mac)).map(|(path, _)| path).next();
    let by_rule = || rules.filter(|(_, text)| rule_pins(text, name, mac)).map(|(path, _)| path).next();
    Naming { assigned, pinned_by: by_link.or_else(by_rule) }
}

/// The files of a folder with an ending, as (path on the host, content).
fn files(system: &System, folder: &'static str, ending: &'static str) -> Vec<(String, String)> {
    let Ok(entries) = fs::read_dir(system.path(folder)) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|n| n.ends_with(ending))
        .collect();
    names.sort();
    let read = |name: String| {
        let text = fs::read(system.path(folder).join(&name)).ok()?;
        Some((format!("{folder}/{name}"), String::from_utf8_lossy(&text).into_owned()))
    };
    names.into_iter().filter_map(read).collect()
}

/// A link file that gives this name to a device by its address, or (`kernel` names) to none other.
fn link_pins(text: &str, name: &str, mac: Option<&str>) -> bool {
    let mut section = "";
    let (mut named, mut matched) = (false, false);
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if line.starts_with('[') {
            section = line;
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        match (section, key.trim()) {
            ("[Link]", "Name") => named = value.trim() == name,
            ("[Match]", "MACAddress" | "PermanentMACAddress") => {
                matched |= mac.is_some_and(|mac| value.split_whitespace().any(|word| word.eq_ignore_ascii_case(mac)));
            }
            _ => {}
        }
    }
    named && matched
}

/// A rule of udev, as 70-persistent-net.rules has them: the address in a comparison, the name in an assignment.
fn rule_pins(text: &str, name: &str, mac: Option<&str>) -> bool {
    let Some(mac) = mac else { return false };
    let mac = format!("ATTR{{address}}==\"{}\"", mac.to_ascii_lowercase());
    let names = [format!("NAME=\"{name}\""), format!("NAME:=\"{name}\"")];
    let active = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    active.into_iter().any(|line| {
        line.to_ascii_lowercase().contains(&mac.to_ascii_lowercase()) && names.iter().any(|n| line.contains(n))
    })
}

#[cfg(test)]
mod tests {
    use super::super::live::tests::Tree;
    use super::*;

    const MAC: &str = "02:00:00:00:00:0a";

    #[test]
    fn pinned_by_a_link_file() {
        let tree = Tree::new("names-link");
        tree.put("usr/lib/systemd/network/99-default.link", "[Match]\nOriginalName=*\n[Link]\nNamePolicy=kernel\n");
        assert_eq!(find(&tree.system(), "eth0", Some(MAC), Some(4)).pinned_by, None);
        tree.put("etc/systemd/network/10-eth0.link", "[Match]\nMACAddress=02:00:00:00:00:0A\n\n[Link]\nName=eth0\n");
        let naming = find(&tree.system(), "eth0", Some(MAC), Some(4));
        assert_eq!(naming.pinned_by.as_deref(), Some("/etc/systemd/network/10-eth0.link"));
        assert_eq!(find(&tree.system(), "eth1", Some(MAC), None).pinned_by, None, "another name");
        assert_eq!(find(&tree.system(), "eth0", Some("02:00:00:00:00:0b"), None).pinned_by, None, "another device");
    }

    #[test]
    fn pinned_by_a_rule() {
        let tree = Tree::new("names-rule");
        let rule = "SUBSYSTEM==\"net\", ACTION==\"add\", ATTR{address}==\"02:00:00:00:00:0a\", NAME=\"eth0\"\n";
        tree.put("etc/udev/rules.d/70-persistent-net.rules", &format!("# {rule}"));
        assert_eq!(find(&tree.system(), "eth0", Some(MAC), None).pinned_by, None, "a comment");
        tree.put("etc/udev/rules.d/70-persistent-net.rules", rule);
        let naming = find(&tree.system(), "eth0", Some(MAC), None);
        assert_eq!(naming.pinned_by.as_deref(), Some("/etc/udev/rules.d/70-persistent-net.rules"));
    }
}
