/* base/c_locale.c -- numbers and dates as in C, whatever locale the program has set. */
#include "base/c_locale.h"

#include <pthread.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t plain; /* made once and kept; 0 where that failed, which leaves the thread as it is */

static void make(void) { plain = newlocale(LC_ALL_MASK, "C", (locale_t)0); }

locale_t mox_locale_enter(void)
{
    pthread_once(&once, make);
    return uselocale(plain);
}

void mox_locale_leave(locale_t before) { uselocale(before); }
