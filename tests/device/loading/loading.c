/* loading.c - asks for a run on a GPU and expects to be told why there is none.
 *
 *     loading SENTENCE...     the reason must contain one of these
 *     loading                 libmcsa_cuda is there: a driver or a GPU may be too */
#include <mcsa.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int failures;

static void expect(int ok, const char *what, const char *got)
{
    printf("%-4s %s: %s\n", ok ? "ok" : "FAIL", what, got);
    failures += !ok;
}

static int contains_one(const char *text, char **sentences)
{
    for (; *sentences; sentences++)
        if (strstr(text, *sentences)) return 1;
    return 0;
}

/* Everything that the library may say on a machine where it cannot compute. */
static char *known[] = { "no NVIDIA driver is installed",
                         "update the driver to version",
                         "shows no GPU",
                         "does not answer",
                         "the kernels run on 9.0 alone",
                         NULL };

/* Limits come first, so that they are the same everywhere. */
static void expect_limits(void)
{
    const mcsa_config cases[] = {
        { .steps = 1, .layers = 1, .device = MCSA_DEVICE_CUDA, .group = 64 },
        { .steps = 1, .layers = 1, .device = MCSA_DEVICE_CUDA, .residual = MCSA_RESIDUAL_INT8 },
        { .steps = 1, .layers = 1, .device = MCSA_DEVICE_CUDA, .check_finite = 1 },
    };
    const char *says[] = { "config.group is 64", "config.residual is 2", "config.check_finite is 1" };
    for (int i = 0; i < 3; i++) {
        char error[512] = "";
        mcsa_run *run = NULL;
        mcsa_status status = mcsa_run_create(&run, &cases[i], error, sizeof error);
        expect(status == MCSA_EUNSUPPORTED && !run && strstr(error, says[i]), "limit", error);
        mcsa_run_free(run);
    }
}

int main(int argc, char **argv)
{
    char error[512] = "";
    mcsa_run *run = NULL;
    mcsa_config config = { .steps = 1, .layers = 1, .device = MCSA_DEVICE_CUDA };
    mcsa_gpu gpu = { .size = sizeof gpu };
    mcsa_status created = mcsa_run_create(&run, &config, error, sizeof error), seen = mcsa_gpu_read(&gpu, 0);
    mcsa_run_free(run);
    if (argc == 1 && created == MCSA_OK) {
        expect(seen == MCSA_OK && gpu.capability == 90 && gpu.missing[0] == 0, "a GPU", gpu.name);
    } else {
        char **sentences = argc > 1 ? argv + 1 : known;
        expect(created == MCSA_EUNSUPPORTED && contains_one(error, sentences), "run", error);
        expect(seen == MCSA_EUNSUPPORTED && contains_one(gpu.missing, sentences), "GPU", gpu.missing);
        expect(strcmp(error, gpu.missing) == 0, "both say the same", gpu.missing);
    }
    if (argc == 1) {
        void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
        if (!driver) expect(strstr(error, "libcuda.so.1 was not found") != NULL, "without a driver", error);
        expect_limits();
    }
    config.device = MCSA_DEVICE_CPU;
    expect(mcsa_run_create(&run, &config, error, sizeof error) == MCSA_OK, "the CPU still computes", mcsa_version());
    mcsa_run_free(run);
    return failures != 0;
}
