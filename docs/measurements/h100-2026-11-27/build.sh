#!/bin/sh
# Build llama-bench, llama-fit-params, ggml_costs and host_reads for one kind of GPU.
# Usage: build.sh LLAMA_CPP BUILD [ARCHITECTURE], LLAMA_CPP being the folder of llama.cpp in the sdist of
# llama-cpp-python (tar xf …, vendor/llama.cpp). Needs cmake, ninja, a C++ compiler and nvcc.
set -e
here=$(cd "$(dirname "$0")" && pwd)
touch "$1/ggml/ggml.pc.in" # missing in the sdist
# Backends are shared objects loaded at run time; the instructions of the CPU are those of Sapphire Rapids.
cmake -G Ninja -S "$1" -B "$2" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON \
    -DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_F16C=ON -DGGML_FMA=ON -DGGML_BMI2=ON \
    -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON \
    -DGGML_AMX_TILE=ON -DGGML_AMX_INT8=ON -DGGML_AMX_BF16=ON \
    -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="${3:-90-real}" -DGGML_CUDA_NCCL=OFF -DGGML_CCACHE=OFF \
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_NUMBER=0 -DLLAMA_BUILD_COMMIT=0c1e57098
cmake --build "$2" --target ggml ggml-cpu ggml-cuda llama-bench llama-fit-params
c++ -O2 -std=c++17 -I "$1/ggml/include" "$here/ggml_costs.cpp" -L "$2/bin" -lggml -lggml-base \
    -Wl,-rpath,'$ORIGIN' -o "$2/bin/ggml_costs"
cc -O3 -mavx512f -mavx512dq -pthread "$here/host_reads.c" -o "$2/bin/host_reads"
