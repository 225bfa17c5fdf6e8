// GG_LAUNCH on the fake driver: the kernels are functions of the host, whose addresses stand for them.
#include <gridguard_cuda.hpp>

#include <cstdlib>
#include <iostream>
#include <thread>

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            std::cerr << __FILE__ << ":" << __LINE__ << ": " << #condition << "\n";        \
            std::exit(1);                                                                  \
        }                                                                                  \
    } while (0)

extern "C" {
int cuInit(unsigned flags);
int cuCtxCreate_v2(void **context, unsigned flags, int device);
int cuCtxSetCurrent(void *context);
int cuCtxSynchronize(void);
int cuModuleLoadData(void **module, const void *image);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes);
int cuStreamCreate(void **stream, unsigned flags);
}

static const char PTX[] = "// fake fake_iota_y params=8,8,8\n"
                          "// fake idle params=16,1,4\n"
                          ".version 8.0\n.target sm_90\n.address_size 64\n"
                          ".visible .entry fake_iota_y(\n)\n"
                          ".visible .entry idle(\n)\n"
                          ".visible .entry empty(\n)\n";
static void *context, *module;
static cudaStream_t stream;

using u64 = unsigned long long;
struct pair {
    u64 one, two;
};
static void fake_iota_y(u64 *, const u64, u64) {}
static void idle(pair, char, float) {}
static void empty() {}
static void unknown(int) {}

cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *symbol) {
    const char *name = symbol == reinterpret_cast<const void *>(fake_iota_y) ? "fake_iota_y"
                       : symbol == reinterpret_cast<const void *>(idle)      ? "idle"
                       : symbol == reinterpret_cast<const void *>(empty)     ? "empty"
                                                                             : "none";
    void *found = nullptr;
    if (cuModuleGetFunction(&found, module, name) != 0) return cudaErrorInvalidDeviceFunction;
    *function = static_cast<cudaFunction_t>(found);
    return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t) { return "cudaErrorInvalidDeviceFunction"; }
const char *cudaGetErrorString(cudaError_t) { return "invalid device function"; }

using namespace gridguard;

constexpr u64 ITEMS = 76800;

static u64 *allocate() {
    u64 address = 0;
    CHECK(cuMemAlloc_v2(&address, ITEMS * 8) == 0);
    return reinterpret_cast<u64 *>(address);
}

static void a_grid_with_a_batch_is_split() {
    u64 *out = allocate();
    auto launched = GG_LAUNCH(fake_iota_y, split({1, ITEMS}, batch(GG_AXIS_Y, ITEMS)),
                              dim3(128), 0, stream, items(out, 1), offset, length);
    CHECK(launched && *launched == 2);
    CHECK(cuCtxSynchronize() == 0);
    std::vector<u64> read(ITEMS);
    CHECK(cuMemcpyDtoH_v2(read.data(), reinterpret_cast<u64>(out), ITEMS * 8) == 0);
    for (u64 item = 0; item < ITEMS; item++) CHECK(read[item] == item);
}

static void a_grid_without_one_is_refused_with_its_place() {
    u64 *out = allocate();
    auto refused = GG_LAUNCH(fake_iota_y, dim3(1, ITEMS), dim3(128), 0, stream, out, 0u, ITEMS);
    const std::string place = std::string(__FILE__) + ":" + std::to_string(__LINE__ - 1) + ": ";
    CHECK(!refused && refused.error().status() == GG_REJECTED);
    CHECK(refused.error().message().rfind(place + "grid.y is 76800 blocks", 0) == 0);
    CHECK(GG_LAUNCH(fake_iota_y, dim3(1, 8), 128, 0, stream, out, 0u, 8u).has_value());
}

static void arguments_have_the_types_of_the_kernel() {
    const pair both{1, 2};
    CHECK(GG_LAUNCH(idle, 1, 1, 0, stream, both, 'a', 3).value() == 1);
    CHECK(GG_LAUNCH(empty, 1, 1, 0, stream).value() == 1);
}

static void an_unknown_kernel_is_an_error() {
    auto refused = GG_LAUNCH(unknown, 1, 1, 0, stream, 7);
    CHECK(!refused && refused.error().status() == GG_DRIVER);
    CHECK(refused.error().message().find(": cudaGetFuncBySymbol returned cudaErrorInvalidDevice") !=
          std::string::npos);
}

static void threads_find_the_same_kernel() {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; thread++) {
        threads.emplace_back([] {
            CHECK(cuCtxSetCurrent(context) == 0);
            for (int time = 0; time < 50; time++) {
                CHECK(GG_LAUNCH(empty, 1, 1, 0, stream).has_value());
            }
        });
    }
    for (auto &thread : threads) thread.join();
}

int main() {
    CHECK(cuInit(0) == 0 && cuCtxCreate_v2(&context, 0, 0) == 0);
    CHECK(cuModuleLoadData(&module, PTX) == 0);
    void *created = nullptr;
    CHECK(cuStreamCreate(&created, 0) == 0);
    stream = static_cast<cudaStream_t>(created);
    a_grid_with_a_batch_is_split();
    a_grid_without_one_is_refused_with_its_place();
    arguments_have_the_types_of_the_kernel();
    an_unknown_kernel_is_an_error();
    threads_find_the_same_kernel();
    return 0;
}
