/* The kernel's sockmap redirection for the programs of one cgroup, to compare NetACC with it.
 *
 *   sockmap CGROUP
 *
 * The program makes the cgroup (a folder of a cgroup2 mount), prints "ready", and answers each line on its standard
 * input with "REDIRECTED BYTES PASSED": the messages and bytes that were redirected so far, and the messages that TCP
 * carried. When its standard input ends, as it does when its parent dies, it kills what is left in the cgroup and
 * removes it. The BPF programs and maps belong to its descriptors, so they are gone with it, however it ends.
 *
 * A SOCK_OPS program puts both ends of each connection into SOCKHASHes, one of clients' and one of servers' ends. It
 * leaves out IPv6 sockets. The key of both ends is the client's address and port: a translation of the server's address
 * (DNAT) does not change it. An SK_MSG program redirects each message that one end sends to the receive queue of the
 * other end.
 *
 * The client's end is in its map before the client can send; the server's end gets there with the handshake's last
 * packet, perhaps after the client's first message. TCP carries that message, and a redirected one would overtake it.
 * So the map `on_tcp` has such connections, which stay on TCP. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/bpf.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CLIENT, SERVER };
enum { MOST_CONNECTIONS = 65536, KEY = -8, KEY_SIZE = 8, REMOVAL_TRIES = 500 };

/* The one element of the map `counts`. Each end writes a cache line of its own for each message. */
struct counts {
	struct {
		uint64_t messages, bytes, padding[6];
	} redirected[2];
	uint64_t passed[2];  /* messages that TCP carried */
};

static const char *cgroup;
static char kill_file[PATH_MAX];
static int ends[2], on_tcp, counts;

static void fail(const char *format, ...)
{
	int error = errno;
	va_list words;

	fputs("sockmap: ", stderr);
	va_start(words, format);
	vfprintf(stderr, format, words);
	va_end(words);
	fprintf(stderr, ": %s\n", strerror(error));
	exit(1);
}

/* Instructions. The kernel's own macros for them are in include/linux/filter.h, which is not installed. */
#define INSN(c, d, s, o, i) ((struct bpf_insn){ .code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i) })
#define MOV(d, s) INSN(BPF_ALU64 | BPF_MOV | BPF_X, d, s, 0, 0)
#define MOV_IMM(d, i) INSN(BPF_ALU64 | BPF_MOV | BPF_K, d, 0, 0, i)
#define ADD_IMM(d, i) INSN(BPF_ALU64 | BPF_ADD | BPF_K, d, 0, 0, i)
#define TO_BE32(d) INSN(BPF_ALU | BPF_END | BPF_TO_BE, d, 0, 0, 32)
#define LOAD(size, d, s, o) INSN(BPF_LDX | BPF_MEM | (size), d, s, o, 0)
#define STORE(size, d, o, s) INSN(BPF_STX | BPF_MEM | (size), d, s, o, 0)
#define ATOMIC_ADD(d, o, s) INSN(BPF_STX | BPF_ATOMIC | BPF_DW, d, s, o, BPF_ADD)
#define JUMP(o) INSN(BPF_JMP | BPF_JA, 0, 0, o, 0)
#define JUMP_EQ(d, i, o) INSN(BPF_JMP | BPF_JEQ | BPF_K, d, 0, o, i)
#define JUMP_NE(d, i, o) INSN(BPF_JMP | BPF_JNE | BPF_K, d, 0, o, i)
#define CALL(f) INSN(BPF_JMP | BPF_CALL, 0, 0, 0, f)
#define EXIT() INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)
/* These two take the place of two instructions. */
#define MAP(d, fd) INSN(BPF_LD | BPF_DW | BPF_IMM, d, BPF_PSEUDO_MAP_FD, 0, fd), INSN(0, 0, 0, 0, 0)
#define MAP_VALUE(d, fd, at) INSN(BPF_LD | BPF_DW | BPF_IMM, d, BPF_PSEUDO_MAP_VALUE, 0, fd), INSN(0, 0, 0, 0, at)
#define KEY_ADDRESS(d) MOV(d, BPF_REG_10), ADD_IMM(d, KEY)
#define STORE_KEY(ip, port) STORE(BPF_W, BPF_REG_10, KEY, ip), STORE(BPF_W, BPF_REG_10, KEY + 4, port)

static int bpf(int command, union bpf_attr *attr)
{
	return (int)syscall(SYS_bpf, command, attr, sizeof *attr);
}

static int map(const char *what, int type, unsigned key_size, unsigned value_size, unsigned entries)
{
	union bpf_attr attr = { .map_type = type, .key_size = key_size, .value_size = value_size, .max_entries = entries };
	int fd = bpf(BPF_MAP_CREATE, &attr);

	if (fd < 0)
		fail("the kernel makes no %s", what);
	return fd;
}

static int load(const char *what, int type, int attach_type, const struct bpf_insn *code, size_t size)
{
	union bpf_attr attr = {
		.prog_type = type,
		.expected_attach_type = attach_type,
		.insns = (uintptr_t)code,
		.insn_cnt = size / sizeof *code,
		.license = (uintptr_t)"Apache-2.0",
	};
	int fd = bpf(BPF_PROG_LOAD, &attr);

	if (fd < 0)
		fail("the kernel refuses the %s program", what);
	return fd;
}

/* Puts the end of a connection that is established now into its map. */
static int load_sock_ops(void)
{
#define FIELD(d, name) LOAD(BPF_W, d, BPF_REG_6, offsetof(struct bpf_sock_ops, name))
	const struct bpf_insn code[] = {
		MOV(BPF_REG_6, BPF_REG_1),
		FIELD(BPF_REG_0, family),
		JUMP_NE(BPF_REG_0, AF_INET, 27),  /* out */
		FIELD(BPF_REG_0, op),
		JUMP_NE(BPF_REG_0, BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, 12),  /* passive */
		FIELD(BPF_REG_2, local_ip4),
		FIELD(BPF_REG_3, local_port),
		STORE_KEY(BPF_REG_2, BPF_REG_3),
		MAP(BPF_REG_1, on_tcp),  /* an earlier connection from this port may have left its key */
		KEY_ADDRESS(BPF_REG_2),
		CALL(BPF_FUNC_map_delete_elem),
		MAP(BPF_REG_2, ends[CLIENT]),
		JUMP(8),  /* put */
	/* passive: */
		JUMP_NE(BPF_REG_0, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, 12),  /* out */
		FIELD(BPF_REG_2, remote_ip4),
		FIELD(BPF_REG_3, remote_port),
		TO_BE32(BPF_REG_3),
		STORE_KEY(BPF_REG_2, BPF_REG_3),
		MAP(BPF_REG_2, ends[SERVER]),
	/* put: */
		MOV(BPF_REG_1, BPF_REG_6),
		KEY_ADDRESS(BPF_REG_3),
		MOV_IMM(BPF_REG_4, BPF_ANY),
		CALL(BPF_FUNC_sock_hash_update),
	/* out: */
		MOV_IMM(BPF_REG_0, 1),
		EXIT(),
	};
#undef FIELD
	return load("SOCK_OPS", BPF_PROG_TYPE_SOCK_OPS, BPF_CGROUP_SOCK_OPS, code, sizeof code);
}

/* Redirects the messages that the ends in a map send, and counts them. */
static int load_sk_msg(int side)
{
#define FIELD(d, name) LOAD(BPF_W, d, BPF_REG_6, offsetof(struct sk_msg_md, name))
	const struct bpf_insn code[] = {
		MOV(BPF_REG_6, BPF_REG_1),
		side == CLIENT ? FIELD(BPF_REG_2, local_ip4) : FIELD(BPF_REG_2, remote_ip4),
		side == CLIENT ? FIELD(BPF_REG_3, local_port) : FIELD(BPF_REG_3, remote_port),
		side == CLIENT ? MOV(BPF_REG_3, BPF_REG_3) : TO_BE32(BPF_REG_3),
		STORE_KEY(BPF_REG_2, BPF_REG_3),
		MAP_VALUE(BPF_REG_7, counts, offsetof(struct counts, redirected[side])),
		MAP_VALUE(BPF_REG_8, counts, offsetof(struct counts, passed)),
		LOAD(BPF_DW, BPF_REG_0, BPF_REG_8, 8 * CLIENT),
		JUMP_EQ(BPF_REG_0, 0, 6),  /* redirect: so far no client was too early */
		MAP(BPF_REG_1, on_tcp),
		KEY_ADDRESS(BPF_REG_2),
		CALL(BPF_FUNC_map_lookup_elem),
		JUMP_NE(BPF_REG_0, 0, 15),  /* passed */
	/* redirect: */
		MOV(BPF_REG_1, BPF_REG_6),
		MAP(BPF_REG_2, ends[!side]),
		KEY_ADDRESS(BPF_REG_3),
		MOV_IMM(BPF_REG_4, BPF_F_INGRESS),
		CALL(BPF_FUNC_msg_redirect_hash),
		JUMP_EQ(BPF_REG_0, SK_PASS, 10),  /* redirected */
		MAP(BPF_REG_1, on_tcp),
		KEY_ADDRESS(BPF_REG_2),
		MOV(BPF_REG_3, BPF_REG_2),  /* the value does not matter */
		MOV_IMM(BPF_REG_4, BPF_ANY),
		CALL(BPF_FUNC_map_update_elem),
	/* passed: */
		MOV_IMM(BPF_REG_1, 1),
		ATOMIC_ADD(BPF_REG_8, 8 * side, BPF_REG_1),
		JUMP(4),  /* out */
	/* redirected: */
		MOV_IMM(BPF_REG_1, 1),
		ATOMIC_ADD(BPF_REG_7, 0, BPF_REG_1),
		FIELD(BPF_REG_1, size),
		ATOMIC_ADD(BPF_REG_7, 8, BPF_REG_1),
	/* out: */
		MOV_IMM(BPF_REG_0, SK_PASS),
		EXIT(),
	};
#undef FIELD
	return load("SK_MSG", BPF_PROG_TYPE_SK_MSG, BPF_SK_MSG_VERDICT, code, sizeof code);
}

static void start(void)
{
	int sock_ops;

	/* Before Linux 5.11, maps counted as locked memory. */
	setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ RLIM_INFINITY, RLIM_INFINITY });
	for (int side = CLIENT; side <= SERVER; side++)
		ends[side] = map("SOCKHASH (CONFIG_BPF_STREAM_PARSER)", BPF_MAP_TYPE_SOCKHASH, KEY_SIZE, sizeof(int),
				 MOST_CONNECTIONS);
	on_tcp = map("HASH", BPF_MAP_TYPE_HASH, KEY_SIZE, KEY_SIZE, MOST_CONNECTIONS);
	counts = map("ARRAY", BPF_MAP_TYPE_ARRAY, sizeof(int), sizeof(struct counts), 1);
	sock_ops = load_sock_ops();
	for (int side = CLIENT; side <= SERVER; side++) {
		union bpf_attr attr = {
			.target_fd = ends[side],
			.attach_bpf_fd = load_sk_msg(side),
			.attach_type = BPF_SK_MSG_VERDICT,
		};

		if (bpf(BPF_PROG_ATTACH, &attr) < 0)
			fail("the kernel attaches no SK_MSG program");
	}
	if (mkdir(cgroup, 0755) < 0)
		fail("%s cannot be made", cgroup);
	union bpf_attr link = { .link_create = { .prog_fd = sock_ops, .attach_type = BPF_CGROUP_SOCK_OPS } };
	link.link_create.target_fd = open(cgroup, O_RDONLY | O_DIRECTORY);
	if (bpf(BPF_LINK_CREATE, &link) < 0) {
		int error = errno;

		rmdir(cgroup);
		errno = error;
		fail("the kernel attaches no SOCK_OPS program to a cgroup (CONFIG_CGROUP_BPF)");
	}
}

/* Ends the program, also as a signal handler. */
static void leave(int number)
{
	int fd = open(kill_file, O_WRONLY);

	(void)number;
	if (fd >= 0 && write(fd, "1", 1) != 1)
		_exit(1);
	for (int i = 0; i < REMOVAL_TRIES && rmdir(cgroup) < 0 && errno == EBUSY; i++)
		usleep(10000);
	_exit(0);
}

static void answer(void)
{
	struct counts found;
	union bpf_attr attr = { .map_fd = counts, .key = (uintptr_t)&(int){ 0 }, .value = (uintptr_t)&found };

	if (bpf(BPF_MAP_LOOKUP_ELEM, &attr) < 0)
		fail("the counts cannot be read");
	printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", found.redirected[CLIENT].messages + found.redirected[SERVER].messages,
	       found.redirected[CLIENT].bytes + found.redirected[SERVER].bytes, found.passed[CLIENT] + found.passed[SERVER]);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	char line[64];

	if (argc != 2) {
		fprintf(stderr, "usage: sockmap CGROUP\n");
		return 2;
	}
	cgroup = argv[1];
	snprintf(kill_file, sizeof kill_file, "%s/cgroup.kill", cgroup);
	/* A parent that is killed must not take this program with it before it has removed the cgroup. */
	prctl(PR_SET_PDEATHSIG, 0);
	for (int i = 0; i < 4; i++)
		signal((int[]){ SIGTERM, SIGINT, SIGHUP, SIGPIPE }[i], leave);
	start();
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin))
		answer();
	leave(0);
}
