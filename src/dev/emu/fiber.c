/* dev/emu/fiber.c -- see fiber.h.
 *
 * The address sanitizer has to be told of every change of stacks, before and after it. */
#include "dev/emu/fiber.h"

#include <stdint.h>
#include <string.h>

#ifdef MOX_FIBER_SANITIZED
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

static void before_switch(void **keep, const mox_fiber *to)
{
    __sanitizer_start_switch_fiber(keep, to->stack, to->stack_bytes);
}
/* from: who was left, when its stack is not known yet (the thread's own). */
static void after_switch(mox_fiber *self, mox_fiber *from)
{
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(self->fake_stack, &bottom, &bytes);
    if (from->stack) return;
    from->stack = bottom;
    from->stack_bytes = bytes;
}
void mox_fiber_forget(void *stack, size_t bytes) { __asan_unpoison_memory_region(stack, bytes); }
#else
static void before_switch(void **keep, const mox_fiber *to) { (void)keep, (void)to; }
static void after_switch(mox_fiber *self, mox_fiber *from) { (void)self, (void)from; }
void mox_fiber_forget(void *stack, size_t bytes) { (void)stack, (void)bytes; }
#endif

static void begin(mox_fiber *f)
{
    after_switch(f, f->back);
    f->run(f->user);
}

#ifdef MOX_FIBER_PORTABLE

/* makecontext hands over ints. */
static void begin_from_halves(unsigned high, unsigned low)
{
    begin((mox_fiber *)((uintptr_t)high << 32 | (uintptr_t)low));
}

static void prepare(mox_fiber *f, void *stack, size_t bytes)
{
    const uint64_t at = (uint64_t)(uintptr_t)f;
    (void)getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = bytes;
    f->context.uc_link = NULL;
    makecontext(&f->context, (void (*)(void))begin_from_halves, 2, (unsigned)(at >> 32), (unsigned)at);
}

static void jump(mox_fiber *from, mox_fiber *to) { (void)swapcontext(&from->context, &to->context); }

#else

/* void mox_fiber_jump(void **save_sp, void *sp): pushes what a callee preserves, changes
 * stacks, pops the same there.  A new stack holds zeros for them and `start` to return to;
 * its fiber waits in r12. */
__asm__(".text\n"
        ".globl mox_fiber_jump\n"
        ".hidden mox_fiber_jump\n"
        ".type mox_fiber_jump, @function\n"
        "mox_fiber_jump:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size mox_fiber_jump, . - mox_fiber_jump\n"
        ".globl mox_fiber_start\n"
        ".hidden mox_fiber_start\n"
        ".type mox_fiber_start, @function\n"
        "mox_fiber_start:\n"
        "    movq %r12, %rdi\n"
        "    callq *%r13\n"
        "    ud2\n"
        ".size mox_fiber_start, . - mox_fiber_start\n");
void mox_fiber_jump(void **save_sp, void *sp);
void mox_fiber_start(void);

static void prepare(mox_fiber *f, void *stack, size_t bytes)
{
    enum { R13 = 2, R12 = 3, RETURN = 6, WORDS = 9 }; /* as they are popped */
    uintptr_t *top = (uintptr_t *)(((uintptr_t)stack + bytes) & ~(uintptr_t)15) - WORDS;
    memset(top, 0, WORDS * sizeof *top);
    top[R13] = (uintptr_t)begin;
    top[R12] = (uintptr_t)f;
    top[RETURN] = (uintptr_t)mox_fiber_start; /* after seven words: at a multiple of 16, as a call wants it */
    f->sp = top;
}

static void jump(mox_fiber *from, mox_fiber *to) { mox_fiber_jump(&from->sp, to->sp); }

#endif

void mox_fiber_init(mox_fiber *f, void *stack, size_t bytes, void (*run)(void *user), void *user)
{
    mox_fiber_forget(stack, bytes);
    f->run = run;
    f->user = user;
    f->stack = stack;
    f->stack_bytes = bytes;
    f->fake_stack = NULL;
    prepare(f, stack, bytes);
}

void mox_fiber_enter(mox_fiber *self, mox_fiber *f)
{
    f->back = self;
    before_switch(&self->fake_stack, f);
    jump(self, f);
    after_switch(self, f);
}

void mox_fiber_leave(mox_fiber *f, bool last)
{
    before_switch(last ? NULL : &f->fake_stack, f->back);
    jump(f, f->back);
    after_switch(f, f->back);
}
