/* probe.c - probe.h with exported names.  reference/check.py links it with the static library into one shared library,
 * so that Python reaches the public calls and the insides of the same code. */
#include "probe.h"

#define EXPORTED __attribute__((visibility("default")))

EXPORTED void mcsa_probe_choice(mcsa_run *run, int layer, int branch, int32_t *order, uint64_t *kept);
EXPORTED void mcsa_probe_mass(mcsa_run *run, int layer, int branch, const mcsa_tensor *q, const mcsa_tensor *k,
                              const float *lse, float *mass);
EXPORTED void mcsa_probe_residual(mcsa_run *run, int layer, int branch, float *rows);

/* order [H, N], kept [H, G, words] */
void mcsa_probe_choice(mcsa_run *run, int layer, int branch, int32_t *order, uint64_t *kept)
{
    const mcsa_selection *s = probe_selection(run, layer, branch);
    memcpy(order, s->order, sizeof *order * (size_t)s->H * (size_t)s->N);
    memcpy(kept, s->kept, sizeof *kept * (size_t)s->H * (size_t)s->G * (size_t)s->words);
}

void mcsa_probe_mass(mcsa_run *run, int layer, int branch, const mcsa_tensor *q, const mcsa_tensor *k, const float *lse,
                     float *mass)
{
    probe_mass(run, probe_selection(run, layer, branch), q, k, lse, mass);
}

void mcsa_probe_residual(mcsa_run *run, int layer, int branch, float *rows)
{
    probe_residual(run, layer, branch, rows);
}
