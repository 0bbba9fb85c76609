/* clock.c - see clock.h.
 *
 * While the stream is captured in a graph nothing is recorded, because events in a graph cannot be timed, and nothing
 * is read, because that would end the capture. */
#include "clock.h"

static mcsa_cuda_lap *lap_at(mcsa_cuda_clock *clock, int64_t i)
{
    return &clock->laps[i % MCSA_CUDA_LAPS];
}

static int captured(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status;
    if (cudaStreamIsCapturing(stream, &status) == cudaSuccess) return status != cudaStreamCaptureStatusNone;
    cudaGetLastError(); /* the legacy stream says so with an error while another one is captured */
    return 1;
}

/* Adds up the laps that are done, or waits for all. */
static cudaError_t add_up(mcsa_cuda_clock *clock, int wait)
{
    for (; clock->next - clock->first > 1; clock->first++) {
        mcsa_cuda_lap *from = lap_at(clock, clock->first), *to = lap_at(clock, clock->first + 1);
        float ms;
        cudaError_t error = wait ? cudaEventSynchronize(to->event) : cudaEventQuery(to->event);
        if (error == cudaSuccess && to->stage) {
            error = cudaEventElapsedTime(&ms, from->event, to->event);
            if (error == cudaSuccess) *to->stage += 1e-3 * (double)ms;
        }
        if (error == cudaSuccess) continue;
        cudaGetLastError();
        return error == cudaErrorNotReady ? cudaSuccess : error;
    }
    return cudaSuccess;
}

static int record(mcsa_cuda_clock *clock, cudaStream_t stream, double *stage)
{
    if (captured(stream)) return 0;
    if (clock->next - clock->first == MCSA_CUDA_LAPS) add_up(clock, 0);
    if (clock->next - clock->first == MCSA_CUDA_LAPS) return 0;
    mcsa_cuda_lap *lap = lap_at(clock, clock->next);
    if ((!lap->event && cudaEventCreate(&lap->event) != cudaSuccess) ||
        cudaEventRecord(lap->event, stream) != cudaSuccess) {
        cudaGetLastError(); /* no time rather than no attention */
        return 0;
    }
    lap->stage = stage;
    clock->next++;
    return 1;
}

void mcsa_cuda_clock_lap(mcsa_cuda_clock *clock, cudaStream_t stream, double *stage)
{
    if (!stage || clock->running) clock->running = record(clock, stream, stage);
}

cudaError_t mcsa_cuda_clock_settle(mcsa_cuda_clock *clock, cudaStream_t stream)
{
    return captured(stream) ? cudaSuccess : add_up(clock, 1);
}

void mcsa_cuda_clock_free(mcsa_cuda_clock *clock)
{
    for (int i = 0; i < MCSA_CUDA_LAPS && clock->laps[i].event; i++) cudaEventDestroy(clock->laps[i].event);
}
