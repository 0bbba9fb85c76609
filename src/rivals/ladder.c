/* ladder.c - see ladder.h.
 *
 * One head at a time is measured: masses of 128 queries over single tokens are as many floats as the scores over 128,
 * 179 MB a head at 75,600 tokens. */
#include "ladder.h"

#include "base/tensor.h"
#include "budget.h"
#include "core/run.h"
#include "core/schedule.h"

#include <stdlib.h>

mcsa_status rival_rung_init(rival_rung *rung, const rival_setup *setup, rival_group_queries group, int key_rows,
                            mcsa_error *error)
{
    size_t count = (size_t)setup->layers * (size_t)setup->branches;
    *rung = (rival_rung){ .setup = *setup, .group = group, .key_rows = key_rows };
    rung->kept = calloc(count, sizeof *rung->kept);
    if (!rung->kept)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for the choices of %zu layers and branches", count);
    for (size_t i = 0; i < count; i++) rung->kept[i].step = -1;
    return MCSA_OK;
}

void rival_rung_release(rival_rung *rung)
{
    int count = rung->setup.layers * rung->setup.branches;
    for (int i = 0; rung->kept && i < count; i++) rival_choice_free(&rung->kept[i].choice);
    free(rung->kept);
}

mcsa_status rival_rung_open(void **state, const rival_setup *setup, rival_group_queries group, int key_rows,
                            mcsa_error *error)
{
    rival_rung *rung = malloc(sizeof *rung);
    if (!rung) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the state of a method");
    mcsa_status status = rival_rung_init(rung, setup, group, key_rows, error);
    if (status == MCSA_OK)
        *state = rung;
    else
        free(rung);
    return status;
}

void rival_rung_close(void *state)
{
    rival_rung_release(state);
    free(state);
}

int64_t rival_rung_held(const void *state)
{
    const rival_rung *rung = state;
    int count = rung->setup.layers * rung->setup.branches;
    int64_t bytes = 0;
    for (int i = 0; i < count; i++) {
        const rival_choice *choice = &rung->kept[i].choice;
        bytes += (int64_t)sizeof(int32_t) * choice->queries.H * choice->queries.N;
        bytes += (int64_t)sizeof(uint64_t) * choice->map.H * choice->map.Q * choice->map.words;
    }
    return bytes;
}

static rival_kept *kept_at(const rival_rung *rung, mcsa_site at)
{
    return &rung->kept[at.layer * rung->setup.branches + at.branch];
}

mcsa_status rival_group_consecutive(rival_rung *rung, const rival_call *call, rival_partition *queries,
                                    mcsa_error *error)
{
    (void)rung;
    return rival_partition_blocks(queries, call->x->dims.H, call->x->dims.N, RIVAL_BLOCK_QUERIES, NULL, error);
}

mcsa_status rival_group_pddp(rival_rung *rung, const rival_call *call, rival_partition *queries, mcsa_error *error)
{
    const mcsa_dims *dims = &call->x->dims;
    const rival_setup *setup = &rung->setup;
    mcsa_run *dense = setup->dense;
    mcsa_memory memory = { .allocator = setup->kernels->memory(setup->backend) };
    mcsa_block order = { 0 };
    int C = dense->config.group;
    size_t bytes = sizeof(int32_t) * (size_t)dims->H * (size_t)dims->N;
    TRY(rival_partition_blocks(queries, dims->H, dims->N, C, NULL, error));
    if (mcsa_block_reserve(&memory, &order, bytes) || dense->backend->reserve(dense->state, dims, 1, 0) != MCSA_OK) {
        mcsa_block_release(&memory, &order);
        return mcsa_fail(error, MCSA_ENOMEM, "no memory to group %d queries in %d heads", dims->N, dims->H);
    }
    mcsa_selection selection = { .H = dims->H, .N = dims->N, .C = C, .G = queries->P, .order = order.data };
    dense->backend->group(dense->state, call->x, &selection);
    mcsa_status status = dense->backend->outcome(dense->state, error);
    if (status == MCSA_OK) status = setup->kernels->read(setup->backend, order.data, bytes, queries->order, error);
    mcsa_block_release(&memory, &order);
    return status;
}

mcsa_status rival_rung_begin(rival_rung *rung, const rival_call *call, rival_kept **out, mcsa_error *error)
{
    const mcsa_dims *dims = &call->x->dims;
    rival_kept *kept = kept_at(rung, call->at);
    rival_choice *choice = &kept->choice;
    kept->step = -1;
    kept->dims = *dims;
    TRY(rung->group(rung, call, &choice->queries, error));
    TRY(rival_partition_blocks(&choice->keys, dims->H, dims->N, rung->key_rows, NULL, error));
    TRY(rival_map_reserve(&choice->map, dims->H, choice->queries.P, choice->keys.P, error));
    *out = kept;
    return MCSA_OK;
}

static rival_partition partition_head(const rival_partition *p, int h)
{
    rival_partition head = { .H = 1, .N = p->N, .P = p->P };
    head.order = p->order + (int64_t)h * p->N;
    head.first = p->first + (int64_t)h * (p->P + 1);
    return head;
}

mcsa_status rival_rung_mass(const rival_rung *rung, const rival_call *call, const rival_choice *choice, int h,
                            float *mass, mcsa_error *error)
{
    const mcsa_qkv *x = call->x;
    mcsa_tensor q = mcsa_tensor_head(x->q, h), k = mcsa_tensor_head(x->k, h), v = mcsa_tensor_head(x->v, h),
                out = mcsa_tensor_head(x->out, h);
    mcsa_qkv head = { .q = &q, .k = &k, .v = &v, .out = &out, .dims = x->dims, .scale = x->scale };
    head.dims.H = 1;
    rival_partition queries = partition_head(&choice->queries, h), keys = partition_head(&choice->keys, h);
    return rung->setup.kernels->mass(rung->setup.backend, &head, &queries, &keys, call->lse + (int64_t)h * x->dims.N,
                                     mass, error);
}

mcsa_status rival_rung_keep(const rival_rung *rung, const rival_call *call, rival_kept *kept, double share,
                            mcsa_error *error)
{
    rival_choice *choice = &kept->choice;
    float *mass = malloc(sizeof *mass * (size_t)choice->map.Q * (size_t)choice->map.K);
    if (!mass)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for masses of %d x %d parts", choice->map.Q, choice->map.K);
    mcsa_status status = MCSA_OK;
    for (int h = 0; status == MCSA_OK && h < choice->map.H; h++) {
        status = rival_rung_mass(rung, call, choice, h, mass, error);
        if (status == MCSA_OK) status = rival_choice_keep_head(choice, h, mass, share, rung->setup.threads, error);
    }
    free(mass);
    if (status == MCSA_OK) kept->step = call->at.step;
    return status;
}

mcsa_status rival_rung_observe(void *state, const rival_call *call, mcsa_error *error)
{
    rival_rung *rung = state;
    rival_kept *kept;
    double share = rung->setup.density;
    if (!call->anchor) return MCSA_OK;
    TRY(rival_rung_begin(rung, call, &kept, error));
    if (rung->key_rows > 1) share = rival_target_share(&kept->choice, share);
    return rival_rung_keep(rung, call, kept, share, error);
}

mcsa_status rival_rung_choose(void *state, const rival_call *call, const rival_choice **choice, mcsa_error *error)
{
    rival_rung *rung = state;
    const rival_kept *kept = kept_at(rung, call->at);
    const mcsa_dims *dims = &call->x->dims;
    int step = call->at.step;
    int anchor = mcsa_schedule_anchor(mcsa_run_actions(rung->setup.dense, call->at.layer), step);
    if (kept->step < 0 || kept->step < anchor || kept->step > step)
        return mcsa_fail(error, MCSA_EINVAL,
                         "step %d of layer %d, branch %d uses the choice of the anchor at step %d, which was not run",
                         step, call->at.layer, call->at.branch, anchor);
    if (kept->dims.H != dims->H || kept->dims.N != dims->N)
        return mcsa_fail(error, MCSA_EINVAL, "step %d of layer %d has %d heads of %d tokens; its anchor had %d of %d",
                         step, call->at.layer, dims->H, dims->N, kept->dims.H, kept->dims.N);
    *choice = &kept->choice;
    return MCSA_OK;
}
