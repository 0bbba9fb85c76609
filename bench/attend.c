/* attend.c - dense against token-sparse attention at matched density, selection and grouping excluded (the paper's
 * table 6).  Groups are runs of C queries of a shuffled order.  Kept keys are `clustered` (runs of 16 neighbours) or
 * `scattered` (each on its own), ascending in both. */
#include "suites.h"

#include <stdlib.h>
#include <string.h>

typedef struct sparse_case {
    bench_problem *problem;
    mcsa_selection selection;
} sparse_case;

static uint32_t next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

static mcsa_status fill_selection(mcsa_selection *s, mcsa_memory *memory, const bench_shape *shape, float density,
                                  int run)
{
    int N = shape->tokens, G = (N + shape->group - 1) / shape->group, K = (int)(density * (float)N + 0.5f);
    int64_t words = (N + 63) / 64, groups = (int64_t)shape->heads * G;
    size_t order_bytes = sizeof *s->order * (size_t)shape->heads * (size_t)N;
    if (mcsa_block_reserve(memory, &s->memory, order_bytes + 64 + 8 * (size_t)(groups * words))) return MCSA_ENOMEM;
    s->order = s->memory.data;
    s->kept = (uint64_t *)(void *)((char *)s->memory.data + (order_bytes + 63) / 64 * 64);
    s->H = shape->heads;
    s->N = N;
    s->C = shape->group;
    s->G = G;
    s->K = K < 1 ? 1 : K;
    s->words = words;
    memset(s->kept, 0, 8 * (size_t)(groups * words));
    uint64_t seed = 7;
    for (int h = 0; h < s->H; h++)
        for (int i = 0; i < N; i++) { /* inside-out shuffle */
            int32_t *order = s->order + (int64_t)h * N;
            int at = (int)(next(&seed) % (uint32_t)(i + 1));
            order[i] = order[at];
            order[at] = i;
        }
    for (int64_t g = 0; g < groups; g++)
        for (int left = s->K; left > 0;) {
            int first = (int)(next(&seed) % (uint32_t)N) / run * run;
            for (int j = first; j < first + run && j < N && left > 0; j++) {
                uint64_t *word = &s->kept[g * words + j / 64], bit = UINT64_C(1) << (j % 64);
                left -= !(*word & bit);
                *word |= bit;
            }
        }
    return MCSA_OK;
}

static void run_dense(void *context)
{
    bench_problem *p = context;
    mcsa_backend_cpu.attend_dense(p->state, &p->x, p->lse);
}

static void run_sparse(void *context)
{
    sparse_case *c = context;
    mcsa_residual_rows none = { MCSA_RESIDUAL_OFF, NULL, 0 };
    mcsa_backend_cpu.attend_tokens(c->problem->state, &c->problem->x, &c->selection, &none);
}

static double dense_operations(const bench_shape *shape)
{
    return 4.0 * shape->heads * shape->dim * (double)shape->tokens * shape->tokens;
}

mcsa_status bench_attend(const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    static const struct {
        const char *name;
        int run;
    } patterns[] = { { "clustered", 16 }, { "scattered", 1 } };
    bench_problem problem;
    sparse_case *sparse = calloc(BENCH_CASES, sizeof *sparse);
    mcsa_status status = sparse ? bench_problem_open(&problem, &plan->shape, error) : MCSA_ENOMEM;
    if (status != MCSA_OK) {
        free(sparse);
        return status;
    }
    bench_case *one = bench_add(table, "dense with LSE");
    *one = (bench_case){ .label = "dense with LSE",
                         .run = run_dense,
                         .context = &problem,
                         .density = 1,
                         .operations = dense_operations(&plan->shape) };
    run_dense(&problem);
    one->wrong = !(bench_check_rows(&problem, NULL) <= 1);
    for (int d = 0; d < plan->density_count; d++)
        for (int p = 0; p < 2; p++) {
            sparse_case *c = &sparse[2 * d + p];
            char label[40];
            status = fill_selection(&c->selection, &problem.memory, &plan->shape, plan->densities[d], patterns[p].run);
            if (status != MCSA_OK) {
                mcsa_fail(error, status, "no memory for the kept keys of %d heads of %d tokens", plan->shape.heads,
                          plan->shape.tokens);
                goto done;
            }
            snprintf(label, sizeof label, "sparse s = %.2f %s", (double)plan->densities[d], patterns[p].name);
            one = bench_add(table, label);
            one->run = run_sparse;
            one->context = c;
            one->density = (double)c->selection.K / plan->shape.tokens;
            one->operations = dense_operations(&plan->shape) * one->density;
            c->problem = &problem;
            run_sparse(c);
            one->wrong = !(bench_check_rows(&problem, &c->selection) <= 1);
        }
    status = bench_run(table, plan->repeats, error);
done:
    for (int i = 0; i < BENCH_CASES; i++) mcsa_block_release(&problem.memory, &sparse[i].selection.memory);
    bench_problem_close(&problem);
    free(sparse);
    return status;
}
