/* app/cli/version.c -- `moxie version`: what a report of a problem should begin with. */
#include "app/cli/commands.h"
#include "app/cli/output.h"
#include "app/cli/table.h"
#include "moxie.h"
#include "moxie/tools.h"

#include <stdio.h>
#include <string.h>

/* The choices of --device, and which of them this machine has. */
static void put_devices(void)
{
    mox_cli_putf("devices   ");
    for (const char *p = mox_cli_table[OPT_DEVICE].value; *p;) {
        const int n = (int)strcspn(p, "|");
        char name[16];
        mox_err err;
        snprintf(name, sizeof name, "%.*s", n, p);
        mox_cli_putf(" %s%s", name, mox_device_find(name, &err) == MOX_OK ? "" : " (not on this machine)");
        p += n + (p[n] == '|');
    }
    mox_cli_putf("\n");
}

int mox_cli_version(const mox_cli_options *o)
{
    (void)o;
    mox_cli_putf("moxie %s\n", mox_version());
#if defined(__clang__)
    mox_cli_putf("compiler   clang %s\n", __clang_version__);
#else
    mox_cli_putf("compiler   gcc %s\n", __VERSION__);
#endif
    mox_cli_putf("build      %s\n", MOX_BUILD_OPTIONS);
    put_devices();
    mox_cli_putf("kernels   ");
    for (int i = 0; i < mox_isa_count(); i++)
        mox_cli_putf(" %s%s", mox_isa_name(i), mox_isa_available(i) ? "" : " (not on this processor)");
    mox_cli_putf("\nlibraries  %s\n", MOX_LIBRARIES);
    return EXIT_OK;
}
