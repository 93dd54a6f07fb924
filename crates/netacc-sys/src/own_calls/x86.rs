//! x86-64: `mov $number, %eax` and `syscall` on one straight way.

use super::{Callees, FUNCTION, LARGE, OwnCall, WINDOW, any_at, modern, sockets};
use crate::go_code::is_epolls;

/// The register of a first argument.
const EDI: u8 = 7;
const EPOLL_CTL: u32 = 233;
const EPOLL_WAITS: [u32; 3] = [232, 281, 441];

fn named(number: u32) -> Option<OwnCall> {
    Some(sockets(match number {
        7 => "poll",
        23 => "select",
        42 => "connect",
        43 => "accept",
        44 => "sendto",
        45 => "recvfrom",
        46 => "sendmsg",
        47 => "recvmsg",
        48 => "shutdown",
        49 => "bind",
        50 => "listen",
        51 => "getsockname",
        52 => "getpeername",
        54 => "setsockopt",
        55 => "getsockopt",
        232 => "epoll_wait",
        EPOLL_CTL => "epoll_ctl",
        270 => "pselect6",
        271 => "ppoll",
        281 => "epoll_pwait",
        288 => "accept4",
        299 => "recvmmsg",
        307 => "sendmmsg",
        _ => return modern(number),
    }))
}

/// The first call that the code makes by itself.
pub(super) fn find(code: &[u8]) -> Option<OwnCall> {
    let mut found = None;
    let mut enters = false;
    any_at(code, 0x0f, 0x05, 1, |at| {
        match number_at(code, at) {
            Number::Is(number) => found = named(number).filter(|_| !is_epolls(code, at)),
            Number::Given => enters = true,
            Number::Unknown => {}
        }
        found.is_some()
    });
    if found.is_some() || !enters || code.len() > LARGE { found } else { handed(code) }
}

/// What a system call's number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    /// Loaded as a constant.
    Is(u32),
    /// Another register's or the memory's: an argument.
    Given,
    /// It cannot be told, or there is no instruction here.
    Unknown,
}

/// Number of bytes after which a reading is taken to be in step with the code.
const IN_STEP: usize = 10;

/// The number with which the `syscall` at `at` is made.
///
/// Code has no marks where instructions begin, so it is read from each of the bytes before. A reading that began in the
/// middle of an instruction soon comes in step with the code: so where there is a `syscall`, most readings end at it,
/// and where the two bytes are part of another instruction, most pass over them.
fn number_at(code: &[u8], at: usize) -> Number {
    let mut result = Number::Unknown;
    let mut decided = false;
    let mut balance = 0;
    for start in at.saturating_sub(WINDOW)..at {
        match walk(code, start, at) {
            Walk::Ends(number) => {
                balance += i32::from(at - start > IN_STEP);
                let is_ours = matches!(number, Number::Is(n) if named(n).is_some());
                if is_ours || (!decided && number != Number::Unknown) {
                    result = number;
                    decided |= is_ours;
                }
            }
            Walk::Passes => balance -= i32::from(at - start > IN_STEP),
            Walk::Stops => {}
        }
    }
    if balance >= 0 { result } else { Number::Unknown }
}

/// Where a reading of the code comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    /// To its end, with this in eax.
    Ends(Number),
    /// Over its end, which is within an instruction.
    Passes,
    /// Before it: the straight way ends, or there is an instruction that is not known.
    Stops,
}

/// Follows the instructions from `start` to `end` and says what eax holds there.
fn walk(code: &[u8], start: usize, end: usize) -> Walk {
    let mut held = [Number::Unknown; 16];
    let mut pushed = Number::Unknown;
    let mut at = start;
    while at < end {
        let Some(i) = code.get(at..).and_then(Instruction::read) else { return Walk::Stops };
        let (to, value) = match i.effect {
            Effect::Load(to, n) => (to, Number::Is(n)),
            Effect::Move(to, from) => (to, *held.get(usize::from(from)).unwrap_or(&Number::Unknown)),
            Effect::Push(n) => {
                pushed = n.map_or(Number::Unknown, Number::Is);
                (NONE, Number::Unknown)
            }
            Effect::Pop(to) => (to, core::mem::replace(&mut pushed, Number::Unknown)),
            Effect::Write(to) => (to, Number::Given),
            Effect::Other => (NONE, Number::Unknown),
            Effect::Call(_) => return Walk::Stops,
        };
        // What a register had before this piece of code began is an argument.
        let value =
            if matches!(i.effect, Effect::Move(..)) && value == Number::Unknown { Number::Given } else { value };
        if let Some(h) = held.get_mut(usize::from(to)) {
            *h = value;
        }
        at += i.length;
    }
    if at == end { Walk::Ends(held[0]) } else { Walk::Passes }
}

/// Code that is not optimised hands the number to a function, as its first argument (edi).
fn handed(code: &[u8]) -> Option<OwnCall> {
    let mut found = None;
    let mut callees = Callees::default();
    // `mov $number, %edi`: the two upper bytes of a number are zero.
    any_at(code, 0xbf, 0, 4, |at| {
        let Some([0xbf, a, b, 0, 0]) = code.get(at..at + 5) else { return false };
        let number = u32::from(u16::from_le_bytes([*a, *b]));
        if let Some(call) = named(number)
            && let Some(target) = called(code, at + 5)
            && (is_wrapper(code, target)
                || (returns_argument(code, target) && callees.pairs(target, number, EPOLL_CTL, &EPOLL_WAITS)))
        {
            found = Some(call);
        }
        found.is_some()
    });
    found
}

/// The function that is called on a straight way from `at` on, with edi as it is there.
fn called(code: &[u8], mut at: usize) -> Option<usize> {
    let end = at + WINDOW;
    while at < end {
        let i = Instruction::read(code.get(at..)?)?;
        at += i.length;
        match i.effect {
            Effect::Call(by) => {
                let target = at.checked_add_signed(by.try_into().ok()?)?;
                return (!is_stub(code.get(target..)?)).then_some(target);
            }
            Effect::Load(EDI, _) | Effect::Move(EDI, _) | Effect::Pop(EDI) | Effect::Write(EDI) => {
                return None;
            }
            _ => {}
        }
    }
    None
}

/// Whether a function is a jump to one of another library: libc's syscall(2), which is intercepted.
fn is_stub(code: &[u8]) -> bool {
    let code = code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap_or(code);
    let code = code.strip_prefix(&[0xf2]).unwrap_or(code);
    code.starts_with(&[0xff, 0x25])
}

/// Whether the function enters the kernel on a straight way, with a number that it was given.
fn is_wrapper(code: &[u8], target: usize) -> bool {
    let mut at = target;
    while at < target + FUNCTION {
        match code.get(at..) {
            Some([0x0f, 0x05, ..]) => return walk(code, target, at) == Walk::Ends(Number::Given),
            Some(rest) => match Instruction::read(rest) {
                Some(i) if !matches!(i.effect, Effect::Call(_)) => at += i.length,
                _ => return false,
            },
            None => return false,
        }
    }
    false
}

/// Whether the function does nothing but return its first argument.
fn returns_argument(code: &[u8], target: usize) -> bool {
    let mut at = target;
    let mut returned = false;
    while at < target + FUNCTION / 4 {
        match code.get(at..) {
            Some([0xc3, ..]) => return returned,
            Some(rest) => match Instruction::read(rest) {
                Some(Instruction { effect: Effect::Move(0, EDI), length }) => {
                    returned = true;
                    at += length;
                }
                Some(Instruction { effect: Effect::Other | Effect::Push(None) | Effect::Pop(_), length }) => {
                    at += length
                }
                _ => return false,
            },
            None => return false,
        }
    }
    false
}

/// No register.
const NONE: u8 = 16;

/// What an instruction does to the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// Puts a constant into one.
    Load(u8, u32),
    /// Puts the second one's value into the first.
    Move(u8, u8),
    /// Puts a constant, or something else, on the stack.
    Push(Option<u32>),
    /// Takes one from the stack.
    Pop(u8),
    /// Puts something else into one.
    Write(u8),
    /// Nothing of interest.
    Other,
    /// Calls a function that begins this many bytes behind the instruction.
    Call(i32),
}

struct Instruction {
    length: usize,
    effect: Effect,
}

/// What follows an opcode: ModRM, the size of a constant, and which operand is written.
#[derive(Clone, Copy)]
enum Form {
    /// No operands except a constant of this number of bytes, which may be 0.
    Plain(usize),
    /// ModRM, of which the register is written.
    Reg(usize),
    /// ModRM, of which the other operand is written.
    Rm(usize),
    /// ModRM, and nothing but memory, flags or vector registers is written.
    Reads(usize),
}

impl Instruction {
    /// The instruction at the beginning of `code`, if it is one of those that stand between a number and its call.
    fn read(code: &[u8]) -> Option<Instruction> {
        let mut at = 0;
        let mut word = false;
        while let Some(0x66 | 0xf2 | 0xf3 | 0x64 | 0x65 | 0x2e) = code.get(at) {
            word |= code.get(at) == Some(&0x66);
            at += 1;
        }
        let rex = code.get(at).copied().filter(|b| b & 0xf0 == 0x40);
        at += usize::from(rex.is_some());
        let rex = rex.unwrap_or(0);
        let wide = rex & 8 != 0;
        let extended = |bits: u8, bit: u8| bits | ((rex >> bit & 1) << 3);
        let opcode = *code.get(at)?;
        at += 1;
        let constant = if word { 2 } else { 4 };
        let plain = |length, effect| Some(Instruction { length, effect });
        let number = |at: usize| Some(u32::from_le_bytes(code.get(at..at + 4)?.try_into().ok()?));
        let form = match opcode {
            0x0f => return Self::read_two(code, at, rex),
            0x50..=0x57 => return plain(at, Effect::Push(None)),
            0x58..=0x5f => return plain(at, Effect::Pop(extended(opcode & 7, 0))),
            0x68 => return plain(at + 4, Effect::Push(number(at))),
            0x6a => {
                let n = (*code.get(at)?).cast_signed();
                return plain(at + 1, Effect::Push(u32::try_from(n).ok()));
            }
            0xb8..=0xbf if wide => return plain(at + 8, Effect::Write(extended(opcode & 7, 0))),
            0xb8..=0xbf if !word => return plain(at + 4, Effect::Load(extended(opcode & 7, 0), number(at)?)),
            0xe8 => return plain(at + 4, Effect::Call(number(at)?.cast_signed())),
            // Conditional jumps: on the straight way they are not taken.
            0x70..=0x7f | 0xa8 => return plain(at + 1, Effect::Other),
            0x90 => return plain(at, Effect::Other),
            // With eax and a constant; of those `cmp` and `test` write nothing.
            0x3d | 0xa9 => Form::Plain(constant),
            0x05 | 0x0d | 0x25 | 0x2d | 0x35 => return plain(at + constant, Effect::Write(0)),
            0x98 => return plain(at, Effect::Write(0)),
            0x00..=0x3f => match opcode & 7 {
                0 | 1 if opcode >= 0x38 => Form::Reads(0),
                2 | 3 if opcode >= 0x38 => Form::Reads(0),
                0 | 1 => Form::Rm(0),
                2 | 3 => Form::Reg(0),
                _ => return None,
            },
            0x63 | 0x8a | 0x8b | 0x8d => Form::Reg(0),
            0x69 => Form::Reg(constant),
            0x6b => Form::Reg(1),
            0x80 | 0xc0 | 0xc1 | 0xc6 | 0x83 => Form::Rm(1),
            0x81 | 0xc7 => Form::Rm(constant),
            0x84 | 0x85 => Form::Reads(0),
            0x88 | 0x89 | 0xd1 | 0xd3 => Form::Rm(0),
            0xf6 => Form::Reads(1),
            _ => return None,
        };
        let (length, modrm, register) = match form {
            Form::Plain(n) => return plain(at + n, Effect::Other),
            Form::Reg(n) | Form::Rm(n) | Form::Reads(n) => {
                let (operand, modrm) = operand(code.get(at..)?)?;
                (at + operand + n, modrm, modrm >> 6 == 3)
            }
        };
        let (reg, rm) = (extended(modrm >> 3 & 7, 2), extended(modrm & 7, 0));
        let effect = match (opcode, form) {
            (0xc7, _) if register => Effect::Load(rm, number(length - 4).filter(|_| !word)?),
            (0x89, _) if register => Effect::Move(rm, reg),
            (0x8b, _) if register => Effect::Move(reg, rm),
            // `xor` of a register with itself.
            (0x31 | 0x33, _) if register && reg == rm => Effect::Load(rm, 0),
            // `cmp` with a constant.
            (0x80 | 0x81 | 0x83, _) if modrm >> 3 & 7 == 7 => Effect::Other,
            (_, Form::Reg(_)) => Effect::Write(reg),
            (_, Form::Rm(_)) if register => Effect::Write(rm),
            _ => Effect::Other,
        };
        plain(length, effect)
    }

    /// Opcodes of two bytes.
    fn read_two(code: &[u8], at: usize, rex: u8) -> Option<Instruction> {
        let opcode = *code.get(at)?;
        let at = at + 1;
        let writes_register = match opcode {
            // Conditional jumps.
            0x80..=0x8f => return Some(Instruction { length: at + 4, effect: Effect::Other }),
            // cmov, imul, movzx and movsx.
            0x40..=0x4f | 0xaf | 0xb6 | 0xb7 | 0xbe | 0xbf => true,
            // Vectors that are moved, long nops, setcc.
            0x10 | 0x11 | 0x16 | 0x1e | 0x1f | 0x28 | 0x29 | 0x57 | 0x6e | 0x6f | 0x7e | 0x7f | 0xd6 | 0xef => false,
            0x90..=0x9f => false,
            _ => return None,
        };
        let (operand, modrm) = operand(code.get(at..)?)?;
        let reg = (modrm >> 3 & 7) | ((rex >> 2 & 1) << 3);
        let effect = if writes_register { Effect::Write(reg) } else { Effect::Other };
        Some(Instruction { length: at + operand, effect })
    }
}

/// The length of ModRM with what belongs to it, and ModRM.
fn operand(code: &[u8]) -> Option<(usize, u8)> {
    let modrm = *code.first()?;
    let (mode, rm) = (modrm >> 6, modrm & 7);
    let sib = mode != 3 && rm == 4;
    let base = if sib { code.get(1)? & 7 } else { rm };
    let displacement = match mode {
        0 if base == 5 => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    Some((1 + usize::from(sib) + displacement, modrm))
}

#[cfg(test)]
#[path = "x86_tests.rs"]
mod tests;
