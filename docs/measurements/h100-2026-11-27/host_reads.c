// Read bandwidth of the CPU by threads, from anonymous memory or a mapped file, and the rate of page faults.
// Usage: host_reads memory GIB | host_reads file PATH | host_reads faults PATH (drops the page cache; root)
// Prints one JSON object per line. Build: cc -O3 -march=native -pthread host_reads.c -o host_reads
#define _GNU_SOURCE
#include <fcntl.h>
#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct part { const uint8_t *from; size_t bytes; size_t step; uint64_t sum; double start, end; };
static pthread_barrier_t gate;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void *reader(void *given) {
    struct part *p = given;
    pthread_barrier_wait(&gate);
    p->start = now();
    if (p->step == 1) {  // every byte, 64 at a time
        __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
        for (size_t i = 0; i + 256 <= p->bytes; i += 256) {
            a = _mm512_add_epi64(a, _mm512_loadu_si512(p->from + i));
            b = _mm512_add_epi64(b, _mm512_loadu_si512(p->from + i + 64));
            c = _mm512_add_epi64(c, _mm512_loadu_si512(p->from + i + 128));
            d = _mm512_add_epi64(d, _mm512_loadu_si512(p->from + i + 192));
        }
        p->sum += _mm512_reduce_add_epi64(_mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d)));
    } else {
        for (size_t i = 0; i < p->bytes; i += p->step) p->sum += *(volatile const uint8_t *)(p->from + i);
    }
    p->end = now();
    return NULL;
}

static double once(const uint8_t *from, size_t bytes, int threads, size_t step) {
    pthread_t ids[64];
    struct part parts[64];
    size_t slice = bytes / threads / 4096 * 4096;
    pthread_barrier_init(&gate, NULL, threads);
    for (int i = 0; i < threads; i++) {
        parts[i] = (struct part){from + i * slice, slice, step, 0, 0, 0};
        pthread_create(&ids[i], NULL, reader, &parts[i]);
    }
    double start = 1e300, end = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        if (parts[i].start < start) start = parts[i].start;
        if (parts[i].end > end) end = parts[i].end;
    }
    pthread_barrier_destroy(&gate);
    return slice * (double)threads / (end - start) * 1e-9;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void table(const char *kind, const uint8_t *from, size_t bytes) {
    const int counts[] = {1, 2, 4, 8, 12, 16};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        double rates[5];
        size_t part = counts[i] < 4 ? bytes / 4 : bytes;
        once(from, part, counts[i], 1);
        for (int r = 0; r < 5; r++) rates[r] = once(from, part, counts[i], 1);
        qsort(rates, 5, sizeof *rates, compare);
        printf("{\"kind\": \"%s\", \"threads\": %d, \"gb_per_s\": %.2f, \"least\": %.2f, \"most\": %.2f}\n", kind,
               counts[i], rates[2], rates[0], rates[4]);
    }
}

static void faults(const char *path) {
    const int counts[] = {1, 4, 16};
    int file = open(path, O_RDONLY);
    struct stat about;
    fstat(file, &about);
    size_t bytes = about.st_size > (2ull << 30) ? 2ull << 30 : about.st_size;
    for (int advice = 0; advice < 2; advice++)
        for (size_t i = 0; i < 3; i++) {
            int drop = open("/proc/sys/vm/drop_caches", O_WRONLY);
            sync();
            int dropped = drop >= 0 && write(drop, "3", 1) == 1;
            if (drop >= 0) close(drop);
            uint8_t *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
            if (advice) madvise(map, bytes, MADV_RANDOM);
            double rate = once(map, bytes / (advice ? 8 : 1), counts[i], 4096);
            printf("{\"kind\": \"%s\", \"threads\": %d, \"gb_per_s\": %.3f, \"dropped\": %d}\n",
                   advice ? "faults, MADV_RANDOM" : "faults", counts[i], rate, dropped);
            munmap(map, bytes);
        }
}

int main(int n, char **given) {
    if (n != 3) return 2;
    if (!strcmp(given[1], "faults")) {
        faults(given[2]);
    } else if (!strcmp(given[1], "file")) {
        int file = open(given[2], O_RDONLY);
        struct stat about;
        fstat(file, &about);
        size_t bytes = about.st_size > (4ll << 30) ? 4ull << 30 : about.st_size / 4096 * 4096;
        table("mapped file", mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0), bytes);
    } else {
        size_t bytes = strtoull(given[2], NULL, 10) << 30;
        for (int huge = 0; huge < 2; huge++) {
            uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            madvise(memory, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
            for (size_t i = 0; i < bytes; i += 4096) *(uint64_t *)(memory + i) = i * 2654435761u;
            table(huge ? "memory, huge pages" : "memory, pages of 4 KiB", memory, bytes);
            munmap(memory, bytes);
        }
    }
    return 0;
}
