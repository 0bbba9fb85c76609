/* problem.h - attention problems to benchmark on, and the gates: answers in double for samples of the output. */
#ifndef MCSA_BENCH_PROBLEM_H
#define MCSA_BENCH_PROBLEM_H

#include "core/backend.h"

typedef struct bench_shape {
    int heads, tokens, dim, group, threads;
    mcsa_dtype dtype;
    mcsa_isa isa;
} bench_shape;

/* q, k, v and the backend's state to run on them. */
typedef struct bench_problem {
    mcsa_qkv x;
    mcsa_tensor q, k, v, out; /* [H, N, D] */
    mcsa_memory memory;
    mcsa_block block; /* of the tensors and lse */
    float *lse;       /* [H, N] */
    void *state;
} bench_problem;

/* k and v are independent normal numbers.  q: the same, and around centres where `clusters` is not 0, see problem.c. */
mcsa_status bench_problem_open(bench_problem *problem, const bench_shape *shape, int clusters, mcsa_error *error);
void bench_problem_close(bench_problem *problem);

/* Unit variance and bell-shaped, the same on every machine. */
float bench_bell(uint64_t *seed);
double bench_element(const mcsa_tensor *t, int64_t h, int64_t n, int64_t d);
void bench_store(const mcsa_tensor *t, int64_t i, float x); /* i: elements from the first */

/* The unit of rounding of a dtype, and x as it is then. */
double bench_unit(mcsa_dtype dtype);
float bench_rounded(float x, mcsa_dtype dtype);

/* Operations of dense attention. */
double bench_dense_operations(const bench_shape *shape);

/* The larger of two shares of a bound; NaN is the worst and stays. */
static inline double bench_worse(double worst, double used)
{
    return used <= worst || worst != worst ? worst : used;
}

/* Compares sampled rows of out with attention in double over the kept keys, and over the means of clusters that are not
 * kept; over all keys when selection is NULL.  By the bound of docs/NUMERICS.md, and rows of 16-bit numbers also by 4
 * units of rounding of their own size.  Returns the largest share of a bound that was used; above 1 is wrong. */
double bench_check_rows(const bench_problem *problem, const mcsa_selection *selection);

/* Rows that a group attends to at a density. */
int bench_selection_rows(int tokens, float density);

/* What a selection holds. */
typedef struct bench_budget {
    float density;
    mcsa_tail tail; /* means: clusters of the keys too */
} bench_budget;

/* Room for the groups and kept keys of a shape. */
mcsa_status bench_selection_open(mcsa_selection *s, mcsa_memory *memory, const bench_shape *shape, bench_budget budget,
                                 mcsa_error *error);

/* The same with the scratch that verbs need for it on this problem. */
mcsa_status bench_problem_select(bench_problem *problem, mcsa_selection *s, const bench_shape *shape,
                                 bench_budget budget, mcsa_error *error);

/* Groups: runs of C queries of a shuffled order.  Kept keys: random runs of `run` neighbours; with clusters, which are
 * made already, those that fit from a random one on. */
void bench_selection_shuffle(mcsa_selection *s, int run);

/* Whether each head's order holds every query once. */
int bench_is_permutation(const mcsa_selection *s);

/* Sum over the groups of s of squared distances of queries to the mean of their group; of groups in file order when
 * `ordered` is 0. */
double bench_scatter(const bench_problem *problem, const mcsa_selection *s, int ordered);

/* Whether sampled groups keep exactly K keys, and none that has less mass than a dropped one by more than the rounding
 * of FP32 arithmetic and of probabilities by `rounding`.  With clusters, which hold every key once: whether they keep
 * those of most mass per key that fit into K rows. */
int bench_keeps_the_heaviest(const bench_problem *problem, const mcsa_selection *s, double rounding);

#endif
