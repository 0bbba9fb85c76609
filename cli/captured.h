/* captured.h - a folder of captured attention calls, as `mcsa generate --capture` or a few lines of PyTorch write it
 * (docs/ANALYZE.md):
 *
 *   step-007.layer-003.branch-0.safetensors    q, k, v: [H, N, D] or [1, H, N, D], F32, BF16 or F16
 *                                              scale:   [1] F32, of the scores; without it 1 / sqrt(D)
 *                                              grid:    [3] F32, frames, rows and columns of tokens; may be missing
 *
 * Other files are left alone. */
#ifndef MCSA_CLI_CAPTURED_H
#define MCSA_CLI_CAPTURED_H

#include "analysis/analysis.h"
#include "dit/safetensors.h"

/* For printf, with step, layer and branch. */
#define CAPTURED_NAME "step-%03d.layer-%03d.branch-%d.safetensors"

/* Whether a file of this name is a captured call. */
int captured_is_name(const char *name);

typedef struct captured {
    const char *dir; /* borrowed */
    int count;
    mcsa_site *at;     /* [count] ascending by layer, branch, step */
    char (*name)[64];  /* [count] of the file */
    int grid[3];       /* of the first file that says; 0: unknown */
    dit_tensors *file; /* the last one loaded */
} captured;

/* Which calls are wanted: texts for capture_pick. */
typedef struct captured_picks {
    const char *steps, *layers, *branches;
} captured_picks;

/* Finds the files.  MCSA_EINVAL when none is there or a pick asks for what is not.  On failure nothing is held. */
mcsa_status captured_open(captured *c, const char *dir, const captured_picks *picks, mcsa_error *error);
void captured_close(captured *c);

/* An analysis_source.load; user is the captured. */
mcsa_status captured_load(void *user, int i, analysis_call *call, mcsa_error *error);

#endif
