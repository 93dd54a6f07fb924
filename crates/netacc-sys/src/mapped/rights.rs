//! Whether a program that this process executes would be another one if the process were traced meanwhile.

use super::problem::Problem;
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::read;

/// The bit of CAP_SYS_PTRACE.
const MAY_TRACE: u64 = 1 << 19;

/// Looks whether the program gets the same rights, and whether nobody traces the process.
///
/// # Errors
/// Why it is not so.
pub(super) fn unchanged() -> Result<(), Problem> {
    let mut text = [0; 4096];
    let status = open(c"/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|file| read(file.as_fd(), &mut text))
        .ok()
        .and_then(|length| text.get(..length));
    if !status.is_some_and(keeps_rights) {
        return Err(Problem::Rights);
    }
    Ok(())
}

/// Whether a program that a process with this status (proc(5)) executes gets no more rights than the process has: a
/// traced process would not get them, unless the tracer has all rights. Nobody must trace it already, either.
fn keeps_rights(status: &[u8]) -> bool {
    let value = |name: &[u8]| status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name));
    let number = |text: &[u8], radix| u64::from_str_radix(core::str::from_utf8(text).ok()?, radix).ok();
    let pair = |name: &[u8]| {
        let mut numbers = value(name)?.split(|byte| *byte == b'\t').filter(|word| !word.is_empty());
        Some((number(numbers.next()?, 10)?, number(numbers.next()?, 10)?))
    };
    let set = |name: &[u8]| number(value(name)?.trim_ascii(), 16);
    let tracer = value(b"TracerPid:").and_then(|text| number(text.trim_ascii(), 10));
    let (Some((user, effective)), Some((group, effective_group))) = (pair(b"Uid:"), pair(b"Gid:")) else {
        return false;
    };
    let sets = (set(b"CapInh:"), set(b"CapPrm:"), set(b"CapEff:"), set(b"CapBnd:"));
    let (Some(inherited), Some(permitted), Some(in_effect), Some(bounding)) = sets else { return false };
    // A program of root's gets what is in these two sets.
    let gains = user == 0 && (inherited | bounding) & !permitted != 0 && in_effect & MAY_TRACE == 0;
    tracer == Some(0) && user == effective && group == effective_group && !gains
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(tracer: u32, users: &str, groups: &str, sets: [&str; 4]) -> bool {
        let [inherited, permitted, in_effect, bounding] = sets;
        keeps_rights(
            format!(
                "Name:\tsh\nPid:\t7\nTracerPid:\t{tracer}\nUid:\t{users}\nGid:\t{groups}\nCapInh:\t{inherited}\n\
                 CapPrm:\t{permitted}\nCapEff:\t{in_effect}\nCapBnd:\t{bounding}\n"
            )
            .as_bytes(),
        )
    }

    #[test]
    fn rights_that_a_traced_program_would_not_get() {
        const ALL: &str = "000001ffffffffff";
        const NONE: &str = "0000000000000000";
        const FEW: &str = "00000000a80425fb";
        let (user, root) = ("1000\t1000\t1000\t1000", "0\t0\t0\t0");
        assert!(status(0, user, user, [NONE, NONE, NONE, ALL]));
        assert!(status(0, root, root, [NONE, ALL, ALL, ALL]) && status(0, root, root, [NONE, FEW, FEW, FEW]));
        // Root that has given up something, which comes back.
        assert!(!status(0, root, root, [NONE, FEW, FEW, ALL]) && !status(0, root, root, [NONE, NONE, NONE, FEW]));
        assert!(status(0, root, root, [NONE, "0000000000080000", "0000000000080000", ALL]), "it may trace");
        assert!(!status(9, user, user, [NONE, NONE, NONE, ALL]), "traced already");
        assert!(!status(0, "1000\t0\t0\t0", user, [NONE, NONE, NONE, ALL]));
        assert!(!status(0, user, "1000\t0\t0\t0", [NONE, NONE, NONE, ALL]));
        assert!(!keeps_rights(b"Uid:\t0\t0\t0\t0\n") && !keeps_rights(b""));
    }

    #[test]
    fn this_process_keeps_its_rights() {
        // A debugger may trace the tests.
        assert!(matches!(unchanged(), Ok(()) | Err(Problem::Rights)));
    }
}
