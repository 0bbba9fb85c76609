/* ranking.c - see ranking.h. */
#include "ranking.h"

#include "cpu/kth.h"

#include <math.h>
#include <string.h>

/* Whether index a stands before b.  Of two NaN, and of equal scores, the lower index does. */
static int before(const float *score, int32_t a, int32_t b)
{
    int a_nan = isnan(score[a]) != 0, b_nan = isnan(score[b]) != 0;
    if (a_nan || b_nan) return a_nan == b_nan ? a < b : b_nan;
    return score[a] != score[b] ? score[a] > score[b] : a < b;
}

/* Restores the heap, last in rank on top, below `at`. */
static void sift(const float *score, int32_t *heap, int at, int count)
{
    int32_t moved = heap[at];
    for (int child = 2 * at + 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && before(score, heap[child], heap[child + 1])) child++;
        if (!before(score, moved, heap[child])) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* Heap sort: in place, and no two indices rank equal, so the order is the only one. */
void rival_rank(const float *score, int K, int32_t *rank)
{
    for (int k = 0; k < K; k++) rank[k] = k;
    for (int at = K / 2 - 1; at >= 0; at--) sift(score, rank, at, K);
    for (int end = K - 1; end > 0; end--) {
        int32_t last = rank[0];
        rank[0] = rank[end];
        rank[end] = last;
        sift(score, rank, 0, end);
    }
}

void rival_keep_top(const float *score, int K, int count, uint32_t *key, uint64_t *row)
{
    /* 0 orders before every number, -infinity included, which is 0x007fffff; + 0.0f makes -0 and 0 equal */
    for (int k = 0; k < K; k++) key[k] = isnan(score[k]) ? 0 : mcsa_ordered(score[k] + 0.0f);
    mcsa_kth kth = mcsa_kth_largest(key, K, count);
    for (int k = 0; k < K; k++) {
        int tie = key[k] == kth.threshold && kth.ties > 0;
        kth.ties -= tie;
        row[k / 64] |= (uint64_t)(key[k] > kth.threshold || tie) << (k % 64);
    }
}

int rival_prefix(const float *share, int K, rival_boundary boundary, double x, int least)
{
    double sum = 0; /* of the parts before r */
    int r = 0;
    for (; r < K; r++) {
        double with = sum + (double)share[r];
        if (boundary == RIVAL_BOUNDARY_EXCLUSIVE && !(sum <= x)) break;
        if (boundary == RIVAL_BOUNDARY_STRICT && !(sum < x)) break;
        if (boundary == RIVAL_BOUNDARY_INCLUSIVE && !(with <= x)) break;
        sum = with;
    }
    if (r < least) r = least;
    return r < K ? r : K;
}

int rival_row_budget(int row, int K, double density)
{
    double budget = floor((row + 1.0) * density * K + 0.5) - floor(row * density * K + 0.5);
    return budget < 1 ? 1 : budget > K ? K : (int)budget;
}

double rival_knob(rival_pairs_at pairs, void *user, double low, double high, double target)
{
    double at_low = pairs(user, low), at_high = pairs(user, high);
    int rising = at_low <= at_high;
    for (int i = 0; i < 40; i++) {
        double middle = (low + high) / 2;
        if ((float)middle == (float)low || (float)middle == (float)high) break;
        double at = pairs(user, middle);
        if ((at < target) == rising) {
            low = middle;
            at_low = at;
        } else {
            high = middle;
            at_high = at;
        }
    }
    return fabs(at_low - target) <= fabs(at_high - target) ? low : high;
}
