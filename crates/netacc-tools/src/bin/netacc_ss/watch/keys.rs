//! What the keys of a terminal send.

/// A key that means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Left,
    Right,
    Enter,
    Back,
    /// Ctrl-C and the like: the end.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
    Letter(char),
}

/// The keys in what was read at once. A lone escape is a key, with more behind it the begin of a sequence; sequences
/// that mean nothing here are passed over.
pub(super) fn read(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let Some((first, more)) = rest.split_first() {
        rest = more;
        let key = match first {
            0x03 | 0x04 | 0x1c => Key::Interrupt,
            0x1a => Key::Suspend,
            b'\r' | b'\n' => Key::Enter,
            0x08 | 0x7f => Key::Back,
            0x1b if more.is_empty() => Key::Back,
            0x1b => {
                let (key, left) = sequence(more);
                rest = left;
                let Some(key) = key else { continue };
                key
            }
            letter if letter.is_ascii_graphic() || *letter == b' ' => Key::Letter(char::from(*letter)),
            _ => continue,
        };
        keys.push(key);
    }
    keys
}

/// What follows an escape: `[A` or `OA`, with numbers in between, which say what it is before a `~`; and what is behind
/// it.
fn sequence(bytes: &[u8]) -> (Option<Key>, &[u8]) {
    let Some((b'[' | b'O', rest)) = bytes.split_first() else {
        return (None, bytes.get(1..).unwrap_or_default());
    };
    let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte));
    let Some(end) = end else { return (None, &[]) };
    let key = match rest.get(..=end).unwrap_or_default() {
        [.., b'A'] => Some(Key::Up),
        [.., b'B'] => Some(Key::Down),
        [.., b'C'] => Some(Key::Right),
        [.., b'D'] => Some(Key::Left),
        [.., b'H'] | b"1~" | b"7~" => Some(Key::Home),
        [.., b'F'] | b"4~" | b"8~" => Some(Key::End),
        b"5~" => Some(Key::PageUp),
        b"6~" => Some(Key::PageDown),
        _ => None,
    };
    (key, rest.get(end + 1..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys() {
        assert_eq!(read(b"q\x03"), [Key::Letter('q'), Key::Interrupt]);
        assert_eq!(read(b"\x1b[A\x1bOB\x1b[1;5C\r"), [Key::Up, Key::Down, Key::Right, Key::Enter]);
        assert_eq!(read(b"\x1b[5~\x1b[6~\x1b[H\x1bOF"), [Key::PageUp, Key::PageDown, Key::Home, Key::End]);
        assert_eq!(read(b"\x1b[1~\x1b[4~"), [Key::Home, Key::End]);
        assert_eq!(read(b"\x1b"), [Key::Back]);
        assert_eq!(read(b"\x1b[3~x\xff\x00"), [Key::Letter('x')]);
        assert_eq!(read(b"\x1b["), []);
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert!(read(&bytes).len() <= bytes.len());
        }
    }
}
