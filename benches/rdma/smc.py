"""The kernel's SMC-R between the two namespaces: what smc-tools would set up, by generic netlink.

Both ends need a common user-defined EID, and each interface a name of its network that says which RDMA device reaches it.
The names differ, or the kernel would take both ends for one host.
"""

import ctypes
import os
import pathlib
import socket
import struct

import world

NETLINK_GENERIC = 16
NLM_F_REQUEST, NLM_F_ACK = 1, 4
CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 3, 1, 2
# linux/smc.h
SMC_PNETID_ADD = 2
SMC_PNETID_NAME, SMC_PNETID_ETHNAME, SMC_PNETID_IBNAME, SMC_PNETID_IBPORT = 1, 2, 3, 4
SMC_NETLINK_ADD_UEID = 10
SMC_NLA_EID_TABLE_ENTRY = 1
EID_LENGTH = 32

LATER = pathlib.Path(world.harness.ROOT) / "build" / "rdma-vm" / "modules.later"


def attribute(number, data):
    size = 4 + len(data)
    return struct.pack("HH", size, number) + data + bytes(-size % 4)


def text(name):
    return name.encode() + b"\0"


class Netlink:
    """One family of generic netlink."""

    def __init__(self, name):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC)
        answer = self._ask(NETLINK_GENERIC, CTRL_CMD_GETFAMILY, attribute(CTRL_ATTR_FAMILY_NAME, text(name)), NLM_F_REQUEST)
        at, self.family = 20, None
        while at + 4 <= len(answer):
            size, number = struct.unpack_from("HH", answer, at)
            if number == CTRL_ATTR_FAMILY_ID:
                self.family = struct.unpack_from("H", answer, at + 4)[0]
            at += (size + 3) // 4 * 4
        if self.family is None:
            raise OSError(f"the kernel has no netlink family {name}")

    def _ask(self, family, command, attributes, flags):
        body = struct.pack("BBH", command, 1, 0) + attributes
        self.socket.send(struct.pack("IHHII", 16 + len(body), family, flags, 1, 0) + body)
        return self.socket.recv(65536)

    def do(self, command, attributes):
        answer = self._ask(self.family, command, attributes, NLM_F_REQUEST | NLM_F_ACK)
        error = -struct.unpack_from("i", answer, 16)[0]
        if error:
            raise OSError(error, os.strerror(error))


def in_namespace(name, function):
    """Netlink answers for the namespace of the socket: a child goes there."""
    child = os.fork()
    if child == 0:
        try:
            with open(f"/run/netns/{name}") as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                    raise OSError(ctypes.get_errno(), "setns")
            function()
            os._exit(0)
        except OSError as error:
            print(f"smc: {error}", flush=True)
        os._exit(1)
    if os.waitpid(child, 0)[1]:
        raise OSError(f"SMC cannot be set up in namespace {name}")


def begin(kind):
    """Loads the module and tells it of both ends of that kind of device."""
    for name in (LATER / "order").read_text().split():
        world.command("insmod", str(LATER / name))
    Netlink("SMC_GEN_NETLINK").do(SMC_NETLINK_ADD_UEID, attribute(SMC_NLA_EID_TABLE_ENTRY, text("NETACC".ljust(EID_LENGTH))))
    for role in ("server", "client"):
        side, name = world.end(kind, role), attribute(SMC_PNETID_NAME, text(f"NET{role.upper()}"))
        Netlink("SMC_PNETID").do(SMC_PNETID_ADD, name + attribute(SMC_PNETID_IBNAME, text(side.device))
                                 + attribute(SMC_PNETID_IBPORT, b"\1"))
        in_namespace(side.namespace, lambda s=side, n=name: Netlink("SMC_PNETID").do(
            SMC_PNETID_ADD, n + attribute(SMC_PNETID_ETHNAME, text(s.netdev))))
