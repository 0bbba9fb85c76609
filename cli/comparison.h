/* comparison.h - the measurements of a comparison, clip by clip, and the file that keeps them.
 *
 *   {"version", "settings": {...}, "runs": [{"name", "clips", means ...}],
 *    "clips": [{"caption", "seed", ...}]}
 *
 * "clips" is the record; "runs" is computed from it whenever the file is written.  A clip is known by
 * caption, seed and the settings of its run, so a later call with more captions, seeds or runs makes only
 * what is new. "settings" is what all clips share, the machine included; a file with other settings is
 * refused, because times and fidelities could not be set side by side.  Clips that the plan of today does not
 * ask for are kept. */
#ifndef MCSA_CLI_COMPARISON_H
#define MCSA_CLI_COMPARISON_H

#include "plan.h"
#include "rendition.h"

#include <cjson/cJSON.h>

/* All are doubles, so that one table of names serves reading, writing and averaging. */
typedef struct clip_numbers {
    double density_requested, density_nominal, density_executed, density_tail, density_run;
    double psnr_db, ssim, rel_l2; /* against the dense clip; INFINITY, 1 and 0 for that one itself */
    double denoise_s, attention_s, linear_s;
    double denoise_speedup, attention_speedup; /* over the dense clip made in the same call of the command */
    double dense, anchor, reuse, fallback;     /* calls */
    double selection_bytes, residual_bytes, held_bytes;
    double recall; /* mean attention that sparse calls keep; INFINITY unless asked for */
} clip_numbers;    /* INFINITY: not told, as by reports that are older than the number */

clip_numbers comparison_measure(const rendition *dense, const rendition *made, const quality *fidelity);

typedef struct comparison {
    cJSON *settings; /* an object */
    cJSON *clips;    /* an array */
} comparison;

/* Takes `settings`, and the clips of the file at `path` when there is one (path may be NULL).  MCSA_EINVAL
 * when its settings differ, MCSA_EFORMAT when it is not a report of a comparison.  On failure nothing but
 * `settings` is freed. */
mcsa_status comparison_open(comparison *c, cJSON *settings, const char *path, mcsa_error *error);
void comparison_close(comparison *c);

typedef struct clip_place {
    int caption, seed, run; /* indices into the plan */
} clip_place;

/* Whether numbers lack the recall that is asked for: those of sparse calls have one. */
int comparison_lacks_recall(const clip_numbers *numbers);

/* 1 and *out, which may be NULL, when that clip was made. */
int comparison_find(const comparison *c, const plan *p, clip_place at, clip_numbers *out);

/* Replaces what was there for that clip. */
mcsa_status comparison_put(comparison *c, const plan *p, clip_place at, const clip_numbers *numbers,
                           mcsa_error *error);

/* A run over all captions and seeds that were made: means; seconds and speed-ups are medians, since one
 * disturbance of the machine would spoil a mean. */
typedef struct run_summary {
    int clips;
    clip_numbers typical;
    double psnr_low, psnr_high;                 /* over clips */
    int seeds;                                  /* of which all captions were made */
    double seed_low, seed_high, seed_deviation; /* over these seeds, of the mean PSNR of each; with n - 1 */
    int density_missed; /* sparse calls executed not within half a point of the density asked */
} run_summary;

mcsa_status comparison_summary(const comparison *c, const plan *p, int run, run_summary *out,
                               mcsa_error *error);

mcsa_status comparison_write(const comparison *c, const plan *p, const char *path, mcsa_error *error);

#endif
