//! Reads the few things about an ELF file that tell whether a library can be preloaded into it.
//!
//! The file is foreign: every offset and size in it may be a lie. The `object` crate reads nothing without bounds, and
//! `Limited` bounds the work whatever the file claims.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use object::elf::{DT_NEEDED, DT_NULL, DT_STRSZ, DT_STRTAB, FileHeader32, FileHeader64, PF_X, PT_LOAD, PT_TLS};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader};
use object::read::{ReadCache, ReadRef, StringTable};
use object::{Endian, Endianness};

use netacc_sys::go_program::Names;

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
    /// Whether UPX has packed it.
    pub packed: bool,
    /// The names of the libraries that it asks for (`DT_NEEDED`).
    pub needed: Vec<Vec<u8>>,
    /// What the names of its dynamic symbols tell of a Go program.
    pub names: Names,
    /// How much thread-local memory it has (bytes).
    pub thread_local: u64,
    /// Where its code lies in the file: offsets and sizes.
    pub code: Vec<(u64, u64)>,
}

/// What UPX writes behind the program headers of a file that it packs, after a checksum.
const UPX: &[u8] = b"UPX!";
/// How far behind the program headers it is looked for (bytes).
const UPX_WITHIN: u64 = 64;
/// The most bytes that are read at once: a table of the file, a note segment or a name.
const MAX_READ: u64 = 256 * 1024;
/// The most program headers that are looked at. Real programs have about a dozen.
const MAX_SEGMENTS: usize = 256;
/// The most section headers that are looked at.
const MAX_SECTIONS: usize = 1024;
/// The most entries of the dynamic section that are looked at.
const MAX_DYNAMIC: usize = 4096;
/// The most bytes of the names of dynamic symbols that are read.
const MAX_NAMES: u64 = 64 << 20;
/// The most libraries that are listed.
const MAX_NEEDED: usize = 512;
/// PATH_MAX, which bounds the name of the loader.
const MAX_PATH: usize = 4096;
/// The type of a note of the owner "Go" that holds a build ID.
const GO_BUILD_ID: u32 = 4;

/// Reads an ELF file; `None` if it is not one or its header is cut off.
///
/// Damage behind the header makes the parts that cannot be read look absent.
pub fn parse(file: &File) -> Option<Elf> {
    parse_data(&ReadCache::new(Blocks { file, at: 0, kept: Vec::new() }))
}

/// The size of a block of [`Blocks`] (bytes).
const BLOCK: usize = 16 * 1024;
/// The number of blocks that are kept: the tables lie at the beginning, at the end, and in between.
const KEPT: usize = 4;

/// A file that is read in blocks. What is read of an ELF file are many small pieces that lie close to each other.
struct Blocks<'file> {
    file: &'file File,
    at: u64,
    /// Blocks with their numbers, the last one read at the end.
    kept: Vec<(u64, Vec<u8>)>,
}

impl Blocks<'_> {
    /// The bytes from the present place to the end of its block, which is read unless it is kept.
    fn rest_of_block(&mut self) -> io::Result<&[u8]> {
        let number = self.at / BLOCK as u64;
        if !self.kept.iter().any(|(kept, _)| *kept == number) {
            let mut bytes = vec![0; BLOCK];
            let mut length = 0;
            while let Some(room) = bytes.get_mut(length..).filter(|room| !room.is_empty()) {
                match self.file.read_at(room, number * BLOCK as u64 + length as u64)? {
                    0 => break,
                    read => length += read,
                }
            }
            bytes.truncate(length);
            if self.kept.len() == KEPT {
                self.kept.remove(0);
            }
            self.kept.push((number, bytes));
        }
        let bytes = self.kept.iter().find(|(kept, _)| *kept == number).map_or(&[][..], |(_, bytes)| bytes);
        Ok(bytes.get((self.at % BLOCK as u64) as usize..).unwrap_or_default())
    }
}

impl Read for Blocks<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = if to.len() >= BLOCK {
            self.file.read_at(to, self.at)?
        } else {
            Read::read(&mut self.rest_of_block()?, to)?
        };
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Blocks<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.file.metadata()?.len().checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// Reads an ELF file from memory or through a cache, as [`parse`] does.
pub fn parse_data<'data>(data: impl ReadRef<'data>) -> Option<Elf> {
    let data = Limited(data);
    read::<FileHeader64<Endianness>, _>(data).or_else(|| read::<FileHeader32<Endianness>, _>(data))
}

/// Data of which only pieces of bounded size can be read.
#[derive(Clone, Copy, Debug)]
struct Limited<R>(R);

impl<'data, R: ReadRef<'data>> ReadRef<'data> for Limited<R> {
    fn len(self) -> Result<u64, ()> {
        self.0.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'data [u8], ()> {
        if size > MAX_READ { Err(()) } else { self.0.read_bytes_at(offset, size) }
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'data [u8], ()> {
        let end = range.end.min(range.start.saturating_add(MAX_READ));
        self.0.read_bytes_at_until(range.start..end, delimiter)
    }
}

fn read<'data, Header, R>(data: Limited<R>) -> Option<Elf>
where
    Header: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let header = Header::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, data).unwrap_or_default();
    let segments = segments.get(..MAX_SEGMENTS).unwrap_or(segments);
    let interpreter = segments.iter().find_map(|segment| segment.interpreter(endian, data).ok()?);
    let code = segments.iter().filter(|segment| is_loaded(*segment, endian) && segment.p_flags(endian).contains(PF_X));
    let names = names(segments, endian, data).unwrap_or_default();
    Some(Elf {
        is_64: header.is_type_64(),
        little_endian: endian.is_little_endian(),
        machine: header.e_machine(endian).0,
        interpreter: interpreter.filter(|path| path.len() <= MAX_PATH).map(<[u8]>::to_vec),
        go: segments.iter().any(|segment| has_go_note(segment, endian, data))
            || has_go_section(header, endian, data).unwrap_or_default()
            || names.has_cgo,
        packed: is_packed(header, endian, data).unwrap_or_default(),
        needed: needed(segments, endian, data).unwrap_or_default(),
        names,
        thread_local: segments.iter().find(|s| s.p_type(endian) == PT_TLS).map_or(0, |s| s.p_memsz(endian).into()),
        code: code.map(|segment| segment.file_range(endian)).collect(),
    })
}

fn is_loaded<Segment: ProgramHeader>(segment: &Segment, endian: Segment::Endian) -> bool {
    segment.p_type(endian) == PT_LOAD
}

/// The libraries that the dynamic segment names, in its order.
fn needed<'data, Segment, R>(segments: &[Segment], endian: Segment::Endian, data: R) -> Option<Vec<Vec<u8>>>
where
    Segment: ProgramHeader,
    R: ReadRef<'data>,
{
    let entries = dynamic(segments, endian, data)?;
    let (start, end) = strings(segments, endian, entries)?;
    let strings = StringTable::new(data, start, end);
    let name = |entry: &&_| strings.get(u32::try_from(Dyn::val(*entry, endian)).ok()?).ok();
    let names = entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED).take(MAX_NEEDED);
    Some(names.filter_map(|entry| name(&entry)).map(<[u8]>::to_vec).collect())
}

/// What the names of the dynamic symbols tell of a Go program. A program that loads plugins has megabytes of them.
fn names<'data, Segment, R>(segments: &[Segment], endian: Segment::Endian, data: R) -> Option<Names>
where
    Segment: ProgramHeader,
    R: ReadRef<'data>,
{
    let entries = dynamic(segments, endian, data)?;
    let (start, end) = strings(segments, endian, entries)?;
    let size = entries.iter().find(|entry| entry.tag(endian) == DT_STRSZ)?.val(endian);
    let end = end.min(start.saturating_add(size.min(MAX_NAMES)));
    let mut found = Names::default();
    let mut from = start;
    while from < end {
        let part = data.read_bytes_at(from, (end - from).min(MAX_READ)).ok()?;
        found = found.and(Names::of(part));
        // A name may lie across the end of a part.
        from += MAX_READ - Names::LONGEST as u64;
    }
    Some(found)
}

/// Whether UPX has packed the file.
fn is_packed<'data, Header, R>(header: &Header, endian: Header::Endian, data: R) -> Option<bool>
where
    Header: FileHeader,
    R: ReadRef<'data>,
{
    let headers = u64::from(header.e_phnum(endian)) * u64::from(header.e_phentsize(endian));
    let behind = Into::<u64>::into(header.e_phoff(endian)).checked_add(headers)?;
    let bytes = data.read_bytes_at(behind, UPX_WITHIN.min(data.len().ok()?.checked_sub(behind)?)).ok()?;
    Some(bytes.windows(UPX.len()).any(|window| window == UPX))
}

/// An entry of the dynamic segment.
type Entry<Segment> = <<Segment as ProgramHeader>::Elf as FileHeader>::Dyn;

/// The entries of the dynamic segment.
fn dynamic<'data, Segment, R>(segments: &[Segment], endian: Segment::Endian, data: R) -> Option<&'data [Entry<Segment>]>
where
    Segment: ProgramHeader,
    R: ReadRef<'data>,
{
    let entries = segments.iter().find_map(|segment| segment.dynamic(endian, data).ok()?)?;
    let entries = entries.get(..MAX_DYNAMIC).unwrap_or(entries);
    let end = entries.iter().position(|entry| entry.tag(endian) == DT_NULL).unwrap_or(entries.len());
    entries.get(..end)
}

/// From where to where in the file the names of dynamic symbols are. They may end before.
fn strings<Segment: ProgramHeader>(
    segments: &[Segment],
    endian: Segment::Endian,
    entries: &[Entry<Segment>],
) -> Option<(u64, u64)> {
    let address = entries.iter().rfind(|entry| entry.tag(endian) == DT_STRTAB)?.val(endian);
    // The entry holds an address of the loaded program; a loaded segment says where in the file that lies.
    segments.iter().filter(|segment| is_loaded(*segment, endian)).find_map(|segment| {
        let (offset, size) = segment.file_range(endian);
        let into = address.checked_sub(segment.p_vaddr(endian).into()).filter(|into| *into < size)?;
        Some((offset.checked_add(into)?, offset.checked_add(size)?))
    })
}

/// Whether the segment has a note that the Go linker writes.
fn has_go_note<'data, Segment, R>(segment: &Segment, endian: Segment::Endian, data: R) -> bool
where
    Segment: ProgramHeader,
    R: ReadRef<'data>,
{
    let notes = segment.notes(endian, data).ok().flatten();
    notes.into_iter().flatten().flatten().any(|note| note.n_type(endian).0 == GO_BUILD_ID && note.name() == b"Go")
}

/// Whether one of the sections that the Go linker writes is there.
fn has_go_section<'data, Header, R>(header: &Header, endian: Header::Endian, data: R) -> object::read::Result<bool>
where
    Header: FileHeader,
    R: ReadRef<'data>,
{
    let sections = header.section_headers(endian, data)?;
    let strings = header.section_strings(endian, data, sections)?;
    let mut names = sections.iter().take(MAX_SECTIONS).filter_map(|section| section.name(endian, strings).ok());
    Ok(names.any(|name| name == b".go.buildinfo" || name == b".note.go.buildid"))
}

#[cfg(test)]
#[path = "elf_tests.rs"]
mod tests;
