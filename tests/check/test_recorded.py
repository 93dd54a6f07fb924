"""Recorded hosts and the findings expected for them."""

import json

import hosts
from checking import HOSTS, ONE, ask, expect, run
from harness import check, equal, need
from matrix import case

# Host: exit status, and for each (subject, check) the level and the expected text.
VERDICTS = {
    "ec2-vif": (1, {
        ("eth0", "driver"): ("warn", "Xen para-virtual", "--sriov-net-support simple", "pin the interface's name first"),
        ("eth0", "name"): ("warn", "not pinned", "cannot be reached", "net.ifnames=0"),
        ("eth0", "module"): ("ok", "comes with the kernel"),
        ("host", "kernel"): ("fail", "no memfd"),
    }),
    "ec2-ixgbevf-2.12": (1, {
        ("eth0", "driver"): ("ok", "virtual function"),
        ("eth0", "version"): ("warn", "2.12.1-k; recommended is 2.14.2 or newer", "Amazon recommends", "DKMS"),
        ("eth0", "name"): ("ok", "net.ifnames=0"),
        ("eth0", "link"): ("ok", "10000 Mbit/s"),
        ("eth0", "image"): ("note", "not ready", "version", "sriovNetSupport"),
    }),
    # The driver has been built, and the host not been restarted since.
    "ec2-ixgbevf-pending": (1, {
        ("eth0", "version"): ("warn", "2.12.1-k runs, a newer one waits for a restart", "see 'module'"),
        ("eth0", "image"): ("note", "not ready", "version, module"),
    }),
    "ec2-ixgbevf-3.1": (1, {
        ("eth0", "version"): ("ok", "3.1.2"),
        # The older kernel has its own driver; it is not started again.
        ("eth0", "module"): ("ok", "built by DKMS for each new kernel"),
        ("eth0", "name"): ("ok",),
        ("eth0", "image"): ("ok", "ready to be saved", "sriovNetSupport"),
    }),
    "ec2-ena-express": (0, {
        ("ens5", "ena-express"): ("ok", "ENA Express is on", "97312 of 98020 packets"),
    }),
    "ec2-ena-express-off": (0, {
        ("ens5", "ena-express"): ("note", "ENA Express is off", "modify-network-interface-attribute", "netacc_bench"),
    }),
    "ec2-ena": (0, {
        ("ens5", "image"): ("ok", "ready to be saved", "enaSupport"),
        ("ens5", "driver"): ("ok", "Elastic Network Adapter"),
        ("ens5", "version"): ("ok", "the kernel's"),
        ("ens5", "name"): ("ok", "pinned by /etc/systemd/network/10-ens5.link"),
        ("ens5", "queues"): ("note", "2 of 4", "ethtool -L ens5 combined 4"),
        ("ens5", "coalescing"): ("note", "rx-usecs 64", "ethtool -C ens5 rx-usecs 0"),
        ("host", "rdma"): ("ok", "no RDMA device"),
    }),
    "alibaba-erdma": (1, {
        ("eth0", "driver"): ("ok", "Alibaba"),
        ("eth0", "rdma"): ("ok", "erdma_0 port 1: ACTIVE, LinkUp, Ethernet", "node RNIC"),
        ("host", "memlock"): ("warn", "64 KiB", "together 15 MiB", "ulimit -l unlimited"),
        ("host", "config"): ("warn", "/etc/netacc.conf:5: NACC_SOR_IO_THREADS"),
        ("host", "glibc"): ("note", "2.32"),
        ("host", "kernel"): ("note", "5.10.134", "epoll_pwait2"),
        ("host", "rdma-fork"): ("ok", "5.10.134", "RDMA is used"),
    }),
    "alibaba-erdma-compat": (0, {
        ("eth0", "erdma-mode"): ("note", "compat_mode=Y", "RDMA-CM", "/etc/modprobe.d"),
        ("host", "rdma-fork"): ("ok", "5.10.134", "RDMA is used"),
    }),
    "alibaba-erdma-down": (1, {
        ("eth0", "rdma"): ("warn", "erdma_0 port 1: DOWN, Disabled", "dmesg"),
        ("host", "memlock"): ("ok", "unlimited"),
        ("host", "config"): ("ok", "defaults"),
    }),
    "alibaba-plain": (0, {
        ("eth0", "rdma"): ("note", "no RDMA device on this interface", "ERI"),
    }),
    "azure-accelerated": (0, {
        ("eth0", "driver"): ("ok", "go by the function enP1s1"),
        ("enP1s1", "driver"): ("ok", "firmware 14.30.1284"),
        ("enP1s1", "name"): ("ok", "the addresses are on eth0"),
    }),
    "dkms-gone-wrong": (1, {
        ("eth0", "module"): ("warn", "not built for 5.15.0-101", "headers"),
        ("eth1", "module"): ("warn", "without DKMS"),
        ("eth1", "offloads"): ("note", "off: tso", "ethtool -K eth1 tso on"),
        ("eth2", "version"): ("note", "\"odd\" cannot be compared"),
        ("eth2", "module"): ("warn", "AUTOINSTALL"),
        ("eth3", "driver"): ("note", "rare_nic, which is not in the table", "--drivers"),
        ("eth3", "link"): ("note", "down"),
    }),
    "vm-virtio": (1, {
        ("eth0", "driver"): ("ok", "virtio network (paravirtual)"),
        ("eth0", "module"): ("ok", "part of the kernel"),
        ("host", "library"): ("warn", "make install", "ldconfig"),
        ("host", "interfaces"): ("ok", "ifb0"),
    }),
    "container-confined": (1, {
        ("host", "facts"): ("note", "/sys/class/net: Permission denied"),
        ("host", "kernel"): ("fail", "no memfd"),
        ("host", "container"): ("note", "Kubernetes"),
        ("host", "nofile"): ("warn", "64"),
        ("host", "address-space"): ("warn", "100 MiB"),
        ("host", "memory"): ("warn", "32 MiB"),
        ("host", "ipv6"): ("ok", "off"),
    }),
}


@case(modes=ONE)
def verdicts(ctx):
    """Every recorded host is judged as the table says."""
    equal(sorted(VERDICTS), sorted(p.stem for p in HOSTS.glob("*.json")), "hosts and verdicts")
    for name, (status, lines) in VERDICTS.items():
        answer = ask(ctx, "--facts", HOSTS / f"{name}.json")
        equal(answer.status, status, f"status of {name}")
        for (subject, what), (level, *parts) in lines.items():
            expect(answer.one(subject, what), level, *parts)


@case(modes=ONE)
def kernels_for_rdma(ctx):
    """From 5.9 on what a device has of a program is copied when that forks; without a device nothing depends on it."""
    recorded = json.loads((HOSTS / "alibaba-erdma.json").read_text())
    for kernel, level, text in (("5.8.18", "warn", "stay on TCP"), ("4.18.0-553.el8_10.x86_64", "warn", "stay on TCP"),
                                ("5.9.0", "ok", "RDMA is used"), ("6.18.44", "ok", "RDMA is used")):
        facts = ctx.file("host.json", json.dumps({**recorded, "kernel": kernel}).encode())
        expect(ask(ctx, "--facts", facts).one("host", "rdma-fork"), level, kernel, text)
    equal(ask(ctx, "--facts", HOSTS / "alibaba-plain.json").all("host", "rdma-fork"), [], "without a device")


@case(modes=ONE)
def a_driver_that_waits_for_a_restart(ctx):
    """It is distinguished from an old one by its version, or by its sources' checksum if the version is equal."""
    recorded = json.loads((HOSTS / "ec2-ixgbevf-pending.json").read_text())
    for change, level, texts in (
            ({}, "warn", ("ixgbevf 3.1.2 is in place", "2.12.1-k runs", "restart the host")),
            ({"file_version": "2.12.1-k"}, "warn", ("another build of ixgbevf", "restart")),
            ({"file_version": "2.13.0"}, "warn", ("2.13.0 is in place", "older than recommended"))):
        recorded["interfaces"][0]["module"].update(change)
        answer = ask(ctx, "--facts", ctx.file("host.json", json.dumps(recorded).encode()))
        waiting = [f for f in answer.all("eth0", "module") if "waits for a restart" in f["text"]]
        equal(len(waiting), 1, f"findings with {change}")
        expect(waiting[0], level, *texts)
    recorded["interfaces"][0]["module"].update(file_version="2.12.1-k", file_srcversion="5A1B0D1C9E1D4A7F2B33C61")
    answer = ask(ctx, "--facts", ctx.file("host.json", json.dumps(recorded).encode()))
    expect(answer.one("eth0", "module"), "ok", "comes with the kernel")
    expect(answer.one("eth0", "version"), "warn", "recommended is 2.14.2", "DKMS")


@case(modes=ONE)
def ports_for_rdma(ctx):
    """P + 20000 of each listener: free, taken by another listener, or no port."""
    found = ask(ctx, "--facts", HOSTS / "alibaba-erdma.json").all("host", "ports")
    equal([f["level"] for f in found], ["note", "note", "ok"], "levels")
    expect(found[0], "note", "listener 6379", "26379")
    expect(found[1], "note", "listener 50000", "70000 is no port")


@case(modes=ONE)
def one_interface(ctx):
    """The study's test: has this host the right driver?"""
    for name, interface, status in (("ec2-vif", "eth0", 1), ("ec2-ixgbevf-2.12", "eth0", 1),
                                    ("ec2-ixgbevf-3.1", "eth0", 0), ("ec2-ena", "ens5", 0)):
        answer = ask(ctx, "-i", interface, "--facts", HOSTS / f"{name}.json")
        equal(answer.status, status, f"status of {name}")
        equal({f["subject"] for f in answer.findings()}, {interface}, "subjects")
    answer = ask(ctx, "-i", "eth7", "--facts", HOSTS / "ec2-vif.json")
    equal(answer.status, 1, "status for an interface that is not there")
    expect(answer.one("eth7", "interface"), "fail", "name one of: eth0")


@case(modes=ONE)
def this_machine(ctx):
    """The present machine is checked for real, and its recording is judged the same."""
    live = ask(ctx)
    check(live.status in (0, 1) and not live.err, f"status {live.status}: {live.err}")
    for name in ("machine", "kernel", "glibc", "memlock", "nofile", "library"):
        live.one("host", name)
    recorded = run(ctx, "--record")
    equal((recorded.status, recorded.err), (0, ""), "recording")
    again = ask(ctx, "--facts", ctx.file("recorded.json", recorded.out.encode()))
    # Another test may listen meanwhile, and links go up and down.
    equal(lasting(again), lasting(live), "the recording")


@case(modes=ONE)
def interfaces_without_a_device(ctx):
    """A pair of virtual interfaces is skipped, and shown on request; the kernel is really queried."""
    hosts.need_root()
    a, b = hosts.Host(ctx), hosts.Host(ctx)
    hosts.cable(a, b, "veth0", "10.9.8.1/24", "10.9.8.2/24")
    # sysfs shows the network namespace of the process that mounted it.
    within = [*a.within, need("unshare"), "--mount", "sh", "-c", 'mount -t sysfs sysfs /sys && exec "$@"', "sh"]
    expect(ask(ctx, within=within).one("host", "interfaces"), "ok", "not looked at: veth0")
    found = ask(ctx, "-a", within=within)
    expect(found.one("veth0", "driver"), "ok", "veth: pair of a container", "(virtual)")
    expect(found.one("veth0", "link"), "ok", "up, MTU 1500")
    expect(ask(ctx, "-i", "veth0", within=within).one("veth0", "driver"), "ok")


def lasting(answer):
    return [f for f in answer.findings() if f["check"] not in ("ports", "link")]
