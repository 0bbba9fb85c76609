/* wan_load.c - opens a Wan transformer: configuration, tensors, then every layer in the order of
 * wan_weights.h.
 *
 * A layer's tensors are read to float once and handed to oneDNN, which keeps its own copy; the mapping is
 * closed when the model stands.  The patch, time and text embedders and the head stay F32 whatever the blocks
 * use: in a model of 384 channels and 8 layers they are 0.3 of the 135 GFLOP that the linear layers take at
 * 4096 tokens, and every output passes through them. */
#include "wan_config.h"
#include "wan_model.h"
#include "wan_weights.h"

#include <omp.h>
#include <stdlib.h>

/* Up to 3 linear layers that share their input become one, outputs side by side. */
typedef struct stack {
    dit_wan_affine part[3];
    int count;
} stack;

static mcsa_status make_linear(dit_linear **out, dit_wan *model, const stack *parts, const dit_linear_shape *kind,
                               mcsa_error *error)
{
    mcsa_status status = MCSA_OK;
    dit_linear_shape shape = *kind;
    int64_t weights = 0;
    for (int i = 0; i < parts->count; i++) {
        weights += dit_tensor_count(parts->part[i].weight);
        shape.out += dit_tensor_count(parts->part[i].bias);
    }
    shape.in = weights / shape.out;
    float *weight = malloc((size_t)weights * sizeof *weight), *bias = malloc((size_t)shape.out * sizeof *bias);
    if (!weight || !bias) {
        status = mcsa_fail(error, MCSA_ENOMEM, "no memory to read a linear layer of %lld weights", (long long)weights);
        goto done;
    }
    float *next_weight = weight, *next_bias = bias;
    for (int i = 0; i < parts->count; i++) {
        dit_tensor_read(parts->part[i].weight, next_weight);
        dit_tensor_read(parts->part[i].bias, next_bias);
        next_weight += dit_tensor_count(parts->part[i].weight);
        next_bias += dit_tensor_count(parts->part[i].bias);
    }
    status = dit_linear_create(out, model->engine, &shape, weight, bias, error);
done:
    free(weight);
    free(bias);
    return status;
}

/* Embedders and head. */
static mcsa_status make_outer(dit_linear **out, dit_wan *model, const dit_wan_affine *affine, int gelu,
                              mcsa_error *error)
{
    return make_linear(out, model, &(stack){ { *affine }, 1 },
                       &(dit_linear_shape){ .src = MCSA_F32, .dst = MCSA_F32, .gelu = gelu }, error);
}

static mcsa_status make_inner(dit_linear **out, dit_wan *model, const stack *parts, int gelu, mcsa_error *error)
{
    return make_linear(out, model, parts, &(dit_linear_shape){ .src = model->dtype, .dst = model->dtype, .gelu = gelu },
                       error);
}

/* Takes room for a tensor as floats and, once there is memory, reads it. */
static float *take_vector(mcsa_arena *arena, const dit_tensor *tensor)
{
    if (!tensor) return NULL;
    float *vector = mcsa_arena_take(arena, (size_t)dit_tensor_count(tensor) * sizeof *vector);
    if (vector) dit_tensor_read(tensor, vector);
    return vector;
}

static void take_vectors(dit_wan *model, mcsa_arena *arena, const dit_wan_outer_weights *outer,
                         const dit_wan_block_weights *blocks)
{
    model->head_table = take_vector(arena, outer->scale_shift);
    for (int i = 0; i < model->config.layers; i++) {
        wan_block *block = &model->blocks[i];
        block->table = take_vector(arena, blocks[i].scale_shift);
        block->self.norm_q = take_vector(arena, blocks[i].self.norm_q);
        block->self.norm_k = take_vector(arena, blocks[i].self.norm_k);
        block->cross.norm_q = take_vector(arena, blocks[i].cross.norm_q);
        block->cross.norm_k = take_vector(arena, blocks[i].cross.norm_k);
        block->norm2_gain = take_vector(arena, blocks[i].norm2.weight);
        block->norm2_shift = take_vector(arena, blocks[i].norm2.bias);
    }
}

static mcsa_status load_vectors(dit_wan *model, const dit_wan_outer_weights *outer, const dit_wan_block_weights *blocks,
                                mcsa_error *error)
{
    mcsa_arena measure = { 0 };
    take_vectors(model, &measure, outer, blocks);
    if (mcsa_block_reserve(&model->memory, &model->vectors, measure.used) != 0)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for %zu bytes of norms and tables", measure.used);
    take_vectors(model, &(mcsa_arena){ .data = model->vectors.data }, outer, blocks);
    return MCSA_OK;
}

static mcsa_status load_outer(dit_wan *model, const dit_wan_outer_weights *outer, mcsa_error *error)
{
    TRY(make_outer(&model->patch, model, &outer->patch, 0, error));
    TRY(make_outer(&model->time_1, model, &outer->time_1, 0, error));
    TRY(make_outer(&model->time_2, model, &outer->time_2, 0, error));
    TRY(make_outer(&model->time_proj, model, &outer->time_proj, 0, error));
    TRY(make_outer(&model->text_1, model, &outer->text_1, 1, error));
    TRY(make_outer(&model->text_2, model, &outer->text_2, 0, error));
    return make_outer(&model->head, model, &outer->head, 0, error);
}

static mcsa_status load_block(dit_wan *model, wan_block *block, const dit_wan_block_weights *from, mcsa_error *error)
{
    TRY(make_inner(&block->qkv, model, &(stack){ { from->self.q, from->self.k, from->self.v }, 3 }, 0, error));
    TRY(make_inner(&block->self.out, model, &(stack){ { from->self.out }, 1 }, 0, error));
    TRY(make_inner(&block->cross_q, model, &(stack){ { from->cross.q }, 1 }, 0, error));
    TRY(make_inner(&block->cross_kv, model, &(stack){ { from->cross.k, from->cross.v }, 2 }, 0, error));
    TRY(make_inner(&block->cross.out, model, &(stack){ { from->cross.out }, 1 }, 0, error));
    TRY(make_inner(&block->ffn_in, model, &(stack){ { from->ffn_in }, 1 }, 1, error));
    return make_inner(&block->ffn_out, model, &(stack){ { from->ffn_out }, 1 }, 0, error);
}

static mcsa_status choose_dtype(dit_wan *model, mcsa_dtype asked, mcsa_dtype stored, mcsa_error *error)
{
    if (asked && asked != MCSA_F32 && asked != MCSA_BF16)
        return mcsa_fail(error, MCSA_EINVAL, "precision %d is neither MCSA_F32 nor MCSA_BF16", (int)asked);
    if (asked == MCSA_BF16 && !dit_linear_has_bf16())
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "this machine lacks AVX-512 BF16, which BF16 linear layers need");
    if (asked)
        model->dtype = asked;
    else
        model->dtype = stored != MCSA_F32 && dit_linear_has_bf16() ? MCSA_BF16 : MCSA_F32;
    return MCSA_OK;
}

static mcsa_status load_weights(dit_wan *model, const dit_tensors *tensors, mcsa_dtype asked, mcsa_error *error)
{
    mcsa_status status = MCSA_OK;
    dit_wan_outer_weights outer;
    int layers = model->config.layers;
    dit_wan_block_weights *blocks = calloc((size_t)layers, sizeof *blocks);
    model->blocks = calloc((size_t)layers, sizeof *model->blocks);
    if (!blocks || !model->blocks) {
        status = mcsa_fail(error, MCSA_ENOMEM, "no memory for a table of %d layers", layers);
        goto done;
    }
    if ((status = dit_wan_bind_outer(&outer, tensors, &model->config, error)) != MCSA_OK) goto done;
    for (int i = 0; i < layers; i++)
        if ((status = dit_wan_bind_block(&blocks[i], tensors, &model->config, i, error)) != MCSA_OK) goto done;
    if ((status = choose_dtype(model, asked, blocks[0].self.q.weight->dtype, error)) != MCSA_OK) goto done;
    if ((status = load_vectors(model, &outer, blocks, error)) != MCSA_OK) goto done;
    if ((status = load_outer(model, &outer, error)) != MCSA_OK) goto done;
    for (int i = 0; i < layers; i++)
        if ((status = load_block(model, &model->blocks[i], &blocks[i], error)) != MCSA_OK) goto done;
done:
    free(blocks);
    return status;
}

static mcsa_status load(dit_wan *model, const char *dir, const dit_wan_options *options, mcsa_error *error)
{
    dit_tensors *tensors = NULL;
    mcsa_machine machine = { .size = sizeof machine };
    if (options->threads < 0)
        return mcsa_fail(error, MCSA_EINVAL, "threads is %d; 0 means all of this machine's", options->threads);
    TRY(dit_wan_config_read(&model->config, dir, error));
    TRY(mcsa_machine_read(&machine));
    if (options->isa > machine.isa)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "this machine has no %s; its best is %s",
                         mcsa_isa_name(options->isa), mcsa_isa_name(machine.isa));
    model->dim = model->config.heads * model->config.head_dim;
    model->threads = options->threads ? options->threads : omp_get_max_threads();
    model->rows = dit_row_kernels_for(options->isa ? options->isa : machine.isa);
    model->memory = mcsa_memory_from(&(mcsa_allocator){ 0 });
    TRY(dit_linear_engine_create(&model->engine, error));
    TRY(dit_tensors_open(&tensors, dir, error));
    mcsa_status status = load_weights(model, tensors, options->precision, error);
    dit_tensors_free(tensors);
    return status;
}

mcsa_status dit_wan_open(dit_wan **out, const char *dir, const dit_wan_options *options, mcsa_error *error)
{
    static const dit_wan_options defaults = { 0 };
    *out = NULL;
    dit_wan *model = calloc(1, sizeof *model);
    if (!model) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a model");
    mcsa_status status = load(model, dir, options ? options : &defaults, error);
    if (status != MCSA_OK) {
        dit_wan_free(model);
        return status;
    }
    *out = model;
    return MCSA_OK;
}

void dit_wan_free(dit_wan *model)
{
    if (!model) return;
    dit_linear *outer[] = { model->patch,  model->time_1, model->time_2, model->time_proj,
                            model->text_1, model->text_2, model->head };
    for (size_t i = 0; i < sizeof outer / sizeof *outer; i++) dit_linear_free(outer[i]);
    for (int i = 0; model->blocks && i < model->config.layers; i++) {
        wan_block *b = &model->blocks[i];
        dit_linear *inner[] = { b->qkv, b->self.out, b->cross_q, b->cross_kv, b->cross.out, b->ffn_in, b->ffn_out };
        for (size_t k = 0; k < sizeof inner / sizeof *inner; k++) dit_linear_free(inner[k]);
    }
    dit_linear_engine_free(model->engine);
    mcsa_block_release(&model->memory, &model->vectors);
    mcsa_block_release(&model->memory, &model->scratch);
    mcsa_block_release(&model->memory, &model->rope_tables);
    free(model->blocks);
    free(model);
}

const dit_wan_config *dit_wan_describe(const dit_wan *model)
{
    return &model->config;
}

mcsa_dtype dit_wan_precision(const dit_wan *model)
{
    return model->dtype;
}
