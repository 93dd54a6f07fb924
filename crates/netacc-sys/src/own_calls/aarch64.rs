//! AArch64: `mov w8, #number` and `svc #0` on one straight way.

use super::{Callees, FUNCTION, LARGE, OwnCall, WINDOW, modern, sockets};

const EPOLL_CTL: u32 = 21;
const EPOLL_WAITS: [u32; 2] = [22, 441];

fn named(number: u32) -> Option<OwnCall> {
    Some(sockets(match number {
        EPOLL_CTL => "epoll_ctl",
        22 => "epoll_pwait",
        72 => "pselect6",
        73 => "ppoll",
        200 => "bind",
        201 => "listen",
        202 => "accept",
        203 => "connect",
        204 => "getsockname",
        205 => "getpeername",
        206 => "sendto",
        207 => "recvfrom",
        208 => "setsockopt",
        209 => "getsockopt",
        210 => "shutdown",
        211 => "sendmsg",
        212 => "recvmsg",
        242 => "accept4",
        243 => "recvmmsg",
        269 => "sendmmsg",
        _ => return modern(number),
    }))
}

const SVC: u32 = 0xd400_0001;

/// The instruction at index `at`, if there is one.
fn instruction(code: &[u8], at: usize) -> Option<u32> {
    let from = at.checked_mul(4)?;
    Some(u32::from_le_bytes(code.get(from..from + 4)?.try_into().ok()?))
}

/// `movz`, or `mov` of what is left of it, of a number below 65536 to register `to`, of 32 or 64 bits.
fn loads(i: u32, to: u32) -> Option<u32> {
    (i & 0x7fe0_001f == 0x5280_0000 | to).then_some(i >> 5 & 0xffff)
}

/// Whether the straight way ends: a branch that does not depend on a condition, a call, a return.
fn leaves(i: u32) -> bool {
    i & 0x7c00_0000 == 0x1400_0000 || i & 0xfe00_0000 == 0xd600_0000
}

/// The first call that the code makes by itself.
pub(super) fn find(code: &[u8]) -> Option<OwnCall> {
    let mut enters = false;
    for (at, i) in code.chunks_exact(4).enumerate() {
        if i != SVC.to_le_bytes() {
            continue;
        }
        match number_before(code, at, at.saturating_sub(WINDOW / 4)) {
            Some(number) => {
                if let Some(call) = named(number) {
                    return Some(call);
                }
            }
            None => enters = true,
        }
    }
    if enters && code.len() <= LARGE { handed(code) } else { None }
}

/// The number that is in w8 before the instruction at `at`, looked for back to `first`.
fn number_before(code: &[u8], at: usize, first: usize) -> Option<u32> {
    (first..at).rev().map_while(|at| instruction(code, at).filter(|i| !leaves(*i))).find_map(|i| loads(i, 8))
}

/// Code that is not optimised hands the number to a function, as its first argument (w0).
fn handed(code: &[u8]) -> Option<OwnCall> {
    let mut callees = Callees::default();
    (0..code.len() / 4).find_map(|at| {
        let number = loads(instruction(code, at)?, 0)?;
        let call = named(number)?;
        let target = called(code, at + 1)?;
        (is_wrapper(code, target) || callees.pairs(target, number, EPOLL_CTL, &EPOLL_WAITS)).then_some(call)
    })
}

/// The function that is called on a straight way from `at` on, with w0 as it is there.
fn called(code: &[u8], at: usize) -> Option<usize> {
    for at in at..at + WINDOW / 4 {
        let i = instruction(code, at)?;
        // `bl`: 26 bits that count instructions.
        if i & 0xfc00_0000 == 0x9400_0000 {
            let by = ((i << 6).cast_signed() >> 6) as isize;
            let target = at.checked_add_signed(by)?;
            return (!is_stub(code, target)).then_some(target);
        }
        if leaves(i) || loads(i, 0).is_some() {
            return None;
        }
    }
    None
}

/// Whether a function is a jump to one of another library, by way of x16 and x17.
fn is_stub(code: &[u8], target: usize) -> bool {
    (target..target + 5).any(|at| instruction(code, at) == Some(0xd61f_0220))
}

/// Whether the function enters the kernel with a number that it was given.
fn is_wrapper(code: &[u8], target: usize) -> bool {
    let enters = (target..target + FUNCTION / 4).find(|at| instruction(code, *at) == Some(SVC));
    enters.is_some_and(|at| number_before(code, at, target).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }
    const MOV_X0_X1: u32 = 0xaa01_03e0;
    const RET: u32 = 0xd65f_03c0;
    const fn movz(to: u32, number: u32) -> u32 {
        0x5280_0000 | number << 5 | to
    }
    fn name(words: &[u32]) -> Option<&'static str> {
        find(&code(words)).map(|call| call.name)
    }

    #[test]
    fn number_and_instruction() {
        assert_eq!(name(&[movz(8, 22), MOV_X0_X1, SVC]), Some("epoll_pwait"));
        // Of 64 bits.
        assert_eq!(name(&[movz(8, 441) | 1 << 31, SVC]), Some("epoll_pwait2"));
        assert_eq!(name(&[movz(8, 425), SVC]), Some("io_uring_setup"));
        assert_eq!(name(&[movz(8, 64), SVC]), None, "write");
        assert_eq!(name(&[movz(8, 22), movz(8, 64), SVC]), None, "the last number counts");
        assert_eq!(name(&[movz(8, 22), RET, SVC]), None, "another function");
        assert_eq!(name(&[movz(8, 22), SVC & !1]), None);
    }

    #[test]
    fn number_handed_to_a_function() {
        let bl = |by: i32| 0x9400_0000 | (by.cast_unsigned() & 0x03ff_ffff);
        // mov x8, x0
        let wrapper = [0xaa00_03e8, SVC, RET];
        assert_eq!(name(&[&[movz(0, 22), bl(2), RET], &wrapper[..]].concat()), Some("epoll_pwait"));
        assert_eq!(name(&[&wrapper[..], &[movz(0, 22), bl(-4), RET]].concat()), Some("epoll_pwait"));
        assert_eq!(name(&[&wrapper[..], &[movz(0, 64), bl(-4), RET]].concat()), None, "write");
        let exit = [movz(8, 93), SVC, RET];
        assert_eq!(name(&[&[movz(0, 22), bl(2), RET], &exit[..]].concat()), None, "an exit status");
    }
}
