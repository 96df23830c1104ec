// A std::pmr::vector and a map in a pool, larger together than what may be in RAM.
#include <folioswap.h>

#include <cstdio>
#include <map>
#include <memory_resource>
#include <vector>

int main() {
    folioswap_options options = FOLIOSWAP_OPTIONS;
    folioswap *pool = nullptr;
    options.memory = 32u << 20;
    if (folioswap_open(&options, &pool)) {
        std::fprintf(stderr, "%s\n", folioswap_message());
        return 1;
    }
    bool right = true;
    {
        folioswap_cpp::memory_resource resource(pool);
        std::pmr::vector<long> numbers(&resource);
        for (long i = 0; i < 8 << 20; i++) // 64 MiB, which grows as it is filled
            numbers.push_back(i);
        std::pmr::map<long, std::pmr::vector<char>> pieces(&resource);
        for (long i = 0; i < 2000; i++)
            pieces[i].assign(i * 8, static_cast<char>(i));
        for (long i = 0; i < 8 << 20; i++)
            right &= numbers[i] == i;
        for (auto &[i, piece] : pieces)
            for (char byte : piece)
                right &= byte == static_cast<char>(i);
    }
    folioswap_close(pool);
    std::puts(right ? "right" : "WRONG");
    return !right;
}
