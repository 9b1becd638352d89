/* app/server/listen.c -- see listen.h.  Refusals name the address and what to do. */
#include "app/server/listen.h"

#include "base/alloc.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 511 };

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24) == 127;
    if (a->sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr) != 0;
    return false;
}

static void describe(mox_listener *l)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char port[16];
    if (getsockname(l->fd, (struct sockaddr *)&a, &n) != 0 ||
        getnameinfo((struct sockaddr *)&a, n, l->host, sizeof l->host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return;
    l->loopback = is_loopback((struct sockaddr *)&a);
    (void)snprintf(l->address, sizeof l->address, a.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", l->host,
                   port);
}

static int try_address(const struct addrinfo *a)
{
    const int one = 1;
    const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    if (fd < 0) return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) return fd;
    const int why = errno;
    (void)close(fd);
    errno = why;
    return -1;
}

mox_status mox_listen_tcp(mox_listener *l, const char *host, int port, mox_err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *all = NULL;
    char service[16];
    *l = (mox_listener){.fd = -1};
    (void)snprintf(service, sizeof service, "%d", port);
    const int code = getaddrinfo(host, service, &hints, &all);
    if (code != 0) return mox_fail(err, MOX_E_IO, "--host %s: %s", host, gai_strerror(code));
    int why = EADDRNOTAVAIL;
    for (const struct addrinfo *a = all; a && l->fd < 0; a = a->ai_next) {
        l->fd = try_address(a);
        if (l->fd < 0) why = errno;
    }
    freeaddrinfo(all);
    if (l->fd < 0)
        return mox_fail(err, MOX_E_IO, "cannot listen at %s port %d: %s%s", host, port, strerror(why),
                        why == EADDRINUSE ? "; another program has it, choose another with --port" : "");
    describe(l);
    return MOX_OK;
}

/* Whether a server answers there.  One whose line is full, because it stands still, is there, too. */
static bool is_alive(const struct sockaddr_un *a)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return true;
    const bool alive = connect(fd, (const struct sockaddr *)a, sizeof *a) == 0 || errno != ECONNREFUSED;
    (void)close(fd);
    return alive;
}

mox_status mox_listen_unix(mox_listener *l, const char *path, mox_err *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;
    *l = (mox_listener){.fd = -1, .loopback = true};
    if (strlen(path) >= sizeof a.sun_path)
        return mox_fail(err, MOX_E_ARG, "--unix-socket: the path has %zu bytes, and the system takes %zu",
                        strlen(path), sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path));
    if (lstat(path, &st) == 0) {
        if (!S_ISSOCK(st.st_mode))
            return mox_fail(err, MOX_E_IO, "%s is there already and is no socket; choose another path", path);
        if (is_alive(&a)) return mox_fail(err, MOX_E_IO, "%s: another server answers there", path);
        (void)unlink(path);
    }
    l->unix_path = mox_strdup(path);
    l->fd = l->unix_path ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
    if (l->fd < 0 || bind(l->fd, (const struct sockaddr *)&a, sizeof a) != 0 || listen(l->fd, BACKLOG) != 0) {
        const int why = errno;
        if (l->fd >= 0) (void)close(l->fd);
        mox_free(l->unix_path);
        *l = (mox_listener){.fd = -1};
        return mox_fail(err, MOX_E_IO, "cannot listen at %s: %s", path, strerror(why));
    }
    l->has_path = lstat(path, &st) == 0;
    if (l->has_path) {
        l->device = st.st_dev;
        l->inode = st.st_ino;
    }
    (void)snprintf(l->address, sizeof l->address, "%s", path);
    return MOX_OK;
}

void mox_listener_leave(mox_listener *l)
{
    struct stat st;
    if (l->has_path && lstat(l->unix_path, &st) == 0 && st.st_dev == l->device && st.st_ino == l->inode)
        (void)unlink(l->unix_path);
    l->has_path = false;
}

void mox_listener_forget(mox_listener *l)
{
    mox_listener_leave(l);
    mox_free(l->unix_path);
    *l = (mox_listener){.fd = -1};
}
