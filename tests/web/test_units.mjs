/* test_units.mjs -- the parts of the page that need no browser: markdown, conversations, what
 * comes over the wire. */
import { match, deepStrictEqual as same, ok, throws } from 'node:assert/strict';
import { readdir, readFile } from 'node:fs/promises';
import { EventLines, errorOf, parseMetrics } from '../../src/app/server/web/api.js';
import { bytes, dayOf, rate, seconds } from '../../src/app/server/web/format.js';
import {
    GrowingText,
    parseBlocks,
    parseInline,
    plainText,
    safeAddress,
} from '../../src/app/server/web/markdown.js';
import {
    addNode,
    checkedConversation,
    chooseSibling,
    join,
    messagesFor,
    missingResults,
    newConversation,
    pathOf,
    titleFrom,
} from '../../src/app/server/web/tree.js';
import { finish, test } from './tally.mjs';

/* A short spelling of blocks, for tests to read. */
const inlineSpelled = (inline) =>
    inline
        .map((node) => {
            if (typeof node === 'string') return node;
            const tags = { em: 'i', strong: 'b', del: 's', code: 'c', break: 'br', link: 'a' };
            const inner = node.inline ? inlineSpelled(node.inline) : node.text || '';
            return `{${tags[node.type]}${node.href ? ' ' + node.href : ''}${inner ? ':' + inner : ''}}`;
        })
        .join('');
const spelled = (blocks) =>
    blocks
        .map((block) => {
            switch (block.type) {
                case 'heading':
                    return `h${block.level}(${inlineSpelled(block.inline)})`;
                case 'paragraph':
                    return `p(${inlineSpelled(block.inline)})`;
                case 'code':
                    return `code ${block.language}(${block.text})`;
                case 'quote':
                    return `quote(${spelled(block.blocks)})`;
                case 'list': {
                    const items = block.items.map(
                        (item) => (item.checked === null ? '' : item.checked ? 'x ' : '_ ') + spelled(item.blocks),
                    );
                    return `${block.ordered ? 'ol' + block.from : 'ul'}${block.loose ? '~' : ''}[${items.join('; ')}]`;
                }
                case 'table':
                    return `table(${[block.head, ...block.rows].map((row) => row.map(inlineSpelled).join('|')).join(' / ')})`;
                default:
                    return block.type;
            }
        })
        .join(' ');

const BLOCKS = [
    ['plain', 'p(plain)'],
    ['a\nb', 'p(a{br}b)'],
    ['a\n\nb', 'p(a) p(b)'],
    ['# One\n## Two ##\n#nothing', 'h1(One) h2(Two) p(#nothing)'],
    ['Title\n===\nSub\n---\n\n---', 'h1(Title) h2(Sub) rule'],
    ['```js\nlet a;\n\n  b\n```\nafter', 'code js(let a;\n\n  b) p(after)'],
    ['~~~\n```\n~~~', 'code (```)'],
    ['````md\n```\nx\n```\n````', 'code md(```\nx\n```)'],
    ['```\nnever closed', 'code (never closed)'],
    ['```make\nall:\n\tcc x.c\n```', 'code make(all:\n\tcc x.c)'],
    ['- a\n- b', 'ul[p(a); p(b)]'],
    ['- a\n\n- b', 'ul~[p(a); p(b)]'],
    ['- a\n  - b\n    - c\n- d', 'ul[p(a) ul[p(b) ul[p(c)]]; p(d)]'],
    ['1. a\n  - b\n2. c', 'ol1[p(a) ul[p(b)]; p(c)]'],
    ['1. a\n\n   ```\n   x\n   ```\n\n2. b', 'ol1~[p(a) code (x); p(b)]'],
    ['3) a\n4) b', 'ol3[p(a); p(b)]'],
    ['- a\n* b', 'ul[p(a)] ul[p(b)]'],
    ['- a\nlazy', 'ul[p(a{br}lazy)]'],
    ['- [x] a\n- [ ] b', 'ul[x p(a); _ p(b)]'],
    ['text\n- a', 'p(text) ul[p(a)]'],
    ['in 1998\n2. not a list', 'p(in 1998{br}2. not a list)'],
    ['> a\n> > b\nlazy\n\nc', 'quote(p(a) quote(p(b{br}lazy))) p(c)'],
    ['| a | b |\n|---|:-:|\n| 1 | `x\\|y` |\n| 2 |\n\nend', 'table(a|b / 1|{c:x|y} / 2|) p(end)'],
    ['a | b\n--|--\n1 | 2', 'table(a|b / 1|2)'],
    ['a | b\nc | d', 'p(a | b{br}c | d)'],
    ['words\n| a |\n|---|\n| 1 |', 'p(words) table(a / 1)'],
    ['    indented\n\n    code', 'code (indented\n\ncode)'],
    ['- a\n\t- b\n\t\t- c', 'ul[p(a) ul[p(b) ul[p(c)]]]'],
    ['***', 'rule'],
    ['\r\na\r\n\r\nb\r\n', 'p(a) p(b)'],
    ['', ''],
];

const INLINE = [
    ['*a* _b_ **c** __d__ ***e***', '{i:a} {i:b} {b:c} {b:d} {i:{b:e}}'],
    ['~~gone~~ ~one~', '{s:gone} ~one~'],
    ['snake_case_name and 2*3*4', 'snake_case_name and 2{i:3}4'],
    ['a * b * c', 'a * b * c'],
    ['**open', '**open'],
    ['*a **b* c**', '{i:a {i:{i:b} c}}'],
    ['`a*b*` ``c`d`` ` x', '{c:a*b*} {c:c`d} ` x'],
    ['\\*a\\* \\\\', '*a* \\'],
    ['[t](https://e.org/x_(y)_z "title")', '{a https://e.org/x_(y)_z:t}'],
    ['[*t*](<https://e.org/a>)', '{a https://e.org/a:{i:t}}'],
    ['[a [b](https://e.org)](https://f.org)', '{a https://f.org/:a b}'],
    [
        'see https://e.org/a_b_c, or (http://f.org).',
        'see {a https://e.org/a_b_c:https://e.org/a_b_c}, or ({a http://f.org/:http://f.org}).',
    ],
    ['<https://e.org> <me@e.org>', '{a https://e.org/:https://e.org} {a mailto:me@e.org:me@e.org}'],
    ['![cat](https://e.org/c.png)', '{a https://e.org/c.png:cat}'],
    ['a<br>b &lt;&amp;&bogus;', 'a{br}b <&&bogus;'],
    ['[x] and [y](', '[x] and [y]('],
    ['<script>alert(1)</script>', '<script>alert(1)</script>'],
];

for (const [text, want] of BLOCKS)
    test(`blocks: ${JSON.stringify(text)}`, () => same(spelled(parseBlocks(text)), want));
for (const [text, want] of INLINE) test(`inline: ${text}`, () => same(inlineSpelled(parseInline(text)), want));

test('addresses that are no links', () => {
    const bad = [
        'javascript:alert(1)',
        ' JAVASCRIPT:alert(1)',
        'java\nscript:alert(1)',
        'data:text/html,x',
        'vbscript:x',
        '//e.org',
        '/path',
        'file:///etc',
        'http:',
        'https://',
        '\u0001javascript:x',
        'https://e.org/' + 'a'.repeat(3000),
    ];
    for (const address of bad) same(safeAddress(address), null, address);
    for (const text of bad) ok(!JSON.stringify(parseBlocks(`[x](${text}) <${text}>`)).includes('"href"'), text);
    same(safeAddress('blob:https://e.org/x'), null);
    same(safeAddress('HTTPS://E.org/a'), 'https://e.org/a');
});

/* A small generator with a seed: any failure can be repeated. */
function* random(seed) {
    for (let x = seed; ;) {
        x = (x * 1103515245 + 12345) % 2147483648;
        yield x / 2147483648;
    }
}

const PIECES = [
    'a',
    ' b',
    '\n',
    '\n\n',
    '- ',
    '  - ',
    '1. ',
    '# ',
    '> ',
    '```',
    '\n```\n',
    '| a | b |\n',
    '|---|---|\n',
    '*',
    '**',
    '`',
    '[x](',
    'https://e.org)',
    '---\n',
    '===\n',
    '    ',
    '~~~\n',
    '<br>',
    '\t',
    '_',
    '- [ ] ',
];

test('a text that grows ends as the whole text does', () => {
    for (let seed = 1; seed <= 400; seed++) {
        const numbers = random(seed);
        const next = () => numbers.next().value;
        let text = '';
        const growing = new GrowingText();
        const kept = [];
        for (let n = 4 + Math.floor(next() * 40); n; n--) {
            text += PIECES[Math.floor(next() * PIECES.length)];
            const { settled } = growing.update(text, false);
            kept.push(...settled);
        }
        kept.push(...growing.update(text, true).settled);
        same(spelled(kept), spelled(parseBlocks(text)), `seed ${seed}: ${JSON.stringify(text)}`);
    }
});

test('a growing text is not parsed from its beginning again', () => {
    const growing = new GrowingText();
    const text = 'A paragraph of some words.\n\n'.repeat(1000);
    growing.update(text, false);
    ok(growing.start > text.length - 60, `only ${growing.start} of ${text.length} are final`);
});

test('hostile texts take no time', () => {
    const hostile = [
        '*'.repeat(60000),
        '_a *b* '.repeat(9000),
        '['.repeat(60000),
        '[a]('.repeat(15000),
        '```' + 'a``'.repeat(20000),
        '> '.repeat(30000),
        '- '.repeat(30000),
        '|a'.repeat(30000) + '\n' + '|-'.repeat(30000),
        '**a '.repeat(15000),
        '`a'.repeat(30000),
        'http://....'.repeat(6000),
        '![[a](http://a)'.repeat(4000),
        ' - a\n'.repeat(12000),
        '<'.repeat(60000),
        '&'.repeat(60000),
        '\\'.repeat(60000),
        '> - '.repeat(15000),
        '1. '.repeat(20000),
        ' '.repeat(60000) + 'x',
        '# '.repeat(30000),
        '#'.repeat(60000),
    ];
    for (const text of hostile) {
        const began = performance.now();
        parseBlocks(text);
        const ms = performance.now() - began;
        ok(ms < 1500, `${text.slice(0, 12)} took ${Math.round(ms)} ms`);
    }
});

test('nesting is bounded', () => {
    const depth = (blocks) => 1 + Math.max(0, ...blocks.map((block) => (block.blocks ? depth(block.blocks) : 0)));
    ok(depth(parseBlocks('> '.repeat(500) + 'x')) <= 14);
    const inlineDepth = (inline) =>
        1 + Math.max(0, ...inline.map((node) => (node.inline ? inlineDepth(node.inline) : 0)));
    ok(inlineDepth(parseInline('*a **b '.repeat(500) + '** * '.repeat(500))) < 100);
});

test('words alone', () =>
    same(plainText('# A\n\n- *b*\n- `c`\n\n| d | e |\n|--|--|\n| f | g |'), 'A\nb\nc\nd, e\nf, g'));

/* ---- conversations ---- */

test('edits branch and nothing is lost', () => {
    const conversation = newConversation('Be brief.');
    const { root } = conversation.nodes;
    const first = addNode(conversation, root, { role: 'user', content: 'one' });
    addNode(conversation, first, { role: 'assistant', content: 'answer', reasoning: 'why' });
    const second = addNode(conversation, root, { role: 'user', content: 'two' });
    same(
        pathOf(conversation).map((node) => node.content),
        ['two'],
    );
    chooseSibling(conversation, second, -1);
    same(
        pathOf(conversation).map((node) => node.content),
        ['one', 'answer'],
    );
    chooseSibling(conversation, first, -1);
    same(pathOf(conversation).length, 2);
    same(messagesFor(conversation, pathOf(conversation)[1]), [
        { role: 'system', content: 'Be brief.' },
        { role: 'user', content: 'one' },
        { role: 'assistant', content: 'answer', reasoning_content: 'why' },
    ]);
});

test('calls and results as messages; an empty answer is none', () => {
    const conversation = newConversation('');
    const ask = addNode(conversation, conversation.nodes.root, { role: 'user', content: 'q' });
    const failed = addNode(conversation, ask, { role: 'assistant', content: '', calls: [] });
    const more = addNode(conversation, failed, { role: 'user', content: 'r' });
    const calls = [
        { id: 'c1', name: 'f', arguments: '{}' },
        { id: 'c2', name: 'g', arguments: '{}' },
    ];
    const call = addNode(conversation, more, { role: 'assistant', calls });
    same(missingResults(conversation, call).length, 2);
    const result = addNode(conversation, call, { role: 'tool', callId: 'c2', content: '7' });
    same(
        missingResults(conversation, result).map((missing) => missing.id),
        ['c1'],
    );
    const messages = messagesFor(conversation, result);
    same(
        messages.map((message) => message.role),
        ['user', 'assistant', 'tool'],
    );
    same(messages[0].content, 'q\n\nr');
    same(messages[1].tool_calls[1], { id: 'c2', type: 'function', function: { name: 'g', arguments: '{}' } });
    same(messages[2], { role: 'tool', tool_call_id: 'c2', content: '7' });
});

test('an imported conversation is a tree and nothing else', () => {
    const good = newConversation('s');
    const ask = addNode(good, good.nodes.root, { role: 'user', content: 'q' });
    addNode(good, ask, {
        role: 'assistant',
        content: 'a',
        state: 'running',
        calls: [],
        stats: { tokens: 3, rate: 'fast' },
    });
    good.evil = 1;
    const copy = checkedConversation(JSON.parse(JSON.stringify(good)));
    same(
        pathOf(copy).map((node) => [node.role, node.content]),
        [
            ['user', 'q'],
            ['assistant', 'a'],
        ],
    );
    same([copy.evil, pathOf(copy)[1].state, pathOf(copy)[1].stats], [undefined, 'running', { tokens: 3 }]);
    const broken = (change) => {
        const other = JSON.parse(JSON.stringify(good));
        change(other, other.nodes[ask.id]);
        return () => checkedConversation(other);
    };
    throws(
        broken((other, node) => node.children.push(node.id)),
        /tree/,
    );
    throws(
        broken((other) => other.nodes.root.children.push(other.nodes.root.children[0])),
        /tree/,
    );
    throws(
        broken((other, node) => {
            node.role = 'admin';
        }),
        /role/,
    );
    throws(
        broken((other) => {
            delete other.nodes.root;
        }),
        /messages/,
    );
    throws(
        () => checkedConversation(JSON.parse('{"nodes":{"root":{"role":"root"},"__proto__":{"role":"user"}}}')),
        /name/,
    );
    throws(() => checkedConversation(null), /messages/);
    throws(
        broken((other, node) => {
            other.nodes[node.id] = null;
        }),
        /^Error: a message is empty$/,
    );
    const strange = JSON.parse(JSON.stringify(good));
    strange.id = ['abcdefgh'];
    strange.nodes[copy.nodes[ask.id].chosen].calls = [null, { id: 'c', name: 'f', arguments: '{}' }];
    const mended = checkedConversation(strange);
    match(mended.id, /^[a-z0-9]+$/);
    same(pathOf(mended)[1].calls, [{ id: 'c', name: 'f', arguments: '{}' }]);
});

test('two copies of a conversation become one', () => {
    const copyOf = (conversation) => JSON.parse(JSON.stringify(conversation));
    const one = newConversation('');
    const ask = addNode(one, one.nodes.root, { role: 'user', content: 'q' });
    const answer = addNode(one, ask, { role: 'assistant', content: 'It', reasoning: '', calls: [], state: 'running' });
    const other = copyOf(one);
    answer.content = 'It grows';
    const theirs = addNode(other, other.nodes[ask.id], { role: 'assistant', content: 'Theirs', state: 'done' });
    const early = copyOf(other);
    join(one, early);
    same(pathOf(one)[1].content, 'It grows', 'what is shown stays');
    same(one.nodes[ask.id].children, [answer.id, theirs.id]);
    same([answer.content, answer.state], ['It grows', 'running'], 'the longer text is the newer');
    join(other, copyOf(one));
    same(other.nodes[answer.id].content, 'It grows');
    answer.state = 'done';
    answer.content = 'It ended';
    join(one, copyOf(other));
    same([answer.content, answer.state], ['It ended', 'done'], 'what has ended stays');
    join(other, copyOf(one), true);
    same(pathOf(other)[1].content, 'It ended', 'their choice, when it is followed');
    same(Object.keys(other.nodes).length, Object.keys(one.nodes).length);
});

test('thoughts and calls count in an answer that grows', () => {
    const longer = { reasoning: 'Hm, so', calls: [{ id: 'c', name: 'f', arguments: '{"a": 1}' }] };
    for (const [field, text] of Object.entries(longer)) {
        const one = newConversation('');
        const early = { reasoning: 'Hm', calls: [{ id: 'c', name: 'f', arguments: '{' }] };
        const { id } = addNode(one, one.nodes.root, { role: 'assistant', content: '', ...early, state: 'running' });
        const other = structuredClone(one);
        other.nodes[id][field] = text;
        join(one, structuredClone(other));
        same(one.nodes[id][field], text);
        join(other, { nodes: { [id]: { ...other.nodes[id], ...early } } });
        same(other.nodes[id][field], text, 'what came earlier is not newer');
    }
});

test('of two titles and system prompts the later stays', () => {
    const one = { ...newConversation('Be brief.'), title: 'First' };
    const other = { ...checkedConversation(one), title: 'Renamed', titleAt: 5, system: 'Rhyme.', systemAt: 6 };
    join(other, one);
    same([other.title, other.system], ['Renamed', 'Rhyme.']);
    join(one, checkedConversation(other));
    same([one.title, one.titleAt, one.system, one.systemAt], ['Renamed', 5, 'Rhyme.', 6]);
    const old = { ...newConversation(''), title: 'Old' };
    delete old.titleAt;
    delete old.systemAt;
    join(old, other);
    same([old.title, old.system], ['Renamed', 'Rhyme.']);
});

test('titles', () => {
    same(titleFrom('**Hello**\n  there'), 'Hello there');
    ok(titleFrom('word '.repeat(50)).length <= 60);
    ok(titleFrom('x' + '😀'.repeat(70)).isWellFormed(), 'no half of an emoji');
    same(titleFrom('😀'.repeat(35)), '😀'.repeat(35));
});

/* ---- the wire ---- */

test('events arrive whole however they are cut', () => {
    const stream = 'data: {"a":1}\n\n: alive\n\ndata: {"b":"ü"}\r\n\r\ndata: [DONE]\n\n';
    for (let cut = 0; cut <= stream.length; cut++) {
        const events = new EventLines();
        same(
            [...events.push(stream.slice(0, cut)), ...events.push(stream.slice(cut))],
            ['{"a":1}', '{"b":"ü"}', '[DONE]'],
            `cut at ${cut}`,
        );
    }
});

test('errors say what can be done', () => {
    same(errorOf(401, null).kind, 'key');
    const busy = errorOf(429, { message: 'wait' }, '7');
    same([busy.kind, busy.retryAfter, busy.message], ['busy', 7, 'wait']);
    same(errorOf(503, null, null).retryAfter, 3);
    const full = errorOf(400, { message: 'm', code: 'context_length_exceeded', n_prompt_tokens: 9, n_ctx: 8 });
    same([full.kind, full.nPrompt, full.nCtx], ['full', 9, 8]);
    same(errorOf(500, null).message, 'The server answered 500.');
});

test('metrics are summed over their labels', () => {
    const sums = parseMetrics('# HELP x y\nx{a="1"} 2\nx{a="2"} 3.5\ny 1e3\nz NaN\n');
    same([sums.get('x'), sums.get('y'), sums.get('z')], [5.5, 1000, undefined]);
});

test('numbers for people', () => {
    same([seconds(70), seconds(1234), seconds(12345), seconds(125000)], ['0.07 s', '1.2 s', '12 s', '2 min 5 s']);
    same([bytes(999), bytes(18213000000), bytes(1500000)], ['999 B', '18 GB', '1.5 MB']);
    same([rate(9.96), rate(1234)], ['10.0 tokens/s', '1,234 tokens/s']);
    const now = new Date(2026, 5, 15, 12).getTime();
    same(
        [now - 1, now - 86400000, now - 3 * 86400000, 0].map((time) => dayOf(time, now)),
        ['Today', 'Yesterday', 'Last week', 'Earlier'],
    );
});

/* ---- the files themselves ---- */

test('the page refers to its own files and to nothing else', async () => {
    const folder = new URL('../../src/app/server/web/', import.meta.url);
    const names = (await readdir(folder)).filter((name) => /\.(html|css|js|svg)$/.test(name));
    const used = new Set(['index.html']);
    for (const name of names) {
        const text = await readFile(new URL(name, folder), 'utf8');
        const referred =
            name === 'index.html'
                ? text.matchAll(/(?:href|src)="\/?([^"]+)"/g)
                : text.matchAll(/ from '\.\/([^']+)'/g);
        for (const [, to] of referred) {
            ok(to.startsWith('#') || names.includes(to), `${name} refers to ${to}`);
            used.add(to);
        }
        const outside = [...text.matchAll(/https?:\/\/[\w.]+/g)].map(([address]) => address);
        same(
            outside.filter((address) => address !== 'http://www.w3.org'),
            [],
            name,
        );
        ok(
            !/innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function| style="| on\w+="/.test(
                text,
            ),
            name,
        );
    }
    same(
        names.filter((name) => !used.has(name)),
        [],
        'files that nothing uses',
    );
});

await finish();
