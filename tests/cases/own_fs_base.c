// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
/* A thread sets another FS base, by an instruction and by a call, and touches memory that is not in RAM. Between, it
   makes system calls. One asks for the base, and one forks: nothing is written near the other base. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { LEN = 64 << 20, PAGE = 4096, HAS_INSTRUCTIONS = 1 << 1, SET_FS = 0x1002, GET_FS = 0x1003 };

static char other[2 * PAGE] __attribute__((aligned(4096)));

static long call(long number, unsigned long first, unsigned long second) {
    register long fourth asm("r10") = 0;
    asm volatile("syscall" : "+a"(number) : "D"(first), "S"(second), "d"(0), "r"(fourth) : "rcx", "r11", "memory");
    return number;
}

__attribute__((target("fsgsbase"), optimize("no-stack-protector"), noinline))
static long sum(const volatile char *bytes, int by_call) {
    unsigned long own = _readfsbase_u64(), base = (unsigned long)other + PAGE;
    long sum = 0;
    if (by_call) call(SYS_arch_prctl, SET_FS, base);
    else _writefsbase_u64(base);
    for (size_t at = 0; at < LEN; at += PAGE) sum += bytes[at] + (call(SYS_getpid, 0, 0) <= 0);
    int is_kept = _readfsbase_u64() == base;
    _writefsbase_u64(own);
    return is_kept ? sum : -1;
}

/* Returns the status of a child that was forked with another base, and asked for it there. */
__attribute__((target("fsgsbase"), optimize("no-stack-protector"), noinline))
static long child_status(void) {
    unsigned long own = _readfsbase_u64(), base = (unsigned long)other + PAGE, told = 0, in_child = 0;
    static int status;
    _writefsbase_u64(base);
    long got = call(SYS_arch_prctl, GET_FS, (unsigned long)&told) + (call(SYS_arch_prctl, GET_FS, 0) != -14);
    long child = call(SYS_fork, 0, 0);
    if (child == 0) {
        call(SYS_arch_prctl, GET_FS, (unsigned long)&in_child);
        call(SYS_exit_group, in_child == base && _readfsbase_u64() == base ? 7 : 8, 0);
    }
    call(SYS_wait4, child, (unsigned long)&status);
    int is_kept = _readfsbase_u64() == base && told == base && got == 0 && child > 0;
    _writefsbase_u64(own);
    is_kept &= call(SYS_arch_prctl, GET_FS, (unsigned long)&told) == 0 && told == own;
    for (size_t at = 0; at < sizeof other; at++) is_kept &= other[at] == 0;
    return is_kept ? status : -1;
}

int main(void) {
    if (!(getauxval(AT_HWCAP2) & HAS_INSTRUCTIONS)) return puts("no instruction sets it here\nok"), 0;
    char *bytes = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(bytes, 1, LEN);
    for (int by_call = 0; by_call < 2; by_call++)
        if (child_status() != 7 << 8 || sum(bytes, by_call) != LEN / PAGE) return puts("wrong"), 1;
    puts("ok");
    return 0;
}
