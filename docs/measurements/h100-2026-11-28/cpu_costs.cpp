// What products, attention and meetings of threads cost on the CPU backend of ggml, one JSON object per line.
// Usage: cpu_costs meetings | vectors | experts | attention
// Each graph has so many weights that no cache holds them, and experts are chosen anew before each call.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct seconds { double median, least, most; };
static seconds measured(const std::function<void()> & before, const std::function<void()> & call, int calls) {
    std::vector<double> all;
    for (int i = 0; i <= calls; i++) {
        before();
        double start = now();
        call();
        if (i) all.push_back(now() - start);
    }
    std::sort(all.begin(), all.end());
    return {all[all.size() / 2], all.front(), all.back()};
}

static ggml_context * context() {
    return ggml_init({ggml_tensor_overhead() * 8192 + ggml_graph_overhead_custom(4096, false), nullptr, true});
}

static void fill(ggml_tensor * tensor) {
    static std::vector<uint8_t> blocks;
    static std::string kept;
    std::string key = std::string(ggml_type_name(tensor->type)) + std::to_string(tensor->ne[0]);
    if (kept != key) {
        std::mt19937 random(1);
        std::normal_distribution<float> normal(0, 0.02f);
        std::vector<float> values(tensor->ne[0] * 256);
        for (auto & v : values) v = normal(random);
        blocks.resize(ggml_row_size(tensor->type, tensor->ne[0]) * 256);
        ggml_quantize_chunk(tensor->type, values.data(), blocks.data(), 0, 256, tensor->ne[0], nullptr);
        kept = key;
    }
    size_t bytes = ggml_nbytes(tensor);
    for (size_t at = 0; at < bytes; at += blocks.size())
        ggml_backend_tensor_set(tensor, blocks.data(), at, std::min(blocks.size(), bytes - at));
}

static const int THREADS[] = {1, 2, 4, 8, 12, 16};

static void meetings(ggml_backend_t cpu) {
    ggml_context * ctx = context();
    ggml_cgraph * graph = ggml_new_graph_custom(ctx, 4096, false);
    ggml_tensor * w = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 32, 32);
    ggml_tensor * y = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 32, 1);
    for (int i = 0; i < 512; i++) ggml_build_forward_expand(graph, y = ggml_mul_mat(ctx, w, y));
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, cpu);
    ggml_backend_buffer_clear(buffer, 0);
    for (int threads : THREADS) {
        ggml_backend_cpu_set_n_threads(cpu, threads);
        seconds s = measured([] {}, [&] { ggml_backend_graph_compute(cpu, graph); }, 30);
        printf("{\"kind\": \"meeting\", \"threads\": %d, \"nodes\": 512, \"seconds\": %.4g, \"least\": %.4g, \"most\": %.4g}\n",
               threads, s.median / 512, s.least / 512, s.most / 512);
    }
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

static void products(ggml_backend_t cpu, ggml_type type, int64_t columns, int64_t rows, int experts, int used, double gib) {
    ggml_context * ctx = context();
    ggml_cgraph * graph = ggml_new_graph_custom(ctx, 4096, false);
    const size_t bytes = ggml_row_size(type, columns) * rows * std::max(experts, 1);
    const int copies = std::max(2, (int) (gib * (1 << 30) / bytes));
    ggml_tensor * x = experts ? ggml_new_tensor_3d(ctx, GGML_TYPE_F32, columns, 1, 1) : ggml_new_tensor_2d(ctx, GGML_TYPE_F32, columns, 1);
    std::vector<ggml_tensor *> weights, chosen;
    for (int i = 0; i < copies; i++) {
        weights.push_back(experts ? ggml_new_tensor_3d(ctx, type, columns, rows, experts) : ggml_new_tensor_2d(ctx, type, columns, rows));
        if (experts) chosen.push_back(ggml_new_tensor_2d(ctx, GGML_TYPE_I32, used, 1));
        ggml_build_forward_expand(graph, experts ? ggml_mul_mat_id(ctx, weights[i], x, chosen[i]) : ggml_mul_mat(ctx, weights[i], x));
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, cpu);
    for (auto * w : weights) fill(w);
    std::vector<float> input(columns, 0.1f);
    ggml_backend_tensor_set(x, input.data(), 0, columns * sizeof(float));
    std::mt19937 random(2);
    std::vector<int32_t> order(std::max(experts, 1));
    for (size_t e = 0; e < order.size(); e++) order[e] = e;
    auto choose = [&] {
        for (auto * ids : chosen) {
            std::shuffle(order.begin(), order.end(), random);
            ggml_backend_tensor_set(ids, order.data(), 0, used * sizeof(int32_t));
        }
    };
    const double read = (double) ggml_row_size(type, columns) * rows * std::max(used, 1);
    for (int threads : THREADS) {
        ggml_backend_cpu_set_n_threads(cpu, threads);
        seconds s = measured(choose, [&] { ggml_backend_graph_compute(cpu, graph); }, threads < 4 ? 3 : 9);
        printf("{\"kind\": \"product\", \"threads\": %d, \"format\": \"%s\", \"columns\": %lld, \"rows\": %lld, \"experts\": %d, "
               "\"used\": %d, \"matrices\": %d, \"bytes\": %.0f, \"seconds\": %.4g, \"least\": %.4g, \"most\": %.4g, \"gb_per_s\": %.2f}\n",
               threads, ggml_type_name(type), (long long) columns, (long long) rows, experts, used, copies, read,
               s.median / copies, s.least / copies, s.most / copies, read * copies / s.median * 1e-9);
        fflush(stdout);
    }
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

static void attention(ggml_backend_t cpu, int64_t head, int64_t queries, int64_t keys, int64_t length, int64_t tokens, ggml_type type) {
    ggml_context * ctx = context();
    ggml_cgraph * graph = ggml_new_graph_custom(ctx, 4096, false);
    const int layers = std::max<int64_t>(2, std::min<int64_t>(64, (1 << 30) / (length * head * keys * 4)));
    ggml_tensor * q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, head, tokens, queries);
    ggml_tensor * mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, length, tokens);
    std::vector<ggml_tensor *> cache;
    for (int i = 0; i < layers; i++) {
        for (int j = 0; j < 2; j++) cache.push_back(ggml_new_tensor_3d(ctx, type, head * keys, length, 1));
        ggml_tensor * kv[2];
        for (int j = 0; j < 2; j++) {
            ggml_tensor * c = cache[2 * i + j];
            kv[j] = ggml_view_3d(ctx, c, head, length, keys, ggml_row_size(type, head * keys), ggml_row_size(type, head), 0);
        }
        ggml_build_forward_expand(graph, ggml_flash_attn_ext(ctx, q, kv[0], kv[1], mask, 0.1f, 0, 0));
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, cpu);
    ggml_backend_buffer_clear(buffer, 0);
    for (auto * c : cache) fill(c);
    for (int threads : {1, 4, 8, 16}) {
        if (tokens > 1 && threads < 8) continue;
        ggml_backend_cpu_set_n_threads(cpu, threads);
        seconds s = measured([] {}, [&] { ggml_backend_graph_compute(cpu, graph); }, 5);
        printf("{\"kind\": \"attention\", \"threads\": %d, \"format\": \"%s\", \"head\": %lld, \"queries\": %lld, \"keys\": %lld, "
               "\"length\": %lld, \"tokens\": %lld, \"layers\": %d, \"seconds\": %.4g, \"least\": %.4g, \"most\": %.4g, \"gflop_per_s\": %.1f}\n",
               threads, ggml_type_name(type), (long long) head, (long long) queries, (long long) keys, (long long) length,
               (long long) tokens, layers, s.median / layers, s.least / layers, s.most / layers,
               4.0 * head * queries * length * tokens * layers / s.median * 1e-9);
        fflush(stdout);
    }
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

int main(int n, char ** given) {
    if (n < 2) return 2;
    ggml_backend_t cpu = ggml_backend_cpu_init();
    std::string part = given[1];
    const ggml_type types[] = {GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, GGML_TYPE_Q8_0, GGML_TYPE_MXFP4, GGML_TYPE_F16};
    if (part == "meetings") {
        meetings(cpu);
    } else if (part == "vectors") {
        for (auto type : types) products(cpu, type, 4096, 4096, 0, 0, 2);
        for (auto type : {GGML_TYPE_Q4_K, GGML_TYPE_Q8_0}) products(cpu, type, 4096, 14336, 0, 0, 2);
        for (auto type : {GGML_TYPE_Q4_K, GGML_TYPE_Q6_K}) products(cpu, type, 14336, 4096, 0, 0, 2);
    } else if (part == "experts") {
        products(cpu, GGML_TYPE_Q4_K, 2048, 768, 128, 8, 4);
        products(cpu, GGML_TYPE_Q6_K, 768, 2048, 128, 8, 4);
        products(cpu, GGML_TYPE_Q8_0, 2048, 768, 128, 8, 4);
        products(cpu, GGML_TYPE_MXFP4, 2880, 2880, 32, 4, 4);
        products(cpu, GGML_TYPE_MXFP4, 2880, 2880, 128, 4, 8);
    } else if (part == "attention") {
        for (int64_t length : {512, 2048, 8192, 32768}) attention(cpu, 128, 32, 8, length, 1, GGML_TYPE_F16);
        for (int64_t length : {512, 8192}) attention(cpu, 128, 32, 4, length, 1, GGML_TYPE_F16);
        for (int64_t length : {512, 8192}) attention(cpu, 64, 64, 8, length, 1, GGML_TYPE_F16);
        for (int64_t length : {512, 2048}) attention(cpu, 128, 32, 8, length, 128, GGML_TYPE_F16);
        attention(cpu, 128, 32, 8, 8192, 1, GGML_TYPE_Q8_0);
    }
    ggml_backend_free(cpu);
    return 0;
}
