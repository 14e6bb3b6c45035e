// Time of each token from the first after loading: mapped_tokens MODEL GPU_LAYERS LAYERS_WITH_EXPERTS_ON_CPU
// THREADS TOKENS SECONDS SEED. Tokens are random, as in llama-bench; one is computed at a time, without a prompt.
// A line of JSON for loading and one for each token: seconds, bytes that the process had read from drives,
// page faults that needed a read, and its CPU time.
#include "ggml-backend.h"
#include "llama.h"
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/resource.h>
#include <vector>

static double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

struct counters {
    long long bytes = 0;
    long faults = 0;
    double user = 0, system = 0;
};

static counters count() {
    counters c;
    if (FILE * f = fopen("/proc/self/io", "r")) {
        char line[128];
        while (fgets(line, sizeof line, f)) {
            sscanf(line, "read_bytes: %lld", &c.bytes);
        }
        fclose(f);
    }
    rusage r;
    getrusage(RUSAGE_SELF, &r);
    c.faults = r.ru_majflt;
    c.user = r.ru_utime.tv_sec + r.ru_utime.tv_usec / 1e6;
    c.system = r.ru_stime.tv_sec + r.ru_stime.tv_usec / 1e6;
    return c;
}

static void print(const char * what, double seconds, const counters & before) {
    counters after = count();
    printf("{\"what\":\"%s\",\"s\":%.5f,\"read\":%lld,\"faults\":%ld,\"user\":%.3f,\"system\":%.3f}\n", what, seconds,
           after.bytes - before.bytes, after.faults - before.faults, after.user - before.user, after.system - before.system);
    fflush(stdout);
}

int main(int argc, char ** argv) {
    if (argc < 8) {
        return 2;
    }
    const int layers = atoi(argv[2]), experts = atoi(argv[3]), threads = atoi(argv[4]), tokens = atoi(argv[5]);
    const double limit = atof(argv[6]);
    srand(atoi(argv[7]));
    ggml_backend_load_all();
    llama_backend_init();
    counters before = count();
    double begin = now();
    std::vector<std::string> patterns;
    for (int i = 0; i < experts; i++) {
        patterns.push_back("blk\\." + std::to_string(i) + "\\.ffn_(up|down|gate|gate_up)_(ch|)exps");
    }
    std::vector<llama_model_tensor_buft_override> overrides;
    for (auto & one : patterns) {
        overrides.push_back({one.c_str(), ggml_backend_cpu_buffer_type()});
    }
    overrides.push_back({nullptr, nullptr});
    llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = layers;
    mp.load_mode = LLAMA_LOAD_MODE_MMAP;
    mp.tensor_buft_overrides = overrides.data();
    if (getenv("NO_REPACKING")) {
        mp.use_extra_bufts = false;
    }
    llama_model * model = llama_model_load_from_file(argv[1], mp);
    if (!model) {
        return 1;
    }
    print("model", now() - begin, before);
    begin = now();
    before = count();
    llama_context_params cp = llama_context_default_params();
    cp.n_ctx = 512;
    cp.n_threads = cp.n_threads_batch = threads;
    llama_context * context = llama_init_from_model(model, cp);
    if (!context) {
        return 1;
    }
    print("context", now() - begin, before);
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    double start = now();
    for (int i = 0; i < tokens && i < 500 && now() - start < limit; i++) {
        llama_token token = rand() % vocabulary;
        before = count();
        begin = now();
        if (llama_decode(context, llama_batch_get_one(&token, 1))) {
            return 1;
        }
        llama_synchronize(context);
        volatile float first = llama_get_logits(context)[0];
        (void) first;
        print("token", now() - begin, before);
    }
    fflush(stdout);
    _Exit(0);
}
