#!/bin/bash
# EXPECT: exit 0, last line "ok"
# BUDGETS: 24M
# A library that is loaded before has a `dl_iterate_phdr` of its own, which only works once its own start is over, as
# libfakechroot has.
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/first.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
static int (*real)(int (*)(struct dl_phdr_info *, size_t, void *), void *);
int dl_iterate_phdr(int (*each)(struct dl_phdr_info *, size_t, void *), void *data) {
    if (real == NULL) abort();
    return real(each, data);
}
__attribute__((constructor)) static void start(void) { *(void **)&real = dlsym(RTLD_NEXT, "dl_iterate_phdr"); }
C
gcc -O2 -shared -fPIC -o "$folder/first.so" "$folder/first.c"
LD_PRELOAD="$folder/first.so${LD_PRELOAD:+:$LD_PRELOAD}" /bin/echo ok
