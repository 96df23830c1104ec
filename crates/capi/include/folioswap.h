/* folioswap: memory larger than RAM behind ordinary pointers. Linux, x86-64. See folioswap(3).
 *
 * A pool has a budget of RAM and swap devices. Its memory is swapped in when it is touched and swapped out when it is
 * cold, in huge pages. Every function may be called by any number of threads at once. Functions that return int return
 * 0 or a folioswap_error, and leave a sentence in folioswap_message(); folioswap_is_monitored returns 0 or 1. The
 * allocator returns NULL on failure, sets errno, and leaves no sentence.
 *
 * Link with `pkg-config --cflags --libs folioswap`.
 */
#ifndef FOLIOSWAP_H
#define FOLIOSWAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What functions return that can fail. */
enum folioswap_error {
    FOLIOSWAP_OK = 0,            /* no error */
    FOLIOSWAP_INVALID = 1,       /* an argument is not valid: a size, a name, an address that is not the pool's */
    FOLIOSWAP_NO_MEMORY = 2,     /* addresses or RAM are not available */
    FOLIOSWAP_SWAP = 3,          /* a swap device cannot be used */
    FOLIOSWAP_NOT_PERMITTED = 4, /* the kernel does not permit userfaultfd */
    FOLIOSWAP_SYSTEM = 5,        /* a system call failed */
    FOLIOSWAP_LOST = 6           /* a swap device has lost content */
};

/* How a range is going to be used. */
enum folioswap_advice {
    FOLIOSWAP_NORMAL = 0,     /* no special use */
    FOLIOSWAP_WILLNEED = 1,   /* needed soon: it is read in the background */
    FOLIOSWAP_SEQUENTIAL = 2, /* read from start to end */
    FOLIOSWAP_RANDOM = 3,     /* accessed at random: what is in RAM stays as long as possible */
    FOLIOSWAP_COLD = 4,       /* not needed for a while: it leaves RAM first */
    FOLIOSWAP_DONTNEED = 5,   /* not needed any more: exactly these bytes read as zero from now on */
    FOLIOSWAP_HUGEPAGE = 6,   /* blocks of 2 MiB come back whole */
    FOLIOSWAP_NOHUGEPAGE = 7  /* blocks come back page by page */
};

/* A pool: a budget of RAM, swap devices, and the memory that is paged between them. */
typedef struct folioswap folioswap;

/* What a pool is made of. FOLIOSWAP_OPTIONS sets `size`; what is not needed is 0 or NULL. Later versions add members at
 * the end: the library takes fewer than it knows, and more if they are 0. */
typedef struct folioswap_options {
    size_t size;              /* sizeof(folioswap_options) */
    uint64_t memory;          /* bytes that may be in RAM, at least 16 MiB, if memory_text is NULL */
    const char *memory_text;  /* the same as text: "2G", "2GB" (powers of 1000), "50%" (of the RAM) */
    const char *const *swap;  /* devices, the first used first: "/swap/a", "/swap/a:100G", "ram:SIZE", "zram:SIZE";
                                 NULL: an unnamed file in /var/tmp or $FOLIOSWAP_DIR */
    size_t nr_swap;           /* how many these are */
    const char *folio;        /* "auto" (NULL), or the size of all folios, "4K" to "2M" */
    const char *faults;       /* who resolves faults: "monitor" (a thread of the pool), "direct" (the thread that
                                 touches), or "auto" (NULL): monitor where the system permits it */
} folioswap_options;

#define FOLIOSWAP_OPTIONS {sizeof(struct folioswap_options), 0, NULL, NULL, 0, NULL, NULL}

/* Figures of a pool. FOLIOSWAP_STATS sets `size`; the library sets it to what it has filled. Later versions add members
 * at the end. */
typedef struct folioswap_stats {
    size_t size;                /* sizeof(folioswap_stats) */
    uint64_t memory_bytes;      /* the budget */
    uint64_t mapped_bytes;      /* in RAM, touched without a fault */
    uint64_t standby_bytes;     /* in RAM, the first to leave; a touch costs a fault, but no read */
    uint64_t swapped_bytes;     /* in use on swap devices */
    uint64_t swapped_in_bytes;  /* read from swap devices so far */
    uint64_t swapped_out_bytes; /* written to swap devices so far */
    uint64_t faults;            /* so far */
    uint64_t stalled_ns;        /* what threads have spent in faults, all together */
    uint64_t nr_devices;        /* swap devices */
} folioswap_stats;

#define FOLIOSWAP_STATS {sizeof(struct folioswap_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Figures of a swap device; `size` as above. */
typedef struct folioswap_device {
    size_t size;
    char name[256];         /* cut to fit, with a zero at the end */
    uint64_t used_bytes;    /* in use */
    uint64_t size_bytes;    /* the most that it can hold; 0: as much as the file system has room for */
    uint64_t read_bytes;    /* so far, in read_calls requests */
    uint64_t read_calls;
    uint64_t written_bytes; /* so far, in written_calls requests */
    uint64_t written_calls;
} folioswap_device;

/* Makes a pool and starts its threads (about 10 ms). Children of fork have a copy of its memory, with a budget and swap
 * of their own. On success *pool is the pool. */
int folioswap_open(const folioswap_options *options, folioswap **pool);

/* Frees a pool and all its memory. NULL is fine. Nobody uses either any more. */
void folioswap_close(folioswap *pool);

/* Maps `len` zeroed bytes, aligned to 2 MiB. They take neither RAM nor swap until they are written. */
int folioswap_map(const folioswap *pool, size_t len, void **addr);

/* Unmaps what folioswap_map returned, as a whole. FOLIOSWAP_INVALID: `addr` is something else, a block of the allocator
 * for example. */
int folioswap_unmap(const folioswap *pool, void *addr);

/* Advises how a range of the pool's memory will be used (an enum folioswap_advice). Only FOLIOSWAP_DONTNEED changes
 * content; all other advice acts on the blocks of 2 MiB that the range overlaps. */
int folioswap_advise(const folioswap *pool, void *addr, size_t len, int advice);

/* Reads a range in the background, as far as half of the budget goes. Returns at once. */
int folioswap_prefetch(const folioswap *pool, const void *addr, size_t len);

/* Brings a range in and keeps it in RAM until folioswap_release, for memory that a system call reads or writes in direct
 * mode: there the call fails with EFAULT where a page is missing. Holds are counted. FOLIOSWAP_INVALID: all that is
 * held, in blocks of 2 MiB, would be more than half of the budget. */
int folioswap_hold(const folioswap *pool, const void *addr, size_t len);
void folioswap_release(const folioswap *pool, const void *addr, size_t len);

/* 1: a thread of the pool resolves faults (monitor), so that system calls work on its memory. 0: direct mode. */
int folioswap_is_monitored(const folioswap *pool);

/* Changes the budget. After shrinking it, waits until the surplus has left RAM, 10 seconds at most. */
int folioswap_resize(const folioswap *pool, uint64_t memory);

/* Fills the figures of a pool (about 100 us), and of its swap device with this index. */
int folioswap_get_stats(const folioswap *pool, folioswap_stats *stats);
int folioswap_get_device(const folioswap *pool, size_t index, folioswap_device *device);

/* The allocator: as malloc and its like. Blocks of 1 MiB and more have pages of their own (about 10 us), smaller ones
 * share chunks (about 100 ns). `alignment` is a power of two up to 2 MiB. NULL: errno is ENOMEM (no addresses are left)
 * or EINVAL (an argument is not valid).
 * Do not mix blocks with memory of folioswap_map: given the address that it returned, folioswap_realloc fails with
 * EINVAL, folioswap_free unmaps the memory, and folioswap_usable_size returns its length. */
void *folioswap_malloc(const folioswap *pool, size_t size);
void *folioswap_calloc(const folioswap *pool, size_t count, size_t size);
void *folioswap_aligned_alloc(const folioswap *pool, size_t alignment, size_t size);
void *folioswap_realloc(const folioswap *pool, void *block, size_t size);
void folioswap_free(const folioswap *pool, void *block);
size_t folioswap_usable_size(const folioswap *pool, const void *block);

/* The sentence of the calling thread's last error: what is wrong, and what would help. Valid until its next error. */
const char *folioswap_message(void);

/* What an error code means in general. */
const char *folioswap_error_text(int error);

/* The version of the library, "MAJOR.MINOR.PATCH". */
const char *folioswap_version(void);

#ifdef __cplusplus
} /* extern "C" */

#if __cplusplus >= 201703L && __has_include(<memory_resource>)
#include <cstdlib>
#include <memory_resource>
#include <new>

namespace folioswap_cpp {

/* A pool as a memory resource: std::pmr::vector<int> numbers(&resource). The pool outlives it and its memory. */
class memory_resource : public std::pmr::memory_resource {
  public:
    explicit memory_resource(const folioswap *pool) noexcept : pool_(pool) {}

  private:
    void *do_allocate(std::size_t bytes, std::size_t alignment) override {
        if (void *block = folioswap_aligned_alloc(pool_, alignment < 16 ? 16 : alignment, bytes))
            return block;
#ifdef __cpp_exceptions
        throw std::bad_alloc();
#else
        std::abort();
#endif
    }

    void do_deallocate(void *block, std::size_t, std::size_t) override { folioswap_free(pool_, block); }

    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
#ifdef __cpp_rtti
        auto same = dynamic_cast<const memory_resource *>(&other);
        return same && same->pool_ == pool_;
#else
        return this == &other;
#endif
    }

    const folioswap *pool_;
};

} // namespace folioswap_cpp
#endif
#endif

#endif /* FOLIOSWAP_H */
