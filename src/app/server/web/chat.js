/* chat.js -- the page: what is open, what runs, and what the reader's hands do.
 *
 * Owns the open conversation and the running answers (at most one per conversation; they go on
 * while another conversation is shown).  Looks are in message.js, lists in sidebar.js, storage
 * in store.js.  A conversation is stored when something is said in it, and while an answer grows.
 */
import { getModels, getProps, hasKey, isAlive, setKey } from './api.js';
import { byId, el, icon, isSend, isTouch } from './dom.js';
import { count } from './format.js';
import { Generation, requestFor } from './generation.js';
import { plainText } from './markdown.js';
import { copied, MessageView, resultForm } from './message.js';
import { Follow } from './scroll.js';
import { Settings } from './settings.js';
import { Sidebar } from './sidebar.js';
import { Status } from './status.js';
import { Store } from './store.js';
import {
    addNode,
    checkedConversation,
    chooseSibling,
    join,
    lastOf,
    missingResults,
    newConversation,
    parentOf,
    pathOf,
    titleFrom,
} from './tree.js';

const SAVE_MS = 2000;
const LOOK_AGAIN_MS = 3000;
const TOAST_MS = 8000;

class Chat {
    running = new Map(); /* id of a conversation -> Generation */
    views = new Map(); /* id of a node -> MessageView */
    asks = new Map(); /* call of a tool -> form for its result */
    model = 'default';

    async start() {
        this.store = await Store.open();
        this.follow = new Follow();
        this.status = new Status(() => this.running.size > 0);
        this.settings = new Settings((system) => this.setSystem(system));
        this.sidebar = new Sidebar(this.store, {
            open: (id) => this.open(id),
            renamed: (id, title) => this.rename(id, title),
            removed: (id) => this.remove(id),
            isRunning: (id) => this.running.has(id),
            currentId: () => this.conversation.id,
            toast: (...words) => this.toast(...words),
        });
        this.store.onChange((id) => this.changedElsewhere(id));
        this.listen();
        const wanted = location.hash.slice(1);
        this.openNew();
        if (/^\w+$/.test(wanted)) await this.open(wanted);
        await this.sidebar.refresh();
        if (!this.store.lasting) this.toast('This browser keeps nothing: conversations are gone with the tab.');
        setInterval(() => this.tick(), 1000);
        await this.meetServer();
    }

    /* ---- the server ---- */

    async meetServer() {
        try {
            const { data: [model] = [] } = await getModels();
            if (model) this.showModel(model);
            this.hideBanner();
        } catch (error) {
            if (error.kind === 'key') this.askKey(() => this.meetServer());
            else this.serverGone(error);
            return;
        }
        try {
            const { default_generation_settings: defaults = {} } = await getProps();
            this.settings.showDefaults(defaults);
        } catch {
            this.settings.showDefaults({}); /* a server that does not tell */
        }
        this.showNumbers();
        this.status.poll();
    }

    showModel(model) {
        this.model = model.id;
        const meta = model.meta || {};
        const nCtx = meta.n_ctx || model.context_length || 0;
        this.status.nCtx = nCtx;
        byId('model').textContent = model.id;
        byId('model').title = model.id;
        byId('welcome-model').textContent = nCtx ? `${model.id}, ${count(nCtx)} tokens of context` : model.id;
    }

    /* Looks for the server until it is back. */
    serverGone(error) {
        this.showBanner(
            error.kind === 'busy'
                ? `${error.message} Asking again…`
                : 'The server does not answer. Looking for it again…',
        );
        clearTimeout(this.looking);
        this.looking = setTimeout(async () => {
            if (await isAlive()) this.meetServer();
            else this.serverGone(error);
        }, LOOK_AGAIN_MS);
    }

    askKey(then) {
        const dialog = byId('key-dialog');
        const form = dialog.querySelector('form');
        form.querySelector('.form-error').hidden = !hasKey();
        form.onsubmit = (event) => {
            event.preventDefault();
            setKey(form.elements.key.value.trim());
            form.reset();
            dialog.close();
            then();
        };
        if (!dialog.open) dialog.showModal();
    }

    /* ---- conversations ---- */

    openNew() {
        this.show(newConversation(this.settings.values.system));
        history.replaceState(null, '', location.pathname);
        byId('prompt').focus();
    }

    async open(id) {
        const running = this.running.get(id);
        const stored = running ? null : await this.store.get(id);
        if (!running && !stored) {
            history.replaceState(null, '', location.pathname);
            return;
        }
        let conversation;
        try {
            conversation = running ? running.conversation : checkedConversation(stored);
        } catch (error) {
            this.toast(`This conversation cannot be shown: ${error.message}.`);
            return;
        }
        history.replaceState(null, '', `#${id}`);
        this.show(conversation);
        this.sidebar.refresh();
    }

    show(conversation) {
        this.conversation = conversation;
        this.views.clear();
        this.asks.clear();
        byId('thread').replaceChildren();
        this.draw();
        this.follow.toEnd();
        this.sidebar.refresh();
    }

    async remove(id) {
        this.forget(id);
        await this.store.remove(id);
    }

    forget(id) {
        const running = this.running.get(id);
        if (running) {
            running.forgotten = true;
            running.stop();
        }
        if (id === this.conversation.id) this.openNew();
    }

    /* The one conversation of this name that is at work here, or none. */
    atHand(id) {
        const running = this.running.get(id);
        if (running) return running.conversation;
        return id === this.conversation.id ? this.conversation : null;
    }

    async rename(id, title) {
        const conversation = this.atHand(id) || (await this.store.get(id));
        if (!conversation) return; /* another tab removed it */
        Object.assign(conversation, { title, titleAt: Date.now() });
        await this.save(conversation);
        this.draw();
        this.sidebar.refresh();
    }

    setSystem(system) {
        if (system === this.conversation.system) return;
        Object.assign(this.conversation, { system, systemAt: Date.now() });
        if (pathOf(this.conversation).length) this.save(this.conversation);
    }

    async save(conversation) {
        try {
            if (!(await this.store.put(conversation))) this.forget(conversation.id);
        } catch (error) {
            const why = error.name === 'QuotaExceededError' ? 'The browser has no room for it.' : error.message;
            this.toast(`This conversation could not be stored: ${why}`);
        }
    }

    /* Another tab stored or removed a conversation. */
    async changedElsewhere(id) {
        this.sidebar.refresh();
        if (!this.atHand(id)) return;
        const fresh = await this.store.get(id);
        const conversation = this.atHand(id);
        if (!conversation) return;
        if (!fresh) {
            this.forget(id);
            return;
        }
        const writing = [...this.asks.values()].some((form) => form.querySelector('textarea').value.trim());
        const busy = writing || this.running.has(id) || [...this.views.values()].some((view) => view.editing);
        join(conversation, fresh, !busy);
        this.draw();
    }

    /* ---- talking ---- */

    async send(text) {
        const { conversation } = this;
        if (!conversation.title) conversation.title = titleFrom(text);
        this.ask(addNode(conversation, lastOf(conversation), { role: 'user', content: text }));
        history.replaceState(null, '', `#${conversation.id}`);
        const made = await this.store.trim().catch(() => 0); /* storing it said what is wrong */
        if (made) this.toast('The oldest conversation made room for this one.');
    }

    /* Has the model answer what `node` says. */
    async ask(node, conversation = this.conversation) {
        const before = this.running.get(conversation.id);
        if (before) before.stop();
        const answer = addNode(conversation, node, { role: 'assistant', state: 'running' });
        const body = requestFor(conversation, answer, this.settings.values, this.model);
        const generation = new Generation(conversation, answer, body, () => this.grew(generation));
        this.running.set(conversation.id, generation);
        conversation.updated = Date.now();
        this.draw();
        if (conversation === this.conversation) this.follow.toEnd();
        this.status.poll();
        await this.save(conversation);
        this.sidebar.refresh();
        await generation.run();
        await this.finished(generation);
    }

    /* Called for every chunk; drawing is the views' business, storing is now and then. */
    grew(generation) {
        if (generation.forgotten) return;
        const view = this.viewOf(generation);
        if (view && generation.phase !== 'over') {
            view.update(generation, this.placeOf(generation.node), true);
            this.status.showSpeed(generation.rate);
        }
        const now = Date.now();
        if (now - (generation.saved || 0) > SAVE_MS && generation.heard) {
            generation.saved = now;
            this.save(generation.conversation);
        }
    }

    async finished(generation) {
        const { conversation, node } = generation;
        if (this.running.get(conversation.id) === generation) this.running.delete(conversation.id);
        if (generation.forgotten) return;
        conversation.updated = Date.now();
        if (conversation === this.conversation) {
            this.draw();
            this.announce(node);
        }
        this.status.poll();
        await this.save(conversation); /* at once: later it may have been deleted */
        this.sidebar.refresh();
        const { error } = node;
        if (error && error.kind === 'key') this.askKey(() => this.again(node, conversation));
        else if (error && error.kind === 'gone' && !(await isAlive())) this.serverGone(error);
    }

    /* Screen readers hear a whole answer once, not its tokens. */
    announce(node) {
        const end = { stopped: 'Stopped. ', failed: 'The answer failed. ' }[node.state] || '';
        const calls = node.calls.map((call) => `Calls ${call.name}.`).join(' ');
        byId('announce').textContent =
            `${end}${node.error ? node.error.message : ''} ${plainText(node.content)} ${calls}`;
    }

    stop() {
        const generation = this.running.get(this.conversation.id);
        if (generation) generation.stop();
        return Boolean(generation);
    }

    again(node, conversation = this.conversation) {
        this.ask(parentOf(conversation, node), conversation);
    }

    edited(node, text) {
        const { role, callId, name } = node;
        const parent = parentOf(this.conversation, node);
        this.answerTo(
            addNode(
                this.conversation,
                parent,
                role === 'tool' ? { role, content: text, callId, name } : { role, content: text },
            ),
        );
    }

    /* Results are gathered until every call has one. */
    answerTo(node) {
        if (missingResults(this.conversation, node).length) {
            this.draw();
            this.save(this.conversation);
        } else {
            this.ask(node);
        }
    }

    giveResult(call, content) {
        const last = lastOf(this.conversation);
        this.answerTo(
            addNode(this.conversation, last, { role: 'tool', content, callId: call.id, name: call.name }),
        );
        this.follow.toEnd();
        byId('prompt').focus();
    }

    choose(node, step) {
        const running = this.running.get(this.conversation.id);
        if (running) running.stop();
        chooseSibling(this.conversation, node, step);
        this.draw();
        this.save(this.conversation);
        const shown = this.conversation.nodes[parentOf(this.conversation, node).chosen];
        const view = this.views.get(shown.id);
        const button = view.element.querySelector(`[aria-label="Version ${step < 0 ? 'before' : 'after'}"]`);
        if (button) (button.disabled ? view.element.querySelector('.branches button:enabled') : button).focus();
    }

    /* ---- drawing ---- */

    viewOf(generation) {
        return generation.conversation === this.conversation ? this.views.get(generation.node.id) : null;
    }

    placeOf(node) {
        const { children } = parentOf(this.conversation, node);
        return [children.indexOf(node.id), children.length];
    }

    draw() {
        const { conversation } = this;
        const path = pathOf(conversation);
        const generation = this.running.get(conversation.id);
        const thread = byId('thread');
        const wanted = new Set(path.map((node) => node.id));
        const hadFocus = thread.contains(document.activeElement);
        for (const [id, view] of this.views) {
            if (wanted.has(id)) continue;
            view.element.remove();
            this.views.delete(id);
        }
        path.forEach((node, i) => {
            let view = this.views.get(node.id);
            if (!view) {
                view = new MessageView(node, this);
                this.views.set(node.id, view);
            }
            if (thread.children[i] !== view.element) thread.insertBefore(view.element, thread.children[i] || null);
            view.update(
                generation && generation.node === node ? generation : null,
                this.placeOf(node),
                i === path.length - 1,
            );
        });
        const last = lastOf(conversation);
        const asking = !generation && ['assistant', 'tool'].includes(last.role);
        this.drawAsks(asking ? missingResults(conversation, last) : []);
        if (hadFocus && !thread.contains(document.activeElement)) this.rest();
        byId('welcome').hidden = path.length > 0;
        byId('title').textContent = conversation.title || 'New chat';
        document.title = conversation.title ? `${conversation.title} · moxie` : 'moxie';
        this.showNumbers();
        this.showSend();
    }

    /* A form that is still wanted stays, with what was typed into it. */
    drawAsks(calls) {
        for (const [call, form] of this.asks) {
            if (calls.includes(call)) continue;
            form.remove();
            this.asks.delete(call);
        }
        for (const call of calls) {
            if (this.asks.has(call)) continue;
            const form = resultForm(call, (text) => this.giveResult(call, text));
            this.asks.set(call, form);
            byId('thread').append(form);
        }
    }

    /* Where the hands go on when what they were at is gone.  On a phone not to the message box, which would
     * open the keyboard. */
    rest() {
        byId(isTouch() ? 'scroller' : 'prompt').focus({ preventScroll: true });
    }

    showNumbers() {
        const answered = pathOf(this.conversation).filter((node) => node.stats && node.stats.prompt);
        const last = answered[answered.length - 1];
        this.status.showContext(last ? last.stats.prompt + (last.stats.tokens || 0) : 0);
        if (!this.running.has(this.conversation.id)) this.status.showSpeed(0);
    }

    showSend() {
        const running = this.running.has(this.conversation.id);
        const button = byId('send');
        const label = running ? 'Stop' : 'Send';
        if (button.getAttribute('aria-label') !== label) {
            button.setAttribute('aria-label', label);
            button.title = running ? 'Stop (Esc)' : 'Send (Enter)';
            button.replaceChildren(icon(running ? 'stop' : 'send'));
        } else if (!button.firstChild) {
            button.append(icon('send'));
        }
        const disabled = !running && !byId('prompt').value.trim();
        if (disabled && document.activeElement === button) this.rest();
        button.disabled = disabled;
    }

    /* Labels that count seconds. */
    tick() {
        for (const generation of this.running.values()) this.grew(generation);
    }

    showBanner(text) {
        byId('banner').hidden = false;
        byId('banner').replaceChildren(icon('warning'), el('span', null, text));
    }

    hideBanner() {
        byId('banner').hidden = true;
    }

    toast(text, action, onAction) {
        if (!action && [...byId('toasts').children].some((shown) => shown.textContent === text)) return;
        const toast = el('div', { class: 'toast' }, el('span', null, text));
        const close = () => toast.remove();
        if (action) {
            toast.append(
                el(
                    'button',
                    {
                        type: 'button',
                        class: 'quiet',
                        onclick: () => {
                            close();
                            onAction();
                        },
                    },
                    action,
                ),
            );
        }
        byId('toasts').append(toast);
        setTimeout(close, TOAST_MS);
    }

    /* ---- hands ---- */

    listen() {
        const prompt = byId('prompt');
        const grow = () => {
            prompt.style.height = 'auto';
            prompt.style.height = `${prompt.scrollHeight}px`;
            this.showSend();
        };
        prompt.addEventListener('input', grow);
        prompt.addEventListener('keydown', (event) => {
            if (isSend(event)) {
                event.preventDefault();
                if (!this.running.has(this.conversation.id)) byId('composer').requestSubmit();
            } else if (event.key === 'ArrowUp' && !prompt.value) {
                event.preventDefault();
                this.editLast();
            }
        });
        byId('composer').addEventListener('submit', (event) => {
            event.preventDefault();
            if (this.stop()) return;
            const text = prompt.value.trim();
            if (!text) return;
            prompt.value = '';
            this.send(text);
            grow();
            prompt.focus();
        });
        byId('thread').addEventListener('click', (event) => {
            const button = event.target.closest('.copy');
            if (button) copied(button, button.closest('.code').querySelector('code').textContent);
        });
        document.querySelector('.skip').addEventListener('click', (event) => {
            event.preventDefault(); /* the address names the conversation */
            prompt.focus();
        });
        byId('new-chat').addEventListener('click', () => {
            this.sidebar.closeDrawer();
            this.openNew();
        });
        byId('show-settings').addEventListener('click', () => this.settings.open(this.conversation.system));
        byId('show-keys').addEventListener('click', () => byId('keys').showModal());
        document.addEventListener('keydown', (event) => this.key(event));
        window.addEventListener('hashchange', () => this.open(location.hash.slice(1)));
        window.addEventListener('pagehide', ({ persisted }) => {
            for (const { conversation, node } of this.running.values()) {
                /* Only what the browser may bring back goes on. */
                this.store.keepLast(conversation.id, persisted ? node : { ...node, state: 'stopped' });
            }
        });
        this.listenDialogs();
        this.listenTheme();
    }

    editLast() {
        const mine = pathOf(this.conversation).filter((node) => node.role === 'user');
        if (mine.length) this.views.get(mine[mine.length - 1].id).edit();
    }

    key(event) {
        if (event.key === 'Escape' && !document.querySelector('dialog[open]')) this.stop();
        if (!event.ctrlKey && !event.metaKey) return;
        if (event.key === '/') {
            event.preventDefault();
            if (!document.querySelector('dialog[open]')) byId('keys').showModal();
        } else if (event.altKey && event.code === 'KeyN') {
            event.preventDefault();
            this.openNew();
        }
    }

    listenDialogs() {
        for (const dialog of document.querySelectorAll('dialog')) {
            dialog.addEventListener('click', (event) => {
                if (event.target.closest('[data-close]')) dialog.close();
            });
            /* Beside it; not "click", which a selection dragged out of a field also ends in. */
            dialog.addEventListener('pointerdown', ({ target, clientX: x, clientY: y }) => {
                const { left, right, top, bottom } = dialog.getBoundingClientRect();
                const beside = x < left || x > right || y < top || y > bottom; /* not on its scroll bar */
                if (target === dialog && beside) dialog.close();
            });
        }
        for (const element of document.querySelectorAll('[data-icon]')) element.prepend(icon(element.dataset.icon));
    }

    listenTheme() {
        const themes = { system: ['screen', 'light'], light: ['sun', 'dark'], dark: ['moon', 'system'] };
        const button = byId('theme');
        const show = () => {
            const now = window.moxieTheme.get();
            button.replaceChildren(icon(themes[now][0]));
            button.setAttribute('aria-label', `Theme: ${now}`);
            button.title = `Theme: ${now}`;
        };
        button.addEventListener('click', () => {
            window.moxieTheme.set(themes[window.moxieTheme.get()][1]);
            show();
        });
        show();
    }
}

new Chat().start();
