/* app/cli/bus.c -- see bus.h.
 *
 * A read of mapped memory cannot return an error, so the system sends SIGBUS.  The handler looks
 * its address up in the list of mappings; it calls nothing but what signal handlers may call. */
#include "app/cli/bus.h"

#include "app/cli/commands.h"
#include "app/cli/tty.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { LINE_ROOM = 4096 };

/* Threads read the same file, so several meet its end at once: the first of them speaks. */
static atomic_flag somebody_speaks = ATOMIC_FLAG_INIT;

static uintptr_t read_hex(const char **text)
{
    uintptr_t n = 0;
    for (;; ++*text) {
        const char c = **text;
        if (c >= '0' && c <= '9') n = 16 * n + (uintptr_t)(c - '0');
        else if (c >= 'a' && c <= 'f') n = 16 * n + (uintptr_t)(c - 'a' + 10);
        else return n;
    }
}

/* A line "7f1c2000-7f1c9000 r--p 0 08:01 99   /a/model.safetensors": its path when the address is inside, else NULL. */
static const char *path_in_line(const char *line, uintptr_t address)
{
    const uintptr_t begin = read_hex(&line);
    if (*line++ != '-' || address < begin || address >= read_hex(&line)) return NULL;
    return strchr(line, '/');
}

/* The file that is mapped at the address; NULL when none is. */
static const char *find_file(uintptr_t address, char line[LINE_ROOM])
{
    const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    const char *found = NULL;
    char block[512];
    size_t n_line = 0;
    for (ssize_t n; fd >= 0 && !found && (n = read(fd, block, sizeof block)) > 0;) {
        for (ssize_t i = 0; i < n && !found; i++) {
            if (block[i] != '\n') {
                if (n_line < LINE_ROOM - 1) line[n_line++] = block[i];
                continue;
            }
            line[n_line] = '\0';
            n_line = 0;
            found = path_in_line(line, address);
        }
    }
    if (fd >= 0) close(fd);
    return found;
}

/* All of it in one write, so that no other line comes between its parts. */
static void tell(const char *path)
{
    char said[LINE_ROOM + 128];
    const char *const parts[] = {"moxie: ", path, ": was cut short or could not be read while running; restore the file\n"};
    size_t n = 0;
    for (int i = 0; i < 3; i++) {
        const size_t length = strlen(parts[i]);
        memcpy(said + n, parts[i], length);
        n += length;
    }
    const ssize_t written = write(STDERR_FILENO, said, n);
    (void)written; /* there is nobody else to tell */
}

static void on_bus(int number, siginfo_t *info, void *context)
{
    (void)context;
    char line[LINE_ROOM];
    const char *path = info->si_code > 0 ? find_file((uintptr_t)info->si_addr, line) : NULL;
    if (!path) { /* not ours: as without this handler */
        (void)signal(number, SIG_DFL);
        if (info->si_code <= 0) (void)raise(number);
        return;
    }
    while (atomic_flag_test_and_set(&somebody_speaks)) (void)pause(); /* until that thread ends them all */
    tell(path);
    mox_cli_tty_restore();
    _exit(EXIT_IO);
}

void mox_cli_bus_catch(void)
{
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGBUS, &action, NULL);
}
