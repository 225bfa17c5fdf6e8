// GG_LAUNCH: kernel<<<grid, block, shared, stream>>>(args...) with validation, for programs of the CUDA
// runtime (12.0 or later). Needs C++17; link libgridguard.
//
//   auto launched = GG_LAUNCH(scale, grid, block, 0, stream, x, 2.0f, n);
//   if (!launched) log(launched.error().message()); // FILE:LINE: grid.y is 70000 blocks, the limit ...
//
// A grid that declares its batch is split where it is too large; arguments then say how they follow:
//
//   using namespace gridguard;
//   GG_LAUNCH(scale, split({1, n}, batch(GG_AXIS_Y, n)), block, 0, stream,
//             items(x, 32), 2.0f, length);
#ifndef GRIDGUARD_CUDA_HPP
#define GRIDGUARD_CUDA_HPP

#include "gridguard.hpp"

#include <cuda_runtime_api.h>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <type_traits>

/// Validates and launches a kernel: `GG_LAUNCH(kernel, grid, block, shared, stream, args...)`. Returns the
/// number of launches, or an error whose message begins with file and line. Stream 0 is the legacy default
/// stream: pass `cudaStreamPerThread` for the thread's.
#define GG_LAUNCH(...) ::gridguard::launch_at(__FILE__, __LINE__, __VA_ARGS__)

namespace gridguard {

/// The blocks of a launch, and how they may be split.
struct split {
    split(dim3 all) : blocks(all.x, all.y, all.z) {}
    split(std::uint64_t x) : blocks(x) {}
    split(sizes all, gridguard::batch items) : blocks(all), items(items) {}

    sizes blocks;
    std::optional<gridguard::batch> items;
};

/// A pointer to items of `elements` elements: each chunk gets that of its first item.
template <class T> struct items {
    items(T *first, std::uint64_t elements) : first(first), stride_bytes(elements * sizeof(T)) {}
    T *first;
    std::uint64_t stride_bytes;
};

/// The argument is the chunk's first item.
struct offset_t {};
inline constexpr offset_t offset{};

/// The argument is the chunk's number of items.
struct length_t {};
inline constexpr length_t length{};

namespace detail {

template <class T> struct is_items : std::false_type {};
template <class T> struct is_items<items<T>> : std::true_type {};

/// The value of parameter `P`, and how it follows the chunk.
template <class P, class A> P value(A &&argument, gg_following &follows) {
    using given = std::decay_t<A>;
    if constexpr (is_items<given>::value) {
        follows.kind = GG_ITEMS;
        follows.stride_bytes = argument.stride_bytes;
        return argument.first;
    } else if constexpr (std::is_same_v<given, offset_t>) {
        follows.kind = GG_OFFSET;
        return P{};
    } else if constexpr (std::is_same_v<given, length_t>) {
        follows.kind = GG_LENGTH;
        return P{};
    } else {
        return std::forward<A>(argument);
    }
}

template <class Values, std::size_t... I, class... A>
Values values_of(gg_following *following, std::index_sequence<I...>, A &&...arguments) {
    (void)following;
    return Values{
        value<std::tuple_element_t<I, Values>>(std::forward<A>(arguments), following[I])...};
}

inline gridguard::error runtime_error(const char *call, cudaError_t code) {
    return gridguard::error(GG_DRIVER, std::string(call) + " returned " + cudaGetErrorName(code) +
                                           ": " + cudaGetErrorString(code));
}

/// The kernels of this process by symbol and device. The runtime launches in primary contexts: after
/// `cudaDeviceReset` their kernels are no longer valid.
inline result<const kernel *> kernel_of(const void *symbol, const std::vector<std::size_t> &sizes) {
    static std::shared_mutex mutex;
    static std::map<std::pair<const void *, int>, kernel> kernels;
    int device = 0;
    if (cudaError_t code = cudaGetDevice(&device)) return runtime_error("cudaGetDevice", code);
    {
        std::shared_lock<std::shared_mutex> lock(mutex);
        auto found = kernels.find({symbol, device});
        if (found != kernels.end()) return &found->second;
    }
    // Makes the runtime load the kernel, and its context current.
    cudaFunction_t function = nullptr;
    if (cudaError_t code = cudaGetFuncBySymbol(&function, symbol)) {
        return runtime_error("cudaGetFuncBySymbol", code);
    }
    auto guarded = guard::of_context();
    if (!guarded) return std::move(guarded).error();
    auto made = kernel::of_function(*guarded, function, nullptr, sizes);
    if (!made) return std::move(made).error();
    std::unique_lock<std::shared_mutex> lock(mutex);
    return &kernels.try_emplace({symbol, device}, std::move(made).value()).first->second;
}

} // namespace detail

/// What `GG_LAUNCH` calls.
template <class... P, class... A>
result<std::uint64_t> launch_at(const char *file, int line, void (*function)(P...), split grid,
                                dim3 block, std::size_t shared, cudaStream_t stream,
                                A &&...arguments) {
    static_assert(sizeof...(P) == sizeof...(A), "the kernel takes another number of arguments");
    constexpr std::size_t count = sizeof...(P);
    static const std::vector<std::size_t> sizes{sizeof(P)...};
    auto found = detail::kernel_of(reinterpret_cast<const void *>(function), sizes);
    if (!found) return std::move(found).error().at(file, line);

    gg_following following[count + 1] = {};
    using list = std::tuple<std::remove_const_t<P>...>;
    list values = detail::values_of<list>(following, std::index_sequence_for<P...>(),
                                          std::forward<A>(arguments)...);
    void *params[count + 1] = {};
    std::size_t next = 0;
    std::apply([&](auto &...value) { ((params[next++] = &value), ...); }, values);

    config config(grid.blocks, {block.x, block.y, block.z}, shared);
    config.stream = stream;
    if (!grid.items) {
        auto launched = (*found)->launch(config, params);
        if (!launched) return std::move(launched).error().at(file, line);
        return launched;
    }
    std::uint32_t followers = 0;
    for (std::uint32_t i = 0; i < count; i++) {
        if (following[i].kind == 0) continue;
        following[followers] = following[i];
        following[followers++].parameter = i;
    }
    grid.items->following = following;
    grid.items->following_count = followers;
    auto launched = (*found)->launch(config, params, &*grid.items);
    if (!launched) return std::move(launched).error().at(file, line);
    return launched;
}

} // namespace gridguard

#endif
