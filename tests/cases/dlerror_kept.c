// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// dlerror tells of the thread's own calls, whatever the library has looked up since.
#include "check.h"
#include <dlfcn.h>
int main(void) {
    CHECK(dlerror() == NULL, "at the start");
    CHECK(dlopen("/nonexistent.so", RTLD_NOW) == NULL, "dlopen");
    char *memory = anonymous(64 * MIB);
    memset(memory, 1, 64 * MIB);
    CHECK(system("true") == 0, "system");
    free(malloc(3 * MIB));
    char *text = dlerror();
    CHECK(text && strstr(text, "/nonexistent.so"), "%s", text ? text : "none");
    DONE;
}
