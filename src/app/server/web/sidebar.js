/* sidebar.js -- the list of conversations: search, rename, delete, export, import; and, on a
 * narrow screen, the drawer that it is in. */
import { byId, el, iconButton } from './dom.js';
import { dayOf } from './format.js';
import { checkedConversation } from './tree.js';

const IMPORT_BYTES_MAX = 100e6;
const SEARCH_PAUSE_MS = 150;

export class Sidebar {
    /* actions: open(id), renamed(id, title), removed(id), isRunning(id), currentId(), toast(...) */
    constructor(store, actions) {
        this.store = store;
        this.actions = actions;
        this.found = null;
        byId('search').addEventListener('input', () => this.searchSoon());
        byId('export').addEventListener('click', () => this.exportAll());
        byId('import').addEventListener('click', () => byId('import-file').click());
        byId('import-file').addEventListener('change', (event) => this.importFile(event.target));
        this.buildDrawer();
        this.buildRename();
    }

    /* ---- the list ---- */

    async refresh() {
        const all = await this.store.list().catch(() => null);
        if (!all) return; /* what cannot be read is left as it was shown */
        const heads = all.filter((head) => !this.found || this.found.has(head.id));
        const parts = [];
        let day = null;
        for (const head of heads) {
            const own = dayOf(head.updated, Date.now());
            if (own !== day) parts.push([own, []]);
            day = own;
            parts[parts.length - 1][1].push(this.item(head));
        }
        const list = byId('conversations');
        const focused = list.contains(document.activeElement) && document.activeElement.dataset.focus;
        const at = [...list.querySelectorAll('li')].findIndex((item) => item.contains(document.activeElement));
        list.replaceChildren(
            ...parts.map(([name, items]) => el('section', null, el('h2', null, name), el('ul', null, items))),
        );
        if (!heads.length)
            list.append(
                el('p', { class: 'none' }, this.found ? 'Nothing found' : 'Conversations stay in this browser.'),
            );
        if (focused) this.focusAgain(focused, at);
    }

    /* The button that had the focus, or what came into the place of its conversation. */
    focusAgain(name, at) {
        const list = byId('conversations');
        const same = list.querySelector(`[data-focus="${name}"]`);
        const titles = list.querySelectorAll('.open');
        const near = same ? same.closest('li').querySelector('.open') : titles[Math.min(at, titles.length - 1)];
        (near || byId('new-chat')).focus();
        if (same) same.focus(); /* shown only beside a title that has the focus */
    }

    item({ id, title }) {
        const name = title || 'New chat';
        const current = id === this.actions.currentId();
        return el(
            'li',
            { class: [current && 'current', this.actions.isRunning(id) && 'busy'].filter(Boolean).join(' ') },
            el(
                'button',
                {
                    type: 'button',
                    class: 'open',
                    'data-focus': `open-${id}`,
                    'aria-current': current ? 'page' : null,
                    title: name,
                    dir: 'auto',
                    onclick: () => {
                        this.closeDrawer();
                        this.actions.open(id);
                    },
                },
                name,
            ),
            iconButton('edit', `Rename ${name}`, () => this.askTitle(id, name), { 'data-focus': `edit-${id}` }),
            iconButton('trash', `Delete ${name}`, () => this.remove(id), { 'data-focus': `trash-${id}` }),
        );
    }

    searchSoon() {
        clearTimeout(this.searchTimer);
        this.searchTimer = setTimeout(async () => {
            const query = byId('search').value.trim();
            const found = query ? await this.store.search(query) : null;
            if (byId('search').value.trim() !== query) return;
            this.found = found;
            this.refresh();
        }, SEARCH_PAUSE_MS);
    }

    async remove(id) {
        const kept = await this.store.get(id);
        await this.actions.removed(id);
        await this.refresh();
        this.actions.toast('Conversation deleted', 'Undo', async () => {
            await this.store.put(kept, true);
            await this.refresh();
            this.actions.open(id);
        });
    }

    buildRename() {
        const dialog = byId('rename');
        const form = dialog.querySelector('form');
        form.addEventListener('submit', (event) => {
            event.preventDefault();
            const title = form.elements.title.value.trim();
            if (title) this.actions.renamed(this.renaming, title);
            dialog.close();
        });
        dialog.addEventListener('close', () => this.focusAgain(`edit-${this.renaming}`, 0));
    }

    askTitle(id, title) {
        this.renaming = id;
        byId('rename').querySelector('input').value = title;
        byId('rename').showModal();
        byId('rename').querySelector('input').select();
    }

    /* ---- files ---- */

    async exportAll() {
        const all = { format: 'moxie-conversations', version: 1, conversations: await this.store.all() };
        const url = URL.createObjectURL(new Blob([JSON.stringify(all, null, 1)], { type: 'application/json' }));
        const day = new Date().toISOString().slice(0, 10);
        el('a', { href: url, download: `moxie-${day}.json` }).click();
        setTimeout(() => URL.revokeObjectURL(url), 10000);
    }

    async importFile(input) {
        const [file] = input.files;
        input.value = '';
        if (!file) return;
        try {
            if (file.size > IMPORT_BYTES_MAX) throw new Error('it is larger than 100 MB');
            const raw = JSON.parse(await file.text());
            if (!raw || raw.format !== 'moxie-conversations' || !Array.isArray(raw.conversations))
                throw new Error('it was not exported here');
            this.actions.toast(await this.importAll(raw.conversations.map(checkedConversation)));
        } catch (error) {
            this.actions.toast(
                `${file.name} was not imported: ${error instanceof SyntaxError ? 'it is not JSON' : error.message}.`,
            );
        }
    }

    /* A conversation that is here already, as new or newer, stays as it is. */
    async importAll(conversations) {
        let n = 0;
        for (const conversation of conversations) {
            const own = await this.store.get(conversation.id);
            if (own && own.updated >= conversation.updated) continue;
            await this.store.put(conversation, true);
            n++;
        }
        await this.store.trim();
        await this.refresh();
        const rest = conversations.length - n;
        return `${n} imported${rest ? `, ${rest} already here` : ''}`;
    }

    /* ---- the drawer ---- */

    buildDrawer() {
        byId('sidebar-open').addEventListener('click', () => this.openDrawer());
        byId('sidebar-close').addEventListener('click', () => this.closeDrawer());
        byId('backdrop').addEventListener('click', () => this.closeDrawer());
        byId('sidebar').addEventListener('keydown', (event) => {
            if (event.key !== 'Escape' || byId('backdrop').hidden) return;
            event.stopPropagation();
            this.closeDrawer();
        });
        const narrow = matchMedia('(max-width: 800px)');
        const fit = () => {
            this.closeDrawer();
            byId('sidebar').inert = narrow.matches;
        };
        narrow.addEventListener('change', fit);
        this.narrow = narrow;
        fit();
    }

    openDrawer() {
        byId('sidebar').inert = false;
        byId('sidebar').classList.add('shown');
        byId('backdrop').hidden = false;
        document.querySelector('main').inert = true;
        byId('sidebar-open').setAttribute('aria-expanded', 'true');
        byId('sidebar-close').focus();
    }

    closeDrawer() {
        if (byId('backdrop').hidden) return;
        byId('sidebar').inert = this.narrow.matches;
        byId('sidebar').classList.remove('shown');
        byId('backdrop').hidden = true;
        document.querySelector('main').inert = false;
        byId('sidebar-open').setAttribute('aria-expanded', 'false');
        byId('sidebar-open').focus();
    }
}
