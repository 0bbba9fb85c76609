/* kmeans.c - the k-means of src/rivals with an exported name.  reference/compare_kmeans.py links it with the static
 * libraries into one shared library. */
#include "rivals/kmeans.h"

#include <string.h>

__attribute__((visibility("default"))) int mcsa_probe_kmeans(const mcsa_tensor *x, int clusters, int iterations,
                                                             int threads, float *centre, int32_t *label);

/* centre: [H, clusters, D] where it starts and ends; label: [H, N] of the last assignment.  Returns how many iterations
 * there were, or -1 without memory. */
int mcsa_probe_kmeans(const mcsa_tensor *x, int clusters, int iterations, int threads, float *centre, int32_t *label)
{
    size_t H = (size_t)x->shape[0], N = (size_t)x->shape[1],
           bytes = sizeof(float) * H * (size_t)(clusters * x->shape[2]);
    const mcsa_config config = { .threads = threads };
    rival_kmeans k = { 0 };
    void *kernels = NULL;
    mcsa_error error;
    int done = -1;
    if (rival_kernels_cpu.open(&kernels, &config, &error) != MCSA_OK) return -1;
    const rival_points points = { &rival_kernels_cpu, kernels, x };
    mcsa_status status = rival_kmeans_reserve(&k, x, clusters, &error);
    if (status == MCSA_OK) {
        memcpy(k.centre, centre, bytes);
        status = rival_kmeans_iterate(&k, &points, iterations, &done, &error);
    }
    if (status == MCSA_OK) {
        memcpy(centre, k.centre, bytes);
        memcpy(label, k.label, sizeof *label * H * N);
    }
    rival_kmeans_free(&k);
    rival_kernels_cpu.close(kernels);
    return status == MCSA_OK ? done : -1;
}
