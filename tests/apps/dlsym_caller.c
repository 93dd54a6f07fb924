// What dlsym(3) finds depends on the caller, and a program may look functions up before main, inside malloc, and for a function of its
// own that the linker's walk goes through.
#include "t.h"
#include <dlfcn.h>
#include <link.h>
static void *libc_handle(void)
{
	void *h = dlopen("libc.so.6", RTLD_NOW);
	return h ? h : dlopen("libc.so", RTLD_NOW); // musl
}
// Sanitizers and some databases wrap this function in the same way: the first call looks the next definition up.
static int walks;
int dl_iterate_phdr(int (*visit)(struct dl_phdr_info *, size_t, void *), void *data)
{
	static int (*next)(int (*)(struct dl_phdr_info *, size_t, void *), void *);
	walks++;
	if (!next)
		next = (__typeof__(next))dlsym(RTLD_NEXT, "dl_iterate_phdr");
	return next(visit, data);
}
static int allocations;
void *malloc(size_t n)
{
	static void *(*next)(size_t);
	allocations++;
	if (!next)
		next = (__typeof__(next))dlsym(RTLD_NEXT, "malloc");
	return next(n);
}
static void *early;
__attribute__((constructor(101))) static void before_main(void)
{
	early = dlsym(libc_handle(), "recv");
}
static int count(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	++*(int *)data;
	return info->dlpi_phdr == NULL;
}
int main(void)
{
	t_init();
	int p[2], n = 0;
	char b[4];
	EQ(dlerror(), NULL);
	void *h = libc_handle(), *volatile memory = malloc(100);
	CHECK(memory && allocations > 0 && early);
	EQ(early, dlsym(h, "recv"));
	// What goes past the connection would find nothing.
	pair(p);
	expect_shm(p[0]);
	send_all(p[0], "1234", 4);
	EQ(((__typeof__(&recv))early)(p[1], b, 4, 0), 4);
	// The next one after the program is not the program's.
	CHECK(dlsym(RTLD_NEXT, "malloc") && dlsym(RTLD_NEXT, "malloc") != (void *)malloc);
	CHECK(dlsym(RTLD_NEXT, "dl_iterate_phdr") != (void *)dl_iterate_phdr);
	EQ(dlsym(h, "malloc"), dlsym(RTLD_NEXT, "malloc"));
	EQ(dlsym(RTLD_DEFAULT, "malloc"), malloc);
	EQ(dlsym(RTLD_NEXT, "recv"), dlsym(RTLD_DEFAULT, "recv"));
	EQ(dl_iterate_phdr(count, &n), 0);
	CHECK(n > 1 && walks > 0);
	// A successful look-up leaves no error for dlerror(3), and a failed one leaves one.
	CHECK(dlsym(h, "getauxval") && dlsym(h, "sendmmsg") && dlsym(h, "strlen") && dlsym(RTLD_DEFAULT, "recv"));
	EQ(dlerror(), NULL);
	EQ(dlsym(h, "netacc_exchange"), NULL);
	CHECK(dlerror());
	EQ(dlerror(), NULL);
	EQ(dlsym(RTLD_NEXT, "there_is_no_such_function"), NULL);
	CHECK(dlerror());
	return t_ok("dlsym_caller");
}
