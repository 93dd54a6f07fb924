//! The preloaded library as a file (elf(5)), and what of it a process has to have in its memory.
//!
//! The library needs nothing of a loader but that its segments are mapped, and that addresses in its data are corrected
//! (docs/decisions/0027). What the file says is checked against its size, and anything that is not known is refused.

use crate::errno::Errno;
use crate::mem::LARGEST_PAGE;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::CStr;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FileType, fstat};
use rustix::io::pread;

/// Size (bytes) of the pages that segments are rounded to.
const PAGE: u64 = LARGEST_PAGE as u64;
/// The largest library (bytes): both the file, and what it takes in memory.
const LARGEST: u64 = 256 << 20;

/// Why there is no library in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The file cannot be read.
    Unreadable(Errno),
    /// The file is damaged or not whole, or it is no library that can be mapped.
    Damaged,
}

/// `e_machine` of this processor, and its relocations: the one that adds the base address, and those that name a
/// symbol.
#[cfg(target_arch = "x86_64")]
const PROCESSOR: (u64, u64, [u64; 3]) = (62, 8, [1, 6, 7]);
/// `e_machine` of this processor, and its relocations: the one that adds the base address, and those that name a
/// symbol.
#[cfg(target_arch = "aarch64")]
const PROCESSOR: (u64, u64, [u64; 3]) = (183, 1027, [257, 1025, 1026]);

/// A segment that is mapped.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Where it lies in the file.
    pub offset: u64,
    /// Where it lies in memory, from the library's beginning on.
    pub address: u64,
    /// How much of it is in the file.
    pub filled: u64,
    /// How much of it there is in memory. The rest is zero.
    pub size: u64,
    /// `PF_R`, `PF_W` and `PF_X`.
    pub flags: u32,
}

impl Segment {
    /// The pages that it takes in memory: the first one's address, and the end.
    pub fn pages(&self) -> (u64, u64) {
        (down(self.address), up(self.address + self.size))
    }
}

/// The library's file, as far as it is mapped.
#[derive(Debug)]
pub struct Image {
    bytes: Vec<u8>,
    /// Its segments, in the order of their addresses.
    pub segments: Vec<Segment>,
    /// The part of its data that nobody writes to once the addresses are corrected: where it begins and ends.
    pub constant: Option<(u64, u64)>,
    /// Where a static program begins.
    pub entry: u64,
    dynamic: Segment,
}

fn down(n: u64) -> u64 {
    n & !(PAGE - 1)
}

fn up(n: u64) -> u64 {
    down(n.saturating_add(PAGE - 1))
}

fn number(bytes: &[u8], at: u64, len: usize) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let part = bytes.get(at..at.checked_add(len)?)?;
    Some(part.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte)))
}

/// Where the program headers of a shared object for this processor lie in the file.
fn headers(bytes: &[u8]) -> Option<impl Iterator<Item = u64> + use<>> {
    const SHARED: u64 = PROCESSOR.0 << 16 | 3;
    const SIZE: u64 = 56;
    if !bytes.starts_with(b"\x7fELF\x02\x01") || number(bytes, 16, 4)? != SHARED {
        return None;
    }
    let (first, size, count) = (number(bytes, 32, 8)?, number(bytes, 54, 2)?, number(bytes, 56, 2)?);
    let is_known = size == SIZE && first < PAGE;
    is_known.then(|| (0..count).map(move |n| first + n * SIZE))
}

/// Where the segment of a header ends in the file.
fn end_in_file(bytes: &[u8], header: u64) -> Option<u64> {
    number(bytes, header + 8, 8)?.checked_add(number(bytes, header + 32, 8)?)
}

/// Where the table of sections ends in the file.
fn sections_end(bytes: &[u8]) -> Option<u64> {
    let (offset, size, count) = (number(bytes, 40, 8)?, number(bytes, 58, 2)?, number(bytes, 60, 2)?);
    offset.checked_add(size * count)
}

fn unreadable(error: rustix::io::Errno) -> Problem {
    Problem::Unreadable(error.into())
}

/// The first `length` bytes of a file.
fn read_to(file: BorrowedFd<'_>, length: u64) -> Result<Vec<u8>, Problem> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match pread(file, rest, filled as u64) {
            // It was made shorter meanwhile.
            Ok(0) => return Err(Problem::Damaged),
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(unreadable(e)),
        }
    }
    Ok(bytes)
}

impl Image {
    /// Reads the library from its file.
    ///
    /// # Errors
    /// The variant says what is wrong with the file.
    pub fn read(file: &impl AsFd) -> Result<Image, Problem> {
        let file = file.as_fd();
        let meta = fstat(file).map_err(unreadable)?;
        let size = u64::try_from(meta.st_size).unwrap_or(u64::MAX);
        if FileType::from_raw_mode(meta.st_mode) != FileType::RegularFile || size > LARGEST {
            return Err(Problem::Damaged);
        }
        let beginning = read_to(file, PAGE.min(size))?;
        // Behind what is mapped there may be much more, for debuggers. A file that is still being written lacks its end,
        // where the table of sections is.
        let needed = headers(&beginning).and_then(|all| all.map(|at| end_in_file(&beginning, at)).max().flatten());
        let needed = needed.filter(|needed| *needed <= size).ok_or(Problem::Damaged)?;
        if sections_end(&beginning).is_none_or(|end| end > size) {
            return Err(Problem::Damaged);
        }
        Image::parse(read_to(file, needed)?).ok_or(Problem::Damaged)
    }

    fn parse(bytes: Vec<u8>) -> Option<Image> {
        const LOAD: u64 = 1;
        const DYNAMIC: u64 = 2;
        const INTERPRETER: u64 = 3;
        const THREAD_LOCAL: u64 = 7;
        const CONSTANT: u64 = 0x6474_e552;
        let entry = number(&bytes, 24, 8)?;
        let (mut segments, mut dynamic, mut constant) = (Vec::<Segment>::new(), None, None);
        for at in headers(&bytes)? {
            let word = |from: u64| number(&bytes, at + from, 8);
            let segment = Segment {
                flags: number(&bytes, at + 4, 4)? as u32,
                offset: word(8)?,
                address: word(16)?,
                filled: word(32)?,
                size: word(40)?,
            };
            let inside = segment.address.checked_add(segment.size)? <= LARGEST
                && segment.offset.checked_add(segment.filled)? <= bytes.len() as u64
                && segment.filled <= segment.size;
            match number(&bytes, at, 4)? {
                INTERPRETER | THREAD_LOCAL => return None,
                _ if !inside => {}
                DYNAMIC => dynamic = Some(segment),
                CONSTANT => constant = Some((down(segment.address), down(segment.address + segment.size))),
                LOAD => segments.push(segment),
                _ => {}
            }
        }
        let mut end = 0;
        for segment in &segments {
            let (first, last) = segment.pages();
            if first < end || segment.address % PAGE != segment.offset % PAGE {
                return None;
            }
            end = last;
        }
        let is_code = |s: &&Segment| s.flags & 1 != 0 && (s.address..s.address + s.filled).contains(&entry);
        segments.iter().find(is_code)?;
        Some(Image { bytes, segments, constant, entry, dynamic: dynamic? })
    }

    /// The beginning of the file, with all that is mapped.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How much address space it takes (bytes).
    pub fn span(&self) -> u64 {
        self.segments.last().map_or(0, |segment| segment.pages().1)
    }

    /// The value of an entry of the dynamic section.
    fn entry_of(&self, wanted: u64) -> Option<u64> {
        let entries = self.dynamic.filled / 16;
        let entry = |n: u64| {
            let at = self.dynamic.offset + n * 16;
            Some((number(&self.bytes, at, 8)?, number(&self.bytes, at + 8, 8)?))
        };
        (0..entries).map_while(entry).take_while(|(tag, _)| *tag != 0).find(|(tag, _)| *tag == wanted).map(|(_, v)| v)
    }

    /// Where an address lies in the file.
    fn offset_of(&self, address: u64) -> Option<u64> {
        let within = |s: &&Segment| (s.address..s.address + s.filled).contains(&address);
        self.segments.iter().find(within).map(|s| address - s.address + s.offset)
    }

    /// The content of its segments that can be written, for a library that begins at `base`. `resolve` gives the address
    /// of a weak symbol that the library does not define, 0 if there is none.
    pub fn data(&self, base: u64, resolve: impl Fn(&CStr) -> u64) -> Option<Vec<(Segment, Vec<u8>)>> {
        const NEEDED: u64 = 1;
        const OTHERS: [u64; 3] = [17, 22, 36]; // DT_REL, DT_TEXTREL, DT_RELR
        if [NEEDED].iter().chain(&OTHERS).any(|tag| self.entry_of(*tag).is_some()) {
            return None;
        }
        let content = |s: &Segment| {
            let from = s.offset as usize;
            Some((*s, self.bytes.get(from..from + s.filled as usize)?.to_vec()))
        };
        let mut all = self.segments.iter().filter(|s| s.flags & 2 != 0).map(content).collect::<Option<Vec<_>>>()?;
        const RELA: [u64; 2] = [7, 8];
        const JUMPS: [u64; 2] = [23, 2];
        for [table, size] in [RELA, JUMPS] {
            let (Some(table), Some(size)) = (self.entry_of(table), self.entry_of(size)) else { continue };
            let table = self.offset_of(table)?;
            for at in (0..size / 24).map(|n| table + n * 24) {
                let place = number(&self.bytes, at, 8)?;
                let (info, addend) = (number(&self.bytes, at + 8, 8)?, number(&self.bytes, at + 16, 8)?);
                let value = self.corrected(base, info, addend, &resolve)?;
                let within = |(s, _): &&mut (Segment, Vec<u8>)| (s.address..s.address + s.filled).contains(&place);
                let (segment, bytes) = all.iter_mut().find(within)?;
                let into = (place - segment.address) as usize;
                bytes.get_mut(into..into + 8)?.copy_from_slice(&value.to_le_bytes());
            }
        }
        Some(all)
    }

    /// The value that a relocation gives.
    fn corrected(&self, base: u64, info: u64, addend: u64, resolve: impl Fn(&CStr) -> u64) -> Option<u64> {
        const WEAK: u64 = 2;
        let (_, relative, symbolic) = PROCESSOR;
        match info & 0xffff_ffff {
            kind if kind == relative => Some(base.wrapping_add(addend)),
            kind if symbolic.contains(&kind) => {
                let symbol = self.symbol(info >> 32)?;
                let value = match symbol.section {
                    0 if symbol.binding == WEAK => resolve(self.name_of(&symbol)?),
                    0 => return None,
                    _ => base.wrapping_add(symbol.value),
                };
                // What is nowhere stays so.
                Some(if value == 0 { 0 } else { value.wrapping_add(addend) })
            }
            _ => None,
        }
    }

    fn symbol(&self, n: u64) -> Option<Symbol> {
        const SYMBOLS: u64 = 6;
        let at = self.offset_of(self.entry_of(SYMBOLS)?)?.checked_add(n.checked_mul(24)?)?;
        Some(Symbol {
            name: number(&self.bytes, at, 4)?,
            binding: number(&self.bytes, at + 4, 1)? >> 4,
            section: number(&self.bytes, at + 6, 2)?,
            value: number(&self.bytes, at + 8, 8)?,
        })
    }

    fn name_of(&self, symbol: &Symbol) -> Option<&CStr> {
        const STRINGS: u64 = 5;
        let at = self.offset_of(self.entry_of(STRINGS)?.checked_add(symbol.name)?)?;
        CStr::from_bytes_until_nul(self.bytes.get(usize::try_from(at).ok()?..)?).ok()
    }

    /// The address of a symbol that the library defines, from its beginning on.
    pub fn defined(&self, name: &CStr) -> Option<u64> {
        // Number of symbols: the table of strings follows them, as linkers lay it out; without that the loop ends at
        // the end of the file.
        let symbols = (0..self.bytes.len() as u64 / 24).map_while(|n| self.symbol(n));
        let found = symbols.filter(|s| s.section != 0).find(|s| self.name_of(s).is_some_and(|n| n == name))?;
        let within = |s: &&Segment| (s.address..s.address + s.size).contains(&found.value);
        self.segments.iter().find(within).map(|_| found.value)
    }
}

/// A line of the table of symbols.
#[derive(Debug)]
struct Symbol {
    name: u64,
    binding: u64,
    section: u64,
    value: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const DYNAMIC: u32 = 2;
    const THREAD_LOCAL: u32 = 7;

    fn put(to: &mut [u8], at: usize, words: &[u64]) {
        for (n, word) in words.iter().enumerate() {
            to[at + n * 8..at + n * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
    }

    /// A library with a page of code and one of data, in which three words are corrected. `more` is a further entry of
    /// its dynamic section, `kind` that of its third segment.
    fn library(more: [u64; 2], kind: u32) -> Vec<u8> {
        let mut all = vec![0; 0x2000];
        all[..6].copy_from_slice(b"\x7fELF\x02\x01");
        put(&mut all, 16, &[PROCESSOR.0 << 16 | 3, 0x800, 64]);
        all[54] = 56;
        all[56] = 3;
        for (n, (kind, flags, at, filled, size)) in
            [(1, 5, 0, 0x1000, 0x1000), (1, 6, 0x1000, 0x200, 0x1800), (kind, 6, 0x1000, 0x70, 0x70)].iter().enumerate()
        {
            let header = 64 + n * 56;
            put(&mut all, header, &[u64::from(*kind) | flags << 32, *at, *at, *at, *filled, *size]);
        }
        // Symbols: a weak one that is nowhere, and one of the library's.
        put(&mut all, 0x400, &[0, 0, 0, 0x20 << 32 | 1, 0, 0, 0x10 << 32 | 1 << 48 | 1, 0x900, 0]);
        put(&mut all, 0x500, &[0x1100, 8, 0x123, 0x1108, 1 << 32 | 6, 0, 0x1110, 2 << 32 | 1, 4]);
        put(&mut all, 0x600, &[u64::from_le_bytes(*b"\0known\0\0")]);
        put(&mut all, 0x1000, &[7, 0x500, 8, 72, 6, 0x400, 5, 0x600, more[0], more[1], 0, 0]);
        put(&mut all, 0x1100, &[!0; 4]);
        all
    }

    fn words(bytes: &[u8], at: u64) -> Vec<u64> {
        (0..4).map(|n| number(bytes, at + n * 8, 8).unwrap()).collect()
    }

    #[test]
    fn addresses_are_corrected() {
        let image = Image::parse(library([0, 0], DYNAMIC)).unwrap();
        assert_eq!((image.span(), image.entry, image.segments.len()), (0x3000, 0x800, 2));
        let data = image.data(0x7000_0000, |_| 0).unwrap();
        let [(segment, bytes)] = &data[..] else { panic!("{}", data.len()) };
        assert_eq!((segment.pages(), bytes.len()), ((0x1000, 0x3000), 0x200));
        assert_eq!(words(bytes, 0x100), [0x7000_0123, 0, 0x7000_0904, !0]);
        // A weak symbol that the process has, and a symbol that the library has.
        let data = image.data(0, |name| if name == c"known" { 0x55 } else { 0 }).unwrap();
        assert_eq!(words(&data[0].1, 0x100)[1], 0x55);
        assert_eq!((image.defined(c"known"), image.defined(c"other")), (Some(0x900), None));
    }

    #[test]
    fn what_needs_a_loader_is_refused() {
        // A library that is needed, relocations of another form, and thread-local memory.
        for tag in [1, 17, 36] {
            assert!(Image::parse(library([tag, 1], DYNAMIC)).unwrap().data(0x1000, |_| 0).is_none(), "{tag}");
        }
        assert!(Image::parse(library([0, 0], THREAD_LOCAL)).is_none());
        // A correction of what is not data, and of a kind that is not known.
        for (at, words) in [(0x500, [0x100, 8]), (0x500, [0x11fc, 8]), (0x500, [0x1100, 18]), (0x508, [2, 0])] {
            let mut all = library([0, 0], DYNAMIC);
            put(&mut all, at, &words);
            let image = Image::parse(all).unwrap();
            assert!(image.data(0x1000, |_| 0).is_none(), "{at:#x} {words:?}");
        }
    }

    #[test]
    fn damage_is_refused() {
        let whole = library([0, 0], DYNAMIC);
        for len in [0, 5, 60, 64, 200, 0x1100] {
            let image = Image::parse(whole[..len].to_vec());
            assert!(image.is_none_or(|image| image.data(0x1000, |_| 0).is_none()), "{len}");
        }
        for at in 0..0x600 {
            for bits in [1, 0x80, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] ^= bits;
                let _ = Image::parse(damaged).map(|image| image.data(0x1000, |_| 0));
            }
        }
    }
}
