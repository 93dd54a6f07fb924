//! The first bytes of a data connection: what is to be done with the others.

use serde::{Deserialize, Serialize};

const MAGIC: [u8; 4] = *b"NACB";
/// Grows whenever a header or what follows it changes its meaning.
const FORMAT: u8 = 2;
/// Length of a header.
pub const HEADER_LEN: usize = 16;
/// The longest request or answer.
pub const MAX_MESSAGE: u32 = 16 << 20;

/// What the server does with a data connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// For each `request` bytes it sends `reply` bytes, which begin with the first bytes of the request (up to 8).
    Answer,
    /// The same once, then it closes.
    AnswerOnce,
    /// It takes what comes, and says at the end how many bytes that were (8 bytes, big end first).
    Count,
    /// As [`Job::Count`], but it compares each byte with the one that belongs at its place in the stream, and counts those
    /// before the first wrong one.
    Compare,
}

/// How an end waits for the next message of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Waiting {
    /// The server in its event loop, with all other connections; a client in recv(2).
    #[default]
    Usual,
    /// In a blocking recv(2).
    Recv,
    /// In epoll_wait(2), with the one connection in the set.
    Epoll,
    /// In poll(2).
    Poll,
    /// In select(2).
    Select,
}

/// What a client says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What to do.
    pub job: Job,
    /// How the server is to wait.
    pub waiting: Waiting,
    /// Length of a request; 1 to [`MAX_MESSAGE`].
    pub request: u32,
    /// Length of an answer; 1 to [`MAX_MESSAGE`].
    pub reply: u32,
}

impl Header {
    /// Encodes it for the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let job = match self.job {
            Job::Answer => 0,
            Job::AnswerOnce => 1,
            Job::Count => 2,
            Job::Compare => 3,
        };
        let waiting = match self.waiting {
            Waiting::Usual => 0,
            Waiting::Recv => 1,
            Waiting::Epoll => 2,
            Waiting::Poll => 3,
            Waiting::Select => 4,
        };
        let [m0, m1, m2, m3] = MAGIC;
        let [q0, q1, q2, q3] = self.request.to_be_bytes();
        let [r0, r1, r2, r3] = self.reply.to_be_bytes();
        [m0, m1, m2, m3, FORMAT, job, waiting, 0, q0, q1, q2, q3, r0, r1, r2, r3]
    }

    /// Reads a header; `None` if it is none of this version, or asks for what is not done.
    #[must_use]
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Option<Self> {
        let [m0, m1, m2, m3, FORMAT, job, waiting, 0, q0, q1, q2, q3, r0, r1, r2, r3] = *bytes else {
            return None;
        };
        let job = match job {
            0 => Job::Answer,
            1 => Job::AnswerOnce,
            2 => Job::Count,
            3 => Job::Compare,
            _ => return None,
        };
        let waiting = match waiting {
            0 => Waiting::Usual,
            1 => Waiting::Recv,
            2 => Waiting::Epoll,
            3 => Waiting::Poll,
            4 => Waiting::Select,
            _ => return None,
        };
        let (request, reply) = (u32::from_be_bytes([q0, q1, q2, q3]), u32::from_be_bytes([r0, r1, r2, r3]));
        let allowed = |size: u32| (1..=MAX_MESSAGE).contains(&size);
        ([m0, m1, m2, m3] == MAGIC && allowed(request) && allowed(reply)).then_some(Self {
            job,
            waiting,
            request,
            reply,
        })
    }
}
