//! `-s mem`: the shared memory of NetACC in a process.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader};

use netacc_stats::reader::Error;
use serde_json::{Value, json};

use crate::table::Align::{Left, Right};
use crate::table::Table;

/// How the mappings of NetACC are named in `/proc/PID/smaps`.
const PREFIX: &str = "/memfd:netacc-";

/// What the mappings of one name add up to; sizes in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Use {
    maps: u64,
    size: u64,
    rss: u64,
    pss: u64,
}

impl Use {
    fn plus(self, other: Self) -> Self {
        Self {
            maps: self.maps.wrapping_add(other.maps),
            size: self.size.wrapping_add(other.size),
            rss: self.rss.wrapping_add(other.rss),
            pss: self.pss.wrapping_add(other.pss),
        }
    }

    fn json(self) -> Value {
        json!({
            "mappings": self.maps, "size_kib": self.size, "rss_kib": self.rss, "pss_kib": self.pss
        })
    }
}

/// The memory of a process, by name of the mapping.
pub(crate) struct Memory(BTreeMap<String, Use>);

/// Reads `/proc/PID/smaps`.
pub(crate) fn read(pid: u32) -> Result<Memory, Error> {
    let file = std::fs::File::open(format!("/proc/{pid}/smaps"));
    file.and_then(|file| parse(BufReader::new(file))).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::NoProcess,
        io::ErrorKind::PermissionDenied => Error::Denied,
        _ => Error::Io(error),
    })
}

fn parse(smaps: impl BufRead) -> io::Result<Memory> {
    let mut found: BTreeMap<String, Use> = BTreeMap::new();
    let mut current: Option<String> = None;
    for line in smaps.split(b'\n') {
        // File names may be in any encoding.
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        let Some(key) = first.strip_suffix(':') else {
            // ADDRESSES PERMS OFFSET DEVICE INODE NAME begins a mapping; names of others
            // may contain anything, so they count only from their first character on.
            let name = words.nth(4).and_then(|name| name.strip_prefix(PREFIX));
            current = name.map(|name| format!("netacc-{}", name.escape_debug()));
            if let Some(name) = &current {
                found.entry(name.clone()).or_default().maps += 1;
            }
            continue;
        };
        let used = current.as_ref().and_then(|name| found.get_mut(name));
        let (Some(used), Some(kib)) = (used, words.next().and_then(|kib| kib.parse::<u64>().ok())) else {
            continue;
        };
        let sum = match key {
            "Size" => &mut used.size,
            "Rss" => &mut used.rss,
            "Pss" => &mut used.pss,
            _ => continue,
        };
        *sum = sum.wrapping_add(kib);
    }
    Ok(Memory(found))
}

impl Memory {
    fn total(&self) -> Use {
        self.0.values().fold(Use::default(), |sum, used| sum.plus(*used))
    }

    /// Appends the memory as a table.
    pub(crate) fn text(&self, out: &mut String) {
        let mut table = Table::new([
            ("Memory", Left),
            ("Mappings", Right),
            ("Size-KiB", Right),
            ("Rss-KiB", Right),
            ("Pss-KiB", Right),
        ]);
        let total = ("total", self.total());
        let each = self.0.iter().map(|(name, used)| (name.as_str(), *used));
        for (name, used) in each.chain([total]) {
            let numbers = [used.maps, used.size, used.rss, used.pss];
            let [maps, size, rss, pss] = numbers.map(|number| number.to_string());
            table.row([name.to_owned(), maps, size, rss, pss]);
        }
        table.write(out);
    }

    /// The same as an object.
    pub(crate) fn json(&self) -> Value {
        let each: serde_json::Map<String, Value> =
            self.0.iter().map(|(name, used)| (name.clone(), used.json())).collect();
        json!({ "total": self.total().json(), "areas": each })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f00-7f10 rw-s 00000000 00:01 2061 /memfd:netacc-link (deleted)
Size:                100 kB
Rss:                  40 kB
Pss:                  20 kB
Pss_Dirty:            20 kB
VmFlags: rd wr sh mr mw me ms sd
7f10-7f20 rw-s 00000000 00:01 2061 /memfd:netacc-link (deleted)
Size:                  4 kB
Rss:                   4 kB
Pss:                   2 kB
7f20-7f30 rw-s 00000000 00:01 2062 /tmp/memfd:netacc-link
Size:               9999 kB
7f30-7f40 rw-p 00000000 00:00 0
Rss:                9999 kB
7f40-7f50 rw-s 00000000 00:01 2063 /memfd:netacc-stats (deleted)
Size:               8204 kB
Rss:                  16 kB
Pss:                  16 kB
";

    #[test]
    fn only_our_mappings_are_summed() {
        let memory = parse(SMAPS.as_bytes()).unwrap();
        let link = Use { maps: 2, size: 104, rss: 44, pss: 22 };
        assert_eq!(memory.0.get("netacc-link"), Some(&link));
        assert_eq!(memory.0.len(), 2);
        assert_eq!(memory.total(), Use { maps: 3, size: 8308, rss: 60, pss: 38 });
    }
}
