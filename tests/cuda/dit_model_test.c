/* dit_model_test.c - whole forward passes on a GPU against the CPU, with dense attention.
 *
 * Both round to BF16 at the same places: the inputs of each linear layer and of attention, and what these give.  A
 * rounding is off by at most 2^-8 of a number, 1.7e-3 in the mean (2^-8 / sqrt(3), evenly spread over an ulp, mantissas
 * between 1 and 2); what it does to the velocity depends on the weights.  So the CPU's own distance between BF16 and
 * F32 is the measure: a GPU that rounds where the CPU does is as far from F32 within the chance of other roundings (one
 * half more is allowed), and the two BF16 results, whose errors are independent, are at most the sum of both distances
 * apart.  On processors without BF16 only the limit of the golden tests remains, 5e-3 from F32.
 *
 * Arguments: the directory of a transformer instead of that of tiny-t2v. */
#include "check.h"

#include "dit/generate.h"
#include "dit/wan.h"

#ifndef MCSA_MODEL_DIR
#define MCSA_MODEL_DIR "models/tiny-t2v" /* seen from the repository */
#endif

static const double LIMIT = 5e-3;

typedef struct clip_size {
    int frames, height, width, rows;
} clip_size;

static mcsa_run *dense_run(const dit_wan *model, cudaStream_t stream)
{
    char text[512] = "";
    mcsa_run *run = NULL;
    const int layers = dit_wan_describe(model)->layers;
    mcsa_action *actions = calloc((size_t)layers, sizeof *actions); /* MCSA_DENSE is 0 */
    const mcsa_config config = {
        .steps = 1, .layers = layers, .actions = actions, .device = dit_wan_device(model), .stream = stream
    };
    CHECK_TRUE(mcsa_run_create(&run, &config, text, sizeof text) == MCSA_OK, "%s", text);
    free(actions);
    return run;
}

/* Both guidance branches would do the same: one forward, twice with `again`.  NULL after a failure. */
static float *velocity_of(dit_wan *model, const clip_size *size, cudaStream_t stream, int again)
{
    const dit_wan_config *config = dit_wan_describe(model);
    const int64_t places = (int64_t)size->frames * size->height * size->width,
                  words = (int64_t)size->rows * config->text_dim;
    const size_t bytes = (size_t)(places * config->out_channels) * sizeof(float);
    float *latent = check_alloc((size_t)(places * config->in_channels) * sizeof *latent);
    float *context = check_alloc((size_t)words * sizeof *context), *velocity = check_alloc(bytes),
          *other = check_alloc(bytes);
    mcsa_error error = { "" };
    mcsa_run *run = dense_run(model, stream);
    dit_noise(1, latent, places * config->in_channels);
    dit_noise(2, context, words);
    memset(velocity, CHECK_POISON, bytes);
    memset(other, CHECK_POISON, bytes);
    dit_wan_call call = { .frames = size->frames,
                          .height = size->height,
                          .width = size->width,
                          .latent = latent,
                          .timestep = 700,
                          .context = context,
                          .context_rows = size->rows,
                          .velocity = velocity,
                          .run = run };
    int done = run && dit_wan_forward(model, &call, &error) == MCSA_OK;
    if (done && again) {
        call.velocity = other;
        done = dit_wan_forward(model, &call, &error) == MCSA_OK;
        check_same_bits(velocity, other, bytes, "two forward passes");
    }
    CHECK_TRUE(done, "%s", error.text);
    mcsa_run_free(run);
    free(latent);
    free(context);
    free(other);
    if (done) return velocity;
    free(velocity);
    return NULL;
}

/* |a - b| / |b|; NaN stays NaN. */
static double distance(const float *a, const float *b, int64_t count)
{
    double moved = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        moved += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(moved / size);
}

/* One model on the GPU, on the CPU in BF16 where it has that, and on the CPU in F32 unless the weights are random: then
 * F32 would be another model. */
typedef struct models {
    const char *name;
    dit_wan *gpu, *bf16, *f32;
} models;

static void compare(const models *m, const clip_size *size)
{
    const int64_t count = (int64_t)dit_wan_describe(m->gpu)->out_channels * size->frames * size->height * size->width;
    float *gpu = velocity_of(m->gpu, size, 0, 1), *bf16 = m->bf16 ? velocity_of(m->bf16, size, 0, 0) : NULL;
    float *f32 = m->f32 ? velocity_of(m->f32, size, 0, 0) : NULL;
    const double to_bf16 = gpu && bf16 ? distance(gpu, bf16, count) : NAN;
    const double to_f32 = gpu && f32 ? distance(gpu, f32, count) : NAN;
    const double rounding = bf16 && f32 ? distance(bf16, f32, count) : LIMIT / 2;
    const double limit = fmin(LIMIT, 2.5 * rounding), f32_limit = bf16 ? fmin(LIMIT, 1.5 * rounding) : LIMIT;
    printf("     %s, %d x %d x %d, %lld tokens: GPU to CPU in BF16 %.2e of %.2e, to F32 %.2e of %.2e", m->name,
           size->frames, size->height, size->width,
           (long long)dit_wan_tokens(m->gpu, size->frames, size->height, size->width), to_bf16, limit, to_f32,
           f32_limit);
    if (bf16 && f32) printf("; CPU's BF16 to F32 %.2e", rounding);
    printf("\n");
    CHECK_TRUE(!bf16 || to_bf16 <= limit, "GPU and CPU in BF16 are %.2e apart", to_bf16);
    CHECK_TRUE(!f32 || to_f32 <= f32_limit, "the GPU is %.2e from F32", to_f32);
    free(gpu);
    free(bf16);
    free(f32);
}

static dit_wan *open_model(const char *dir, const dit_wan_config *config, mcsa_device device, mcsa_dtype precision)
{
    mcsa_error error = { "" };
    dit_wan *model = NULL;
    const dit_wan_options options = { .device = device, .precision = precision };
    mcsa_status status =
        dir ? dit_wan_open(&model, dir, &options, &error) : dit_wan_open_random(&model, config, 5, &options, &error);
    if (status != MCSA_OK) printf("     %s\n", error.text);
    CHECK_TRUE(status == MCSA_OK || (device == MCSA_DEVICE_CPU && status == MCSA_EUNSUPPORTED), "no model");
    return model;
}

static void test_model(const char *dir, const dit_wan_config *config, const clip_size *sizes, int count)
{
    models m = { .name = dir ? dir : "random weights" };
    m.gpu = open_model(dir, config, MCSA_DEVICE_CUDA, 0);
    m.bf16 = open_model(dir, config, MCSA_DEVICE_CPU, MCSA_BF16);
    if (dir) m.f32 = open_model(dir, config, MCSA_DEVICE_CPU, MCSA_F32);
    for (int i = 0; m.gpu && i < count; i++) compare(&m, &sizes[i]);
    if (m.gpu) {
        const dit_wan_times spent = dit_wan_spent(m.gpu);
        CHECK_TRUE(spent.linear_s > 0 && spent.linear_s < spent.forward_s, "%g s of %g s in linear layers",
                   spent.linear_s, spent.forward_s);
    }
    dit_wan_free(m.gpu);
    dit_wan_free(m.bf16);
    dit_wan_free(m.f32);
}

/* A stream of its own, beside a model on the default stream, changes no bit. */
static void test_stream(const char *dir, const clip_size *size)
{
    mcsa_error error = { "" };
    cudaStream_t stream;
    dit_wan *beside = open_model(dir, NULL, MCSA_DEVICE_CUDA, 0), *model = NULL;
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const dit_wan_options options = { .device = MCSA_DEVICE_CUDA, .stream = stream };
    CHECK_TRUE(dit_wan_open(&model, dir, &options, &error) == MCSA_OK, "%s", error.text);
    if (beside && model) {
        const int64_t places = (int64_t)size->frames * size->height * size->width;
        float *one = velocity_of(beside, size, 0, 0), *other = velocity_of(model, size, stream, 1);
        CHECK_TRUE(one && other, "a forward pass failed");
        if (one && other)
            check_same_bits(one, other, (size_t)(places * dit_wan_describe(model)->out_channels) * sizeof *one,
                            "two streams");
        free(one);
        free(other);
    }
    dit_wan_free(model);
    dit_wan_free(beside);
    CHECK_CUDA(cudaStreamDestroy(stream));
}

static void test_refusals(const char *dir)
{
    mcsa_error error = { "" };
    dit_wan *model;
    CHECK_TRUE(dit_wan_open(&model, dir, &(dit_wan_options){ .device = MCSA_DEVICE_CUDA, .precision = MCSA_F32 },
                            &error) == MCSA_EUNSUPPORTED,
               "F32 on a GPU");
    CHECK_TRUE(dit_wan_open(&model, dir, &(dit_wan_options){ .device = MCSA_DEVICE_CUDA, .device_index = 99 },
                            &error) == MCSA_EUNSUPPORTED,
               "GPU 99");
    CHECK_TRUE(model == NULL && strstr(error.text, "GPU 99"), "\"%s\" does not say which", error.text);
}

int main(int argc, char **argv)
{
    static const clip_size clips[] = { { 16, 64, 64, 12 }, { 5, 20, 36, 1 }, { 1, 4, 4, 3 } };
    static const clip_size latents[] = { { 3, 18, 26, 77 }, { 4, 32, 32, 512 } };
    static const dit_wan_config small = { .patch = { 1, 2, 2 },
                                          .heads = 6,
                                          .head_dim = 64,
                                          .in_channels = 16,
                                          .out_channels = 16,
                                          .text_dim = 512,
                                          .freq_dim = 256,
                                          .ffn_dim = 1024,
                                          .layers = 3,
                                          .rope_max_seq_len = 1024,
                                          .cross_attn_norm = 1,
                                          .eps = 1e-6f };
    const char *dir = argc > 1 ? argv[1] : MCSA_MODEL_DIR "/transformer";
    dit_wan_config wide = small;
    wide.heads = 12;
    wide.head_dim = 128;
    wide.ffn_dim = 8960;
    wide.layers = 2;
    wide.cross_attn_norm = 0;
    check_gpu();
    test_model(dir, NULL, clips, 3);
    test_model(NULL, &small, latents, 2);
    test_model(NULL, &wide, latents, 1);
    test_stream(dir, &clips[1]);
    test_refusals(dir);
    return check_done("dit_model_test");
}
