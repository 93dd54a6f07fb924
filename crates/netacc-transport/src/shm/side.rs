//! The two ends of a link.

/// An end of a link, and of every connection on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that connected.
    Client,
    /// The side that listened.
    Server,
}

impl Side {
    /// The index of this side in the segment's arrays: 0 for the client, 1 for the server.
    #[inline]
    pub fn index(self) -> usize {
        self as usize
    }

    /// The other side.
    #[inline]
    pub fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}
