/* cmd_info.c - `mcsa info`: what this machine is, what mcsa was built with, and what it can do here.
 *
 * The peaks are measured, not looked up: they are the denominators of every "percent of peak" in the
 * benchmarks. */
#include "command.h"
#include "cpu/peak.h"
#include "options.h"
#include "processor.h"
#include "video.h"

#include <cjson/cJSON.h>
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <oneapi/dnnl/dnnl.h>
#include <png.h>
#include <string.h>

typedef struct settings {
    int threads;
} settings;

/* clang-format off */
static const option table[] = {
    { .name = "threads", .kind = OPTION_INT, .offset = offsetof(settings, threads), .value = "N", .min = 1,
      .max = 4096,
      .help = "threads that measure the peaks; default: all cores, or what OMP_NUM_THREADS says" },
    { 0 },
};
/* clang-format on */

static const options_page page = {
    .command = "mcsa info",
    .summary = "say what this machine offers and what mcsa can do on it",
    .synopsis = "[options]",
    .description = "Prints the processor, its features and the instruction set that mcsa will use, the libraries it "
                   "runs with, what each backend can do, and the floating-point peaks, each measured for about 0.2 "
                   "seconds.",
    .options = table,
};

static void row(const char *name, const char *text)
{
    printf("  %-12s ", name);
    size_t width = 64; /* of the column; the rest of a long list goes below it */
    while (strlen(text) > width) {
        size_t cut = width;
        while (cut > 0 && text[cut] != ' ') cut--;
        if (cut == 0) cut = strcspn(text, " ");
        printf("%.*s\n%15s", (int)cut, text, "");
        text += cut + (text[cut] == ' ');
    }
    printf("%s\n", text);
}

static void print_machine(const mcsa_machine *machine, int threads)
{
    char name[200], text[200];
    processor_name(name, sizeof name);
    puts("machine");
    row("processor", name);
    row("features", machine->features);
    snprintf(text, sizeof text, "%d", threads);
    row("threads", text);
    row("isa", mcsa_isa_name(machine->isa));
}

static void print_libraries(void)
{
    char text[200];
    const dnnl_version_t *dnnl = dnnl_version();
    unsigned codec = avcodec_version(), format = avformat_version();
    const char *encoder = clip_mp4_encoder();
    puts("\nlibraries");
    snprintf(text, sizeof text, "%d.%d.%d (linear layers)", dnnl->major, dnnl->minor, dnnl->patch);
    row("oneDNN", text);
    snprintf(text, sizeof text, "%u.%u.%u; .mp4 is encoded by %s", AV_VERSION_MAJOR(codec), AV_VERSION_MINOR(codec),
             AV_VERSION_MICRO(codec), encoder ? encoder : "nothing: no encoder found");
    row("libavcodec", text);
    snprintf(text, sizeof text, "%u.%u.%u", AV_VERSION_MAJOR(format), AV_VERSION_MINOR(format),
             AV_VERSION_MICRO(format));
    row("libavformat", text);
    row("libpng", png_get_libpng_ver(NULL));
    row("cJSON", cJSON_Version());
}

static void print_backends(const mcsa_machine *machine)
{
    static const char *const kernels[] = {
        [MCSA_ISA_SCALAR] = "portable C, FP32 arithmetic",
        [MCSA_ISA_AVX2] = "AVX2 and FMA, FP32 arithmetic",
        [MCSA_ISA_AVX512BF16] = "AVX-512, BF16 products with FP32 sums for BF16 tensors",
    };
    puts("\nbackends");
    row("cpu", "dense, anchor and reuse attention; FP32, BF16 and FP16 tensors; head dimension 1 to 256");
    for (int isa = MCSA_ISA_SCALAR; isa <= MCSA_ISA_AVX512BF16; isa++) {
        char name[40], text[120];
        snprintf(name, sizeof name, "  %s", mcsa_isa_name((mcsa_isa)isa));
        snprintf(text, sizeof text, "%s%s", kernels[isa], isa > (int)machine->isa ? ": not on this machine" : "");
        row(name, text);
    }
}

/* The GPU that --backend cuda would compute on, or why it cannot. */
static void print_gpu(void)
{
    mcsa_gpu gpu = { .size = sizeof gpu };
    char text[400];
    if (mcsa_gpu_read(&gpu, 0) == MCSA_OK)
        row("cuda", "dense, anchor and reuse attention; BF16 and FP16 tensors; head dimension 64 or 128");
    else {
        row("cuda", "not on this machine:");
        row("", gpu.missing);
    }
    if (!gpu.name[0]) return;
    snprintf(text, sizeof text,
             "%s, compute capability %d.%d, %d multiprocessors, %.1f GiB; its driver runs CUDA up to %d.%d, built with "
             "%d.%d",
             gpu.name, gpu.capability / 10, gpu.capability % 10, gpu.multiprocessors,
             (double)gpu.memory_bytes / (1 << 30), gpu.driver / 1000, gpu.driver % 1000 / 10, gpu.runtime / 1000,
             gpu.runtime % 1000 / 10);
    row("  gpu 0", text);
}

static void print_peak(const char *name, mcsa_isa isa, mcsa_dtype dtype, int threads)
{
    double flops = mcsa_cpu_peak(isa, dtype, threads);
    char text[80];
    if (flops > 0.0)
        snprintf(text, sizeof text, "%.0f GFLOP/s with %d thread%s", flops * 1e-9, threads, threads == 1 ? "" : "s");
    else
        snprintf(text, sizeof text, "not on this machine");
    row(name, text);
}

int cmd_info(int argc, char **argv)
{
    settings set = { 0 };
    mcsa_error error = { "" };
    mcsa_machine machine = { .size = sizeof machine };
    int help;
    if (options_parse(&page, argc, argv, &set, &help, &error) != MCSA_OK) {
        fprintf(stderr, "mcsa info: %s\n", error.text);
        return EXIT_USAGE;
    }
    if (help) {
        options_help(&page, stdout);
        return EXIT_DONE;
    }
    mcsa_status status = mcsa_machine_read(&machine);
    if (status != MCSA_OK) {
        fprintf(stderr, "mcsa info: cannot read the machine: %s\n", mcsa_status_name(status));
        return EXIT_FAILED;
    }
    int threads = set.threads ? set.threads : machine.threads;
    printf("mcsa %s\n\n", mcsa_version());
    print_machine(&machine, threads);
    print_libraries();
    print_backends(&machine);
    print_gpu();
    puts("\npeak, measured now");
    fflush(stdout);
    print_peak("FP32 FMA", machine.isa, MCSA_F32, threads);
    print_peak("vdpbf16ps", MCSA_ISA_AVX512BF16, MCSA_BF16, threads);
    return EXIT_DONE;
}
