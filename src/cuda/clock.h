/* clock.h - GPU time by stage without waiting: an event at every lap, read when somebody asks for the sums. */
#ifndef MCSA_CUDA_CLOCK_H
#define MCSA_CUDA_CLOCK_H

#include <stdint.h>

#include <cuda_runtime_api.h>

enum {
    /* More than the driver queues (about a thousand launches, and a lap has one at least), so that the oldest lap is
     * done when its place is wanted again. */
    MCSA_CUDA_LAPS = 4096
};

typedef struct mcsa_cuda_lap {
    cudaEvent_t event; /* created when first used */
    double *stage;     /* gets the time since the lap before this one; NULL: a start */
} mcsa_cuda_lap;

typedef struct mcsa_cuda_clock {
    mcsa_cuda_lap laps[MCSA_CUDA_LAPS]; /* a ring; first ... next - 1 are not yet added up */
    int64_t first, next;
    int running; /* the last lap was recorded, so that the next one can end there */
} mcsa_cuda_clock;

void mcsa_cuda_clock_lap(mcsa_cuda_clock *clock, cudaStream_t stream, double *stage);

/* Waits for all laps and adds them up, unless the stream is being captured.  Returns what the GPU says. */
cudaError_t mcsa_cuda_clock_settle(mcsa_cuda_clock *clock, cudaStream_t stream);
void mcsa_cuda_clock_free(mcsa_cuda_clock *clock);

#endif
