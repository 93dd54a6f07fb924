//! Tests of the ELF reader: files made by hand, files of this host, and damaged ones.

use super::*;
use proptest::prelude::*;

/// Where fields lie in a file of one class: (offset, size).
struct Layout {
    phoff: (u64, u64),
    shoff: (u64, u64),
    /// e_phentsize; e_phnum, e_shentsize, e_shnum and e_shstrndx follow, two bytes each.
    counts: u64,
    p_offset: (u64, u64),
    p_filesz: (u64, u64),
    sh_offset: (u64, u64),
    sh_size: (u64, u64),
}

const LAYOUT_64: Layout = Layout {
    phoff: (32, 8),
    shoff: (40, 8),
    counts: 54,
    p_offset: (8, 8),
    p_filesz: (32, 8),
    sh_offset: (24, 8),
    sh_size: (32, 8),
};

const LAYOUT_32: Layout = Layout {
    phoff: (28, 4),
    shoff: (32, 4),
    counts: 42,
    p_offset: (4, 4),
    p_filesz: (16, 4),
    sh_offset: (16, 4),
    sh_size: (20, 4),
};

/// A file with program headers of the given types and contents, and sections of the given names.
struct Image {
    is_64: bool,
    little_endian: bool,
    segments: Vec<(u32, Vec<u8>)>,
    sections: Vec<&'static str>,
}

impl Image {
    fn new(is_64: bool, little_endian: bool) -> Self {
        Image { is_64, little_endian, segments: Vec::new(), sections: Vec::new() }
    }

    fn put(&self, out: &mut [u8], at: usize, size: usize, value: u64) {
        let bytes = value.to_le_bytes();
        for i in 0..size {
            out[at + i] = if self.little_endian { bytes[i] } else { bytes[size - 1 - i] };
        }
    }

    fn build(&self) -> Vec<u8> {
        let (layout, header, segment, section) =
            if self.is_64 { (&LAYOUT_64, 64, 56, 64) } else { (&LAYOUT_32, 52, 32, 40) };
        let mut out = vec![0; header + segment * self.segments.len()];
        out[..4].copy_from_slice(b"\x7fELF");
        out[4] = if self.is_64 { 2 } else { 1 };
        out[5] = if self.little_endian { 1 } else { 2 };
        out[6] = 1;
        self.put(&mut out, 18, 2, 62);
        let put = |out: &mut [u8], base: usize, field: (u64, u64), value: usize| {
            self.put(out, base + field.0 as usize, field.1 as usize, value as u64);
        };
        put(&mut out, 0, layout.phoff, header);
        put(&mut out, 0, (layout.counts, 2), segment);
        put(&mut out, 0, (layout.counts + 2, 2), self.segments.len());
        for (i, (kind, content)) in self.segments.iter().enumerate() {
            let entry = header + i * segment;
            let at = out.len();
            put(&mut out, entry, (0, 4), *kind as usize);
            put(&mut out, entry, layout.p_offset, at);
            put(&mut out, entry, layout.p_filesz, content.len());
            out.extend_from_slice(content);
        }
        // The last section holds the names.
        let names_at = out.len();
        let mut names = Vec::new();
        let starts: Vec<usize> = self
            .sections
            .iter()
            .map(|name| {
                let start = names.len();
                names.extend_from_slice(name.as_bytes());
                names.push(0);
                start
            })
            .collect();
        out.extend_from_slice(&names);
        let table = out.len();
        out.resize(table + section * (starts.len() + 1), 0);
        for (i, start) in starts.iter().enumerate() {
            put(&mut out, table + i * section, (0, 4), *start);
        }
        let last = table + starts.len() * section;
        put(&mut out, last, layout.sh_offset, names_at);
        put(&mut out, last, layout.sh_size, names.len());
        put(&mut out, 0, layout.shoff, table);
        put(&mut out, 0, (layout.counts + 4, 2), section);
        put(&mut out, 0, (layout.counts + 6, 2), starts.len() + 1);
        put(&mut out, 0, (layout.counts + 8, 2), starts.len());
        out
    }

    fn note(&self, owner: &[u8], kind: u64, desc: &[u8]) -> Vec<u8> {
        let mut note = vec![0; 12];
        self.put(&mut note, 0, 4, owner.len() as u64);
        self.put(&mut note, 4, 4, desc.len() as u64);
        self.put(&mut note, 8, 4, kind);
        for part in [owner, desc] {
            note.extend_from_slice(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }
}

fn variants() -> impl Iterator<Item = Image> {
    [(true, true), (true, false), (false, true), (false, false)].map(|(a, b)| Image::new(a, b)).into_iter()
}

#[test]
fn plain_dynamic_program() {
    for mut image in variants() {
        image.segments.push((6, vec![0; 8]));
        image.segments.push((3, b"/lib64/ld-linux-x86-64.so.2\0".to_vec()));
        image.sections = vec!["", ".text", ".go.build"];
        let elf = parse_data(image.build().as_slice()).unwrap();
        assert_eq!((elf.is_64, elf.little_endian, elf.machine), (image.is_64, image.little_endian, 62));
        assert_eq!(elf.interpreter.as_deref(), Some(&b"/lib64/ld-linux-x86-64.so.2"[..]));
        assert!(!elf.go);
    }
}

#[test]
fn static_program() {
    for image in variants() {
        let elf = parse_data(image.build().as_slice()).unwrap();
        assert_eq!((elf.interpreter, elf.go), (None, false));
    }
}

#[test]
fn go_by_section_and_by_note() {
    for name in [".go.buildinfo", ".note.go.buildid"] {
        for mut image in variants() {
            image.sections = vec!["", ".text", name];
            assert!(parse_data(image.build().as_slice()).unwrap().go, "{name}");
        }
    }
    for mut image in variants() {
        let mut notes = image.note(b"GNU\0", 3, &[1; 20]);
        notes.extend(image.note(b"Go\0\0", 4, b"id"));
        image.segments.push((4, notes));
        assert!(parse_data(image.build().as_slice()).unwrap().go);
        image.segments[0].1 = image.note(b"GNU\0", 4, b"Go\0\0");
        assert!(!parse_data(image.build().as_slice()).unwrap().go);
    }
}

#[test]
fn libraries_that_are_asked_for() {
    for mut image in variants() {
        let word = if image.is_64 { 8 } else { 4 };
        let mut dynamic = vec![0; word * 10];
        // The strings lie at address 0, where the only loaded segment begins.
        for (i, value) in [1, 1, 5, 0, 1, 8, 0, 0, 1, 1].into_iter().enumerate() {
            image.put(&mut dynamic, i * word, word, value);
        }
        image.segments.push((1, b"\0libc.1\0liburing.so.2\0".to_vec()));
        image.segments.push((2, dynamic));
        let elf = parse_data(image.build().as_slice()).unwrap();
        assert_eq!(elf.needed, [b"libc.1".to_vec(), b"liburing.so.2".to_vec()], "what is behind the end is not read");
    }
}

#[test]
fn names_of_a_go_program() {
    for mut image in variants() {
        let word = if image.is_64 { 8 } else { 4 };
        // The names need several reads, and one of them lies across the end of a read.
        let mut names = vec![b'x'; 3 * MAX_READ as usize];
        for (at, name) in [
            (MAX_READ as usize - 5, &b"_cgo_topofstack\0"[..]),
            (2 * MAX_READ as usize, b"\0pthread_create\0"),
            (3 * MAX_READ as usize - 10, b".Syscall6\0"),
        ] {
            names[at..at + name.len()].copy_from_slice(name);
        }
        let size = names.len() as u64;
        image.segments.push((1, names));
        let found = |size: u64| {
            let mut image = Image { segments: image.segments.clone(), ..Image::new(image.is_64, image.little_endian) };
            let mut dynamic = vec![0; word * 6];
            for (i, value) in [5, 0, 10, size, 0, 0].into_iter().enumerate() {
                image.put(&mut dynamic, i * word, word, value);
            }
            image.segments.push((2, dynamic));
            let elf = parse_data(image.build().as_slice()).unwrap();
            assert_eq!(elf.go, elf.names.has_cgo);
            elf.names
        };
        let all = Names { has_cgo: true, makes_threads: true, shows_functions: true };
        assert_eq!(found(size), all);
        assert_eq!(found(size - 1), Names { shows_functions: false, ..all });
        assert_eq!(found(u64::MAX >> 32), all, "not more than the file has");
        assert_eq!(found(0), Names::default());
    }
}

#[test]
fn packed_programs() {
    for mut image in variants() {
        // Behind the program headers is a checksum.
        image.segments.push((1, b"abcdUPX!\x10\x08".to_vec()));
        assert!(parse_data(image.build().as_slice()).unwrap().packed);
        image.segments[0].1 = [&[0; UPX_WITHIN as usize][..], UPX].concat();
        assert!(!parse_data(image.build().as_slice()).unwrap().packed);
    }
}

#[test]
fn this_program() {
    let file = File::open("/proc/self/exe").unwrap();
    let elf = parse(&file).unwrap();
    assert_eq!(elf.is_64, cfg!(target_pointer_width = "64"));
    assert_eq!(elf.little_endian, cfg!(target_endian = "little"));
    assert!(!elf.go);
    assert!(elf.needed.iter().any(|name| name.starts_with(b"libc.so")), "{:?}", elf.needed);
}

#[test]
fn what_is_no_elf_file() {
    for bytes in [&b""[..], b"#!/bin/sh\n", b"\x7fELF", &[0; 64], b"\x7fELF\x03\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0\0"] {
        assert_eq!(parse_data(bytes), None);
    }
}

#[test]
fn absurd_offsets_and_counts() {
    for mut image in variants() {
        image.segments.push((3, b"/ld\0".to_vec()));
        let good = image.build();
        for at in 16..good.len().min(64) {
            for value in [0x7f, 0xff] {
                let mut bad = good.clone();
                for byte in bad.iter_mut().skip(at).take(8) {
                    *byte = value;
                }
                parse_data(bad.as_slice());
            }
        }
    }
}

proptest! {
    #[test]
    fn garbage_never_panics(
        is_64: bool,
        little_endian: bool,
        cut in 0usize..600,
        damage in proptest::collection::vec((0usize..600, any::<u8>()), 0..20),
    ) {
        let mut image = Image::new(is_64, little_endian);
        image.segments.push((3, b"/lib64/ld-linux-x86-64.so.2\0".to_vec()));
        image.segments.push((4, image.note(b"GNU\0", 4, &[0; 20])));
        image.segments.push((1, b"libc.so.6\0".to_vec()));
        image.segments.push((2, [1, 0, 5, 0, 1, 1].map(u64::to_le_bytes).concat()));
        image.sections = vec!["", ".text", ".go.buildinfo"];
        let mut bytes = image.build();
        for (at, value) in damage {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        parse_data(bytes.as_slice());
        bytes.truncate(cut);
        parse_data(bytes.as_slice());
    }

    #[test]
    fn noise_behind_a_good_ident_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 16..400), class in 1u8..=2) {
        bytes[..4].copy_from_slice(b"\x7fELF");
        bytes[4] = class;
        bytes[5] = 1;
        bytes[6] = 1;
        parse_data(bytes.as_slice());
    }
}

#[test]
fn a_file_in_blocks_has_the_bytes_of_the_file() {
    let path = std::env::current_exe().unwrap();
    let (file, bytes) = (File::open(&path).unwrap(), std::fs::read(&path).unwrap());
    let mut blocks = Blocks { file: &file, at: 0, kept: Vec::new() };
    let end = bytes.len();
    for at in [0, 5, BLOCK - 3, 7 * BLOCK, 1, end - 9, BLOCK, 20 * BLOCK + 1, end - BLOCK, 3] {
        for length in [1, 9, BLOCK - 1, BLOCK, 3 * BLOCK] {
            let mut read = vec![0; length.min(end - at)];
            assert_eq!(blocks.seek(SeekFrom::Start(at as u64)).unwrap(), at as u64);
            blocks.read_exact(&mut read).unwrap();
            assert!(read == bytes[at..at + read.len()], "{length} bytes at {at}");
        }
    }
    assert_eq!(blocks.seek(SeekFrom::End(0)).unwrap(), end as u64);
    assert_eq!(blocks.read(&mut [0; 4]).unwrap(), 0);
    assert!(blocks.kept.len() <= KEPT && blocks.seek(SeekFrom::Current(-1 - end as i64)).is_err());
}
