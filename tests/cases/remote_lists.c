// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// process_vm_readv and process_vm_writev with a list of ranges in memory that has left RAM, whose ranges are all empty,
// or that may only be written.
#include "cold.h"
#include <sys/uio.h>
#define COLD(call) (send_out(memory, PAGE), errno = 0, (call))
int main(void) {
    start_engine();
    char *memory = anonymous(8 * MIB), here[16] = "here";
    memset(memory, 1, 8 * MIB);
    struct iovec *list = (struct iovec *)memory, local = {here, 16};
    for (int i = 0; i < 3; i++) list[i] = (struct iovec){memory, 0};
    CHECK(COLD(process_vm_readv(getpid(), &local, 1, list, 3, 0)) == 0, "read nothing");
    CHECK(COLD(process_vm_writev(getpid(), &local, 1, list, 3, 0)) == 0, "write nothing");
    for (int i = 0; i < 3; i++) list[i] = (struct iovec){memory + 4 * MIB + i * MIB, 5};
    mprotect(memory, PAGE, PROT_WRITE);
    CHECK(COLD(process_vm_writev(getpid(), &local, 1, list, 3, 0)) == 15, "a list that may only be written");
    CHECK(memory[4 * MIB] == 'h' && memory[5 * MIB] == 0, "written");
    memset(here, 0, 16);
    CHECK(COLD(process_vm_readv(getpid(), &local, 1, list, 3, 0)) == 15 && here[0] == 'h', "the same for a read");
    DONE;
}
