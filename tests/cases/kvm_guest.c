// EXPECT: exit 0, last line "ok"
// NEEDS: device:/dev/kvm
// A KVM guest, whose memory the kernel touches: it writes to each of its pages, and sums them up. The program's own
// memory beside it leaves RAM and comes back.
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#define MIB (1ul << 20)
#define PAGE 4096ul
#define GUEST_BYTES (64 * MIB)
#define OTHER_BYTES (200 * MIB)
#define CHECK(right) \
    if (!(right)) \
        return printf("line %d: %m\n", __LINE__), 1

// For each page from 1 to 64 MiB: its address is written to it. Then eax is their sum.
static const unsigned char code[] = {
    0xbb, 0, 0, 0x10, 0,        // mov ebx, 1 MiB
    0x89, 0x1b,                 // mov [ebx], ebx
    0x81, 0xc3, 0, 0x10, 0, 0,  // add ebx, 4096
    0x81, 0xfb, 0, 0, 0, 4,     // cmp ebx, 64 MiB
    0x72, 0xf0,                 // jb back to the second
    0xbb, 0, 0, 0x10, 0,        // mov ebx, 1 MiB
    0x31, 0xc0,                 // xor eax, eax
    0x03, 0x03,                 // add eax, [ebx]
    0x81, 0xc3, 0, 0x10, 0, 0,  // add ebx, 4096
    0x81, 0xfb, 0, 0, 0, 4,     // cmp ebx, 64 MiB
    0x72, 0xf0,                 // jb back to the add
    0xf4,                       // hlt
};

static char *map(size_t len, int flags, int fd) {
    return mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, 0);
}

int main(void) {
    char *guest = map(GUEST_BYTES, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    memcpy(guest + PAGE, code, sizeof code);
    for (size_t at = MIB; at < GUEST_BYTES; at += PAGE)
        guest[at + 8] = 7;
    int kvm = open("/dev/kvm", O_RDWR), machine = ioctl(kvm, KVM_CREATE_VM, 0);
    CHECK(machine >= 0);
    struct kvm_userspace_memory_region region = {.memory_size = GUEST_BYTES, .userspace_addr = (uintptr_t)guest};
    CHECK(ioctl(machine, KVM_SET_USER_MEMORY_REGION, &region) == 0);
    int cpu = ioctl(machine, KVM_CREATE_VCPU, 0);
    struct kvm_run *run = (void *)map(ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0), MAP_SHARED, cpu);
    CHECK(cpu >= 0 && run != MAP_FAILED);

    // 32 bits, without pages.
    struct kvm_sregs special;
    CHECK(ioctl(cpu, KVM_GET_SREGS, &special) == 0);
    struct kvm_segment flat = {.limit = ~0u, .selector = 8, .present = 1, .type = 11, .db = 1, .s = 1, .g = 1};
    special.cs = flat;
    flat.type = 3, flat.selector = 16;
    special.ds = special.es = special.fs = special.gs = special.ss = flat;
    special.cr0 |= 1;
    CHECK(ioctl(cpu, KVM_SET_SREGS, &special) == 0);

    char *other = map(OTHER_BYTES, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    uint32_t sum = 0;
    for (uint32_t at = MIB; at < GUEST_BYTES; at += PAGE)
        sum += at;
    for (int round = 0; round < 3; round++) {
        for (size_t at = 0; at < OTHER_BYTES; at += PAGE)
            other[at] = (char)(round + (at >> 12));
        struct kvm_regs registers = {.rip = PAGE, .rflags = 2};
        CHECK(ioctl(cpu, KVM_SET_REGS, &registers) == 0);
        int result;
        while ((result = ioctl(cpu, KVM_RUN, 0)) < 0 && errno == EINTR)
            ;
        CHECK(result == 0);
        if (run->exit_reason != KVM_EXIT_HLT)
            return printf("the guest ended by %u\n", run->exit_reason), 1;
        CHECK(ioctl(cpu, KVM_GET_REGS, &registers) == 0 && (uint32_t)registers.rax == sum);
        for (size_t at = MIB; at < GUEST_BYTES; at += PAGE) {
            CHECK(*(uint32_t *)(guest + at) == at && guest[at + 8] == 7);
            memset(guest + at, 0, 4);
        }
        for (size_t at = 0; at < OTHER_BYTES; at += PAGE)
            CHECK(other[at] == (char)(round + (at >> 12)));
    }
    printf("ok\n");
    return 0;
}
