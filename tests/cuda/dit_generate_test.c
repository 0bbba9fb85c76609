/* dit_generate_test.c - whole clips on a GPU against the CPU, as `mcsa generate` makes them: noise, a caption and
 * guidance in two branches, through the denoising loop, with dense attention and with MC-Sparse.
 *
 * Rounding.  What rounding to BF16 moves a clip by depends on the weights and the steps, and with MC-Sparse also on
 * which of two keys of nearly equal mass is kept.  So the CPU says it: c - f, its clip in BF16 minus its clip in F32,
 * is one draw of that error, and that of the GPU, g - f, is another of the same size, since both round the inputs and
 * outputs of the same operations.  Independent draws are sqrt(2) of one apart:
 *
 *     rms |g - c| <= 2 rms |c - f|        over SEEDS noises, in relative L2
 *
 * The mean over noises is needed because denoising amplifies few directions, so a single ratio may be anything.  This
 * is held to dense clips, and to those of 112 tokens that keep keys one by one: one group, nothing to choose but keys.
 *
 * Choice.  Of more groups the GPU makes others than the CPU, as good: its power iteration starts elsewhere, and a
 * direction of the other sign puts the smaller half at the other end.  So it does of clusters, whose rounds carry a key
 * near the middle of two centres on to centres that moved.  Two selections are two approximations of dense
 * attention.  With z the distance of a sparse clip from the dense clip of its own arithmetic, their errors have no
 * reason to be opposed, and neither of them is better:
 *
 *     rms |g - c| <= sqrt(2) rms z_c        |mean of log(z_g / z_c)| <= T standard errors of that mean
 *
 * T is what the t distribution of SEEDS - 1 degrees of freedom exceeds once in a thousand times.  The second is held to
 * all sparse clips: dense attention in place of sparse does not pass, and neither does a selection that is worse.
 *
 * Arguments: a directory like that of tiny-t2v instead of it. */
#include "check.h"

#include "dit/generate.h"
#include "dit/text.h"
#include "dit/wan.h"

#ifndef MCSA_MODEL_DIR
#define MCSA_MODEL_DIR "models/tiny-t2v" /* seen from the repository */
#endif

enum { STEPS = 8, SEEDS = 8 };
enum { GPU, BF16, F32, ARITHMETICS }; /* the last two are the CPU's */

static const double ROUNDING = 2, T = 5.41;

static const struct size {
    const char *name;
    int frames, height, width, groups;
    float density;
    const char *schedule;
} sizes[] = { { "112 tokens", 7, 16, 16, 1, 0.5f, "list:5" },
              { "1,089 tokens", 9, 44, 44, 9 /* the last one half full */, 0.25f, "list:2,5" } };

static const struct method {
    const char *name;
    int sparse; /* 0: dense attention everywhere */
    mcsa_sharing sharing;
    mcsa_tail tail;
} methods[] = { { "dense", 0, MCSA_BRANCHES_SHARED, MCSA_TAIL_OFF },
                { "keys, shared", 1, MCSA_BRANCHES_SHARED, MCSA_TAIL_OFF },
                { "keys, apart", 1, MCSA_BRANCHES_APART, MCSA_TAIL_OFF },
                { "means, shared", 1, MCSA_BRANCHES_SHARED, MCSA_TAIL_MEANS },
                { "means, apart", 1, MCSA_BRANCHES_APART, MCSA_TAIL_MEANS } };
enum { METHODS = sizeof methods / sizeof *methods };

typedef struct desk {
    dit_wan *models[ARITHMETICS];
    float *context, *null_context; /* [rows, text_dim] */
    int rows;
    const struct size *size;
    int64_t count; /* numbers of a clip of that size */
} desk;

/* One noise by one method. */
typedef struct trio {
    float *latents[ARITHMETICS]; /* [channels, frames, height, width]; F32: NULL where it is not asked for */
    mcsa_stats stats[ARITHMETICS];
} trio;

/* Sums over noises; the first three of squares.  drift: of the logarithms, drifts: of their squares */
typedef struct tally {
    double apart, rounding, sparsity, drift, drifts;
} tally;

/* Whether nothing but rounding tells the GPU's clips from the CPU's.  Keys are clustered in any number of groups. */
static int only_rounds(const desk *d, const struct method *m)
{
    return !m->sparse || (d->size->groups == 1 && m->tail == MCSA_TAIL_OFF);
}

static mcsa_run *open_run(const dit_wan *model, const struct size *size, const struct method *m)
{
    char text[512] = "";
    mcsa_run *run = NULL;
    const int layers = dit_wan_describe(model)->layers;
    const size_t calls = (size_t)layers * STEPS;
    mcsa_action *dense = check_alloc(calls * sizeof *dense);
    for (size_t i = 0; i < calls; i++) dense[i] = MCSA_DENSE;
    const mcsa_config config = { .steps = STEPS,
                                 .layers = layers,
                                 .branches = 2,
                                 .density = size->density,
                                 .schedule = size->schedule,
                                 .actions = m->sparse ? NULL : dense,
                                 .sharing = m->sharing,
                                 .tail = m->tail,
                                 .device = dit_wan_device(model) };
    CHECK_TRUE(mcsa_run_create(&run, &config, text, sizeof text) == MCSA_OK, "%s", text);
    free(dense);
    return run;
}

/* NULL after a failure. */
static float *clip_make(const desk *d, int arithmetic, const struct method *m, int seed, mcsa_stats *stats)
{
    dit_wan *model = d->models[arithmetic];
    const size_t bytes = (size_t)d->count * sizeof(float);
    float *noise = check_alloc(bytes), *latent = check_alloc(bytes);
    mcsa_error error = { "" };
    mcsa_run *run = open_run(model, d->size, m);
    dit_noise((uint64_t)seed, noise, d->count);
    memset(latent, CHECK_POISON, bytes);
    *stats = (mcsa_stats){ .size = sizeof *stats };
    const dit_generate_options options = { .steps = STEPS,
                                           .guidance = 3,
                                           .shift = 3,
                                           .frames = d->size->frames,
                                           .height = d->size->height,
                                           .width = d->size->width,
                                           .noise = noise,
                                           .context = d->context,
                                           .null_context = d->null_context,
                                           .context_rows = d->rows,
                                           .null_rows = d->rows };
    const int done = run && dit_generate(model, run, &options, latent, NULL, &error) == MCSA_OK &&
                     mcsa_run_stats(run, stats) == MCSA_OK;
    CHECK_TRUE(done, "%s", error.text);
    mcsa_run_free(run);
    free(noise);
    if (done) return latent;
    free(latent);
    return NULL;
}

static void trio_free(trio *t)
{
    for (int a = 0; a < ARITHMETICS; a++) free(t->latents[a]);
    *t = (trio){ 0 };
}

/* Returns 0 after a failure, with nothing held. */
static int trio_make(trio *t, const desk *d, const struct method *m, int seed)
{
    *t = (trio){ 0 };
    for (int a = 0; a < (only_rounds(d, m) ? ARITHMETICS : F32); a++)
        if (!(t->latents[a] = clip_make(d, a, m, seed, &t->stats[a]))) {
            trio_free(t);
            return 0;
        }
    return 1;
}

/* The GPU ran the calls that the CPU ran, and a sparse run did reuse. */
static void check_calls(const trio *t, const struct method *m)
{
    const mcsa_stats *g = &t->stats[GPU], *c = &t->stats[BF16];
    CHECK_TRUE(g->dense == c->dense && g->anchor == c->anchor && g->reuse == c->reuse && g->fallback == 0 &&
                   c->fallback == 0,
               "%s: %lld dense, %lld anchor, %lld reuse, %lld fallback on the GPU", m->name, (long long)g->dense,
               (long long)g->anchor, (long long)g->reuse, (long long)g->fallback);
    CHECK_TRUE(m->sparse == (g->reuse > 0), "%s: %lld calls reused", m->name, (long long)g->reuse);
}

static void check_repeats(const trio *t, const desk *d, const struct method *m, int seed)
{
    mcsa_stats stats;
    float *again = clip_make(d, GPU, m, seed, &stats);
    if (again) check_same_bits(again, t->latents[GPU], (size_t)d->count * sizeof *again, "the clip once more");
    free(again);
}

/* |a - b| / |b|; NaN stays NaN. */
static double distance(const desk *d, const float *a, const float *b)
{
    double moved = 0, size = 0;
    for (int64_t i = 0; i < d->count; i++) {
        const double difference = (double)a[i] - (double)b[i];
        moved += difference * difference;
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(moved / size);
}

static void tally_add(tally *sums, const desk *d, const trio *t, const trio *dense)
{
    const float *const *made = (const float *const *)t->latents, *const *whole = (const float *const *)dense->latents;
    const double apart = distance(d, made[GPU], made[BF16]);
    sums->apart += apart * apart;
    if (made[F32]) {
        const double rounding = distance(d, made[BF16], made[F32]);
        sums->rounding += rounding * rounding;
    }
    if (t != dense) {
        const double z = distance(d, made[BF16], whole[BF16]), drift = log(distance(d, made[GPU], whole[GPU]) / z);
        sums->sparsity += z * z;
        sums->drift += drift;
        sums->drifts += drift * drift;
    }
}

static void report(const desk *d, const struct method *m, const char *what, double measured, double bound)
{
    printf("     %-12s %-14s %-38s %.2e, %3.0f %% of %.2e\n", d->size->name, m->name, what, measured,
           100 * measured / bound, bound);
    CHECK_TRUE(measured <= bound, "%s, %s: %s", d->size->name, m->name, what);
}

static void judge(const tally *sums, const desk *d, const struct method *m)
{
    const double bound = only_rounds(d, m) ? ROUNDING * sqrt(sums->rounding) : sqrt(2 * sums->sparsity);
    report(d, m, "GPU to CPU", sqrt(sums->apart / SEEDS), bound / sqrt(SEEDS));
    if (m->sparse) {
        const double mean = sums->drift / SEEDS, variance = (sums->drifts / SEEDS - mean * mean) / (SEEDS - 1);
        report(d, m, "log of distance to dense, GPU over CPU", fabs(mean), T * sqrt(variance));
    }
}

static void compare(desk *d, const struct size *size)
{
    tally sums[METHODS] = { 0 };
    d->size = size;
    d->count = (int64_t)dit_wan_describe(d->models[GPU])->in_channels * size->frames * size->height * size->width;
    for (int seed = 1; seed <= SEEDS; seed++) {
        trio dense, sparse;
        if (!trio_make(&dense, d, &methods[0], seed)) return;
        for (int m = 0; m < METHODS; m++) {
            const trio *made = m ? &sparse : &dense;
            if (m && !trio_make(&sparse, d, &methods[m], seed)) break;
            check_calls(made, &methods[m]);
            if (seed == 1) check_repeats(made, d, &methods[m], seed);
            tally_add(&sums[m], d, made, &dense);
            if (m) trio_free(&sparse);
        }
        trio_free(&dense);
    }
    for (int m = 0; m < METHODS; m++) judge(&sums[m], d, &methods[m]);
}

static dit_wan *open_model(const char *dir, int arithmetic)
{
    static const dit_wan_options options[ARITHMETICS] = { { .device = MCSA_DEVICE_CUDA },
                                                          { .precision = MCSA_BF16 },
                                                          { .precision = MCSA_F32 } };
    char path[1024];
    mcsa_error error = { "" };
    dit_wan *model = NULL;
    snprintf(path, sizeof path, "%s/transformer", dir);
    const mcsa_status status = dit_wan_open(&model, path, &options[arithmetic], &error);
    if (status == MCSA_EUNSUPPORTED && arithmetic == BF16) {
        printf("skip: nothing says how far rounding moves a clip: %s\n", error.text);
        exit(77);
    }
    CHECK_TRUE(status == MCSA_OK, "%s", error.text);
    return model;
}

static void open_captions(desk *d, const char *dir)
{
    static const char caption[] = "a red star orbits over a blue checker background, camera pans left";
    char path[1024];
    mcsa_error error = { "" };
    dit_text *text = NULL;
    snprintf(path, sizeof path, "%s/text_encoder", dir);
    if (dit_text_open(&text, path, &error) == MCSA_OK) {
        d->rows = dit_text_rows(text);
        const size_t bytes = (size_t)d->rows * (size_t)dit_text_width(text) * sizeof(float);
        d->context = check_alloc(bytes);
        d->null_context = check_alloc(bytes);
        CHECK_TRUE(dit_text_encode(text, caption, d->context, &error) == MCSA_OK &&
                       dit_text_encode(text, "<null>", d->null_context, &error) == MCSA_OK,
                   "%s", error.text);
    }
    CHECK_TRUE(text != NULL, "%s", error.text);
    dit_text_free(text);
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : MCSA_MODEL_DIR;
    desk d = { 0 };
    check_gpu();
    for (int a = ARITHMETICS - 1; a >= 0; a--) d.models[a] = open_model(dir, a);
    open_captions(&d, dir);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !check_failures; i++) compare(&d, &sizes[i]);
    for (int a = 0; a < ARITHMETICS; a++) dit_wan_free(d.models[a]);
    free(d.context);
    free(d.null_context);
    return check_done("dit_generate_test");
}
