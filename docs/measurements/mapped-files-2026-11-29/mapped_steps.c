/* Pages of a mapped file that are read as llama.cpp reads weights: how many page faults bring in each step.

   mapped_steps FILE COLD DENSE LAYERS EXPERTS CHOSEN MATRIX THREADS STEPS SECONDS SEED

   The file has, for each of LAYERS layers, DENSE bytes and three tensors of EXPERTS matrices of MATRIX bytes
   [B], of which a step reads CHOSEN of each at random; behind them are COLD bytes that are read once, as those
   of layers on a GPU, and then no longer mapped. The file is mapped, populated and advised as sequential, as by
   llama_mmap. Prints one JSON object for the load and for each step: seconds, bytes that the process read from
   the drive, and major faults. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static long io_read(void) {
    FILE *f = fopen("/proc/self/io", "r"); char line[128]; long n = 0;
    while (fgets(line, sizeof line, f)) if (sscanf(line, "read_bytes: %ld", &n) == 1) break;
    fclose(f); return n;
}
static long faults(void) { struct rusage u; getrusage(RUSAGE_SELF, &u); return u.ru_majflt; }
static uint64_t state;
static uint32_t rnd(uint32_t n) { state = state * 6364136223846793005ULL + 1442695040888963407ULL; return (state >> 33) % n; }

static const volatile unsigned char *base;
static long from, size, chunk, threads;
static atomic_long next;
static pthread_barrier_t begin, end;
static volatile int over;
static unsigned sink;

static void *work(void *first) {
    for (;;) {
        pthread_barrier_wait(&begin);
        if (over) return NULL;
        unsigned s = 0;
        long at;
        while ((at = atomic_fetch_add(&next, 1) * chunk) < size) {
            long stop = at + chunk < size ? at + chunk : size;
            for (long i = at; i < stop; i += 1024) s += base[from + i];
        }
        __atomic_fetch_add(&sink, s, __ATOMIC_RELAXED);
        pthread_barrier_wait(&end);
        if (first) return NULL;
    }
}
static void product(long at, long bytes) {  /* rows in chunks, which threads take in turn (ggml_compute_forward_mul_mat) */
    from = at; size = bytes; next = 0;
    chunk = (bytes / (4 * threads) + 4095) / 4096 * 4096;
    work((void *)1);
}
static void report(const char *what, double since, long read, long major) {
    printf("{\"what\": \"%s\", \"seconds\": %.4f, \"read\": %ld, \"major\": %ld}\n", what, now() - since, io_read() - read, faults() - major);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc != 12) return 2;
    long cold = atol(argv[2]), dense = atol(argv[3]), layers = atol(argv[4]), experts = atol(argv[5]);
    long chosen = atol(argv[6]), matrix = atol(argv[7]), steps = atol(argv[9]);
    double limit = atof(argv[10]);
    threads = atol(argv[8]); state = atol(argv[11]);
    long layer = dense + 3 * experts * matrix, hot = layers * layer, total = hot + cold;
    int fd = open(argv[1], O_RDONLY);
    struct stat st; fstat(fd, &st);
    if (st.st_size < total) { fprintf(stderr, "file has %ld of %ld bytes\n", (long)st.st_size, total); return 1; }
    double t = now(); long r = io_read(), m = faults();
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    base = mmap(NULL, total, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    madvise((void *)base, total, MADV_WILLNEED);
    pthread_barrier_init(&begin, NULL, threads); pthread_barrier_init(&end, NULL, threads);
    for (long i = 1; i < threads; i++) { pthread_t id; pthread_create(&id, NULL, work, NULL); }
    if (cold) { product(hot, cold); munmap((void *)(base + (hot + 4095) / 4096 * 4096), cold); }
    report("load", t, r, m);
    double started = now();
    for (long step = 0; step < steps && now() - started < limit; step++) {
        t = now(); r = io_read(); m = faults();
        for (long l = 0; l < layers; l++) {
            if (dense) product(l * layer, dense);
            long ids[256];
            for (long c = 0; c < chosen; c++) {
                again: ids[c] = rnd(experts);
                for (long b = 0; b < c; b++) if (ids[b] == ids[c]) goto again;
            }
            for (long tensor = 0; tensor < (experts ? 3 : 0); tensor++)
                for (long c = 0; c < chosen; c++)
                    product(l * layer + dense + (tensor * experts + ids[c]) * matrix, matrix);
        }
        report("step", t, r, m);
    }
    over = 1; pthread_barrier_wait(&begin);
    return 0;
}
