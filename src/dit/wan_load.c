/* wan_load.c - opens a Wan transformer: configuration, tensors, then every layer in the order of
 * wan_weights.h.
 *
 * A layer's tensors are read to float once and handed to the device, which keeps its own copy; the mapping is
 * closed when the model stands.  A model without a checkpoint goes the same way with tensors that have no data: their
 * numbers are random.  The patch, time and text embedders and the head stay F32 whatever the blocks
 * use: in a model of 384 channels and 8 layers they are 0.3 of the 135 GFLOP that the linear layers take at
 * 4096 tokens, and every output passes through them. */
#include "random_weights.h"
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
    model->weight_bytes += weights * (shape.src == MCSA_BF16 ? 2 : 4) + shape.out * 4;
    if (!parts->part[0].weight->data)
        return model->device->linear_random(out, model->state, &shape, model->next_seed++, error);
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
    status = model->device->linear_create(out, model->state, &shape, weight, bias, error);
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

/* Room on the device that is filled on the host, at the same places of a second block. */
typedef struct vectors {
    dit_wan *model;
    mcsa_arena arena; /* the device's; no data while measuring */
    char *host;
} vectors;

/* Takes room for a tensor as floats and, once there is memory, reads it; or makes it: random numbers about `centre`. */
static float *take_vector(vectors *v, const dit_tensor *tensor, float centre)
{
    if (!tensor) return NULL;
    const int64_t count = dit_tensor_count(tensor);
    float *vector = mcsa_arena_take(&v->arena, (size_t)count * sizeof *vector);
    if (!vector) return NULL;
    float *host = (float *)(void *)(v->host + ((char *)vector - v->arena.data));
    if (tensor->data) {
        dit_tensor_read(tensor, host);
    } else {
        const uint64_t seed = v->model->next_seed++;
        for (int64_t i = 0; i < count; i++) host[i] = centre + 0.1f * dit_random_unit(seed, (uint64_t)i);
    }
    return vector;
}

static void take_vectors(vectors *v, const dit_wan_outer_weights *outer, const dit_wan_block_weights *blocks)
{
    v->model->head_table = take_vector(v, outer->scale_shift, 0);
    for (int i = 0; i < v->model->config.layers; i++) {
        wan_block *block = &v->model->blocks[i];
        block->table = take_vector(v, blocks[i].scale_shift, 0);
        block->self.norm_q = take_vector(v, blocks[i].self.norm_q, 1);
        block->self.norm_k = take_vector(v, blocks[i].self.norm_k, 1);
        block->cross.norm_q = take_vector(v, blocks[i].cross.norm_q, 1);
        block->cross.norm_k = take_vector(v, blocks[i].cross.norm_k, 1);
        block->norm2_gain = take_vector(v, blocks[i].norm2.weight, 1);
        block->norm2_shift = take_vector(v, blocks[i].norm2.bias, 0);
    }
}

static mcsa_status load_vectors(dit_wan *model, const dit_wan_outer_weights *outer, const dit_wan_block_weights *blocks,
                                mcsa_error *error)
{
    vectors measure = { .model = model };
    take_vectors(&measure, outer, blocks);
    const size_t bytes = measure.arena.used;
    vectors fill = { .model = model, .host = malloc(bytes) };
    if (!fill.host || mcsa_block_reserve(&model->memory, &model->vectors, bytes) != 0) {
        free(fill.host);
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for %zu bytes of norms and tables", bytes);
    }
    fill.arena.data = model->vectors.data;
    take_vectors(&fill, outer, blocks);
    model->device->put(model->state, model->vectors.data, fill.host, bytes);
    free(fill.host);
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
    return model->device->arithmetic(model->state, &model->config, asked, stored, &model->dtype, error);
}

static mcsa_status bind(dit_wan_outer_weights *outer, dit_wan_block_weights *blocks, const dit_tensors *tensors,
                        const dit_wan_config *config, mcsa_error *error)
{
    TRY(dit_wan_bind_outer(outer, tensors, config, error));
    for (int i = 0; i < config->layers; i++) TRY(dit_wan_bind_block(&blocks[i], tensors, config, i, error));
    return MCSA_OK;
}

/* tensors: NULL for random weights. */
static mcsa_status load_weights(dit_wan *model, const dit_tensors *tensors, mcsa_dtype asked, mcsa_error *error)
{
    mcsa_status status = MCSA_OK;
    dit_wan_outer_weights outer;
    int layers = model->config.layers;
    dit_tensor *shapes = NULL;
    dit_wan_block_weights *blocks = calloc((size_t)layers, sizeof *blocks);
    model->blocks = calloc((size_t)layers, sizeof *model->blocks);
    model->sinusoids = malloc((size_t)model->config.freq_dim * sizeof *model->sinusoids);
    if (!tensors) shapes = calloc((size_t)dit_wan_expected_count(&model->config), sizeof *shapes);
    if (!blocks || !model->blocks || !model->sinusoids || (!tensors && !shapes)) {
        status = mcsa_fail(error, MCSA_ENOMEM, "no memory for a table of %d layers", layers);
        goto done;
    }
    if (shapes)
        dit_wan_bind_shapes(&outer, blocks, shapes, &model->config);
    else if ((status = bind(&outer, blocks, tensors, &model->config, error)) != MCSA_OK)
        goto done;
    if ((status = choose_dtype(model, asked, blocks[0].self.q.weight->dtype, error)) != MCSA_OK) goto done;
    if ((status = load_vectors(model, &outer, blocks, error)) != MCSA_OK) goto done;
    if ((status = load_outer(model, &outer, error)) != MCSA_OK) goto done;
    for (int i = 0; i < layers; i++)
        if ((status = load_block(model, &model->blocks[i], &blocks[i], error)) != MCSA_OK) goto done;
done:
    free(shapes);
    free(blocks);
    return status;
}

static mcsa_status open_device(dit_wan *model, const dit_wan_options *options, mcsa_error *error)
{
    const dit_device_options settings = { options->threads, options->isa, options->device_index, options->stream };
    model->dim = model->config.heads * model->config.head_dim;
    model->threads = options->threads ? options->threads : omp_get_max_threads();
    model->kind = options->device;
    TRY(dit_device_find(&model->device, options->device, error));
    TRY(model->device->open(&model->state, &settings, error));
    const mcsa_allocator memory = model->device->memory(model->state);
    model->memory = mcsa_memory_from(&memory);
    return MCSA_OK;
}

static mcsa_status load(dit_wan *model, const char *dir, const dit_wan_options *options, mcsa_error *error)
{
    dit_tensors *tensors = NULL;
    TRY(dit_wan_config_read(&model->config, dir, error));
    TRY(open_device(model, options, error));
    TRY(dit_tensors_open(&tensors, dir, error));
    mcsa_status status = load_weights(model, tensors, options->precision, error);
    dit_tensors_free(tensors);
    return status;
}

static mcsa_status make(dit_wan *model, const dit_wan_config *config, uint64_t seed, const dit_wan_options *options,
                        mcsa_error *error)
{
    model->config = *config;
    model->next_seed = seed << 20; /* a model has fewer than 2^20 layers and vectors */
    TRY(dit_wan_config_check(config, error));
    TRY(open_device(model, options, error));
    return load_weights(model, NULL, options->precision, error);
}

/* From a directory, or without one from a configuration and a seed. */
static mcsa_status open_model(dit_wan **out, const char *dir, const dit_wan_config *config, uint64_t seed,
                              const dit_wan_options *options, mcsa_error *error)
{
    static const dit_wan_options defaults = { 0 };
    *out = NULL;
    if (!options) options = &defaults;
    if (options->threads < 0)
        return mcsa_fail(error, MCSA_EINVAL, "threads is %d; 0 means all of this machine's", options->threads);
    dit_wan *model = calloc(1, sizeof *model);
    if (!model) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a model");
    mcsa_status status = dir ? load(model, dir, options, error) : make(model, config, seed, options, error);
    if (status != MCSA_OK) {
        dit_wan_free(model);
        return status;
    }
    *out = model;
    return MCSA_OK;
}

mcsa_status dit_wan_open(dit_wan **out, const char *dir, const dit_wan_options *options, mcsa_error *error)
{
    return open_model(out, dir, NULL, 0, options, error);
}

mcsa_status dit_wan_open_random(dit_wan **out, const dit_wan_config *config, uint64_t seed,
                                const dit_wan_options *options, mcsa_error *error)
{
    return open_model(out, NULL, config, seed, options, error);
}

/* Layers and memory are of an open device. */
static void free_parts(dit_wan *model)
{
    dit_linear *outer[] = { model->patch,  model->time_1, model->time_2, model->time_proj,
                            model->text_1, model->text_2, model->head };
    for (size_t i = 0; i < sizeof outer / sizeof *outer; i++) model->device->linear_free(outer[i]);
    for (int i = 0; model->blocks && i < model->config.layers; i++) {
        wan_block *b = &model->blocks[i];
        dit_linear *inner[] = { b->qkv, b->self.out, b->cross_q, b->cross_kv, b->cross.out, b->ffn_in, b->ffn_out };
        for (size_t k = 0; k < sizeof inner / sizeof *inner; k++) model->device->linear_free(inner[k]);
    }
    mcsa_block_release(&model->memory, &model->vectors);
    mcsa_block_release(&model->memory, &model->scratch);
    mcsa_block_release(&model->memory, &model->rope_tables);
    model->device->close(model->state);
}

void dit_wan_free(dit_wan *model)
{
    if (!model) return;
    if (model->state) free_parts(model);
    free(model->sinusoids);
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

int dit_wan_threads(const dit_wan *model)
{
    return model->threads;
}

int64_t dit_wan_bytes(const dit_wan *model)
{
    return model->weight_bytes + (int64_t)(model->vectors.bytes + model->scratch.bytes + model->rope_tables.bytes);
}

mcsa_device dit_wan_device(const dit_wan *model)
{
    return model->kind;
}

mcsa_allocator dit_wan_host_memory(const dit_wan *model)
{
    return model->device->host_memory(model->state);
}
