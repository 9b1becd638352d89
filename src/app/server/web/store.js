/* store.js -- conversations kept in this browser, in IndexedDB.
 *
 * Two stores: `heads` { id, title, updated } for the list and `bodies` with whole conversations,
 * so that opening the page reads little.  At most KEPT_MAX conversations stay; the oldest go.
 * Where a browser refuses storage everything still works until the tab closes, and `lasting`
 * is false.  Other tabs are told of changes by a BroadcastChannel; what one of them added to a
 * conversation stays in it whoever stores it next, and what one of them deleted stays deleted.
 */
import { join } from './tree.js';

const KEPT_MAX = 1000;
const LAST = 'moxie-last-'; /* and a conversation: in localStorage, its answer that a closing page left */

const wait = (request) =>
    new Promise((resolve, reject) => {
        request.onsuccess = () => resolve(request.result);
        request.onerror = () => reject(request.error);
    });

export class Store {
    lasting = true;
    known = new Set(); /* ids of what this tab has seen stored: what is stored no more was deleted */

    static async open() {
        const store = new Store();
        try {
            const request = indexedDB.open('moxie', 1);
            request.onupgradeneeded = () => {
                request.result.createObjectStore('heads', { keyPath: 'id' });
                request.result.createObjectStore('bodies', { keyPath: 'id' });
            };
            store.db = await wait(request);
            store.others = new BroadcastChannel('moxie');
        } catch {
            store.lasting = false;
            store.memory = new Map();
        }
        for (const id of idsOfLast()) await store.get(id);
        return store;
    }

    transaction(mode) {
        const change = this.db.transaction(['heads', 'bodies'], mode);
        return [change.objectStore('heads'), change.objectStore('bodies'), change];
    }

    /* Newest first. */
    async list() {
        const heads = this.lasting
            ? await wait(this.transaction('readonly')[0].getAll())
            : [...this.memory.values()].map(headOf);
        return heads.sort((a, b) => b.updated - a.updated);
    }

    async get(id) {
        const stored = this.lasting
            ? await wait(this.transaction('readonly')[1].get(id))
            : this.memory.get(id);
        if (stored) this.known.add(id);
        await this.takeLast(id, stored);
        return stored;
    }

    /* False, and nothing is written, when it was deleted meanwhile; `anew` stores it all the same. */
    async put(conversation, anew) {
        const { id } = conversation;
        const isGone = (stored) => !stored && !anew && this.known.has(id);
        if (!this.lasting) {
            if (isGone(this.memory.has(id))) return false;
            this.memory.set(id, structuredClone(conversation));
        } else {
            const [heads, bodies, change] = this.transaction('readwrite');
            const stored = await wait(bodies.get(id));
            if (isGone(stored)) return false;
            if (stored) join(conversation, stored);
            heads.put(headOf(conversation));
            bodies.put(conversation);
            await committed(change);
            this.others.postMessage(id);
        }
        this.known.add(id);
        return true;
    }

    /* While a page closes nothing can be waited for, so what other tabs stored cannot be read: only the
     * answer that grew is kept, apart, until somebody opens its conversation. */
    keepLast(id, node) {
        if (!this.lasting) return;
        try {
            localStorage.setItem(LAST + id, JSON.stringify({ ...node, children: [], chosen: null }));
            this.others.postMessage(id);
        } catch {
            /* no room: what was stored before has to do */
        }
    }

    /* Brings what a closing page kept into its conversation, unless that was deleted. */
    async takeLast(id, stored) {
        try {
            const last = JSON.parse(localStorage.getItem(LAST + id));
            if (!last) return;
            if (stored && stored.nodes[last.id]) {
                join(stored, { nodes: { [last.id]: last } });
                await this.put(stored);
            }
            localStorage.removeItem(LAST + id);
        } catch {
            /* no room: it stays for the next time */
        }
    }

    async remove(id) {
        if (!this.lasting) {
            this.memory.delete(id);
            return;
        }
        const [heads, bodies, change] = this.transaction('readwrite');
        heads.delete(id);
        bodies.delete(id);
        await committed(change);
        this.others.postMessage(id);
    }

    /* Removes the oldest beyond the cap; says how many. */
    async trim() {
        const old = (await this.list()).slice(KEPT_MAX);
        for (const head of old) await this.remove(head.id);
        return old.length;
    }

    async all() {
        if (!this.lasting) return [...this.memory.values()];
        return wait(this.transaction('readonly')[1].getAll());
    }

    /* Ids of the conversations with all of the words in some message or the title. */
    async search(query) {
        const words = query.toLowerCase().split(/\s+/).filter(Boolean);
        const found = new Set();
        const look = (conversation) => {
            const said = Object.values(conversation.nodes).map((node) => node.content);
            const all = [conversation.title, ...said].join('\n').toLowerCase();
            if (words.every((word) => all.includes(word))) found.add(conversation.id);
        };
        if (!this.lasting) {
            this.memory.forEach(look);
            return found;
        }
        await new Promise((resolve, reject) => {
            const request = this.transaction('readonly')[1].openCursor(); /* one body in memory at a time */
            request.onerror = () => reject(request.error);
            request.onsuccess = () => {
                if (!request.result) return resolve();
                look(request.result.value);
                return request.result.continue();
            };
        });
        return found;
    }

    onChange(listener) {
        if (this.lasting) this.others.onmessage = (event) => listener(event.data);
    }
}

function idsOfLast() {
    try {
        return Object.keys(localStorage)
            .filter((key) => key.startsWith(LAST))
            .map((key) => key.slice(LAST.length));
    } catch {
        return []; /* a browser that keeps nothing */
    }
}

const headOf = ({ id, title, updated }) => ({ id, title, updated });

const committed = (change) =>
    new Promise((resolve, reject) => {
        change.oncomplete = resolve;
        change.onabort = () => reject(change.error);
    });
