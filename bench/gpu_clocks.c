/* gpu_clocks.c - what NVML, the driver's monitor, says about GPU 0; loaded at run time. */
#include "gpu.h"

#include "base/library.h"

#include <string.h>

#define LIBRARY "libnvidia-ml.so.1"

/* Values of nvml.h. */
enum { CLOCK_SM = 1, TEMPERATURE_GPU = 0 };

static int load(const char *name, void *place)
{
    mcsa_error why = { "" };
    void *found = mcsa_library_symbol(LIBRARY, name, &why);
    if (found) memcpy(place, &found, sizeof found); /* C converts no pointer to data into one to a function */
    return found != NULL;
}

/* NVML stays open: it is asked a handful of times and the process ends soon. */
static int open_monitor(void)
{
    int (*init)(void);
    return load("nvmlInit_v2", &init) && init() == 0;
}

void bench_gpu_driver(char *version, size_t bytes)
{
    int (*read)(char *text, unsigned room);
    version[0] = '\0';
    if (open_monitor() && load("nvmlSystemGetDriverVersion", &read) && read(version, (unsigned)bytes) != 0)
        version[0] = '\0';
}

static void read_figures(bench_table *table)
{
    int (*handle)(unsigned index, void **device), (*clock)(void *device, int domain, unsigned *mhz);
    int (*power)(void *device, unsigned *milliwatts), (*heat)(void *device, int sensor, unsigned *celsius);
    void *device;
    unsigned value;
    if (!load("nvmlDeviceGetHandleByIndex_v2", &handle) || handle(0, &device) != 0) return;
    if (load("nvmlDeviceGetClockInfo", &clock) && clock(device, CLOCK_SM, &value) == 0)
        bench_figure_add(table, value, "SM clock within dense attention at the end, MHz");
    if (load("nvmlDeviceGetPowerUsage", &power) && power(device, &value) == 0)
        bench_figure_add(table, 1e-3 * value, "power then, W");
    if (load("nvmlDeviceGetTemperature", &heat) && heat(device, TEMPERATURE_GPU, &value) == 0)
        bench_figure_add(table, value, "temperature then, degrees Celsius");
}

void bench_gpu_add_clocks(bench_gpu *gpu, bench_table *table)
{
    double ignored;
    if (!open_monitor()) return;
    bench_gpu_start(gpu);
    bench_gpu_dense(gpu, &ignored);
    bench_gpu_wait(gpu);
    bench_gpu_dense(gpu, &ignored); /* runs while its clock is read */
    read_figures(table);
    bench_gpu_wait(gpu);
}
