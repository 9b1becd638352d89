/* kit.mjs -- a browser, a server and pages for test_page.mjs.
 *
 * Packages come from the folder that $WEB_PACKAGES names, where run.py put them. */
import { match, deepStrictEqual as same } from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { isDeepStrictEqual } from 'node:util';

const packages = join(process.env.WEB_PACKAGES, 'node_modules');
const { chromium } = createRequire(import.meta.url)(join(packages, 'playwright-core'));
const here = fileURLToPath(new URL('.', import.meta.url));
const words = process.argv.slice(2);

export const options = {
    url: words[0] === '-' ? null : words[0],
    real: words.includes('--real'),
    only: words.includes('--only') ? words[words.indexOf('--only') + 1] : '',
};
export const packageFile = (name) => join(packages, name);

let browser = null;

class FakeServer {
    constructor(key) {
        this.key = key;
        this.port = 0;
    }

    /* The second time, at the address of the first. */
    async start() {
        const args = [
            join(here, 'fake_server.py'),
            '--port',
            String(this.port),
            ...(this.key ? ['--key', this.key] : []),
        ];
        this.process = spawn('python3', args, { stdio: ['ignore', 'pipe', 'inherit'] });
        this.url = await new Promise((resolve, reject) => {
            this.process.stdout.once('data', (data) => resolve(String(data).trim()));
            this.process.once('exit', () => reject(new Error('fake_server.py ended')));
        });
        this.port = Number(new URL(this.url).port);
    }

    stop() {
        return new Promise((resolve) => {
            if (this.process.exitCode !== null || this.process.signalCode !== null) return resolve(); /* it was stopped */
            this.process.once('exit', resolve);
            this.process.kill('SIGKILL');
        });
    }
}

export async function start() {
    browser = await chromium.launch({
        executablePath: process.env.WEB_CHROMIUM,
        args: process.getuid() === 0 ? ['--no-sandbox'] : [],
    });
}

export const close = () => browser.close();

/* Runs a test on a fresh page, with a server of its own unless there is a real one.  more: the
 * server's key, expected (errors in the console that belong to the test), script (runs before the
 * page's own), and options of the browser's context. */
export async function onPage(run, { key, expected, script, viewport = { width: 1200, height: 800 }, ...rest }) {
    const server = options.url ? null : new FakeServer(key);
    if (server) await server.start();
    const baseURL = options.url || server.url;
    const context = await browser.newContext({ baseURL, viewport, colorScheme: 'light', ...rest });
    context.setDefaultTimeout(10000);
    const wrong = [];
    const { host } = new URL(baseURL);
    context.on('request', (request) => {
        const url = new URL(request.url());
        if (!['data:', 'blob:'].includes(url.protocol) && url.host !== host) wrong.push(`asks ${request.url()}`);
    });
    context.on('console', (message) => {
        const known = expected && expected.test(message.text());
        if (['error', 'warning'].includes(message.type()) && !known) wrong.push(`logs ${message.text()}`);
    });
    context.on('weberror', (event) => wrong.push(`throws ${event.error().stack}`));
    if (script) await context.addInitScript(script);
    try {
        const page = await context.newPage();
        await page.goto('/');
        await page.waitForSelector('#send svg');
        await run(page, server);
        if (wrong.length) throw new Error(`the page ${wrong.join('\nand ')}`);
    } finally {
        await context.close();
        if (server) await server.stop();
    }
}

/* Waits until something is true. */
export async function waitFor(condition, ms = 8000) {
    for (const began = Date.now(); ;) {
        if (await condition()) return;
        if (Date.now() - began > ms) throw new Error(`not within ${ms} ms: ${condition}`);
        await new Promise((resolve) => setTimeout(resolve, 40));
    }
}

/* Waits until the page shows what is expected, a value or what a pattern finds; a failure says what it showed. */
export async function shows(read, expected, what) {
    const pattern = expected instanceof RegExp;
    const is = (shown) => (pattern ? expected.test(shown) : isDeepStrictEqual(shown, expected));
    const began = Date.now();
    let shown = await read();
    for (; !is(shown) && Date.now() - began < 8000; shown = await read())
        await new Promise((resolve) => setTimeout(resolve, 40));
    (pattern ? match : same)(shown, expected, what);
}

export const settled = (page, timeout = 10000) => page.waitForSelector('#send[aria-label="Send"]', { timeout });

/* Sends a message; waits for the answer unless told not to. */
export async function say(page, text, wait = true, timeout = 10000) {
    await page.fill('#prompt', text);
    await page.click('#send');
    if (!wait) return;
    await settled(page, timeout);
    await page.waitForFunction(() => !document.querySelector('.message.running'));
}
