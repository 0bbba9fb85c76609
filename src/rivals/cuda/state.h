/* state.h - what the verbs on a GPU share: where they compute, and the arrays of one call.
 *
 * A verb lays its arrays, launches, and fetches what the host is to have.  What goes up passes through page-locked
 * memory that stays as it is: an array found there as it was, at the same place, is on the GPU already and is not sent
 * again, which spares most calls of a method the order of their rows.  Memory only grows. */
#ifndef RIVALS_CUDA_STATE_H
#define RIVALS_CUDA_STATE_H

#include "kernels.h"
#include "rivals/kernels.h"

/* A block of the GPU and its image in page-locked memory. */
typedef struct rival_mirror {
    void *host, *device;
    size_t bytes, equal; /* of each; the first `equal` are the same on both sides */
} rival_mirror;

/* Arrays that are laid together.  A verb that lays again before it is done takes the second room. */
typedef struct rival_room {
    rival_mirror uploads;
    void *results; /* of the GPU */
    size_t results_bytes;
} rival_room;

enum { ROOM_FIRST, ROOM_SECOND, ROOMS };

typedef struct rival_cuda {
    int device, processors, threads; /* threads: of host loops */
    cudaStream_t stream;
    rival_room rooms[ROOMS];
    void *landing; /* page-locked, for what comes back */
    size_t landing_bytes;
} rival_cuda;

/* One array of a call, aligned to 256 bytes. */
typedef struct rival_array {
    const void *host; /* what goes up, or NULL: space for results */
    size_t bytes;
    void *device; /* set by lay */
} rival_array;

static inline rival_array rival_space(size_t bytes)
{
    return (rival_array){ NULL, bytes, NULL };
}

static inline rival_array rival_up(const void *host, size_t bytes)
{
    return (rival_array){ host, bytes, NULL };
}

static inline rival_array rival_order_of(const rival_partition *p)
{
    return rival_up(p->order, sizeof *p->order * (size_t)p->H * (size_t)p->N);
}

static inline rival_array rival_first_of(const rival_partition *p)
{
    return rival_up(p->first, sizeof *p->first * (size_t)p->H * (size_t)(p->P + 1));
}

/* A partition whose arrays have been laid. */
static inline rival_parts rival_cuda_parts(const rival_partition *p, const rival_array *order, const rival_array *first)
{
    return (rival_parts){ order->device, first->device, p->H, p->N, p->P };
}

/* Names the GPU of this thread; every verb begins with it or with lay. */
mcsa_status rival_cuda_enter(rival_cuda *cuda, mcsa_error *error);
mcsa_status rival_cuda_lay(rival_cuda *cuda, int room, rival_array *arrays, int count, mcsa_error *error);
void rival_cuda_release(rival_cuda *cuda);

/* MCSA_EDEVICE with a sentence unless `result` is success. */
mcsa_status rival_cuda_judge(const rival_cuda *cuda, const char *what, cudaError_t result, mcsa_error *error);

/* Waits for `launched`; fetch copies `bytes` of the GPU to the host as well. */
mcsa_status rival_cuda_finish(rival_cuda *cuda, const char *what, cudaError_t launched, mcsa_error *error);
mcsa_status rival_cuda_fetch(rival_cuda *cuda, const char *what, cudaError_t launched, const rival_array *from,
                             void *to, mcsa_error *error);

/* Rows as the kernels read them, or MCSA_EUNSUPPORTED: 16-bit numbers, D of 64 or 128, a stride of 1 along D, other
 * strides and the address multiples of 16 bytes. */
mcsa_status rival_cuda_rows_of(rival_rows *rows, const mcsa_tensor *x, const char *name, mcsa_error *error);
mcsa_status rival_cuda_check_call(const mcsa_qkv *x, mcsa_error *error);

/* The verbs of rivals/kernels.h, by file. */

/* parts.c */
mcsa_status rival_cuda_pool(void *state, const mcsa_tensor *x, const rival_partition *parts, float *mean,
                            mcsa_error *error);
mcsa_status rival_cuda_cosine(void *state, const mcsa_tensor *x, const rival_partition *parts, const float *shift,
                              float *cosine, mcsa_error *error);
mcsa_status rival_cuda_assign(void *state, const mcsa_tensor *x, int P, const float *centre, int32_t *label,
                              mcsa_error *error);
mcsa_status rival_cuda_outer(void *state, const mcsa_qkv *x, const rival_partition *keys, const float *mean,
                             float *outer, mcsa_error *error);
/* scores.c */
mcsa_status rival_cuda_mass(void *state, const mcsa_qkv *x, const rival_partition *queries, const rival_partition *keys,
                            const float *lse, float *mass, mcsa_error *error);
mcsa_status rival_cuda_error(void *state, const mcsa_qkv *x, int Q, const float *query, const rival_partition *keys,
                             const float *key, const float *value, float *out, mcsa_error *error);
mcsa_status rival_cuda_diagonal(void *state, const mcsa_qkv *x, int stride, int size, float *block, mcsa_error *error);
/* attend.c */
mcsa_status rival_cuda_attend(void *state, const mcsa_qkv *x, const rival_partition *queries,
                              const rival_partition *keys, const rival_map *map, float *lse, mcsa_error *error);
/* tail.c */
mcsa_status rival_cuda_tail(void *state, const mcsa_qkv *x, const rival_partition *queries, const rival_map *map,
                            const rival_tail *tail, float *lse, mcsa_error *error);
/* rows.c */
mcsa_status rival_cuda_read_rows(void *state, const mcsa_tensor *x, const int32_t *index, int count, float *rows,
                                 mcsa_error *error);
mcsa_status rival_cuda_read(void *state, const void *from, size_t bytes, void *to, mcsa_error *error);
mcsa_status rival_cuda_write(void *state, const void *from, size_t bytes, void *to, mcsa_error *error);
mcsa_status rival_cuda_subtract(void *state, const mcsa_tensor *dense, const mcsa_tensor *sparse, void *residual,
                                mcsa_error *error);
mcsa_status rival_cuda_add(void *state, const mcsa_tensor *out, const void *residual, mcsa_error *error);

#endif
