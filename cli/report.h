/* report.h - what a run did and what it cost: as JSON for programs and as a table for people.
 *
 * Seconds are those of attention_run.h.  attention covers self- and cross-attention; dense, grouping,
 * selection and sparse are parts of it; other is what denoise has beyond attention and linear layers. */
#ifndef MCSA_CLI_REPORT_H
#define MCSA_CLI_REPORT_H

#include "rendition.h"

#include <stdio.h>

typedef struct report {
    const char *method, *backend, *isa;
    const char *tail; /* what mc-sparse has for dropped keys: "means" or "off"; NULL with other methods */
    int threads, steps;
    int64_t tokens;
    int heads, head_dim, layers;
    const rendition *made;  /* the clip of `method` */
    const rendition *dense; /* the baseline of --compare, or NULL */
    quality fidelity;       /* with a baseline only */
} report;

/* The report as JSON text, to be freed with free; NULL when out of memory.  An infinite PSNR (identical
 * clips) is null. */
char *report_json(const report *r);

mcsa_status report_write(const report *r, const char *path, mcsa_error *error);
void report_table(const report *r, FILE *out);

#endif
