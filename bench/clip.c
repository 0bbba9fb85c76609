/* clip.c - see clip.h.
 *
 * A step drifts by 0.1 of the size of a number: x becomes sqrt(1 - 0.01) x + 0.1 times a new one.  Choices that are
 * reused are a little out of date, and clusters that follow have something to follow. */
#include "clip.h"

#include "base/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DRIFT 0.1f

static size_t head_bytes(const mcsa_tensor *t)
{
    return (size_t)t->stride[0] * mcsa_dtype_bytes(t->dtype);
}

static mcsa_tensor *tensors_of(bench_moment *moment, int i)
{
    mcsa_tensor *const all[] = { &moment->q, &moment->k, &moment->v };
    return all[i];
}

static void drift(const mcsa_tensor *to, const mcsa_tensor *from, uint64_t seed)
{
    const float kept = sqrtf(1 - DRIFT * DRIFT);
    for (int64_t h = 0, i = 0; h < from->shape[0]; h++)
        for (int64_t n = 0; n < from->shape[1]; n++)
            for (int64_t d = 0; d < from->shape[2]; d++)
                bench_store(to, i++, kept * (float)bench_element(from, h, n, d) + DRIFT * bench_bell(&seed));
}

static mcsa_status fill_host(bench_clip *clip, mcsa_error *error)
{
    const size_t bytes = (size_t)clip->problem.q.shape[0] * head_bytes(&clip->problem.q);
    clip->host[0] = (bench_moment){ clip->problem.q, clip->problem.k, clip->problem.v };
    if (mcsa_block_reserve(&clip->problem.memory, &clip->drifted, 3 * (BENCH_CLIP_STEPS - 1) * bytes))
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d steps of %zu bytes", BENCH_CLIP_STEPS, 3 * bytes);
    char *room = clip->drifted.data;
    for (int step = 1; step < BENCH_CLIP_STEPS; step++)
        for (int i = 0; i < 3; i++, room += bytes) {
            mcsa_tensor *to = tensors_of(&clip->host[step], i);
            *to = clip->problem.q;
            to->data = room;
            drift(to, tensors_of(&clip->host[step - 1], i), (uint64_t)(3 * step + i));
        }
    return MCSA_OK;
}

static mcsa_status put_heads(bench_clip *clip, const mcsa_tensor *to, const mcsa_tensor *from, mcsa_error *error)
{
    const size_t bytes = head_bytes(to);
    for (int64_t h = 0; h < to->shape[0]; h++) {
        const char *head = (const char *)from->data + (size_t)(h % from->shape[0]) * bytes;
        TRY(clip->kernels->write(clip->state, head, bytes, (char *)to->data + (size_t)h * bytes, error));
    }
    return MCSA_OK;
}

/* Lays out 3 tensors for each step, then out, then lse. */
static mcsa_status place(bench_clip *clip, const bench_shape *shape, mcsa_error *error)
{
    const size_t rows = (size_t)shape->heads * (size_t)shape->tokens;
    const size_t bytes = (rows * (size_t)shape->dim * mcsa_dtype_bytes(shape->dtype) + 255) / 256 * 256;
    const size_t tensors = 3 * BENCH_CLIP_STEPS + 1;
    clip->memory = (mcsa_memory){ .allocator = clip->kernels->memory(clip->state) };
    if (mcsa_block_reserve(&clip->memory, &clip->block, tensors * bytes + rows * sizeof *clip->lse))
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for %zu tensors of %zu bytes", tensors, bytes);
    char *room = clip->block.data;
    clip->out = clip->problem.q;
    clip->out.shape[0] = shape->heads;
    for (int i = 0; i < 3 * BENCH_CLIP_STEPS; i++, room += bytes) {
        mcsa_tensor *to = tensors_of(&clip->there[i / 3], i % 3);
        *to = clip->out;
        to->data = room;
        TRY(put_heads(clip, to, tensors_of(&clip->host[i / 3], i % 3), error));
    }
    clip->out.data = room;
    clip->lse = (float *)(void *)(room + bytes);
    clip->scale = clip->problem.x.scale;
    return MCSA_OK;
}

mcsa_status bench_clip_open(bench_clip *clip, const bench_plan *plan, mcsa_error *error)
{
    bench_shape first = plan->shape;
    const mcsa_config config = { .threads = first.threads, .isa = first.isa, .device = plan->device };
    if (first.heads > BENCH_CLIP_HEADS) first.heads = BENCH_CLIP_HEADS;
    memset(clip, 0, sizeof *clip);
    TRY(rival_kernels_find(&clip->kernels, plan->device, error));
    TRY(bench_problem_open(&clip->problem, &first, BENCH_CLUSTERS, error));
    mcsa_status status = clip->kernels->open(&clip->state, &config, error);
    if (status == MCSA_OK) status = fill_host(clip, error);
    if (status == MCSA_OK) status = place(clip, &plan->shape, error);
    if (status != MCSA_OK) bench_clip_close(clip);
    return status;
}

void bench_clip_close(bench_clip *clip)
{
    if (clip->state) {
        mcsa_block_release(&clip->memory, &clip->block);
        clip->kernels->close(clip->state);
    }
    if (clip->problem.block.data) {
        mcsa_block_release(&clip->problem.memory, &clip->drifted);
        bench_problem_close(&clip->problem);
    }
    clip->state = NULL;
}

mcsa_status bench_clip_poison(bench_clip *clip, mcsa_error *error)
{
    return put_heads(clip, &clip->out, &clip->problem.out, error);
}

int bench_clip_sample(const bench_clip *clip, int32_t *index)
{
    const int64_t N = clip->out.shape[1];
    const int count = N < BENCH_CLIP_ROWS ? (int)N : BENCH_CLIP_ROWS;
    for (int i = 0; i < count; i++) index[i] = count > 1 ? (int32_t)(i * (N - 1) / (count - 1)) : 0;
    return count;
}

mcsa_status bench_clip_fetch(bench_clip *clip, float *rows, mcsa_error *error)
{
    int32_t index[BENCH_CLIP_ROWS];
    const int count = bench_clip_sample(clip, index);
    const size_t D = (size_t)clip->out.shape[2], H = (size_t)clip->out.shape[0];
    float *all = malloc(sizeof *all * H * (size_t)count * D); /* [H, count, D] */
    if (!all) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d rows of %zu heads", count, H);
    mcsa_status status = clip->kernels->read_rows(clip->state, &clip->out, index, count, all, error);
    for (int i = 0; status == MCSA_OK && i < count; i++) {
        const size_t from = (size_t)bench_clip_head(clip, i) * (size_t)count + (size_t)i;
        memcpy(rows + (size_t)i * D, all + from * D, sizeof *rows * D);
    }
    free(all);
    return status;
}
