/* kth.c - see kth.h.  Three passes of 11, 11 and 10 bits; each narrows the threshold's prefix. */
#include "kth.h"

mcsa_kth mcsa_kth_largest(const uint32_t *keys, int n, int K)
{
    static const int shifts[] = { 21, 10, 0 }, bits[] = { 11, 11, 10 };
    uint32_t prefix = 0, mask = 0;
    int want = K; /* of the keys that match the prefix, the want largest are taken */
    for (int pass = 0; pass < 3; pass++) {
        int count[2048] = { 0 };
        for (int i = 0; i < n; i++)
            if ((keys[i] & mask) == prefix) count[(keys[i] >> shifts[pass]) & ((1u << bits[pass]) - 1)]++;
        int bin = (1 << bits[pass]) - 1;
        for (; count[bin] < want; bin--) want -= count[bin];
        prefix |= (uint32_t)bin << shifts[pass];
        mask |= ((1u << bits[pass]) - 1) << shifts[pass];
    }
    return (mcsa_kth){ prefix, want };
}
