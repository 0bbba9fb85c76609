/* cudnn_attention.c - see cudnn_attention.h.
 *
 * cuDNN 9's graph interface: descriptors of the tensors, of one operation (fused attention, since 9.13), of the graph
 * of that operation, of an engine's choice, of a plan, and of the pointers to run it on.  The library is loaded at run
 * time and the few names of its headers that are needed stand here, so that neither is wanted where mcsa is built. */
#include "cudnn_attention.h"

#include "base/library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libcudnn.so.9"

/* Values of cudnn_graph.h. */
enum { DATA_F32 = 0, DATA_F16 = 2, DATA_BF16 = 9, HEURISTIC_A = 3 };
enum {
    TYPE_HANDLE = 0,
    TYPE_DATA_TYPE,
    TYPE_BOOLEAN,
    TYPE_INT64,
    TYPE_POINTER = 6,
    TYPE_HEURISTIC = 8,
    TYPE_OBJECT = 15
};
enum { ENGINE_CONFIG = 3, ENGINE_HEURISTIC, PLAN, GRAPH = 15, POINTERS, TENSOR, ATTENTION = 41 };
enum { HEURISTIC_MODE = 200, HEURISTIC_GRAPH, HEURISTIC_RESULTS };
enum { PLAN_HANDLE = 400, PLAN_ENGINE, PLAN_SCRATCH };
enum { GRAPH_HANDLE = 800, GRAPH_OPERATIONS };
enum { TENSOR_ALIGNMENT = 900, TENSOR_DATA_TYPE, TENSOR_SHAPE, TENSOR_STRIDES, TENSOR_ID = 906, TENSOR_BY_VALUE = 908 };
enum { POINTERS_IDS = 1000, POINTERS_DATA, POINTERS_SCRATCH = 1003 };
enum { ATTENTION_Q = 2800, ATTENTION_K, ATTENTION_V, ATTENTION_OUT, ATTENTION_SCALE = 2805 };

enum { OBJECTS = 24, ENGINES = 8, TENSORS = 5 };

typedef struct calls {
    size_t (*version)(void);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    void (*last_error)(char *text, size_t bytes);
    int (*object_create)(int kind, void **object);
    int (*object_destroy)(void *object);
    int (*set)(void *object, int name, int type, int64_t count, const void *values);
    int (*get)(void *object, int name, int type, int64_t room, int64_t *count, void *values);
    int (*finish)(void *object);
    int (*execute)(void *handle, void *plan, void *pointers);
} calls;

struct bench_cudnn {
    calls call;
    void *handle, *plan, *pointers;
    void *objects[OBJECTS];
    int count;
    int failed; /* the first status that is not 0 */
    char what[32];
    float scale;
    mcsa_memory *memory;
    mcsa_block scratch;
};

static mcsa_status load(calls *call, mcsa_error *error)
{
    const struct {
        const char *name;
        void *place;
    } wanted[] = {
        { "cudnnGetVersion", &call->version },
        { "cudnnCreate", &call->create },
        { "cudnnDestroy", &call->destroy },
        { "cudnnGetLastErrorString", &call->last_error },
        { "cudnnBackendCreateDescriptor", &call->object_create },
        { "cudnnBackendDestroyDescriptor", &call->object_destroy },
        { "cudnnBackendSetAttribute", &call->set },
        { "cudnnBackendGetAttribute", &call->get },
        { "cudnnBackendFinalize", &call->finish },
        { "cudnnBackendExecute", &call->execute },
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        mcsa_error why = { "" };
        void *found = mcsa_library_symbol(LIBRARY, wanted[i].name, &why);
        if (!found) return mcsa_fail(error, MCSA_EUNSUPPORTED, "not found: %.400s", why.text);
        memcpy(wanted[i].place, &found, sizeof found); /* C converts no pointer to data into one to a function */
    }
    return MCSA_OK;
}

/* Nothing is done after the first failure. */
static void note(bench_cudnn *c, int status, const char *what)
{
    if (c->failed || !status) return;
    c->failed = status;
    snprintf(c->what, sizeof c->what, "%s", what);
}

static void *object(bench_cudnn *c, int kind, const char *what)
{
    void *made = NULL;
    if (c->failed || c->count == OBJECTS) return NULL;
    note(c, c->call.object_create(kind, &made), what);
    if (!c->failed) c->objects[c->count++] = made;
    return made;
}

static void set(bench_cudnn *c, void *on, int name, int type, int64_t count, const void *values)
{
    if (!c->failed) note(c, c->call.set(on, name, type, count, values), "an attribute");
}

static void finish(bench_cudnn *c, void *made, const char *what)
{
    if (!c->failed) note(c, c->call.finish(made), what);
}

/* x: [H, N, D] as one batch, or NULL: one number in host memory. */
static void *tensor(bench_cudnn *c, int64_t id, const mcsa_tensor *x)
{
    const _Bool by_value = x == NULL;
    const int type = !x ? DATA_F32 : x->dtype == MCSA_BF16 ? DATA_BF16 : DATA_F16;
    const int64_t alignment = 16;
    int64_t shape[4] = { 1, 1, 1, 1 }, strides[4] = { 1, 1, 1, 1 };
    for (int i = 0; x && i < 3; i++) {
        shape[i + 1] = x->shape[i];
        strides[i + 1] = x->stride[i];
    }
    if (x) strides[0] = x->shape[0] * x->stride[0];
    void *made = object(c, TENSOR, "a tensor");
    set(c, made, TENSOR_DATA_TYPE, TYPE_DATA_TYPE, 1, &type);
    set(c, made, TENSOR_SHAPE, TYPE_INT64, 4, shape);
    set(c, made, TENSOR_STRIDES, TYPE_INT64, 4, strides);
    set(c, made, TENSOR_ID, TYPE_INT64, 1, &id);
    set(c, made, TENSOR_ALIGNMENT, TYPE_INT64, 1, &alignment);
    set(c, made, TENSOR_BY_VALUE, TYPE_BOOLEAN, 1, &by_value);
    finish(c, made, "a tensor");
    return made;
}

static void *graph(bench_cudnn *c, const mcsa_qkv *x)
{
    static const int names[TENSORS] = { ATTENTION_Q, ATTENTION_K, ATTENTION_V, ATTENTION_OUT, ATTENTION_SCALE };
    const mcsa_tensor *tensors[TENSORS] = { x->q, x->k, x->v, x->out, NULL };
    void *attention = object(c, ATTENTION, "fused attention");
    for (int i = 0; i < TENSORS; i++) {
        void *one = tensor(c, i + 1, tensors[i]);
        set(c, attention, names[i], TYPE_OBJECT, 1, &one);
    }
    finish(c, attention, "fused attention");
    void *made = object(c, GRAPH, "the graph");
    set(c, made, GRAPH_HANDLE, TYPE_HANDLE, 1, &c->handle);
    set(c, made, GRAPH_OPERATIONS, TYPE_OBJECT, 1, &attention);
    finish(c, made, "the graph");
    return made;
}

/* The first of the engines that cuDNN proposes, best first, that can be planned. */
static void plan(bench_cudnn *c, void *of)
{
    const int mode = HEURISTIC_A;
    int64_t engines = 0;
    void *engine[ENGINES] = { 0 };
    void *heuristic = object(c, ENGINE_HEURISTIC, "the choice of an engine");
    set(c, heuristic, HEURISTIC_GRAPH, TYPE_OBJECT, 1, &of);
    set(c, heuristic, HEURISTIC_MODE, TYPE_HEURISTIC, 1, &mode);
    finish(c, heuristic, "the choice of an engine");
    for (int i = 0; i < ENGINES; i++) engine[i] = object(c, ENGINE_CONFIG, "an engine");
    if (c->failed) return;
    note(c, c->call.get(heuristic, HEURISTIC_RESULTS, TYPE_OBJECT, ENGINES, &engines, engine), "the engines");
    int refused = -1; /* no engine was proposed */
    for (int i = 0; i < engines && i < ENGINES && !c->failed && !c->plan; i++) {
        void *made = NULL;
        note(c, c->call.object_create(PLAN, &made), "a plan");
        set(c, made, PLAN_HANDLE, TYPE_HANDLE, 1, &c->handle);
        set(c, made, PLAN_ENGINE, TYPE_OBJECT, 1, &engine[i]);
        if (!c->failed) refused = c->call.finish(made);
        if (!c->failed && !refused)
            c->plan = made;
        else if (made)
            c->call.object_destroy(made);
    }
    if (!c->plan) note(c, refused, "every engine");
}

static mcsa_status point(bench_cudnn *c, const mcsa_qkv *x, mcsa_error *error)
{
    static const int64_t ids[TENSORS] = { 1, 2, 3, 4, 5 };
    void *data[TENSORS] = { x->q->data, x->k->data, x->v->data, x->out->data, &c->scale };
    int64_t bytes = 0, count = 0;
    if (c->failed) return MCSA_OK;
    note(c, c->call.get(c->plan, PLAN_SCRATCH, TYPE_INT64, 1, &count, &bytes), "the size of the scratch");
    if (bytes > 0 && mcsa_block_reserve(c->memory, &c->scratch, (size_t)bytes))
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for %lld bytes of cuDNN's scratch", (long long)bytes);
    c->scale = x->scale;
    c->pointers = object(c, POINTERS, "the pointers");
    set(c, c->pointers, POINTERS_IDS, TYPE_INT64, TENSORS, ids);
    set(c, c->pointers, POINTERS_DATA, TYPE_POINTER, TENSORS, data);
    set(c, c->pointers, POINTERS_SCRATCH, TYPE_POINTER, 1, &c->scratch.data);
    finish(c, c->pointers, "the pointers");
    return MCSA_OK;
}

mcsa_status bench_cudnn_open(bench_cudnn **out, const mcsa_qkv *x, mcsa_memory *memory, mcsa_error *error)
{
    *out = NULL;
    bench_cudnn *c = calloc(1, sizeof *c);
    if (!c) return mcsa_fail(error, MCSA_ENOMEM, "no memory for cuDNN's plan");
    c->memory = memory;
    mcsa_status status = load(&c->call, error);
    if (status != MCSA_OK) goto done;
    note(c, c->call.create(&c->handle), "opening the library");
    void *of = graph(c, x);
    plan(c, of);
    status = point(c, x, error);
    if (status == MCSA_OK) status = bench_cudnn_outcome(c, error);
    if (status == MCSA_OK) {
        *out = c;
        c = NULL; /* ownership has moved */
    }
done:
    bench_cudnn_close(c);
    return status;
}

void bench_cudnn_close(bench_cudnn *c)
{
    if (!c) return;
    if (c->plan) c->call.object_destroy(c->plan);
    while (c->count > 0) c->call.object_destroy(c->objects[--c->count]);
    if (c->handle) c->call.destroy(c->handle);
    mcsa_block_release(c->memory, &c->scratch);
    free(c);
}

int bench_cudnn_version(const bench_cudnn *c)
{
    return (int)c->call.version();
}

void bench_cudnn_attend(bench_cudnn *c)
{
    if (!c->failed) note(c, c->call.execute(c->handle, c->plan, c->pointers), "attention");
}

mcsa_status bench_cudnn_outcome(const bench_cudnn *c, mcsa_error *error)
{
    char why[200] = "";
    if (!c->failed) return MCSA_OK;
    c->call.last_error(why, sizeof why);
    return mcsa_fail(error, MCSA_EUNSUPPORTED, "cuDNN %d refuses %s with status %d: %s", bench_cudnn_version(c),
                     c->what, c->failed, why);
}
