/* model/glance.c -- a model folder at a glance, for lists of many.
 *
 * Reads config.json and the index, and looks whether weight files are there.  It opens
 * none of them: their headers are checked by mox_model_open alone. */
#include "format/config.h"
#include "format/safetensors.h"
#include "model/model.h"
#include "moxie/tools.h"

#include <stdio.h>
#include <string.h>

mox_status mox_model_glance(const char *dir, mox_glance *out, mox_err *err)
{
    *out = (mox_glance){0};
    mox_config c;
    mox_status status = mox_config_open(&c, dir, err);
    memcpy(out->family, c.family, sizeof out->family);
    if (status != MOX_OK) return status;
    if (c.quant.mlx) (void)snprintf(out->quantization, sizeof out->quantization, "%d-bit", (int)c.quant.bits);
    else if (c.quant.fp8) (void)snprintf(out->quantization, sizeof out->quantization, "fp8");
    const mox_family *family;
    status = mox_family_find(&c, &family, err);
    mox_config_close(&c);
    return status == MOX_OK ? mox_tensors_present(dir, err) : status;
}
