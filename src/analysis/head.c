/* head.c - see head.h. */
#include "head.h"

#include "base/half.h"
#include "base/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t tensor_bytes(const analysis_head *head)
{
    return (size_t)head->N * (size_t)head->D * mcsa_dtype_bytes(head->x.dims.dtype);
}

static mcsa_status take(const analysis_head *head, size_t bytes, void **block, mcsa_error *error)
{
    mcsa_allocator memory = head->machine->kernels->memory(head->machine->backend);
    *block = memory.alloc(memory.user, bytes);
    if (*block) return MCSA_OK;
    return mcsa_fail(error, MCSA_ENOMEM, "no memory for a head of %d rows, D = %d", head->N, head->D);
}

static void give(const analysis_head *head, void *block, size_t bytes)
{
    if (!block) return;
    mcsa_allocator memory = head->machine->kernels->memory(head->machine->backend);
    memory.free(memory.user, block, bytes);
}

static mcsa_status reserve(analysis_head *head, mcsa_error *error)
{
    mcsa_tensor *there[] = { &head->q, &head->k, &head->v, &head->out };
    void *lse;
    for (int i = 0; i < 4; i++) TRY(take(head, tensor_bytes(head), &there[i]->data, error));
    TRY(take(head, sizeof *head->lse * (size_t)head->N, &lse, error));
    head->lse = lse;
    head->every = malloc(sizeof *head->every * (size_t)head->N);
    for (int i = 0; i < 3; i++) head->host[i].data = malloc(tensor_bytes(head));
    if (!head->every || !head->host[0].data || !head->host[1].data || !head->host[2].data)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for a head of %d rows, D = %d", head->N, head->D);
    for (int i = 0; i < head->N; i++) head->every[i] = i;
    TRY(rival_partition_blocks(&head->whole, 1, head->N, 128, NULL, error));
    TRY(rival_map_reserve(&head->all, 1, head->whole.P, head->whole.P, error));
    for (int q = 0; q < head->whole.P; q++)
        for (int k = 0; k < head->whole.P; k++) rival_map_keep(&head->all, 0, q, k);
    return MCSA_OK;
}

mcsa_status analysis_head_open(analysis_head *head, const analysis_machine *machine, const analysis_call *call,
                               mcsa_error *error)
{
    analysis_head_close(head);
    const int64_t N = call->q.shape[1], D = call->q.shape[2];
    const mcsa_tensor one = { NULL, call->q.dtype, { 1, N, D }, { N * D, D, 1 } };
    head->machine = machine;
    head->N = (int)N;
    head->D = (int)D;
    head->q = head->k = head->v = head->out = head->host[0] = head->host[1] = head->host[2] = one;
    head->x = (mcsa_qkv){ &head->q,   &head->k, &head->v, &head->out, { 1, head->N, head->N, head->D, call->q.dtype },
                          call->scale };
    mcsa_status status = reserve(head, error);
    if (status != MCSA_OK) analysis_head_close(head);
    return status;
}

void analysis_head_close(analysis_head *head)
{
    if (!head->machine) return;
    mcsa_tensor *there[] = { &head->q, &head->k, &head->v, &head->out };
    for (int i = 0; i < 4; i++) give(head, there[i]->data, tensor_bytes(head));
    give(head, head->lse, sizeof *head->lse * (size_t)head->N);
    for (int i = 0; i < 3; i++) free(head->host[i].data);
    free(head->every);
    rival_partition_free(&head->whole);
    rival_map_free(&head->all);
    *head = (analysis_head){ 0 };
}

mcsa_status analysis_head_load(analysis_head *head, const analysis_call *call, int h, mcsa_error *error)
{
    const mcsa_tensor *from[] = { &call->q, &call->k, &call->v };
    void *there[] = { head->q.data, head->k.data, head->v.data };
    const size_t bytes = tensor_bytes(head);
    for (int i = 0; i < 3; i++) {
        memcpy(head->host[i].data, (const char *)from[i]->data + (size_t)h * bytes, bytes);
        TRY(head->machine->kernels->write(head->machine->backend, head->host[i].data, bytes, there[i], error));
    }
    head->x.scale = call->scale;
    return MCSA_OK;
}

void analysis_row(const mcsa_tensor *t, int64_t n, float *row)
{
    const void *at = mcsa_tensor_row(t, 0, n);
    const uint16_t *half = at;
    for (int d = 0; d < t->shape[2]; d++) switch (t->dtype) {
        case MCSA_F32: row[d] = ((const float *)at)[d]; break;
        case MCSA_BF16: row[d] = mcsa_from_bf16(half[d]); break;
        case MCSA_F16: row[d] = mcsa_from_f16(half[d]); break;
        }
}

mcsa_status analysis_head_attend(analysis_head *head, const rival_partition *queries, const rival_partition *keys,
                                 const rival_map *map, float *out, float *lse, mcsa_error *error)
{
    const rival_kernels *kernels = head->machine->kernels;
    void *backend = head->machine->backend;
    TRY(kernels->attend(backend, &head->x, queries, keys, map, head->lse, error));
    TRY(kernels->read(backend, head->lse, sizeof *lse * (size_t)head->N, lse, error));
    return kernels->read_rows(backend, &head->out, head->every, head->N, out, error);
}

mcsa_status analysis_head_dense(analysis_head *head, float *out, float *lse, mcsa_error *error)
{
    return analysis_head_attend(head, &head->whole, &head->whole, &head->all, out, lse, error);
}
