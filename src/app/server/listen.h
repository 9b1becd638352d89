/* app/server/listen.h -- the socket that the server listens at. */
#ifndef MOX_APP_SERVER_LISTEN_H
#define MOX_APP_SERVER_LISTEN_H

#include "base/err.h"

#include <stdbool.h>
#include <sys/types.h>

typedef struct mox_listener {
    int fd;            /* -1: closed */
    bool loopback;     /* only this machine reaches it */
    char address[128]; /* what it is bound to, with the real port: "127.0.0.1:8080", "[::1]:8080", a path */
    char host[64];     /* without the port; "" for a path */
    char *unix_path;   /* owned */
    bool has_path;     /* it is ours to remove, as long as it is the file that we made: */
    dev_t device;
    ino_t inode;
} mox_listener;

/* host is a name or an address, port 0 takes a free one. */
mox_status mox_listen_tcp(mox_listener *l, const char *host, int port, mox_err *err);
/* A socket that nobody answers at any more is replaced; any other file is left alone. */
mox_status mox_listen_unix(mox_listener *l, const char *path, mox_err *err);
/* Removes the path, once, before the descriptor is closed: from then on it may be the path of another server. */
void mox_listener_leave(mox_listener *l);
/* The descriptor is somebody else's by now. */
void mox_listener_forget(mox_listener *l);

#endif
