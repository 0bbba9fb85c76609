/* dit_generate_test.c - whole clips on a GPU against the CPU, as `mcsa generate` makes them: noise, a caption and
 * guidance in two branches, through the denoising loop, with dense attention and with MC-Sparse.
 *
 * What rounding to BF16 moves a clip by depends on the weights and the steps, and with MC-Sparse on choices: keys of
 * nearly equal mass, and queries at the edge of a group, may be taken or not.  So the CPU says it: c - f, its clip in
 * BF16 minus its clip in F32, is one draw of that error, and that of the GPU, g - f, is another of the same size, since
 * both round the inputs and outputs of the same operations.  Independent draws are sqrt(2) of one apart:
 *
 *     rms |g - c| <= 2 rms |c - f|        over SEEDS noises, in relative L2
 *
 * The mean over noises is needed because denoising amplifies few directions, so a single ratio may be anything.
 *
 * Two selections that differ are two approximations of dense attention, about as far from each other as from it.  So
 * their quality is held to more: with z the distance of a sparse clip from the dense clip of its own arithmetic,
 * log(z_g / z_c) is another draw of what log(z_f / z_c) is one of, and its mean has to be within QUALITY standard
 * errors of zero.  Dense attention in place of sparse, or a worse selection, does not pass.
 *
 * Arguments: a directory like that of tiny-t2v instead of it. */
#include "check.h"

#include "dit/generate.h"
#include "dit/text.h"
#include "dit/wan.h"

#ifndef MCSA_MODEL_DIR
#define MCSA_MODEL_DIR "models/tiny-t2v" /* seen from the repository */
#endif

enum { STEPS = 8, SEEDS = 6, FRAMES = 9, HEIGHT = 44, WIDTH = 44 }; /* 1,089 tokens: the last group is ragged */
enum { GPU, BF16, F32, ARITHMETICS };                               /* the last two are the CPU's */

static const double FACTOR = 2, QUALITY = 4;

static const struct method {
    const char *name, *schedule; /* NULL: dense attention everywhere */
    mcsa_sharing sharing;
} methods[] = { { "dense", NULL, MCSA_BRANCHES_SHARED },
                { "sparse, shared", "list:2,5", MCSA_BRANCHES_SHARED },
                { "sparse, apart", "list:2,5", MCSA_BRANCHES_APART } };
enum { METHODS = sizeof methods / sizeof *methods };

typedef struct desk {
    dit_wan *models[ARITHMETICS];
    float *context, *null_context; /* [rows, text_dim] */
    int rows;
    int64_t count; /* numbers of a clip */
} desk;

/* One noise by one method. */
typedef struct trio {
    float *latents[ARITHMETICS]; /* [channels, frames, height, width] */
    mcsa_stats stats[ARITHMETICS];
} trio;

/* Sums of squares over noises, but `drift`, which is a sum. */
typedef struct tally {
    double apart, rounding, drift, spread;
} tally;

static mcsa_run *open_run(const dit_wan *model, const struct method *m)
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
                                 .density = 0.25f,
                                 .schedule = m->schedule,
                                 .actions = m->schedule ? NULL : dense,
                                 .sharing = m->sharing,
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
    mcsa_run *run = open_run(model, m);
    dit_noise((uint64_t)seed, noise, d->count);
    memset(latent, CHECK_POISON, bytes);
    *stats = (mcsa_stats){ .size = sizeof *stats };
    const dit_generate_options options = { .steps = STEPS,
                                           .guidance = 3,
                                           .shift = 3,
                                           .frames = FRAMES,
                                           .height = HEIGHT,
                                           .width = WIDTH,
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
    for (int a = 0; a < ARITHMETICS; a++)
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
    CHECK_TRUE((m->schedule != NULL) == (g->reuse > 0), "%s: %lld calls reused", m->name, (long long)g->reuse);
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
    const double apart = distance(d, t->latents[GPU], t->latents[BF16]);
    const double rounding = distance(d, t->latents[BF16], t->latents[F32]);
    double z[ARITHMETICS];
    for (int a = 0; a < ARITHMETICS; a++) z[a] = distance(d, t->latents[a], dense->latents[a]);
    sums->apart += apart * apart;
    sums->rounding += rounding * rounding;
    printf("       GPU to CPU %.2e, CPU's BF16 to F32 %.2e", apart, rounding);
    if (t != dense) {
        sums->drift += log(z[GPU] / z[BF16]);
        sums->spread += log(z[F32] / z[BF16]) * log(z[F32] / z[BF16]);
        printf("; to dense: GPU %.2e, BF16 %.2e, F32 %.2e", z[GPU], z[BF16], z[F32]);
    }
    printf("\n");
}

static void judge(const tally *sums, const struct method *m)
{
    const double apart = sqrt(sums->apart / SEEDS), limit = FACTOR * sqrt(sums->rounding / SEEDS);
    printf("     %-14s GPU to CPU %.2e, %3.0f %% of %.2e", m->name, apart, 100 * apart / limit, limit);
    CHECK_TRUE(apart <= limit, "%s: the clips are %.2e apart, %.2e allowed", m->name, apart, limit);
    if (m->schedule) {
        const double drift = fabs(sums->drift) / SEEDS, bound = QUALITY * sqrt(sums->spread) / SEEDS;
        printf("; distances to dense differ by %.1f %%, %3.0f %% of %.1f %%", 100 * drift, 100 * drift / bound,
               100 * bound);
        CHECK_TRUE(drift <= bound, "%s: other quality, %g of %g", m->name, drift, bound);
    }
    printf("\n");
}

static void compare(const desk *d)
{
    tally sums[METHODS] = { 0 };
    for (int seed = 1; seed <= SEEDS; seed++) {
        trio dense, sparse;
        printf("     noise %d: dense, shared, apart\n", seed);
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
    for (int m = 0; m < METHODS; m++) judge(&sums[m], &methods[m]);
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
    if (!check_failures) {
        d.count = (int64_t)dit_wan_describe(d.models[GPU])->in_channels * FRAMES * HEIGHT * WIDTH;
        compare(&d);
    }
    for (int a = 0; a < ARITHMETICS; a++) dit_wan_free(d.models[a]);
    free(d.context);
    free(d.null_context);
    return check_done("dit_generate_test");
}
