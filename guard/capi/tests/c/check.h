/* What the test programs share: checks that end the program, and structures of zeros. */
#ifndef CHECK_H
#define CHECK_H

#include <gridguard.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

#define CHECK_STATUS(expected, call) check_status(expected, call, #call, __LINE__)

/* A structure of zeros with its size. */
#define ZEROED(type, name)                                                                 \
    type name;                                                                             \
    memset(&name, 0, sizeof name);                                                         \
    name.struct_size = sizeof name

static inline void check_status(gg_status expected, gg_status status, const char *call, int line) {
    if (status != expected) {
        fprintf(stderr, "line %d: status %d, expected %d: %s\n", line, (int)status,
                (int)expected, call);
        exit(1);
    }
}

/* Checks the beginning of an error's message, and frees it. */
static inline void check_error(gg_error *error, gg_status status, const char *begin) {
    const char *message = gg_error_message(error);
    CHECK(message != NULL);
    if (gg_error_status(error) != status || strncmp(message, begin, strlen(begin)) != 0) {
        fprintf(stderr, "status %d: %s\n  expected %d: %s\n", (int)gg_error_status(error),
                message, (int)status, begin);
        exit(1);
    }
    CHECK(gg_free(error) == GG_OK);
}

/* The motivating launch: 76,800 blocks on y, as 15,360 items of 5 blocks. */
static inline gg_config attention(void) {
    ZEROED(gg_config, config);
    config.grid.x = 1;
    config.grid.y = 76800;
    config.grid.z = 1;
    config.block.x = 128;
    config.block.y = 1;
    config.block.z = 1;
    return config;
}

static inline gg_batch items_of_five(void) {
    ZEROED(gg_batch, batch);
    batch.axis = GG_AXIS_Y;
    batch.items = 15360;
    batch.blocks_per_item = 5;
    return batch;
}

#endif
