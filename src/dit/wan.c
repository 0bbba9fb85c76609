/* wan.c - one forward pass of a Wan transformer; see wan.h.
 *
 *     x = patches(latent) W;  e = time(timestep);  c = text(context)
 *     for each block, with (shift, scale, gate, shift', scale', gate') = table + time_proj(e):
 *         x += gate * attention(LN(x) (1 + scale) + shift)
 *         x += cross(LN(x) gain + bias, c)
 *         x += gate' * ffn(LN(x) (1 + scale') + shift')
 *     velocity = unpatch(head(LN(x) (1 + scale) + shift)),  (shift, scale) = table + e
 *
 * Each "x +=" waits for the norm that follows it, so that the two are one pass over x. */
#include "base/clock.h"
#include "wan_model.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

enum { SHIFT, SCALE, GATE, FFN_SHIFT, FFN_SCALE, FFN_GATE, MODULATIONS };

/* What a sublayer leaves to be added to x. */
typedef struct update {
    const void *value; /* [N, dim], or NULL */
    const float *gate; /* [dim], or NULL: 1 */
} update;

/* The sizes of one call. */
typedef struct sizes {
    int grid[3];
    int64_t N, rows; /* tokens; context rows */
} sizes;

static mcsa_status measure_call(const dit_wan *model, const dit_wan_call *call, sizes *size, mcsa_error *error)
{
    const int *patch = model->config.patch;
    if (!call->latent || !call->context || !call->velocity || !call->run)
        return mcsa_fail(error, MCSA_EINVAL, "latent, context, velocity and run must not be NULL");
    if (call->context_rows < 1)
        return mcsa_fail(error, MCSA_EINVAL, "context_rows is %d; at least 1 is needed", call->context_rows);
    TRY(dit_wan_check_size(model, call->frames, call->height, call->width, error));
    *size = (sizes){ .grid = { call->frames / patch[0], call->height / patch[1], call->width / patch[2] },
                     .N = dit_wan_tokens(model, call->frames, call->height, call->width),
                     .rows = call->context_rows };
    return MCSA_OK;
}

int64_t dit_wan_tokens(const dit_wan *model, int frames, int height, int width)
{
    const int *patch = model->config.patch;
    if (frames < 1 || height < 1 || width < 1 || frames % patch[0] || height % patch[1] || width % patch[2]) return -1;
    int64_t image = (int64_t)(height / patch[1]) * (width / patch[2]);
    return image > INT32_MAX / (frames / patch[0]) ? -1 : image * (frames / patch[0]);
}

mcsa_status dit_wan_check_size(const dit_wan *model, int frames, int height, int width, mcsa_error *error)
{
    const int *patch = model->config.patch, longest = model->config.rope_max_seq_len;
    const int extent[3] = { frames, height, width };
    for (int a = 0; a < 3; a++) {
        if (extent[a] < 1 || extent[a] % patch[a])
            return mcsa_fail(error, MCSA_EINVAL, "a latent of %d x %d x %d is not made of patches of %d x %d x %d",
                             frames, height, width, patch[0], patch[1], patch[2]);
        if (extent[a] / patch[a] > longest)
            return mcsa_fail(error, MCSA_EINVAL, "%d patches along an axis; rope_max_seq_len of this model is %d",
                             extent[a] / patch[a], longest);
    }
    if (dit_wan_tokens(model, frames, height, width) < 0)
        return mcsa_fail(error, MCSA_EINVAL, "a latent of %d x %d x %d has more than %d tokens", frames, height, width,
                         INT32_MAX);
    return MCSA_OK;
}

/* Wan splits a head's pairs over the axes so that height and width get D/6 each and frames the rest; theta is
 * 10000 per axis.  Angles are computed in double, as the reference does. */
static mcsa_status prepare_rope(dit_wan *model, const int grid[3], mcsa_error *error)
{
    dit_rope *rope = &model->rope;
    const int pairs = model->config.head_dim / 2, side = model->config.head_dim / 6;
    const int split[3] = { pairs - 2 * side, side, side };
    int64_t count = 0;
    if (rope->extent[0] == grid[0] && rope->extent[1] == grid[1] && rope->extent[2] == grid[2]) return MCSA_OK;
    *rope = (dit_rope){ 0 };
    for (int a = 0; a < 3; a++) count += (int64_t)grid[a] * split[a];
    if (mcsa_block_reserve(&model->memory, &model->rope_tables, (size_t)count * 2 * sizeof(float)) != 0)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for %lld rotary angles", (long long)count);

    float *host = malloc((size_t)count * 2 * sizeof *host), *cosine = host, *sine = host + count;
    if (!host) return mcsa_fail(error, MCSA_ENOMEM, "no memory to compute %lld rotary angles", (long long)count);
    for (int a = 0; a < 3; a++) {
        rope->pairs[a] = split[a];
        rope->cosine[a] = (const float *)model->rope_tables.data + (cosine - host);
        rope->sine[a] = (const float *)model->rope_tables.data + (sine - host);
        for (int place = 0; place < grid[a]; place++)
            for (int i = 0; i < split[a]; i++) {
                double angle = place / pow(10000.0, (double)i / split[a]);
                *cosine++ = (float)cos(angle);
                *sine++ = (float)sin(angle);
            }
    }
    model->device->put(model->state, model->rope_tables.data, host, (size_t)count * 2 * sizeof *host);
    free(host);
    for (int a = 0; a < 3; a++) rope->extent[a] = grid[a];
    return MCSA_OK;
}

static wan_work carve(const dit_wan *model, mcsa_arena *arena, const sizes *size)
{
    const dit_wan_config *config = &model->config;
    const size_t element = model->dtype == MCSA_BF16 ? 2 : 4, N = (size_t)size->N, rows = (size_t)size->rows;
    const size_t dim = (size_t)model->dim, ffn = (size_t)config->ffn_dim;
    const size_t channels =
        (size_t)(config->in_channels > config->out_channels ? config->in_channels : config->out_channels);
    const size_t patch = (size_t)config->patch[0] * (size_t)config->patch[1] * (size_t)config->patch[2] * channels;
    wan_work w;
    w.latent = mcsa_arena_take(arena, N * patch * sizeof(float));
    w.captions = mcsa_arena_take(arena, rows * (size_t)config->text_dim * sizeof(float));
    w.patches = mcsa_arena_take(arena, N * patch * sizeof(float));
    w.x = mcsa_arena_take(arena, N * dim * sizeof(float));
    w.h = mcsa_arena_take(arena, N * dim * element);
    w.y = mcsa_arena_take(arena, N * dim * element);
    w.wide = mcsa_arena_take(arena, N * (3 * dim > ffn ? 3 * dim : ffn) * element);
    w.text = mcsa_arena_take(arena, rows * dim * sizeof(float));
    w.text_hidden = mcsa_arena_take(arena, rows * dim * sizeof(float));
    w.context = mcsa_arena_take(arena, rows * dim * element);
    w.context_kv = mcsa_arena_take(arena, rows * 2 * dim * element);
    w.angles = mcsa_arena_take(arena, (size_t)config->freq_dim * sizeof(float));
    w.time = mcsa_arena_take(arena, dim * sizeof(float));
    w.time_hidden = mcsa_arena_take(arena, dim * sizeof(float));
    w.time_proj = mcsa_arena_take(arena, MODULATIONS * dim * sizeof(float));
    w.modulation = mcsa_arena_take(arena, (size_t)config->layers * MODULATIONS * dim * sizeof(float));
    w.head_modulation = mcsa_arena_take(arena, 2 * dim * sizeof(float));
    return w;
}

static mcsa_status prepare_work(dit_wan *model, const sizes *size, wan_work *work, mcsa_error *error)
{
    mcsa_arena measure = { 0 };
    carve(model, &measure, size);
    if (mcsa_block_reserve(&model->memory, &model->scratch, measure.used) != 0)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for the %zu bytes that %lld tokens need", measure.used,
                         (long long)size->N);
    *work = carve(model, &(mcsa_arena){ .data = model->scratch.data }, size);
    return MCSA_OK;
}

static mcsa_status apply(const dit_wan *model, dit_linear *layer, const void *x, void *y, int64_t rows,
                         mcsa_error *error)
{
    return model->device->linear_apply(layer, x, y, rows, error);
}

static void silu(const dit_wan *model, const float *x, float *out)
{
    model->device->silu(model->state, x, out, model->dim);
}

/* time = MLP(sinusoids of the timestep); modulation = tables + projection of it.  Angles are rounded to float
 * where the reference rounds them: at timestep 1000 one rounding of an angle moves a sinusoid by 3e-5. */
static mcsa_status embed_time(dit_wan *model, const wan_work *w, float timestep, mcsa_error *error)
{
    const int dim = model->dim, half = model->config.freq_dim / 2;
    for (int i = 0; i < half; i++) {
        float angle = timestep * expf(-logf(10000.0f) * (float)i / (float)half);
        model->sinusoids[i] = cosf(angle);
        model->sinusoids[half + i] = sinf(angle);
    }
    model->device->put(model->state, w->angles, model->sinusoids, (size_t)half * 2 * sizeof(float));
    TRY(apply(model, model->time_1, w->angles, w->time, 1, error));
    silu(model, w->time, w->time_hidden);
    TRY(apply(model, model->time_2, w->time_hidden, w->time, 1, error));
    silu(model, w->time, w->time_hidden);
    TRY(apply(model, model->time_proj, w->time_hidden, w->time_proj, 1, error));

    dit_modulation block = { .value = w->time_proj,
                             .rows = MODULATIONS,
                             .dim = dim,
                             .value_stride = dim,
                             .scales = 1u << SCALE | 1u << FFN_SCALE };
    for (int i = 0; i < model->config.layers; i++) {
        block.out = w->modulation + (size_t)i * MODULATIONS * (size_t)dim;
        block.table = model->blocks[i].table;
        model->device->modulate(model->state, &block);
    }
    /* The head's shift and scale both take the embedding itself, not its projection. */
    dit_modulation head = { .out = w->head_modulation,
                            .table = model->head_table,
                            .value = w->time,
                            .rows = 2,
                            .dim = dim,
                            .scales = 1u << SCALE };
    model->device->modulate(model->state, &head);
    return MCSA_OK;
}

/* x += update; out = LN(x) * gain + shift, or x itself when gain is NULL. */
static void add_norm(const dit_wan *model, const wan_work *w, int64_t N, const update *last, const float *gain,
                     const float *shift, void *out, mcsa_dtype out_dtype)
{
    dit_norm job = { .x = w->x,
                     .update = last->value,
                     .gate = last->gate,
                     .gain = gain,
                     .shift = shift,
                     .out = out,
                     .dtype = model->dtype,
                     .out_dtype = out_dtype,
                     .eps = model->config.eps,
                     .dim = model->dim };
    model->device->norm_rows(model->state, &job, N);
}

static mcsa_status embed_text(dit_wan *model, const wan_work *w, const dit_wan_call *call, mcsa_error *error)
{
    const int64_t rows = call->context_rows;
    model->device->put(model->state, w->captions, call->context,
                       (size_t)rows * (size_t)model->config.text_dim * sizeof(float));
    TRY(apply(model, model->text_1, w->captions, w->text_hidden, rows, error));
    TRY(apply(model, model->text_2, w->text_hidden, w->text, rows, error));
    dit_norm cast = {
        .x = w->text, .out = w->context, .dtype = MCSA_F32, .out_dtype = model->dtype, .dim = model->dim
    };
    model->device->norm_rows(model->state, &cast, rows);
    return MCSA_OK;
}

/* Heads of a [rows, stride] matrix as a view [H, rows, D], starting at column `column`. */
static mcsa_tensor heads_of(const dit_wan *model, void *data, int64_t column, int64_t rows, int64_t stride)
{
    const int64_t H = model->config.heads, D = model->config.head_dim;
    const size_t element = model->dtype == MCSA_BF16 ? 2 : 4;
    return (mcsa_tensor){ .data = (char *)data + (size_t)column * element,
                          .dtype = model->dtype,
                          .shape = { H, rows, D },
                          .stride = { D, stride, 1 } };
}

static void norm_heads(const dit_wan *model, const mcsa_tensor *x, const float *gain, const dit_rope *rope)
{
    dit_rms_rope job = { .x = x->data,
                         .dtype = x->dtype,
                         .stride = x->stride[1],
                         .gain = gain,
                         .rope = rope,
                         .eps = model->config.eps,
                         .heads = model->config.heads,
                         .head_dim = model->config.head_dim };
    model->device->rms_rope_rows(model->state, &job, x->shape[1]);
}

static mcsa_status attention_failed(mcsa_status status, const dit_wan_call *call, mcsa_error *error)
{
    return status == MCSA_OK ? status : mcsa_fail(error, status, "%s", mcsa_run_error(call->run));
}

/* y = attention(h) */
static mcsa_status attend_self(dit_wan *model, const wan_work *w, const dit_wan_call *call, int layer, int64_t N,
                               mcsa_error *error)
{
    const wan_block *block = &model->blocks[layer];
    const int64_t dim = model->dim;
    TRY(apply(model, block->qkv, w->h, w->wide, N, error));
    mcsa_tensor q = heads_of(model, w->wide, 0, N, 3 * dim), k = heads_of(model, w->wide, dim, N, 3 * dim);
    mcsa_tensor v = heads_of(model, w->wide, 2 * dim, N, 3 * dim), out = heads_of(model, w->h, 0, N, dim);
    norm_heads(model, &q, block->self.norm_q, &model->rope);
    norm_heads(model, &k, block->self.norm_k, &model->rope);
    mcsa_site site = { .step = call->step, .layer = layer, .branch = call->branch };
    const dit_attention *other = call->self_attention;
    if (other) {
        mcsa_status status = other->attend(other->state, site, &q, &k, &v, &out);
        if (status != MCSA_OK) return mcsa_fail(error, status, "%s", other->error(other->state));
    } else {
        TRY(attention_failed(mcsa_attend(call->run, site, &q, &k, &v, &out), call, error));
    }
    return apply(model, block->self.out, w->h, w->y, N, error);
}

/* y = cross-attention(h, context) */
static mcsa_status attend_context(dit_wan *model, const wan_work *w, const dit_wan_call *call, int layer, int64_t N,
                                  mcsa_error *error)
{
    const wan_block *block = &model->blocks[layer];
    const int64_t dim = model->dim, rows = call->context_rows;
    TRY(apply(model, block->cross_q, w->h, w->wide, N, error));
    TRY(apply(model, block->cross_kv, w->context, w->context_kv, rows, error));
    mcsa_tensor q = heads_of(model, w->wide, 0, N, dim), out = heads_of(model, w->h, 0, N, dim);
    mcsa_tensor k = heads_of(model, w->context_kv, 0, rows, 2 * dim);
    mcsa_tensor v = heads_of(model, w->context_kv, dim, rows, 2 * dim);
    norm_heads(model, &q, block->cross.norm_q, NULL);
    norm_heads(model, &k, block->cross.norm_k, NULL);
    TRY(attention_failed(mcsa_attend_dense(call->run, &q, &k, &v, &out, NULL), call, error));
    return apply(model, block->cross.out, w->h, w->y, N, error);
}

static mcsa_status run_block(dit_wan *model, const wan_work *w, const dit_wan_call *call, int layer, int64_t N,
                             update *last, mcsa_error *error)
{
    const wan_block *block = &model->blocks[layer];
    const int dim = model->dim;
    const float *mod = w->modulation + (size_t)layer * MODULATIONS * (size_t)dim;

    add_norm(model, w, N, last, mod + SCALE * dim, mod + SHIFT * dim, w->h, model->dtype);
    TRY(attend_self(model, w, call, layer, N, error));
    *last = (update){ w->y, mod + GATE * dim };

    add_norm(model, w, N, last, block->norm2_gain, block->norm2_shift, w->h, model->dtype);
    TRY(attend_context(model, w, call, layer, N, error));
    *last = (update){ w->y, NULL };

    add_norm(model, w, N, last, mod + FFN_SCALE * dim, mod + FFN_SHIFT * dim, w->h, model->dtype);
    TRY(apply(model, block->ffn_in, w->h, w->wide, N, error));
    TRY(apply(model, block->ffn_out, w->wide, w->y, N, error));
    *last = (update){ w->y, mod + FFN_GATE * dim };
    return MCSA_OK;
}

static mcsa_status forward(dit_wan *model, const dit_wan_call *call, mcsa_error *error)
{
    const int dim = model->dim;
    sizes size = { 0 };
    wan_work w = { 0 };
    TRY(measure_call(model, call, &size, error));
    TRY(prepare_rope(model, size.grid, error));
    TRY(prepare_work(model, &size, &w, error));
    dit_patches patches = { .patch = { model->config.patch[0], model->config.patch[1], model->config.patch[2] },
                            .grid = { size.grid[0], size.grid[1], size.grid[2] },
                            .channels = model->config.in_channels };
    const size_t image = (size_t)call->frames * (size_t)call->height * (size_t)call->width * sizeof(float);

    model->device->put(model->state, w.latent, call->latent, (size_t)model->config.in_channels * image);
    model->device->gather(model->state, &patches, w.latent, w.patches);
    TRY(apply(model, model->patch, w.patches, w.x, size.N, error));
    TRY(embed_time(model, &w, call->timestep, error));
    TRY(embed_text(model, &w, call, error));

    update last = { 0 };
    for (int layer = 0; layer < model->config.layers; layer++)
        TRY(run_block(model, &w, call, layer, size.N, &last, error));

    /* The head reads floats: [N, dim] of them fit in the room of `wide`. */
    add_norm(model, &w, size.N, &last, w.head_modulation + SCALE * dim, w.head_modulation + SHIFT * dim, w.wide,
             MCSA_F32);
    TRY(apply(model, model->head, w.wide, w.patches, size.N, error));
    patches.channels = model->config.out_channels;
    model->device->scatter(model->state, &patches, w.patches, w.latent);
    return model->device->get(model->state, call->velocity, w.latent, (size_t)model->config.out_channels * image,
                              error);
}

mcsa_status dit_wan_forward(dit_wan *model, const dit_wan_call *call, mcsa_error *error)
{
    /* The number of threads is the calling thread's setting; oneDNN and the row loops both read it. */
    const int threads = omp_get_max_threads();
    const double start = mcsa_seconds();
    omp_set_num_threads(model->threads);
    mcsa_status status = forward(model, call, error);
    omp_set_num_threads(threads);
    model->forward_s += mcsa_seconds() - start;
    return status;
}

dit_wan_times dit_wan_spent(const dit_wan *model)
{
    return (dit_wan_times){ .forward_s = model->forward_s, .linear_s = model->device->linear_seconds(model->state) };
}
