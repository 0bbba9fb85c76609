/* capture.h - writes q, k and v of chosen self-attention calls on their way to whoever computes them, as the files of
 * captured.h. */
#ifndef MCSA_CLI_CAPTURE_H
#define MCSA_CLI_CAPTURE_H

#include "captured.h"
#include "dit/wan.h"

typedef struct capture_order {
    const char *dir;      /* made when it is not there; may not hold captured calls */
    captured_picks picks; /* of all steps, layers and branches */
    int steps, layers, branches;
    int grid[3]; /* frames, rows and columns of tokens */
    mcsa_device device;
} capture_order;

typedef struct capture capture;

/* MCSA_EINVAL for picks that are out of range and for a folder in use, MCSA_EIO, MCSA_ENOMEM; with a GPU also
 * MCSA_EUNSUPPORTED. */
mcsa_status capture_open(capture **out, const capture_order *order, mcsa_error *error);
void capture_close(capture *c);

/* Attention that captures and then asks `inner`, or the run when inner is NULL.  Valid until the next call. */
const dit_attention *capture_before(capture *c, mcsa_run *run, const dit_attention *inner);

/* Files written so far. */
int capture_count(const capture *c);

#endif
