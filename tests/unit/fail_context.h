/* tests/unit/fail_context.h -- contexts that are created without memory. */
#ifndef TESTS_FAIL_CONTEXT_H
#define TESTS_FAIL_CONTEXT_H

#include "base/alloc.h"
#include "fail_nth.h"
#include "runtime/context.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* At each of the allocations of create, of which there are so many at least. */
static inline void check_allocations_fail(const mox_model *m, const mox_context_opts *o, long least)
{
    const int64_t live = mox_alloc_live();
    for (long i = 1;; i++) {
        nth f = {.at = i};
        mox_context *c;
        mox_err err = {0};
        mox_alloc_set_hook(fail_nth_alloc, &f);
        const mox_status status = mox_context_create(&c, m, o, &err);
        mox_alloc_set_hook(NULL, NULL);
        if (f.count < i) {
            assert_int_equal(status, MOX_OK);
            assert_true(i > least);
            mox_context_destroy(&c);
            break;
        }
        assert_null(c);
        assert_true(status == MOX_E_MEMORY || status == MOX_E_FULL);
        assert_true(err.msg[0] != 0);
        assert_int_equal(mox_alloc_live(), live);
    }
    assert_int_equal(mox_alloc_live(), live);
}

#endif
