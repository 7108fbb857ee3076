/* kernels/isa.c - which instruction sets this processor and its operating system offer. */
#include "kernels/backend.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* The register states that the operating system saves; a processor may have AVX-512 that a kernel
 * hides. */
static unsigned enabled_states(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool has_all(unsigned reg, unsigned bits)
{
    return (reg & bits) == bits;
}

IsaLevel isa_best(void)
{
    unsigned a, b, c, d, features;
    if (!__get_cpuid(1, &a, &b, &features, &d))
        return ISA_SCALAR;
    if (!has_all(features, 1U << 27 | 1U << 28 | 1U << 12 | 1U << 29)) /* OSXSAVE AVX FMA F16C */
        return ISA_SCALAR;
    unsigned states = enabled_states();
    if (!has_all(states, 0x06U) || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) /* XMM YMM */
        return ISA_SCALAR;
    if (!has_all(b, 1U << 5)) /* AVX2 */
        return ISA_SCALAR;
    /* F DQ BW VL, and VBMI; opmask and both halves of ZMM. All levels of one build use one set of
     * flags. */
    if (has_all(b, 1U << 16 | 1U << 17 | 1U << 30 | 1U << 31) && has_all(c, 1U << 1) &&
        has_all(states, 0xe6U))
        return ISA_AVX512;
    return ISA_AVX2;
}
#else
IsaLevel isa_best(void)
{
    return ISA_SCALAR;
}
#endif

static const char *const names[N_ISA_LEVELS] = {"scalar", "avx2", "avx512"};

const char *isa_name(IsaLevel isa)
{
    return names[isa];
}

Status isa_parse(const char *name, IsaLevel *out, Err *e)
{
    if (strcmp(name, "auto") == 0) {
        *out = isa_best();
        return ST_OK;
    }
    for (int i = 0; i < N_ISA_LEVELS; i++) {
        if (strcmp(name, names[i]) != 0)
            continue;
        if ((IsaLevel)i > isa_best())
            return err_set(e, ST_USAGE, "this processor has no %s; its best is %s", name,
                           names[isa_best()]);
        *out = (IsaLevel)i;
        return ST_OK;
    }
    return err_set(e, ST_USAGE, "unknown instruction set \"%s\": scalar, avx2, avx512 or auto",
                   name);
}
