/* app/cli/bus.h -- a mapped file that became shorter while it was used. */
#ifndef MOX_APP_CLI_BUS_H
#define MOX_APP_CLI_BUS_H

/* From now on a read behind the end of a mapped file, or one that the disk does not answer, ends
 * the program with EXIT_IO and a sentence that names the file, and not with a signal. */
void mox_cli_bus_catch(void);

#endif
