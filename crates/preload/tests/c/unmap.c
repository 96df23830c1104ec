/* Threads map and unmap lengths that are not whole blocks while another thread changes protections: memory that one
   thread unmaps may at once be part of another's new mapping. */
#include "check.h"

#define ROUNDS 700

static volatile int stop;

static void *churn(void *argument) {
    size_t lens[] = {3 * MIB, 2 * MIB, 5 * MIB / 2}, len = lens[(size_t)argument % 3];
    for (int round = 0; round < ROUNDS; round++) {
        char *at = map(len);
        for (size_t i = 0; i < len; i += 4096)
            at[i] = (char)(round + 1);
        for (size_t i = 0; i < len; i += 4096)
            CHECK(at[i] == (char)(round + 1));
        CHECK(munmap(at, len) == 0);
    }
    return NULL;
}

static void *protect(void *argument) {
    char *at = argument;
    while (!stop)
        for (size_t page = 1; page < 512 && !stop; page += 7) {
            CHECK(mprotect(at + page * 4096, 4096, PROT_READ) == 0);
            CHECK(mprotect(at + page * 4096, 4096, PROT_READ | PROT_WRITE) == 0);
        }
    return NULL;
}

int main(void) {
    pthread_t churning[3], protecting;
    char *other = map(FOLIO);
    memset(other, 1, FOLIO);
    CHECK(pthread_create(&protecting, NULL, protect, other) == 0);
    for (size_t i = 0; i < 3; i++)
        CHECK(pthread_create(&churning[i], NULL, churn, (void *)i) == 0);
    for (size_t i = 0; i < 3; i++)
        CHECK(pthread_join(churning[i], NULL) == 0);
    stop = 1;
    CHECK(pthread_join(protecting, NULL) == 0);
    return 0;
}
