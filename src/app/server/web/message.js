/* message.js -- how one message looks.
 *
 * A MessageView belongs to one node for as long as that is on the page; update() brings it up
 * to date with the node and, while there is one, its Generation.  What the reader may do is
 * asked of `actions`, which chat.js gives; nothing here changes a conversation.
 */
import { byId, copyText, el, icon, iconButton, isSend } from './dom.js';
import { count, rate, seconds } from './format.js';
import { MarkdownView } from './render.js';

const NAMES = { user: 'You', assistant: 'Answer', tool: 'Result' };

export class MessageView {
    constructor(node, actions) {
        this.node = node;
        this.actions = actions;
        this.body = el('div', { class: 'body' });
        this.foot = el('div', { class: 'foot' });
        this.element = el(
            'article',
            { class: `message ${node.role}` },
            el('h2', { class: 'unseen' }, NAMES[node.role]),
            this.body,
            this.foot,
        );
        if (node.role === 'assistant') this.buildAnswer();
    }

    buildAnswer() {
        this.wait = el('div', { class: 'wait', hidden: true });
        this.thoughts = el('div', { class: 'prose thoughts' });
        this.thinkingLabel = el('span');
        this.thinking = el(
            'details',
            { class: 'thinking', hidden: true, ontoggle: () => this.showThoughts() },
            el('summary', null, icon('forward'), this.thinkingLabel),
            this.thoughts,
        );
        this.prose = el('div', { class: 'prose' });
        this.calls = el('div', { class: 'calls' });
        this.trouble = el('div', { class: 'trouble', hidden: true });
        this.body.append(this.wait, this.thinking, this.prose, this.calls, this.trouble);
        this.thoughtsView = new MarkdownView(this.thoughts);
        this.proseView = new MarkdownView(this.prose);
    }

    /* siblings: [place, n] of this node among its parent's children. */
    update(generation, siblings, isLast) {
        this.generation = generation;
        this.element.classList.toggle('running', Boolean(generation));
        if (this.node.role === 'assistant') this.updateAnswer(generation);
        else if (!this.editing) this.updateText();
        const look = JSON.stringify([Boolean(generation), siblings, isLast, this.node.state, this.node.stats]);
        if (look !== this.footLook && !this.editing) this.updateFoot(siblings, isLast);
        this.footLook = look;
    }

    updateText() {
        const { node } = this;
        if (this.shown === node.content) return;
        this.shown = node.content;
        if (node.role === 'tool') {
            this.body.replaceChildren(
                el(
                    'div',
                    { class: 'call result' },
                    el('div', { class: 'call-head' }, icon('check'), el('span', null, `Result of ${node.name}`)),
                    el(
                        'pre',
                        { tabindex: '0', role: 'region', 'aria-label': `Result of ${node.name}` },
                        pretty(node.content),
                    ),
                ),
            );
        } else {
            this.body.replaceChildren(el('div', { class: 'said', dir: 'auto' }, node.content));
        }
    }

    updateAnswer(generation) {
        const { node } = this;
        const done = !generation;
        this.updateWait(generation);
        this.thinking.hidden = !node.reasoning;
        if (node.reasoning) this.updateThinking(generation);
        if (node.content !== this.prosed || done !== this.prosedDone) this.proseView.update(node.content, done);
        this.prosed = node.content;
        this.prosedDone = done;
        this.updateCalls();
        this.updateTrouble(done);
    }

    /* What is shown until the first word: dots, a countdown, or how much of the prompt is read. */
    updateWait(generation) {
        const phase = generation ? generation.phase : '';
        this.wait.hidden = !['waiting', 'busy', 'reading'].includes(phase);
        if (this.wait.hidden) {
            this.waitPhase = null;
            return;
        }
        if (phase !== this.waitPhase) this.buildWait(phase);
        this.waitPhase = phase;
        if (phase === 'busy') {
            const left = Math.max(0, Math.ceil((generation.retryAt - Date.now()) / 1000));
            this.waitLabel.textContent = `The server is busy. Trying again in ${left} s`;
        } else if (phase === 'reading') {
            const { total, cache = 0, processed, time_ms: ms } = generation.progress;
            const fresh = processed - cache;
            this.bar.max = Math.max(1, total);
            this.bar.value = processed;
            const left = ms > 500 && fresh > 0 ? `, ${seconds((ms / fresh) * (total - processed))} left` : '';
            this.waitLabel.textContent = `Reading ${count(processed)} of ${count(total)} tokens${left}`;
        }
    }

    buildWait(phase) {
        this.waitLabel = el('span', { class: 'wait-label' });
        if (phase === 'reading') {
            this.bar = el('progress', { 'aria-label': 'Reading the prompt' });
            this.wait.replaceChildren(this.bar, this.waitLabel);
        } else if (phase === 'busy') {
            const now = el(
                'button',
                { type: 'button', class: 'quiet', onclick: () => this.generation.retryNow() },
                'Try now',
            );
            this.wait.replaceChildren(icon('warning'), this.waitLabel, now);
        } else {
            this.wait.replaceChildren(
                el('span', { class: 'dots', role: 'img', 'aria-label': 'Waiting' }, el('i'), el('i'), el('i')),
            );
        }
    }

    updateThinking(generation) {
        const { stats } = this.node;
        const live = generation && generation.phase === 'thinking';
        const ms = live ? performance.now() - generation.thinkingSince : stats.thinkMs;
        const label = live
            ? `Thinking… ${Math.floor(ms / 1000)} s`
            : ms > 1000
              ? `Thought for ${seconds(ms)}`
              : 'Thought for a moment';
        if (this.thinkingLabel.textContent !== label) this.thinkingLabel.textContent = label;
        this.thinking.classList.toggle('live', Boolean(live));
        this.showThoughts();
    }

    /* Folded thoughts cost nothing. */
    showThoughts() {
        const live = this.generation && this.generation.phase === 'thinking';
        if (this.thinking.open) this.thoughtsView.update(this.node.reasoning, !live);
    }

    updateCalls() {
        const { node } = this;
        const look = JSON.stringify(node.calls || []);
        if (look === this.callsLook) return;
        this.callsLook = look;
        this.calls.replaceChildren(
            ...(node.calls || []).map((call) =>
                el(
                    'div',
                    { class: 'call' },
                    el(
                        'div',
                        { class: 'call-head' },
                        icon('tool'),
                        el('span', { class: 'call-name' }, call.name || '…'),
                    ),
                    el(
                        'pre',
                        { tabindex: '0', role: 'region', 'aria-label': `Arguments of ${call.name}` },
                        pretty(call.arguments),
                    ),
                ),
            ),
        );
    }

    updateTrouble(done) {
        const { node } = this;
        const notice = done && noticeOf(node);
        this.trouble.hidden = !notice;
        if (!notice || notice.text === this.troubleText) return;
        this.troubleText = notice.text;
        this.trouble.className = `trouble ${notice.grave ? 'grave' : ''}`;
        const again =
            notice.again &&
            el('button', { type: 'button', class: 'quiet', onclick: () => this.actions.again(node) }, 'Try again');
        this.trouble.replaceChildren(
            ...[notice.grave && icon('warning'), el('span', null, notice.text), again].filter(Boolean),
        );
    }

    /* ---- what stands under a message ---- */

    updateFoot(siblings, isLast) {
        const { node, actions } = this;
        const focused =
            this.foot.contains(document.activeElement) && document.activeElement.getAttribute('aria-label');
        const running = Boolean(this.generation);
        const parts = [];
        if (siblings[1] > 1) parts.push(this.branches(siblings));
        if (!running && node.content) {
            parts.push(iconButton('copy', 'Copy', (event) => copied(event.currentTarget, node.content)));
        }
        if (node.role !== 'assistant') parts.push(iconButton('edit', 'Edit', () => this.edit()));
        else if (!running) parts.push(iconButton('redo', 'Answer again', () => actions.again(node)));
        if (node.role === 'assistant' && !running) parts.push(this.stats());
        this.foot.replaceChildren(...parts.filter(Boolean));
        this.foot.classList.toggle('kept', isLast || siblings[1] > 1);
        const same =
            focused &&
            [...this.foot.querySelectorAll('button')].find((b) => b.getAttribute('aria-label') === focused);
        if (same) same.focus();
    }

    branches([place, n]) {
        const { node, actions } = this;
        return el(
            'span',
            { class: 'branches', role: 'group', 'aria-label': 'Versions' },
            iconButton('back', 'Version before', () => actions.choose(node, -1), { disabled: place === 0 }),
            el('span', { class: 'branch-count' }, `${place + 1}/${n}`),
            iconButton('forward', 'Version after', () => actions.choose(node, 1), { disabled: place === n - 1 }),
        );
    }

    stats() {
        const { tokens, rate: perSecond, firstMs, prompt, cached } = this.node.stats || {};
        const said = [];
        if (perSecond) said.push(rate(perSecond));
        if (firstMs) said.push(`first after ${seconds(firstMs)}`);
        if (tokens) said.push(`${count(tokens)} tokens`);
        const title = prompt ? `Prompt: ${count(prompt)} tokens, ${count(cached || 0)} of them reused` : null;
        return said.length ? el('span', { class: 'stats', title }, said.join(' · ')) : null;
    }

    /* ---- editing ---- */

    edit() {
        const { node, actions } = this;
        if (this.editing) {
            this.body.querySelector('textarea').focus();
            return;
        }
        this.editing = true;
        const box = el('textarea', { 'aria-label': 'Edit the message', rows: '2', dir: 'auto' });
        box.value = node.content;
        const close = () => {
            this.editing = false;
            this.shown = null;
            this.element.classList.remove('editing');
            this.foot.hidden = false;
            this.updateText();
        };
        const save = () => {
            const text = box.value.trim();
            if (text) actions.edited(node, text); /* which leaves this version, and with it this view */
            else cancel();
        };
        const cancel = () => {
            close();
            const button = this.foot.querySelector('[aria-label="Edit"]');
            if (button) button.focus();
        };
        box.addEventListener('keydown', (event) => {
            if (isSend(event)) {
                event.preventDefault();
                save();
            } else if (event.key === 'Escape') {
                event.stopPropagation();
                cancel();
            }
        });
        this.element.classList.add('editing');
        this.foot.hidden = true;
        this.body.replaceChildren(
            box,
            el(
                'div',
                { class: 'buttons' },
                el('small', null, 'Makes a new version; this one stays.'),
                el('span', { class: 'gap' }),
                el('button', { type: 'button', class: 'quiet', onclick: cancel }, 'Cancel'),
                el('button', { type: 'button', class: 'primary', onclick: save }, 'Send'),
            ),
        );
        box.focus();
    }
}

/* What a reader has to know of how an answer ended. */
function noticeOf(node) {
    if (node.state === 'failed' && node.error) {
        const { kind, message, nPrompt, nCtx } = node.error;
        if (kind !== 'full') return { grave: true, again: true, text: message };
        const counts =
            nPrompt && nCtx ? `It has ${count(nPrompt)} tokens and the model can take ${count(nCtx)}. ` : '';
        return {
            grave: true,
            text: `This conversation is too long. ${counts}Edit an earlier message or start a new chat.`,
        };
    }
    if (node.state === 'stopped') return { text: 'Stopped' };
    if (node.state === 'running') return { text: 'Not finished, or still being written in another tab' };
    if (node.state === 'done' && node.stats && node.stats.finish === 'length')
        return { text: 'Stopped at the limit of tokens' };
    return null;
}

function pretty(json) {
    try {
        return JSON.stringify(JSON.parse(json), null, 2);
    } catch {
        return json;
    }
}

/* Copies and says so on the button. */
export async function copied(button, text) {
    if (!(await copyText(text))) return;
    byId('announce').textContent = 'Copied';
    if (button.classList.contains('done')) return;
    const before = [...button.childNodes];
    const word = button.querySelector('span');
    button.replaceChildren(icon('check'), ...(word ? [el('span', null, 'Copied')] : []));
    button.classList.add('done');
    setTimeout(() => {
        button.replaceChildren(...before);
        button.classList.remove('done');
    }, 1500);
}

/* Where the reader gives what a tool would have answered. */
export function resultForm(call, onResult) {
    const box = el('textarea', {
        rows: '2',
        class: 'mono',
        'aria-label': `Result of ${call.name}`,
        placeholder: 'What the tool answers',
    });
    const send = (event) => {
        event.preventDefault();
        onResult(box.value);
    };
    box.addEventListener('keydown', (event) => {
        if (isSend(event)) send(event);
    });
    return el(
        'form',
        { class: 'call asks', onsubmit: send },
        el('div', { class: 'call-head' }, icon('tool'), el('span', null, 'Result of ', el('b', null, call.name))),
        box,
        el(
            'div',
            { class: 'buttons' },
            el('span', { class: 'gap' }),
            el('button', { type: 'submit', class: 'primary' }, 'Send result'),
        ),
    );
}
