/* status.js -- the line under the message box: context in use, speed, experts, memory.
 *
 * The last two come from /metrics, asked often while an answer runs and seldom otherwise, not at
 * all while the page is hidden.  A server without a number has no place in the line for it.
 */
import { getMetrics } from './api.js';
import { byId, el } from './dom.js';
import { bytes, count, percent, rate } from './format.js';

const BUSY_MS = 1500;
const IDLE_MS = 15000;

export class Status {
    constructor(isRunning) {
        this.isRunning = isRunning;
        this.nCtx = 0;
        this.parts = {};
        for (const name of ['context', 'speed', 'experts', 'memory']) {
            this.parts[name] = el('b');
            const label = name === 'speed' ? null : el('span', { class: `label ${name}` }, name);
            byId('status').append(el('span', { hidden: true }, label, ' ', this.parts[name]));
        }
        document.addEventListener('visibilitychange', () => this.poll());
    }

    show(name, text, title) {
        const part = this.parts[name];
        part.parentNode.hidden = !text;
        part.parentNode.title = title;
        if (part.textContent !== text) part.textContent = text;
    }

    showContext(used) {
        const of = this.nCtx ? ` / ${count(this.nCtx)}` : ' tokens';
        this.show('context', used ? count(used) + of : '', 'Tokens of context in use by this conversation');
    }

    showSpeed(perSecond) {
        this.show('speed', perSecond ? rate(perSecond) : '', 'Speed of this answer');
    }

    /* Asks now and then again and again; also how a new answer gets the line moving. */
    async poll() {
        clearTimeout(this.timer);
        if (document.hidden) return;
        try {
            this.showMetrics(await getMetrics());
        } catch {
            /* no metrics for us: the line goes without them */
        }
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.poll(), this.isRunning() ? BUSY_MS : IDLE_MS);
    }

    /* Hits are counted since the answer began, or since the server did when none runs. */
    showMetrics(sums) {
        const now = {
            hits: sums.get('moxie_expert_cache_hits_total'),
            misses: sums.get('moxie_expert_cache_misses_total'),
        };
        if (now.hits !== undefined && now.misses !== undefined) {
            if (!this.isRunning()) this.before = null;
            else if (!this.before) this.before = now;
            const since = this.before || { hits: 0, misses: 0 };
            const hits = now.hits - since.hits;
            const asked = hits + now.misses - since.misses;
            if (asked > 0)
                this.show('experts', percent(hits / asked), 'Experts that were in memory when asked for');
        }
        const memory = sums.get('process_resident_memory_bytes');
        if (memory) this.show('memory', bytes(memory), 'Memory of the server');
    }
}
