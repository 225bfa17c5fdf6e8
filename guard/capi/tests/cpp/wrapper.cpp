// The C++ wrapper without a GPU.
#include <gridguard.hpp>

#include <cstdlib>
#include <iostream>
#include <type_traits>

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            std::cerr << __FILE__ << ":" << __LINE__ << ": " << #condition << "\n";        \
            std::exit(1);                                                                  \
        }                                                                                  \
    } while (0)

using namespace gridguard;

static_assert(std::is_nothrow_move_constructible_v<limits>);
static_assert(!std::is_copy_constructible_v<limits>);

static void a_launch_is_validated() {
    kernel_info info("attention");
    auto limits = limits::of_gpu("h200", &info).value();
    CHECK(std::string(limits.device().name) == "NVIDIA H200");
    config config({1, 76800}, {128}); // omitted sizes are 1
    CHECK(config.grid.z == 1 && config.block.y == 1 && config.block.z == 1);
    auto valid = limits.validate(config);
    CHECK(!valid);
    CHECK(valid.error().status() == GG_REJECTED);
    CHECK(valid.error().driver_code() == 1);
    CHECK(valid.error().message().rfind("grid.y is 76800 blocks", 0) == 0);
    CHECK(valid.error().explain().rfind("CUDA_ERROR_INVALID_VALUE (1)", 0) == 0);
    CHECK(!valid.error().progress());
    auto violations = valid.error().violations();
    CHECK(violations.size() == 1 && violations[0].rule == "grid-dim-y");
    CHECK(violations[0].requested == 76800 && violations[0].limit == 65535);
    auto placed = std::move(valid).error().at("server.cu", 12);
    CHECK(placed.message().rfind("server.cu:12: grid.y is 76800 blocks", 0) == 0);
    config.grid.y = 1;
    CHECK(limits.validate(config).has_value());
}

static void a_launch_is_planned() {
    auto limits = limits::of_gpu("any").value();
    config config({1, 76800}, {128}, 1024);
    batch items(GG_AXIS_Y, 15360, 5);
    auto plan = limits.plan(config, &items);
    CHECK(plan && plan->chunks.size() == 2 && plan->info.largest_items == 7680);
    items.max_items = 10;
    plan = limits.plan(config, &items, 5);
    CHECK(plan->info.launches == 1536 && plan->chunks.size() == 5);
    CHECK(!limits.plan(config));
}

static void failures_throw_where_a_value_is_wanted() {
    auto none = limits::of_gpu("no such GPU");
    CHECK(!none.has_value());
    try {
        (void)none.value();
        CHECK(false);
    } catch (const failure &thrown) {
        CHECK(thrown.status() == GG_NOT_FOUND);
        CHECK(std::string(thrown.what()) == none.error().message());
    }
}

static void requests_are_checked_as_json() {
    auto limits = limits::of_gpu("l4").value();
    auto verdict = limits.check_json(R"({"grid": [1, 1, 1], "block": [128, 1, 1]})");
    CHECK(verdict && verdict->find("\"verdict\":\"legal\"") != std::string::npos);
    CHECK(limits.check_json("{").error().status() == GG_INVALID_ARGUMENT);
}

static void launches_need_a_driver() {
    auto none = guard::of_context();
    CHECK(!none && none.error().status() == GG_DRIVER);
    CHECK(!limits::of_device(0));
}

int main() {
    a_launch_is_validated();
    a_launch_is_planned();
    failures_throw_where_a_value_is_wanted();
    requests_are_checked_as_json();
    launches_need_a_driver();
    return 0;
}
