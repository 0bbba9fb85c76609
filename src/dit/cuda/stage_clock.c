/* stage_clock.c - see stage_clock.h. */
#include "stage_clock.h"

#include <stdlib.h>

static cudaError_t grow(stage_clock *clock)
{
    const int room = clock->room ? 2 * clock->room : 64;
    cudaEvent_t *events = realloc(clock->events, (size_t)room * sizeof *events);
    if (!events) return cudaErrorMemoryAllocation;
    clock->events = events;
    while (clock->room < room) {
        cudaError_t result = cudaEventCreate(&events[clock->room]);
        if (result != cudaSuccess) return result;
        clock->room++;
    }
    return cudaSuccess;
}

cudaError_t stage_clock_mark(stage_clock *clock, cudaStream_t stream)
{
    if (clock->used == clock->room) {
        cudaError_t result = grow(clock);
        if (result != cudaSuccess) return result;
    }
    return cudaEventRecord(clock->events[clock->used++], stream);
}

cudaError_t stage_clock_read(stage_clock *clock)
{
    const int used = clock->used;
    clock->used = 0;
    for (int i = 0; i + 1 < used; i += 2) {
        float milliseconds = 0;
        cudaError_t result = cudaEventElapsedTime(&milliseconds, clock->events[i], clock->events[i + 1]);
        if (result != cudaSuccess) return result;
        clock->seconds += milliseconds * 1e-3;
    }
    return cudaSuccess;
}

void stage_clock_free(stage_clock *clock)
{
    for (int i = 0; i < clock->room; i++) cudaEventDestroy(clock->events[i]);
    free(clock->events);
    *clock = (stage_clock){ 0 };
}
