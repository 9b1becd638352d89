/* model/rope_table.h -- rotary frequencies, plain or YaRN. */
#ifndef MOX_MODEL_ROPE_TABLE_H
#define MOX_MODEL_ROPE_TABLE_H

#include "format/config.h"

typedef struct mox_rope_table {
    int64_t dim;           /* rotary elements per head, even */
    const float *inv_freq; /* [dim / 2] */
    float magnitude;       /* multiplies sine and cosine */
} mox_rope_table;

/* Writes dim / 2 frequencies; returns the magnitude. */
float mox_rope_frequencies(const mox_rope_config *rope, int64_t dim, float *inv_freq);

/* 0.1 mscale ln(factor) + 1, or 1 for factors up to 1. */
double mox_yarn_magnitude(double factor, double mscale);

#endif
