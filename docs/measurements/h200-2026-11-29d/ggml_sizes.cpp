// Products of ggml on the GPU with one token, of the sizes of models: ggml_sizes. Lines as of ggml_costs.cpp.
#define main costs_main
#include "../h100-2026-11-27/ggml_costs.cpp"
#undef main

int main() {
    ggml_backend_load_all();
    ggml_backend_t gpu = backend_of(GGML_BACKEND_DEVICE_TYPE_GPU);
    if (!gpu) return 1;
    const int64_t sizes[][2] = {{4096, 4096}, {4096, 14336}, {14336, 4096}, {4096, 1024}, {8192, 8192},
                                {8192, 28672}, {28672, 8192}, {2048, 2048}, {4096, 128256}, {2880, 4096}};
    for (auto type : {GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, GGML_TYPE_Q8_0, GGML_TYPE_F16, GGML_TYPE_MXFP4})
        for (auto & size : sizes)
            if (size[0] % 256 == 0 || type == GGML_TYPE_Q8_0 || type == GGML_TYPE_F16 || type == GGML_TYPE_MXFP4)
                product(gpu, "gpu", 0, type, size[0], size[1], 0, 0, 1);
    for (auto type : {GGML_TYPE_Q4_K, GGML_TYPE_Q8_0, GGML_TYPE_MXFP4}) {
        product(gpu, "gpu", 0, type, 2048, 768, 128, 8, 1);
        product(gpu, "gpu", 0, type, 4096, 14336, 8, 2, 1);
        product(gpu, "gpu", 0, type, 4096, 1536, 128, 8, 1);
        if (type != GGML_TYPE_Q4_K) product(gpu, "gpu", 0, type, 2880, 2880, 32, 4, 1);
    }
    return 0;
}
