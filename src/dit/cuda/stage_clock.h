/* stage_clock.h - what a stage costs on a GPU: pairs of events around its pieces, read when the work is known to be
 * done. */
#ifndef MCSA_DIT_CUDA_STAGE_CLOCK_H
#define MCSA_DIT_CUDA_STAGE_CLOCK_H

#include <cuda_runtime_api.h>

typedef struct stage_clock {
    cudaEvent_t *events; /* [room]: begin and end in turn */
    int used, room;
    double seconds; /* of the pairs read so far */
} stage_clock;

cudaError_t stage_clock_mark(stage_clock *clock, cudaStream_t stream); /* begins a piece, and the next call ends it */
cudaError_t stage_clock_read(stage_clock *clock);                      /* adds the pairs; all marks must have passed */
void stage_clock_free(stage_clock *clock);

#endif
