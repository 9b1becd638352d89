/* tests/chat/test_screen.c -- what a reply looks like, byte for byte, in a terminal and
 * elsewhere, wherever it is cut into pieces; and what must never reach a terminal. */
#include "app/cli/screen.h"
#include "app/cli/terminal.h"

#include <pty.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROOM = 4096 };

typedef struct piece {
    mox_part part;
    const char *text;
} piece;

static int standard_output;

/* Standard output becomes a terminal or a pipe; returns the other end. */
static int redirect(bool terminal)
{
    int ends[2];
    if (terminal) {
        struct termios raw;
        assert_int_equal(openpty(&ends[0], &ends[1], NULL, NULL, NULL), 0);
        assert_int_equal(tcgetattr(ends[1], &raw), 0);
        cfmakeraw(&raw);
        assert_int_equal(tcsetattr(ends[1], TCSANOW, &raw), 0);
    } else {
        assert_int_equal(pipe(ends), 0);
    }
    fflush(stdout);
    standard_output = dup(STDOUT_FILENO);
    assert_true(dup2(ends[1], STDOUT_FILENO) >= 0);
    close(ends[1]);
    return ends[0];
}

/* Ends that, and takes what was written. */
static void collect(int end, char out[ROOM])
{
    size_t n = 0;
    fflush(stdout);
    assert_int_equal(write(STDOUT_FILENO, "\x04", 1), 1); /* so that there is an end to see */
    while (n == 0 || out[n - 1] != '\x04') {
        const ssize_t m = read(end, out + n, ROOM - n);
        assert_true(m > 0);
        n += (size_t)m;
    }
    out[n - 1] = '\0';
    assert_true(dup2(standard_output, STDOUT_FILENO) >= 0);
    close(standard_output);
    close(end);
}

/* Characters at a time; 0: whole pieces.  Names of calls always come whole. */
static void show(const piece *pieces, size_t n, bool terminal, bool color, size_t step, char out[ROOM])
{
    mox_cli_screen s;
    const int end = redirect(terminal);
    mox_cli_screen_begin(&s, color);
    for (size_t i = 0; i < n; i++) {
        const size_t length = strlen(pieces[i].text);
        for (size_t at = 0; at < length;) {
            size_t m = step > 0 && pieces[i].part != MOX_PART_CALL_NAME ? step : length;
            if (m > length - at) m = length - at;
            while (at + m < length && ((unsigned char)pieces[i].text[at + m] & 0xC0) == 0x80) m++;
            mox_cli_screen_part(&s, pieces[i].part, -1, pieces[i].text + at, m);
            at += m;
        }
    }
    mox_cli_screen_end(&s);
    collect(end, out);
}

/* However it is cut. */
static void expect(const piece *pieces, size_t n, bool terminal, bool color, const char *expected)
{
    char out[ROOM];
    for (size_t step = 0; step < 6; step++) {
        show(pieces, n, terminal, color, step, out);
        assert_string_equal(out, expected);
    }
}

static const piece reply[] = {
    {MOX_PART_THINKING, "\nLet me see.\n\nA city\n\n"}, {MOX_PART_TEXT, "\n\nPar\xC3\xADs.\n\nIt is.\n"},
    {MOX_PART_CALL_NAME, "weather"},                     {MOX_PART_CALL_ARGUMENTS, "{\"city\": \"Paris\"}"},
    {MOX_PART_CALL_NAME, "time"},                        {MOX_PART_CALL_ARGUMENTS, "{}"},
};
enum { N_REPLY = sizeof reply / sizeof *reply };

static void with_color(void **state)
{
    (void)state;
    expect(reply, N_REPLY, true, true,
           "\x1b[2mLet me see.\n\nA city\x1b[0m\n\nPar\xC3\xADs.\n\nIt is.\n\n"
           "\x1b[33m[call] weather {\"city\": \"Paris\"}\x1b[0m\n\x1b[33m[call] time {}\x1b[0m\n");
}

static void without_color(void **state)
{
    (void)state;
    expect(reply, N_REPLY, true, false,
           "[thinking]\nLet me see.\n\nA city\n[/thinking]\n\nPar\xC3\xADs.\n\nIt is.\n\n"
           "[call] weather {\"city\": \"Paris\"}\n[call] time {}\n");
}

static void into_a_pipe(void **state)
{
    (void)state;
    expect(reply, N_REPLY, false, false,
           "Par\xC3\xADs.\n\nIt is.\n\n"
           "{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n{\"name\": \"time\", \"arguments\": {}}\n");
}

static void nothing_said(void **state)
{
    const piece empty[] = {{MOX_PART_THINKING, "\n\n"}, {MOX_PART_TEXT, "\n"}};
    (void)state;
    expect(empty, 2, true, true, "");
    expect(NULL, 0, true, true, "");
}

static void no_controls_in_a_terminal(void **state)
{
    (void)state;
    char text[8];
    for (int c = 1; c < 0xA0; c++) {
        const bool control = (c < 0x20 && c != '\n' && c != '\t') || c >= 0x7F;
        if (c < 0x80) (void)snprintf(text, sizeof text, "a%cb", c);
        else (void)snprintf(text, sizeof text, "a\xC2%cb", c);
        const piece one = {MOX_PART_TEXT, text};
        char expected[16];
        (void)snprintf(expected, sizeof expected, "%s\n", control ? "ab" : text);
        expect(&one, 1, true, true, expected);
        (void)snprintf(expected, sizeof expected, "%s\n", text);
        expect(&one, 1, false, false, expected); /* a pipe gets what the model wrote */
    }
}

static void no_turned_text_in_a_terminal(void **state)
{
    const piece turned = {MOX_PART_TEXT, "\xE2\x80\xAA" "a\xE2\x80\xAE" "b\xE2\x80\xAC" "c\xE2\x81\xA6" "d\xE2\x81\xA9" "e"};
    const piece other = {MOX_PART_TEXT, "\xE2\x80\xA9" "a\xE2\x80\x8D\xE2\x80\xAF" "b\xE2\x81\xA5" "c\xE2\x82\xAC"};
    (void)state;
    expect(&turned, 1, true, true, "abcde\n");
    expect(&other, 1, true, true, "\xE2\x80\xA9" "a\xE2\x80\x8D\xE2\x80\xAF" "b\xE2\x81\xA5" "c\xE2\x82\xAC\n");
}

static void escapes_everywhere(void **state)
{
    const piece pieces[] = {{MOX_PART_THINKING, "\x1b[0mloud"},
                            {MOX_PART_TEXT, "\x1b]0;title\x07text\x1b[2J\r"},
                            {MOX_PART_CALL_NAME, "na\x1bme"},
                            {MOX_PART_CALL_ARGUMENTS, "{\"\x1b\": 1}\x1b[?1049h"}};
    (void)state;
    expect(pieces, 4, true, true,
           "\x1b[2m[0mloud\x1b[0m\n\n]0;titletext[2J\n\n\x1b[33m[call] name {\"\": 1}[?1049h\x1b[0m\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_color),
        cmocka_unit_test(without_color),
        cmocka_unit_test(into_a_pipe),
        cmocka_unit_test(nothing_said),
        cmocka_unit_test(no_controls_in_a_terminal),
        cmocka_unit_test(no_turned_text_in_a_terminal),
        cmocka_unit_test(escapes_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
