/* linear.c - see linear.h; oneDNN 2.x C API.
 *
 * The weights go to oneDNN as a [in, out] matrix with strides { 1, in }, which is W^T without a copy, and are
 * reordered to the format that matmul prefers for PLAN_ROWS rows.  On oneDNN 2.6 that format (16 x 64 blocks)
 * is the same for 1 and for 32768 rows; primitives for other row counts are asked for that very format, so
 * weights exist once. */
#include "linear.h"

#include "base/clock.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>

enum {
    PLAN_ROWS = 4096,
    /* A model has about 12 layer shapes and a generation 3 row counts (tokens, two contexts); beyond that the
     * oldest primitive makes room. */
    CACHE_SLOTS = 64
};

/* A primitive and the views that its arguments are set through. */
typedef struct prepared {
    dit_linear_shape shape;
    int64_t rows;
    dnnl_primitive_t primitive;
    dnnl_memory_t src, dst;
} prepared;

struct dit_linear_engine {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    prepared cache[CACHE_SLOTS];
    int oldest;
    double seconds;
};

struct dit_linear {
    dit_linear_engine *engine;
    dit_linear_shape shape;
    dnnl_memory_desc_t weights_desc;
    dnnl_memory_t weights, bias;
};

static mcsa_status check(dnnl_status_t result, const char *what, const dit_linear_shape *shape, mcsa_error *error)
{
    if (result == dnnl_success) return MCSA_OK;
    mcsa_status status = result == dnnl_out_of_memory ? MCSA_ENOMEM : MCSA_EUNSUPPORTED;
    return mcsa_fail(error, status, "oneDNN could not %s a linear layer of %lld to %lld channels (its status is %d)",
                     what, (long long)shape->in, (long long)shape->out, (int)result);
}

static dnnl_data_type_t data_type(mcsa_dtype dtype)
{
    return dtype == MCSA_BF16 ? dnnl_bf16 : dnnl_f32;
}

int dit_linear_has_bf16(void)
{
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    return (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}

mcsa_status dit_linear_engine_create(dit_linear_engine **out, mcsa_error *error)
{
    *out = NULL;
    dit_linear_engine *engine = calloc(1, sizeof *engine);
    if (!engine) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the linear layers' engine");
    if (dnnl_engine_create(&engine->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&engine->stream, engine->engine, dnnl_stream_default_flags) != dnnl_success) {
        dit_linear_engine_free(engine);
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "oneDNN has no CPU engine on this machine");
    }
    *out = engine;
    return MCSA_OK;
}

static void forget(prepared *p)
{
    dnnl_primitive_destroy(p->primitive);
    dnnl_memory_destroy(p->src);
    dnnl_memory_destroy(p->dst);
    *p = (prepared){ 0 };
}

void dit_linear_engine_free(dit_linear_engine *engine)
{
    if (!engine) return;
    for (int i = 0; i < CACHE_SLOTS; i++) forget(&engine->cache[i]);
    dnnl_stream_destroy(engine->stream);
    dnnl_engine_destroy(engine->engine);
    free(engine);
}

double dit_linear_engine_seconds(const dit_linear_engine *engine)
{
    return engine->seconds;
}

/* The matmul of `rows` rows; weights NULL lets oneDNN choose their format. */
static dnnl_status_t describe(dnnl_primitive_desc_t *out, const dit_linear_engine *engine,
                              const dit_linear_shape *shape, int64_t rows, const dnnl_memory_desc_t *weights)
{
    dnnl_dims_t x_dims = { rows, shape->in }, y_dims = { rows, shape->out };
    dnnl_dims_t w_dims = { shape->in, shape->out }, b_dims = { 1, shape->out };
    dnnl_memory_desc_t x, w, b, y;
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t status = dnnl_memory_desc_init_by_tag(&x, 2, x_dims, data_type(shape->src), dnnl_ab);
    if (!status) status = dnnl_memory_desc_init_by_tag(&w, 2, w_dims, data_type(shape->src), dnnl_format_tag_any);
    if (!status) status = dnnl_memory_desc_init_by_tag(&b, 2, b_dims, dnnl_f32, dnnl_ab);
    if (!status) status = dnnl_memory_desc_init_by_tag(&y, 2, y_dims, data_type(shape->dst), dnnl_ab);
    if (!status) status = dnnl_matmul_desc_init(&matmul, &x, weights ? weights : &w, &b, &y);
    if (!status) status = dnnl_primitive_attr_create(&attr);
    if (!status) status = dnnl_post_ops_create(&ops);
    if (!status && shape->gelu) status = dnnl_post_ops_append_eltwise(ops, 1.0f, dnnl_eltwise_gelu_tanh, 0.0f, 0.0f);
    if (!status) status = dnnl_primitive_attr_set_post_ops(attr, ops);
    if (!status) status = dnnl_primitive_desc_create(out, &matmul, attr, engine->engine, NULL);
    dnnl_post_ops_destroy(ops);
    dnnl_primitive_attr_destroy(attr);
    return status;
}

static dnnl_status_t reorder_weights(dit_linear *layer, const float *weight)
{
    const dit_linear_shape *shape = &layer->shape;
    dnnl_engine_t engine = layer->engine->engine;
    dnnl_dims_t dims = { shape->in, shape->out }, strides = { 1, shape->in };
    dnnl_memory_desc_t plain;
    dnnl_memory_t source = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_primitive_t reorder = NULL;
    dnnl_status_t status = dnnl_memory_desc_init_by_strides(&plain, 2, dims, dnnl_f32, strides);
    /* oneDNN takes a non-const pointer for every argument; a reorder does not write to its source. */
    if (!status) status = dnnl_memory_create(&source, &plain, engine, (void *)(uintptr_t)weight);
    if (!status) status = dnnl_memory_create(&layer->weights, &layer->weights_desc, engine, DNNL_MEMORY_ALLOCATE);
    if (!status) status = dnnl_reorder_primitive_desc_create(&desc, &plain, engine, &layer->weights_desc, engine, NULL);
    if (!status) status = dnnl_primitive_create(&reorder, desc);
    if (!status) {
        dnnl_exec_arg_t args[] = { { DNNL_ARG_FROM, source }, { DNNL_ARG_TO, layer->weights } };
        status = dnnl_primitive_execute(reorder, layer->engine->stream, 2, args);
    }
    if (!status) status = dnnl_stream_wait(layer->engine->stream);
    dnnl_primitive_destroy(reorder);
    dnnl_primitive_desc_destroy(desc);
    dnnl_memory_destroy(source);
    return status;
}

static dnnl_status_t copy_bias(dit_linear *layer, const float *bias)
{
    dnnl_dims_t dims = { 1, layer->shape.out };
    dnnl_memory_desc_t desc;
    void *data = NULL;
    dnnl_status_t status = dnnl_memory_desc_init_by_tag(&desc, 2, dims, dnnl_f32, dnnl_ab);
    if (!status) status = dnnl_memory_create(&layer->bias, &desc, layer->engine->engine, DNNL_MEMORY_ALLOCATE);
    if (!status) status = dnnl_memory_get_data_handle(layer->bias, &data);
    if (!status) memcpy(data, bias, (size_t)layer->shape.out * sizeof *bias);
    return status;
}

mcsa_status dit_linear_create(dit_linear **out, dit_linear_engine *engine, const dit_linear_shape *shape,
                              const float *weight, const float *bias, mcsa_error *error)
{
    *out = NULL;
    dit_linear *layer = calloc(1, sizeof *layer);
    if (!layer) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a linear layer");
    layer->engine = engine;
    layer->shape = *shape;

    dnnl_primitive_desc_t plan = NULL;
    dnnl_status_t status = describe(&plan, engine, shape, PLAN_ROWS, NULL);
    if (!status) {
        layer->weights_desc = *dnnl_primitive_desc_query_md(plan, dnnl_query_weights_md, 0);
        status = reorder_weights(layer, weight);
    }
    if (!status) status = copy_bias(layer, bias);
    dnnl_primitive_desc_destroy(plan);
    if (status) {
        dit_linear_free(layer);
        return check(status, "prepare", shape, error);
    }
    *out = layer;
    return MCSA_OK;
}

void dit_linear_free(dit_linear *layer)
{
    if (!layer) return;
    dnnl_memory_destroy(layer->weights);
    dnnl_memory_destroy(layer->bias);
    free(layer);
}

static int same_shape(const dit_linear_shape *a, const dit_linear_shape *b)
{
    return a->in == b->in && a->out == b->out && a->src == b->src && a->dst == b->dst && a->gelu == b->gelu;
}

static dnnl_status_t prepare(prepared *p, const dit_linear *layer, int64_t rows)
{
    dnnl_primitive_desc_t desc = NULL;
    dnnl_engine_t engine = layer->engine->engine;
    dnnl_status_t status = describe(&desc, layer->engine, &layer->shape, rows, &layer->weights_desc);
    if (!status) status = dnnl_primitive_create(&p->primitive, desc);
    if (!status)
        status = dnnl_memory_create(&p->src, dnnl_primitive_desc_query_md(desc, dnnl_query_src_md, 0), engine,
                                    DNNL_MEMORY_NONE);
    if (!status)
        status = dnnl_memory_create(&p->dst, dnnl_primitive_desc_query_md(desc, dnnl_query_dst_md, 0), engine,
                                    DNNL_MEMORY_NONE);
    dnnl_primitive_desc_destroy(desc);
    p->shape = layer->shape;
    p->rows = rows;
    return status;
}

static dnnl_status_t find_or_prepare(prepared **out, const dit_linear *layer, int64_t rows)
{
    dit_linear_engine *engine = layer->engine;
    for (int i = 0; i < CACHE_SLOTS; i++) {
        prepared *p = &engine->cache[i];
        if (p->rows == rows && same_shape(&p->shape, &layer->shape)) {
            *out = p;
            return dnnl_success;
        }
    }
    prepared *p = &engine->cache[engine->oldest];
    engine->oldest = (engine->oldest + 1) % CACHE_SLOTS;
    forget(p);
    dnnl_status_t status = prepare(p, layer, rows);
    if (status) forget(p);
    *out = p;
    return status;
}

mcsa_status dit_linear_apply(dit_linear *layer, const void *x, void *y, int64_t rows, mcsa_error *error)
{
    double start = mcsa_seconds();
    prepared *p = NULL;
    dnnl_status_t status = find_or_prepare(&p, layer, rows);
    if (!status) status = dnnl_memory_set_data_handle(p->src, (void *)(uintptr_t)x);
    if (!status) status = dnnl_memory_set_data_handle(p->dst, y);
    if (!status) {
        dnnl_exec_arg_t args[] = { { DNNL_ARG_SRC, p->src },
                                   { DNNL_ARG_WEIGHTS, layer->weights },
                                   { DNNL_ARG_BIAS, layer->bias },
                                   { DNNL_ARG_DST, p->dst } };
        status = dnnl_primitive_execute(p->primitive, layer->engine->stream, 4, args);
    }
    if (!status) status = dnnl_stream_wait(layer->engine->stream);
    layer->engine->seconds += mcsa_seconds() - start;
    return check(status, "run", &layer->shape, error);
}
