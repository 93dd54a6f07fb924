//! The preloaded library as a file, and what of it a process has to have in its memory.
//!
//! The library needs nothing of a loader but that its segments are mapped, and that addresses in its data are corrected
//! (docs/decisions/0027). What the file says is checked against its size, and anything that is not known is refused.

use super::problem::Problem;
use crate::errno::Errno;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::CStr;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::pread;

const PAGE: u64 = 4096;
/// The largest library (bytes): both the file, and what it takes in memory.
const LARGEST: u64 = 256 << 20;

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

/// The library's file.
pub struct Image {
    bytes: Vec<u8>,
    /// Its device and inode.
    pub file: (u64, u64),
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

/// Where the program headers of a shared object for x86-64 lie in the file.
fn headers(bytes: &[u8]) -> Option<impl Iterator<Item = u64> + use<>> {
    const SHARED_X86_64: u64 = 62 << 16 | 3;
    const SIZE: u64 = 56;
    if !bytes.starts_with(b"\x7fELF\x02\x01") || number(bytes, 16, 4)? != SHARED_X86_64 {
        return None;
    }
    let (first, size, count) = (number(bytes, 32, 8)?, number(bytes, 54, 2)?, number(bytes, 56, 2)?);
    let is_known = size == SIZE && first < PAGE;
    is_known.then(|| (0..count).map(move |n| first + n * SIZE))
}

/// The first `length` bytes of a file, or as many as it has.
fn read_to(file: &OwnedFd, length: u64) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match pread(file.as_fd(), rest, filled as u64)? {
            0 => break,
            n => filled += n,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Where the segment of a header ends in the file.
fn end_in_file(bytes: &[u8], header: u64) -> Option<u64> {
    number(bytes, header + 8, 8)?.checked_add(number(bytes, header + 32, 8)?)
}

impl Image {
    /// Reads the library.
    ///
    /// # Errors
    /// The kernel's, or that it is not a library that can be mapped.
    pub fn read(path: &CStr) -> Result<Image, Problem> {
        let failed = |error: rustix::io::Errno| Problem::Library(Errno(error.raw_os_error()));
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let file = open(path, flags, Mode::empty()).map_err(failed)?;
        let meta = fstat(&file).map_err(failed)?;
        let size = u64::try_from(meta.st_size).unwrap_or(u64::MAX);
        if meta.st_mode & libc::S_IFMT != libc::S_IFREG || size > LARGEST {
            return Err(Problem::Damaged);
        }
        let mut bytes = read_to(&file, PAGE.min(size)).map_err(failed)?;
        // Behind what is mapped there may be much more, for debuggers.
        let needed = headers(&bytes).and_then(|all| all.map(|at| end_in_file(&bytes, at)).max().flatten());
        let needed = needed.ok_or(Problem::Damaged)?.min(size);
        if needed > bytes.len() as u64 {
            bytes = read_to(&file, needed).map_err(failed)?;
        }
        Image::parse(bytes, (meta.st_dev, meta.st_ino)).ok_or(Problem::Damaged)
    }

    fn parse(bytes: Vec<u8>, file: (u64, u64)) -> Option<Image> {
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
        Some(Image { bytes, file, segments, constant, entry, dynamic: dynamic? })
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

    /// The content of its segments that can be written, for a library that begins at `base`.
    pub fn data(&self, base: u64) -> Option<Vec<(Segment, Vec<u8>)>> {
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
                let value = self.corrected(base, number(&self.bytes, at + 8, 8)?, number(&self.bytes, at + 16, 8)?)?;
                let within = |(s, _): &&mut (Segment, Vec<u8>)| (s.address..s.address + s.filled).contains(&place);
                let (segment, bytes) = all.iter_mut().find(within)?;
                let into = (place - segment.address) as usize;
                bytes.get_mut(into..into + 8)?.copy_from_slice(&value.to_le_bytes());
            }
        }
        Some(all)
    }

    /// The value that a relocation gives.
    fn corrected(&self, base: u64, info: u64, addend: u64) -> Option<u64> {
        const RELATIVE: u64 = 8;
        const SYMBOLIC: [u64; 3] = [1, 6, 7]; // R_X86_64_64, GLOB_DAT, JUMP_SLOT
        const SYMBOLS: u64 = 6;
        const WEAK: u64 = 2;
        match info & 0xffff_ffff {
            RELATIVE => Some(base.wrapping_add(addend)),
            kind if SYMBOLIC.contains(&kind) => {
                let symbol = self.offset_of(self.entry_of(SYMBOLS)?)?.checked_add((info >> 32) * 24)?;
                let binding = number(&self.bytes, symbol + 4, 1)? >> 4;
                let value = match number(&self.bytes, symbol + 6, 2)? {
                    // Nothing but the library is there, so that a weak symbol which it does not have is nowhere.
                    0 if binding == WEAK => 0,
                    0 => return None,
                    _ => base.wrapping_add(number(&self.bytes, symbol + 8, 8)?),
                };
                Some(value.wrapping_add(addend))
            }
            _ => None,
        }
    }
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
        put(&mut all, 16, &[62 << 16 | 3, 0x800, 64]);
        all[54] = 56;
        all[56] = 3;
        for (n, (kind, flags, at, filled, size)) in
            [(1, 5, 0, 0x1000, 0x1000), (1, 6, 0x1000, 0x200, 0x1800), (kind, 6, 0x1000, 0x70, 0x70)].iter().enumerate()
        {
            let header = 64 + n * 56;
            put(&mut all, header, &[u64::from(*kind) | flags << 32, *at, *at, *at, *filled, *size]);
        }
        // Symbols: a weak one that is nowhere, and one of the library's.
        put(&mut all, 0x400, &[0, 0, 0, 0x20 << 32, 0, 0, 0x10 << 32 | 1 << 48, 0x900, 0]);
        put(&mut all, 0x500, &[0x1100, 8, 0x123, 0x1108, 1 << 32 | 6, 0, 0x1110, 2 << 32 | 1, 4]);
        put(&mut all, 0x1000, &[7, 0x500, 8, 72, 6, 0x400, more[0], more[1], 0, 0]);
        put(&mut all, 0x1100, &[!0; 4]);
        all
    }

    fn words(bytes: &[u8], at: u64) -> Vec<u64> {
        (0..4).map(|n| number(bytes, at + n * 8, 8).unwrap()).collect()
    }

    #[test]
    fn addresses_are_corrected() {
        let image = Image::parse(library([0, 0], DYNAMIC), (1, 2)).unwrap();
        assert_eq!((image.span(), image.entry, image.segments.len()), (0x3000, 0x800, 2));
        let data = image.data(0x7000_0000).unwrap();
        let [(segment, bytes)] = &data[..] else { panic!("{}", data.len()) };
        assert_eq!((segment.pages(), bytes.len()), ((0x1000, 0x3000), 0x200));
        assert_eq!(words(bytes, 0x100), [0x7000_0123, 0, 0x7000_0904, !0]);
    }

    #[test]
    fn what_needs_a_loader_is_refused() {
        // A library that is needed, relocations of another form, and thread-local memory.
        for tag in [1, 17, 36] {
            assert!(Image::parse(library([tag, 1], DYNAMIC), (1, 2)).unwrap().data(0x1000).is_none(), "{tag}");
        }
        assert!(Image::parse(library([0, 0], THREAD_LOCAL), (1, 2)).is_none());
        // A correction of what is not data, and of a kind that is not known.
        for (at, words) in [(0x500, [0x100, 8]), (0x500, [0x11fc, 8]), (0x500, [0x1100, 18]), (0x508, [2, 0])] {
            let mut all = library([0, 0], DYNAMIC);
            put(&mut all, at, &words);
            let image = Image::parse(all, (1, 2)).unwrap();
            assert!(image.data(0x1000).is_none(), "{at:#x} {words:?}");
        }
    }

    #[test]
    fn damage_is_refused() {
        let whole = library([0, 0], DYNAMIC);
        for len in [0, 5, 60, 64, 200, 0x1100] {
            let image = Image::parse(whole[..len].to_vec(), (1, 2));
            assert!(image.is_none_or(|image| image.data(0x1000).is_none()), "{len}");
        }
        for at in 0..0x600 {
            for bits in [1, 0x80, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] ^= bits;
                let _ = Image::parse(damaged, (1, 2)).map(|image| image.data(0x1000));
            }
        }
    }
}
