/* base/c_locale.h -- numbers and dates as in C, whatever locale the program has set.
 *
 * strtod, snprintf and strftime follow the locale of the calling thread: a program that has
 * set a German one would have us read 0.5 as 0 and write it as 0,5. */
#ifndef MOX_BASE_C_LOCALE_H
#define MOX_BASE_C_LOCALE_H

#include <locale.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif

/* Puts the calling thread into the C locale; returns the one it was in, for mox_locale_leave. */
locale_t mox_locale_enter(void);
void mox_locale_leave(locale_t before);

#endif
