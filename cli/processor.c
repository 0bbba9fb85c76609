/* processor.c - see processor.h. */
#include "processor.h"

#include <stdio.h>
#include <string.h>

void processor_name(char *name, size_t bytes)
{
    snprintf(name, bytes, "unknown");
    FILE *stream = fopen("/proc/cpuinfo", "r");
    if (!stream) return;
    char line[512];
    while (fgets(line, sizeof line, stream)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(name, bytes, "%s", colon + 1 + (colon[1] == ' '));
        break;
    }
    fclose(stream);
}

processor_use processor_of(mcsa_device device, mcsa_isa isa, int threads)
{
    mcsa_machine machine = { .size = sizeof machine };
    mcsa_gpu gpu = { .size = sizeof gpu };
    processor_use p;
    mcsa_machine_read(&machine);
    p.isa = mcsa_isa_name(isa == MCSA_ISA_AUTO ? machine.isa : isa);
    p.threads = threads ? threads : machine.threads;
    processor_name(p.name, sizeof p.name);
    if (device == MCSA_DEVICE_CUDA) {
        mcsa_gpu_read(&gpu, 0); /* the name is "" when it fails, and then the run has failed before */
        snprintf(p.name, sizeof p.name, "%s", gpu.name);
        p.isa = "sm_90a";
    }
    return p;
}
