/* processor.h - the name of the processor, which every measurement needs beside it. */
#ifndef MCSA_CLI_PROCESSOR_H
#define MCSA_CLI_PROCESSOR_H

#include <stddef.h>

/* "model name : ..." of the first processor in /proc/cpuinfo; "unknown" where there is no such line. */
void processor_name(char *name, size_t bytes);

#endif
