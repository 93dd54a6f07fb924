//! Names of sockets in the host directory (`NACC_HOST_DIR`).

use crate::VERSION;

/// The file name of an *entrance*: the socket by which a process of another network namespace reaches a listener.
///
/// The name is `netaccVERSION.PORT.ID` with a hexadecimal identifier of 16 digits, so that a client need not connect to
/// an entrance of another version or port to learn of it. Until the socket listens, its name begins with a dot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entrance {
    /// A random number, which tells the entrances of one port apart.
    pub id: u64,
    /// The port of the listener; 0: the entrance is that of one connection ([`Entrance::of_connection`]).
    pub port: u16,
}

/// A file name in text form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileName {
    text: [u8; FileName::LONGEST],
    len: usize,
}

impl FileName {
    /// The size of the longest name in bytes: two numbers of five digits, the identifier and what is between them.
    pub const LONGEST: usize = 1 + 6 + 5 + 1 + 5 + 1 + 16;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        self.text.get(..self.len).and_then(|text| core::str::from_utf8(text).ok()).unwrap_or("")
    }

    /// The name without the leading dot.
    pub fn published(&self) -> &str {
        self.as_str().trim_start_matches('.')
    }
}

impl core::fmt::Write for FileName {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let end = self.len + s.len();
        self.text.get_mut(self.len..end).ok_or(core::fmt::Error)?.copy_from_slice(s.as_bytes());
        self.len = end;
        Ok(())
    }
}

impl Entrance {
    /// The entrance of a process that was forked for one connection, whose client has this address. `random` tells it
    /// from others whose clients have the same address in another network.
    pub fn of_connection(client: core::net::SocketAddr, random: u32) -> Entrance {
        Entrance { id: u64::from(Self::mark(client)) << 32 | u64::from(random), port: 0 }
    }

    /// Whether the entrance is that of one connection.
    pub fn is_of_one_connection(self) -> bool {
        self.port == 0
    }

    /// Whether the entrance may be that of the connection of the client with this address.
    pub fn is_of(self, client: core::net::SocketAddr) -> bool {
        self.is_of_one_connection() && self.id >> 32 == u64::from(Self::mark(client))
    }

    /// The FNV-1a hash of an address. The hash need not be secret: a process that finds the entrance must still prove that
    /// it is the client.
    fn mark(client: core::net::SocketAddr) -> u32 {
        let ip = match client.ip() {
            core::net::IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            core::net::IpAddr::V6(ip) => ip,
        };
        let bytes = ip.octets().into_iter().chain(client.port().to_be_bytes());
        bytes.fold(0x811c_9dc5, |mark, byte| (mark ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    }

    /// The name under which the socket is made, with the leading dot.
    pub fn unpublished(self) -> FileName {
        use core::fmt::Write;
        let mut name = FileName { text: [0; FileName::LONGEST], len: 0 };
        // The longest name has room.
        let _ = write!(name, ".netacc{VERSION}.{}.{:016x}", self.port, self.id);
        name
    }

    /// The entrance of our version that has this file name. `None`: the file is something else.
    pub fn parse(name: &[u8]) -> Option<Entrance> {
        let text = core::str::from_utf8(name).ok()?;
        let mut parts = text.strip_prefix("netacc")?.split('.');
        let (version, port, id) = (parts.next()?, parts.next()?, parts.next()?);
        let entrance = Entrance { id: u64::from_str_radix(id, 16).ok()?, port: port.parse().ok()? };
        // The comparison refuses further parts, other versions, signs and leading zeros.
        (version.parse() == Ok(VERSION) && entrance.unpublished().published() == text).then_some(entrance)
    }

    /// Whether a file name is that of an entrance of any version, published or not.
    pub fn is_any(name: &[u8]) -> bool {
        let name = name.strip_prefix(b".").unwrap_or(name);
        let Some(rest) = name.strip_prefix(b"netacc") else { return false };
        let mut parts = rest.split(|byte| *byte == b'.');
        let is_number = |part: Option<&[u8]>| part.is_some_and(|p| !p.is_empty() && p.iter().all(u8::is_ascii_digit));
        is_number(parts.next())
            && is_number(parts.next())
            && parts.next().is_some_and(|id| id.len() == 16 && id.iter().all(u8::is_ascii_hexdigit))
            && parts.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_entrance_of_a_connection_has_its_clients_mark() {
        let (four, six) = ("10.0.0.1:40000".parse().unwrap(), "[::ffff:10.0.0.1]:40000".parse().unwrap());
        let entrance = Entrance::of_connection(four, 7);
        assert!(entrance.is_of(four) && entrance.is_of(six) && entrance.is_of_one_connection());
        assert!(!entrance.is_of("10.0.0.1:40001".parse().unwrap()));
        assert_eq!(Entrance::parse(entrance.unpublished().published().as_bytes()), Some(entrance));
        assert!(!Entrance { id: entrance.id, port: 1 }.is_of(four));
    }

    proptest! {
        #[test]
        fn what_is_named_is_parsed(id: u64, port: u16) {
            let entrance = Entrance { id, port };
            let name = entrance.unpublished();
            prop_assert_eq!(Entrance::parse(name.published().as_bytes()), Some(entrance));
            prop_assert_eq!(Entrance::parse(name.as_str().as_bytes()), None, "it does not listen yet");
            prop_assert!(Entrance::is_any(name.as_str().as_bytes()) && Entrance::is_any(name.published().as_bytes()));
        }

        #[test]
        fn foreign_names_never_panic(name in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some(e) = Entrance::parse(&name) {
                let again = e.unpublished();
                prop_assert_eq!(again.published().as_bytes(), &name[..]);
            }
            let _ = Entrance::is_any(&name);
        }
    }

    #[test]
    fn names_that_are_none() {
        let good = format!("netacc{VERSION}.80.00000000000000ff");
        assert_eq!(Entrance::parse(good.as_bytes()), Some(Entrance { id: 255, port: 80 }));
        let older = format!("netacc{}.80.00000000000000ff", VERSION - 1);
        assert!(Entrance::parse(older.as_bytes()).is_none() && Entrance::is_any(older.as_bytes()));
        for bad in [
            "",
            "netacc",
            "netacc14.80",
            "netacc14.080.00000000000000ff",
            "netacc14.80.ff",
            "redis.sock",
            "netacc14.80.00000000000000ff.x",
            "netacc14.80.+0000000000000ff",
            "netacc14.99999.00000000000000ff",
        ] {
            assert_eq!(Entrance::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
