//! Reads the few things about an ELF file that tell whether a library can be preloaded into it.
//!
//! The file is foreign: every offset and size in it may be a lie. Nothing is read without bounds, and the
//! work is limited whatever the file claims.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Something that can be read at an offset. A short count means that it ends there.
pub trait ReadAt {
    /// Reads as many bytes as there are, up to the length of `buf`.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> usize;
}

impl ReadAt for [u8] {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        let rest = usize::try_from(offset).ok().and_then(|at| self.get(at..)).unwrap_or(&[]);
        let count = rest.len().min(buf.len());
        for (to, from) in buf.iter_mut().zip(rest) {
            *to = *from;
        }
        count
    }
}

impl ReadAt for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        let mut filled = 0;
        while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match FileExt::read_at(self, rest, offset.saturating_add(filled as u64)) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        filled
    }
}

/// What an ELF file says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elf {
    /// Whether it is a 64-bit file.
    pub is_64: bool,
    /// Whether its numbers are little-endian.
    pub little_endian: bool,
    /// The machine, an `EM_` number.
    pub machine: u16,
    /// The dynamic loader it asks for; without one it is static.
    pub interpreter: Option<Vec<u8>>,
    /// Whether the Go tool chain made it.
    pub go: bool,
    /// The names of the libraries that it asks for (`DT_NEEDED`).
    pub needed: Vec<Vec<u8>>,
    /// Where its code lies in the file: offsets and sizes.
    pub code: Vec<(u64, u64)>,
}

/// The most program headers that are looked at. Real programs have about a dozen.
const MAX_SEGMENTS: u64 = 256;
/// The most section headers that are looked at.
const MAX_SECTIONS: u64 = 1024;
/// The most bytes of a note segment that are looked at.
const MAX_NOTES: usize = 4096;
/// NAME_MAX and the NUL byte, which bound the name of a library.
const MAX_NAME: usize = 256;
/// PATH_MAX, which bounds the name of the loader.
const MAX_PATH: usize = 4096;

/// The most entries of the dynamic section that are looked at.
const MAX_DYNAMIC: u64 = 4096;
/// The most libraries that are listed.
const MAX_NEEDED: usize = 512;

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
const PT_NOTE: u64 = 4;

/// Reads an ELF file; `None` if it is not one or its header is cut off.
///
/// Damage behind the header makes the parts that cannot be read look absent.
pub fn parse<F: ReadAt + ?Sized>(file: &F) -> Option<Elf> {
    let mut ident = [0; 16];
    if file.read_at(&mut ident, 0) < ident.len() {
        return None;
    }
    let [0x7f, b'E', b'L', b'F', class @ (1 | 2), data @ (1 | 2), ..] = ident else {
        return None;
    };
    let reader = Reader { file, is_64: class == 2, little_endian: data == 1 };
    let layout = if reader.is_64 { &LAYOUT_64 } else { &LAYOUT_32 };
    let machine = u16::try_from(reader.number(18, 2)?).ok()?;
    let mut elf = Elf {
        is_64: reader.is_64,
        little_endian: reader.little_endian,
        machine,
        interpreter: None,
        go: false,
        needed: Vec::new(),
        code: Vec::new(),
    };
    reader.segments(layout, &mut elf);
    elf.needed = reader.needed(layout).unwrap_or_default();
    elf.code = reader.code(layout).unwrap_or_default();
    elf.go = elf.go || reader.has_go_section(layout).unwrap_or(false);
    Some(elf)
}

/// Where fields lie in a file of one class: (offset, size).
struct Layout {
    phoff: (u64, u64),
    shoff: (u64, u64),
    /// e_phentsize; e_phnum, e_shentsize, e_shnum and e_shstrndx follow, two bytes each.
    counts: u64,
    p_offset: (u64, u64),
    p_vaddr: (u64, u64),
    p_filesz: (u64, u64),
    p_flags: (u64, u64),
    sh_offset: (u64, u64),
    sh_size: (u64, u64),
}

const LAYOUT_64: Layout = Layout {
    phoff: (32, 8),
    shoff: (40, 8),
    counts: 54,
    p_offset: (8, 8),
    p_vaddr: (16, 8),
    p_filesz: (32, 8),
    p_flags: (4, 4),
    sh_offset: (24, 8),
    sh_size: (32, 8),
};

const LAYOUT_32: Layout = Layout {
    phoff: (28, 4),
    shoff: (32, 4),
    counts: 42,
    p_offset: (4, 4),
    p_vaddr: (8, 4),
    p_filesz: (16, 4),
    p_flags: (24, 4),
    sh_offset: (16, 4),
    sh_size: (20, 4),
};

struct Reader<'a, F: ?Sized> {
    file: &'a F,
    is_64: bool,
    little_endian: bool,
}

impl<F: ReadAt + ?Sized> Reader<'_, F> {
    /// A number of up to eight bytes.
    fn number(&self, offset: u64, size: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        let wanted = bytes.get_mut(..usize::try_from(size).ok()?)?;
        if self.file.read_at(wanted, offset) < wanted.len() {
            return None;
        }
        let join = |number: u64, byte: &u8| (number << 8) | u64::from(*byte);
        Some(if self.little_endian { wanted.iter().rev().fold(0, join) } else { wanted.iter().fold(0, join) })
    }

    /// A field of the table entry that begins at `entry`.
    fn field(&self, entry: u64, (offset, size): (u64, u64)) -> Option<u64> {
        self.number(entry.checked_add(offset)?, size)
    }

    /// Up to `limit` bytes of a range; fewer if the file ends before.
    fn bytes(&self, offset: u64, size: u64, limit: usize) -> Vec<u8> {
        let size = usize::try_from(size).unwrap_or(limit).min(limit);
        let mut bytes = vec![0; size];
        let count = self.file.read_at(&mut bytes, offset);
        bytes.truncate(count);
        bytes
    }

    /// The offsets of the entries of a table.
    fn table(start: u64, entry_size: u64, count: u64) -> impl Iterator<Item = u64> {
        (0..count).map_while(move |i| start.checked_add(i.checked_mul(entry_size)?))
    }

    /// Learns what the program headers tell. Stops at the first that cannot be read.
    fn segments(&self, layout: &Layout, elf: &mut Elf) -> Option<()> {
        let start = self.field(0, layout.phoff)?;
        let entry_size = self.number(layout.counts, 2)?;
        let count = self.number(layout.counts + 2, 2)?.min(MAX_SEGMENTS);
        for entry in Self::table(start, entry_size, count) {
            let kind = self.field(entry, (0, 4))?;
            if kind != PT_INTERP && kind != PT_NOTE {
                continue;
            }
            let offset = self.field(entry, layout.p_offset)?;
            let size = self.field(entry, layout.p_filesz)?;
            if kind == PT_INTERP {
                let mut path = self.bytes(offset, size, MAX_PATH);
                let end = path.iter().position(|b| *b == 0).unwrap_or(path.len());
                path.truncate(end);
                elf.interpreter = Some(path);
            } else if self.has_go_note(&self.bytes(offset, size, MAX_NOTES)) {
                elf.go = true;
            }
        }
        Some(())
    }

    /// The program headers of one kind.
    fn headers(&self, layout: &Layout, kind: u64) -> Option<impl Iterator<Item = u64>> {
        let start = self.field(0, layout.phoff)?;
        let entry_size = self.number(layout.counts, 2)?;
        let count = self.number(layout.counts + 2, 2)?.min(MAX_SEGMENTS);
        Some(Self::table(start, entry_size, count).filter(move |entry| self.field(*entry, (0, 4)) == Some(kind)))
    }

    /// Where in the file an address of the loaded program lies.
    fn file_offset(&self, layout: &Layout, address: u64) -> Option<u64> {
        self.headers(layout, PT_LOAD)?.find_map(|entry| {
            let into = address.checked_sub(self.field(entry, layout.p_vaddr)?)?;
            let inside = into < self.field(entry, layout.p_filesz)?;
            inside.then_some(self.field(entry, layout.p_offset)?.checked_add(into)?)
        })
    }

    /// Where the segments that are executed lie.
    fn code(&self, layout: &Layout) -> Option<Vec<(u64, u64)>> {
        const PF_X: u64 = 1;
        let executed = |entry: &u64| self.field(*entry, layout.p_flags).is_some_and(|flags| flags & PF_X != 0);
        let place = |entry| Some((self.field(entry, layout.p_offset)?, self.field(entry, layout.p_filesz)?));
        Some(self.headers(layout, PT_LOAD)?.filter(executed).filter_map(place).collect())
    }

    /// The libraries that the dynamic section names, in its order.
    fn needed(&self, layout: &Layout) -> Option<Vec<Vec<u8>>> {
        const DT_NEEDED: u64 = 1;
        const DT_STRTAB: u64 = 5;
        let section = self.headers(layout, PT_DYNAMIC)?.next()?;
        let start = self.field(section, layout.p_offset)?;
        let word = if self.is_64 { 8 } else { 4 };
        let count = (self.field(section, layout.p_filesz)? / (2 * word)).min(MAX_DYNAMIC);
        let mut names = Vec::new();
        let mut strings = None;
        for entry in Self::table(start, 2 * word, count) {
            let (Some(tag), Some(value)) = (self.field(entry, (0, word)), self.field(entry, (word, word))) else {
                break;
            };
            match tag {
                0 => break,
                DT_NEEDED if names.len() < MAX_NEEDED => names.push(value),
                DT_STRTAB => strings = self.file_offset(layout, value),
                _ => {}
            }
        }
        let strings = strings?;
        let text = |at: u64| {
            let mut name = self.bytes(strings.checked_add(at)?, MAX_NAME as u64, MAX_NAME);
            name.truncate(name.iter().position(|b| *b == 0)?);
            Some(name)
        };
        Some(names.into_iter().filter_map(text).collect())
    }

    /// Whether there is a note of the owner "Go" with the type of a build ID (4).
    fn has_go_note(&self, notes: &[u8]) -> bool {
        let notes = Reader { file: notes, is_64: self.is_64, little_endian: self.little_endian };
        let next = |at: u64| -> Option<(u64, bool)> {
            let name_size = notes.number(at, 4)?;
            let desc_size = notes.number(at + 4, 4)?;
            let kind = notes.number(at + 8, 4)?;
            let name = notes.bytes(at + 12, name_size, 8);
            // Sizes have 32 bits here, so the sums cannot overflow.
            let end = at + 12 + name_size.next_multiple_of(4) + desc_size.next_multiple_of(4);
            Some((end, kind == 4 && name.starts_with(b"Go\0")))
        };
        let mut at = 0;
        while let Some((end, go)) = next(at) {
            if go {
                return true;
            }
            at = end;
        }
        false
    }

    /// Whether one of the sections that the Go linker writes is there.
    fn has_go_section(&self, layout: &Layout) -> Option<bool> {
        let start = self.field(0, layout.shoff)?;
        let entry_size = self.number(layout.counts + 4, 2)?;
        let count = self.number(layout.counts + 6, 2)?;
        let names_index = self.number(layout.counts + 8, 2)?;
        if start == 0 || names_index >= count {
            return Some(false);
        }
        let names = start.checked_add(names_index.checked_mul(entry_size)?)?;
        let names_at = self.field(names, layout.sh_offset)?;
        let names_size = self.field(names, layout.sh_size)?;
        for entry in Self::table(start, entry_size, count.min(MAX_SECTIONS)) {
            let name = self.field(entry, (0, 4))?;
            if name >= names_size {
                continue;
            }
            let name = self.bytes(names_at.checked_add(name)?, names_size - name, 24);
            let name = name.split(|b| *b == 0).next().unwrap_or(&[]);
            if name == b".go.buildinfo" || name == b".note.go.buildid" {
                return Some(true);
            }
        }
        Some(false)
    }
}

#[cfg(test)]
#[path = "elf_tests.rs"]
mod tests;
