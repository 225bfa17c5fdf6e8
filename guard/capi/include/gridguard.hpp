// gridguard in C++17: owning handles, and results instead of statuses. Link libgridguard.
//
//   auto limits = gridguard::limits::of_gpu("h200").value();
//   gridguard::config config({1, 76800}, {128});
//   if (auto valid = limits.validate(config); !valid) std::cerr << valid.error().message();
#ifndef GRIDGUARD_HPP
#define GRIDGUARD_HPP

#if __cplusplus < 201703L && !(defined(_MSVC_LANG) && _MSVC_LANG >= 201703L)
#error "gridguard.hpp needs C++17: compile with -std=c++17 or later"
#endif

#include "gridguard.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gridguard {

/// Frees the object of a handle.
struct free_handle {
    void operator()(void *handle) const noexcept { gg_free(handle); }
};

/// The owner of a handle.
template <class T> using owned = std::unique_ptr<T, free_handle>;

/// A text of the library, or an empty one.
inline std::string to_string(const char *text) { return text == nullptr ? "" : text; }

/// One rule that a launch breaks.
struct violation {
    std::string rule, message;
    std::uint64_t requested, limit;
    std::uint32_t axis;
};

/// Why a call failed.
class error {
  public:
    error(gg_status status, gg_error *handle)
        : status_(status), handle_(handle), text_(to_string(gg_error_message(handle))) {}
    /// An error of other code.
    error(gg_status status, std::string text) : status_(status), text_(std::move(text)) {}

    gg_status status() const noexcept { return status_; }
    int driver_code() const noexcept { return gg_error_driver_code(handle_.get()); }

    /// What failed, after the place in the program where that is known.
    const std::string &message() const noexcept { return text_; }

    std::vector<violation> violations() const {
        std::vector<violation> all;
        gg_violation one{};
        one.struct_size = sizeof one;
        for (std::size_t i = 0; gg_error_violation(handle_.get(), i, &one) == GG_OK; i++) {
            all.push_back({one.rule, one.message, one.requested, one.limit, one.axis});
        }
        return all;
    }

    /// How far a split launch came, where the driver refused it at a chunk.
    std::optional<gg_progress> progress() const {
        gg_progress progress{};
        progress.struct_size = sizeof progress;
        if (gg_error_progress(handle_.get(), &progress) != GG_OK) return std::nullopt;
        return progress;
    }

    /// What CUDA calls the failure, its causes and their remedies; empty where CUDA has no error for it.
    std::string explain() const {
        gg_text *text = nullptr;
        gg_error_explain(handle_.get(), &text, nullptr);
        return to_string(gg_text_data(owned<gg_text>(text).get()));
    }

    /// The same error, whose message begins with a place in the program.
    error at(const char *file, int line) && {
        text_ = std::string(file) + ":" + std::to_string(line) + ": " + text_;
        return std::move(*this);
    }

  private:
    gg_status status_;
    owned<gg_error> handle_;
    std::string text_;
};

/// What `result::value` throws where there is an error.
class failure : public std::runtime_error {
  public:
    failure(gg_status status, const std::string &message)
        : std::runtime_error(message), status_(status) {}
    gg_status status() const noexcept { return status_; }

  private:
    gg_status status_;
};

/// A value or an error, as `std::expected` of C++23.
template <class T> class [[nodiscard]] result {
  public:
    result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    result(gridguard::error why) : state_(std::in_place_index<1>, std::move(why)) {}

    bool has_value() const noexcept { return state_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }

    /// The value; throws `failure` if there is none.
    T &value() & { return check(), std::get<0>(state_); }
    const T &value() const & { return check(), std::get<0>(state_); }
    T value() && { return check(), std::move(std::get<0>(state_)); }
    T *operator->() { return &value(); }
    T &operator*() & { return value(); }

    /// The error; throws `std::bad_variant_access` if there is a value.
    const gridguard::error &error() const & { return std::get<1>(state_); }
    gridguard::error error() && { return std::get<1>(std::move(state_)); }

  private:
    void check() const {
        if (!has_value()) throw failure(error().status(), error().message());
    }
    std::variant<T, gridguard::error> state_;
};

/// The result of a call without a value.
using status = result<std::monostate>;

/// What `call` returns through its last two arguments, as an owner.
template <class Owner, class Handle, class Call> result<Owner> make(Call &&call) {
    Handle *handle = nullptr;
    gg_error *error_handle = nullptr;
    const gg_status code = call(&handle, &error_handle);
    if (code != GG_OK) return error(code, error_handle);
    return Owner(handle);
}

/// Three sizes in 64 bits. Those left out are 1, as in CUDA's `dim3`.
struct sizes : gg_dim3 {
    constexpr sizes(std::uint64_t along_x = 1, std::uint64_t along_y = 1, std::uint64_t along_z = 1)
        : gg_dim3{along_x, along_y, along_z} {}
    constexpr sizes(gg_dim3 all) : gg_dim3(all) {}
};

/// A launch configuration: `gg_config` with its size.
struct config : gg_config {
    config(sizes grid_blocks, sizes block_threads, std::uint64_t shared_bytes = 0)
        : gg_config{} {
        struct_size = sizeof(gg_config);
        grid = grid_blocks;
        block = block_threads;
        dynamic_shared_bytes = shared_bytes;
    }
};

/// Independent items along an axis: `gg_batch` with its size.
struct batch : gg_batch {
    batch(std::uint32_t along, std::uint64_t item_count, std::uint64_t blocks = 1) : gg_batch{} {
        struct_size = sizeof(gg_batch);
        axis = along;
        items = item_count;
        blocks_per_item = blocks;
    }
};

/// What is known about a kernel: `gg_kernel_info` with its size.
struct kernel_info : gg_kernel_info {
    explicit kernel_info(const char *kernel_name = nullptr) : gg_kernel_info{} {
        struct_size = sizeof(gg_kernel_info);
        name = kernel_name;
    }
};

/// The launches of a request.
struct plan {
    gg_plan_info info;
    std::vector<gg_chunk> chunks;
};

/// The limits of one kernel on one device.
class limits {
  public:
    explicit limits(gg_limits *handle) : handle_(handle) {}
    const gg_limits *get() const noexcept { return handle_.get(); }

    static result<limits> of_gpu(const std::string &gpu, const gg_kernel_info *kernel = nullptr) {
        return make<limits, gg_limits>(
            [&](auto out, auto error) { return gg_limits_of_gpu(gpu.c_str(), kernel, out, error); });
    }

    static result<limits> of_device(std::uint32_t ordinal, const gg_kernel_info *kernel = nullptr) {
        return make<limits, gg_limits>(
            [&](auto out, auto error) { return gg_limits_of_device(ordinal, kernel, out, error); });
    }

    /// The device's limits. The name is valid as long as this object.
    gg_device_info device() const {
        gg_device_info info{};
        info.struct_size = sizeof info;
        gg_limits_device(get(), &info, nullptr);
        return info;
    }

    status validate(const gg_config &config) const {
        gg_error *handle = nullptr;
        const gg_status code = gg_validate(get(), &config, &handle);
        if (code != GG_OK) return error(code, handle);
        return std::monostate();
    }

    /// The plan, with its first `most` launches.
    result<gridguard::plan> plan(const gg_config &config, const gg_batch *batch = nullptr,
                                 std::uint64_t most = 4096) const {
        gridguard::plan plan{};
        plan.info.struct_size = sizeof plan.info;
        gg_error *handle = nullptr;
        gg_status code = gg_plan(get(), &config, batch, &plan.info, 0, nullptr, 0, &handle);
        if (code == GG_OK) {
            plan.chunks.resize(static_cast<std::size_t>(std::min(plan.info.launches, most)));
            code = gg_plan(get(), &config, batch, &plan.info, 0, plan.chunks.data(),
                           plan.chunks.size(), &handle);
        }
        if (code != GG_OK) return error(code, handle);
        return plan;
    }

    /// Checks a request of `gridguard check --requests`, and returns its verdict; both are JSON.
    result<std::string> check_json(const std::string &request) const {
        auto text = make<owned<gg_text>, gg_text>([&](auto out, auto error) {
            return gg_check_json(get(), request.c_str(), out, error);
        });
        if (!text) return std::move(text).error();
        return to_string(gg_text_data(text.value().get()));
    }

  private:
    owned<gg_limits> handle_;
};

/// Launches in one context.
class guard {
  public:
    explicit guard(gg_guard *handle) : handle_(handle) {}
    const gg_guard *get() const noexcept { return handle_.get(); }

    /// In `context`, a `CUcontext`; null for this thread's current context. `on_event` is called on
    /// whatever thread launches, and must not throw.
    static result<guard> of_context(void *context = nullptr, gg_event_callback on_event = nullptr,
                                    void *user_data = nullptr) {
        gg_guard_options options{};
        options.struct_size = sizeof options;
        options.context = context;
        options.on_event = on_event;
        options.user_data = user_data;
        return make<guard, gg_guard>(
            [&](auto out, auto error) { return gg_guard_create(&options, out, error); });
    }

  private:
    owned<gg_guard> handle_;
};

/// A kernel, with its limits.
class kernel {
  public:
    explicit kernel(gg_kernel *handle) : handle_(handle) {}
    const gg_kernel *get() const noexcept { return handle_.get(); }

    /// From a `CUfunction` or `CUkernel` of the guard's context.
    static result<kernel> of_function(const guard &guard, void *function,
                                      const char *name = nullptr) {
        return make<kernel, gg_kernel>([&](auto out, auto error) {
            return gg_kernel_create(guard.get(), function, name, nullptr, 0, out, error);
        });
    }

    /// From a `CUfunction` or `CUkernel` whose parameters have `sizes` bytes.
    static result<kernel> of_function(const guard &guard, void *function, const char *name,
                                      const std::vector<std::size_t> &sizes) {
        static const std::size_t none = 0;
        const std::size_t *first = sizes.empty() ? &none : sizes.data();
        return make<kernel, gg_kernel>([&](auto out, auto error) {
            return gg_kernel_create(guard.get(), function, name, first, sizes.size(), out, error);
        });
    }

    result<gridguard::limits> limits() const {
        return make<gridguard::limits, gg_limits>(
            [&](auto out, auto error) { return gg_kernel_limits(get(), out, error); });
    }

    /// The number of launches that were submitted. `params` points to the value of each parameter.
    result<std::uint64_t> launch(const gg_config &config, void *const *params,
                                 const gg_batch *batch = nullptr) const {
        std::uint64_t launches = 0;
        gg_error *handle = nullptr;
        const gg_status code = gg_launch(get(), &config, params, batch, &launches, &handle);
        if (code != GG_OK) return error(code, handle);
        return launches;
    }

    /// Waits for a `CUstream`.
    status synchronize(void *stream) const {
        gg_error *handle = nullptr;
        const gg_status code = gg_synchronize(get(), stream, &handle);
        if (code != GG_OK) return error(code, handle);
        return std::monostate();
    }

  private:
    owned<gg_kernel> handle_;
};

} // namespace gridguard

#endif
