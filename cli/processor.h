/* processor.h - the name of the processor, which every measurement needs beside it. */
#ifndef MCSA_CLI_PROCESSOR_H
#define MCSA_CLI_PROCESSOR_H

#include "mcsa.h"

/* "model name : ..." of the first processor in /proc/cpuinfo; "unknown" where there is no such line. */
void processor_name(char *name, size_t bytes);

/* What a model computes on. */
typedef struct processor_use {
    char name[200];  /* of the CPU, or of the first GPU */
    const char *isa; /* "avx512bf16"; "sm_90a" on a GPU */
    int threads;     /* of the CPU */
} processor_use;

/* isa and threads as they were asked for; 0 means the best and all. */
processor_use processor_of(mcsa_device device, mcsa_isa isa, int threads);

#endif
