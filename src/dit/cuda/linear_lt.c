/* linear_lt.c - see linear_lt.h.
 *
 * cuBLASLt's matrices are column-major, so row-major W [out, in] is its [in, out] with A transposed, and x and y are
 * its [in, rows] and [out, rows]: nothing is copied, and the bias runs along y's columns as its epilogue has it. */
#include "linear_lt.h"

#include "base/memory.h"
#include "dit/random_weights.h"
#include "kernels.h"

#include <cublasLt.h>
#include <stdlib.h>

enum {
    WORKSPACE_BYTES = 32 << 20, /* what cuBLAS itself takes on Hopper */
    ALIGNMENT = 64,             /* of x and y: that of an arena */
    ALGORITHMS = 8,             /* to choose the first usable of */
    PLANS = 64                  /* see CACHE_SLOTS in dit/linear.c */
};

/* The product of a layer shape and a number of rows. */
typedef struct product {
    dit_linear_shape shape;
    int64_t rows; /* 0: unused */
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulAlgo_t algorithm;
} product;

struct lt_engine {
    cublasLtHandle_t handle;
    cudaStream_t stream;
    void *workspace;
    product products[PLANS];
    int oldest;
    stage_clock clock;
};

struct dit_linear {
    lt_engine *engine;
    dit_linear_shape shape;
    void *weights, *bias; /* src [out, in], src [out], one allocation */
};

static mcsa_status check(cublasStatus_t result, const char *what, const dit_linear_shape *shape, mcsa_error *error)
{
    if (result == CUBLAS_STATUS_SUCCESS) return MCSA_OK;
    return mcsa_fail(error, MCSA_EDEVICE, "cuBLASLt could not %s a linear layer of %lld to %lld channels: %s", what,
                     (long long)shape->in, (long long)shape->out, cublasLtGetStatusString(result));
}

static mcsa_status check_cuda(cudaError_t result, const char *what, mcsa_error *error)
{
    if (result == cudaSuccess) return MCSA_OK;
    return mcsa_fail(error, result == cudaErrorMemoryAllocation ? MCSA_ENOMEM : MCSA_EDEVICE, "CUDA could not %s: %s",
                     what, cudaGetErrorString(result));
}

static cudaDataType_t data_type(mcsa_dtype dtype)
{
    return dtype == MCSA_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

mcsa_status lt_engine_create(lt_engine **out, cudaStream_t stream, mcsa_error *error)
{
    *out = NULL;
    lt_engine *engine = calloc(1, sizeof *engine);
    if (!engine) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the linear layers' engine");
    engine->stream = stream;
    mcsa_status status = check_cuda(cudaMalloc(&engine->workspace, WORKSPACE_BYTES), "allocate a workspace", error);
    if (status == MCSA_OK) {
        cublasStatus_t result = cublasLtCreate(&engine->handle);
        if (result != CUBLAS_STATUS_SUCCESS)
            status = mcsa_fail(error, MCSA_EDEVICE, "cuBLASLt does not start: %s", cublasLtGetStatusString(result));
    }
    if (status != MCSA_OK) {
        lt_engine_free(engine);
        return status;
    }
    *out = engine;
    return MCSA_OK;
}

static void forget(product *p)
{
    if (p->matmul) cublasLtMatmulDescDestroy(p->matmul);
    if (p->w) cublasLtMatrixLayoutDestroy(p->w);
    if (p->x) cublasLtMatrixLayoutDestroy(p->x);
    if (p->y) cublasLtMatrixLayoutDestroy(p->y);
    *p = (product){ 0 };
}

void lt_engine_free(lt_engine *engine)
{
    if (!engine) return;
    for (int i = 0; i < PLANS; i++) forget(&engine->products[i]);
    if (engine->handle) cublasLtDestroy(engine->handle);
    stage_clock_free(&engine->clock);
    cudaFree(engine->workspace);
    free(engine);
}

stage_clock *lt_engine_clock(lt_engine *engine)
{
    return &engine->clock;
}

/* Sets one attribute of a matmul or of a preference, in lists that stop at the first failure. */
#define SET_MATMUL(matmul, name, value) \
    cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_##name, &(value), sizeof(value))
#define SET_PREFERENCE(preference, name, value) \
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_##name, &(value), sizeof(value))

static cublasStatus_t describe(product *p, const dit_linear *layer, int64_t rows)
{
    const dit_linear_shape *s = &layer->shape;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasLtEpilogue_t epilogue = s->gelu ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
    const uint64_t in = (uint64_t)s->in, out = (uint64_t)s->out, n = (uint64_t)rows;
    p->shape = *s;
    p->rows = rows;
    cublasStatus_t result = cublasLtMatmulDescCreate(&p->matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!result) result = SET_MATMUL(p->matmul, TRANSA, transposed);
    if (!result) result = SET_MATMUL(p->matmul, EPILOGUE, epilogue);
    if (!result) result = SET_MATMUL(p->matmul, BIAS_POINTER, layer->bias);
    if (!result) result = cublasLtMatrixLayoutCreate(&p->w, data_type(s->src), in, out, s->in);
    if (!result) result = cublasLtMatrixLayoutCreate(&p->x, data_type(s->src), in, n, s->in);
    if (!result) result = cublasLtMatrixLayoutCreate(&p->y, data_type(s->dst), out, n, s->out);
    return result;
}

static cublasStatus_t choose_algorithm(product *p, cublasLtHandle_t handle)
{
    const uint64_t workspace = WORKSPACE_BYTES;
    const uint32_t alignment = ALIGNMENT, reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found[ALGORITHMS];
    int count = 0;
    cublasStatus_t result = cublasLtMatmulPreferenceCreate(&preference);
    if (!result) result = SET_PREFERENCE(preference, MAX_WORKSPACE_BYTES, workspace);
    if (!result) result = SET_PREFERENCE(preference, REDUCTION_SCHEME_MASK, reduction);
    if (!result) result = SET_PREFERENCE(preference, MIN_ALIGNMENT_B_BYTES, alignment);
    if (!result) result = SET_PREFERENCE(preference, MIN_ALIGNMENT_C_BYTES, alignment);
    if (!result) result = SET_PREFERENCE(preference, MIN_ALIGNMENT_D_BYTES, alignment);
    if (!result)
        result = cublasLtMatmulAlgoGetHeuristic(handle, p->matmul, p->w, p->x, p->y, p->y, preference, ALGORITHMS,
                                                found, &count);
    if (preference) cublasLtMatmulPreferenceDestroy(preference);
    if (result) return result;
    for (int i = 0; i < count; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS) {
            p->algorithm = found[i].algo;
            return CUBLAS_STATUS_SUCCESS;
        }
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

static int same_shape(const dit_linear_shape *a, const dit_linear_shape *b)
{
    return a->in == b->in && a->out == b->out && a->src == b->src && a->dst == b->dst && a->gelu == b->gelu;
}

static cublasStatus_t find_or_prepare(product **out, const dit_linear *layer, int64_t rows)
{
    lt_engine *engine = layer->engine;
    for (int i = 0; i < PLANS; i++) {
        product *p = &engine->products[i];
        if (p->rows == rows && same_shape(&p->shape, &layer->shape)) {
            *out = p;
            return CUBLAS_STATUS_SUCCESS;
        }
    }
    product *p = &engine->products[engine->oldest];
    engine->oldest = (engine->oldest + 1) % PLANS;
    forget(p);
    cublasStatus_t result = describe(p, layer, rows);
    if (!result) result = choose_algorithm(p, engine->handle);
    if (result) forget(p);
    *out = p;
    return result;
}

mcsa_status lt_linear_apply(dit_linear *layer, const void *x, void *y, int64_t rows, mcsa_error *error)
{
    static const float one = 1, zero = 0;
    lt_engine *engine = layer->engine;
    product *p = NULL;
    TRY(check(find_or_prepare(&p, layer, rows), "prepare", &layer->shape, error));
    TRY(check_cuda(stage_clock_mark(&engine->clock, engine->stream), "record an event", error));
    cublasStatus_t result = SET_MATMUL(p->matmul, BIAS_POINTER, layer->bias);
    if (!result)
        result = cublasLtMatmul(engine->handle, p->matmul, &one, layer->weights, p->w, x, p->x, &zero, y, p->y, y, p->y,
                                &p->algorithm, engine->workspace, WORKSPACE_BYTES, engine->stream);
    TRY(check_cuda(stage_clock_mark(&engine->clock, engine->stream), "record an event", error));
    return check(result, "run", &layer->shape, error);
}

static size_t element_bytes(const dit_linear *layer)
{
    return layer->shape.src == MCSA_BF16 ? 2 : 4;
}

static mcsa_status make_room(dit_linear **out, lt_engine *engine, const dit_linear_shape *shape, mcsa_error *error)
{
    *out = NULL;
    dit_linear *layer = calloc(1, sizeof *layer);
    if (!layer) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a linear layer");
    layer->engine = engine;
    layer->shape = *shape;
    const size_t weights = ((size_t)(shape->in * shape->out) * element_bytes(layer) + 255) / 256 * 256;
    mcsa_status status = check_cuda(cudaMalloc(&layer->weights, weights + (size_t)shape->out * element_bytes(layer)),
                                    "allocate a linear layer", error);
    if (status != MCSA_OK) {
        free(layer);
        return status;
    }
    layer->bias = (char *)layer->weights + weights;
    *out = layer;
    return MCSA_OK;
}

/* Floats through the workspace, where they are cast.  All is in the stream's order, so the workspace is free when the
 * next piece or product wants it. */
static cudaError_t upload(const dit_linear *layer, void *to, const float *from, int64_t count)
{
    const int64_t piece = WORKSPACE_BYTES / (int64_t)sizeof *from;
    const lt_engine *engine = layer->engine;
    for (int64_t done = 0; done < count; done += piece) {
        const int64_t now = count - done < piece ? count - done : piece;
        cudaError_t result = cudaMemcpyAsync(engine->workspace, from + done, (size_t)now * sizeof *from,
                                             cudaMemcpyHostToDevice, engine->stream);
        if (result == cudaSuccess)
            result = dit_cuda_cast(engine->workspace, (char *)to + (size_t)done * element_bytes(layer),
                                   layer->shape.src, now, engine->stream);
        if (result != cudaSuccess) return result;
    }
    return cudaStreamSynchronize(engine->stream); /* `from` may go when this returns */
}

mcsa_status lt_linear_create(dit_linear **out, lt_engine *engine, const dit_linear_shape *shape, const float *weight,
                             const float *bias, mcsa_error *error)
{
    dit_linear *layer;
    TRY(make_room(&layer, engine, shape, error));
    cudaError_t result = upload(layer, layer->weights, weight, shape->in * shape->out);
    if (result == cudaSuccess) result = upload(layer, layer->bias, bias, shape->out);
    mcsa_status status = check_cuda(result, "copy a linear layer", error);
    if (status == MCSA_OK)
        *out = layer;
    else
        lt_linear_free(layer);
    return status;
}

mcsa_status lt_linear_random(dit_linear **out, lt_engine *engine, const dit_linear_shape *shape, uint64_t seed,
                             mcsa_error *error)
{
    dit_linear *layer;
    TRY(make_room(&layer, engine, shape, error));
    dit_cuda_random_job job = { .out = layer->weights,
                                .dtype = shape->src,
                                .count = shape->in * shape->out,
                                .seed = seed,
                                .spread = dit_random_spread(shape->in) };
    cudaError_t result = dit_cuda_random(&job, engine->stream);
    job.out = layer->bias;
    job.first = job.count;
    job.count = shape->out;
    if (result == cudaSuccess) result = dit_cuda_random(&job, engine->stream);
    mcsa_status status = check_cuda(result, "fill a linear layer", error);
    if (status == MCSA_OK)
        *out = layer;
    else
        lt_linear_free(layer);
    return status;
}

void lt_linear_free(dit_linear *layer)
{
    if (!layer) return;
    cudaFree(layer->weights);
    free(layer);
}
