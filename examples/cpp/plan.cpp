// Validates a launch for a GPU of the catalogue, and plans its split. Needs no GPU.
//
//   plan GPU      for example `plan h200`
#include <gridguard.hpp>

#include <iostream>

int main(int count, char **arguments) {
    if (count != 2) {
        std::cerr << "usage: " << arguments[0] << " GPU\n";
        return 2;
    }
    auto limits = gridguard::limits::of_gpu(arguments[1]);
    if (!limits) {
        std::cerr << limits.error().message() << "\n";
        return 2;
    }
    // Temporal attention: 15,360 items of 5 blocks each, on y.
    const gridguard::config config({1, 76800}, {128});
    if (auto valid = limits->validate(config); !valid) std::cout << valid.error().message() << "\n";

    const gridguard::batch items(GG_AXIS_Y, 15360, 5);
    auto plan = limits->plan(config, &items);
    if (!plan) {
        std::cerr << plan.error().message() << "\n";
        return 1;
    }
    for (const gg_chunk &chunk : plan->chunks) {
        std::cout << "items " << chunk.start << " to " << chunk.start + chunk.items << ": grid.y "
                  << chunk.grid[1] << "\n";
    }
    return 0;
}
