"""A program that gains rights when it is executed (AT_SECURE) runs as if the library were absent, whatever its caller says."""

import os
import pwd
import subprocess

import harness
from harness import check, equal
from matrix import case

# Bytes between two sockets of one process, and a line for each file that it has open.
PROGRAM = """
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <stdio.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <unistd.h>

int main(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof a;
	char byte = 'a', target[256];
	int l = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(l, (void *)&a, length) || listen(l, 4) || getsockname(l, (void *)&a, &length)) return 2;
	if (connect(c, (void *)&a, length) || send(c, &byte, 1, 0) != 1) return 3;
	int s = accept(l, 0, 0);
	if (recv(s, &byte, 1, 0) != 1) return 4;
	printf("secure %d\\n", getauxval(AT_SECURE) != 0);
	DIR *d = opendir("/proc/self/fd");
	for (struct dirent *e; d && (e = readdir(d));) {
		ssize_t n = readlinkat(dirfd(d), e->d_name, target, sizeof target - 1);
		if (n > 0) printf("open %.*s\\n", (int)n, target);
	}
	return 0;
}
"""


def made(ctx, mode):
    """The program, linked with the library, as a loader preloads it everywhere by /etc/ld.so.preload."""
    check(os.getuid() == 0, "root alone can make a program that gains rights")
    ctx.open_launcher()
    source, program = ctx.file("gains.c", PROGRAM.encode()), ctx.dir / "gains"
    library = ctx.dir / "netacc" / "libnetacc-preload.so"
    subprocess.run([harness.need("gcc"), "-o", program, source, "-Wl,--no-as-needed", library], check=True)
    program.chmod(mode)
    return program


def run(ctx, program, **settings):
    env = {"NACC_LOG_LEVEL": 0, **settings}
    return ctx.run([program], role=None, user=pwd.getpwnam("nobody"), readable=True, env=env).splitlines()


def protected(ctx):
    """A folder that nobody but root may enter."""
    folder = ctx.dir / "root_only"
    folder.mkdir(mode=0o700)
    return folder


@case(modes=("plain",))
def environment_is_not_read(ctx):
    folder, program = protected(ctx), made(ctx, 0o4755)
    rules = ctx.file("netacc.conf", f"NACC_LOG_LEVEL=DEBUG\nNACC_LOG_PATH={folder}/by_file\n".encode())
    log = f"NACC_LOG_LEVEL=DEBUG;NACC_LOG_PATH={folder}/by_command"
    found = run(ctx, program, NACC_LOG_PATH=folder / "by_variable", NACC_CONFIG_FILE=rules)
    found += run(ctx, program, NACC_CMDLINE=log)
    equal(found.count("secure 1"), 2, "runs that gained rights")
    equal([entry.name for entry in folder.iterdir()], [], "files that root made for its caller")
    check(not [line for line in found if "netacc" in line], "the library has opened something")


@case(modes=("plain",))
def same_program_without_rights_is_accelerated(ctx):
    found = run(ctx, made(ctx, 0o755))
    check("secure 0" in found and any("netacc-stats" in line for line in found), "the library does nothing")
