// client.mjs URL -- the openai package for JavaScript against a running server; prints one line per check.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "sesame", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const tools = [{ type: "function", function: { name: "get_weather", description: "Get the current weather of a city.",
    parameters: { type: "object", properties: { city: { type: "string", description: "The name of the city" } }, required: ["city"] } } }];
let failed = 0;

function check(name, good, seen) {
    console.log(`${good ? "ok  " : "FAIL"} ${name}${good ? "" : " " + JSON.stringify(seen)}`);
    if (!good) failed++;
}

const whole = await client.chat.completions.create({ model: "demo", messages, temperature: 0 });
check("chat", whole.choices[0].message.content === "The capital of France is Paris.", whole);

let text = "", usage = null;
for await (const chunk of await client.chat.completions.create({ model: "demo", messages, temperature: 0, stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
}
check("stream", text === "The capital of France is Paris." && usage.completion_tokens === 8, [text, usage]);

const runner = client.chat.completions.stream({ model: "demo", messages: [{ role: "user", content: "What is the weather in Paris?" }], tools, temperature: 0 });
const final = await runner.finalChatCompletion();
const call = final.choices[0].message.tool_calls[0];
check("tools", call.function.name === "get_weather" && JSON.parse(call.function.arguments).city === "Paris", final);
const told = await client.chat.completions.create({ model: "demo", temperature: 0, tools, messages: [{ role: "user", content: "What is the weather in Paris?" },
    final.choices[0].message, { role: "tool", tool_call_id: call.id, content: '{"city": "Paris", "sky": "sunny", "celsius": 21}' }] });
check("tool result", told.choices[0].message.content.includes("21"), told);

const logprobs = await client.chat.completions.create({ model: "demo", messages, temperature: 0, logprobs: true, top_logprobs: 2 });
check("logprobs", logprobs.choices[0].logprobs.content.map(t => t.token).join("") === "The capital of France is Paris.", logprobs.choices[0].logprobs);

const response = await client.responses.create({ model: "demo", input: "What is the capital of France?", temperature: 0 });
check("responses", response.output_text === "The capital of France is Paris.", response);

async function raised(name, kind, action) {
    try {
        await action();
        check(name, false, "nothing was thrown");
    } catch (e) {
        check(name, e instanceof kind, String(e));
    }
}
await raised("bad request", OpenAI.BadRequestError, () => client.chat.completions.create({ model: "demo", messages, temperature: -1 }));
await raised("bad key", OpenAI.AuthenticationError, () => new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "wrong", maxRetries: 0 }).models.list());
await raised("not found", OpenAI.NotFoundError, () => client.models.retrieve("other"));
check("models", (await client.models.list()).data[0].id === "demo");

const controller = new AbortController();
let pieces = 0, finished = false;
try {
    for await (const chunk of await client.chat.completions.create({ model: "demo", messages, temperature: 50, top_p: 1, grammar: "root ::= [a-z ]{60000}", stream: true }, { signal: controller.signal })) {
        if (++pieces === 5) controller.abort();
        finished ||= chunk.choices[0]?.finish_reason != null;
    }
} catch (e) {
    check("abort is an abort", e instanceof OpenAI.APIUserAbortError, String(e));
}
// Some pieces may have come before it; the last one has not.
check("abort", pieces >= 5 && !finished, [pieces, finished]);
process.exit(failed ? 1 : 0);
