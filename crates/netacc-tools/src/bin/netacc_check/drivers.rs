//! The table of drivers: what each is, which version to have, and why.

use std::cmp::Ordering;
use std::fmt::Write;
use std::path::Path;

use crate::facts::Host;
use crate::finding::Level;

/// The table that is compiled in.
const BUILT_IN: &str = include_str!("../../../data/drivers.conf");

/// One driver, perhaps only on one platform.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Driver {
    pub(crate) driver: String,
    /// Part of a name of the platform, in small letters.
    platform: Option<String>,
    /// What the driver is for.
    pub(crate) name: String,
    /// How the device comes to the machine.
    pub(crate) kind: String,
    /// How it is to be taken that an interface has this driver.
    pub(crate) level: Option<Level>,
    /// An older version fails, or is warned of.
    pub(crate) minimum: Option<String>,
    pub(crate) recommended: Option<String>,
    pub(crate) why: Option<String>,
    /// What to do about the driver.
    pub(crate) advice: Option<String>,
    /// What to do about an old version.
    pub(crate) update: Option<String>,
    /// What to do for an RDMA device where there is none.
    pub(crate) rdma_advice: Option<String>,
    /// The largest frames of the network.
    pub(crate) mtu: Option<u32>,
    /// What to do when all is as it should be: what else begins like this host.
    pub(crate) image: Option<String>,
}

/// All entries, in the order of the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Drivers(Vec<Driver>);

const KINDS: [&str; 5] = ["paravirtual", "virtual-function", "emulated", "physical", "virtual"];
const KEYS: [&str; 11] =
    ["name", "kind", "level", "minimum", "recommended", "why", "do", "update", "rdma-do", "mtu", "image"];

impl Drivers {
    /// The built-in table, or that of a file.
    pub(crate) fn load(file: Option<&Path>) -> Result<Drivers, String> {
        let Some(path) = file else { return parse("drivers.conf (built in)", BUILT_IN) };
        let text = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let text = String::from_utf8(text).map_err(|_| format!("{}: not UTF-8", path.display()))?;
        parse(&path.display().to_string(), &text)
    }

    /// The entry of a driver on a host: one for its platform before a general one.
    pub(crate) fn find(&self, driver: &str, host: &Host) -> Option<&Driver> {
        let on = |entry: &&Driver| {
            let named = |part: &String| host.platform.iter().any(|name| name.to_lowercase().contains(part.as_str()));
            entry.platform.as_ref().is_some_and(named)
        };
        let mut same = self.0.iter().filter(|entry| entry.driver == driver);
        same.clone().find(on).or_else(|| same.find(|entry| entry.platform.is_none()))
    }
}

/// A file that is no table at all should not fill the screen.
const MAX_TOLD: usize = 10;

/// Reads a table. All mistakes are told, each with file, line, value and what is allowed.
fn parse(file: &str, text: &str) -> Result<Drivers, String> {
    let mut drivers: Vec<Driver> = Vec::new();
    let mut problems = String::new();
    let mut told = 0;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let done = match line.strip_prefix('[') {
            Some(head) => section(head, &drivers).map(|entry| drivers.push(entry)),
            None => setting(line, drivers.last_mut()),
        };
        let Err(problem) = done else { continue };
        told += 1;
        if told > MAX_TOLD {
            let _ = writeln!(problems, "{file}:{number}: more problems, from here on, are not listed");
            break;
        }
        let _ = writeln!(problems, "{file}:{number}: {problem}");
    }
    if problems.is_empty() && drivers.is_empty() {
        problems = format!("{file}: no [DRIVER] section; a table of drivers has at least one\n");
    }
    if problems.is_empty() { Ok(Drivers(drivers)) } else { Err(problems.trim_end().to_owned()) }
}

/// `DRIVER]` or `DRIVER @ PLATFORM]`.
fn section(head: &str, drivers: &[Driver]) -> Result<Driver, String> {
    let Some(head) = head.strip_suffix(']') else { return Err(format!("\"[{head}\" has no closing bracket")) };
    let (driver, platform) = match head.split_once('@') {
        Some((driver, platform)) => (driver.trim(), Some(platform.trim().to_lowercase())),
        None => (head.trim(), None),
    };
    let is_name = |name: &str| !name.is_empty() && !name.contains(['[', ']', '@']);
    if !is_name(driver) || !platform.as_deref().is_none_or(is_name) {
        return Err(format!("\"[{head}]\" names no driver; allowed: [DRIVER] or [DRIVER @ PLATFORM]"));
    }
    if drivers.iter().any(|entry| entry.driver == driver && entry.platform == platform) {
        return Err(format!("\"[{head}]\" is there already"));
    }
    Ok(Driver { driver: driver.to_owned(), platform, ..Driver::default() })
}

/// `KEY = VALUE` of the last section.
fn setting(line: &str, entry: Option<&mut Driver>) -> Result<(), String> {
    let Some((key, value)) = line.split_once('=') else { return Err(format!("\"{}\" is not KEY = VALUE", cut(line))) };
    let (key, value) = (key.trim(), value.trim());
    let Some(entry) = entry else { return Err(format!("\"{key}\" stands before the first [DRIVER]")) };
    if value.is_empty() {
        return Err(format!("\"{key}\" has no value"));
    }
    let text = Some(value.to_owned());
    match key {
        "name" => entry.name = value.to_owned(),
        "kind" if KINDS.contains(&value) => entry.kind = value.to_owned(),
        "kind" => return Err(format!("kind: \"{value}\"; allowed: {}", KINDS.join(", "))),
        "level" => {
            let allowed = Level::ALL.map(Level::name).join(", ");
            entry.level = Some(Level::named(value).ok_or_else(|| format!("level: \"{value}\"; allowed: {allowed}"))?);
        }
        "minimum" | "recommended" => {
            if numbers(value).is_empty() {
                return Err(format!("{key}: \"{value}\" is no version; allowed: numbers and dots, as 2.14.2"));
            }
            if key == "minimum" { entry.minimum = text } else { entry.recommended = text }
        }
        "why" => entry.why = text,
        "do" => entry.advice = text,
        "update" => entry.update = text,
        "rdma-do" => entry.rdma_advice = text,
        "image" => entry.image = text,
        "mtu" => match value.parse() {
            Ok(mtu @ 68..=65535) => entry.mtu = Some(mtu),
            _ => return Err(format!("mtu: \"{value}\"; allowed: 68..=65535")),
        },
        _ => return Err(format!("unknown key \"{}\"; allowed: {}", cut(key), KEYS.join(", "))),
    }
    Ok(())
}

/// The beginning of foreign text, fit for a message.
fn cut(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

/// Compares versions by the numbers that they begin with: `4.1.0-k` is 4.1.0, `2.12.1` is less than `2.14.2`.
/// `None` if one of them does not begin with a number.
pub(crate) fn compare(a: &str, b: &str) -> Option<Ordering> {
    let (a, b) = (numbers(a), numbers(b));
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let at = |numbers: &[u64], i: usize| numbers.get(i).copied().unwrap_or(0);
    (0..a.len().max(b.len())).map(|i| at(&a, i).cmp(&at(&b, i))).find(|order| order.is_ne()).or(Some(Ordering::Equal))
}

/// The numbers that a version begins with. Of `2.8.9g` the letter ends it.
fn numbers(version: &str) -> Vec<u64> {
    let end = version.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(version.len());
    let front = version.get(..end).unwrap_or_default();
    front.split('.').map_while(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(platform: &str) -> Host {
        Host { platform: vec![platform.into()], ..Host::default() }
    }

    #[test]
    fn the_built_in_table_holds_together() {
        let drivers = Drivers::load(None).unwrap();
        for entry in &drivers.0 {
            assert!(!entry.name.is_empty() && !entry.kind.is_empty() && entry.level.is_some(), "{}", entry.driver);
            let versioned = entry.minimum.is_some() || entry.recommended.is_some();
            assert_eq!(
                versioned,
                entry.update.is_some(),
                "{}: a version and how to get it belong together",
                entry.driver
            );
            let to_do = entry.level >= Some(Level::Warn);
            assert!(!to_do || (entry.advice.is_some() && entry.why.is_some()), "{}", entry.driver);
        }
        let ixgbevf = drivers.find("ixgbevf", &Host::default()).unwrap();
        assert_eq!(ixgbevf.recommended.as_deref(), Some("2.14.2"));
        for driver in ["vif", "ena", "virtio_net", "mlx5_core", "gve", "hv_netvsc", "mana", "erdma"] {
            assert!(drivers.find(driver, &Host::default()).is_some(), "{driver}");
        }
    }

    #[test]
    fn a_rule_for_the_platform_comes_first() {
        let drivers = Drivers::load(None).unwrap();
        assert_eq!(drivers.find("vif", &on("4.11.amazon")).unwrap().level, Some(Level::Warn));
        assert_eq!(drivers.find("vif", &on("Xen")).unwrap().level, Some(Level::Note));
        assert_eq!(drivers.find("no-such-driver", &on("Xen")), None);
    }

    #[test]
    fn mistakes_are_told_with_file_and_line() {
        for (text, wanted) in [
            ("level = ok", "t:1: \"level\" stands before the first [DRIVER]"),
            ("[a]\nlevel = good", "t:2: level: \"good\"; allowed: ok, note, warn, fail"),
            ("[a]\n\n# x\nkind = odd", "t:4: kind: \"odd\"; allowed: paravirtual, virtual-function, emulated"),
            ("[a]\nrecommended = new", "t:2: recommended: \"new\" is no version"),
            ("[a]\nmtu = 70000", "t:2: mtu: \"70000\"; allowed: 68..=65535"),
            ("[a]\ncolour = red", "t:2: unknown key \"colour\"; allowed: name, kind"),
            ("[a]\nwhy =", "t:2: \"why\" has no value"),
            ("[a]\nnonsense", "t:2: \"nonsense\" is not KEY = VALUE"),
            ("[a", "t:1: \"[a\" has no closing bracket"),
            ("[]", "names no driver"),
            ("[a @ ]", "names no driver"),
            ("[a]\n[a]", "t:2: \"[a]\" is there already"),
            ("", "t: no [DRIVER] section"),
        ] {
            let error = parse("t", text).unwrap_err();
            assert!(error.contains(wanted), "{text:?}: {error}");
        }
        assert_eq!(parse("t", "[a]\nx\nlevel = y\n").unwrap_err().lines().count(), 2, "all of them");
        let error = parse("t", &"x\n".repeat(100)).unwrap_err();
        assert!(
            error.lines().count() == 11 && error.ends_with("t:11: more problems, from here on, are not listed"),
            "{error}"
        );
        assert!(Drivers::load(Some(Path::new("/no/such/table"))).unwrap_err().starts_with("/no/such/table: "));
    }

    #[test]
    fn versions_are_compared_by_number() {
        for (a, b, order) in [
            ("2.12.1", "2.14.2", Some(Ordering::Less)),
            ("2.14.2", "2.14.2", Some(Ordering::Equal)),
            ("3.1.2", "2.14.2", Some(Ordering::Greater)),
            ("4.1.0-k", "2.14.2", Some(Ordering::Greater)),
            ("2.8.9g", "2.2.9", Some(Ordering::Greater)),
            ("2.14", "2.14.0", Some(Ordering::Equal)),
            ("6.18.44-fc", "2.14.2", Some(Ordering::Greater)),
            ("", "2.14.2", None),
            ("unknown", "2.14.2", None),
        ] {
            assert_eq!(compare(a, b), order, "{a} {b}");
        }
    }

    proptest::proptest! {
        #[test]
        fn garbage_never_panics(text in "(?s)(\\[|@|\\]|=|[a-z]|mtu|[0-9]|\\.|\n|.){0,200}") {
            let _ = parse("t", &text);
            let _ = compare(&text, "1.2");
            let _ = crate::peer::Target::parse(&text);
        }
    }
}
