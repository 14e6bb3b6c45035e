// What products of ggml, copies to and from the GPU, and a change of device cost, one JSON object per line.
// Usage: ggml_costs products cpu THREADS [SHARE] | ggml_costs products gpu | ggml_costs copies | ggml_costs changes
// Backends are loaded at run time from the folder of the program.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Median, least and most seconds of a call, after one unmeasured call.
struct seconds { double median, least, most; };
static seconds measured(const std::function<void()> & call, double budget) {
    call();
    std::vector<double> all;
    double end = now() + budget;
    while (all.size() < 3 || (now() < end && all.size() < 200)) {
        double start = now();
        call();
        all.push_back(now() - start);
    }
    std::sort(all.begin(), all.end());
    return {all[all.size() / 2], all.front(), all.back()};
}

static ggml_backend_t backend_of(enum ggml_backend_dev_type type) {
    ggml_backend_dev_t device = ggml_backend_dev_by_type(type);
    return device ? ggml_backend_dev_init(device, nullptr) : nullptr;
}

static void set_threads(ggml_backend_t backend, int threads) {
    auto * registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    auto * set = (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_n_threads");
    if (set) set(backend, threads);
}

static ggml_context * context() {
    return ggml_init({ggml_tensor_overhead() * 4096 + ggml_graph_overhead_custom(2048, false), nullptr, true});
}

static std::vector<uint8_t> quantized(ggml_type type, int64_t columns, int64_t rows) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 0.02f);
    std::vector<float> values(columns * rows);
    for (auto & v : values) v = normal(random);
    std::vector<uint8_t> blocks(ggml_row_size(type, columns) * rows);
    ggml_quantize_chunk(type, values.data(), blocks.data(), 0, rows, columns, nullptr);
    return blocks;
}

// A graph of independent products with weights of their own, so that no cache holds them. Seconds are per product.
static void product(ggml_backend_t backend, const char * where, int threads, ggml_type type, int64_t columns,
                    int64_t rows, int experts, int used, int64_t tokens) {
    const size_t bytes = ggml_row_size(type, columns) * rows * std::max(experts, 1);
    const bool heavy = tokens >= 64;
    const int copies = (int) std::max<size_t>(heavy ? 2 : 4, (heavy ? 128ull << 20 : 768ull << 20) / bytes);
    ggml_context * ctx = context();
    ggml_cgraph * graph = ggml_new_graph_custom(ctx, 2048, false);
    std::vector<ggml_tensor *> weights, chosen;
    ggml_tensor * x = experts ? ggml_new_tensor_3d(ctx, GGML_TYPE_F32, columns, 1, tokens)
                              : ggml_new_tensor_2d(ctx, GGML_TYPE_F32, columns, tokens);
    for (int i = 0; i < copies; i++) {
        weights.push_back(experts ? ggml_new_tensor_3d(ctx, type, columns, rows, experts)
                                  : ggml_new_tensor_2d(ctx, type, columns, rows));
        if (experts) chosen.push_back(ggml_new_tensor_2d(ctx, GGML_TYPE_I32, used, tokens));
        ggml_build_forward_expand(graph, experts ? ggml_mul_mat_id(ctx, weights[i], x, chosen[i])
                                                 : ggml_mul_mat(ctx, weights[i], x));
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    if (!buffer) {
        ggml_free(ctx);
        return;
    }
    static std::vector<uint8_t> blocks;
    static std::string cached;
    std::string key = std::string(ggml_type_name(type)) + " " + std::to_string(columns);
    if (cached != key) blocks = quantized(type, columns, 256), cached = key;
    for (auto * w : weights)
        for (size_t at = 0; at < bytes; at += blocks.size())
            ggml_backend_tensor_set(w, blocks.data(), at, std::min(blocks.size(), bytes - at));
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    std::vector<float> input(columns * tokens);
    for (auto & v : input) v = normal(random);
    ggml_backend_tensor_set(x, input.data(), 0, input.size() * sizeof(float));
    double distinct = 0;
    for (auto * ids : chosen) {
        std::vector<int32_t> all(used * tokens), order(experts);
        std::vector<bool> seen(experts);
        for (int e = 0; e < experts; e++) order[e] = e;
        for (int64_t t = 0; t < tokens; t++) {
            std::shuffle(order.begin(), order.end(), random);
            std::copy(order.begin(), order.begin() + used, all.begin() + t * used);
            for (int e = 0; e < used; e++) seen[order[e]] = true;
        }
        distinct += std::count(seen.begin(), seen.end(), true) / (double) copies;
        ggml_backend_tensor_set(ids, all.data(), 0, all.size() * sizeof(int32_t));
    }
    seconds s = measured([&] { ggml_backend_graph_compute(backend, graph); }, 0.2);
    printf("{\"kind\": \"product\", \"where\": \"%s\", \"threads\": %d, \"format\": \"%s\", \"columns\": %lld, "
           "\"rows\": %lld, \"experts\": %d, \"used\": %d, \"tokens\": %lld, \"distinct\": %.1f, \"matrices\": %d, "
           "\"bytes\": %zu, \"seconds\": %.4g, \"least\": %.4g, \"most\": %.4g}\n",
           where, threads, ggml_type_name(type), (long long) columns, (long long) rows, experts, used,
           (long long) tokens, distinct, copies, bytes, s.median / copies, s.least / copies, s.most / copies);
    fflush(stdout);
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

// `share` limits the tokens of products on the CPU to this share of 512.
static void products(const char * where, int threads, double share) {
    bool cpu = !strcmp(where, "cpu");
    ggml_backend_t backend = backend_of(cpu ? GGML_BACKEND_DEVICE_TYPE_CPU : GGML_BACKEND_DEVICE_TYPE_GPU);
    if (!backend) return;
    if (cpu) set_threads(backend, threads);
    std::vector<int64_t> batches = {1, 2, 4, 8, 16, 32, 128, 512};
    if (!cpu) batches.push_back(2048);
    for (auto tokens : batches) {
        if (cpu && tokens > 512 * share) continue;
        for (auto type : {GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, GGML_TYPE_Q8_0, GGML_TYPE_MXFP4, GGML_TYPE_F16})
            product(backend, where, threads, type, 4096, 4096, 0, 0, tokens);
        for (auto type : {GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, GGML_TYPE_Q8_0}) {
            bool down = type == GGML_TYPE_Q6_K;  // 2048 x 768 as in Qwen3-30B-A3B, down 768 x 2048
            product(backend, where, threads, type, down ? 768 : 2048, down ? 2048 : 768, 128, 8, tokens);
        }
        product(backend, where, threads, GGML_TYPE_MXFP4, 2880, 2880, 32, 4, tokens);
    }
    ggml_backend_free(backend);
}

static void copies() {
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
    if (!device) return;
    ggml_backend_t gpu = ggml_backend_dev_init(device, nullptr);
    const size_t most = 256ull << 20;
    ggml_context * ctx = context();
    ggml_tensor * there = ggml_new_tensor_1d(ctx, GGML_TYPE_I8, most);
    ggml_backend_alloc_ctx_tensors(ctx, gpu);
    ggml_backend_buffer_t pinned = ggml_backend_buft_alloc_buffer(ggml_backend_dev_host_buffer_type(device), most);
    char * pageable = (char *) aligned_alloc(4096, most);
    memset(pageable, 1, most);
    memset(ggml_backend_buffer_get_base(pinned), 1, most);
    for (int in_pinned = 0; in_pinned < 2; in_pinned++) {
        char * here = in_pinned ? (char *) ggml_backend_buffer_get_base(pinned) : pageable;
        for (size_t bytes = 4096; bytes <= most; bytes *= 4)
            for (int up = 0; up < 2; up++) {
                seconds s = measured([&] {
                    if (up) ggml_backend_tensor_set_async(gpu, there, here, 0, bytes);
                    else ggml_backend_tensor_get_async(gpu, there, here, 0, bytes);
                    ggml_backend_synchronize(gpu);
                }, 0.1);
                printf("{\"kind\": \"copy\", \"to\": \"%s\", \"pinned\": %s, \"bytes\": %zu, \"seconds\": %.4g, "
                       "\"least\": %.4g, \"most\": %.4g}\n",
                       up ? "gpu" : "cpu", in_pinned ? "true" : "false", bytes, s.median, s.least, s.most);
            }
    }
}

// A chain of small operations that alternate between GPU and CPU, or stay on one of them, through the scheduler.
static void changes(int threads) {
    ggml_backend_t gpu = backend_of(GGML_BACKEND_DEVICE_TYPE_GPU), cpu = backend_of(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!gpu) return;
    set_threads(cpu, threads);
    ggml_backend_t both[] = {gpu, cpu};
    for (int64_t tokens : {1, 32, 512})
        for (int64_t width : {2048, 4096})
            for (int each : {1, 8})  // operations on a device before the chain changes to the other one
                for (const char * where : {"gpu", "cpu", "both"}) {
                    const int nodes = 64 * each;
                    ggml_backend_sched_t sched = ggml_backend_sched_new(both, nullptr, 2, 2048, false, true);
                    ggml_context * ctx = context();
                    ggml_cgraph * graph = ggml_new_graph_custom(ctx, 2048, false);
                    ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, width, tokens);
                    ggml_set_input(x);
                    ggml_tensor * y = x;
                    std::vector<ggml_tensor *> chain;
                    for (int i = 0; i < nodes; i++) chain.push_back(y = ggml_scale(ctx, y, 1.0001f));
                    ggml_set_output(y);
                    ggml_build_forward_expand(graph, y);
                    ggml_backend_sched_set_tensor_backend(sched, x, cpu);
                    for (int i = 0; i < nodes; i++) {
                        bool on_gpu = !strcmp(where, "gpu") || (!strcmp(where, "both") && i / each % 2 == 0);
                        ggml_backend_sched_set_tensor_backend(sched, chain[i], on_gpu ? gpu : cpu);
                    }
                    if (!ggml_backend_sched_alloc_graph(sched, graph)) exit(1);
                    std::vector<float> input(width * tokens, 1.0f);
                    ggml_backend_tensor_set(x, input.data(), 0, input.size() * sizeof(float));
                    seconds s = measured([&] {
                        ggml_backend_sched_graph_compute_async(sched, graph);
                        ggml_backend_sched_synchronize(sched);
                    }, 0.2);
                    printf("{\"kind\": \"change\", \"where\": \"%s\", \"threads\": %d, \"width\": %lld, "
                           "\"tokens\": %lld, \"each\": %d, \"nodes\": %d, \"splits\": %d, \"seconds\": %.4g, "
                           "\"least\": %.4g, \"most\": %.4g}\n",
                           where, threads, (long long) width, (long long) tokens, each, nodes,
                           ggml_backend_sched_get_n_splits(sched), s.median, s.least, s.most);
                    ggml_backend_sched_free(sched);
                    ggml_free(ctx);
                }
}

int main(int n, char ** given) {
    if (n < 2) return 2;
    ggml_backend_load_all();
    std::string part = given[1];
    if (part == "products") products(given[2], n > 3 ? atoi(given[3]) : 0, n > 4 ? atof(given[4]) : 1);
    else if (part == "copies") copies();
    else changes(n > 2 ? atoi(given[2]) : 16);
    return 0;
}
