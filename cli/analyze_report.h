/* analyze_report.h - what `mcsa analyze` found: as JSON for programs and plots, as tables and one sentence for people.
 */
#ifndef MCSA_CLI_ANALYZE_REPORT_H
#define MCSA_CLI_ANALYZE_REPORT_H

#include "analysis/advice.h"
#include "analysis/rivals.h"

#include <stdio.h>

typedef struct analyze_findings {
    const char *title; /* one line: what was analysed, on what */
    analysis measured;
    int advised; /* 0: no pair of steps to advise from */
    analysis_wish wish;
    analysis_advice advice;
    int rivals;
    analysis_rival *rival; /* [rivals] */
} analyze_findings;

/* To be freed with free; NULL when out of memory.  docs/ANALYZE.md has the keys. */
char *analyze_json(const analyze_findings *f);

mcsa_status analyze_tables(const analyze_findings *f, FILE *out, mcsa_error *error);

/* The recommendation in plain words; to be freed with free, NULL when out of memory. */
char *analyze_sentence(const analyze_findings *f);

#endif
