// Time of tokens behind a context: gpu_tokens MODEL GPU_LAYERS LAYERS_WITH_EXPERTS_ON_CPU THREADS TOKENS DEPTH...
// For each depth the cache is filled with random tokens in batches (512), and then TOKENS tokens are computed one
// by one. UBATCH sets the size of batches. A line of JSON for each depth: seconds of the prompt, and of each token.
#include "ggml-backend.h"
#include "llama.h"
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

static double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

int main(int argc, char ** argv) {
    if (argc < 7) {
        return 2;
    }
    const int layers = atoi(argv[2]), experts = atoi(argv[3]), threads = atoi(argv[4]), tokens = atoi(argv[5]);
    const int ubatch = getenv("UBATCH") ? atoi(getenv("UBATCH")) : 512;
    srand(1);
    llama_log_set([](enum ggml_log_level, const char *, void *) {}, nullptr);
    ggml_backend_load_all();
    llama_backend_init();
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
    mp.tensor_buft_overrides = overrides.data();
    llama_model * model = llama_model_load_from_file(argv[1], mp);
    if (!model) {
        return 1;
    }
    printf("{\"loading\": %.3f}\n", now() - begin);
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (int at = 6; at < argc; at++) {
        const int depth = atoi(argv[at]);
        llama_context_params cp = llama_context_default_params();
        cp.n_ctx = depth + tokens + 64;
        cp.n_batch = cp.n_ubatch = ubatch;
        cp.n_threads = cp.n_threads_batch = threads;
        cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED; // the build had none
            llama_context * context = llama_init_from_model(model, cp);
        if (!context) {
            return 1;
        }
        begin = now();
        for (int done = 0; done < depth; done += ubatch) {
            std::vector<llama_token> batch(std::min(ubatch, depth - done));
            for (auto & one : batch) {
                one = rand() % vocabulary;
            }
            if (llama_decode(context, llama_batch_get_one(batch.data(), batch.size()))) {
                return 1;
            }
        }
        llama_synchronize(context);
        printf("{\"depth\": %d, \"prompt\": %.5f, \"tokens\": [", depth, now() - begin);
        for (int i = 0; i < tokens; i++) {
            llama_token token = rand() % vocabulary;
            begin = now();
            if (llama_decode(context, llama_batch_get_one(&token, 1))) {
                return 1;
            }
            llama_synchronize(context);
            volatile float first = llama_get_logits(context)[0];
            (void) first;
            printf("%s%.6f", i ? ", " : "", now() - begin);
        }
        printf("]}\n");
        fflush(stdout);
        llama_free(context);
    }
    fflush(stdout);
    _Exit(0);
}
