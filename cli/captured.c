/* captured.c - see captured.h. */
#include "captured.h"

#include "capture_pick.h"
#include "dit/json.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    mcsa_site at;
    char name[64];
} entry;

typedef struct entries {
    entry *entry;
    int count, room;
} entries;

static int by_site(const void *a, const void *b)
{
    const mcsa_site *p = &((const entry *)a)->at, *q = &((const entry *)b)->at;
    if (p->layer != q->layer) return (p->layer > q->layer) - (p->layer < q->layer);
    if (p->branch != q->branch) return (p->branch > q->branch) - (p->branch < q->branch);
    return (p->step > q->step) - (p->step < q->step);
}

static int parse_name(const char *name, entry *out)
{
    int end = 0;
    if (strlen(name) >= sizeof out->name) return 0;
    if (sscanf(name, "step-%6d.layer-%6d.branch-%6d.safetensors%n", &out->at.step, &out->at.layer, &out->at.branch,
               &end) != 3)
        return 0;
    memcpy(out->name, name, strlen(name) + 1);
    return end > 0 && !name[end] && out->at.step >= 0 && out->at.layer >= 0 && out->at.branch >= 0;
}

int captured_is_name(const char *name)
{
    entry unused;
    return parse_name(name, &unused);
}

static mcsa_status add_entry(entries *e, const entry *found, mcsa_error *error)
{
    if (e->count == e->room) {
        int room = e->room ? 2 * e->room : 64;
        entry *grown = realloc(e->entry, (size_t)room * sizeof *grown);
        if (!grown) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a list of %d files", room);
        e->entry = grown;
        e->room = room;
    }
    e->entry[e->count++] = *found;
    return MCSA_OK;
}

static mcsa_status list_files(entries *e, const char *path, mcsa_error *error)
{
    DIR *dir = opendir(path);
    if (!dir) return mcsa_fail(error, MCSA_EIO, "cannot open the folder %.300s: %s", path, strerror(errno));
    mcsa_status status = MCSA_OK;
    const struct dirent *file;
    entry found;
    while (status == MCSA_OK && (file = readdir(dir)))
        if (parse_name(file->d_name, &found)) status = add_entry(e, &found, error);
    closedir(dir);
    if (status != MCSA_OK) return status;
    if (!e->count)
        return mcsa_fail(error, MCSA_EINVAL,
                         "%.300s holds no captured call: files are called like step-007.layer-003.branch-0.safetensors "
                         "(docs/ANALYZE.md)",
                         path);
    qsort(e->entry, (size_t)e->count, sizeof *e->entry, by_site);
    for (int i = 1; i < e->count; i++)
        if (by_site(&e->entry[i - 1], &e->entry[i]) == 0)
            return mcsa_fail(error, MCSA_EINVAL, "%.200s: %s and %s are the same call", path, e->entry[i - 1].name,
                             e->entry[i].name);
    return MCSA_OK;
}

static int axis_of(const mcsa_site *at, int axis)
{
    return axis == 0 ? at->step : axis == 1 ? at->layer : at->branch;
}

static int by_value(const void *a, const void *b)
{
    return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

/* Drops the entries that the pick along one axis leaves out. */
static mcsa_status pick_axis(entries *e, int axis, const char *text, mcsa_error *error)
{
    static const char *const options[] = { "at-steps", "at-layers", "at-branches" };
    int *values = malloc((size_t)e->count * sizeof *values), count = 0, left = 0;
    char *keep = malloc((size_t)e->count);
    mcsa_status status = MCSA_OK;
    if (!values || !keep) {
        status = mcsa_fail(error, MCSA_ENOMEM, "no memory to choose from %d files", e->count);
        goto done;
    }
    for (int i = 0; i < e->count; i++) values[i] = axis_of(&e->entry[i].at, axis);
    qsort(values, (size_t)e->count, sizeof *values, by_value);
    for (int i = 0; i < e->count; i++)
        if (!i || values[i] != values[count - 1]) values[count++] = values[i];
    status = capture_pick(keep, values, count, options[axis], text, error);
    if (status != MCSA_OK) goto done;
    for (int i = 0; i < e->count; i++) {
        int value = axis_of(&e->entry[i].at, axis);
        const int *at = bsearch(&value, values, (size_t)count, sizeof *values, by_value);
        if (keep[at - values]) e->entry[left++] = e->entry[i];
    }
    e->count = left;
    if (!left) status = mcsa_fail(error, MCSA_EINVAL, "no captured call is left of --%s %.64s", options[axis], text);
done:
    free(values);
    free(keep);
    return status;
}

static mcsa_status take_entries(captured *c, const entries *e, mcsa_error *error)
{
    c->at = malloc((size_t)e->count * sizeof *c->at);
    c->name = malloc((size_t)e->count * sizeof *c->name);
    if (!c->at || !c->name) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a list of %d files", e->count);
    c->count = e->count;
    for (int i = 0; i < e->count; i++) {
        c->at[i] = e->entry[i].at;
        memcpy(c->name[i], e->entry[i].name, sizeof *c->name);
    }
    return MCSA_OK;
}

mcsa_status captured_open(captured *c, const char *dir, const captured_picks *picks, mcsa_error *error)
{
    entries e = { 0 };
    *c = (captured){ .dir = dir };
    mcsa_status status = list_files(&e, dir, error);
    if (status == MCSA_OK) status = pick_axis(&e, 0, picks->steps, error);
    if (status == MCSA_OK) status = pick_axis(&e, 1, picks->layers, error);
    if (status == MCSA_OK) status = pick_axis(&e, 2, picks->branches, error);
    if (status == MCSA_OK) status = take_entries(c, &e, error);
    free(e.entry);
    analysis_call call;
    if (status == MCSA_OK) status = captured_load(c, 0, &call, error); /* also for the grid */
    if (status != MCSA_OK) captured_close(c);
    return status;
}

void captured_close(captured *c)
{
    dit_tensors_free(c->file);
    free(c->at);
    free(c->name);
    *c = (captured){ 0 };
}

/* [H, N, D] of the tensor; a batch of one in front is dropped. */
static mcsa_status view(mcsa_tensor *out, const dit_tensors *file, const char *name, const char *path,
                        mcsa_error *error)
{
    const dit_tensor *t = dit_tensors_find(file, name);
    if (!t) return mcsa_fail(error, MCSA_EFORMAT, "%.300s has no tensor \"%s\"", path, name);
    const int64_t *shape = t->shape + (t->rank == 4);
    if (!(t->rank == 3 || (t->rank == 4 && t->shape[0] == 1)) || shape[0] < 1 || shape[0] > 65536 || shape[1] < 1 ||
        shape[1] > INT32_MAX / 2 || shape[2] < 1 || shape[2] > 256)
        return mcsa_fail(error, MCSA_EFORMAT,
                         "%.300s: tensor \"%s\" must be [heads, tokens, head dimension up to 256], but has %d "
                         "dimensions, the last %lld",
                         path, name, t->rank, t->rank ? (long long)t->shape[t->rank - 1] : 0LL);
    *out = (mcsa_tensor){
        (void *)(uintptr_t)t->data, t->dtype, { shape[0], shape[1], shape[2] }, { shape[1] * shape[2], shape[2], 1 }
    };
    return MCSA_OK;
}

static int same_form(const mcsa_tensor *a, const mcsa_tensor *b)
{
    return a->dtype == b->dtype && memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

static mcsa_status read_extras(captured *c, analysis_call *call, const char *path, mcsa_error *error)
{
    const dit_tensor *scale = dit_tensors_find(c->file, "scale"), *grid = dit_tensors_find(c->file, "grid");
    call->scale = 1.0f / sqrtf((float)call->q.shape[2]);
    if (scale && dit_tensor_count(scale) != 1)
        return mcsa_fail(error, MCSA_EFORMAT, "%.300s: \"scale\" must be one number", path);
    if (scale) dit_tensor_read(scale, &call->scale);
    if (!(call->scale > 0 && call->scale < 1e6f))
        return mcsa_fail(error, MCSA_EFORMAT, "%.300s: the scale %g is not above 0 and below 1e6", path,
                         (double)call->scale);
    if (grid && dit_tensor_count(grid) == 3 && !c->grid[0]) {
        float extent[3];
        dit_tensor_read(grid, extent);
        for (int i = 0; i < 3; i++) c->grid[i] = extent[i] >= 1 && extent[i] < 65536 ? (int)extent[i] : 0;
    }
    return MCSA_OK;
}

mcsa_status captured_load(void *user, int i, analysis_call *call, mcsa_error *error)
{
    captured *c = user;
    char path[DIT_MAX_PATH];
    if (snprintf(path, sizeof path, "%s/%s", c->dir, c->name[i]) >= (int)sizeof path)
        return mcsa_fail(error, MCSA_EINVAL, "the path %.80s... is too long", c->dir);
    dit_tensors_free(c->file);
    c->file = NULL;
    TRY(dit_tensors_open(&c->file, path, error));
    call->at = c->at[i];
    TRY(view(&call->q, c->file, "q", path, error));
    TRY(view(&call->k, c->file, "k", path, error));
    TRY(view(&call->v, c->file, "v", path, error));
    if (!same_form(&call->q, &call->k) || !same_form(&call->q, &call->v))
        return mcsa_fail(error, MCSA_EFORMAT,
                         "%.300s: q, k and v must be alike in shape and dtype: self-attention without shared heads",
                         path);
    return read_extras(c, call, path, error);
}
