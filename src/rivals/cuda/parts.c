/* parts.c - what a method asks about the rows of a partition: means, cosines, nearest centres, outer products. */
#include "state.h"

mcsa_status rival_cuda_pool(void *state, const mcsa_tensor *x, const rival_partition *parts, float *mean,
                            mcsa_error *error)
{
    rival_cuda *cuda = state;
    rival_rows rows;
    TRY(rival_cuda_rows_of(&rows, x, "x", error));
    rival_array a[] = { rival_order_of(parts), rival_first_of(parts),
                        rival_space(sizeof *mean * parts->H * parts->P * rows.D) };
    TRY(rival_cuda_lay(cuda, ROOM_FIRST, a, 3, error));
    const rival_parts on_gpu = rival_cuda_parts(parts, &a[0], &a[1]);
    return rival_cuda_fetch(cuda, "pooling", rival_launch_pool(&rows, &on_gpu, a[2].device, cuda->stream), &a[2], mean,
                            error);
}

mcsa_status rival_cuda_cosine(void *state, const mcsa_tensor *x, const rival_partition *parts, const float *shift,
                              float *cosine, mcsa_error *error)
{
    rival_cuda *cuda = state;
    rival_rows rows;
    TRY(rival_cuda_rows_of(&rows, x, "x", error));
    rival_array a[] = { rival_order_of(parts), rival_first_of(parts), rival_up(shift, sizeof *shift * rows.H * rows.D),
                        rival_space(sizeof *cosine * parts->H * parts->P) };
    TRY(rival_cuda_lay(cuda, ROOM_FIRST, a, 4, error));
    const rival_parts on_gpu = rival_cuda_parts(parts, &a[0], &a[1]);
    cudaError_t launched = rival_launch_cosine(&rows, &on_gpu, shift ? a[2].device : NULL, a[3].device, cuda->stream);
    return rival_cuda_fetch(cuda, "the cosines of parts", launched, &a[3], cosine, error);
}

mcsa_status rival_cuda_assign(void *state, const mcsa_tensor *x, int P, const float *centre, int32_t *label,
                              mcsa_error *error)
{
    rival_cuda *cuda = state;
    rival_rows rows;
    TRY(rival_cuda_rows_of(&rows, x, "x", error));
    rival_array a[] = { rival_up(centre, sizeof *centre * rows.H * P * rows.D),
                        rival_space(sizeof *label * rows.H * rows.N) };
    TRY(rival_cuda_lay(cuda, ROOM_FIRST, a, 2, error));
    cudaError_t launched = rival_launch_assign(&rows, P, a[0].device, a[1].device, cuda->stream);
    return rival_cuda_fetch(cuda, "the assignment to centres", launched, &a[1], label, error);
}

mcsa_status rival_cuda_outer(void *state, const mcsa_qkv *x, const rival_partition *keys, const float *mean,
                             float *outer, mcsa_error *error)
{
    rival_cuda *cuda = state;
    rival_outer_job job;
    TRY(rival_cuda_rows_of(&job.k, x->k, "k", error));
    TRY(rival_cuda_rows_of(&job.v, x->v, "v", error));
    const size_t square = sizeof *outer * keys->H * job.k.D * job.k.D;
    rival_array a[] = { rival_order_of(keys), rival_first_of(keys),
                        rival_up(mean, sizeof *mean * keys->H * keys->P * job.k.D),
                        rival_space(square * RIVAL_CUDA_OUTER_PIECES), rival_space(square) };
    TRY(rival_cuda_lay(cuda, ROOM_FIRST, a, 5, error));
    job.parts = rival_cuda_parts(keys, &a[0], &a[1]);
    job.mean = a[2].device;
    job.pieces = a[3].device;
    job.outer = a[4].device;
    return rival_cuda_fetch(cuda, "the outer products", rival_launch_outer(&job, cuda->stream), &a[4], outer, error);
}
