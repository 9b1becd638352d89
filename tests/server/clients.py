"""clients.py URL -- the openai and anthropic packages against a running server.

Runs in an environment that has them (test_clients.py makes one); prints one line per check."""
import json
import sys
import traceback

import anthropic
import openai
from pydantic import BaseModel

URL = sys.argv[1]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "description": "The name of the city"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Get the current weather of a city.", "parameters": SCHEMA}}
RESULT = '{"city": "Paris", "sky": "sunny", "celsius": 21}'
GREEDY = {"temperature": 0}  # which newer versions of the package do not name
ASK_WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]

o = openai.OpenAI(base_url=URL + "/v1", api_key="sesame", max_retries=0)
a = anthropic.Anthropic(base_url=URL, api_key="sesame", max_retries=0)


class City(BaseModel):
    name: str
    inhabitants: int


def chat():
    r = o.chat.completions.create(model="demo", messages=QUESTION, temperature=0)
    assert r.choices[0].message.content == ANSWER and r.usage.completion_tokens == 8 and r.usage.prompt_tokens_details.cached_tokens >= 0


def chat_stream():
    with o.chat.completions.stream(model="demo", messages=QUESTION, temperature=0, stream_options={"include_usage": True}) as stream:
        deltas = [e.delta for e in stream if e.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == ANSWER == final.choices[0].message.content and final.usage.completion_tokens == 8


def chat_tools():
    r = o.chat.completions.create(model="demo", messages=ASK_WEATHER, tools=[WEATHER], temperature=0)
    call = r.choices[0].message.tool_calls[0]
    assert r.choices[0].finish_reason == "tool_calls" and json.loads(call.function.arguments) == {"city": "Paris"}
    history = ASK_WEATHER + [r.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    assert "21" in o.chat.completions.create(model="demo", messages=history, tools=[WEATHER], temperature=0).choices[0].message.content
    with o.chat.completions.stream(model="demo", messages=ASK_WEATHER, tools=[WEATHER], temperature=0) as stream:
        arguments = [e.arguments for e in stream if e.type == "tool_calls.function.arguments.done"]
    assert [json.loads(x) for x in arguments] == [{"city": "Paris"}]


def chat_logprobs():
    r = o.chat.completions.create(model="demo", messages=QUESTION, temperature=0, logprobs=True, top_logprobs=2)
    content = r.choices[0].logprobs.content
    assert "".join(t.token for t in content) == ANSWER and all(len(t.top_logprobs) == 2 for t in content)


def chat_choices():
    r = o.chat.completions.create(model="demo", messages=QUESTION, n=3, seed=5, temperature=1.5, max_tokens=10)
    assert len(r.choices) == 3


def completions():
    r = o.completions.create(model="demo", prompt="Once", max_tokens=5, temperature=0, logprobs=1)
    assert "".join(r.choices[0].logprobs.tokens) == r.choices[0].text
    pieces = o.completions.create(model="demo", prompt="Once", max_tokens=5, temperature=0, stream=True)
    assert "".join(p.choices[0].text for p in pieces) == r.choices[0].text


def responses():
    r = o.responses.create(model="demo", input="What is the capital of France?", temperature=0)
    assert r.output_text == ANSWER and r.usage.total_tokens > 0 and r.status == "completed"
    with o.responses.stream(model="demo", input="What is the capital of France?", temperature=0) as stream:
        deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
        assert "".join(deltas) == ANSWER == stream.get_final_response().output_text
    flat = {"type": "function", "strict": False, **WEATHER["function"]}
    with o.responses.stream(model="demo", input=ASK_WEATHER, tools=[flat], temperature=0) as stream:
        for _ in stream:
            pass
        call = stream.get_final_response().output[0]
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Paris"}


def structured():
    r = o.chat.completions.parse(model="demo", messages=QUESTION, temperature=0, max_tokens=200, response_format=City)
    assert isinstance(r.choices[0].message.parsed, City)
    r = o.responses.parse(model="demo", input="What is the capital of France?", temperature=0, max_output_tokens=200, text_format=City)
    assert isinstance(r.output_parsed, City)
    r = o.chat.completions.create(model="demo", messages=QUESTION, tools=[WEATHER], tool_choice="required", temperature=0)
    assert r.choices[0].message.tool_calls[0].function.name == "get_weather"


def models():
    assert [m.id for m in o.models.list()] == ["demo"] and o.models.retrieve("demo").id == "demo"


def raises(kind, action, *args, **kwargs):
    try:
        action(*args, **kwargs)
    except kind as e:
        return e
    raise AssertionError(f"{kind.__name__} was not raised")


def openai_errors():
    e = raises(openai.BadRequestError, o.chat.completions.create, model="demo", messages=QUESTION, temperature=-1)
    assert e.param == "temperature" and "temperature" in e.message
    raises(openai.BadRequestError, o.chat.completions.create, model="demo", messages=[{"role": "user", "content": "word " * 9000}])
    raises(openai.AuthenticationError, openai.OpenAI(base_url=URL + "/v1", api_key="wrong", max_retries=0).models.list)
    raises(openai.NotFoundError, o.models.retrieve, "other")
    raises(openai.InternalServerError, o.embeddings.create, model="demo", input="x")
    raises(openai.BadRequestError, o.chat.completions.create, model="demo", messages=[])


def claude():
    r = a.messages.create(model="demo", max_tokens=50, messages=QUESTION, extra_body=GREEDY)
    assert r.content[0].text == ANSWER and r.stop_reason == "end_turn" and r.usage.output_tokens == 8
    with a.messages.stream(model="demo", max_tokens=50, messages=QUESTION, extra_body=GREEDY) as stream:
        assert "".join(stream.text_stream) == ANSWER
        assert stream.get_final_message().usage.output_tokens == 8
    assert a.messages.count_tokens(model="demo", messages=QUESTION).input_tokens == r.usage.input_tokens + (r.usage.cache_read_input_tokens or 0)


def claude_tools():
    tools = [{"name": "get_weather", "description": "Get the current weather of a city.", "input_schema": SCHEMA}]
    with a.messages.stream(model="demo", max_tokens=80, messages=ASK_WEATHER, tools=tools, extra_body=GREEDY) as stream:
        r = stream.get_final_message()
    use = [b for b in r.content if b.type == "tool_use"][0]
    assert r.stop_reason == "tool_use" and use.input == {"city": "Paris"}
    history = ASK_WEATHER + [{"role": "assistant", "content": r.content}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": use.id, "content": RESULT}]}]
    assert "21" in a.messages.create(model="demo", max_tokens=80, messages=history, tools=tools, extra_body=GREEDY).content[0].text


def claude_thinking():
    messages = [{"role": "user", "content": "What is 31 + 44?"}]
    with a.messages.stream(model="demo", max_tokens=2000, messages=messages, extra_body=GREEDY, thinking={"type": "enabled", "budget_tokens": 1024}) as stream:
        r = stream.get_final_message()
    assert [b.type for b in r.content] == ["thinking", "text"] and r.content[0].signature and r.content[1].text == "31 + 44 = 75"


def claude_errors():
    raises(anthropic.BadRequestError, a.messages.create, model="demo", max_tokens=0, messages=QUESTION)
    raises(anthropic.AuthenticationError, anthropic.Anthropic(base_url=URL, api_key="wrong", max_retries=0).messages.create, model="demo", max_tokens=5, messages=QUESTION)


failed = 0
for check in [chat, chat_stream, chat_tools, chat_logprobs, chat_choices, completions, responses, structured, models, openai_errors, claude,
              claude_tools, claude_thinking, claude_errors]:
    try:
        check()
        print("ok  ", check.__name__, flush=True)
    except Exception:
        failed += 1
        print("FAIL", check.__name__, traceback.format_exc().replace("\n", "\n     "), flush=True)
sys.exit(1 if failed else 0)
