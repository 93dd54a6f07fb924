/* Preloaded: counts the verbs calls of a process that never go to the kernel, into a file that others can read meanwhile,
 * $NETACC_COUNT_VERBS/PID. ibv_post_send and its like are inline functions that call through a table in the device's
 * context; librdmacm opens devices by ibv_open_device, so that is where the table is found. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* In the order in which they stand in the file. */
struct counts {
	_Atomic uint64_t sends, receives, polls, empty_polls, arms, completions;
};

static struct counts nowhere;
static struct counts *counts = &nowhere;

/* The tables as they were: a process may open several devices, of several kinds. */
enum { MOST_CONTEXTS = 64 };
static struct {
	struct ibv_context *context;
	struct ibv_context_ops ops;
} opened[MOST_CONTEXTS];
static _Atomic int opened_count;

static struct ibv_context_ops *real(struct ibv_context *context)
{
	/* From the last one: the memory of a closed one may have been given out again. */
	for (int i = opened_count - 1; i >= 0; i--)
		if (opened[i].context == context)
			return &opened[i].ops;
	abort();
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	counts->sends++;
	return real(qp->context)->post_send(qp, wr, bad);
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	counts->receives++;
	return real(qp->context)->post_recv(qp, wr, bad);
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
	int found = real(cq->context)->poll_cq(cq, most, wc);

	counts->polls++;
	if (found > 0)
		counts->completions += (uint64_t)found;
	else
		counts->empty_polls++;
	return found;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
	counts->arms++;
	return real(cq->context)->req_notify_cq(cq, solicited);
}

static void begin(void)
{
	const char *folder = getenv("NETACC_COUNT_VERBS");
	char path[4096];
	void *map;
	int fd;

	if (!folder || counts != &nowhere)
		return;
	snprintf(path, sizeof path, "%s/%d", folder, getpid());
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof *counts))
		abort();
	map = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		abort();
	close(fd);
	counts = map;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	/* The caller has loaded it, though perhaps not where RTLD_NEXT looks. */
	void *library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
	struct ibv_context *(*open_device)(struct ibv_device *) =
		library ? (struct ibv_context *(*)(struct ibv_device *))dlsym(library, "ibv_open_device") : NULL;
	struct ibv_context *context = open_device ? open_device(device) : NULL;

	if (!context)
		return NULL;
	begin();
	if (opened_count == MOST_CONTEXTS)
		abort();
	opened[opened_count].context = context;
	opened[opened_count].ops = context->ops;
	opened_count++;
	context->ops.post_send = post_send;
	context->ops.post_recv = post_recv;
	context->ops.poll_cq = poll_cq;
	context->ops.req_notify_cq = req_notify_cq;
	return context;
}
