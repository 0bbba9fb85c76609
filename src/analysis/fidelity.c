/* fidelity.c - see fidelity.h. */
#include "fidelity.h"

#include "base/half.h"

#include <math.h>

analysis_sums analysis_sums_start(void)
{
    return (analysis_sums){ .low = INFINITY, .high = -INFINITY };
}

enum {
    PIECE = 1 << 15, /* numbers that one thread adds up */
    PIECES = 64      /* at a time */
};

static analysis_sums sum_piece(const float *dense, const float *out, const uint16_t *added, int64_t count)
{
    analysis_sums sums = analysis_sums_start();
    for (int64_t i = 0; i < count; i++) {
        float made = added ? out[i] + mcsa_from_bf16(added[i]) : out[i];
        double miss = (double)made - (double)dense[i];
        sums.error += miss * miss;
        sums.power += (double)dense[i] * (double)dense[i];
        sums.low = dense[i] < sums.low ? dense[i] : sums.low;
        sums.high = dense[i] > sums.high ? dense[i] : sums.high;
    }
    sums.numbers = count;
    return sums;
}

/* Pieces are the same for any number of threads, and are added in their order. */
void analysis_sums_add(analysis_sums *sums, const float *dense, const float *out, const uint16_t *added, int64_t count,
                       int threads)
{
    analysis_sums piece[PIECES];
    for (int64_t first = 0; first < count; first += (int64_t)PIECE * PIECES) {
        int64_t left = (count - first + PIECE - 1) / PIECE;
        int pieces = left < PIECES ? (int)left : PIECES;
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int p = 0; p < pieces; p++) {
            int64_t at = first + (int64_t)p * PIECE, numbers = count - at < PIECE ? count - at : PIECE;
            piece[p] = sum_piece(dense + at, out + at, added ? added + at : NULL, numbers);
        }
        for (int p = 0; p < pieces; p++) analysis_sums_merge(sums, &piece[p]);
    }
}

void analysis_sums_recall(analysis_sums *sums, const float *dense_lse, const float *lse, int rows)
{
    for (int i = 0; i < rows; i++) sums->kept += exp((double)lse[i] - (double)dense_lse[i]);
    sums->rows += rows;
}

void analysis_sums_merge(analysis_sums *to, const analysis_sums *from)
{
    to->error += from->error;
    to->power += from->power;
    to->kept += from->kept;
    to->numbers += from->numbers;
    to->rows += from->rows;
    to->low = fminf(to->low, from->low);
    to->high = fmaxf(to->high, from->high);
}

double analysis_rel_l2(const analysis_sums *sums)
{
    return sums->error == 0 ? 0 : sqrt(sums->error / sums->power);
}

double analysis_psnr(const analysis_sums *sums)
{
    double peak = (double)sums->high - (double)sums->low;
    if (sums->error == 0) return 100;
    return 10 * log10(peak * peak * (double)sums->numbers / sums->error);
}

void analysis_tally_add(analysis_tally *tally, const analysis_sums *sums)
{
    double recall = sums->kept / (double)sums->rows, calls = ++tally->calls;
    tally->recall += (recall - tally->recall) / calls;
    tally->rel_l2 += (analysis_rel_l2(sums) - tally->rel_l2) / calls;
    tally->psnr_db += (analysis_psnr(sums) - tally->psnr_db) / calls;
}

void analysis_tally_merge(analysis_tally *to, const analysis_tally *from)
{
    if (!from->calls) return;
    to->calls += from->calls;
    double share = (double)from->calls / to->calls;
    to->recall += (from->recall - to->recall) * share;
    to->rel_l2 += (from->rel_l2 - to->rel_l2) * share;
    to->psnr_db += (from->psnr_db - to->psnr_db) * share;
}
