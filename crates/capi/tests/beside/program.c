/* A program with another Rust library, which catches a panic. Both libraries' unwinding must work. */
#include <folioswap.h>
#include <stdio.h>

int other_library(void);

int main(void)
{
    folioswap_options options = FOLIOSWAP_OPTIONS;
    folioswap *pool = NULL;
    options.memory = 0; /* none: refused with a sentence */
    if (other_library() != 7 || folioswap_open(&options, &pool) == 0)
        return 1;
    puts("right");
    return 0;
}
