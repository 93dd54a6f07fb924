//! The reasons why a connection is not on a faster transport.

use crate::table::numbered;

numbered! {
    /// Why a socket is not on a faster transport.
    pub enum Reason {
        /// There is nothing to explain.
        None = 0, "none";
        /// Acceleration is switched off by configuration.
        Disabled = 1, "disabled";
        /// The random draw of `NACC_CONNECT_RDMA_PERCENT` chose TCP.
        PercentDraw = 2, "percent-draw";
        /// The destination has no rendezvous.
        PeerPlain = 3, "peer-plain";
        /// The peer speaks another version of the protocol.
        PeerVersion = 4, "peer-version";
        /// The other end is not on this host.
        OtherHost = 5, "other-host";
        /// The connection was accepted by TCP, as from a client without NetACC.
        PlainClient = 6, "plain-client";
        /// The listener's queue of accelerated connects was full.
        BacklogFull = 7, "backlog-full";
        /// No file descriptor was free.
        NoDescriptors = 8, "no-descriptors";
        /// Memory for the connection could not be allocated.
        NoMemory = 9, "no-memory";
        /// Another socket holds the rendezvous name of this port.
        NameTaken = 10, "name-taken";
        /// The kernel chose a listener of a group with `SO_REUSEPORT` that NetACC does not serve.
        ReusePort = 11, "reuse-port";
        /// The connection begins on TCP by configuration.
        TcpFirst = 12, "tcp-first";
        /// The peer refused the link.
        Refused = 13, "refused";
        /// The peer belongs to another user.
        PeerUid = 14, "peer-uid";
        /// The program was replaced by exec.
        Exec = 15, "exec";
        /// The connection is shared with a forked child.
        Fork = 16, "fork";
        /// The fast path cannot do what the program asked for.
        Unsupported = 17, "unsupported";
        /// The link to the peer process was lost.
        LinkLost = 18, "link-lost";
        /// The peer broke the protocol.
        ProtocolError = 19, "protocol-error";
        /// The connection or listener was passed to another process.
        Passed = 20, "passed";
        /// The descriptor is used by stdio.
        Stdio = 21, "stdio";
        /// The peer switched to a kernel socket.
        PeerMoved = 22, "peer-moved";
        /// No local port was free.
        NoPort = 23, "no-port";
        /// The destination is a link-local address.
        LinkLocal = 24, "link-local";
        /// The process at which the connect waited did not take it.
        NotTaken = 25, "not-taken";
        /// An option of the socket concerns packets, which only the kernel has.
        Packets = 26, "packet-option";
        /// The process went to another network namespace.
        Namespace = 27, "namespace";
        /// The process confined itself, by a filter on system calls or a limit that leaves it hardly any descriptors.
        Confined = 28, "confined";
        /// The descriptor was handed to io_uring.
        IoUring = 29, "io-uring";
        /// The queue pair of a connection over RDMA failed.
        QpFailed = 30, "qp-failed";
        /// The process may not make a file as large as a link's segment (RLIMIT_FSIZE).
        FileSize = 31, "file-size-limit";
        /// The program enters the kernel by instructions of its own.
        OwnCalls = 32, "own-system-calls";
        /// A rule of the configuration file leaves it on TCP.
        Rule = 33, "rule";
        /// An operator has switched the process off (netacc_ctl).
        Operator = 34, "switched-off";
        /// An earlier connect of the process waits in the kernel's queue of the listener.
        KernelQueue = 35, "kernel-queue";
        /// The other end is on another host, and the program has musl, under which there is no RDMA.
        Musl = 36, "musl";
        /// The program is a Go program that cannot be followed.
        Go = 37, "go";
        /// The other end is on another host, and the program is a Go program, which has no RDMA.
        GoOtherHost = 38, "go-other-host";
        /// The other end may be in another container, and no process there knows the client's address.
        Translated = 39, "translated";
        /// The other end may be in another container, and the connection has not lived long enough to look for it.
        ShortLived = 40, "short-lived";
        /// No process with the host directory has the other end.
        NoNeighbour = 41, "no-neighbour";
        /// A process in another container may have the other end, and it could not be shown.
        Unproven = 42, "unproven";
        /// The kernel gives TCP no random time stamps, by which a connection between containers is recognised.
        NoTimeStamps = 43, "no-time-stamps";
        /// The windows of the process use all the memory that they may.
        Memory = 44, "memory";
        /// The process has the connection by a fork, and gave up rights.
        FewerRights = 45, "fewer-rights";
        /// Several processes had the socket before it was connected.
        SharedSocket = 46, "shared-socket";
        /// Both ends wrote, neither read, and the rings were full.
        Standstill = 47, "standstill";
    }
}

impl Reason {
    /// The two halves of the sentence: the cause, and what would change it.
    #[must_use]
    pub fn why_and_remedy(self) -> (&'static str, &'static str) {
        self.sentence().split_once("; ").unwrap_or((self.sentence(), ""))
    }

    /// A sentence for users: the cause, and after a semicolon what would change it.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::None => "Nothing keeps this connection from the transport it uses.",
            Self::Disabled => {
                "Acceleration is off for this process (NACC_ENABLE_RDMA_DEFAULT=0); \
                 set it to 1 in netacc.conf, or start the program with NACC_ENABLE_RDMA_DEFAULT=1."
            }
            Self::PercentDraw => {
                "NACC_CONNECT_RDMA_PERCENT leaves a share of the connections on TCP; \
                 set it to 100 to accelerate all of them."
            }
            Self::PeerPlain => {
                "No listener with NetACC was found at the destination: the server has none, or leaves the port to TCP; \
                 start the server with netacc_run too, or see its own reason (netacc_check HOST:PORT)."
            }
            Self::PeerVersion => {
                "The peer runs a version of NetACC with another protocol; \
                 install the same version on both ends and restart the older one."
            }
            Self::OtherHost => {
                "The other end is on another host and no RDMA device carries the route; \
                 shared memory works within one host only."
            }
            Self::PlainClient => {
                "The client came by TCP, without NetACC or because its settings say so; \
                 start the client with netacc_run too, or see its own reason (netacc_ss --explain)."
            }
            Self::BacklogFull => {
                "The listener's queue of accelerated connections was full; \
                 raise the backlog given to listen(), or net.core.somaxconn."
            }
            Self::NoDescriptors => {
                "No file descriptor was free for the fast path; \
                 raise RLIMIT_NOFILE (ulimit -n)."
            }
            Self::NoMemory => {
                "Memory for the connection could not be allocated; raise the limit of memory or \
                 address space (ulimit -v, the cgroup): a link to another process maps 4 MiB, and more for many \
                 connections, in all an eighth of a limited address space. \
                 For connections to another host raise RLIMIT_MEMLOCK (ulimit -l); the log says how much was to be \
                 registered."
            }
            Self::NameTaken => {
                "The rendezvous of this address and port is held by another socket; \
                 find the other process that listens on the port, and stop one of the two."
            }
            Self::ReusePort => {
                "Of the listeners that share the port by SO_REUSEPORT the kernel chose one that NetACC does not serve, or \
                 it does not tell (sock_diag); start all of them with netacc_run, or see their own reasons \
                 (netacc_check HOST:PORT)."
            }
            Self::TcpFirst => {
                "Connections begin on TCP (NACC_CONN_TCP_FIRST=1) and this one has not been \
                 promoted; set it to 0 to begin on the fast path."
            }
            Self::Refused => {
                "The listener closed, its process ended or it had no room for shared memory while the connection was being \
                 made; the next connection tries again, and netacc_ss shows for the server's process what it lacked."
            }
            Self::PeerUid => {
                "The peer runs as another user and the link was not allowed; \
                 run both programs as one user."
            }
            Self::Exec => {
                "The program was replaced by exec() and the connection went on over TCP; \
                 new connections are accelerated if the new program loads NetACC."
            }
            Self::Fork => {
                "The connection is shared between a process and its forked child, \
                 which only the kernel socket can carry; new connections are accelerated."
            }
            Self::Unsupported => {
                "The program did something, or the system refused something, without which the fast path \
                 cannot go on; the connection works as TCP, and the log at level INFO has the moment."
            }
            Self::LinkLost => {
                "The link to the peer process was lost and the connection went on over TCP; \
                 new connections are accelerated once the peer is back."
            }
            Self::Passed => {
                "The descriptor was passed to another process (SCM_RIGHTS), which needs a kernel socket; \
                 new connections are accelerated."
            }
            Self::Stdio => {
                "The descriptor is read or written by stdio (fdopen, or it is 0, 1 or 2), inside libc; \
                 use another number and recv and send to stay on the fast path."
            }
            Self::PeerMoved => {
                "The program at the other end needed a kernel socket (exec, a passed descriptor, stdio, \
                 a call that the fast path does not carry, netacc_ctl off, two writers of which neither reads); netacc_ss of that program says which."
            }
            Self::ProtocolError => {
                "The peer sent something invalid over the fast path, so it was given up; \
                 check that both ends run an intact installation of one version."
            }
            Self::NoPort => {
                "No local port was free for the connection; \
                 widen net.ipv4.ip_local_port_range, or close connections."
            }
            Self::LinkLocal => {
                "The destination is a link-local address, which has a meaning on one interface only and \
                 is left to TCP; use another address of the host."
            }
            Self::NotTaken => {
                "The process of the server at which the connect waited did not take it, so it was made again by TCP, \
                 where others may take it; find out which of the server's processes is stopped or busy."
            }
            Self::Packets => {
                "An option of the socket (SO_BINDTODEVICE, SO_MARK, IP_TRANSPARENT, IP_MINTTL, a filter, an MD5 key) \
                 is about its packets, and shared memory has none; without it the connection is accelerated."
            }
            Self::Namespace => {
                "The process went to another network namespace (setns, unshare) after it had begun; \
                 start it inside the namespace to accelerate it."
            }
            Self::Confined => {
                "The process confined itself, by a filter on system calls (seccomp) or a limit that leaves it no \
                 descriptors, without which the fast path cannot go on; without that its connections are accelerated."
            }
            Self::IoUring => {
                "The program hands sockets to io_uring, which only knows the kernel's; \
                 with another event loop (epoll) it is accelerated."
            }
            Self::QpFailed => {
                "The queue pair that carried it failed (an error, a device that was removed, a path that fell silent), and \
                 it went on by TCP; look at the device (rdma link) and the log, new connections try RDMA again."
            }
            Self::FileSize => {
                "The process may not make a file as large as a link's shared memory, which is a sparse file of 258 MiB; \
                 raise RLIMIT_FSIZE (ulimit -f)."
            }
            Self::OwnCalls => {
                "The program, or a library of its own, enters the kernel by instructions of its own to wait or for calls on \
                 sockets (as Rust's rustix does), where nothing can stand before it; with an event loop that calls the C \
                 library (tokio, mio, libuv) it is accelerated."
            }
            Self::Operator => {
                "The process was switched off by netacc_ctl; after netacc_ctl on PID, new connections are accelerated, and \
                 those that are open come back at their next calls, if no other process has had them meanwhile."
            }
            Self::KernelQueue => {
                "An earlier connect of this process to the same listener waits in the kernel's queue, and a server accepts \
                 the connects of a process in their order; find out why the server does not accept."
            }
            Self::Memory => {
                "The windows of the process's connections use all the memory that they may, which is an eighth of the \
                 smallest limit that holds for the process; raise that, or set NACC_WINDOW_MEMORY (netacc.conf)."
            }
            Self::Translated => {
                "The other end may be in another container of this host, but no program there has a connection from \
                 this address: the network translates it, or a proxy is in between; use a network without source \
                 address translation between the two, or one program without NetACC is at the other end."
            }
            Self::ShortLived => {
                "The other end may be in another container of this host, which is looked for only once a connection has made \
                 some 20 requests; a connection that lives longer goes over to shared memory, if the other end is there."
            }
            Self::NoNeighbour => {
                "No program with NetACC that uses the host directory (NACC_HOST_DIR) has the other end, which may also be on \
                 another host; if it is in another container of this host, start it with netacc_run, and mount one \
                 directory into both containers."
            }
            Self::Unproven => {
                "A program in another container of this host may have the other end, but did not follow this one's bytes \
                 quickly enough to show it; a later connection tries again, on a host that is less busy it succeeds."
            }
            Self::FewerRights => {
                "The process has the connection by a fork, and became another user or confined itself (setuid, chroot, a \
                 filter on system calls), after which it shares no memory with its parent's clients; the connections that it \
                 makes itself are accelerated."
            }
            Self::SharedSocket => {
                "Several processes had the socket before it was connected, by a fork or a message, and only the kernel can \
                 show all of them that it is connected; make the socket in the process that connects it."
            }
            Self::Standstill => {
                "Both ends wrote more than shared memory holds before either of them read, or a reader looked (MSG_PEEK) for more \
                 than there was memory for; TCP's buffers hold more. A program that reads what has come stays in shared memory."
            }
            Self::NoTimeStamps => {
                "A connection between containers is recognised by TCP's time stamps, which the kernel does not give here or \
                 which are not random; set net.ipv4.tcp_timestamps to 1 in both containers."
            }
            Self::Musl => {
                "The other end is on another host, and the program has musl for its C library, but the libraries of RDMA \
                 (libibverbs, librdmacm) are glibc's; use a build of the program for glibc."
            }
            Self::Go => {
                "The program is a Go program that cannot be followed (the log says why) or is not to be (NACC_ENABLE_GO=0); \
                 build it with cgo and a known release of Go (CGO_ENABLED=1), and see netacc_check PROGRAM."
            }
            Self::GoOtherHost => {
                "The other end is on another host, and the program is a Go program, which has shared memory and no RDMA; \
                 shared memory works within one host only."
            }
            Self::Rule => {
                "A rule of the configuration file permits no faster transport here; change the section [rules] and call \
                 netacc_ctl reload (netacc_check --rules PROGRAM HOST:PORT says which rule decides)."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_reason_is_named_once_and_explained() {
        let mut names = HashSet::new();
        for (slot, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, slot);
            assert_eq!(Reason::from_u32(slot as u32), Some(*reason));
            assert!(names.insert(reason.name()));
            assert!(reason.sentence().ends_with('.'));
            let (why, remedy) = reason.why_and_remedy();
            assert!(!why.is_empty() && (!remedy.is_empty() || *reason == Reason::None), "{reason}");
        }
        assert_eq!(Reason::from_u32(u32::MAX), None);
        assert!(Reason::ALL.len() <= crate::REASON_SLOTS);
    }
}
