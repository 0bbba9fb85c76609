/* tensor.c - see tensor.h. */
#include "tensor.h"

#include "half.h"

static int known_dtype(mcsa_dtype dtype)
{
    return dtype == MCSA_F32 || dtype == MCSA_BF16 || dtype == MCSA_F16;
}

/* Elements are apart when, from the smallest stride up, each stride is at least the extent of what it steps over. */
static int strides_overlap(const mcsa_tensor *t)
{
    int axis[3] = { 0, 1, 2 };
    for (int i = 1; i < 3; i++)
        for (int j = i; j > 0 && t->stride[axis[j]] < t->stride[axis[j - 1]]; j--) {
            int swap = axis[j];
            axis[j] = axis[j - 1];
            axis[j - 1] = swap;
        }
    int64_t extent = 1; /* elements from the first to one past the last */
    for (int i = 0; i < 3; i++) {
        int a = axis[i];
        if (t->shape[a] == 1) continue;
        if (t->stride[a] < extent) return 1;
        extent += (t->shape[a] - 1) * t->stride[a];
    }
    return 0;
}

mcsa_status mcsa_tensor_check(const mcsa_tensor *tensor, const char *name, mcsa_error *error)
{
    if (!tensor || !tensor->data) return mcsa_fail(error, MCSA_EINVAL, "%s is NULL", name);
    if (!known_dtype(tensor->dtype))
        return mcsa_fail(error, MCSA_EINVAL, "%s has unknown dtype %d; known are F32 (1), BF16 (2), F16 (3)", name,
                         (int)tensor->dtype);
    const int64_t *shape = tensor->shape, *stride = tensor->stride;
    const int64_t most = INT64_C(1) << 60;
    int64_t extent = 1;
    for (int i = 0; i < 3; i++) {
        if (shape[i] < 1 || shape[i] > INT32_MAX)
            return mcsa_fail(error, MCSA_EINVAL, "%s has shape [%lld, %lld, %lld]; each must be 1 to 2147483647", name,
                             (long long)shape[0], (long long)shape[1], (long long)shape[2]);
        if (shape[i] == 1) continue;
        if (stride[i] < 1 || stride[i] > (most - extent) / (shape[i] - 1))
            return mcsa_fail(error, MCSA_EINVAL,
                             "%s has stride %lld along axis %d of %lld; it must be 1 or more and fit", name,
                             (long long)stride[i], i, (long long)shape[i]);
        extent += (shape[i] - 1) * stride[i];
    }
    if (strides_overlap(tensor))
        return mcsa_fail(error, MCSA_EINVAL,
                         "%s has strides [%lld, %lld, %lld] for shape [%lld, %lld, %lld]: elements overlap", name,
                         (long long)stride[0], (long long)stride[1], (long long)stride[2], (long long)shape[0],
                         (long long)shape[1], (long long)shape[2]);
    return MCSA_OK;
}

static uintptr_t end_of(const mcsa_tensor *t)
{
    int64_t last = 0;
    for (int i = 0; i < 3; i++) last += t->shape[i] > 1 ? (t->shape[i] - 1) * t->stride[i] : 0;
    return (uintptr_t)t->data + (uintptr_t)(last + 1) * mcsa_dtype_bytes(t->dtype);
}

int mcsa_tensor_overlap(const mcsa_tensor *a, const mcsa_tensor *b)
{
    return (uintptr_t)a->data < end_of(b) && (uintptr_t)b->data < end_of(a);
}

int64_t mcsa_tensor_nonfinite(const mcsa_tensor *t, int64_t place[3])
{
    int64_t bad = 0;
    for (int64_t h = 0; h < t->shape[0]; h++)
        for (int64_t n = 0; n < t->shape[1]; n++) {
            const char *row = mcsa_tensor_row(t, h, n);
            for (int64_t d = 0; d < t->shape[2]; d++) {
                const char *x = row + (int64_t)mcsa_dtype_bytes(t->dtype) * d * t->stride[2];
                uint32_t word = 0;
                uint16_t half;
                int wrong;
                if (t->dtype == MCSA_F32) {
                    memcpy(&word, x, sizeof word);
                    wrong = (word & 0x7f800000u) == 0x7f800000u;
                } else {
                    memcpy(&half, x, sizeof half);
                    wrong = t->dtype == MCSA_BF16 ? (half & 0x7f80u) == 0x7f80u : (half & 0x7c00u) == 0x7c00u;
                }
                if (wrong && bad++ == 0) {
                    place[0] = h;
                    place[1] = n;
                    place[2] = d;
                }
            }
        }
    return bad;
}
