//! Listening sockets, and descriptors for what they accept.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Listens on `address`, or on all addresses; the error names the requested one.
pub(crate) fn listen(address: Option<IpAddr>, port: u16) -> Result<TcpListener, String> {
    let bind = |address: IpAddr| TcpListener::bind((address, port));
    let done = match address {
        Some(address) => bind(address),
        // One socket for both families, where there are both.
        None => match bind(Ipv6Addr::UNSPECIFIED.into()) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
            Err(_) => bind(Ipv4Addr::UNSPECIFIED.into()),
            done => done,
        },
    };
    done.map_err(|error| {
        let place = address.map_or_else(|| format!("port {port}"), |address| format!("{address}, port {port}"));
        match error.kind() {
            io::ErrorKind::AddrInUse => {
                format!("{place} is taken (by another netacc_bench server?); choose a port by -p, or 0 for free ones")
            }
            io::ErrorKind::AddrNotAvailable => format!("{place}: this host does not have the address"),
            _ => format!("cannot listen on {place}: {error}"),
        }
    })
}

/// As many descriptors as are allowed: the limit of an interactive shell is lower than that of connections here.
pub(crate) fn raise_descriptors() {
    let now = getrlimit(Resource::Nofile);
    // Without it fewer connections fit, and the others wait or fail.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
}
