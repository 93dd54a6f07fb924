//! Questions to a network driver by the ioctl SIOCETHTOOL (netdevice(7), linux/ethtool.h).
//!
//! # Safety
//!
//! Every question is a buffer of 32-bit words that begins with a command. The kernel writes at most the structure of
//! that command, whose size is checked below against the words given; of statistics, as many as the driver said.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

const SIOCETHTOOL: Opcode = 0x8946;
const IFNAMSIZ: usize = 16;

/// A command of ethtool and the number of words of its structure.
#[derive(Clone, Copy)]
struct Question<const WORDS: usize>(u32);

/// `struct ethtool_drvinfo`, 196 bytes.
const DRVINFO: Question<49> = Question(0x03);
/// `struct ethtool_coalesce`: 23 words.
const COALESCE: Question<23> = Question(0x0e);
/// `struct ethtool_ringparam`: 9 words.
const RINGPARAM: Question<9> = Question(0x10);
/// `struct ethtool_channels`: 9 words.
const CHANNELS: Question<9> = Question(0x3c);
/// `struct ethtool_sset_info` for one set of strings: a head of 4 words and a number.
const SSET_INFO: u32 = 0x37;
/// `struct ethtool_gstrings`: a head of 3 words, and names of 32 bytes.
const GSTRINGS: u32 = 0x1b;
/// `struct ethtool_stats`: a head of 2 words, and numbers of 64 bits.
const GSTATS: u32 = 0x1d;
/// The set of strings that names the statistics.
const STATS: u32 = 1;
/// More statistics than any driver has.
const MOST_STATS: u32 = 1 << 16;
/// Words of a name.
const NAME_WORDS: usize = 8;
/// `struct ethtool_value`: 2 words.
const OFFLOADS: [(&str, Question<2>); 6] = [
    ("rx-checksum", Question(0x14)),
    ("tx-checksum", Question(0x16)),
    ("sg", Question(0x18)),
    ("tso", Question(0x1e)),
    ("gso", Question(0x23)),
    ("gro", Question(0x2b)),
];

/// `struct ifreq`, with a pointer as its union.
#[repr(C)]
struct Request {
    name: [u8; IFNAMSIZ],
    data: *mut c_void,
    /// The union has 24 bytes, of which the pointer is the first.
    rest: [usize; 3 - size_of::<usize>() / 8],
}

struct Call<'a>(&'a mut Request);

// SAFETY: SIOCETHTOOL reads and writes one ifreq; `data` points to a buffer that outlives the call and is as large as
// the structure of the command in it (`ask`).
unsafe impl Ioctl for Call<'_> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        SIOCETHTOOL
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut *self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// What a driver says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Driver {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) firmware: String,
    pub(crate) bus: String,
}

/// The way to ask.
pub(crate) struct Ethtool(OwnedFd);

impl Ethtool {
    pub(crate) fn open() -> io::Result<Self> {
        let any = |family| rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        any(AddressFamily::INET).or_else(|_| any(AddressFamily::UNIX)).map(Self).map_err(os)
    }

    pub(crate) fn driver(&self, interface: &str) -> io::Result<Driver> {
        let words = self.ask(interface, DRVINFO)?;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let text = |field: usize| {
            let bytes = bytes.get(4 + 32 * field..).and_then(|rest| rest.get(..32)).unwrap_or(&[]);
            let bytes = bytes.split(|b| *b == 0).next().unwrap_or(&[]);
            String::from_utf8_lossy(bytes).into_owned()
        };
        Ok(Driver { name: text(0), version: text(1), firmware: text(2), bus: text(3) })
    }

    /// Microseconds before an interrupt, and whether the driver adapts them.
    pub(crate) fn coalescing(&self, interface: &str) -> io::Result<(u32, bool)> {
        let [_, rx_usecs, _, _, _, _, _, _, _, _, adaptive, ..] = self.ask(interface, COALESCE)?;
        Ok((rx_usecs, adaptive != 0))
    }

    /// Receive descriptors in use, and the most.
    pub(crate) fn ring(&self, interface: &str) -> io::Result<(u32, u32)> {
        let [_, rx_max, _, _, _, rx, ..] = self.ask(interface, RINGPARAM)?;
        Ok((rx, rx_max))
    }

    /// Channels in use, and the most.
    pub(crate) fn channels(&self, interface: &str) -> io::Result<(u32, u32)> {
        let [_, max_rx, _, _, max_combined, rx, _, _, combined] = self.ask(interface, CHANNELS)?;
        Ok((rx.saturating_add(combined), max_rx.max(max_combined)))
    }

    /// The offloads that the driver has an answer for.
    pub(crate) fn offloads(&self, interface: &str) -> impl Iterator<Item = (&'static str, bool)> {
        OFFLOADS.into_iter().filter_map(move |(name, question)| {
            let [_, on] = self.ask(interface, question).ok()?;
            Some((name, on != 0))
        })
    }

    /// The driver's statistics whose names begin like this.
    pub(crate) fn statistics(&self, interface: &str, prefix: &str) -> io::Result<BTreeMap<String, u64>> {
        // The kernel writes as many names and numbers as the driver has, so it is asked for their number before. A
        // driver that had more of them by now would have room for twice as many.
        let mut info = [SSET_INFO, 0, 1 << STATS, 0, 0];
        self.pass(interface, &mut info)?;
        let [_, _, _, _, count] = info;
        if count == 0 || count > MOST_STATS {
            return Ok(BTreeMap::new());
        }
        let room = count as usize * 2;
        let mut names = vec![0_u32; 3 + room * NAME_WORDS];
        names.splice(..3, [GSTRINGS, STATS, count]);
        self.pass(interface, &mut names)?;
        let mut numbers = vec![0_u32; 2 + room * 2];
        numbers.splice(..2, [GSTATS, count]);
        self.pass(interface, &mut numbers)?;
        let (_, names) = names.split_at(3);
        let (_, numbers) = numbers.split_at(2);
        let named = names.chunks_exact(NAME_WORDS).zip(numbers.chunks_exact(2)).take(count as usize);
        let each = named.filter_map(|(name, number)| {
            let bytes: Vec<u8> = name.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let name = String::from_utf8_lossy(bytes.split(|b| *b == 0).next()?).into_owned();
            let [low, high] = number else { return None };
            let [a, b] = [low.to_ne_bytes(), high.to_ne_bytes()];
            let [a0, a1, a2, a3] = a;
            let [b0, b1, b2, b3] = b;
            name.starts_with(prefix).then(|| (name, u64::from_ne_bytes([a0, a1, a2, a3, b0, b1, b2, b3])))
        });
        Ok(each.collect())
    }

    fn ask<const WORDS: usize>(&self, interface: &str, question: Question<WORDS>) -> io::Result<[u32; WORDS]> {
        let mut words = [0_u32; WORDS];
        if let Some(command) = words.first_mut() {
            *command = question.0;
        }
        self.pass(interface, &mut words)?;
        Ok(words)
    }

    /// Has the kernel write the answer to the command in `words`, which have room for it.
    fn pass(&self, interface: &str, words: &mut [u32]) -> io::Result<()> {
        let mut name = [0; IFNAMSIZ];
        // The last byte ends the name.
        if interface.len() >= IFNAMSIZ || interface.contains('\0') {
            return Err(os(Errno::NODEV));
        }
        for (to, from) in name.iter_mut().zip(interface.bytes()) {
            *to = from;
        }
        let mut request = Request { name, data: words.as_mut_ptr().cast(), rest: [0; 3 - size_of::<usize>() / 8] };
        // SAFETY: the request names the command's words, which this function has borrowed and which have room for the
        // kernel's answer to that command.
        unsafe { rustix::ioctl::ioctl(&self.0, Call(&mut request)) }.map_err(os)
    }
}

fn os(error: Errno) -> io::Error {
    io::Error::from_raw_os_error(error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernel() {
        assert_eq!(size_of::<Request>(), 40);
        assert_eq!(49 * 4, 196);
    }

    #[test]
    fn loopback_answers_and_what_is_not_there_does_not() {
        let ethtool = Ethtool::open().unwrap();
        // Loopback has offloads but no driver information in every kernel.
        assert!(ethtool.offloads("lo").any(|(name, on)| name == "tso" && on));
        assert!(ethtool.ring("lo").is_err());
        assert!(ethtool.statistics("lo", "").unwrap_or_default().is_empty());
        for name in ["no-such-if", "", "a-name-that-is-too-long", "lo\0"] {
            assert!(ethtool.driver(name).is_err(), "{name:?}");
        }
    }
}
