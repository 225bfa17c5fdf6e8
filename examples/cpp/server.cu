// A server whose requests decide the size of a launch: any size runs, and a launch that cannot is an error of
// its request, with file and line, not of the process.
//
//   server < requests      reads one number of items per line, writes one line per request
#include <gridguard_cuda.hpp>

#include <cuda_runtime.h>
#include <iostream>
#include <string>

constexpr unsigned WIDTH = 32; // floats of an item

// Each block works on one item. `count` is the chunk's number of items.
__global__ void scale(float *values, float factor, unsigned long long count) {
    const unsigned long long item = blockIdx.y;
    if (item < count) values[item * WIDTH + threadIdx.x] *= factor;
}

// The same without a batch: `blockIdx.y` is the item of the whole launch, so it cannot be split.
__global__ void fill(float *values, float value) {
    values[(unsigned long long)blockIdx.y * WIDTH + threadIdx.x] = value;
}

// Device memory of a request, freed with it.
struct buffer {
    explicit buffer(size_t floats) { failed = cudaMalloc(&values, floats * sizeof(float)); }
    ~buffer() { cudaFree(values); }
    buffer(const buffer &) = delete;
    buffer &operator=(const buffer &) = delete;
    float *values = nullptr;
    cudaError_t failed;
};

// Runs one request, and returns the line to reply.
std::string serve(unsigned n, cudaStream_t stream) {
    using namespace gridguard;
    if (n == 0) return "nothing to do";
    const buffer memory(size_t(n) * WIDTH);
    if (memory.failed) return std::string("cudaMalloc: ") + cudaGetErrorString(memory.failed);
    cudaMemsetAsync(memory.values, 0, size_t(n) * WIDTH * sizeof(float), stream);

    std::string reply;
    auto filled = GG_LAUNCH(fill, dim3(1, n, 1), dim3(WIDTH), 0, stream, memory.values, 1.0f);
    if (!filled) reply += filled.error().message() + "\n";

    const split grid({1, n}, batch(GG_AXIS_Y, n));
    auto scaled = GG_LAUNCH(scale, grid, dim3(WIDTH), 0, stream, items(memory.values, WIDTH), 2.0f,
                            length);
    if (!scaled) return reply + scaled.error().message();

    float last = 0;
    const float *of_last = memory.values + (size_t(n) - 1) * WIDTH;
    cudaMemcpyAsync(&last, of_last, sizeof last, cudaMemcpyDeviceToHost, stream);
    if (cudaError_t code = cudaStreamSynchronize(stream)) {
        return reply + "cudaStreamSynchronize: " + cudaGetErrorString(code);
    }
    const float expected = filled ? 2.0f : 0.0f;
    reply += std::to_string(n) + " items in " + std::to_string(*scaled) + " launches: ";
    return reply + (last == expected ? "right" : "wrong");
}

int main() {
    cudaStream_t stream;
    if (cudaError_t code = cudaStreamCreate(&stream)) {
        std::cerr << "cudaStreamCreate: " << cudaGetErrorString(code) << "\n";
        return 3;
    }
    unsigned n = 0;
    while (std::cin >> n) std::cout << serve(n, stream) << std::endl;
    cudaStreamDestroy(stream);
    return std::cin.eof() ? 0 : 2;
}
