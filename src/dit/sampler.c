/* sampler.c - see sampler.h.
 *
 * UniPC (Zhao et al., 2023), predictor and corrector of order 2 in the data prediction x0 = x - sigma v, with
 * B(h) = e^h - 1:
 *
 *     h = lambda_next - lambda, lambda = log((1 - sigma) / sigma)
 *     next = sigma_next / sigma x - alpha_next (e^-h - 1) (m0 + sum of rho D),   D = (m - m0) / r
 *
 * with m0, m1 the last two predictions.  On arrival at a step its own prediction corrects the x it was
 * computed from, which costs no further model call. */
#include "sampler.h"

#include <math.h>
#include <stdlib.h>

enum { ORDER = 2, TRAIN_TIMESTEPS = 1000 };

struct dit_sampler {
    dit_sampler_kind kind;
    int steps;
    int64_t count;
    float *sigmas;    /* [steps + 1]; the last is 0 */
    float *timesteps; /* [steps] */
    /* UniPC only, each [count] */
    float *last_x;  /* x at the step before, corrected */
    float *m0, *m1; /* predictions at the step before and the one before that */
};

static double shifted(double u, double shift)
{
    return shift * u / (1 + (shift - 1) * u);
}

static void fill_sigmas(dit_sampler *s, double shift)
{
    const double last = s->kind == DIT_UNIPC ? 1.0 / TRAIN_TIMESTEPS : 0.0;
    for (int i = 0; i < s->steps; i++) {
        double sigma = shifted(1 + (last - 1) * i / s->steps, shift);
        /* At sigma 1 the logarithm of alpha is infinite; Diffusers steps back by the same 1e-6. */
        if (s->kind == DIT_UNIPC && i == 0) sigma -= 1e-6;
        s->sigmas[i] = (float)sigma;
        s->timesteps[i] =
            s->kind == DIT_UNIPC ? (float)floor(sigma * TRAIN_TIMESTEPS) : s->sigmas[i] * (float)TRAIN_TIMESTEPS;
    }
    s->sigmas[s->steps] = 0;
}

mcsa_status dit_sampler_create(dit_sampler **out, dit_sampler_kind kind, int steps, float shift, int64_t count,
                               mcsa_error *error)
{
    *out = NULL;
    if (kind != DIT_EULER && kind != DIT_UNIPC) return mcsa_fail(error, MCSA_EINVAL, "unknown sampler %d", (int)kind);
    if (steps < 1 || steps > TRAIN_TIMESTEPS)
        return mcsa_fail(error, MCSA_EINVAL, "%d steps; 1 to %d are possible", steps, TRAIN_TIMESTEPS);
    if (!(shift > 0 && shift <= 1000))
        return mcsa_fail(error, MCSA_EINVAL, "shift %g is outside (0, 1000]", (double)shift);
    if (count < 1 || count > INT64_MAX / 64)
        return mcsa_fail(error, MCSA_EINVAL, "a latent of %lld numbers", (long long)count);

    const size_t history = kind == DIT_UNIPC ? (size_t)count : 0;
    dit_sampler *s = calloc(1, sizeof *s);
    float *room = calloc((size_t)(2 * steps + 1) + 3 * history, sizeof *room);
    if (!s || !room) {
        free(room);
        free(s);
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for a sampler of %lld numbers", (long long)count);
    }
    *s = (dit_sampler){ .kind = kind, .steps = steps, .count = count, .sigmas = room, .timesteps = room + steps + 1 };
    if (history) {
        s->last_x = s->timesteps + steps;
        s->m0 = s->last_x + history;
        s->m1 = s->m0 + history;
    }
    fill_sigmas(s, shift);
    *out = s;
    return MCSA_OK;
}

void dit_sampler_free(dit_sampler *s)
{
    if (!s) return;
    free(s->sigmas);
    free(s);
}

float dit_sampler_sigma(const dit_sampler *s, int i)
{
    return s->sigmas[i];
}

float dit_sampler_timestep(const dit_sampler *s, int i)
{
    return s->timesteps[i];
}

static double lambda(double sigma)
{
    return log1p(-sigma) - log(sigma); /* +infinity at sigma 0 */
}

/* next = keep x - pull (m0 + last (m1 - m0) + now (x0 - m0)); last and now hold rho, last also 1 / r. */
typedef struct move {
    float keep, pull, last, now;
} move;

/* Order of the predictor that leaves step i: 1 at the first step and, to land softly at sigma 0, at the last. */
static int order_at(const dit_sampler *s, int i)
{
    return i == 0 || i == s->steps - 1 ? 1 : ORDER;
}

/* From step `from` to `from + 1`: UniP, or UniC when the prediction x0 at the far end is known. */
static move move_from(const dit_sampler *s, int from, int x0_known)
{
    const double sigma = s->sigmas[from], next = s->sigmas[from + 1];
    const double h = lambda(next) - lambda(sigma), b_h = expm1(-h);
    move m = { .keep = (float)(next / sigma), .pull = (float)((1 - next) * b_h), .now = x0_known ? 0.5f : 0.0f };
    if (order_at(s, from) != ORDER) return m;

    const double ratio = (lambda(s->sigmas[from - 1]) - lambda(sigma)) / h;
    double rho = 0.5;
    if (x0_known) { /* rho and now solve [1 1; ratio 1] (rho, now) = (b1, b2), b_k = k! phi_(k+1) / B */
        const double phi_2 = b_h / -h - 1, phi_3 = phi_2 / -h - 0.5, b1 = phi_2 / b_h, b2 = 2 * phi_3 / b_h;
        rho = (b1 - b2) / (1 - ratio);
        m.now = (float)(b1 - rho);
    }
    m.last = (float)(rho / ratio);
    return m;
}

static void unipc_step(dit_sampler *s, int i, float *x, const float *velocity)
{
    const float sigma = s->sigmas[i];
    const move predict = move_from(s, i, 0), correct = i > 0 ? move_from(s, i - 1, 1) : (move){ 0 };
#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < s->count; c++) {
        float x0 = x[c] - sigma * velocity[c], here = x[c], m0 = i > 0 ? s->m0[c] : x0;
        if (i > 0)
            here = correct.keep * s->last_x[c] -
                   correct.pull * (m0 + correct.last * (s->m1[c] - m0) + correct.now * (x0 - m0));
        x[c] = predict.keep * here - predict.pull * (x0 + predict.last * (m0 - x0));
        s->last_x[c] = here;
        s->m1[c] = m0;
        s->m0[c] = x0;
    }
}

void dit_sampler_step(dit_sampler *s, int i, float *x, const float *velocity)
{
    if (s->kind == DIT_UNIPC) {
        unipc_step(s, i, x, velocity);
        return;
    }
    const float dt = s->sigmas[i + 1] - s->sigmas[i];
#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < s->count; c++) x[c] += dt * velocity[c];
}
