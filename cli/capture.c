/* capture.c - see capture.h. */
#include "capture.h"

#include "base/half.h"
#include "base/tensor.h"
#include "capture_pick.h"
#include "dit/json.h"
#include "rivals/kernels.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct capture {
    const char *dir; /* borrowed */
    char *keep;      /* [steps + layers + branches] */
    int count[3];    /* steps, layers, branches */
    float grid[3];
    const rival_kernels *kernels; /* read the backend's tensors */
    void *backend;
    mcsa_run *run;
    const dit_attention *inner;
    dit_attention self;
    int written;
    mcsa_error error;
};

static mcsa_status open_folder(const char *path, mcsa_error *error)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return mcsa_fail(error, MCSA_EIO, "cannot make the folder %.300s: %s", path, strerror(errno));
    DIR *dir = opendir(path);
    if (!dir) return mcsa_fail(error, MCSA_EIO, "cannot open the folder %.300s: %s", path, strerror(errno));
    int used = 0;
    for (const struct dirent *file; !used && (file = readdir(dir));) used = captured_is_name(file->d_name);
    closedir(dir);
    if (!used) return MCSA_OK;
    return mcsa_fail(error, MCSA_EINVAL, "%.300s holds captured calls of another run already; give another folder",
                     path);
}

static mcsa_status pick_calls(capture *c, const captured_picks *picks, mcsa_error *error)
{
    const char *const options[] = { "at-steps", "at-layers", "at-branches" };
    const char *const texts[] = { picks->steps, picks->layers, picks->branches };
    const int total = c->count[0] + c->count[1] + c->count[2];
    int *values = malloc((size_t)total * sizeof *values);
    mcsa_status status = MCSA_OK;
    c->keep = malloc((size_t)total);
    if (!values || !c->keep) status = mcsa_fail(error, MCSA_ENOMEM, "no memory to choose from %d steps", c->count[0]);
    char *keep = c->keep;
    for (int axis = 0; status == MCSA_OK && axis < 3; axis++) {
        for (int i = 0; i < c->count[axis]; i++) values[i] = i;
        status = capture_pick(keep, values, c->count[axis], options[axis], texts[axis], error);
        keep += c->count[axis];
    }
    free(values);
    return status;
}

static mcsa_status open_parts(capture *c, const capture_order *order, mcsa_error *error)
{
    const mcsa_config config = { .device = order->device };
    TRY(pick_calls(c, &order->picks, error));
    TRY(open_folder(order->dir, error));
    TRY(rival_kernels_find(&c->kernels, order->device, error));
    return c->kernels->open(&c->backend, &config, error);
}

mcsa_status capture_open(capture **out, const capture_order *order, mcsa_error *error)
{
    *out = NULL;
    capture *c = calloc(1, sizeof *c);
    if (!c) return mcsa_fail(error, MCSA_ENOMEM, "no memory to capture");
    c->dir = order->dir;
    c->count[0] = order->steps;
    c->count[1] = order->layers;
    c->count[2] = order->branches;
    for (int i = 0; i < 3; i++) c->grid[i] = (float)order->grid[i];
    mcsa_status status = open_parts(c, order, error);
    if (status == MCSA_OK)
        *out = c;
    else
        capture_close(c);
    return status;
}

void capture_close(capture *c)
{
    if (!c) return;
    if (c->backend) c->kernels->close(c->backend);
    free(c->keep);
    free(c);
}

static int chosen(const capture *c, mcsa_site at)
{
    const char *layers = c->keep + c->count[0], *branches = layers + c->count[1];
    return c->keep[at.step] && layers[at.layer] && branches[at.branch];
}

/* Exact: what was 16 bits wide is again. */
static void narrow(const float *from, int64_t count, mcsa_dtype dtype, void *to)
{
    uint16_t *half = to;
    if (dtype == MCSA_F32) memcpy(to, from, sizeof *from * (size_t)count);
    for (int64_t i = 0; dtype != MCSA_F32 && i < count; i++)
        half[i] = dtype == MCSA_BF16 ? mcsa_to_bf16(from[i]) : mcsa_to_f16(from[i]);
}

/* data [H, N, D], packed, of any view of the backend's memory. */
static mcsa_status read_tensor(capture *c, const mcsa_tensor *t, void *data)
{
    const int64_t N = t->shape[1], D = t->shape[2];
    const size_t head_bytes = (size_t)(N * D) * mcsa_dtype_bytes(t->dtype);
    float *rows = malloc(sizeof *rows * (size_t)(N * D));
    int32_t *every = malloc(sizeof *every * (size_t)N);
    mcsa_status status = MCSA_OK;
    if (!rows || !every) status = mcsa_fail(&c->error, MCSA_ENOMEM, "no memory to capture %lld rows", (long long)N);
    for (int64_t n = 0; status == MCSA_OK && n < N; n++) every[n] = (int32_t)n;
    for (int64_t h = 0; status == MCSA_OK && h < t->shape[0]; h++) {
        mcsa_tensor head = *t;
        head.shape[0] = 1;
        head.data = mcsa_tensor_row(t, h, 0);
        status = c->kernels->read_rows(c->backend, &head, every, (int)N, rows, &c->error);
        if (status == MCSA_OK) narrow(rows, N * D, t->dtype, (char *)data + (size_t)h * head_bytes);
    }
    free(rows);
    free(every);
    return status;
}

static mcsa_status write_call(capture *c, mcsa_site at, const mcsa_tensor *const qkv[3])
{
    static const char *const names[] = { "q", "k", "v" };
    const mcsa_tensor *q = qkv[0];
    const size_t bytes = (size_t)(q->shape[0] * q->shape[1] * q->shape[2]) * mcsa_dtype_bytes(q->dtype);
    const float scale = 1.0f / sqrtf((float)q->shape[2]);
    char path[DIT_MAX_PATH];
    if (snprintf(path, sizeof path, "%s/" CAPTURED_NAME, c->dir, at.step, at.layer, at.branch) >= (int)sizeof path)
        return mcsa_fail(&c->error, MCSA_EINVAL, "the path %.80s... is too long", c->dir);
    char *data = malloc(3 * bytes);
    if (!data) return mcsa_fail(&c->error, MCSA_ENOMEM, "no memory to capture %zu bytes", 3 * bytes);
    dit_tensor tensors[5];
    mcsa_status status = MCSA_OK;
    for (int i = 0; status == MCSA_OK && i < 3; i++) {
        tensors[i] =
            (dit_tensor){ names[i], q->dtype, 3, { q->shape[0], q->shape[1], q->shape[2] }, data + (size_t)i * bytes };
        status = read_tensor(c, qkv[i], data + (size_t)i * bytes);
    }
    tensors[3] = (dit_tensor){ "scale", MCSA_F32, 1, { 1 }, &scale };
    tensors[4] = (dit_tensor){ "grid", MCSA_F32, 1, { 3 }, c->grid };
    if (status == MCSA_OK) status = dit_tensors_write(path, tensors, 5, &c->error);
    free(data);
    c->written += status == MCSA_OK;
    return status;
}

static mcsa_status attend(void *state, mcsa_site at, const mcsa_tensor *q, const mcsa_tensor *k, const mcsa_tensor *v,
                          const mcsa_tensor *out)
{
    capture *c = state;
    const mcsa_tensor *const qkv[3] = { q, k, v };
    if (chosen(c, at)) TRY(write_call(c, at, qkv));
    mcsa_status status =
        c->inner ? c->inner->attend(c->inner->state, at, q, k, v, out) : mcsa_attend(c->run, at, q, k, v, out);
    if (status == MCSA_OK) return status;
    return mcsa_fail(&c->error, status, "%s", c->inner ? c->inner->error(c->inner->state) : mcsa_run_error(c->run));
}

static const char *last_error(const void *state)
{
    return ((const capture *)state)->error.text;
}

const dit_attention *capture_before(capture *c, mcsa_run *run, const dit_attention *inner)
{
    c->run = run;
    c->inner = inner;
    c->self = (dit_attention){ c, attend, last_error };
    return &c->self;
}

int capture_count(const capture *c)
{
    return c->written;
}
