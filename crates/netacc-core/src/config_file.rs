//! The configuration file, as the library reads it: when the process opens its first TCP socket, and when an operator
//! has the rules loaded anew.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use netacc_conf::{Config, Rules, Source};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{origin, raw, reserved_fds};
use rustix::fd::AsRawFd;
use rustix::fs::{CWD, Mode, OFlags, open, readlinkat_raw};

/// The configuration file, and what selects the rules of this program in it.
#[derive(Debug)]
pub struct ConfigFile {
    /// Its path: an absolute one, since the program may change its directory.
    path: Vec<u8>,
    /// Whether it was named by [`netacc_conf::ENV_CONFIG_FILE`].
    named: bool,
    /// The name that the kernel had for the program.
    command: Vec<u8>,
}

impl ConfigFile {
    /// The file that `named` names, and the usual one without that. `command` is the name that the kernel has for the
    /// program.
    pub(crate) fn new(named: Option<&[u8]>, command: &[u8]) -> Self {
        let path = named.map_or_else(|| netacc_conf::DEFAULT_PATH.as_bytes().to_vec(), absolute);
        ConfigFile { path, named: named.is_some(), command: command.to_vec() }
    }

    /// The path for messages.
    pub(crate) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.path).to_string()
    }

    /// The bytes of the file. Under another root than that of the start (chroot(2)) there is none: a file there is
    /// somebody else's.
    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        if !origin::is_same_root() {
            return Err(Errno::NOENT);
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = open(self.path.as_slice(), flags, Mode::empty()).map_err(|e| Errno(e.raw_os_error()))?;
        let mut text = Vec::new();
        // Small, as the stack may be: see docs/internals/shm.md, "Memory".
        let mut buf = [0u8; 512];
        let read = loop {
            match raw::read(fd.as_raw_fd(), buf.as_mut_ptr(), buf.len(), None) {
                Ok(0) => break Ok(()),
                Ok(n) => text.extend_from_slice(buf.get(..n).unwrap_or(&[])),
                Err(Errno::INTR) => {}
                Err(e) => break Err(e),
            }
            if text.len() > netacc_conf::MAX_FILE_BYTES {
                break Err(Errno(libc::EFBIG));
            }
        };
        reserved_fds::drop_raw(fd);
        read.map(|()| text)
    }

    /// Keeps the rules that are for this program. The name of its file is looked up only where there are rules, since /proc
    /// costs more than the rest of this.
    pub(crate) fn keep_own(&self, rules: &mut Rules) {
        if !rules.as_slice().is_empty() {
            rules.keep_for(&[&self.command, &program_file()]);
        }
    }

    /// Whether a process starts without rules if there is no such file.
    pub(crate) fn may_be_absent(&self) -> bool {
        !self.named
    }

    /// The text of the statistics page: the file, the keys, and the rules with their places in it.
    pub(crate) fn page_text(&self, conf: &Config, rules: &Rules) -> Vec<u8> {
        let mut text = Vec::new();
        let mut line = |parts: [&str; 3]| text.extend_from_slice(&[parts.join("\t").as_bytes(), b"\n"].concat());
        let source = if self.named { Source::Env } else { Source::Default };
        line([netacc_conf::ENV_CONFIG_FILE, &self.shown(), &source.describe("")]);
        for (key, value, source) in conf.entries() {
            line([key, &value, &source]);
        }
        for rule in rules.as_slice() {
            line(["rule", &rule.text, &Source::File { line: rule.line }.describe(&self.shown())]);
        }
        text
    }
}

/// The path, beginning at the root.
fn absolute(path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") {
        return path.to_vec();
    }
    // Where the directory has no name, the path stays as it is.
    let folder = link_target("/proc/self/cwd").filter(|folder| folder.starts_with(b"/")).unwrap_or_default();
    let parts: [&[u8]; 3] = [&folder, if folder.is_empty() { b"" } else { b"/" }, path];
    parts.concat()
}

/// The name of the program's file. The kernel marks the name of a file that was removed or replaced meanwhile.
fn program_file() -> Vec<u8> {
    let path = link_target("/proc/self/exe").unwrap_or_default();
    let path = path.strip_suffix(b" (deleted)").unwrap_or(&path);
    path.rsplit(|b| *b == b'/').next().unwrap_or_default().to_vec()
}

/// What a symbolic link says. `None` as well for a target that does not fit, which has no name that a rule or a user
/// could give.
fn link_target(link: &str) -> Option<Vec<u8>> {
    // On the heap, since the stack may be small.
    let mut target = alloc::vec![0u8; libc::PATH_MAX as usize];
    let length = readlinkat_raw(CWD, link, target.as_mut_slice()).ok().filter(|n| *n < libc::PATH_MAX as usize)?;
    target.truncate(length);
    Some(target)
}
