//! One data connection at the server's end.

use std::io::{self, Read, Write};
use std::sync::LazyLock;

use netacc_tools::bench_wire::{HEADER_LEN, Header, Job, Waiting};

use crate::pattern::Pattern;

/// The longest buffer that is read into.
pub(crate) const MOST_AT_ONCE: usize = 256 << 10;
/// The bytes of a request that an answer repeats, at most.
pub(crate) const STAMP: usize = 8;
/// What the rest of an answer consists of.
pub(crate) const FILLER: u8 = 0x5a;
static FILLING: [u8; 64 << 10] = [FILLER; 64 << 10];
/// What a stream consists of that is compared.
static PATTERN: LazyLock<Pattern> = LazyLock::new(|| Pattern::new(MOST_AT_ONCE));

/// What is to be done with a connection after a step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing, until the kernel tells.
    Waits,
    /// The next step.
    Goes,
    /// The connection is to be closed.
    Over,
}

/// How far a connection is.
#[derive(Debug)]
pub(crate) struct Conn {
    head: [u8; HEADER_LEN],
    /// Bytes of the header so far.
    got: usize,
    header: Option<Header>,
    /// Bytes of the present request so far; of all that came, where they are only counted.
    taken: u64,
    stamp: [u8; STAMP],
    /// Bytes of the present answer that have been sent, if there is one to be sent.
    answered: Option<usize>,
    /// Nothing further is read.
    last: bool,
    /// A byte of a stream was another one than it should be: those behind it do not count.
    wrong: bool,
}

impl Conn {
    pub(crate) fn new() -> Self {
        let (head, stamp) = ([0; HEADER_LEN], [0; STAMP]);
        Self { head, got: 0, header: None, taken: 0, stamp, answered: None, last: false, wrong: false }
    }

    /// How the client wants this end to wait, once its header is there.
    pub(crate) fn waiting(&self) -> Option<Waiting> {
        self.header.map(|header| header.waiting)
    }

    /// Whether the next step sends rather than reads.
    pub(crate) fn owes(&self) -> bool {
        self.answered.is_some()
    }

    /// Sends or reads once, by a buffer of at most [`MOST_AT_ONCE`] bytes whose contents are of no use afterwards.
    pub(crate) fn step(&mut self, wire: &mut (impl Read + Write), buffer: &mut [u8], thorough: bool) -> State {
        if self.answered.is_some() {
            return self.answer(wire, buffer, thorough);
        }
        let size = buffer.len();
        match wire.read(buffer) {
            Ok(0) => self.ended(),
            Ok(count) => {
                if !self.take(buffer.get(..count).unwrap_or_default()) {
                    return State::Over;
                }
                // Less than there was room for: the kernel has no more, and tells when it has (epoll(7)).
                let drained = count < size && !thorough;
                if drained && self.answered.is_none() { State::Waits } else { State::Goes }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => State::Waits,
            Err(_) => State::Over,
        }
    }

    /// Takes what was read; `false` if it breaks the rules.
    fn take(&mut self, bytes: &[u8]) -> bool {
        let wanted = HEADER_LEN - self.got;
        let (head, bytes) = bytes.split_at(wanted.min(bytes.len()));
        if let Some(place) = self.head.get_mut(self.got..self.got + head.len()) {
            place.copy_from_slice(head);
        }
        self.got += head.len();
        if self.got < HEADER_LEN {
            return true;
        }
        if self.header.is_none() {
            self.header = Header::decode(&self.head);
        }
        match self.header {
            None => false,
            Some(Header { job: Job::Count, .. }) => {
                self.taken = self.taken.saturating_add(bytes.len() as u64);
                true
            }
            Some(Header { job: Job::Compare, .. }) => {
                self.compare(bytes);
                true
            }
            Some(header) => self.request(bytes, header),
        }
    }

    fn compare(&mut self, bytes: &[u8]) {
        if self.wrong {
            return;
        }
        let expected = PATTERN.at(self.taken, bytes.len());
        let right = if bytes == expected {
            bytes.len()
        } else {
            self.wrong = true;
            bytes.iter().zip(expected).take_while(|(is, should)| is == should).count()
        };
        self.taken = self.taken.saturating_add(right as u64);
    }

    fn request(&mut self, bytes: &[u8], header: Header) -> bool {
        let start = usize::try_from(self.taken).unwrap_or(STAMP).min(STAMP);
        for (place, byte) in self.stamp.iter_mut().skip(start).zip(bytes) {
            *place = *byte;
        }
        self.taken = self.taken.saturating_add(bytes.len() as u64);
        if self.taken < u64::from(header.request) {
            return true;
        }
        self.answered = Some(0);
        // A client waits for the answer before its next request, so nothing has to be kept.
        self.taken == u64::from(header.request)
    }

    fn ended(&mut self) -> State {
        match self.header {
            Some(Header { job: Job::Count | Job::Compare, .. }) if !self.last => {
                self.stamp = self.taken.to_be_bytes();
                (self.answered, self.last) = (Some(0), true);
                State::Goes
            }
            _ => State::Over,
        }
    }

    fn answer(&mut self, wire: &mut impl Write, buffer: &mut [u8], thorough: bool) -> State {
        let (Some(header), Some(sent)) = (self.header, self.answered) else { return State::Over };
        let length = match header.job {
            Job::Count | Job::Compare => STAMP,
            Job::Answer | Job::AnswerOnce => header.reply as usize,
        };
        match self.send(wire, buffer, header, sent, length) {
            Ok(count) if sent + count < length => {
                self.answered = Some(sent + count);
                State::Goes
            }
            Ok(_) if header.job == Job::Answer => {
                (self.answered, self.taken) = (None, 0);
                if thorough { State::Goes } else { State::Waits }
            }
            Ok(_) => State::Over,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => State::Waits,
            Err(_) => State::Over,
        }
    }

    /// One write of what is left of an answer of `length` bytes.
    fn send(
        &self,
        wire: &mut impl Write,
        buffer: &mut [u8],
        header: Header,
        sent: usize,
        length: usize,
    ) -> io::Result<usize> {
        let repeated = match header.job {
            Job::Count | Job::Compare => STAMP,
            Job::Answer | Job::AnswerOnce => STAMP.min(header.request as usize).min(length),
        };
        // One write for an answer of the usual sizes: its first bytes and the others lie together.
        if sent == 0 {
            let count = length.min(4096).min(buffer.len());
            let first = buffer.get_mut(..count).unwrap_or_default();
            first.fill(FILLER);
            for (place, byte) in first.iter_mut().zip(self.stamp.iter().take(repeated)) {
                *place = *byte;
            }
            return wire.write(first);
        }
        match self.stamp.get(sent..repeated) {
            Some(rest @ [_, ..]) => wire.write(rest),
            _ => wire.write(FILLING.get(..(length - sent).min(FILLING.len())).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A peer that said all of `said` and takes `room` bytes at a time.
    struct Peer {
        said: Vec<u8>,
        heard: Vec<u8>,
        room: usize,
    }

    impl Read for Peer {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.said.len().min(buffer.len());
            let rest = self.said.split_off(count);
            buffer[..count].copy_from_slice(&self.said);
            self.said = rest;
            Ok(count)
        }
    }

    impl Write for Peer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            self.heard.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// All that the connection says to these bytes, given in pieces of `piece` bytes.
    fn all(said: &[u8], piece: usize, room: usize) -> Vec<u8> {
        let mut peer = Peer { said: said.to_vec(), heard: Vec::new(), room };
        let mut conn = Conn::new();
        let mut buffer = vec![0; piece];
        for _ in 0..100_000 {
            if conn.step(&mut peer, &mut buffer, true) == State::Over {
                return peer.heard;
            }
        }
        panic!("it never ends");
    }

    fn with_header(job: Job, request: u32, reply: u32, body: &[u8]) -> Vec<u8> {
        [Header { job, waiting: Waiting::Usual, request, reply }.encode().as_slice(), body].concat()
    }

    #[test]
    fn answers_begin_as_the_request() {
        for (piece, room) in [(7, 3), (4096, 5), (4096, 9999)] {
            // One request a read: with more at a time it would have spoken out of turn.
            let said = with_header(Job::AnswerOnce, 10, 6000, b"0123456789");
            let heard = all(&said, piece.min(26), room);
            assert_eq!((heard.len(), &heard[..9]), (6000, &b"01234567Z"[..]), "{piece} {room}");
            assert!(heard[8..].iter().all(|byte| *byte == 0x5a));
        }
        let short = all(&with_header(Job::AnswerOnce, 3, 20, b"abc"), 19, 99);
        assert_eq!(short, b"abcZZZZZZZZZZZZZZZZZ");
        assert_eq!(all(&with_header(Job::AnswerOnce, 3, 1, b"abc"), 19, 99), b"a");
    }

    #[test]
    fn bytes_are_counted() {
        for (piece, room) in [(1, 1), (100, 8)] {
            let heard = all(&with_header(Job::Count, 1, 1, &[7; 1000]), piece, room);
            assert_eq!(heard, 1000_u64.to_be_bytes());
        }
    }

    #[test]
    fn bytes_are_compared() {
        let mut body = PATTERN.at(0, 100_000).to_vec();
        assert_eq!(all(&with_header(Job::Compare, 1, 1, &body), 4096, 8), 100_000_u64.to_be_bytes());
        body[70_000] ^= 1;
        assert_eq!(all(&with_header(Job::Compare, 1, 1, &body), 999, 3), 70_000_u64.to_be_bytes());
        // Its neighbour is another one, so the byte is missed at its own place.
        body.remove(60);
        assert_eq!(all(&with_header(Job::Compare, 1, 1, &body), 4096, 8), 60_u64.to_be_bytes());
    }

    #[test]
    fn who_speaks_out_of_turn_is_left() {
        assert!(all(&with_header(Job::Answer, 3, 3, b"abcd"), 99, 99).is_empty());
        assert!(all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 99, 99).is_empty());
        assert!(all(b"NACB", 99, 99).is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_come_to_an_end(
            bytes in prop::collection::vec(any::<u8>(), 0..500),
            job in prop_oneof![Just(Job::Answer), Just(Job::AnswerOnce), Just(Job::Count), Just(Job::Compare)],
            request in 1..50_u32, reply in 1..5000_u32, piece in 1..600_usize, room in 1..600_usize,
        ) {
            let stranger = all(&bytes, piece, room);
            prop_assert!(stranger.is_empty() || bytes.starts_with(b"NACB"));
            let heard = all(&with_header(job, request, reply, &bytes), piece, room).len();
            let most = if matches!(job, Job::Count | Job::Compare) { STAMP } else { reply as usize * (bytes.len() + 1) };
            prop_assert!(heard <= most, "{heard} of {most}");
        }
    }
}
