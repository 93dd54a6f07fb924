//! Programs that enter the kernel by instructions of their own for what NetACC answers in user space.
//!
//! Rust's rustix and a static liburing put the `syscall` instruction into the program's own code. No library can stand
//! before that: the kernel would be asked about a placeholder. Such programs are recognised by their code, before
//! anything of theirs is accelerated: by a system call's number that is loaded, and the instruction that enters the
//! kernel behind it.

mod aarch64;
pub mod loaded;
mod x86;

/// What a program does by instructions of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Waits for descriptors, or makes calls on sockets.
    Sockets,
    /// Makes an io_uring.
    IoUring,
}

/// A system call that the code makes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnCall {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub kind: Kind,
}

/// A text that every program which is linked with this crate has among its constants, as the project's own tools are.
/// They make raw system calls for their own work, and connections through libc.
#[used]
static LINKED: [u8; 32] = *b"netacc-sys makes these calls...\0";

/// Whether the file or segment is of a program that is linked with this crate.
#[must_use]
pub fn is_linked(bytes: &[u8]) -> bool {
    contains(bytes, &LINKED)
}

/// Whether `bytes` have `text` in them.
pub(crate) fn contains(bytes: &[u8], text: &[u8]) -> bool {
    position(bytes, text).is_some()
}

/// Where `text` is in `bytes` for the first time.
pub(crate) fn position(bytes: &[u8], text: &[u8]) -> Option<usize> {
    let (Some((first, _)), Some((last, _))) = (text.split_first(), text.split_last()) else { return Some(0) };
    let mut found = None;
    any_at(bytes, *first, *last, text.len() - 1, |at| {
        found = (bytes.get(at..at + text.len()) == Some(text)).then_some(at);
        found.is_some()
    });
    found
}

/// The first call of such a kind in `code`, which is for this machine.
#[must_use]
pub fn find(code: &[u8]) -> Option<OwnCall> {
    if cfg!(target_arch = "aarch64") { aarch64::find(code) } else { x86::find(code) }
}

const fn sockets(name: &'static str) -> OwnCall {
    OwnCall { name, kind: Kind::Sockets }
}

/// The calls that came with kernel 5.1 and later, which have one number on every machine.
fn modern(number: u32) -> Option<OwnCall> {
    Some(match number {
        // What is done with a ring says nothing: one that libc's syscall(2) or a shared liburing has made is known.
        425 => OwnCall { name: "io_uring_setup", kind: Kind::IoUring },
        441 => sockets("epoll_pwait2"),
        _ => return None,
    })
}

/// How far before the instruction that enters the kernel the number is looked for, in bytes.
const WINDOW: usize = 48;
/// More code than this is taken to be optimised: numbers that are handed to functions are not looked for.
const LARGE: usize = 32 << 20;
/// How much of a function that is called with a number is read, up to that instruction.
const FUNCTION: usize = 128;

/// Functions (their places + 1) that were called with a number of ours and do not enter the kernel themselves, as debug
/// builds of rustix have one that returns its argument. Two numbers that belong together tell that the numbers are
/// those of system calls.
#[derive(Default)]
struct Callees {
    controls: [usize; 8],
    waits: [usize; 8],
}

impl Callees {
    /// Notes that the function at `target` is called with `number`. Whether it has been called with the other one as
    /// well.
    fn pairs(&mut self, target: usize, number: u32, control: u32, waits: &[u32]) -> bool {
        let (own, other) = if number == control {
            (&mut self.controls, &self.waits)
        } else if waits.contains(&number) {
            (&mut self.waits, &self.controls)
        } else {
            return false;
        };
        let target = target + 1;
        if let Some(free) = own.iter_mut().find(|place| **place == 0 || **place == target) {
            *free = target;
        }
        other.contains(&target)
    }
}

/// Calls `f` with each index where `code` has `first` and `second` stands `gap` bytes behind, until `f` says true.
fn any_at(code: &[u8], first: u8, second: u8, gap: usize, mut f: impl FnMut(usize) -> bool) -> bool {
    const BLOCK: usize = 64;
    let behind = code.get(gap..).unwrap_or(&[]);
    for (block, (a, b)) in code.chunks(BLOCK).zip(behind.chunks(BLOCK)).enumerate() {
        // Without a branch, so that the compiler compares many bytes at a time; nearly all blocks have none.
        let hit = a.iter().zip(b).fold(false, |hit, (a, b)| hit | ((*a == first) & (*b == second)));
        if hit {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                if *a == first && *b == second && f(block * BLOCK + i) {
                    return true;
                }
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_bytes_are_found_wherever_they_lie() {
        for at in [0, 1, 62, 63, 64, 65, 126, 127, 128, 198] {
            let mut code = [0x0f_u8; 200];
            code[at + 1] = 5;
            let mut found = vec![];
            any_at(&code, 0x0f, 5, 1, |i| {
                found.push(i);
                false
            });
            assert_eq!(found, [at]);
        }
        assert!(!any_at(&[0x0f], 0x0f, 5, 1, |_| true));
        assert!(!any_at(&[], 0x0f, 5, 1, |_| true));
    }

    #[test]
    fn two_numbers_that_belong_together() {
        let mut c = Callees::default();
        assert!(!c.pairs(10, 233, 233, &[281]));
        assert!(!c.pairs(20, 281, 233, &[281]));
        assert!(!c.pairs(20, 42, 233, &[281]));
        assert!(c.pairs(10, 281, 233, &[281]));
    }
}
