/* test_page.mjs URL|- [--real] [--only WORDS] -- the page in a browser.
 *
 * With "-" it talks to fake_server.py, which this starts; with a URL and --real, to a server with
 * a model, where only what no fixed answer is needed for is tested.  Every test has a fresh
 * browser profile, and fails when the page logs an error, throws, or asks any other host for
 * anything. */
import { deepStrictEqual as same, match, ok } from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { close, onPage, options, packageFile, say, settled, shows, start, waitFor } from './kit.mjs';
import { finish, test } from './tally.mjs';

const real = options.real;
const both = (name, run, more = {}) => test(name, () => onPage(run, more), more.alone);
const fake = (name, run, more) => real || both(name, run, more);

const answers = (page) => page.locator('.message.assistant .prose:not(.thoughts)').allInnerTexts();
const log = async (page) => (await page.request.get('/log')).json();
/* Lets a page do nothing, though it hears, until the function that comes back is called.  By its clock it is
 * then long ago that anything was stored. */
const blocked = async (page) => {
    const held = {};
    const until = new Promise((resolve) => (held.release = resolve));
    const asked = new Promise((resolve) => (held.asked = resolve));
    await page.route('**/held', async (route) => {
        held.asked();
        await until;
        await route.fulfill({ body: '' });
    });
    await page.evaluate(() =>
        setTimeout(() => {
            const { now } = Date;
            Date.now = () => now() + 60000;
            const request = new XMLHttpRequest();
            request.open('GET', '/held', false);
            request.send();
        }),
    );
    await asked;
    return held.release;
};
const QUESTION = 'What is the capital of France?';

/* ---- talking ---- */

both('a message is sent and answered', async (page) => {
    await say(page, QUESTION);
    await shows(() => page.locator('.said').allInnerTexts(), [QUESTION]);
    ok((await answers(page))[0].trim().length > 3, 'an answer');
    await shows(() => page.innerText('.stats'), /[\d.,]+ tokens\/s · first after [\d.]+ .*s · [\d,]+ tokens/);
    await shows(() => page.inputValue('#prompt'), '');
    await shows(() => page.title(), `${QUESTION} · moxie`);
});

fake('an answer grows while it comes, and is announced once', async (page) => {
    await say(page, 'slow', false);
    const lengths = new Set();
    await waitFor(async () => {
        lengths.add(((await answers(page))[0] || '').length);
        same(await page.locator('#announce').textContent(), '', 'nothing is announced yet');
        return lengths.size >= 4;
    });
    await shows(() => page.locator('#status').innerText(), /tokens\/s/);
    await page.keyboard.press('Escape');
    await settled(page);
    await shows(() => page.locator('#announce').textContent(), /^Stopped\. .*The river took its time/);
});

fake('stop keeps what was said and ends the work of the server', async (page) => {
    await say(page, 'slow', false);
    await waitFor(async () => ((await answers(page))[0] || '').length > 10);
    await page.click('#send');
    await settled(page);
    await shows(() => page.locator('.trouble').innerText(), /Stopped/);
    const text = (await answers(page))[0];
    ok(text.startsWith('The river') && text.length < 600, text);
    await waitFor(async () => (await log(page)).ended_early === 1);
});

both('stop, with the key', async (page) => {
    await say(page, real ? 'Tell me a story about a cow and a river.' : 'slow', false);
    if (!real) await page.waitForSelector('#send[aria-label="Stop"]'); /* a small model may be done before */
    await page.keyboard.press('Escape');
    await settled(page);
    same(await page.locator('.trouble.grave:visible').count(), 0);
});

both('answering again makes a second version', async (page) => {
    await say(page, QUESTION);
    await page.hover('.message.assistant');
    await page.click('.message.assistant [aria-label="Answer again"]');
    await settled(page);
    await shows(() => page.innerText('.branch-count'), '2/2');
    await page.click('[aria-label="Version before"]');
    await shows(() => page.innerText('.branch-count'), '1/2');
    await shows(() => page.locator('.message.assistant').count(), 1);
});

both('an edited message makes a branch', async (page) => {
    await say(page, 'First words');
    await say(page, 'Second words');
    const before = await answers(page);
    await page.hover('.message.user');
    await page.locator('.message.user [aria-label="Edit"]').first().click();
    await page.fill('[aria-label="Edit the message"]', 'Other words');
    await page.keyboard.press('Enter');
    await settled(page);
    await shows(() => page.locator('.said').allInnerTexts(), ['Other words']);
    if (!real) same((await log(page)).last.messages, [{ role: 'user', content: 'Other words' }]);
    await page.click('.message.user [aria-label="Version before"]');
    await shows(() => page.locator('.said').allInnerTexts(), ['First words', 'Second words']);
    await shows(() => answers(page), before);
    await page.reload();
    await page.waitForSelector('.said');
    await shows(() => page.locator('.said').allInnerTexts(), ['First words', 'Second words']);
});

fake('editing is given up with Escape, and begun with an arrow', async (page) => {
    await say(page, 'Some words');
    await page.focus('#prompt');
    await page.keyboard.press('ArrowUp');
    await page.keyboard.type('!');
    await shows(() => page.inputValue('[aria-label="Edit the message"]'), 'Some words!');
    await page.keyboard.press('Escape');
    await shows(() => page.locator('.said').allInnerTexts(), ['Some words']);
    same((await log(page)).last.messages.length, 1);
});

fake('thoughts are folded and counted', async (page) => {
    await say(page, 'think slow', false);
    await waitFor(async () => /^Thinking… [1-9]\d* s$/.test(await page.innerText('.thinking summary')));
    ok(!(await page.locator('.thoughts').isVisible()), 'folded');
    await page.click('.thinking summary');
    await waitFor(async () => (await page.innerText('.thoughts')).includes('The reader asks'));
    await page.keyboard.press('Escape');
    await settled(page);
    await shows(() => page.innerText('.thinking summary'), /^Thought for [\d.]+ s$/);
    await say(page, 'quick', false);
    await waitFor(async () => (await log(page)).requests === 2);
    same((await log(page)).last.messages.length, 1, 'thoughts without an answer are no message');
    await page.keyboard.press('Escape');
});

fake('calls of tools are shown and answered', async (page) => {
    await say(page, 'use two tools');
    await shows(() => page.locator('.call-name').allInnerTexts(), ['get_weather', 'get_time']);
    await shows(() => page.locator('.call pre').first().innerText(), /\{\n {2}"city": "Oslo",\n {2}"days": 2\n\}/);
    await page.fill('[aria-label="Result of get_weather"]', '{"sky": "clear"}');
    await page.keyboard.press('Enter');
    await shows(() => page.locator('form.asks').count(), 1);
    await page.fill('form.asks textarea', '{"time": "noon"}');
    await page.click('form.asks button');
    await settled(page);
    await shows(async () => (await answers(page))[1], 'The tool said {"time": "noon"}');
    const { messages } = (await log(page)).last;
    same(
        messages.slice(1).map(({ role, tool_call_id: id }) => [role, id]),
        [
            ['assistant', undefined],
            ['tool', 'call_1'],
            ['tool', 'call_2'],
        ],
    );
    same(messages[1].tool_calls[0].function, { name: 'get_weather', arguments: '{"city": "Oslo", "days": 2}' });
    const result = page.locator('.call.result').first();
    await shows(() => result.innerText(), /Result of get_weather\s+\{\s+"sky": "clear"/);
});

if (real) {
    both('a model calls a tool and reads its result', async (page) => {
        const parameters = {
            type: 'object',
            properties: { city: { type: 'string', description: 'The name of the city' } },
            required: ['city'],
        };
        const tools = [
            {
                type: 'function',
                function: { name: 'get_weather', description: 'Get the current weather of a city.', parameters },
            },
        ];
        await page.click('#show-settings');
        await page.fill('#settings [name=temperature]', '0');
        await page.click('#settings summary');
        await page.fill('[name=tools]', JSON.stringify(tools));
        await page.click('#settings [type=submit]');
        await say(page, 'What is the weather in Paris?');
        same(JSON.parse(await page.innerText('.call pre')), { city: 'Paris' });
        await page.fill('form.asks textarea', '{"city": "Paris", "sky": "sunny", "celsius": 21}');
        await page.click('form.asks button');
        await settled(page);
        await shows(async () => (await answers(page)).pop(), /Paris[^]*21|21[^]*Paris/);
    });
}

fake('the progress of a long prompt', async (page) => {
    await say(page, 'read this', false);
    await waitFor(
        async () =>
            (await page.locator('progress').count()) === 1 &&
            (await page.locator('progress').evaluate((bar) => bar.value > 1000 && bar.max === 8192)),
    );
    await shows(() => page.innerText('.wait-label'), /^Reading [\d,]+ of 8,192 tokens/);
    await settled(page);
    await waitFor(async () => !(await page.locator('progress').isVisible()));
});

both('the line of the server', async (page) => {
    await say(page, QUESTION);
    await shows(() => page.innerText('#status'), /\d+ \/ [\d,]+/);
    await shows(() => page.innerText('#status'), /[\d.]+ [KMG]B/);
    if (!real) await shows(() => page.innerText('#status'), /experts 88%/);
});

fake('settings go with the request, and stay', async (page) => {
    await page.click('#show-settings');
    await shows(() => page.getAttribute('[name=temperature]', 'placeholder'), '0.7');
    const values = {
        system: 'Be brief.',
        temperature: '0.3',
        top_p: '0.9',
        top_k: '40',
        min_p: '0.05',
        max_tokens: '1',
        seed: '7',
    };
    for (const [name, value] of Object.entries(values)) await page.fill(`#settings [name=${name}]`, value);
    await page.selectOption('[name=thinking]', 'off');
    await page.click('#settings summary');
    await page.fill('[name=tools]', '{"a": 1}');
    await page.click('#settings [type=submit]');
    await shows(() => page.innerText('.form-error'), /JSON list/);
    await page.fill('[name=tools]', '[{"type": "function", "function": {"name": "f"}}]');
    await page.click('#settings [type=submit]');
    await page.reload();
    await say(page, 'hello');
    const { last } = await log(page);
    const { temperature, top_p: topP, top_k: topK, min_p: minP, max_tokens: maxTokens, seed } = last;
    same([temperature, topP, topK, minP, maxTokens, seed], [0.3, 0.9, 40, 0.05, 1, 7]);
    same(last.chat_template_kwargs, { enable_thinking: false });
    same(last.messages[0], { role: 'system', content: 'Be brief.' });
    same(last.tools[0].function.name, 'f');
    await shows(() => page.innerText('.trouble'), /limit of tokens/);
    await page.click('#show-settings');
    await page.click('#settings-defaults');
    await page.click('#settings [type=submit]');
    await say(page, 'hello');
    const bare = (await log(page)).last;
    for (const name of ['temperature', 'top_p', 'seed', 'max_tokens', 'tools', 'chat_template_kwargs'])
        ok(!(name in bare), name);
});

/* ---- conversations ---- */

both('a conversation is there after a reload, and found', async (page) => {
    await say(page, 'A question about pelicans');
    const [first] = await answers(page);
    await page.reload();
    await page.waitForSelector('.said');
    await shows(() => answers(page), [first]);
    await page.goto('/');
    await shows(() => page.locator('.message').count(), 0);
    await say(page, 'Something else');
    await page.fill('#search', 'pelicans');
    await waitFor(async () => (await page.locator('#conversations .open').count()) === 1);
    await page.click('#conversations .open');
    await shows(() => page.locator('.said').allInnerTexts(), ['A question about pelicans']);
    await page.fill('#search', 'no such words');
    await page.waitForSelector('text=Nothing found');
});

both('rename, delete, undo', async (page) => {
    await say(page, 'One');
    await page.hover('#conversations li');
    await page.click('[aria-label="Rename One"]');
    await page.fill('[name=title]', 'A better name');
    await page.keyboard.press('Enter');
    await waitFor(async () => (await page.innerText('#title')) === 'A better name');
    await page.hover('#conversations li');
    await page.click('[aria-label="Delete A better name"]');
    await waitFor(async () => (await page.locator('#conversations li').count()) === 0);
    await shows(() => page.locator('.message').count(), 0);
    await page.click('.toast button');
    await page.waitForSelector('.said');
    await page.reload();
    await page.waitForSelector('.said');
});

both('export and import', async (page) => {
    await say(page, 'Remember this');
    const [download] = await Promise.all([page.waitForEvent('download'), page.click('#export')]);
    const file = await download.path();
    const kept = JSON.parse(await readFile(file, 'utf8'));
    same(kept.conversations.length, 1);
    await page.setInputFiles('#import-file', file);
    await page.waitForSelector('text=0 imported, 1 already here');
    await page.hover('#conversations li');
    await page.click('[aria-label="Delete Remember this"]');
    await waitFor(async () => (await page.locator('#conversations li').count()) === 0);
    await page.setInputFiles('#import-file', file);
    await page.click('#conversations .open');
    await shows(() => page.locator('.said').allInnerTexts(), ['Remember this']);
    for (const [text, why] of [
        ['{', 'not JSON'],
        ['null', 'not exported here'],
        ['{"format":"moxie-conversations","conversations":[{"nodes":{}}]}', 'no messages'],
    ]) {
        await page.setInputFiles('#import-file', {
            name: 'bad.json',
            mimeType: 'application/json',
            buffer: Buffer.from(text),
        });
        await page.locator('.toast', { hasText: why }).waitFor();
    }
});

fake('an answer goes on while another conversation is shown', async (page) => {
    await say(page, 'slow', false);
    await waitFor(async () => ((await answers(page))[0] || '').length > 5);
    await page.click('#new-chat');
    await page.waitForSelector('#conversations li.busy');
    await say(page, 'Meanwhile');
    await shows(() => answers(page), ['You said: Meanwhile']);
    await page.click('#conversations .open >> text=slow');
    const [early] = await answers(page);
    await waitFor(async () => (await answers(page))[0].length > early.length);
    await page.click('#send');
    await settled(page);
});

fake('a conversation that is deleted while it runs stays deleted', async (page) => {
    await say(page, 'slow', false);
    await page.waitForTimeout(2500); /* until it would be stored again */
    await page.hover('#conversations li');
    await page.click('[aria-label="Delete slow"]');
    await waitFor(async () => (await page.locator('#conversations li').count()) === 0);
    await page.waitForTimeout(500);
    await page.reload();
    await page.waitForSelector('text=Conversations stay in this browser.');
});

fake(
    'an answer whose server is gone is stored before that is looked for, and deleted for good',
    async (page, server) => {
        await say(page, 'slow', false);
        await waitFor(async () => ((await answers(page))[0] || '').length > 5);
        const held = {};
        const until = new Promise((resolve) => (held.release = resolve));
        const asked = new Promise((resolve) => (held.asked = resolve));
        await page.route('**/health', async (route) => {
            held.asked();
            await until;
            await route.abort();
        });
        const other = await page.context().newPage();
        await other.goto(page.url());
        await other.waitForSelector('.said');
        await page.evaluate(() => {
            const now = Date.now();
            Date.now = () => now; /* so that nothing is stored because it grew */
            AbortSignal.timeout = () => new AbortController().signal;
        });
        await server.stop();
        await asked;
        try {
            await shows(() => other.innerText('.trouble'), /before the answer was complete/);
            await page.hover('#conversations li');
            await page.click('[aria-label="Delete slow"]');
            await page.waitForSelector('text=Conversations stay in this browser.');
        } finally {
            held.release();
            await server.start(); /* whoever ends this test waits for its end */
        }
        await page.locator('#banner', { hasText: 'does not answer' }).waitFor();
        await page.unroute('**/health');
        await page.locator('#banner').waitFor({ state: 'hidden' });
        await page.reload();
        await page.waitForSelector('text=Conversations stay in this browser.');
    },
    { expected: /ERR_/ },
);

fake('two tabs see each other', async (page) => {
    const other = await page.context().newPage();
    await other.goto('/');
    await say(page, 'From the first tab');
    await other.click('#conversations .open');
    await shows(() => other.locator('.said').allInnerTexts(), ['From the first tab']);
    await say(other, 'From the second');
    await waitFor(async () => (await page.locator('.said').count()) === 2);
});

fake('what two tabs add to one conversation stays', async (page) => {
    await say(page, 'Together');
    const other = await page.context().newPage();
    await other.goto(page.url());
    await other.waitForSelector('.said');
    await say(page, 'slow', false);
    await waitFor(async () => (await other.locator('.said').count()) === 2); /* and the answer goes on */
    await other.hover('.message.user');
    await other.locator('.message.user [aria-label="Edit"]').first().click();
    await other.fill('[aria-label="Edit the message"]', 'Apart');
    await other.keyboard.press('Enter');
    await settled(other);
    await waitFor(async () => (await page.locator('.branch-count').count()) === 1);
    await page.keyboard.press('Escape');
    await settled(page);
    await shows(() => page.locator('.said').allInnerTexts(), ['Together', 'slow']);
    await page.reload();
    await page.click('[aria-label="Version after"]');
    await shows(() => answers(page), ['You said: Apart']);
    await page.click('[aria-label="Version before"]');
    await shows(() => page.locator('.said').allInnerTexts(), ['Together', 'slow']);
});

fake('an answer that grows in another tab is drawn whole, and does not move the reader', async (page) => {
    await say(page, 'code');
    await say(page, 'code');
    const other = await page.context().newPage();
    await other.setViewportSize({ width: 1200, height: 400 });
    await other.goto(page.url());
    await other.waitForSelector('.code');
    await say(page, 'slow', false);
    await other.locator('.said', { hasText: 'slow' }).waitFor();
    await other.hover('#thread');
    await other.mouse.wheel(0, -9000);
    await shows(() => other.evaluate(() => document.querySelector('#scroller').scrollTop), 0);
    const grown = async () => (await answers(other))[2] || '';
    await waitFor(async () => (await grown()).length > 100);
    same(await other.locator('.message.assistant').last().locator('.prose:not(.thoughts) > p').count(), 1);
    same(await other.evaluate(() => document.querySelector('#scroller').scrollTop), 0);
    await page.keyboard.press('Escape');
    await settled(page);
});

fake('what another tab deletes is gone here, too', async (page) => {
    await say(page, 'slow', false);
    await waitFor(async () => ((await answers(page))[0] || '').length > 5);
    const other = await page.context().newPage();
    await other.goto('/');
    await other.hover('#conversations li');
    await other.click('[aria-label="Delete slow"]');
    await waitFor(async () => (await log(page)).ended_early === 1);
    await shows(() => page.locator('.message').count(), 0);
    await page.reload();
    await page.waitForSelector('text=Conversations stay in this browser.');
});

fake('what another tab deletes is gone, though this one hears of it late', async (page) => {
    await say(page, 'slow', false);
    await waitFor(async () => ((await answers(page))[0] || '').length > 5);
    const other = await page.context().newPage();
    await other.goto('/');
    await other.hover('#conversations li');
    const release = await blocked(page);
    await other.click('[aria-label="Delete slow"]');
    await other.waitForSelector('.toast');
    release();
    await waitFor(async () => (await log(other)).ended_early === 1);
    await shows(() => page.locator('.message').count(), 0);
    await page.reload();
    await page.waitForSelector('text=Conversations stay in this browser.');
    await other.click('.toast button');
    await page.click('#conversations .open >> text=slow');
    await page.waitForSelector('.said');
});

fake('a name and a system prompt from another tab stay, though this one hears of them late', async (page) => {
    await say(page, 'slow', false);
    await waitFor(async () => ((await answers(page))[0] || '').length > 5);
    const other = await page.context().newPage();
    await other.goto(page.url());
    await other.waitForSelector('.said');
    const release = await blocked(page);
    await other.click('#show-settings');
    await other.fill('#settings [name=system]', 'Be brief.');
    await other.click('#settings [type=submit]');
    await other.hover('#conversations li');
    await other.click('[aria-label="Rename slow"]');
    await other.fill('[name=title]', 'A river');
    await other.keyboard.press('Enter');
    await other.waitForSelector('#conversations .open >> text=A river');
    const [early] = await answers(other);
    release();
    await waitFor(async () => (await answers(other))[0].length > early.length);
    await page.keyboard.press('Escape');
    await settled(page);
    await shows(() => page.innerText('#title'), 'A river');
    await other.click('#new-chat');
    await other.click('#conversations .open >> text=A river');
    await other.click('#show-settings');
    await shows(() => other.inputValue('#settings [name=system]'), 'Be brief.');
});

fake('an answer is kept as far as it was when its page closed', async (page) => {
    await say(page, 'slow', false);
    await waitFor(async () => ((await answers(page))[0] || '').length > 120);
    const [said] = await answers(page);
    await page.reload();
    await shows(() => page.innerText('.trouble'), 'Stopped');
    const [kept] = await answers(page);
    ok(kept.startsWith(said), `${kept.length} signs of ${said.length}`);
});

fake('an answer that another tab writes is not said to be stopped', async (page) => {
    await say(page, 'slow', false);
    await waitFor(async () => ((await answers(page))[0] || '').length > 20);
    const other = await page.context().newPage();
    await other.goto(page.url());
    await shows(() => other.innerText('.trouble'), 'Not finished, or still being written in another tab');
    await page.click('#send');
    await shows(() => other.innerText('.trouble'), 'Stopped');
});

fake('a result that is being written stays when another tab goes another way', async (page) => {
    await say(page, 'use two tools');
    await page.fill('[aria-label="Result of get_time"]', 'noon');
    const other = await page.context().newPage();
    await other.goto(page.url());
    await other.waitForSelector('.said');
    await other.hover('.message.user');
    await other.locator('.message.user [aria-label="Edit"]').first().click();
    await other.fill('[aria-label="Edit the message"]', 'Apart');
    await other.keyboard.press('Enter');
    await settled(other);
    await shows(() => page.innerText('.branch-count'), /\/2$/);
    same(await page.inputValue('[aria-label="Result of get_time"]'), 'noon');
});

fake('a page that closes takes nothing from what another tab added', async (page) => {
    await say(page, 'slow', false);
    await waitFor(async () => ((await answers(page))[0] || '').length > 20);
    const other = await page.context().newPage();
    await other.goto(page.url());
    await other.waitForSelector('.said');
    await other.hover('.message.user');
    const release = await blocked(page);
    const going = page.reload({ waitUntil: 'commit' });
    await other.locator('.message.user [aria-label="Edit"]').first().click();
    await other.fill('[aria-label="Edit the message"]', 'Apart');
    await other.keyboard.press('Enter');
    await settled(other);
    await shows(() => answers(other), ['You said: Apart']);
    await other.close();
    release();
    await going;
    await shows(() => page.innerText('.branch-count'), /\/2$/);
    const version = await page.innerText('.said'); /* the one shown is that of the tab which stored it last */
    await page.click('.branches button:enabled');
    await shows(async () => [version, await page.innerText('.said')].sort(), ['Apart', 'slow']);
});

fake('a page that closes does not bring back what another tab deleted', async (page) => {
    await say(page, 'slow', false);
    await waitFor(async () => ((await answers(page))[0] || '').length > 20);
    const other = await page.context().newPage();
    await other.goto('/');
    await other.hover('#conversations li');
    const release = await blocked(page);
    const going = page.reload();
    await other.click('[aria-label="Delete slow"]');
    await other.waitForSelector('.toast');
    release();
    await going;
    await page.waitForSelector('text=Conversations stay in this browser.');
    same(await page.evaluate(() => Object.keys(localStorage).filter((key) => key.includes('last'))), []);
});

fake('what a closing page had heard last is seen in another tab', async (page) => {
    await say(page, 'slow', false);
    await waitFor(async () => ((await answers(page))[0] || '').length > 20);
    const other = await page.context().newPage();
    await other.goto(page.url());
    await other.waitForSelector('.said');
    await waitFor(async () => ((await answers(page))[0] || '').length > 160);
    const [said] = await answers(page);
    await page.close();
    await waitFor(async () => ((await answers(other))[0] || '').startsWith(said));
    await shows(() => other.innerText('.trouble'), 'Stopped');
});

fake('a conversation gets its name while its answer comes, out of sight', async (page) => {
    await say(page, 'slow', false);
    await page.click('#new-chat');
    await page.hover('#conversations li');
    await page.click('[aria-label="Rename slow"]');
    await page.fill('[name=title]', 'A river');
    await page.keyboard.press('Enter');
    await page.click('#conversations .open >> text=A river');
    await page.click('#send');
    await settled(page);
    await page.reload();
    await shows(() => page.innerText('#title'), 'A river');
    await shows(() => page.locator('#conversations .open').allInnerTexts(), ['A river']);
});

/* ---- trouble ---- */

fake(
    'a browser that keeps nothing',
    async (page) => {
        await page.fill('#key-dialog input', 'secret');
        await page.keyboard.press('Enter');
        await page.locator('.toast', { hasText: 'keeps nothing' }).waitFor();
        await waitFor(async () => (await page.innerText('#model')) !== '');
        await say(page, 'hello');
        await shows(() => answers(page), ['You said: hello']);
        await page.click('#new-chat');
        await say(page, 'again');
        await page.click('#conversations .open >> text=hello');
        await shows(() => answers(page), ['You said: hello']);
    },
    {
        key: 'secret',
        expected: /401/,
        script: () => {
            const get = () => {
                throw new DOMException('denied', 'SecurityError');
            };
            for (const name of ['localStorage', 'sessionStorage', 'indexedDB', 'BroadcastChannel'])
                Object.defineProperty(window, name, { get });
        },
    },
);

fake('a browser that has no room', async (page) => {
    const session = await page.context().newCDPSession(page);
    const { origin } = new URL(page.url());
    await session.send('Storage.overrideQuotaForOrigin', { origin, quotaSize: 1 });
    await say(page, 'long', true, 30000);
    await say(page, 'hello');
    await shows(async () => (await answers(page))[1], 'You said: hello');
    const said = 'This conversation could not be stored: The browser has no room for it.';
    await shows(() => page.locator('.toast').allInnerTexts(), [said], 'said once');
});

fake('a stored conversation that is broken', async (page) => {
    await say(page, 'whole');
    await page.evaluate(
        () =>
            new Promise((resolve) => {
                indexedDB.open('moxie', 1).onsuccess = ({ target: { result: db } }) => {
                    const change = db.transaction(['heads', 'bodies'], 'readwrite');
                    change.objectStore('heads').put({ id: 'brokenone', title: 'broken', updated: Date.now() });
                    change.objectStore('bodies').put({ id: 'brokenone', nodes: { root: { chosen: 'x' } } });
                    change.oncomplete = resolve;
                };
            }),
    );
    await page.goto('/#brokenone');
    await page.reload();
    await page.locator('.toast', { hasText: 'cannot be shown' }).waitFor();
    await waitFor(async () => (await page.innerText('#model')) !== '');
    await page.click('#conversations .open >> text=whole');
    await shows(() => answers(page), ['You said: whole']);
});

fake(
    'a key that an answer out of sight asks for',
    async (page) => {
        await say(page, 'One');
        let refuse = true;
        await page.route('**/v1/chat/completions', async (route) => {
            if (!refuse) return route.continue();
            await page.click('#new-chat');
            return route.fulfill({ status: 401, json: { error: { message: 'no' } } });
        });
        await say(page, 'Two', false);
        await page.waitForSelector('#key-dialog[open]');
        refuse = false;
        await page.fill('#key-dialog input', 'secret');
        await page.keyboard.press('Enter');
        await waitFor(async () => (await log(page)).requests === 2);
        await shows(() => page.locator('.message').count(), 0);
        await page.click('#conversations .open >> text=One');
        await settled(page);
        await shows(async () => (await answers(page))[1], 'You said: Two');
    },
    { expected: /401/ },
);

fake(
    'a busy server is asked again',
    async (page) => {
        await say(page, 'busy', false);
        await waitFor(
            async () =>
                (await page.locator('.wait').count()) &&
                /busy\. Trying again in [12] s/.test(await page.innerText('.wait')),
        );
        await settled(page);
        await shows(() => answers(page), ['You said: busy']);
    },
    { expected: /429/ },
);

fake(
    'a conversation that does not fit',
    async (page) => {
        await say(page, 'full');
        const trouble = /too long\. It has 40,960 tokens and the model can take 32,768/;
        await shows(() => page.innerText('.trouble'), trouble);
    },
    { expected: /400/ },
);

fake('an error inside of an answer', async (page) => {
    await say(page, 'slow and it fails');
    await shows(() => page.innerText('.trouble'), /The disk could not be read/);
    await shows(async () => (await answers(page))[0], /^The river took/);
    await page.locator('.trouble button').waitFor();
});

fake(
    'a connection that breaks',
    async (page) => {
        await say(page, 'slow and broken');
        await shows(() => page.innerText('.trouble'), /before the answer was complete/);
        await shows(async () => (await answers(page))[0], /^The river took/);
    },
    { expected: /ERR_|net::/ },
);

fake(
    'a server that is gone and comes back',
    async (page, own) => {
        await say(page, 'hello');
        await own.stop();
        await say(page, 'are you there');
        await shows(() => page.locator('.trouble').last().innerText(), /does not answer/);
        await page.locator('#banner', { hasText: 'does not answer' }).waitFor();
        await own.start();
        await waitFor(async () => !(await page.locator('#banner').isVisible()), 20000);
        await page.click('.trouble button');
        await settled(page);
        await shows(async () => (await answers(page)).pop(), 'You said: are you there');
    },
    { expected: /ERR_CONNECTION/ },
);

fake(
    'a server that wants a key',
    async (page) => {
        await page.fill('#key-dialog input', 'wrong');
        await Promise.all([
            page.waitForResponse((response) => response.status() === 401),
            page.keyboard.press('Enter'),
        ]);
        await page.locator('#key-dialog .form-error').waitFor();
        await page.fill('#key-dialog input', 'secret');
        await page.keyboard.press('Enter');
        await waitFor(async () => (await page.innerText('#model')) !== '');
        await say(page, 'hello');
        await shows(() => answers(page), ['You said: hello']);
        same(await page.evaluate(() => [sessionStorage.length, JSON.stringify(localStorage).includes('secret')]), [
            1,
            false,
        ]);
    },
    { key: 'secret', expected: /401/ },
);

/* ---- what models write ---- */

fake('markdown becomes elements', async (page) => {
    await say(page, 'markdown');
    const prose = page.locator('.prose:not(.thoughts)');
    for (const [selector, n] of [
        ['h3', 1],
        ['em', 1],
        ['strong', 1],
        ['del', 1],
        ['ol > li', 2],
        ['ol ul ul li', 1],
        ['blockquote', 1],
        ['hr', 1],
        ['input[type=checkbox]:checked', 1],
        ['a[rel~=noopener][target=_blank][href="https://example.org/a?b=c"]', 1],
    ]) {
        await shows(() => prose.locator(selector).count(), n, selector);
    }
    await say(page, 'table');
    await shows(() => page.locator('td.to-right').allInnerTexts(), ['0.39 au', '0.72 au', '1.00 au']);
});

fake('code has its language and is copied', async (page) => {
    await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
    await say(page, 'code');
    await shows(() => page.innerText('.code-language'), 'python');
    await page.click('.copy');
    await page.waitForSelector('text=Copied');
    match(
        await page.evaluate(() => navigator.clipboard.readText()),
        /^def primes\(limit\):\n {4}sieve = [^]*if sieve\[n\]\]$/,
    );
});

fake('a button that copies is itself again', async (page) => {
    await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
    await say(page, 'code');
    const look = () => page.locator('.copy').evaluate((button) => [button.textContent, button.innerHTML]);
    const before = await look();
    await page.click('.copy');
    await shows(async () => (await look())[0], 'Copied');
    await shows(() => page.locator('#announce').textContent(), 'Copied');
    await page.click('.copy');
    await page.waitForSelector('.copy:not(.done)');
    await page.waitForTimeout(1600); /* until a second change back would have come */
    same(await look(), before);
});

fake(
    'copying where the page is not trusted keeps the focus',
    async (page) => {
        await say(page, 'code');
        await page.focus('.copy');
        await page.keyboard.press('Enter');
        await page.waitForSelector('text=Copied');
        same(await page.evaluate(() => document.activeElement.className), 'copy done');
    },
    { script: () => Object.defineProperty(window, 'isSecureContext', { value: false }) },
);

/* Has the server answer with a text and a call of a tool. */
const answerWith = (page, content, tool) =>
    page.route('**/v1/chat/completions', (route) => {
        const calls = [{ index: 0, id: 'c', function: { name: tool, arguments: '{}' } }];
        const choices = [{ index: 0, delta: { content, tool_calls: calls }, finish_reason: 'tool_calls' }];
        const body = `data: ${JSON.stringify({ choices })}\n\ndata: [DONE]\n\n`;
        return route.fulfill({ contentType: 'text/event-stream', body });
    });

fake('text runs the way its language does, and code from the left', async (page) => {
    await answerWith(page, '# שלום עולם!\n\n1. פריט\n\n> ציטוט.\n\n```\nx = 1\n```\n\nEnglish.', 'f');
    await say(page, 'שלום!');
    const directions = await page.evaluate(() =>
        ['#title', '.said', '.prose h3', '.prose ol', '.prose blockquote', '.code', '.prose > p'].map(
            (selector) => getComputedStyle(document.querySelector(selector)).direction,
        ),
    );
    same(directions, ['rtl', 'rtl', 'rtl', 'rtl', 'rtl', 'ltr', 'ltr']);
});

fake('words that are too long stay in their place', async (page) => {
    const word = 'Donaudampfschiff'.repeat(12);
    const table = `| A ${word} | B |\n|---|---|\n| ${word} | ${word} |`;
    await answerWith(page, `\`\`\`${word}\nx = 1\n\`\`\`\n\n${table}\n\n- [ ] outer\n  - [x] inner\n`, word);
    await say(page, 'hello');
    const { cell, next, name, card, button, outer, inner } = await page.evaluate(() => {
        /* Of what is written in an element, not of its box. */
        const written = (selector) => {
            const range = document.createRange();
            range.selectNodeContents(document.querySelector(selector));
            return range.getBoundingClientRect().toJSON();
        };
        const box = (selector) => document.querySelector(selector).getBoundingClientRect().toJSON();
        return {
            cell: written('td:nth-child(1)'),
            next: written('td:nth-child(2)'),
            name: written('.call-name'),
            card: box('.call'),
            button: box('.code .copy'),
            outer: box('.task > input'),
            inner: box('.task .task > input'),
        };
    });
    const kept = {
        cell: cell.right <= next.left,
        name: name.right <= card.right,
        button: button.height < 40,
        task: inner.left >= outer.right,
    };
    same(kept, { cell: true, name: true, button: true, task: true });
});

fake('nothing that a model writes runs or loads', async (page) => {
    await say(page, 'attack');
    await page.waitForTimeout(300);
    same(await page.evaluate(() => window.hacked), undefined);
    same(await page.locator('#thread :is(script, img, iframe, style, object, embed, base, link, meta)').count(), 0);
    const inside = await page.evaluate(() =>
        [...document.querySelectorAll('#thread *')].flatMap((element) =>
            [...element.attributes].map((attribute) => [attribute.name, attribute.value]),
        ),
    );
    same(
        inside.filter(([name]) => name.startsWith('on') || name === 'style' || name === 'srcdoc'),
        [],
    );
    same(
        inside.filter(
            ([name, value]) => ['href', 'src', 'xlink:href'].includes(name) && !/^(https?|mailto):/.test(value),
        ),
        [],
    );
    await shows(async () => (await answers(page))[0], /<script>window\.hacked = 1<\/script>/);
});

both(
    'the policy is strict and in force',
    async (page) => {
        const policy = (await page.request.get('/')).headers()['content-security-policy'];
        for (const part of [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]) {
            ok(policy.includes(part), part);
        }
        ok(!/unsafe|https?:|\*/.test(policy), policy);
        same(
            await page.evaluate(() => {
                try {
                    document.body.insertAdjacentHTML('beforeend', '<b>x</b>');
                    return 'markup from a string was taken';
                } catch (error) {
                    return error.name;
                }
            }),
            'TypeError',
        );
    },
    { expected: /TrustedHTML|Trusted Type/ },
);

/* Beats every 20 ms; the longest pause between two is how long the page was deaf. */
const heartbeat = (page) =>
    page.evaluate(() => {
        window.deaf = 0;
        let last = performance.now();
        setInterval(() => {
            const now = performance.now();
            window.deaf = Math.max(window.deaf, now - last);
            last = now;
        }, 20);
    });

fake(
    'ten thousand tokens leave the page quick',
    async (page) => {
        await heartbeat(page);
        await say(page, 'long', false);
        await page.waitForSelector('.prose:not(.thoughts) > p:nth-of-type(2)');
        await page.evaluate(() => {
            document.querySelector('.prose:not(.thoughts) > p').mark = 'the same element';
        });
        await page.focus('#prompt');
        await page.keyboard.type('typed meanwhile');
        await settled(page, 30000);
        await shows(() => page.inputValue('#prompt'), 'typed meanwhile');
        same(
            await page.evaluate(() => document.querySelector('.prose:not(.thoughts) > p').mark),
            'the same element',
        );
        const n = Number((await page.innerText('.stats')).match(/([\d,]+) tokens$/)[1].replace(/,/g, ''));
        ok(n >= 10000, `${n} tokens`);
        const deaf = await page.evaluate(() => window.deaf);
        console.log(`    longest pause ${Math.round(deaf)} ms`);
        ok(deaf < 3000, `deaf for ${Math.round(deaf)} ms`);
    },
    { alone: true },
);

fake(
    'a huge table',
    async (page) => {
        await heartbeat(page);
        await say(page, 'huge', true, 30000);
        await shows(() => page.locator('td').count(), 8000);
        const deaf = await page.evaluate(() => window.deaf);
        console.log(`    longest pause ${Math.round(deaf)} ms`);
        ok(deaf < 3000, `deaf for ${Math.round(deaf)} ms`);
        ok(
            await page.evaluate(
                () =>
                    document.querySelector('#thread').scrollWidth <= document.querySelector('#thread').clientWidth,
            ),
            'it scrolls inside of itself',
        );
    },
    { alone: true },
);

/* ---- hands and eyes ---- */

fake('the reader may scroll away', async (page) => {
    await say(page, 'markdown');
    await say(page, 'code');
    await say(page, 'slow', false);
    await waitFor(async () => ((await answers(page))[2] || '').length > 10);
    const place = () => page.evaluate(() => document.querySelector('#scroller').scrollTop);
    const toEnd = () =>
        page.evaluate(() => {
            const { scrollHeight, scrollTop, clientHeight } = document.querySelector('#scroller');
            return scrollHeight - scrollTop - clientHeight;
        });
    await waitFor(async () => (await toEnd()) < 4);
    const before = await place();
    await page.mouse.move(700, 300);
    await page.mouse.wheel(0, -150);
    await waitFor(async () => (await place()) < before);
    await page.waitForTimeout(250);
    const away = await place();
    await page.waitForTimeout(500);
    same(await place(), away, 'it does not pull the reader back');
    await page.click('#jump');
    await waitFor(async () => (await toEnd()) < 4);
    await waitFor(async () => !(await page.locator('#jump').isVisible()));
    await page.keyboard.press('Escape');
    await settled(page);
});

both('the keyboard is enough', async (page) => {
    same(
        await page.evaluate(() => document.querySelector('a, button, input, textarea, [tabindex]').className),
        'skip',
    );
    await page.focus('.skip');
    await page.keyboard.press('Enter');
    await page.keyboard.type('line one');
    await page.keyboard.press('Shift+Enter');
    await page.keyboard.type('line two');
    await shows(() => page.inputValue('#prompt'), 'line one\nline two');
    await page.keyboard.press('Enter');
    await settled(page);
    await shows(() => page.locator('.said').allInnerTexts(), ['line one\nline two']);
    await page.keyboard.press('Control+/');
    await page.waitForSelector('#keys[open]');
    await page.keyboard.press('Escape');
    await page.waitForSelector('#keys[open]', { state: 'detached' });
    await page.keyboard.press('Control+Alt+n');
    await shows(() => page.locator('.message').count(), 0);
    await shows(() => page.evaluate(() => document.activeElement.id), 'prompt');
});

fake('the focus stays where the hands are', async (page) => {
    const found = {};
    const note = async (after) => {
        await page.waitForTimeout(100); /* for a list that is drawn anew */
        found[after] = await page.evaluate(() => {
            const { id, ariaLabel, textContent, tagName } = document.activeElement;
            return tagName === 'BODY' ? null : id || ariaLabel || textContent;
        });
    };
    const press = async (selector) => {
        await page.focus(selector);
        await page.keyboard.press('Enter');
    };
    await say(page, 'One');
    await press('[aria-label="Answer again"]');
    await settled(page);
    await note('another answer');
    await press('[aria-label="Edit"]');
    await page.keyboard.type('!');
    await page.keyboard.press('Enter');
    await settled(page);
    await note('an edit');
    await say(page, 'slow', false);
    await press('#send');
    await settled(page);
    await note('a stop');
    await say(page, 'code');
    await say(page, 'code');
    await page.hover('#thread');
    await page.mouse.wheel(0, -900);
    await page.waitForSelector('#jump:visible');
    await press('#jump');
    await note('a jump');
    await page.keyboard.press('Control+Alt+n');
    await say(page, 'Two');
    await page.focus('#conversations .open >> text=One');
    await press('[aria-label="Rename One"]');
    await page.keyboard.type('Three');
    await page.keyboard.press('Enter');
    await page.waitForSelector('[aria-label="Rename Three"]', { state: 'attached' });
    await note('a new name');
    await page.focus('#conversations .open >> text=Three');
    await press('[aria-label="Delete Three"]');
    await page.waitForSelector('.toast');
    await note('one was deleted');
    same(found, {
        'another answer': 'prompt',
        'an edit': 'prompt',
        'a stop': 'prompt',
        'a jump': 'scroller',
        'a new name': 'Rename Three',
        'one was deleted': 'Two',
    });
});

fake('a result that is being written outlives the one before it', async (page) => {
    await say(page, 'use two tools');
    await page.fill('[aria-label="Result of get_time"]', 'noon');
    await page.fill('[aria-label="Result of get_weather"]', 'rain');
    await page.keyboard.press('Enter');
    await waitFor(async () => (await page.locator('form.asks').count()) === 1);
    same(await page.inputValue('form.asks textarea'), 'noon');
});

fake('an edit that was begun is not begun again', async (page) => {
    await say(page, 'One');
    await page.keyboard.press('ArrowUp');
    await page.keyboard.type(', two');
    await page.focus('#prompt');
    await page.keyboard.press('ArrowUp');
    await shows(() => page.inputValue('[aria-label="Edit the message"]'), 'One, two');
    await page.keyboard.type('.');
    await shows(() => page.inputValue('[aria-label="Edit the message"]'), 'One, two.');
});

fake('an Enter that ends a composition sends nothing', async (page) => {
    await page.fill('#prompt', 'にほん');
    await page.evaluate(() =>
        document
            .querySelector('#prompt')
            .dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', keyCode: 229, bubbles: true })),
    );
    same(await page.inputValue('#prompt'), 'にほん');
});

fake('a dialog closes by a press beside it, not on its scroll bar', async (page) => {
    await page.click('#show-settings');
    await page.evaluate(() => {
        const dialog = document.querySelector('#settings');
        const { right, top } = dialog.getBoundingClientRect();
        const there = { clientX: right - 4, clientY: top + 50, bubbles: true };
        dialog.dispatchEvent(new PointerEvent('pointerdown', there));
    });
    same(await page.locator('#settings[open]').count(), 1);
    await page.mouse.click(2, 2);
    await page.waitForSelector('#settings[open]', { state: 'detached' });
});

both('light and dark', async (page) => {
    const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await background();
    await page.emulateMedia({ colorScheme: 'dark' });
    const dark = await background();
    ok(light !== dark, `${light} and ${dark}`);
    await page.click('#theme');
    await shows(background, light);
    await shows(() => page.getAttribute('#theme', 'aria-label'), 'Theme: light');
    await page.reload();
    await shows(background, light);
    await page.click('#theme');
    await page.emulateMedia({ colorScheme: 'light' });
    await shows(background, dark);
});

both(
    'a phone',
    async (page) => {
        await say(page, real ? QUESTION : 'table and code and a-very-long-word-'.repeat(8));
        const wide = await page.evaluate(() =>
            [...document.querySelectorAll('body, body *')]
                .filter((element) => {
                    const box = element.getBoundingClientRect();
                    return (
                        !element.closest('pre, .table, #sidebar, .unseen, .skip, dialog') &&
                        box.width &&
                        box.right > 321
                    );
                })
                .map((element) => element.outerHTML.slice(0, 80)),
        );
        same(wide, [], 'nothing sticks out');
        for (const id of ['#sidebar-open', '#send', '#show-settings']) {
            const { width, height } = await page.locator(id).boundingBox();
            ok(width >= 36 && height >= 36, `${id} is ${width} x ${height}`);
        }
        await waitFor(async () => !(await page.locator('#sidebar').isVisible()));
        await page.click('#sidebar-open');
        await page.locator('#new-chat').waitFor();
        await page.keyboard.press('Escape');
        await waitFor(async () => !(await page.locator('#sidebar').isVisible()));
        await page.click('#sidebar-open');
        await page.click('#new-chat');
        await waitFor(async () => !(await page.locator('#sidebar').isVisible()));
        await shows(() => page.locator('.message').count(), 0);
    },
    { viewport: { width: 320, height: 640 }, hasTouch: true, isMobile: true },
);

/* ---- for everyone ---- */

const axe = await readFile(packageFile('axe-core/axe.min.js'), 'utf8');

/* Serious findings on the page as it is, in both themes. */
async function findings(page) {
    const found = [];
    for (const colorScheme of ['light', 'dark']) {
        await page.emulateMedia({ colorScheme });
        await page.evaluate(() => {
            const ends = (animation) => animation.effect.getComputedTiming().endTime < Infinity;
            return Promise.all(document.getAnimations().filter(ends).map(({ finished }) => finished.catch(() => 0)));
        }); // what is fading has colours of its own
        const { violations } = await page.evaluate(() => window.axe.run(document));
        found.push(
            ...violations
                .filter(({ impact }) => ['serious', 'critical'].includes(impact))
                .map(
                    ({ id, nodes }) =>
                        `${colorScheme} ${id}: ${nodes.map((node) => node.html.slice(0, 90)).join('  ')}`,
                ),
        );
    }
    return found;
}

for (const [size, viewport] of [
    ['desktop', { width: 1200, height: 800 }],
    ['phone', { width: 320, height: 640 }],
]) {
    both(
        `axe finds nothing serious on a ${size}`,
        async (page) => {
            same(await findings(page), [], 'an empty page');
            if (real) await say(page, QUESTION);
            else for (const words of ['think and markdown', 'code', 'table', 'use a tool']) await say(page, words);
            if (!real) await page.locator('.thinking summary').first().click();
            same(await findings(page), [], 'a conversation');
            await page.click('#show-settings');
            same(await findings(page), [], 'settings');
            await page.keyboard.press('Escape');
            await page.focus('#prompt');
            await page.keyboard.press('ArrowUp');
            same(await findings(page), [], 'editing');
            if (size === 'phone') {
                await page.click('#sidebar-open');
                await page.waitForTimeout(250);
                same(await findings(page), [], 'the drawer');
            }
        },
        { viewport, script: axe },
    );
}

test('axe would find something', () =>
    onPage(
        async (page) => {
            await page.evaluate(() => {
                document.querySelector('#send').removeAttribute('aria-label');
                document.querySelector('#send').removeAttribute('title');
            });
            match((await findings(page)).join(' '), /button-name/);
        },
        { script: axe },
    ));

await start();
await finish(options.only, 3);
await close();
