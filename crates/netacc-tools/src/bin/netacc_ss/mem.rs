//! `-s mem`: the shared memory of NetACC in a process, and what it has pinned.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};

use netacc_stats::Counter;
use netacc_stats_reader::{Error, Link, Snapshot};
use netacc_tools::terminal::Style;
use serde_json::{Value, json};

use netacc_tools::table::Align::{Left, Right};
use netacc_tools::table::Table;

/// How the mappings of NetACC are named in `/proc/PID/smaps`.
const PREFIX: &str = "/memfd:netacc-";
/// What the windows of connections cost the process, as the library counts it. Each page is counted by the process that
/// writes it first.
const WINDOWS: [(&str, Counter); 5] = [
    ("used", Counter::WindowBytes),
    ("most at a time", Counter::WindowPeakBytes),
    ("budget (0: not needed yet)", Counter::WindowBudgetBytes),
    ("given back", Counter::WindowGivenBackBytes),
    ("times refused", Counter::WindowsRefused),
];
/// The name of a link's segment behind that.
const SEGMENT: &str = "netacc-link";

/// What mappings add up to; sizes in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) maps: u64,
    pub(crate) size: u64,
    pub(crate) rss: u64,
    pub(crate) pss: u64,
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

/// One file in memory: its mappings in the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Area {
    name: String,
    /// Where its mappings begin.
    starts: Vec<u64>,
    used: Use,
}

/// The memory of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    /// By inode.
    areas: BTreeMap<u64, Area>,
    /// Bytes that the kernel may not move, as devices need them.
    pub(crate) pinned: u64,
    /// Limit of locked memory in bytes; `None`: unlimited.
    pub(crate) memlock: Option<u64>,
}

/// Reads `/proc/PID/smaps`, `status` and `limits`.
pub(crate) fn read(pid: u32) -> Result<Memory, Error> {
    let open = |name| File::open(format!("/proc/{pid}/{name}")).map(BufReader::new);
    let all = || {
        let areas = parse(open("smaps")?)?;
        let pinned = pinned(open("status")?)?;
        Ok(Memory { areas, pinned, memlock: memlock(open("limits")?)? })
    };
    all().map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Error::NoProcess,
        io::ErrorKind::PermissionDenied => Error::Denied,
        _ => Error::Io(error),
    })
}

/// What NetACC itself has registered; a gauge that was read between its ups and downs may be below zero.
pub(crate) fn registered(page: &Snapshot) -> i64 {
    gauge(page, Counter::RegisteredBytes)
}

fn gauge(page: &Snapshot, counter: Counter) -> i64 {
    page.counter(counter).cast_signed().max(0)
}

fn parse(smaps: impl BufRead) -> io::Result<BTreeMap<u64, Area>> {
    let mut found: BTreeMap<u64, Area> = BTreeMap::new();
    let mut current: Option<u64> = None;
    for line in smaps.split(b'\n') {
        // File names may be in any encoding.
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        let Some(key) = first.strip_suffix(':') else {
            current = mapping(first, words).map(|(start, inode, name)| {
                let area = found.entry(inode).or_default();
                area.name = name;
                area.starts.push(start);
                area.used.maps += 1;
                inode
            });
            continue;
        };
        let used = current.and_then(|inode| found.get_mut(&inode));
        let (Some(area), Some(kib)) = (used, words.next().and_then(|kib| kib.parse::<u64>().ok())) else {
            continue;
        };
        let sum = match key {
            "Size" => &mut area.used.size,
            "Rss" => &mut area.used.rss,
            "Pss" => &mut area.used.pss,
            _ => continue,
        };
        *sum = sum.wrapping_add(kib);
    }
    Ok(found)
}

/// ADDRESSES PERMS OFFSET DEVICE INODE NAME begins a mapping; names of others may contain anything, so they count
/// only from their first character on.
fn mapping<'a>(addresses: &str, mut words: impl Iterator<Item = &'a str>) -> Option<(u64, u64, String)> {
    let start = u64::from_str_radix(addresses.split('-').next()?, 16).ok()?;
    let inode = words.nth(3)?.parse().ok()?;
    let name = words.next()?.strip_prefix(PREFIX)?;
    Some((start, inode, format!("netacc-{}", name.escape_debug())))
}

fn pinned(status: impl BufRead) -> io::Result<u64> {
    for line in status.split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if let Some(size) = line.strip_prefix("VmPin:") {
            let kib = size.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok());
            return Ok(kib.unwrap_or(0).saturating_mul(1024));
        }
    }
    Ok(0)
}

/// The soft limit.
fn memlock(limits: impl BufRead) -> io::Result<Option<u64>> {
    for line in limits.lines() {
        let line = line?;
        if let Some(values) = line.strip_prefix("Max locked memory") {
            return Ok(values.split_whitespace().next().and_then(|soft| soft.parse().ok()));
        }
    }
    Ok(None)
}

impl Memory {
    /// What the mappings of each name add up to.
    pub(crate) fn by_name(&self) -> BTreeMap<&str, Use> {
        let mut sums: BTreeMap<&str, Use> = BTreeMap::new();
        for area in self.areas.values() {
            let sum = sums.entry(&area.name).or_default();
            *sum = sum.plus(area.used);
        }
        sums
    }

    pub(crate) fn total(&self) -> Use {
        self.areas.values().fold(Use::default(), |sum, area| sum.plus(area.used))
    }

    /// The segment of a link.
    pub(crate) fn segment(&self, link: &Link) -> Option<Use> {
        self.areas.values().find(|area| area.starts.contains(&link.address)).map(|area| area.used)
    }

    /// Resident bytes of all segments, shared among the connections that there are.
    pub(crate) fn per_connection(&self, page: &Snapshot) -> Option<u64> {
        let segments = self.by_name().get(SEGMENT).map_or(0, |used| used.rss);
        // A gauge may be below zero for a moment.
        let connections = u64::try_from(page.counter(Counter::SlotsInUse).cast_signed()).unwrap_or(0);
        segments.saturating_mul(1024).checked_div(connections)
    }

    /// Appends the memory as tables.
    pub(crate) fn text(&self, page: &Snapshot, style: Style, out: &mut String) {
        let mut table = Table::new([
            ("Memory", Left),
            ("Mappings", Right),
            ("Size-KiB", Right),
            ("Rss-KiB", Right),
            ("Pss-KiB", Right),
        ]);
        for (name, used) in self.by_name().into_iter().chain([("total", self.total())]) {
            let numbers = [used.maps, used.size, used.rss, used.pss];
            let [maps, size, rss, pss] = numbers.map(|number| number.to_string());
            table.row([name.to_owned(), maps, size, rss, pss]);
        }
        table.write(style, out);
        self.segments(page, style, out);
        let each = self.per_connection(page).map_or_else(|| "-".into(), |bytes| bytes.to_string());
        let limit = self.memlock.map_or_else(|| "unlimited".into(), |bytes| bytes.to_string());
        let mut table = Table::new([("Sum", Left), ("Bytes", Right)]);
        table.row(["resident per connection".into(), each]);
        table.row(["registered for RDMA".into(), registered(page).to_string()]);
        table.row(["of them in use".into(), gauge(page, Counter::RegisteredUsed).to_string()]);
        table.row(["pinned for devices".into(), self.pinned.to_string()]);
        table.row(["limit of pinned (memlock)".into(), limit]);
        for (what, counter) in WINDOWS {
            table.row([format!("windows: {what}"), gauge(page, counter).to_string()]);
        }
        out.push('\n');
        table.write(style, out);
    }

    fn segments(&self, page: &Snapshot, style: Style, out: &mut String) {
        let mut table = Table::new([
            ("Segment of QP", Right),
            ("Conns", Right),
            ("Size-KiB", Right),
            ("Rss-KiB", Right),
            ("Pss-KiB", Right),
        ]);
        let mut any = false;
        for (link, used) in page.links.iter().filter_map(|link| Some((link, self.segment(link)?))) {
            any = true;
            let numbers = [u64::from(link.id), link.in_use.into(), used.size, used.rss, used.pss];
            table.row(numbers.map(|number| number.to_string()));
        }
        if any {
            out.push('\n');
            table.write(style, out);
        }
    }

    /// The same as an object.
    pub(crate) fn json(&self, page: &Snapshot) -> Value {
        let each: serde_json::Map<String, Value> =
            self.by_name().into_iter().map(|(name, used)| (name.to_owned(), used.json())).collect();
        let segments: Vec<Value> = page
            .links
            .iter()
            .filter_map(|link| Some((link, self.segment(link)?)))
            .map(|(link, used)| json!({ "link": link.id, "connections": link.in_use, "memory": used.json() }))
            .collect();
        let windows: serde_json::Map<String, Value> =
            WINDOWS.map(|(_, counter)| (counter.name().to_owned(), gauge(page, counter).into())).into_iter().collect();
        json!({
            "total": self.total().json(),
            "areas": each,
            "segments": segments,
            "bytes_per_connection": self.per_connection(page),
            "registered_bytes": registered(page),
            "registered_used_bytes": gauge(page, Counter::RegisteredUsed),
            "registered_regions": gauge(page, Counter::RegisteredRegions),
            "pinned_bytes": self.pinned,
            "memlock_limit_bytes": self.memlock,
            "windows": windows,
        })
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
        let memory = Memory { areas: parse(SMAPS.as_bytes()).unwrap(), ..Memory::default() };
        let link = Use { maps: 2, size: 104, rss: 44, pss: 22 };
        assert_eq!(memory.by_name().get("netacc-link"), Some(&link));
        assert_eq!(memory.by_name().len(), 2);
        assert_eq!(memory.total(), Use { maps: 3, size: 8308, rss: 60, pss: 38 });
        assert_eq!(memory.areas[&2061].starts, [0x7f00, 0x7f10]);
    }

    #[test]
    fn pinned_and_its_limit() {
        assert_eq!(pinned(&b"VmLck:\t 4 kB\nVmPin:\t    12 kB\n"[..]).unwrap(), 12 * 1024);
        assert_eq!(pinned(&b"Name:\t\xff\n"[..]).unwrap(), 0);
        let line =
            |soft: &str| format!("Limit  Soft  Hard  Units\nMax locked memory         {soft}  unlimited  bytes\n");
        assert_eq!(memlock(line("8388608").as_bytes()).unwrap(), Some(8_388_608));
        assert_eq!(memlock(line("unlimited").as_bytes()).unwrap(), None);
    }
}
