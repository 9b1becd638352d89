/* render.js -- blocks of markdown as elements, also while the text still grows.
 *
 * Every string of a model ends in a text node.  Addresses of links come from markdown.js, which
 * lets three schemes through.  MarkdownView keeps what is final and touches only the last block.
 */
import { el, icon, morph } from './dom.js';
import { GrowingText } from './markdown.js';

const SHARE = 5; /* one part rendering, the others for everything else */

function inlineNodes(inline) {
    return inline.map((node) => {
        if (typeof node === 'string') return document.createTextNode(node);
        if (node.type === 'break') return el('br');
        if (node.type === 'code') return el('code', null, node.text);
        if (node.type === 'link') {
            const attributes = { href: node.href, target: '_blank', rel: 'noopener noreferrer' };
            return el('a', attributes, inlineNodes(node.inline));
        }
        return el(node.type, null, inlineNodes(node.inline));
    });
}

function codeNode(block) {
    const label = block.language || 'text';
    const copy = el(
        'button',
        { type: 'button', class: 'copy', 'aria-label': 'Copy code' },
        icon('copy'),
        el('span', null, 'Copy'),
    );
    return el(
        'div',
        { class: 'code' },
        el('div', { class: 'code-head' }, el('span', { class: 'code-language' }, label), copy),
        el('pre', { tabindex: '0', role: 'region', 'aria-label': `Code, ${label}` }, el('code', null, block.text)),
    );
}

function tableNode(block) {
    const row = (cells, tag) =>
        el(
            'tr',
            null,
            cells.map((cell, i) => {
                const scope = tag === 'th' ? 'col' : null;
                return el(tag, { class: `to-${block.align[i]}`, scope }, inlineNodes(cell));
            }),
        );
    return el(
        'div',
        { class: 'table', tabindex: '0', role: 'region', 'aria-label': 'Table' },
        el(
            'table',
            null,
            el('thead', null, row(block.head, 'th')),
            el(
                'tbody',
                null,
                block.rows.map((cells) => row(cells, 'td')),
            ),
        ),
    );
}

function listNode(block) {
    const items = block.items.map((item) => {
        const [first, ...rest] = item.blocks;
        const tight = !block.loose && first && first.type === 'paragraph';
        const box =
            item.checked === null
                ? null
                : el('input', {
                      type: 'checkbox',
                      disabled: true,
                      checked: item.checked,
                      'aria-label': item.checked ? 'done' : 'open',
                  });
        const body = tight ? [...inlineNodes(first.inline), ...rest.map(blockNode)] : item.blocks.map(blockNode);
        return el('li', { class: box ? 'task' : null }, box, body);
    });
    return el(block.ordered ? 'ol' : 'ul', { start: block.ordered && block.from !== 1 ? block.from : null }, items);
}

/* Headings of a text begin below those of the page and of the message. */
function blockNode(block) {
    switch (block.type) {
        case 'heading':
            return el(
                `h${Math.min(6, block.level + 2)}`,
                { class: `level-${block.level}` },
                inlineNodes(block.inline),
            );
        case 'code':
            return codeNode(block);
        case 'table':
            return tableNode(block);
        case 'list':
            return listNode(block);
        case 'quote':
            return el('blockquote', null, block.blocks.map(blockNode));
        case 'rule':
            return el('hr');
        default:
            return el('p', null, inlineNodes(block.inline));
    }
}

/* A block runs the way its language does, and what is in it with it; code runs from the left. */
function topNode(block) {
    const node = blockNode(block);
    node.dir = 'auto';
    return node;
}

/* Shows a text in an element.  update() may be called for every token: it draws at most once a
 * frame, and less often when drawing is slow, so that the page stays quick to the hand. */
export class MarkdownView {
    constructor(element) {
        this.element = element;
        this.reset();
    }

    reset() {
        this.growing = new GrowingText();
        this.open = []; /* elements of blocks that may still change */
        this.text = '';
        this.timer = null;
        this.element.replaceChildren();
    }

    update(text, done) {
        /* What counted as done may still grow: another tab's answer does. */
        if (!text.startsWith(this.text) || (this.done && text !== this.text)) this.reset();
        this.text = text;
        this.done = done;
        if (done) {
            clearTimeout(this.timer);
            this.draw(true);
        } else if (!this.timer) {
            this.timer = setTimeout(() => requestAnimationFrame(() => this.draw(false)), this.pause || 0);
        }
    }

    draw(done) {
        const began = performance.now();
        this.timer = null;
        const { settled, open } = this.growing.update(this.text, done);
        const fresh = [...settled, ...open].map(topNode);
        fresh.forEach((node, i) => {
            const old = this.open[i];
            if (!old) this.element.append(node);
            else if (old.nodeName !== node.nodeName) old.replaceWith(node);
            else {
                morph(old, node);
                fresh[i] = old;
            }
        });
        for (const old of this.open.slice(fresh.length)) old.remove();
        this.open = fresh.slice(settled.length);
        this.pause = (performance.now() - began) * (SHARE - 1);
    }
}
