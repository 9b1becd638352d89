/* tally.mjs -- names tests, runs them, ends in the line that tests/run reads. */

const tests = [];

/* Adds a test; `run` throws when it fails.  One that measures time runs alone. */
export const test = (name, run, alone = false) => tests.push({ name, run, alone });

/* Runs those whose name has `only` in it, `lanes` at a time. */
export async function finish(only = '', lanes = 1) {
    let passed = 0;
    let failed = 0;
    const take = async (queue) => {
        for (let next = queue.shift(); next; next = queue.shift()) {
            try {
                await next.run();
                passed++;
            } catch (error) {
                failed++;
                console.log(`FAIL ${next.name}\n${error.stack}`);
            }
        }
    };
    const wanted = tests.filter(({ name }) => name.includes(only));
    const queue = wanted.filter(({ alone }) => !alone);
    await Promise.all(Array.from({ length: lanes }, () => take(queue)));
    await take(wanted.filter(({ alone }) => alone));
    console.log(`${passed} passed, ${failed} failed, 0 skipped`);
    process.exitCode = failed || !passed ? 1 : 0;
}
