/* rivals.h - what other methods keep of the captured calls: each series run as a schedule would, its first step an
 * anchor and the later ones sparse. */
#ifndef ANALYSIS_RIVALS_H
#define ANALYSIS_RIVALS_H

#include "analysis.h"
#include "rivals/method.h"

typedef struct analysis_rival {
    const rival_method *method;
    int density;                /* index into the options */
    double nominal, executed;   /* query-key pairs over H N N, means over calls */
    analysis_tally made;        /* recall of what is attended to exactly; rel_l2 with the method's own tail */
    analysis_tally compensated; /* the same with the residual of the first step added */
} analysis_rival;

/* out [methods x densities], by method and then density.  grid: of tokens, zeros when unknown.  Errors: as
 * analysis_measure, MCSA_EINVAL for a method that needs the grid. */
mcsa_status analysis_measure_rivals(analysis_rival *out, const rival_method *const *methods, int count,
                                    const analysis_options *options, const int grid[3], const analysis_source *source,
                                    mcsa_error *error);

#endif
