/* svg.h - the two masks of Sparse VideoGen in blocks of 128 tokens, and which of them serves a head. */
#ifndef RIVALS_SVG_H
#define RIVALS_SVG_H

#include "method.h"

enum { SVG_BLOCK = 128 };

/* Which blocks of keys a block of queries keeps: the first `sink`, and those near the diagonal. */
typedef struct rival_band {
    int blocks; /* B */
    int sink;
    double half; /* blocks on each side of the diagonal; the fraction is met by some rows and sides, not by others */
} rival_band;

/* Row `row` keeps blocks [from, to) and the sink. */
void rival_band_row(const rival_band *band, int row, int *from, int *to);

/* The band whose executed pairs are nearest to `density` N N, of a sequence of N tokens in frames of P. */
rival_band rival_band_find(int N, int P, double density);

/* row [N] of each place when the tokens of all frames at one position are neighbours. */
void rival_token_major(int frames, int positions, int32_t *row);

/* temporal [H]: 1 where sampled rows come nearer to attention over all keys with the band over `order` [N], the tokens
 * position by position, than with the band over the tokens as they are.  Uses x->out for the rows. */
mcsa_status rival_svg_profile(const rival_setup *setup, const rival_call *call, const int32_t *order, int *temporal,
                              mcsa_error *error);

#endif
