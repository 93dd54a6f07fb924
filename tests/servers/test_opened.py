"""Libraries: those that a program opens so that libc is found before NetACC, and those that the linker has found by odd paths."""

import glob
import os
import subprocess
import sys

from harness import equal, need
from matrix import case

LIBRARY = """
#include <sys/socket.h>
long lib_read(int fd, char *b, long n) { return recv(fd, b, n, 0); }
"""

# The libraries are in a folder that the program does not know: only what is called "middle" has it in its RUNPATH.
MIDDLE = """
#define _GNU_SOURCE
#include <dlfcn.h>
void *middle_open(const char *how, const char *name)
{
    if (how[0] == 'b')
        return dlmopen(LM_ID_BASE, name, RTLD_NOW | RTLD_DEEPBIND);
    return dlopen(name, RTLD_NOW | (how[0] == 'd' ? RTLD_DEEPBIND : 0));
}
"""

PROGRAM = """
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
void *middle_open(const char *how, const char *name);
int main(int argc, char **argv)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int c = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c, (void *)&a, sizeof a))
        return 2;
    void *h = argv[2][0] == 'n' ? dlmopen(LM_ID_NEWLM, argv[3], RTLD_NOW) : middle_open(argv[2], argv[3]);
    if (!h)
        return puts(dlerror()), 3;
    long (*lib_read)(int, char *, long) = (long (*)(int, char *, long))dlsym(h, "lib_read");
    char b[9] = "";
    long n = lib_read(c, b, 5);
    printf("%ld %s\\n", n, n < 0 ? strerror(errno) : b);
    // The program's own call on the same connection.
    send(c, "x", 1, 0);
    n = recv(c, b, 5, 0);
    printf("%ld\\n", n);
    return 0;
}
"""

SERVER = """
import socket, sys
l = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    c = l.accept()[0]
    c.sendall(b"hello")
    c.recv(1)
    c.sendall(b"again")
    c.close()
"""


def build(ctx):
    compiler = need(os.environ.get("CC", "cc"))
    (ctx.dir / "apart").mkdir()
    for name, source, target, *options in (
        ("library", LIBRARY, "apart/liblibrary.so", "-shared", "-fPIC"),
        ("middle", MIDDLE, "libmiddle.so", "-shared", "-fPIC", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/apart"),
        ("program", PROGRAM, "program", "-L", ctx.dir, "-lmiddle", f"-Wl,-rpath,{ctx.dir}"),
    ):
        path = ctx.file(f"{name}.c", source.encode())
        subprocess.run([compiler, "-o", ctx.dir / target, path, *options, "-ldl"], check=True, timeout=60)
    return ctx.dir / "program"


def reads(ctx, names):
    program = build(ctx)
    server = ctx.serve(lambda port: [sys.executable, "-c", SERVER, port])
    for how, name in names:
        text = ctx.run([program, server.port, how, name.format(ctx.dir)])
        equal(text, "5 hello\n5\n", f"what the program reads with {how} {name}")
    return server


@case(modes=("plain", "both"))
def found_and_followed(ctx):
    """RTLD_DEEPBIND, dlmopen(3) in the program's namespace; names that only RUNPATH and $ORIGIN of the caller lead to."""
    names = ("liblibrary.so", "$ORIGIN/apart/liblibrary.so", "{}/apart/liblibrary.so")
    server = reads(ctx, [(how, name) for how in ("plain", "deep", "base") for name in names])
    ctx.prove(server, accepts=9)


@case(modes=("plain", "both"))
def apart(ctx):
    """A library with a libc of its own reads what the program has connected."""
    reads(ctx, [("new", "{}/apart/liblibrary.so")])


# Looks libc's function up by a handle of libc, to call it from its own.
BEHIND = """
#include <dlfcn.h>
#include <stdio.h>
#include <sys/types.h>
ssize_t recv(int fd, void *b, size_t n, int flags)
{
    static ssize_t (*libcs)(int, void *, size_t, int);
    if (!libcs)
        libcs = dlsym(dlopen("libc.so.6", RTLD_NOW), "recv");
    static int calls;
    fprintf(stderr, "%d. call\\n", ++calls);
    return libcs(fd, b, n, flags);
}
"""

# Finds the next functions after its own, one of them inside malloc.
NEXT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/types.h>
static void *after(const char *name, void *own)
{
    void *next = dlsym(RTLD_NEXT, name);
    if (!next || next == own || dlerror())
        abort();
    return next;
}
ssize_t recv(int fd, void *b, size_t n, int flags)
{
    static ssize_t (*next)(int, void *, size_t, int);
    if (!next)
        next = after("recv", recv);
    return next(fd, b, n, flags);
}
void *malloc(size_t n)
{
    static void *(*next)(size_t);
    static int looks;
    // A look-up that allocates would come here once more.
    if (!next && looks++)
        abort();
    if (!next)
        next = after("malloc", malloc);
    return next(n);
}
"""

CTYPES = """
import ctypes, fcntl, os, socket, sys
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
libc = ctypes.CDLL(None if sys.argv[2] == "program" else sys.argv[2], use_errno=True)
b, fd = ctypes.create_string_buffer(64), c.fileno()
def call(name, *args):
    n = getattr(libc, name)(*args)
    return os.strerror(ctypes.get_errno()) if n < 0 else n
print(call("recv", fd, b, 5, 0), b.value.decode())
size = ctypes.c_uint(64)
name = ctypes.create_string_buffer(64)
print(call("getsockname", fd, name, ctypes.byref(size)), name.raw[2:4] == c.getsockname()[1].to_bytes(2, "big"))
print(call("fcntl", fd, fcntl.F_SETFL, os.O_NONBLOCK), fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK != 0)
print(call("fcntl", fd, fcntl.F_SETFL, 0))
copy = call("dup", fd)
print(call("close", c.detach()), call("send", copy, b"x", 1, 0), call("recv", copy, b, 5, 0), b.value.decode())
print(call("recv", copy, b, 5, 0), call("close", copy), call("close", copy))
"""


@case(modes=("plain", "both"))
def looked_up_by_handle(ctx):
    """ctypes calls libc's functions on a connection of the socket module."""
    server = ctx.serve(lambda port: [sys.executable, "-c", SERVER, port])
    for library in ("libc.so.6", "program"):
        text = ctx.run([sys.executable, "-c", CTYPES, server.port, library])
        equal(text, "5 hello\n0 True\n0 True\n0\n0 1 5 again\n0 0 Bad file descriptor\n", f"with {library}")
    ctx.prove(server, accepts=2)


@case(modes=("plain", "both"))
def looked_up_behind(ctx):
    """Preloaded libraries behind NetACC look functions up, by a handle of libc or as the next ones, and call them from their own."""
    program = build(ctx)
    compiler = need(os.environ.get("CC", "cc"))
    server = ctx.serve(lambda port: [sys.executable, "-c", SERVER, port])
    for name, source in (("behind", BEHIND), ("next", NEXT)):
        path = ctx.file(f"{name}.c", source.encode())
        library = ctx.dir / f"{name}.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-w", "-fno-builtin", "-o", library, path, "-ldl"], check=True, timeout=60)
        text = ctx.run([program, server.port, "plain", ctx.dir / "apart/liblibrary.so"], env={"LD_PRELOAD": library})
        equal(text, "5 hello\n5\n", f"what the program reads with {name}")


@case(modes=("both",))
def system_libraries_by_any_path(ctx):
    """A system library that the linker has found by a path with "..", or by a link, is no code of the program's own."""
    folder = os.path.dirname(glob.glob("/usr/lib*/*/libc.so.6")[0])
    server = ctx.serve(lambda port: ["redis-server", "--port", port, "--save", ""])
    link = ctx.dir / "link"
    link.symlink_to(folder)
    for path in (f"/usr/bin/../..{folder}", f"/{folder}", str(link)):
        equal(ctx.run(["redis-cli", "-p", server.port, "ping"], env={"LD_LIBRARY_PATH": path}), "PONG\n", path)
    ctx.prove(server, accepts=3)
