/* generation.js -- one answer, from the request to its last token.
 *
 * Writes into the node of the answer and tells the page when it changed; knows nothing of how
 * that looks.  A busy server is asked again after the time it named.  Whatever was said before
 * a failure stays.
 */
import { streamChat } from './api.js';
import { messagesFor, parentOf } from './tree.js';

const TRIES_MAX = 20;

/* The request for an answer: only what was set is sent, the rest is the server's. */
export function requestFor(conversation, node, settings, model) {
    const body = {
        model,
        messages: messagesFor(conversation, parentOf(conversation, node)),
        stream: true,
        stream_options: { include_usage: true },
        return_progress: true,
    };
    for (const name of ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed']) {
        if (Number.isFinite(settings[name])) body[name] = settings[name];
    }
    if (settings.thinking) body.chat_template_kwargs = { enable_thinking: settings.thinking === 'on' };
    if (settings.tools && settings.tools.length) body.tools = settings.tools;
    return body;
}

export class Generation {
    /* phase: waiting (nothing heard yet), busy, reading (the prompt), thinking, writing, calling */
    phase = 'waiting';
    progress = null; /* { total, cache, processed, time_ms } while reading */
    retryAt = 0;

    constructor(conversation, node, body, onChange) {
        Object.assign(this, { conversation, node, body, onChange });
        this.control = new AbortController();
        this.began = performance.now();
        Object.assign(node, { state: 'running', content: '', reasoning: '', calls: [], stats: {}, error: null });
    }

    stop() {
        this.control.abort();
    }

    /* Resolves in every case; how it went is in node.state. */
    async run() {
        const { node } = this;
        try {
            for (let tries = 1; ; tries++) {
                try {
                    await streamChat(this.body, this.control.signal, (chunk) => this.take(chunk));
                    break;
                } catch (error) {
                    if (error.kind !== 'busy' || this.heard || tries >= TRIES_MAX) throw error;
                    await this.pause(error.retryAfter);
                }
            }
            node.state = 'done';
        } catch (error) {
            node.state = error.name === 'AbortError' ? 'stopped' : 'failed';
            if (node.state === 'failed') node.error = plainError(error);
        }
        this.endThinking();
        const last = node.calls[node.calls.length - 1];
        /* A call that was cut off has nothing to answer. */
        if (last && node.stats.finish !== 'tool_calls' && !isJson(last.arguments)) node.calls.pop();
        this.phase = 'over';
        this.onChange(this);
    }

    pause(seconds) {
        this.phase = 'busy';
        this.retryAt = Date.now() + seconds * 1000;
        this.onChange(this);
        return new Promise((resolve, reject) => {
            this.retryNow = resolve;
            setTimeout(resolve, seconds * 1000);
            this.control.signal.addEventListener('abort', () => reject(new DOMException('stopped', 'AbortError')));
        }).then(() => {
            this.phase = 'waiting';
        });
    }

    take(chunk) {
        const { node } = this;
        if (chunk.prompt_progress) {
            this.progress = chunk.prompt_progress;
            if (!this.heard) this.phase = 'reading';
        }
        const choice = chunk.choices && chunk.choices[0];
        const delta = (choice && choice.delta) || {};
        if (delta.reasoning_content) {
            this.hear('thinking');
            this.thinkingSince = this.thinkingSince || performance.now();
            node.reasoning += delta.reasoning_content;
        }
        if (delta.content) {
            this.hear('writing');
            node.content += delta.content;
        }
        for (const piece of delta.tool_calls || []) this.takeCall(piece);
        if (choice && choice.finish_reason) node.stats.finish = choice.finish_reason;
        this.takeNumbers(chunk);
        this.onChange(this);
    }

    hear(phase) {
        if (!this.heard) {
            this.heard = performance.now();
            this.node.stats.firstMs = this.heard - this.began;
        }
        if (phase !== 'thinking') this.endThinking();
        this.phase = phase;
        this.nPieces = (this.nPieces || 0) + 1;
        const seconds = (performance.now() - this.heard) / 1000;
        if (seconds > 0.5) this.rate = (this.nPieces - 1) / seconds;
    }

    endThinking() {
        if (this.thinkingSince && !this.node.stats.thinkMs)
            this.node.stats.thinkMs = performance.now() - this.thinkingSince;
    }

    takeCall(piece) {
        this.hear('calling');
        const { calls } = this.node;
        const at = piece.index || 0;
        if (at > calls.length) return; /* not one of ours */
        if (!calls[at]) calls[at] = { id: '', name: '', arguments: '' };
        const { id, function: { name, arguments: more } = {} } = piece;
        if (id) calls[at].id = id;
        if (name) calls[at].name = name;
        if (more) calls[at].arguments += more;
    }

    takeNumbers({ timings, usage }) {
        const { stats } = this.node;
        if (timings) {
            if (timings.predicted_per_second > 0) stats.rate = timings.predicted_per_second;
            if (timings.predicted_n > 0) stats.tokens = timings.predicted_n;
            if (timings.prompt_per_second > 0) stats.promptRate = timings.prompt_per_second;
            if (stats.rate) this.rate = stats.rate;
        }
        if (usage) {
            stats.prompt = usage.prompt_tokens;
            stats.tokens = usage.completion_tokens;
            stats.cached = (usage.prompt_tokens_details && usage.prompt_tokens_details.cached_tokens) || 0;
        }
    }
}

const plainError = ({ kind, message, nPrompt, nCtx }) => ({ kind: kind || 'refused', message, nPrompt, nCtx });

function isJson(text) {
    try {
        JSON.parse(text);
        return true;
    } catch {
        return false;
    }
}
