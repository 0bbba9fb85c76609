/* features.h - what instruction sets this machine has. */
#ifndef MCSA_CPU_FEATURES_H
#define MCSA_CPU_FEATURES_H

#include "mcsa.h"

/* The best level that both the processor and the operating system support. */
mcsa_isa mcsa_cpu_isa(void);

#endif
