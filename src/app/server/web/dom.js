/* dom.js -- making elements.
 *
 * Text always goes in as text nodes: nothing here, or anywhere on this page, turns a string
 * into markup, and the page's policy has the browser refuse it if something tried.
 */

/* el('button', { class: 'quiet', onclick: f, 'aria-label': 'Copy' }, icon('copy'), 'Copy').
 * Values: functions become listeners, true an empty attribute, false and null none. */
export function el(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
        if (typeof value === 'function') element.addEventListener(name.slice(2), value);
        else if (value !== false && value !== null && value !== undefined) {
            element.setAttribute(name, value === true ? '' : value);
        }
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
    return element;
}

export const byId = (id) => document.getElementById(id);

/* Drawn on a grid of 24 with lines of one width. */
const PATHS = {
    back: 'M15 6l-6 6 6 6',
    check: 'M5 12.5l4.5 4.5L19 7.5',
    close: 'M6 6l12 12M18 6L6 18',
    copy: 'M9 9h10v10H9zM5 15V5h10',
    down: 'M12 5v14M6 13l6 6 6-6',
    edit: 'M4 20h4L19 9l-4-4L4 16zM13 7l4 4',
    forward: 'M9 6l6 6-6 6',
    keyboard: 'M3 7h18v11H3zM7 11h.01M11 11h.01M15 11h.01M8 15h8',
    menu: 'M4 7h16M4 12h16M4 17h16',
    moon: 'M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10z',
    plus: 'M12 5v14M5 12h14',
    redo: 'M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4',
    search: 'M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14M16 16l4.5 4.5',
    send: 'M12 19V5M6 11l6-6 6 6',
    settings:
        'M4 7h9M19 7h1M4 17h1M11 17h9M16 4.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5M8 14.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5',
    screen: 'M4 5h16v11H4zM9 20h6M12 16v4',
    stop: 'M7.5 7.5h9v9h-9z',
    sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 3v1.5M12 19.5V21M3 12h1.5M19.5 12H21M5.6 5.6l1.1 1.1M17.3 17.3l1.1 1.1M18.4 5.6l-1.1 1.1M6.7 17.3l-1.1 1.1',
    tool: 'M14.5 6.5a4 4 0 0 0-5.3 5L4 16.7 7.3 20l5.2-5.2a4 4 0 0 0 5-5.3l-2.6 2.6-3-3z',
    trash: 'M5 7h14M10 7V4.5h4V7M7 7l.8 12.5h8.4L17 7M10.5 11v5M13.5 11v5',
    warning: 'M12 4.5L21 19.5H3zM12 10.5v4M12 17h.01',
};

export function icon(name) {
    const space = 'http://www.w3.org/2000/svg';
    const svg = document.createElementNS(space, 'svg');
    svg.setAttribute('viewBox', '0 0 24 24');
    svg.setAttribute('class', 'icon' + (name === 'stop' ? ' solid' : ''));
    svg.setAttribute('aria-hidden', 'true');
    const path = document.createElementNS(space, 'path');
    path.setAttribute('d', PATHS[name]);
    svg.append(path);
    return svg;
}

/* A button that shows only an icon; the label is its name and its tooltip. */
export function iconButton(name, label, onclick, extra = {}) {
    return el(
        'button',
        { type: 'button', class: 'icon-button', 'aria-label': label, title: label, onclick, ...extra },
        icon(name),
    );
}

/* Makes `old` look like `fresh` with the fewest changes, so that a selection, a scroll position
 * and the focus inside of a growing text survive.  Both have the same tag. */
export function morph(old, fresh) {
    if (old.isEqualNode(fresh)) return; /* the browser compares faster than what follows */
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) {
        if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    const mine = [...old.childNodes];
    const theirs = [...fresh.childNodes];
    theirs.forEach((child, i) => {
        const own = mine[i];
        if (!own) old.append(child);
        else if (own.nodeType !== child.nodeType || own.nodeName !== child.nodeName) own.replaceWith(child);
        else if (own.nodeType === Node.ELEMENT_NODE) morph(own, child);
        else if (child.data.startsWith(own.data)) own.appendData(child.data.slice(own.data.length));
        else own.data = child.data;
    });
    for (const own of mine.slice(theirs.length)) own.remove();
}

export const isTouch = () => matchMedia('(pointer: coarse)').matches;

/* Whether a key means "send".  On a phone Enter is the only way to a new line.  229: Safari ends the
 * composition before the Enter that ends it. */
export function isSend(event) {
    const composing = event.isComposing || event.keyCode === 229;
    return event.key === 'Enter' && !event.shiftKey && !composing && !isTouch();
}

/* Copies text; the old way where the page is not on localhost or https. */
export async function copyText(text) {
    if (navigator.clipboard && window.isSecureContext) {
        try {
            await navigator.clipboard.writeText(text);
            return true;
        } catch {
            /* refused by the browser: the old way may still do */
        }
    }
    const before = document.activeElement;
    const area = el('textarea', { class: 'offscreen', 'aria-hidden': 'true' });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    before.focus({ preventScroll: true });
    return done;
}
