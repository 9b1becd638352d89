/* tree.js -- a conversation: a tree of messages of which one path is shown.
 *
 * Editing or asking again adds a sibling; nothing that was said is overwritten.  Plain objects
 * only, as they are stored and exported:
 *   conversation { id, title, titleAt, created, updated, system, systemAt, nodes: { id: node } }
 *   node { id, parent, children: [id], chosen: id, role: root|user|assistant|tool, content, ... }
 * An assistant's node may have reasoning, calls [{ id, name, arguments }], state
 * (running|done|stopped|failed), error and stats; a tool's has callId and name.  What is running with
 * nobody who runs it was stopped by the end of a page, or runs in another tab.  titleAt and systemAt
 * are when the reader set title and system, or 0.
 *
 * Invariants: the root is nodes.root; chosen is one of children or null; there is no cycle.
 */

const NODES_MAX = 20000;
const ROLES = ['root', 'user', 'assistant', 'tool'];
const STATES = ['running', 'done', 'stopped', 'failed'];

/* Not crypto.randomUUID: that exists only on localhost and https. */
export function newId() {
    const bytes = crypto.getRandomValues(new Uint8Array(9));
    return Array.from(bytes, (byte) => byte.toString(36).padStart(2, '0')).join('');
}

export function newConversation(system) {
    const now = Date.now();
    const root = { id: 'root', parent: null, children: [], chosen: null, role: 'root', content: '' };
    return { id: newId(), title: '', titleAt: 0, created: now, updated: now, system, systemAt: 0, nodes: { root } };
}

export function addNode(conversation, parent, fields) {
    const node = {
        id: newId(),
        parent: parent.id,
        children: [],
        chosen: null,
        content: '',
        created: Date.now(),
        ...fields,
    };
    conversation.nodes[node.id] = node;
    parent.children.push(node.id);
    parent.chosen = node.id;
    return node;
}

/* The messages that are shown, first to last. */
export function pathOf(conversation) {
    const path = [];
    let node = conversation.nodes.root;
    while (node.chosen) {
        node = conversation.nodes[node.chosen];
        path.push(node);
    }
    return path;
}

export const parentOf = (conversation, node) => conversation.nodes[node.parent];

export function lastOf(conversation) {
    const path = pathOf(conversation);
    return path[path.length - 1] || conversation.nodes.root;
}

/* Shows the sibling that is `step` further. */
export function chooseSibling(conversation, node, step) {
    const parent = parentOf(conversation, node);
    const next = parent.children[parent.children.indexOf(node.id) + step];
    if (next) parent.chosen = next;
}

const FENCES = /[`*_#>[\]]/g;

export function titleFrom(text) {
    const words = text.replace(FENCES, '').replace(/\s+/g, ' ').trim();
    const signs = [...words]; /* half an emoji is none */
    return signs.length > 60 ? signs.slice(0, 58).join('').replace(/\s+\S*$/, '') + '…' : words;
}

/* What the server gets for the path down to `leaf`, itself included. */
export function messagesFor(conversation, leaf) {
    const up = [];
    for (let node = leaf; node.role !== 'root'; node = parentOf(conversation, node)) up.push(node);
    const messages = conversation.system.trim() ? [{ role: 'system', content: conversation.system }] : [];
    for (const node of up.reverse()) {
        const last = messages[messages.length - 1];
        if (node.role === 'tool') messages.push({ role: 'tool', tool_call_id: node.callId, content: node.content });
        else if (node.role === 'user') {
            /* After an answer that failed without a word two questions follow each other. */
            if (last && last.role === 'user') last.content += '\n\n' + node.content;
            else messages.push({ role: 'user', content: node.content });
        } else if (node.content || (node.calls && node.calls.length)) messages.push(assistantMessage(node));
    }
    return messages;
}

function assistantMessage(node) {
    const message = { role: 'assistant', content: node.content || null };
    if (node.reasoning) message.reasoning_content = node.reasoning;
    if (node.calls && node.calls.length) {
        message.tool_calls = node.calls.map((call) => ({
            id: call.id,
            type: 'function',
            function: { name: call.name, arguments: call.arguments },
        }));
    }
    return message;
}

/* Results that the calls above `leaf` still wait for. */
export function missingResults(conversation, leaf) {
    const given = new Set();
    let node = leaf;
    for (; node.role === 'tool'; node = parentOf(conversation, node)) given.add(node.callId);
    return (node.calls || []).filter((call) => !given.has(call.id));
}

/* ---- two copies of a conversation ---- */

const ended = (node) => STATES.indexOf(node.state) > 0;
const sizeOf = ({ content, reasoning = '', calls = [] }) =>
    content.length + reasoning.length + calls.reduce((n, call) => n + 1 + call.arguments.length, 0);

/* An answer grows in one place only, and what has ended grows no more. */
const isAhead = (one, other) => (ended(one) === ended(other) ? sizeOf(one) > sizeOf(other) : ended(one));

/* Takes from `other`, a copy of the same conversation, what this one lacks and a title or system prompt
 * that was set later; which versions are shown stays, unless `follow`. */
export function join(conversation, other, follow) {
    const newer = (at) => other[at] > (conversation[at] || 0); /* what was stored long ago has no times */
    if (newer('titleAt')) Object.assign(conversation, { title: other.title, titleAt: other.titleAt });
    if (newer('systemAt')) Object.assign(conversation, { system: other.system, systemAt: other.systemAt });
    for (const theirs of Object.values(other.nodes)) {
        const own = conversation.nodes[theirs.id];
        if (!own) {
            conversation.nodes[theirs.id] = theirs;
            continue;
        }
        const children = [...new Set([...own.children, ...theirs.children])];
        const chosen = (follow && theirs.chosen) || own.chosen || theirs.chosen;
        Object.assign(own, isAhead(theirs, own) ? theirs : null, { children, chosen });
    }
}

/* ---- what comes from a file ---- */

const text = (value) => (typeof value === 'string' ? value : '');
const number = (value) => (Number.isFinite(value) ? value : 0);

function checkedNode(raw, id, ids) {
    if (!raw || typeof raw !== 'object') throw new Error('a message is empty');
    const children = Array.isArray(raw.children) ? raw.children.filter((child) => ids.has(child)) : [];
    const node = {
        id,
        parent: text(raw.parent) || null,
        children,
        chosen: children.includes(raw.chosen) ? raw.chosen : children[0] || null,
        role: raw.role,
        content: text(raw.content),
        created: number(raw.created),
    };
    if (!ROLES.includes(node.role) || (node.role === 'root') !== (id === 'root'))
        throw new Error('a message has no known role');
    if (node.role === 'tool') Object.assign(node, { callId: text(raw.callId), name: text(raw.name) });
    if (node.role === 'assistant') {
        node.reasoning = text(raw.reasoning);
        node.state = STATES.includes(raw.state) ? raw.state : 'stopped';
        const calls = Array.isArray(raw.calls) ? raw.calls.filter(Boolean) : [];
        node.calls = calls.map((call) => ({
            id: text(call.id),
            name: text(call.name),
            arguments: text(call.arguments),
        }));
        node.stats = {};
        for (const [name, value] of Object.entries(raw.stats || {})) {
            if (Number.isFinite(value) || name === 'finish')
                node.stats[name] = name === 'finish' ? text(value) : value;
        }
        if (raw.error) {
            const { kind, message, nPrompt, nCtx } = raw.error;
            node.error = { kind: text(kind), message: text(message), nPrompt: number(nPrompt), nCtx: number(nCtx) };
        }
    }
    return node;
}

/* A copy of a conversation from outside with only what belongs in one; throws a sentence. */
export function checkedConversation(raw) {
    if (!raw || typeof raw !== 'object' || !raw.nodes || !raw.nodes.root) throw new Error('it has no messages');
    const ids = new Set(Object.keys(raw.nodes));
    if (ids.size > NODES_MAX) throw new Error('it has too many messages');
    if (![...ids].every((id) => /^[a-z0-9]{1,40}$/.test(id))) throw new Error('a message has a strange name');
    const nodes = {};
    for (const id of ids) nodes[id] = checkedNode(raw.nodes[id], id, ids);
    const seen = new Set(['root']);
    const queue = ['root'];
    while (queue.length) {
        const node = nodes[queue.pop()];
        for (const child of node.children) {
            if (seen.has(child) || nodes[child].parent !== node.id)
                throw new Error('its messages do not form a tree');
            seen.add(child);
            queue.push(child);
        }
    }
    for (const id of ids) if (!seen.has(id)) delete nodes[id];
    const title =
        text(raw.title) ||
        titleFrom(
            Object.values(nodes)
                .map((node) => node.content)
                .join(' '),
        );
    return {
        id: /^\w{6,40}$/.test(text(raw.id)) ? raw.id : newId(),
        title: title.slice(0, 200),
        titleAt: number(raw.titleAt),
        created: number(raw.created),
        updated: number(raw.updated),
        system: text(raw.system),
        systemAt: number(raw.systemAt),
        nodes,
    };
}
