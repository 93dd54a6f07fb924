//! What is noted of a socket by a bit each.

netacc_sys::flags! { SocketFlag:
    /// Flag: O_NONBLOCK of the file description is set.
    pub const NONBLOCK;
    /// Flag: O_APPEND of the file description is set.
    pub const APPEND;
    /// Flag: O_NOATIME of the file description is set.
    pub const NOATIME;
    /// Flag: the descriptor is a duplicate of a template, and stands for a socket that the kernel does not have yet.
    pub const PLACEHOLDER;
    /// Flag: the placeholder is the first descriptor of its template: see [`crate::fd::placeholder::first_or_another`].
    pub const FIRST;
    /// Flag: a non-blocking connect returned EINPROGRESS, and the next connect(2) reports success. It stays set when
    /// the connection switches to a ring.
    pub const CONNECTING;
    /// Flag: SO_LINGER is on with time 0, so close(2) resets the connection.
    pub const LINGER_RESET;
    /// Flag: the connection was accepted under a close-on-exec number which was not duplicated: see
    /// [`crate::fd::fd_cache`].
    pub const KEEPABLE;
    /// Flag: the process has forked while this connection was open, and others may still have it.
    pub const SHARED;
    /// Flag: before this process forked, no other process had the connection.
    pub const SHARED_HERE;
    /// Flag: a program that is executed is meant to inherit a number of this socket.
    pub const HANDED;
    /// Flag: bind(2) was called on a dead connection.
    pub const REBOUND;
    /// Flag: the program has bound the socket to an address that it named, not to all of them.
    pub const NAMED_ADDRESS;
    /// Flag: the program has bound the socket to a port that it named.
    pub const NAMED_PORT;
    /// Flag: another file has replaced one of its numbers (dup2, dup3).
    pub const REPLACED;
    /// Flag: an option about the connection's packets was set, which the kernel can be asked about: see
    /// [`crate::options::kernel_options`].
    pub const KERNEL_OPTIONS;
    /// Flag: TCP_INQ is on, so recvmsg(2) tells how many bytes are left to read.
    pub const INQ;
    /// Flag: it is an accepted connection whose listener is closed, and whose port is kept: see
    /// [`crate::conn::held_port`].
    pub const HOLDS_PORT;
    /// Flag: an option about the connection's packets was set, such as a signature, which the kernel cannot be asked
    /// about.
    pub const SIGNED;
    /// Flag: a call of ours has slept on it although the kernel served it, or slept on it when it became the kernel's, and may do
    /// so still.
    pub const SLEPT_ON;
}

/// The flags of a file description that fcntl(2) sets, as far as a socket has them, each with the note of it.
pub const STATUS_FLAGS: [(u32, i32); 3] =
    [(NONBLOCK, libc::O_NONBLOCK), (APPEND, libc::O_APPEND), (NOATIME, libc::O_NOATIME)];

/// The notes of a file description with these flags.
pub fn notes_of(flags: i32) -> u32 {
    STATUS_FLAGS.iter().filter(|(_, flag)| flags & flag != 0).fold(0, |notes, (note, _)| notes | note)
}
