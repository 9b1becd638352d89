/* api.js -- everything that this page asks of the server.
 *
 * Owns the key (sessionStorage: gone with the tab) and the shapes of requests and errors.
 * Every failure is an ApiError whose `kind` says what the page can do about it:
 *   gone      no answer, or the connection broke
 *   key       401 or 403
 *   busy      429 or 503; retryAfter in seconds
 *   full      the conversation does not fit; nPrompt and nCtx when the server said
 *   refused   anything else
 */

const KEY = 'moxie-key';
const QUICK_MS = 8000;

export class ApiError extends Error {
    constructor(kind, message, more = {}) {
        super(message);
        this.kind = kind;
        Object.assign(this, more);
    }
}

let key = '';
try {
    key = sessionStorage.getItem(KEY) || '';
} catch {
    /* a browser that keeps nothing */
}

export const hasKey = () => key !== '';

export function setKey(given) {
    key = given;
    try {
        sessionStorage.setItem(KEY, key);
    } catch {
        /* it holds until the page closes */
    }
}

function headers(more) {
    return { ...(key ? { Authorization: `Bearer ${key}` } : {}), ...more };
}

/* What the "error" object of an answer means. */
export function errorOf(status, error, retryAfter) {
    const message =
        (error && (error.message || (typeof error === 'string' && error))) || `The server answered ${status}.`;
    if (status === 401 || status === 403) return new ApiError('key', message, { status });
    if (status === 429 || status === 503) {
        const seconds = Number(retryAfter);
        return new ApiError('busy', message, { status, retryAfter: seconds > 0 ? Math.min(seconds, 120) : 3 });
    }
    const codes = [error && error.code, error && error.type];
    if (codes.includes('context_length_exceeded') || codes.includes('exceed_context_size_error')) {
        return new ApiError('full', message, { status, nPrompt: error.n_prompt_tokens, nCtx: error.n_ctx });
    }
    return new ApiError('refused', message, { status });
}

async function ask(path, options) {
    let response;
    try {
        response = await fetch(path, { cache: 'no-store', ...options });
    } catch (error) {
        if (error.name === 'AbortError') throw error;
        throw new ApiError('gone', 'The server does not answer.');
    }
    if (response.ok) return response;
    let error = null;
    try {
        error = (await response.json()).error;
    } catch {
        /* an answer without a body of ours: the status says enough */
    }
    throw errorOf(response.status, error, response.headers.get('Retry-After'));
}

const quick = (path) => ask(path, { headers: headers(), signal: AbortSignal.timeout(QUICK_MS) });

export const getModels = async () => (await quick('/v1/models')).json();
export const getProps = async () => (await quick('/props')).json();
export const getMetrics = async () => parseMetrics(await (await quick('/metrics')).text());
export const isAlive = () =>
    quick('/health').then(
        () => true,
        (error) => error.kind === 'busy',
    );

/* Prometheus text: sums of all series of a name. */
export function parseMetrics(text) {
    const sums = new Map();
    for (const line of text.split('\n')) {
        const m = line.match(/^([A-Za-z_:][\w:]*)(?:\{.*\})?\s+(\S+)/);
        if (m && Number.isFinite(Number(m[2]))) sums.set(m[1], (sums.get(m[1]) || 0) + Number(m[2]));
    }
    return sums;
}

/* Cuts a stream of server-sent events into the data of each; comments keep it alive only. */
export class EventLines {
    rest = '';

    push(text) {
        const lines = (this.rest + text).split(/\r\n|\n/);
        this.rest = lines.pop();
        return lines.filter((line) => line.startsWith('data:')).map((line) => line.slice(5).trim());
    }
}

/* Sends a conversation and calls onChunk for each chunk.  Resolves when the server said that
 * all was said; aborting the signal rejects with an AbortError and stops the work over there. */
export async function streamChat(body, signal, onChunk) {
    const response = await ask('/v1/chat/completions', {
        method: 'POST',
        headers: headers({ 'Content-Type': 'application/json' }),
        body: JSON.stringify(body),
        signal,
    });
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    const events = new EventLines();
    for (;;) {
        let part;
        try {
            part = await reader.read();
        } catch (error) {
            if (error.name === 'AbortError') throw error;
            throw new ApiError('gone', 'The connection broke before the answer was complete.');
        }
        for (const data of events.push(decoder.decode(part.value || new Uint8Array(), { stream: !part.done }))) {
            if (data === '[DONE]') return;
            const chunk = JSON.parse(data);
            if (chunk.error) throw errorOf(Number(chunk.error.status) || 500, chunk.error);
            onChunk(chunk);
        }
        if (part.done) throw new ApiError('gone', 'The connection ended before the answer was complete.');
    }
}
