// host: the guest's connection to the machine that runs QEMU. Arm semihosting from user space: needs no driver,
// device or module on any kernel. Names are relative to QEMU's working directory.
//
//   host put NAME   standard input to the file NAME
//   host out|err    standard input to QEMU's own standard output or error, as it arrives
//   host exit       QEMU ends
//
// Freestanding (no libc), so that any compiler for AArch64 builds it. QEMU must be started with
// -semihosting-config enable=on,userspace=on,target=native; buffers must be resident when it reads them.
#include <stddef.h>

enum { SYS_READ = 63, SYS_WRITE = 64, SYS_EXIT = 93, SYS_MLOCKALL = 230 };
enum { HOST_OPEN = 1, HOST_CLOSE = 2, HOST_WRITE = 5, HOST_EXIT = 0x18, MODE_WRITE = 5, MODE_OUT = 4, MODE_ERR = 8 };
enum { APPLICATION_EXIT = 0x20026 };

// Not all zero: 5.10 cannot load a program whose writable part is not in the file at all.
static char buffer[1 << 15] = { 1 };

static long linux_call(long number, long a, long b, long c)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
	return x0;
}

static long host_call(long number, const volatile void *argument)
{
	register long x0 __asm__("x0") = number;
	register const volatile void *x1 __asm__("x1") = argument;
	__asm__ volatile("hlt #0xf000" : "+r"(x0) : "r"(x1) : "memory");
	return x0;
}

static long length(const char *text)
{
	long n = 0;
	while (text[n])
		n++;
	return n;
}

static int same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static _Noreturn void leave(long code)
{
	for (;;)
		linux_call(SYS_EXIT, code, 0, 0);
}

static _Noreturn void fail(const char *why)
{
	linux_call(SYS_WRITE, 2, (long)why, length(why));
	leave(1);
}

static void copy(const char *name, long mode)
{
	volatile long open[3] = { (long)name, mode, length(name) };
	long handle = host_call(HOST_OPEN, open);
	if (handle < 0)
		fail("host: the file cannot be written\n");
	for (;;) {
		long n = linux_call(SYS_READ, 0, (long)buffer, sizeof buffer);
		if (n < 0)
			fail("host: standard input cannot be read\n");
		if (n == 0)
			break;
		volatile long write[3] = { handle, (long)buffer, n };
		// Returns the number of bytes not written.
		if (host_call(HOST_WRITE, write) != 0)
			fail("host: not all was written\n");
	}
	volatile long close[1] = { handle };
	host_call(HOST_CLOSE, close);
}

static void touch(volatile char *bytes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		bytes[i] = 1;
}

// The stack as the kernel leaves it: the number of arguments, then their addresses.
__attribute__((used)) _Noreturn void begin(long *stack)
{
	const char **arguments = (const char **)(stack + 1);
	if (linux_call(SYS_MLOCKALL, 3, 0, 0) != 0)
		fail("host: memory cannot be locked\n");
	touch(buffer, sizeof buffer);
	if (stack[0] == 3 && same(arguments[1], "put"))
		copy(arguments[2], MODE_WRITE);
	else if (stack[0] == 2 && same(arguments[1], "out"))
		copy(":tt", MODE_OUT);
	else if (stack[0] == 2 && same(arguments[1], "err"))
		copy(":tt", MODE_ERR);
	else if (stack[0] == 2 && same(arguments[1], "exit")) {
		volatile long why[2] = { APPLICATION_EXIT, 0 };
		host_call(HOST_EXIT, why);
	} else
		fail("usage: host put NAME | out | err | exit\n");
	leave(0);
}

__asm__(".globl _start\n_start:\n\tmov x0, sp\n\tbl begin\n");
