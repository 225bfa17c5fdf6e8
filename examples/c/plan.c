/* Plans a launch without a GPU: on which launches it takes, or why there is no plan.
 *
 *   plan GPU BLOCKS_ON_Y THREADS ITEMS
 *
 * BLOCKS_ON_Y blocks belong to ITEMS independent items, such as `plan h200 76800 128 15360`. The exit status
 * is 0 if the launch is legal or can be split, 1 if not, 2 for wrong arguments.
 */
#include <errno.h>
#include <gridguard.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { SHOWN = 4 };

static int number(const char *text, uint64_t *value) {
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == 0 && text[0] != '-';
}

/* Prints an error, frees it, and returns the exit status. */
static int failed(gg_error *error) {
    int status = gg_error_status(error) == GG_REJECTED ? 1 : 2;
    fprintf(stderr, "%s\n", gg_error_message(error));
    gg_free(error);
    return status;
}

int main(int count, char **arguments) {
    uint64_t blocks, threads, items;
    if (count != 5 || !number(arguments[2], &blocks) || !number(arguments[3], &threads) ||
        !number(arguments[4], &items)) {
        fprintf(stderr, "usage: %s GPU BLOCKS_ON_Y THREADS ITEMS\n", arguments[0]);
        return 2;
    }
    gg_error *error = NULL;
    gg_limits *limits = NULL;
    if (gg_limits_of_gpu(arguments[1], NULL, &limits, &error) != GG_OK) return failed(error);

    gg_config config = {
        .struct_size = sizeof config, .grid = {1, blocks, 1}, .block = {threads, 1, 1}};
    gg_batch batch = {.struct_size = sizeof batch,
                      .axis = GG_AXIS_Y,
                      .items = items,
                      .blocks_per_item = items == 0 ? 1 : blocks / items};
    gg_plan_info plan = {.struct_size = sizeof plan};
    if (gg_plan(limits, &config, &batch, &plan, 0, NULL, 0, &error) != GG_OK) {
        gg_free(limits);
        return failed(error);
    }
    printf("%" PRIu64 " launches of at most %" PRIu64 " items\n", plan.launches,
           plan.largest_items);

    /* A long plan is read in parts. */
    gg_chunk chunks[SHOWN];
    for (uint64_t first = 0; first < plan.launches; first += SHOWN) {
        if (gg_plan(limits, &config, &batch, &plan, first, chunks, SHOWN, &error) != GG_OK) {
            gg_free(limits);
            return failed(error);
        }
        for (uint64_t i = 0; i < SHOWN && first + i < plan.launches; i++) {
            printf("items %" PRIu64 " to %" PRIu64 ": grid %" PRIu32 " x %" PRIu32 " x %" PRIu32 "\n",
                   chunks[i].start, chunks[i].start + chunks[i].items, chunks[i].grid[0],
                   chunks[i].grid[1], chunks[i].grid[2]);
        }
    }
    gg_free(limits);
    return 0;
}
