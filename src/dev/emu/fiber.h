/* dev/emu/fiber.h -- functions that can be suspended, each on a stack of its own.
 *
 * Switching saves what a called function must preserve and nothing else: a few instructions
 * on x86-64, ucontext elsewhere.  Stacks are memory of the caller.  A suspended fiber may be
 * dropped and its stack used again; it owns nothing.
 *
 * Threads: a fiber stays on the thread that started it. */
#ifndef MOX_DEV_EMU_FIBER_H
#define MOX_DEV_EMU_FIBER_H

#include <stdbool.h>
#include <stddef.h>

#if !defined(__x86_64__) || defined(MOX_FIBER_UCONTEXT)
#include <ucontext.h>
#define MOX_FIBER_PORTABLE 1
#endif

#if defined(__SANITIZE_ADDRESS__)
#define MOX_FIBER_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MOX_FIBER_SANITIZED 1
#endif
#endif

typedef struct mox_fiber {
#ifdef MOX_FIBER_PORTABLE
    ucontext_t context;
#else
    void *sp; /* while suspended */
#endif
    void (*run)(void *user);
    void *user;
    struct mox_fiber *back; /* who resumed it */
    const void *stack;      /* for the sanitizer, of the fiber that runs */
    size_t stack_bytes;
    void *fake_stack;
} mox_fiber;

/* Prepares f to call run(user) on the stack.  run does not return: it ends with
 * mox_fiber_leave(f, true). */
void mox_fiber_init(mox_fiber *f, void *stack, size_t bytes, void (*run)(void *user), void *user);
/* Runs f until it leaves. */
void mox_fiber_enter(mox_fiber *self, mox_fiber *f);
/* Back to who entered f; the call returns when f is entered again, and never when last. */
void mox_fiber_leave(mox_fiber *f, bool last);
/* Before stacks become other memory: dropped fibers leave their frames' red zones behind. */
void mox_fiber_forget(void *stack, size_t bytes);

#endif
