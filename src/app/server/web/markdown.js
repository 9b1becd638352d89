/* markdown.js -- what a model wrote, as a tree of plain objects.
 *
 * Takes text, gives blocks; touches no document, so it runs and is tested anywhere.  HTML in
 * the text is text; the only exception is <br>, which models write into table cells.  A link
 * is one only when its address is http, https or mailto.
 *
 * Invariants
 *   I1  Once the first line of a block is complete, the blocks before it never change by what
 *       is appended: whoever shows a growing text (GrowingText) keeps them.
 *   I2  Work is close to linear in the text and nesting is bounded, whatever the text is.
 */

const DEPTH_MAX = 12;
const COLUMNS_MAX = 64;
const ADDRESS_MAX = 2048;
const RUN_MAX = 6; /* asterisks in a row that may be emphasis */
const OPEN_MAX = 16; /* marks that wait for their partner */

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*))?$/;
const UNDERLINE = /^ {0,3}(=+|-+)[ \t]*$/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

const isBlank = (line) => /^\s*$/.test(line);
const TAB = 4;

/* Columns before the first sign of a line. */
function indentOf(line) {
    let columns = 0;
    for (let i = 0; line[i] === ' ' || line[i] === '\t'; i++) columns += line[i] === ' ' ? 1 : TAB;
    return columns;
}

/* The line without its first n columns, as far as they are blank. */
function unindent(line, n) {
    let i = 0;
    while (n > 0 && (line[i] === ' ' || line[i] === '\t')) n -= line[i++] === ' ' ? 1 : TAB;
    return n < 0 ? ' '.repeat(-n) + line.slice(i) : line.slice(i);
}

/* Blocks of a text: { type, line, start, ... } with start as an offset into it. */
export function parseBlocks(text) {
    const pieces = text.split(/(\r\n|\r|\n)/); /* lines and what ends them, in turn */
    const lines = [];
    const starts = [];
    let at = 0;
    for (let i = 0; i < pieces.length; i += 2) {
        starts.push(at);
        lines.push(pieces[i]);
        at += pieces[i].length + (pieces[i + 1] || '').length;
    }
    const blocks = blocksOf(lines, 0);
    for (const block of blocks) block.start = starts[block.line];
    return blocks;
}

/* A text that grows.  update() says which blocks have become final since the last call and
 * which are still open; nothing before those is parsed again. */
export class GrowingText {
    start = 0;

    update(text, done) {
        const rest = text.slice(this.start);
        const blocks = parseBlocks(rest);
        let n = done ? blocks.length : blocks.length - 1;
        /* A first line that is not complete may yet turn out to belong to the block before. */
        while (!done && n > 0 && !/[\r\n]/.test(rest.slice(blocks[n].start))) n--;
        if (n <= 0) return { settled: [], open: blocks };
        this.start += n < blocks.length ? blocks[n].start : rest.length;
        return { settled: blocks.slice(0, n), open: blocks.slice(n) };
    }
}

function blocksOf(lines, depth) {
    const blocks = [];
    let i = 0;
    while (i < lines.length) {
        if (isBlank(lines[i])) {
            i++;
            continue;
        }
        const [block, next] = blockAt(lines, i, depth);
        block.line = i;
        blocks.push(block);
        i = next;
    }
    return blocks;
}

/* The block that begins on line i, and the line after it. */
function blockAt(lines, i, depth) {
    const line = lines[i];
    if (depth < DEPTH_MAX) {
        if (QUOTE.test(line)) return quoteAt(lines, i, depth);
        if (ITEM.test(line) && !RULE.test(line)) return listAt(lines, i, depth);
    }
    if (FENCE.test(line)) return fenceAt(lines, i);
    if (HEADING.test(line)) {
        const [, marks, rest = ''] = line.match(HEADING);
        const words = rest.trim().replace(/(^|[ \t])#+$/, '');
        return [{ type: 'heading', level: marks.length, inline: parseInline(words.trim()) }, i + 1];
    }
    if (RULE.test(line)) return [{ type: 'rule' }, i + 1];
    if (isTableAt(lines, i)) return tableAt(lines, i);
    if (indentOf(line) >= 4) return indentedAt(lines, i);
    return paragraphAt(lines, i);
}

/* Whether a line ends the paragraph before it. */
function interrupts(lines, i) {
    const line = lines[i];
    if (isBlank(line) || FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)) return true;
    const item = line.match(ITEM);
    if (item && item[4] && (!/\d/.test(item[2]) || parseInt(item[2], 10) === 1)) return true;
    return isTableAt(lines, i);
}

function fenceAt(lines, i) {
    const [, indent, marks, info] = lines[i].match(FENCE);
    const close = new RegExp(`^ {0,3}${marks[0]}{${marks.length},}[ \\t]*$`);
    const body = [];
    let at = i + 1;
    while (at < lines.length && !close.test(lines[at])) {
        body.push(unindent(lines[at++], indent.length));
    }
    const open = at >= lines.length;
    return [
        { type: 'code', language: info.trim().split(/\s+/)[0], text: body.join('\n'), open },
        at + (open ? 0 : 1),
    ];
}

function indentedAt(lines, i) {
    const body = [];
    let at = i;
    while (at < lines.length && (isBlank(lines[at]) || indentOf(lines[at]) >= 4))
        body.push(unindent(lines[at++], 4));
    while (isBlank(body[body.length - 1])) {
        body.pop();
        at--;
    }
    return [{ type: 'code', language: '', text: body.join('\n'), open: false }, at];
}

function paragraphAt(lines, i) {
    let at = i + 1;
    while (at < lines.length) {
        const under = lines[at].match(UNDERLINE);
        if (under) {
            const inline = parseInline(joined(lines, i, at));
            return [{ type: 'heading', level: under[1][0] === '=' ? 1 : 2, inline }, at + 1];
        }
        if (interrupts(lines, at)) break;
        at++;
    }
    return [{ type: 'paragraph', inline: parseInline(joined(lines, i, at)) }, at];
}

const joined = (lines, from, to) =>
    lines
        .slice(from, to)
        .map((line) => line.trimStart())
        .join('\n')
        .trimEnd();

function quoteAt(lines, i, depth) {
    const inner = [];
    let at = i;
    let prose = false; /* a paragraph may go on without its mark */
    while (at < lines.length) {
        if (QUOTE.test(lines[at])) inner.push(lines[at].replace(QUOTE, ''));
        else if (prose && !interrupts(lines, at)) inner.push(lines[at]);
        else break;
        const last = inner[inner.length - 1];
        prose = !isBlank(last) && !FENCE.test(last) && !HEADING.test(last);
        at++;
    }
    return [{ type: 'quote', blocks: blocksOf(inner, depth + 1) }, at];
}

/* Items of one kind.  Two blanks before a line are enough to put it inside of an item: models
 * nest under "1." with two, where the standard wants three. */
function listAt(lines, i, depth) {
    const kind = (mark) => (/\d/.test(mark) ? mark.slice(-1) : mark);
    const first = lines[i].match(ITEM);
    const ordered = /\d/.test(first[2]);
    const base = first[1].length;
    const items = [];
    let loose = false;
    let at = i;
    while (at < lines.length) {
        const start = lines[at].match(ITEM);
        if (!start || kind(start[2]) !== kind(first[2]) || start[1].length > base + 1 || RULE.test(lines[at]))
            break;
        const [inner, next, blankInside] = itemAt(lines, at, start, base);
        items.push(itemOf(inner, depth));
        at = next;
        while (at < lines.length && isBlank(lines[at])) at++;
        const more = at < lines.length && lines[at].match(ITEM);
        loose = loose || blankInside || (at > next && more && kind(more[2]) === kind(first[2]));
        if (at > next && !more) {
            at = next;
            break;
        }
    }
    const from = ordered ? parseInt(first[2], 10) : 1;
    return [{ type: 'list', ordered, from, loose: Boolean(loose), items }, at];
}

/* Lines of the item that begins on line i without their indent, the line after it, and
 * whether its paragraphs stand apart. */
function itemAt(lines, i, start, base) {
    const [, lead, mark, space = '', rest = ''] = start;
    const width = lead.length + mark.length + Math.min(space.length || 1, space.length > 4 ? 1 : 4);
    const inner = [space.length > 4 ? ' '.repeat(space.length - 1) + rest : rest];
    let at = i + 1;
    let blanks = 0;
    let blankInside = false;
    let fence = openedFence(null, inner[0]);
    while (at < lines.length) {
        const line = lines[at];
        if (isBlank(line)) {
            blanks++;
        } else {
            const inside = indentOf(line) >= base + 2;
            const lazy = !blanks && !interrupts(lines, at) && !ITEM.test(line);
            if (!fence && !inside && !lazy) break;
            if (blanks && !fence && !ITEM.test(line.trimStart())) blankInside = true;
            for (; blanks; blanks--) inner.push('');
            const own = unindent(line, width);
            inner.push(own);
            fence = openedFence(fence, own);
        }
        at++;
    }
    return [inner, at - blanks, blankInside];
}

/* The fence that is open after a line, given the one that was open before it. */
function openedFence(fence, line) {
    const match = line.match(FENCE);
    if (!fence) return match ? match[2] : null;
    return match && match[2].startsWith(fence) && !match[3].trim() ? null : fence;
}

function itemOf(inner, depth) {
    const task = inner[0].match(/^\[([ xX])\] +(.*)$/);
    if (task) inner[0] = task[2];
    return { checked: task ? task[1] !== ' ' : null, blocks: blocksOf(inner, depth + 1) };
}

/* ---- tables ---- */

function cellsOf(line) {
    const cells = [];
    let cell = '';
    const row = line.trim().replace(/^\|/, '');
    for (let i = 0; i < row.length; i++) {
        if (row[i] === '\\' && row[i + 1] === '|') {
            cell += '|';
            i++;
        } else if (row[i] === '|') {
            cells.push(cell.trim());
            cell = '';
        } else {
            cell += row[i];
        }
    }
    if (cell.trim() || !row.endsWith('|')) cells.push(cell.trim());
    return cells;
}

function isTableAt(lines, i) {
    if (i + 1 >= lines.length || !lines[i].includes('|') || !DELIMITERS.test(lines[i + 1])) return false;
    const n = cellsOf(lines[i]).length;
    return n <= COLUMNS_MAX && n === cellsOf(lines[i + 1]).length;
}

function tableAt(lines, i) {
    const head = cellsOf(lines[i]).map(parseInline);
    const align = cellsOf(lines[i + 1]).map((cell) => {
        const left = cell.startsWith(':');
        const right = cell.endsWith(':');
        return left && right ? 'center' : right ? 'right' : 'left';
    });
    const rows = [];
    let at = i + 2;
    while (at < lines.length && lines[at].includes('|') && !FENCE.test(lines[at]) && !QUOTE.test(lines[at])) {
        const cells = cellsOf(lines[at++]).slice(0, head.length);
        while (cells.length < head.length) cells.push('');
        rows.push(cells.map(parseInline));
    }
    return [{ type: 'table', head, align, rows }, at];
}

/* ---- inside of a block ---- */

const ENTITIES = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', '#39': "'" };
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const DESTINATION = new RegExp(
    '\\(\\s*(?:<([^<>\\n]*)>|((?:[^\\s()\\\\]|\\\\.|\\([^\\s()]*\\)){0,' +
        ADDRESS_MAX +
        '}))' +
        '(?:\\s+(?:"(?:[^"\\\\]|\\\\.)*"|\'(?:[^\'\\\\]|\\\\.)*\'))?\\s*\\)',
    'y',
);
const AUTOLINK = /<((?:https?:\/\/|mailto:)[^\s<>]*|[\w.+-]+@[\w-]+(?:\.[\w-]+)+)>/iy;
const BARE = /https?:\/\/[^\s<>"'`\\|]{1,2048}/iy;
const BREAK = /<br ?\/?>/iy;
const ENTITY = /&(amp|lt|gt|quot|apos|nbsp|#39);/y;

function matchAt(pattern, text, at) {
    pattern.lastIndex = at;
    return pattern.exec(text);
}

/* The address of a link, or null for one that must stay text. */
export function safeAddress(address) {
    const cleaned = address.replace(/\\([!-/:-@[-`{-~])/g, '$1').trim();
    if (cleaned.length > ADDRESS_MAX || !/^(https?:\/\/|mailto:)/i.test(cleaned)) return null;
    try {
        const url = new URL(cleaned);
        return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
    } catch {
        return null;
    }
}

/* A list of: strings, { type: code, text }, { type: em|strong|del, inline },
 * { type: link, href, inline }, { type: break }. */
export function parseInline(text) {
    const nodes = [];
    const brackets = [];
    const unclosed = new Set(); /* lengths of backtick runs that nothing closes */
    let at = 0;
    const add = (node, length) => {
        const last = nodes.length - 1;
        if (typeof node === 'string' && typeof nodes[last] === 'string') nodes[last] += node;
        else nodes.push(node);
        at += length;
    };
    while (at < text.length) {
        const c = text[at];
        let m;
        if (c === '\\' && at + 1 < text.length && PUNCTUATION.test(text[at + 1])) add(text[at + 1], 2);
        else if (c === '\\' && text[at + 1] === '\n') add({ type: 'break' }, 2);
        else if (c === '\n') {
            /* A line that ends is a line that ends: models seldom wrap their lines. */
            const last = nodes.length - 1;
            if (typeof nodes[last] === 'string') nodes[last] = nodes[last].trimEnd();
            add({ type: 'break' }, 1);
        } else if (c === '`') addCode(text, at, unclosed, add);
        else if (c === '*' || c === '_' || c === '~') addRun(text, at, add);
        else if (c === '[' || (c === '!' && text[at + 1] === '[')) {
            const length = c === '!' ? 2 : 1;
            brackets.push({ index: nodes.length, image: c === '!' });
            add({ type: 'bracket', text: text.slice(at, at + length) }, length);
        } else if (c === ']') at = closeBracket(text, at, nodes, brackets);
        else if (c === '<' && (m = matchAt(AUTOLINK, text, at))) {
            const href = safeAddress(m[1].includes(':') ? m[1] : 'mailto:' + m[1]);
            add(href ? { type: 'link', href, inline: [m[1]] } : m[0], m[0].length);
        } else if (c === '<' && (m = matchAt(BREAK, text, at))) add({ type: 'break' }, m[0].length);
        else if ((c === 'h' || c === 'H') && !brackets.length && (m = bareAt(text, at))) {
            const href = safeAddress(m);
            add(href ? { type: 'link', href, inline: [m] } : m, m.length);
        } else if (c === '&' && (m = matchAt(ENTITY, text, at))) add(ENTITIES[m[1]], m[0].length);
        else add(c, 1);
    }
    return finished(nodes);
}

function addCode(text, at, unclosed, add) {
    let length = 1;
    while (text[at + length] === '`') length++;
    const marks = '`'.repeat(length);
    let end = unclosed.has(length) ? -1 : text.indexOf(marks, at + length);
    while (end >= 0 && text[end + length] === '`') {
        /* a longer run does not close it */
        let past = end + length;
        while (text[past] === '`') past++;
        end = text.indexOf(marks, past);
    }
    if (end < 0) {
        unclosed.add(length);
        add(marks, length);
        return;
    }
    let code = text.slice(at + length, end).replace(/\n/g, ' ');
    if (code.startsWith(' ') && code.endsWith(' ') && code.trim()) code = code.slice(1, -1);
    add({ type: 'code', text: code }, end + length - at);
}

/* A run of * _ or ~ with whether it may open or close, by the rules of CommonMark. */
function addRun(text, at, add) {
    const mark = text[at];
    let length = 1;
    while (text[at + length] === mark) length++;
    const before = at ? text[at - 1] : ' ';
    const after = text[at + length] || ' ';
    const space = /\s/;
    const sign = /[\p{P}\p{S}]/u;
    const left = !space.test(after) && (!sign.test(after) || space.test(before) || sign.test(before));
    const right = !space.test(before) && (!sign.test(before) || space.test(after) || sign.test(after));
    if ((!left && !right) || (mark === '~' && length !== 2) || length > RUN_MAX) {
        add(mark.repeat(length), length);
        return;
    }
    const opens = mark === '_' ? left && (!right || sign.test(before)) : left;
    const closes = mark === '_' ? right && (!left || sign.test(after)) : right;
    add({ type: 'run', mark, length, size: length, opens, closes }, length);
}

function bareAt(text, at) {
    if (at && /[\w@/]/.test(text[at - 1])) return null;
    const m = matchAt(BARE, text, at);
    if (!m) return null;
    let address = m[0].replace(/[.,;:!?*_~\]}]+$/, '');
    if (address.endsWith(')') && !address.includes('(')) address = address.replace(/\)+[.,;:!?*_~]*$/, '');
    return /\/\/./.test(address) ? address : null;
}

/* At a "]": makes a link of what stands since its "[" when an address follows. */
function closeBracket(text, at, nodes, brackets) {
    const open = brackets.pop();
    const m = open && text[at + 1] === '(' ? matchAt(DESTINATION, text, at + 1) : null;
    if (!m) {
        nodes.push(']');
        return at + 1;
    }
    const end = at + 1 + m[0].length;
    const inner = finished(nodes.splice(open.index).slice(1));
    const href = safeAddress(m[1] !== undefined ? m[1] : m[2]);
    if (!href) {
        nodes.push(open.image ? '![' : '[', ...inner, text.slice(at, end));
        return end;
    }
    /* No picture is loaded from anywhere, so it becomes a link to itself. */
    const label = inner.length ? inner : [href];
    nodes.push({ type: 'link', href, inline: withoutLinks(label) });
    return end;
}

function withoutLinks(inline) {
    return inline.flatMap((node) => {
        if (node.type === 'link') return withoutLinks(node.inline);
        return node.inline ? [{ ...node, inline: withoutLinks(node.inline) }] : [node];
    });
}

/* Pairs runs of marks to emphasis; what has no partner is text again.  Runs that may open wait
 * on one stack per mark with their place in the output, so that no pair costs a search. */
function finished(nodes) {
    const out = [];
    const stacks = { '*': [], _: [], '~': [] };
    for (const node of nodes) {
        if (node.type !== 'run') {
            out.push(node);
            continue;
        }
        const stack = stacks[node.mark];
        while (node.closes && node.length && stack.length && pairs(stack[stack.length - 1], node)) {
            const open = stack[stack.length - 1];
            const size = open.length > 1 && node.length > 1 ? 2 : 1;
            const inline = merged(out.splice(open.place + 1).map(unpaired));
            for (const other of Object.values(stacks)) {
                while (other.length && other[other.length - 1].place > open.place) other.pop();
            }
            open.length -= size;
            node.length -= size;
            if (!open.length) {
                out.pop();
                stack.pop();
            }
            out.push({ type: node.mark === '~' ? 'del' : size === 2 ? 'strong' : 'em', inline });
        }
        if (node.length) {
            node.place = out.length;
            out.push(node);
            if (node.opens && stack.length < OPEN_MAX) stack.push(node);
        }
    }
    return merged(out.map(unpaired));
}

/* The "rule of three" of CommonMark: of "a*b**c" neither may close the other. */
function pairs(open, close) {
    const both = open.closes || close.opens;
    return !both || (open.size + close.size) % 3 !== 0 || (open.size % 3 === 0 && close.size % 3 === 0);
}

function unpaired(node) {
    if (node.type === 'run') return node.mark.repeat(node.length);
    return node.type === 'bracket' ? node.text : node;
}

function merged(nodes) {
    const out = [];
    for (const node of nodes) {
        const last = out.length - 1;
        if (typeof node === 'string' && typeof out[last] === 'string') out[last] += node;
        else if (node !== '') out.push(node);
    }
    return out;
}

/* The words alone, for search and for screen readers. */
export function plainText(text) {
    const inlineText = (inline) =>
        inline
            .map((node) => {
                if (typeof node === 'string') return node;
                if (node.type === 'break') return '\n';
                return node.inline ? inlineText(node.inline) : node.text;
            })
            .join('');
    const blockText = (block) => {
        if (block.inline) return inlineText(block.inline);
        if (block.type === 'code') return block.text;
        if (block.type === 'quote') return block.blocks.map(blockText).join('\n');
        if (block.type === 'list')
            return block.items.map((item) => item.blocks.map(blockText).join('\n')).join('\n');
        if (block.type === 'table') {
            return [block.head, ...block.rows].map((row) => row.map(inlineText).join(', ')).join('\n');
        }
        return '';
    };
    return parseBlocks(text).map(blockText).join('\n').trim();
}
