/* settings.js -- the system prompt and how to sample, in a dialog.
 *
 * Kept in localStorage for this browser; a conversation also keeps the system prompt that it
 * has.  An empty field is not sent, so the server's own default holds, which is shown in it.
 */
import { byId } from './dom.js';

const KEPT = 'moxie-settings';
const NUMBERS = ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed'];

function load() {
    try {
        return JSON.parse(localStorage.getItem(KEPT)) || {};
    } catch {
        return {};
    }
}

export class Settings {
    constructor(onSystem) {
        const raw = load();
        this.values = {
            system: String(raw.system || ''),
            thinking: ['on', 'off'].includes(raw.thinking) ? raw.thinking : '',
        };
        for (const name of NUMBERS) if (Number.isFinite(raw[name])) this.values[name] = raw[name];
        this.values.tools = Array.isArray(raw.tools) ? raw.tools : [];
        this.dialog = byId('settings');
        this.form = this.dialog.querySelector('form');
        this.onSystem = onSystem;
        this.form.addEventListener('submit', (event) => {
            event.preventDefault();
            this.save();
        });
        byId('settings-defaults').addEventListener('click', () =>
            this.fill({ system: '', thinking: '', tools: [] }),
        );
    }

    /* What the server does when nothing is said, for the fields to show. */
    showDefaults(defaults) {
        for (const name of NUMBERS) {
            const value = defaults[name];
            this.form.elements[name].placeholder = Number.isFinite(value)
                ? String(+value.toPrecision(4))
                : 'Default';
        }
        this.form.elements.seed.placeholder = 'Random';
    }

    open(system) {
        this.fill({ ...this.values, system });
        this.dialog.showModal();
    }

    fill(values) {
        const { elements } = this.form;
        elements.system.value = values.system;
        elements.thinking.value = values.thinking;
        for (const name of NUMBERS) elements[name].value = Number.isFinite(values[name]) ? values[name] : '';
        elements.tools.value = values.tools.length ? JSON.stringify(values.tools, null, 2) : '';
        elements.tools.closest('details').open = values.tools.length > 0;
        this.complain('');
    }

    complain(sentence) {
        const line = this.form.querySelector('.form-error');
        line.textContent = sentence;
        line.hidden = !sentence;
    }

    save() {
        const { elements } = this.form;
        let tools = [];
        try {
            if (elements.tools.value.trim()) tools = JSON.parse(elements.tools.value);
            if (!Array.isArray(tools)) throw new Error();
        } catch {
            elements.tools.closest('details').open = true;
            this.complain('Tools must be a JSON list.');
            elements.tools.focus();
            return;
        }
        const values = { system: elements.system.value, thinking: elements.thinking.value, tools };
        for (const name of NUMBERS) if (elements[name].value !== '') values[name] = Number(elements[name].value);
        this.values = values;
        try {
            localStorage.setItem(KEPT, JSON.stringify(values));
        } catch {
            /* a browser that keeps nothing: they hold until the tab closes */
        }
        this.onSystem(values.system);
        this.dialog.close();
    }
}
