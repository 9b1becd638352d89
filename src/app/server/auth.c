/* app/server/auth.c -- see auth.h. */
#include "app/server/auth.h"

#include "app/cli/commands.h"
#include "app/cli/message.h"
#include "base/alloc.h"
#include "base/file.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { KEY_FILE_MAX = 1 << 20, KEY_MAX = 512, NAME_MAX_BYTES = 256 };

/* ---- keys ---------------------------------------------------------------------------------------- */

static bool add_key(mox_auth *a, const char *key, size_t n)
{
    char **keys = mox_realloc_array(a->keys, a->n_keys + 1, sizeof *keys);
    if (keys) a->keys = keys;
    char *copy = keys ? mox_strndup(key, n) : NULL;
    if (!copy) {
        mox_cli_say("out of memory for the keys");
        return false;
    }
    a->keys[a->n_keys++] = copy;
    return true;
}

static int take_key(mox_auth *a, const char *key, size_t n, const char *from)
{
    if (n == 0 || n > KEY_MAX) {
        mox_cli_say("%s: a key has 1 to %d bytes", from, KEY_MAX);
        return EXIT_USAGE;
    }
    return add_key(a, key, n) ? EXIT_OK : EXIT_FULL;
}

/* One to a line; empty lines and those that begin with # are left out. */
static int read_key_file(mox_auth *a, const char *path)
{
    mox_err err;
    char *text;
    size_t n;
    if (mox_file_slurp(path, KEY_FILE_MAX, &text, &n, &err) != MOX_OK) {
        mox_cli_say("--api-key-file: %s", err.msg);
        return EXIT_USAGE;
    }
    int code = EXIT_OK;
    for (char *line = text; *line && code == EXIT_OK;) {
        const size_t length = strcspn(line, "\r\n");
        if (length > 0 && line[0] != '#') code = take_key(a, line, length, path);
        line += length;
        line += strspn(line, "\r\n");
    }
    memset(text, 0, n);
    mox_free(text);
    return code;
}

/* As browsers write them: a scheme and a host, with nothing behind it but a port; "file://"; or "null". */
static int check_origin(const char *origin)
{
    static const char in_scheme[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.";
    const size_t n = strspn(origin, in_scheme);
    const char *rest = origin + n + (n > 0 && strncmp(origin + n, "://", 3) == 0 ? 3 : 0);
    const bool host = rest > origin + n && *rest && !strpbrk(rest, "/?#*, \t");
    if (host || strcmp(origin, "*") == 0 || strcmp(origin, "null") == 0 || strcmp(origin, "file://") == 0) return EXIT_OK;
    mox_cli_say("--cors-origin takes a scheme and a host such as https://chat.example.org or http://10.0.0.5:3000, "
                "or * for all, not '%s'", origin);
    return EXIT_USAGE;
}

int mox_auth_init(mox_auth *a, const mox_cli_options *o)
{
    *a = (mox_auth){.origins = o->v[OPT_CORS_ORIGIN].texts, .n_origins = o->v[OPT_CORS_ORIGIN].n_texts,
                    .hosts = o->v[OPT_ALLOW_HOST].texts, .n_hosts = o->v[OPT_ALLOW_HOST].n_texts};
    int code = EXIT_OK;
    for (int i = 0; i < a->n_origins && code == EXIT_OK; i++) code = check_origin(a->origins[i]);
    for (int i = 0; i < o->v[OPT_API_KEY].n_texts && code == EXIT_OK; i++)
        code = take_key(a, o->v[OPT_API_KEY].texts[i], strlen(o->v[OPT_API_KEY].texts[i]), "--api-key");
    if (code == EXIT_OK && mox_cli_given(o, OPT_API_KEY_FILE))
        code = read_key_file(a, o->v[OPT_API_KEY_FILE].text);
    if (code == EXIT_OK && mox_cli_given(o, OPT_API_KEY_FILE) && a->n_keys == 0) {
        mox_cli_say("--api-key-file %s has no key in it", o->v[OPT_API_KEY_FILE].text);
        code = EXIT_USAGE;
    }
    return code;
}

void mox_auth_deinit(mox_auth *a)
{
    for (size_t i = 0; i < a->n_keys; i++) mox_free(a->keys[i]);
    mox_free(a->keys);
    *a = (mox_auth){0};
}

/* In the same time for every key of the same length as given. */
static bool same_key(const char *given, size_t n, const char *key)
{
    const size_t m = strlen(key);
    unsigned differ = n != m;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned)(unsigned char)given[i] ^ (unsigned char)key[m > 0 ? i % m : 0];
    return differ == 0;
}

static const char *find_key(mox_http_call *c, bool *twice)
{
    int n_bearer, n_key;
    const char *bearer = mox_http_header(c, "Authorization", &n_bearer),
               *key = mox_http_header(c, "x-api-key", &n_key);
    *twice = n_bearer > 1 || n_key > 1;
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0) {
        bearer += 7;
        if (key && strcmp(key, bearer) != 0) *twice = true;
        return bearer;
    }
    return key;
}

bool mox_auth_check_key(const mox_auth *a, mox_http_call *c, mox_problem *p)
{
    if (a->n_keys == 0) return true;
    bool twice;
    const char *key = find_key(c, &twice);
    bool good = false;
    const size_t n = key ? strlen(key) : 0;
    for (size_t i = 0; key && n <= KEY_MAX && i < a->n_keys; i++) good |= same_key(key, n, a->keys[i]);
    if (good && !twice) return true;
    *p = mox_problem_make(401, "invalid_api_key",
                          "this server wants a key, as Authorization: Bearer KEY or x-api-key: KEY, and %s",
                          twice ? "got more than one"
                          : key ? "does not know the one it got"
                                : "got none");
    return false;
}

/* ---- hosts --------------------------------------------------------------------------------------- */

/* The name without its port, and without the brackets of an IPv6 address. */
static bool split_host(const char *text, char out[NAME_MAX_BYTES])
{
    const bool bracket = text[0] == '[';
    const size_t n = bracket ? strcspn(text + 1, "]") : strcspn(text, ":");
    if (n == 0 || n >= NAME_MAX_BYTES) return false;
    memcpy(out, text + bracket, n);
    out[n] = '\0';
    const char *rest = text + n + (bracket ? 2 : 0);
    if (bracket && text[n + 1] != ']') return false;
    return *rest == '\0' || (*rest == ':' && strspn(rest + 1, "0123456789") == strlen(rest + 1));
}

static bool is_address(const char *name)
{
    unsigned char bytes[16];
    return inet_pton(AF_INET, name, bytes) == 1 || inet_pton(AF_INET6, name, bytes) == 1;
}

static bool is_local(const char *name)
{
    const size_t n = strlen(name);
    return strcasecmp(name, "localhost") == 0 || strcmp(name, "::1") == 0 ||
           (strncmp(name, "127.", 4) == 0 && is_address(name)) ||
           (n > 10 && strcasecmp(name + n - 10, ".localhost") == 0);
}

static bool is_in(const char *text, const char *const *list, int n)
{
    for (int i = 0; i < n; i++)
        if (strcasecmp(text, list[i]) == 0) return true;
    return false;
}

/* An address cannot be rebound, so any will do where the network reaches us. */
static bool is_our_host(const mox_auth *a, const char *name)
{
    if (is_local(name) || is_in(name, a->hosts, a->n_hosts)) return true;
    return !a->listener->loopback && is_address(name);
}

/* ---- origins ------------------------------------------------------------------------------------- */

static bool is_our_origin(const mox_auth *a, const char *origin, const char *host)
{
    char name[NAME_MAX_BYTES];
    if (is_in(origin, a->origins, a->n_origins) || is_in("*", a->origins, a->n_origins)) return true;
    const char *rest = strncmp(origin, "http://", 7) == 0    ? origin + 7
                       : strncmp(origin, "https://", 8) == 0 ? origin + 8
                                                             : NULL;
    if (!rest || !split_host(rest, name)) return false;
    return is_local(name) || strcasecmp(rest, host) == 0;
}

bool mox_auth_check_origin(const mox_auth *a, mox_http_call *c, mox_problem *p)
{
    char name[NAME_MAX_BYTES];
    int n_origins;
    const char *host = mox_http_header(c, "Host", NULL), *origin = mox_http_header(c, "Origin", &n_origins);
    if (!host) host = "localhost"; /* HTTP/1.0 */
    const bool by_path = a->listener->unix_path != NULL;
    if (!by_path && (!split_host(host, name) || !is_our_host(a, name))) {
        *p = mox_problem_make(403, NULL,
                              "the Host header does not name this server; if it is a name of this machine, "
                              "start with --allow-host");
        return false;
    }
    if (n_origins == 0) return true;
    if (!origin || !is_our_origin(a, origin, host)) {
        *p = mox_problem_make(403, NULL,
                              "web pages of that origin may not use this server; --cors-origin allows it");
        return false;
    }
    mox_http_set_header(c, "Access-Control-Allow-Origin", origin);
    mox_http_set_header(c, "Vary", "Origin");
    return true;
}
