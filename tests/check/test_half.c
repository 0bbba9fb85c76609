/* test_half.c - the 16-bit formats, exhaustively: the value of all 65,536 codes, and the rounding of every
 * float.
 *
 * Rounding is monotonic, so it is right everywhere if it is right at each code, at each midpoint between
 * two neighbouring codes and at the floats next to that midpoint. */
#include "test.h"

typedef struct format {
    const char *name;
    int exponent_bits, mantissa_bits;
    float (*decode)(uint16_t);
    uint16_t (*encode)(float);
} format;

static float from_bf16(uint16_t h)
{
    return mcsa_from_bf16(h);
}

static uint16_t to_bf16(float f)
{
    return mcsa_to_bf16(f);
}

static float from_f16(uint16_t h)
{
    return mcsa_from_f16(h);
}

static uint16_t to_f16(float f)
{
    return mcsa_to_f16(f);
}

static const format formats[] = { { "bf16", 8, 7, from_bf16, to_bf16 }, { "f16", 5, 10, from_f16, to_f16 } };

/* The value of a code by the definition of IEEE 754. */
static double value_of(const format *f, uint16_t code)
{
    int bias = (1 << (f->exponent_bits - 1)) - 1, top = (1 << f->exponent_bits) - 1;
    int exponent = (code >> f->mantissa_bits) & top, mantissa = code & ((1 << f->mantissa_bits) - 1);
    double sign = code & 0x8000u ? -1.0 : 1.0;
    if (exponent == top) return mantissa ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - f->mantissa_bits);
    return sign * ldexp(mantissa + (1 << f->mantissa_bits), exponent - bias - f->mantissa_bits);
}

static void every_code_has_its_value(void **state)
{
    (void)state;
    for (size_t i = 0; i < TEST_COUNT(formats); i++)
        for (uint32_t code = 0; code < 65536; code++) {
            double expected = value_of(&formats[i], (uint16_t)code), got = (double)formats[i].decode((uint16_t)code);
            int same = isnan(expected) ? isnan(got) : got == expected && !signbit(got) == !signbit(expected);
            if (!same) fail_msg("%s %04x is %g, not %g", formats[i].name, code, got, expected);
        }
}

static void every_code_survives_a_round_trip(void **state)
{
    (void)state;
    for (size_t i = 0; i < TEST_COUNT(formats); i++)
        for (uint32_t code = 0; code < 65536; code++) {
            float x = formats[i].decode((uint16_t)code);
            uint16_t back = formats[i].encode(x);
            if (isnan(x)) {
                assert_true(isnan(formats[i].decode(back)));
                assert_int_equal(back & 0x8000u, code & 0x8000u);
            } else
                assert_int_equal(back, code);
        }
}

static void expect(const format *f, float x, uint16_t code)
{
    uint16_t got = f->encode(x);
    if (got != code) fail_msg("%s of %a is %04x, not %04x", f->name, (double)x, got, code);
}

static void floats_round_to_the_nearest_code_and_ties_to_even(void **state)
{
    (void)state;
    for (size_t i = 0; i < TEST_COUNT(formats); i++) {
        const format *f = &formats[i];
        uint32_t infinity = (uint32_t)((1 << f->exponent_bits) - 1) << f->mantissa_bits;
        for (uint32_t code = 0; code < infinity; code++) {
            /* Above the largest number the next step would be where infinity's code stands. */
            double here = value_of(f, (uint16_t)code);
            double step = code ? here - value_of(f, (uint16_t)(code - 1)) : value_of(f, 1);
            double next = code + 1 < infinity ? value_of(f, (uint16_t)(code + 1)) : here + step;
            float middle = (float)((here + next) / 2); /* exact: one bit more than the format has */
            uint16_t even = (uint16_t)(code + (code & 1));
            expect(f, middle, even);
            expect(f, nextafterf(middle, 0), (uint16_t)code);
            expect(f, nextafterf(middle, INFINITY), (uint16_t)(code + 1));
            expect(f, -middle, (uint16_t)(even | 0x8000u));
            expect(f, -nextafterf(middle, 0), (uint16_t)(code | 0x8000u));
            expect(f, -nextafterf(middle, INFINITY), (uint16_t)((code + 1) | 0x8000u));
        }
        expect(f, FLT_MAX, (uint16_t)infinity);
        expect(f, -FLT_MAX, (uint16_t)(infinity | 0x8000u));
    }
}

static void nans_stay_nans_whatever_their_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < TEST_COUNT(formats); i++)
        for (int bit = 0; bit < 23; bit++)
            for (uint32_t negative = 0; negative < 2; negative++) {
                uint32_t bits = negative << 31 | 0x7f800000u | 1u << bit;
                float x;
                memcpy(&x, &bits, sizeof x);
                uint16_t code = formats[i].encode(x);
                assert_true(isnan(formats[i].decode(code)));
                assert_int_equal(code >> 15, negative);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_its_value),
        cmocka_unit_test(every_code_survives_a_round_trip),
        cmocka_unit_test(floats_round_to_the_nearest_code_and_ties_to_even),
        cmocka_unit_test(nans_stay_nans_whatever_their_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
