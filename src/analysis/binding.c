/* binding.c - see binding.h. */
#include "binding.h"

/* Keys 64 w to 64 w + 63 of a row: a kept block is a whole word, but for keys past N. */
static uint64_t keys_of(const uint64_t *row, int unit, int w, int N)
{
    if (unit != ANALYSIS_BLOCK) return row[w];
    const int left = N - w * 64;
    const uint64_t whole = left < 64 ? ((uint64_t)1 << left) - 1 : ~(uint64_t)0;
    return row[w / 64] >> (w % 64) & 1 ? whole : 0;
}

analysis_waste analysis_overlap(const uint64_t *row, int unit, const uint64_t *wanted, int N)
{
    const int words = (N + 63) / 64;
    int64_t kept = 0, both = 0;
    for (int w = 0; w < words; w++) {
        const uint64_t bits = keys_of(row, unit, w, N);
        kept += __builtin_popcountll(bits);
        both += __builtin_popcountll(bits & wanted[w]);
    }
    return (analysis_waste){ (double)kept, (double)both };
}

analysis_waste analysis_key_binding(const rival_map *blocks, const rival_map *tokens, int N)
{
    analysis_waste sum = { 0, 0 };
    for (int g = 0; g < blocks->Q; g++) {
        analysis_waste w =
            analysis_overlap(rival_map_row(blocks, 0, g), ANALYSIS_BLOCK, rival_map_row(tokens, 0, g), N);
        sum.kept += w.kept;
        sum.wanted += w.wanted;
    }
    return sum;
}

void analysis_groups_of(const rival_partition *queries, int32_t *group)
{
    for (int g = 0; g < queries->P; g++) {
        int count;
        const int32_t *rows = rival_part(queries, 0, g, &count);
        for (int i = 0; i < count; i++) group[rows[i]] = g;
    }
}
