/* probe.c - probe.h with exported names.  reference/check.py links it with the static library into one shared library,
 * so that Python reaches the public calls and the insides of the same code. */
#include "probe.h"

#define EXPORTED __attribute__((visibility("default")))

EXPORTED void mcsa_probe_choice(mcsa_run *run, int layer, int branch, int32_t *order, uint64_t *kept);
EXPORTED int mcsa_probe_clusters(mcsa_run *run, int layer, int branch, int32_t *members, int32_t *first);
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

/* P, 0 without clusters.  members [H, N] and first [H, P + 1], unless they are NULL. */
int mcsa_probe_clusters(mcsa_run *run, int layer, int branch, int32_t *members, int32_t *first)
{
    const mcsa_selection *s = probe_selection(run, layer, branch);
    if (members) memcpy(members, s->members, sizeof *members * (size_t)s->H * (size_t)s->N);
    if (first) memcpy(first, s->first, sizeof *first * (size_t)s->H * ((size_t)s->P + 1));
    return s->P;
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
