#!/usr/bin/env python3
"""test_api.py MOXIE [TEST...] -- what the endpoints take and answer, field by field."""
import json
import re
import tempfile
from pathlib import Path

from kit import *

FLAT_WEATHER = {"type": "function", **WEATHER["function"]}
CLAUDE_WEATHER = {"name": "get_weather", "description": "Get the current weather of a city.", "input_schema": WEATHER["function"]["parameters"]}
ASK_WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
THINK = [{"role": "user", "content": "What is 31 + 44?"}]
# Refuses system messages but at the beginning, as Qwen3.5's own template does.
STRICT_TEMPLATE = """{%- for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def changed_demo(folder, **changes):
    """A copy of the demo model in which functions have changed what is in the JSON files of these names."""
    model = Path(folder) / "model"
    model.mkdir()
    for file in DEMO.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    for name, change in changes.items():
        value = json.loads((DEMO / f"{name}.json").read_text())
        change(value)
        (model / f"{name}.json").write_text(json.dumps(value))
    return model


def text_of(events):
    return "".join(c["delta"].get("content") or "" for _, e in events if e != "[DONE]" for c in e["choices"])


def test_chat_whole_and_streamed():
    with Server() as s:
        status, answer = s.chat()
        assert status == 200 and answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
        choice = answer["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": ANSWER} and choice["finish_reason"] == "stop"
        usage = answer["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] and usage["completion_tokens"] == 8
        assert usage["prompt_tokens_details"]["cached_tokens"] >= 0 and answer["timings"]["predicted_n"] == 8
        events = s.stream("/v1/chat/completions", {"messages": QUESTION, "temperature": 0, "stream_options": {"include_usage": True}})
        assert events[-1][1] == "[DONE]" and text_of(events) == ANSWER
        assert len({e["id"] for _, e in events[:-1]}) == 1 and len({e["created"] for _, e in events[:-1]}) == 1
        assert events[0][1]["choices"][0]["delta"]["role"] == "assistant"
        assert [e["choices"][0]["finish_reason"] for _, e in events[:-2]] == [None] * (len(events) - 3) + ["stop"]
        assert events[-2][1]["choices"] == [] and events[-2][1]["usage"]["completion_tokens"] == 8
        plain = s.stream("/v1/chat/completions", {"messages": QUESTION, "temperature": 0})
        assert all("usage" not in e for _, e in plain[:-1])


def test_ranges():
    """Wrong types and numbers out of range are refused with the field's name; unknown fields are nobody's business."""
    wrong = [("max_tokens", v) for v in (-1, 0, 2**31, "5", 1.5, True, 10**30)] + [("temperature", v) for v in (-1, 1e9, "hot", [])]
    wrong += [("top_p", 2), ("top_p", -0.1), ("n", 0), ("n", 1000), ("seed", 2**64), ("seed", -2), ("seed", "x"), ("stop", ""), ("stop", ["a", ""]),
              ("stop", ["x"] * 10000), ("stop", [1]), ("stream", "yes"), ("messages", "hello"), ("messages", {}), ("messages", []), ("tools", {}),
              ("logit_bias", {"5": 101}), ("logit_bias", {"5": "1"}), ("logit_bias", {"x": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"": 1}),
              ("logit_bias", {"99999999": 1}), ("logit_bias", [5, 1]), ("logit_bias", [[5]]), ("logit_bias", [[5, 1, 1]]), ("logit_bias", {"5": True}),
              ("logit_bias", {str(i): 1 for i in range(20000)}), ("top_logprobs", 5), ("logprobs", 3), ("min_p", 2),
              ("presence_penalty", 1e6), ("reasoning_effort", "lots"), ("enable_thinking", "false"), ("chat_template_kwargs", {"messages": []}),
              ("chat_template_kwargs", {"enable_thinking": "false"}), ("chat_template_kwargs", {"thinking": {}}), ("ignore_eos", 1), ("top_k", -5), ("tool_choice", "maybe"),
              ("response_format", {"type": "yaml"}), ("thinking", {"type": "sometimes"}), ("max_completion_tokens", 0)]
    with Server() as s:
        for field, value in wrong:
            status, answer = s.chat(**{field: value}) if field != "messages" else \
                s.post("/v1/chat/completions", {"messages": value})[::2]
            assert status == 400, (field, value, status, answer)
            assert answer["error"]["type"] == "invalid_request_error" and field in answer["error"]["message"], (field, answer)
            assert answer["error"]["param"] == field, (field, answer)
        for fields in [{"unknown": {"a": [1]}}, {"user": "me", "store": True, "metadata": {}, "service_tier": "auto"}, {"tools": []}, {"tools": None},
                       {"stop": None}, {"seed": -1}, {"logit_bias": {}}, {"max_tokens": 100, "top_p": 0}, {"id_slot": 3, "samplers": ["top_k"]},
                       {"temperature": 0.0, "top_p": 1, "n": 1, "seed": 2**53, "stop": ["zzz"] * 4}]:
            status, answer = s.chat(**fields)
            assert status == 200 and answer["choices"][0]["message"]["content"] == ANSWER, (fields, answer)


def test_messages_that_are_none():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    cases = [[{}], [{"role": "user"}, "x"], [{"role": 5, "content": "x"}], [{"role": "user", "content": 5}],
             [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
             [{"role": "assistant", "content": "a"}], QUESTION + [{"role": "assistant", "content": "a"}] * 2,
             QUESTION + [{"role": "assistant", "content": None, "tool_calls": [call]}]]
    for arguments in ["{", "", None, 5, "[1]"]:
        cases.append(QUESTION + [{"role": "assistant", "tool_calls": [{**call, "function": {"name": "f", "arguments": arguments}}]},
                                 {"role": "tool", "tool_call_id": "c", "content": "x"}])
    with Server() as s:
        for messages in cases:
            status, answer = s.chat(messages)
            assert status == 400 and answer["error"]["message"], (messages, status, answer)
        good = QUESTION + [{"role": "assistant", "tool_calls": [{**call, "function": {"name": "f", "arguments": {"a": 1.50}}}]},
                           {"role": "tool", "tool_call_id": "c", "content": "x"}]
        assert s.chat(good)[0] == 200
        assert s.chat([{"role": "developer", "content": "Be brief."}] + QUESTION)[0] == 200
        nothing = QUESTION + [{"role": role, "content": None} for role in ("assistant", "user", "tool", "user")]
        prompt = s.post("/apply-template", {"messages": nothing})[2]["prompt"]
        assert prompt == s.post("/apply-template", {"messages": [{**m, "content": m["content"] or ""} for m in nothing]})[2]["prompt"], prompt
        many = QUESTION * 400
        assert s.chat(many)[0] == 400  # does not fit
        status, answer = s.chat(QUESTION + [{"role": "assistant", "content": "The capital of"}])
        assert status == 200 and answer["choices"][0]["message"]["content"] == " France is Paris.", answer


def test_errors_name_their_place():
    """What is wrong is told by the names and numbers that the request itself has for it, in each API."""
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    call = lambda **fields: QUESTION + [{"role": "assistant", "tool_calls": [{"id": "c", **fields}]}, {"role": "tool", "tool_call_id": "c", "content": "x"}]
    item = lambda arguments: QUESTION + [{"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}, {"type": "function_call_output", "call_id": "c", "output": "x"}]
    schema, begun = {"json_schema": {"type": "integer"}}, {"role": "assistant", "content": "The"}
    chat = [({"messages": [{"role": "user", "content": image}], **schema}, "messages[0].content has a part of type 'image_url'"),
            ({"messages": call(function={"name": "f", "arguments": "{"}), **schema}, "messages[1].tool_calls[0].function.arguments must be"),
            ({"messages": [{"role": "system", "content": image}] + QUESTION, **schema}, "messages[0].content has a part of type"),
            ({"messages": QUESTION + [{"role": "developer", "content": image}]}, "messages[1].content has a part of type"),
            ({"messages": QUESTION + [{"role": "assistant", "content": 5}]}, "messages[1].content must be"),
            ({"messages": call(type="custom", custom={"name": "f", "input": "x"})}, "messages[1].tool_calls[0] has no function"),
            ({"messages": call(function={"name": "f"})}, "messages[1].tool_calls[0].function has no arguments"),
            ({"messages": call(function={"arguments": "{}"})}, "messages[1].tool_calls[0].function has no name"),
            ({"messages": QUESTION, "tools": [WEATHER, {"type": "function", "function": {"name": "f", "parameters": 5}}]}, "tools[1]: the parameters must be an object")]
    responses = [({"input": []}, "input is empty"), ({"input": [begun]}, "input has an assistant message alone"),
                 ({"input": QUESTION * 2 + item("{")[1:], "instructions": "Be brief."}, "input[2].arguments must be"),
                 ({"input": item("[1]")}, "input[1].arguments must be"), ({"input": item("{}")[:-1]}, "input ends in tool calls"),
                 ({"input": QUESTION + [{"role": "user", "content": 5}]}, "input[1].content must be"),
                 ({"input": QUESTION + [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[1].content has a part of type \"input_image\""),
                 ({"input": QUESTION + [{"type": "function_call_output", "call_id": "c", "output": {}}]}, "input[1].output must be"),
                 ({"input": "x", "tools": [{"type": "web_search"}, {"type": "function", "name": "f", "parameters": []}]}, "tools[1].parameters must be an object")]
    block = lambda **fields: {"messages": QUESTION + [{"role": "user", "content": [fields]}]}
    messages = [(block(type="text"), "messages[1].content has a text block without its text"), (block(type="text", text=None), "without its text"),
                (block(type="text", text=[{"type": "text", "text": "x"}]), "without its text"),
                (block(type="tool_result", tool_use_id="c", content=[{"type": "image"}]), "messages[1].content: tool_result.content has a part of type \"image\""),
                ({"messages": QUESTION, "tools": [CLAUDE_WEATHER, {"name": "f", "input_schema": "{}"}]}, "tools[1].input_schema must be an object")]
    with Server() as s:
        for path, cases in [("/v1/chat/completions", chat), ("/v1/responses", responses), ("/v1/messages", messages), ("/v1/messages/count_tokens", messages),
                            ("/v1/completions", [({"prompt": ""}, "prompt has no tokens"), ({"prompt": ["a", []]}, "prompt has no tokens")])]:
            for body, words in cases:
                status, _, answer = s.post(path, body)
                assert status == 400 and words in answer["error"]["message"], (path, body, answer)
                assert "messages" in path or answer["error"]["param"] == re.match("[a-z]+", words)[0], (path, body, answer)
        arguments = s.post("/v1/responses", {"input": item(' {"a": 1} '), "max_output_tokens": 1})
        assert arguments[0] == 200, arguments


def test_final_message():
    """A last message of the assistant is continued unless the request says that it is whole."""
    begun = QUESTION + [{"role": "assistant", "content": "The capital of"}]
    with Server() as s:
        prompt = lambda messages, **fields: s.post("/apply-template", {"messages": messages, **fields})[2]["prompt"]
        for fields in [{}, {"continue_final_message": True}, {"continue_final_message": True, "add_generation_prompt": False}]:
            status, answer = s.chat(begun, **fields)
            assert status == 200 and answer["choices"][0]["message"]["content"] == " France is Paris.", (fields, answer)
            assert prompt(begun, **fields).endswith("<|im_start|>assistant\nThe capital of"), fields
        assert prompt(begun, continue_final_message=False).endswith("The capital of<|im_end|>\n<|im_start|>assistant\n")
        assert prompt(begun, continue_final_message=False, add_generation_prompt=False).endswith("The capital of<|im_end|>\n")
        assert s.chat(begun, continue_final_message=False)[0] == 200
        assert prompt(QUESTION, continue_final_message=False) == prompt(QUESTION)
        status, answer = s.chat(QUESTION, continue_final_message=True)
        assert status == 400 and answer["error"]["param"] == "continue_final_message", answer
        thought = lambda text: QUESTION + [{**begun[-1], "reasoning_content": text}]
        for empty in ("", None):
            assert prompt(thought(empty)) == prompt(begun)
        block = {"type": "thinking", "thinking": "Paris, I think.", "signature": "x"}
        for path, body in [("/v1/chat/completions", {"messages": thought("Paris, I think.")}),
                           ("/v1/messages", {"max_tokens": 5, "messages": QUESTION + [{"role": "assistant", "content": [block, {"type": "text", "text": "The"}]}]}),
                           ("/v1/responses", {"input": QUESTION + [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}, begun[-1]]})]:
            status, _, answer = s.post(path, body)
            assert status == 400 and "reasoning_content" in answer["error"]["message"], (path, answer)
        assert "Paris, I think." in prompt(thought("Paris, I think."), continue_final_message=False, add_generation_prompt=False)
        counted = s.post("/v1/messages/count_tokens", {"messages": QUESTION + [{"role": "assistant", "content": [block, {"type": "text", "text": "The"}]}]})
        assert counted[0] == 200 and counted[2]["input_tokens"] > 10, counted


def test_context_limits():
    """A prompt of n_ctx - 1 tokens gets one token; one more is refused with the counts."""
    with Server("-c", "512") as s:
        def prompt(n):
            ids = s.post("/tokenize", {"content": "Paris"})[2]["tokens"]
            return (ids * n)[:n]
        for n, expected in [(510, 200), (511, 200), (512, 400), (513, 400), (4000, 400)]:
            status, _, answer = s.post("/v1/completions", {"prompt": prompt(n), "max_tokens": 5, **ENDLESS})
            assert status == expected, (n, status, answer)
            if status == 400:
                error = answer["error"]
                assert error["code"] == "context_length_exceeded" and error["n_prompt_tokens"] == n and error["n_ctx"] == 512, error
            else:
                assert answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 512 - n, answer
        status, _, answer = s.post("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": "word " * 2000}]})
        assert status == 400 and answer["type"] == "error" and answer["error"]["type"] == "invalid_request_error", answer
        said = answer["error"]["message"]
        status, _, answer = s.post("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "word " * 2000}]})
        assert status == 200 and answer["input_tokens"] > 2000
        assert said.startswith(f"prompt is too long: {answer['input_tokens']} tokens > 511 maximum"), said  # what agents look for


def test_choices_seeds_stops():
    hot = {"temperature": 2, "top_k": 0, "top_p": 1, "max_tokens": 12}
    with Server("--deterministic") as s:  # what runs beside a reply changes no byte of it
        status, answer = s.chat(n=4, seed=7, **hot)
        texts = [c["message"]["content"] for c in answer["choices"]]
        assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3] and len(set(texts)) > 1
        assert answer["usage"]["completion_tokens"] <= 48 and answer["usage"]["prompt_tokens"] < 30
        again = s.chat(n=1, seed=7, **hot)[1]["choices"][0]["message"]["content"]
        assert again == texts[0], "the same seed, alone"
        events = s.stream("/v1/chat/completions", {"messages": QUESTION, "n": 3, "seed": 7, **hot})
        streamed = ["".join(c["delta"].get("content") or "" for _, e in events[:-1] for c in e["choices"] if c["index"] == i) for i in range(3)]
        assert streamed == texts[:3]
        for stop in ["France", ["xyz", "France"]]:
            answer = s.chat(stop=stop)[1]["choices"][0]
            assert answer["message"]["content"] == "The capital of " and answer["finish_reason"] == "stop"
            assert text_of(s.stream("/v1/chat/completions", {"messages": QUESTION, "temperature": 0, "stop": stop})) == "The capital of "
        answer = s.chat(max_tokens=3)[1]
        assert answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 3


def test_bias_and_no_end():
    """Tokens are made likelier, unlikelier or impossible by their numbers; ends can be ruled out."""
    with Server() as s:
        the = s.post("/tokenize", {"content": "The"})[2]["tokens"]
        assert len(the) == 1
        for bias in [{str(the[0]): -100}, [[the[0], -100]], [[the[0], False]], {str(the[0]): False}]:
            status, answer = s.chat(logit_bias=bias, logprobs=True)
            text = answer["choices"][0]["message"]["content"]
            assert status == 200 and text != ANSWER and "The" not in [t["token"] for t in answer["choices"][0]["logprobs"]["content"]], (bias, answer)
        answer = s.chat(logit_bias={str(the[0]): 100}, max_tokens=5)[1]
        assert answer["choices"][0]["message"]["content"] == "The" * 5
        assert s.chat(logit_bias={str(the[0]): 0.5, "7": -0.25})[1]["choices"][0]["message"]["content"] == ANSWER
        answer = s.chat(ignore_eos=True, max_tokens=60)[1]
        assert answer["usage"]["completion_tokens"] == 60 and answer["choices"][0]["finish_reason"] == "length", answer
        assert answer["choices"][0]["message"]["content"].startswith(ANSWER)
        both = s.chat(ignore_eos=True, max_tokens=9, logit_bias={str(the[0]): -100})[1]
        assert both["usage"]["completion_tokens"] == 9 and not both["choices"][0]["message"]["content"].startswith("The")
        status, answer = s.chat(ignore_eos=True, grammar='root ::= "a"')
        assert status == 400 and answer["error"]["param"] == "ignore_eos", answer


def test_text_with_a_gap():
    """suffix: in models that have marks for it, and a refusal that says so in others."""
    body = {"prompt": "def f(", "suffix": "return x", "max_tokens": 3, "temperature": 0, "echo": True}
    with tempfile.TemporaryDirectory() as folder:
        with Server() as s:
            status, _, answer = s.post("/v1/completions", body)
            assert status == 400 and answer["error"]["param"] == "suffix" and "no tokens" in answer["error"]["message"], answer
            assert s.post("/v1/completions", {**body, "suffix": ""})[0] == 200
        for marks in [("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")]:
            model = Path(folder) / "model"
            model.mkdir(exist_ok=True)
            for file in DEMO.iterdir():
                (model / file.name).write_bytes(file.read_bytes())
            tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
            first = max(t["id"] for t in tokenizer["added_tokens"]) + 1
            tokenizer["added_tokens"] += [{**tokenizer["added_tokens"][-1], "id": first + i, "content": text} for i, text in enumerate(marks)]
            (model / "tokenizer.json").write_text(json.dumps(tokenizer))
            with Server(model=model) as s:
                status, _, answer = s.post("/v1/completions", body)
                assert status == 200 and answer["choices"][0]["text"].startswith(f"{marks[0]}def f({marks[1]}return x{marks[2]}"), answer
                ids = sum(len(s.post("/tokenize", {"content": text})[2]["tokens"]) for text in ("def f(", "return x"))
                assert answer["usage"]["prompt_tokens"] == ids + 3


def test_one_bos():
    """A tokenizer's BOS stands in front of a text once, also where the text begins with it."""
    marks = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        for file in DEMO.iterdir():
            (model / file.name).write_bytes(file.read_bytes())
        tokenizer, config = (json.loads((DEMO / name).read_text()) for name in ("tokenizer.json", "tokenizer_config.json"))
        first = max(t["id"] for t in tokenizer["added_tokens"]) + 1
        tokenizer["added_tokens"] += [{**tokenizer["added_tokens"][-1], "id": first + i, "content": text} for i, text in enumerate(marks)]
        (model / "tokenizer.json").write_text(json.dumps(tokenizer))
        (model / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": "<|endoftext|>", "add_bos_token": True}))
        with Server(model=model) as s:
            ids = lambda text, **fields: s.post("/tokenize", {"content": text, **fields})[2]["tokens"]
            bos, hello = ids("<|endoftext|>"), ids("Hello")
            assert len(bos) == 1 and ids("Hello", add_special=True) == bos + hello == ids("<|endoftext|>Hello", add_special=True)
            assert ids("<|endoftext|>" * 2, add_special=True) == bos * 2, "one was added, and one of the text's goes"
            assert ids("<|endoftext|>", add_special=True, parse_special=False)[:1] == bos
            n = lambda prompt, **fields: s.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, **fields})[2]["usage"]["prompt_tokens"]
            for prompt in ["Hello", "<|endoftext|>Hello", bos + hello]:
                assert n(prompt) == len(bos + hello), prompt
            assert n(["Hello", "<|endoftext|>Hello"]) == 2 * len(bos + hello)
            assert n("<|endoftext|>Hello", suffix="Hello") == n("Hello", suffix="Hello") == 4 + 2 * len(hello)
            assert n(bos * 2) == 2, "tokens are taken as they are"


def test_choices_share_their_prompt():
    """The prompt of several choices is computed once."""
    words = [{"role": "user", "content": "The cow tells a long story about the fox. " * 40}]
    with Server() as s:
        status, answer = s.chat(words, n=8, max_tokens=3)  # more than run at once
        n = answer["usage"]["prompt_tokens"]
        assert status == 200 and n > 300 and answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert len({c["message"]["content"] for c in answer["choices"]}) == 1
        reused = s.metric("prompt_tokens_reused_total")
        assert reused >= 7 * (n // 64 * 64 - 64), (reused, n)
        assert s.metric("prompt_tokens_total") == 8 * n


def test_replies_come_back():
    """A reply that a client sends back stands in the prompt with the tokens that were sampled, not those of an encoder."""
    odd = {"temperature": 50, "top_k": 0, "top_p": 1, "seed": 5, "max_tokens": 600, "grammar": "root ::= [a-z]{300}"}
    more = [{"role": "user", "content": "What is the capital of France?"}]
    with Server() as s:
        for blanks in ["", " \n"]:
            first = s.chat(logprobs=True, **odd)[1]
            text = first["choices"][0]["message"]["content"]
            sampled = [t["token"] for t in first["choices"][0]["logprobs"]["content"]]
            encoded = [t["piece"] for t in s.post("/tokenize", {"content": text, "with_pieces": True})[2]["tokens"]]
            assert sampled != encoded and "".join(encoded) == text and "".join(sampled) == text, (sampled[-5:], encoded[-5:], text[-20:])
            history = QUESTION + [{"role": "assistant", "content": text + blanks}] + more
            second = s.chat(history, max_tokens=5)[1]["usage"]
            assert second["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["total_tokens"] - 1, (first["usage"], second)
        changed = QUESTION + [{"role": "assistant", "content": text[:150] + "?" + text[150:]}] + more
        usage = s.chat(changed, max_tokens=5)[1]["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] <= first["usage"]["prompt_tokens"], (usage, first["usage"])
        call = s.chat(ASK_WEATHER, tools=[WEATHER], logit_bias={})[1]
        message = call["choices"][0]["message"]
        message["tool_calls"][0]["function"]["arguments"] = json.dumps(json.loads(message["tool_calls"][0]["function"]["arguments"]), indent=4)
        usage = s.chat(ASK_WEATHER + [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "21"}],
                       tools=[WEATHER], max_tokens=5)[1]["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= call["usage"]["total_tokens"] - 1, (call["usage"], usage)


def test_one_choice_that_fails():
    """When one of several choices cannot go on, nobody waits for the others, and nothing more is computed for them."""
    with Server() as s:  # with this seed the first choice, which others wait for, is one that could go on
        one = s.post("/tokenize", {"content": "1"})[2]["tokens"]
        fields = {"messages": QUESTION, "n": 4, "seed": 4, "logit_bias": [[one[0], False]], "max_tokens": 3000, "temperature": 50, "top_k": 0,
                  "top_p": 1, "grammar": 'root ::= "#" [a-z]{20} "1" | "@" [a-z ]{60000}'}
        events = s.stream("/v1/chat/completions", fields)
        wrong = lambda error: (error["type"], error["param"], "logit_bias" in error["message"]) == ("invalid_request_error", "logit_bias", True)
        assert wrong(events[-1][1]["error"]), str(events[-1])[:500]
        begun = {c["delta"]["content"][0] for _, e in events[:-1] for c in e["choices"] if c["delta"].get("content")}
        assert {"#", "@"} <= begun, "choose another seed"
        status, _, answer = s.post("/v1/chat/completions", fields)
        assert status == 400 and wrong(answer["error"]), (status, str(answer)[:500])
        assert s.until(s.idle, 1), "the others go on"
        assert s.metric("generation_tokens_total") < 1000, "the others went on"


def test_logprobs():
    with Server() as s:
        content = s.chat(logprobs=True, top_logprobs=3)[1]["choices"][0]["logprobs"]["content"]
        assert "".join(t["token"] for t in content) == ANSWER
        for t in content:
            assert bytes(t["bytes"]).decode() == t["token"] and t["logprob"] <= 0 and len(t["top_logprobs"]) == 3
            ranked = [x["logprob"] for x in t["top_logprobs"]]
            assert ranked == sorted(ranked, reverse=True) and ranked[0] == t["logprob"]  # greedy
        assert s.chat(logprobs=True)[1]["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
        events = s.stream("/v1/chat/completions", {"messages": QUESTION, "temperature": 0, "logprobs": True, "top_logprobs": 3})
        streamed = [t for _, e in events[:-1] for c in e["choices"] if c["logprobs"] for t in c["logprobs"]["content"]]
        assert streamed == content and text_of(events) == ANSWER
        c = s.post("/v1/completions", {"prompt": "Hello", "max_tokens": 4, "temperature": 0, "logprobs": 2})[2]["choices"][0]
        assert "".join(c["logprobs"]["tokens"]) == c["text"] and len(c["logprobs"]["token_logprobs"]) == len(c["logprobs"]["tokens"])
        assert c["logprobs"]["text_offset"][0] == 0 and all(len(x) == 2 for x in c["logprobs"]["top_logprobs"])
        body = {"prompt": "Größe: ", "max_tokens": 100, "temperature": 50, "top_k": 0, "top_p": 1, "seed": 3, "logprobs": 1, "echo": True,
                "grammar": "root ::= ([äöü] [a-c]){15}"}
        c = s.post("/v1/completions", body)[2]["choices"][0]
        offsets, tokens = c["logprobs"]["text_offset"], c["logprobs"]["tokens"]
        assert offsets[0] == 0 and len(c["text"]) == len("Größe: ") + 30 and sum(x in "äöü" for x in c["text"][7:]) == 15, c
        assert offsets[-1] == len(c["text"]) - 1 and tokens[-1] == c["text"][-1], "the last token is missing"
        whole = [i for i, t in enumerate(tokens) if "\ufffd" not in t]
        assert whole and all(c["text"].startswith(tokens[i], offsets[i]) for i in whole), c
        pieces = [e["choices"][0]["logprobs"] for _, e in s.stream("/v1/completions", body)[:-1]]
        assert [x for p in pieces for x in p["text_offset"]] == offsets and [x for p in pieces for x in p["tokens"]] == tokens


def test_logprobs_of_the_prompt():
    """echo with logprobs: those of the prompt are what they were when its tokens were sampled, and the first has none."""
    with Server() as s:
        said = s.post("/v1/completions", {"prompt": "Once", "max_tokens": 40, "temperature": 0, "logprobs": 2, "ignore_eos": True})[2]["choices"][0]
        text = "Once" + said["text"]
        ids = s.post("/tokenize", {"content": text})[2]["tokens"]
        body = {"prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": 2, "echo": True, "n": 2}
        s.post("/v1/completions", {"prompt": ids, "max_tokens": 1})  # so that it could be reused
        status, _, answer = s.post("/v1/completions", body)
        assert status == 200 and answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, answer
        for c in answer["choices"]:
            got = c["logprobs"]
            assert "".join(got["tokens"]) == c["text"] and c["text"].startswith(text) and len(got["tokens"]) == len(ids) + 1, c
            assert [len(got[k]) for k in ("token_logprobs", "top_logprobs", "text_offset")] == [len(ids) + 1] * 3
            assert got["token_logprobs"][0] is None and got["top_logprobs"][0] is None and all(len(x) == 2 for x in got["top_logprobs"][1:]), got
            assert all(c["text"].startswith(t, at) for t, at in zip(got["tokens"], got["text_offset"])), got
            n = len(said["logprobs"]["tokens"])
            assert got["tokens"][-1 - n:-1] == said["logprobs"]["tokens"], "the prompt is cut into other tokens than were sampled"
            assert all(abs(x - y) < 1e-2 for x, y in zip(got["token_logprobs"][-1 - n:-1], said["logprobs"]["token_logprobs"])), (got, said)
        events = s.stream("/v1/completions", body)
        for i, c in enumerate(answer["choices"]):
            pieces = [x for _, e in events[:-1] for x in e["choices"] if x["index"] == i]
            assert "".join(x["text"] for x in pieces) == c["text"]
            for k in ("tokens", "text_offset"):
                assert [v for x in pieces for v in x["logprobs"][k]] == c["logprobs"][k]
            streamed = [v for x in pieces for v in x["logprobs"]["token_logprobs"]]
            assert streamed[0] is None and all(abs(x - y) < 1e-2 for x, y in zip(streamed[1:], c["logprobs"]["token_logprobs"][1:]))
        long = s.post("/v1/completions", {"prompt": ids * 40, "max_tokens": 1, "logprobs": 0, "echo": True})[2]["choices"][0]["logprobs"]
        assert len(long["tokens"]) == len(ids) * 40 + 1 and all(x <= 0 for x in long["token_logprobs"][1:])
        assert s.chat()[1]["choices"][0]["message"]["content"] == ANSWER


def test_logprobs_are_of_the_content():
    """Joined, the tokens are the content: no marks, no thoughts, no calls, nothing of a stop string; whole and streamed."""
    tokens_of = lambda content: b"".join(bytes(t["bytes"]) for t in content).decode(errors="replace")
    hi = [{"role": "user", "content": "hi"}]  # the model itself begins to think, or would
    hot = {"temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 60}
    cases = [{"messages": hi}, {"messages": hi, "stop": ["-e", "v-"]}, {"messages": hi, "enable_thinking": False}, {"messages": THINK, "enable_thinking": True},
             {"messages": THINK, "enable_thinking": True, "stop": ["= 7"]}, {"messages": THINK, "enable_thinking": True, "thinking_budget_tokens": 3},
             {"messages": ASK_WEATHER, "tools": [WEATHER]}, {"messages": ASK_WEATHER, "tools": [WEATHER], "tool_choice": "required"},
             {"messages": QUESTION, "grammar": 'root ::= "<b> <tool" [0-9]{3} "</"'},
             {"messages": ASK_WEATHER, "tools": [WEATHER], "max_tokens": 6}, {"messages": QUESTION, "stop": ["capital of", " of France", "zz"]},
             {"messages": QUESTION, "grammar": 'root ::= "Look." "<tool_call>\\n{\\"name\\": \\"f\\", \\"arguments\\": {}}\\n</tool_call>"', "stop": [".X"]}]
    cases += [{"messages": hi, "seed": seed, **hot} for seed in range(8)] + [{"messages": ASK_WEATHER, "tools": [WEATHER], "seed": seed, **hot} for seed in range(8)]

    def check_joined(s):
        for fields in cases:
            fields = {"temperature": 0, "logprobs": True, "top_logprobs": 2, "max_tokens": 200, **fields}
            choice = s.post("/v1/chat/completions", fields)[2]["choices"][0]
            text, content = choice["message"]["content"] or "", choice["logprobs"]["content"]
            joined = tokens_of(content)
            # A token that ends in a stop string is in the content with its beginning.
            assert joined == text or "\ufffd" in text or ("stop" in fields and joined.startswith(text) and tokens_of(content[:-1]) != text), (fields, text, joined)
            deltas = [c for _, e in s.stream("/v1/chat/completions", fields)[:-1] for c in e["choices"]]
            assert "".join(c["delta"].get("content") or "" for c in deltas) == text, fields
            assert [t for c in deltas if c["logprobs"] for t in c["logprobs"]["content"]] == content, fields
            assert all(c["delta"]["content"] for c in deltas[1:] if c["logprobs"]), (fields, deltas)

    def make_special(tokenizer):
        for token in tokenizer["added_tokens"]:
            token["special"] = True
    with tempfile.TemporaryDirectory() as folder, Server(model=changed_demo(folder, tokenizer=make_special)) as s:
        check_joined(s)
    with Server() as s:
        check_joined(s)
        broken = next(i for i in range(2048) if s.post("/detokenize", {"tokens": [i]})[2]["content"] == "\ufffd")
        only = {"logprobs": True, "max_tokens": 2, "temperature": 0, "logit_bias": {str(broken): 100}}  # half a character, twice
        assert len(s.chat(QUESTION, **only)[1]["choices"][0]["logprobs"]["content"]) == 2
        answer = s.post("/v1/completions", {"prompt": "x", **only, "logprobs": 1})[2]["choices"][0]
        assert len(answer["logprobs"]["tokens"]) == 2, answer
        long = {"prompt": [broken] * 3 + s.post("/tokenize", {"content": "word " * 200})[2]["tokens"], "echo": True, "logprobs": 1, "max_tokens": 1}
        pieces = [e["choices"][0] for _, e in s.stream("/v1/completions", long)[:-1] if e["choices"]]
        assert len(pieces) > 100, len(pieces)  # a prompt that begins with broken bytes comes as it is computed
        assert sum(len(p["logprobs"]["tokens"]) for p in pieces if p["logprobs"]) == len(long["prompt"]) + 1


def test_tools():
    """Question, call, result, answer; whole and streamed, in all three APIs."""
    with Server() as s:
        answer = s.chat(ASK_WEATHER, tools=[WEATHER])[1]["choices"][0]
        calls = answer["message"]["tool_calls"]
        assert answer["finish_reason"] == "tool_calls" and answer["message"]["content"] is None
        assert [(c["type"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls] == [("function", "get_weather", {"city": "Paris"})]
        history = ASK_WEATHER + [answer["message"], {"role": "tool", "tool_call_id": calls[0]["id"], "content": '{"city": "Paris", "sky": "sunny", "celsius": 21}'}]
        final = s.chat(history, tools=[WEATHER])[1]["choices"][0]
        assert "21" in final["message"]["content"] and final["finish_reason"] == "stop"
        events = s.stream("/v1/chat/completions", {"messages": ASK_WEATHER, "temperature": 0, "tools": [WEATHER]})
        deltas = [t for _, e in events[:-1] for c in e["choices"] for t in c["delta"].get("tool_calls", [])]
        assert deltas[0]["id"] and deltas[0]["function"]["name"] == "get_weather" and all("id" not in d for d in deltas[1:])
        assert json.loads("".join(d["function"]["arguments"] for d in deltas)) == {"city": "Paris"}
        assert events[-2][1]["choices"][0]["finish_reason"] == "tool_calls"
        none = s.chat(ASK_WEATHER, tools=[WEATHER], tool_choice="none")[1]
        assert "tool_calls" not in none["choices"][0]["message"]
        cut = s.chat(ASK_WEATHER, tools=[WEATHER], max_tokens=6)[1]["choices"][0]
        assert cut["finish_reason"] == "length" and "tool_calls" not in cut["message"], cut
        reply = s.post("/v1/messages", {"max_tokens": 80, "temperature": 0, "messages": ASK_WEATHER, "tools": [CLAUDE_WEATHER]})[2]
        use = reply["content"][-1]
        assert reply["stop_reason"] == "tool_use" and use["type"] == "tool_use" and use["input"] == {"city": "Paris"}
        history = ASK_WEATHER + [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": '{"city": "Paris", "sky": "sunny", "celsius": 21}'}]}]}]
        reply = s.post("/v1/messages", {"max_tokens": 80, "temperature": 0, "messages": history, "tools": [CLAUDE_WEATHER]})[2]
        assert reply["content"][0]["text"] == final["message"]["content"], (reply, final)
        reply = s.post("/v1/responses", {"input": ASK_WEATHER, "temperature": 0, "tools": [FLAT_WEATHER, {"type": "web_search"}]})[2]
        call = reply["output"][-1]
        assert call["type"] == "function_call" and json.loads(call["arguments"]) == {"city": "Paris"}
        items = ASK_WEATHER + [call, {"type": "function_call_output", "call_id": call["call_id"], "output": '{"city": "Paris", "sky": "sunny", "celsius": 21}'}]
        reply = s.post("/v1/responses", {"input": items, "temperature": 0, "tools": [FLAT_WEATHER]})[2]
        assert reply["output"][0]["content"][0]["text"] == final["message"]["content"], reply
        assert "left out a tool of type" in s.errors()


def test_thinking():
    with Server() as s:
        message = s.chat(THINK, enable_thinking=True)[1]
        thought, text = message["choices"][0]["message"]["reasoning_content"], message["choices"][0]["message"]["content"]
        assert "31 plus 44" in thought and text == "31 + 44 = 75" and "think>" not in thought + text
        assert message["usage"]["completion_tokens_details"]["reasoning_tokens"] > 5
        events = s.stream("/v1/chat/completions", {"messages": THINK, "temperature": 0, "enable_thinking": True})
        assert "".join(c["delta"].get("reasoning_content", "") for _, e in events[:-1] for c in e["choices"]) == thought and text_of(events) == text
        assert "reasoning_content" not in s.chat(enable_thinking=False)[1]["choices"][0]["message"]
        reply = s.post("/v1/messages", {"max_tokens": 100, "temperature": 0, "messages": THINK, "thinking": {"type": "enabled", "budget_tokens": 1024}})[2]
        assert [b["type"] for b in reply["content"]] == ["thinking", "text"] and reply["content"][0]["thinking"] == thought and reply["content"][0]["signature"]
        events = s.stream("/v1/messages", {"max_tokens": 100, "temperature": 0, "messages": THINK, "thinking": {"type": "enabled"}})
        assert [n for n, _ in events if n in ("content_block_start", "content_block_stop", "message_stop")] == ["content_block_start", "content_block_stop"] * 2 + ["message_stop"]
        assert events[0][0] == "message_start" and events[0][1]["message"]["usage"]["input_tokens"] > 0
        assert "".join(e["delta"].get("thinking", "") for n, e in events if n == "content_block_delta") == thought
        assert any(e["delta"]["type"] == "signature_delta" for n, e in events if n == "content_block_delta")
        budget = s.chat(THINK, enable_thinking=True, thinking_budget_tokens=3)[1]
        assert budget["usage"]["completion_tokens_details"]["reasoning_tokens"] < 10
        reply = s.post("/v1/messages", {"max_tokens": 60, "temperature": 0, "messages": QUESTION, "stop_sequences": ["zz", "France"]})[2]
        assert reply["stop_reason"] == "stop_sequence" and reply["stop_sequence"] == "France" and reply["content"][0]["text"] == "The capital of "
        body = {"max_tokens": 100, "temperature": 0, "messages": THINK, "thinking": {"type": "enabled"}, "stop_sequences": ["plus", "= "]}
        reply = s.post("/v1/messages", body)[2]
        assert "plus" in reply["content"][0]["thinking"] and reply["content"][1]["text"] == "31 + 44 " and reply["stop_sequence"] == "= ", reply
        assert s.stream("/v1/messages", body)[-2][1]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "= "}


def test_who_settles_thinking():
    """The request's word before the server's, under whichever names; a request that contradicts itself is refused."""
    def thinks(s, **fields):
        status, answer = s.chat(**fields)
        assert status == 200, (fields, answer)
        return bool(answer["choices"][0]["message"].get("reasoning_content"))
    begun = QUESTION + [{"role": "assistant", "content": "The capital of"}]
    for options in [["--think"], ["--no-think"], []]:
        with Server(*options) as s:
            assert not options or thinks(s) == (options == ["--think"])
            for on in (True, False):
                for word in [{"enable_thinking": on}, {"thinking": on}, {"enable_thinking": on, "thinking": on, "other": [1, {"a": "\u00e9"}]}]:
                    assert thinks(s, chat_template_kwargs=word) == on, (options, word)
                    assert thinks(s, chat_template_kwargs=word, enable_thinking=on) == on
                status, answer = s.chat(begun, chat_template_kwargs={"enable_thinking": on})
                assert status == 200 and answer["choices"][0]["message"] == {"role": "assistant", "content": " France is Paris."}, answer
            assert thinks(s, chat_template_kwargs={"enable_thinking": None}) == thinks(s)
            assert not thinks(s, chat_template_kwargs={"enable_thinking": False}, reasoning_effort="none", thinking={"type": "disabled"})
            assert thinks(s, chat_template_kwargs={"enable_thinking": True}, reasoning_effort="high")
            on = {"enable_thinking": True}
            for fields, param, other in [({"chat_template_kwargs": on, "reasoning_effort": "none"}, "chat_template_kwargs", "reasoning_effort"),
                                         ({"chat_template_kwargs": on, "enable_thinking": False}, "chat_template_kwargs", "enable_thinking"),
                                         ({"chat_template_kwargs": {**on, "thinking": False}}, "chat_template_kwargs", "enable_thinking"),
                                         ({"enable_thinking": True, "reasoning": {"effort": "none"}}, "reasoning", "enable_thinking"),
                                         ({"enable_thinking": False, "thinking": {"type": "enabled"}}, "thinking", "enable_thinking")]:
                status, answer = s.chat(**fields)
                assert status == 400 and answer["error"]["param"] == param and "contradict" in answer["error"]["message"] and other in answer["error"]["message"], answer


def test_claude_code():
    """Every field and header that Claude Code sends; the stamp in its system prompt does not change the prompt."""
    def request(stamp):
        return {"model": "claude-sonnet-4-5", "max_tokens": 32000, "temperature": 0, "metadata": {"user_id": "u"}, "output_config": {"effort": "medium"},
                "thinking": {"type": "adaptive"}, "context_management": {"edits": []},
                "system": [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={stamp};"},
                           {"type": "text", "text": "You are helpful.", "cache_control": {"type": "ephemeral"}}],
                "messages": QUESTION + [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [
                    {"type": "text", "text": "What is the capital of France?", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}],
                "tools": [{**CLAUDE_WEATHER, "cache_control": {"type": "ephemeral"}}, {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14", "x-app": "cli",
               "x-stainless-lang": "js", "x-stainless-retry-count": "0", "anthropic-dangerous-direct-browser-access": "true",
               "user-agent": "claude-cli/2.1 (external, cli)", "accept-encoding": "br, gzip, deflate", "Authorization": "Bearer anything"}
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder) / "strict.jinja"
        template.write_text(STRICT_TEMPLATE)
        for options in [[], ["--template", str(template)]]:
            with Server(*options) as s:
                assert s.ask("HEAD", "/", headers=headers)[0] == 200 and s.ask("HEAD", "/api/hello", headers=headers)[0] == 200
                status, got, reply = s.ask("POST", "/v1/messages?beta=true", request("1a2b3"), headers)
                assert status == 200 and reply["type"] == "message" and got["request-id"], reply
                counts = {s.ask("POST", "/v1/messages/count_tokens?beta=true", request(stamp), headers)[2]["input_tokens"] for stamp in ("00000", "fffff", "1a2b3")}
                assert len(counts) == 1, counts
                events = s.stream("/v1/messages?beta=true", request("9c8d7"), headers)
                assert events[-1][0] == "message_stop"
                assert bool(options) == ("they became text of the user" in s.errors())


def test_codex():
    """Every field that Codex sends to the Responses API."""
    body = {"model": "gpt-5-codex", "instructions": "You are Codex.", "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is the weather in Paris?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}], "encrypted_content": None},
        {"type": "function_call", "name": "get_weather", "arguments": '{"city":"Paris"}', "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": '{"city": "Paris", "sky": "sunny", "celsius": 21}'}],
        "tools": [{**FLAT_WEATHER, "strict": False}, {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}, {"type": "web_search"}],
        "tool_choice": "auto", "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto"}, "store": False,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "text": {"verbosity": "low"}, "temperature": 0}
    with Server() as s:
        events = s.stream("/v1/responses", body, {"session_id": "x", "originator": "codex_cli_rs", "version": "0.1"})
        names = [n for n, _ in events]
        assert names[:2] == ["response.created", "response.in_progress"] and names[-1] == "response.completed"
        assert [e["sequence_number"] for _, e in events] == list(range(len(events)))
        final = events[-1][1]["response"]
        assert final["status"] == "completed" and "21" in final["output"][-1]["content"][0]["text"] and final["usage"]["total_tokens"] > 0
        text = "".join(e["delta"] for n, e in events if n == "response.output_text.delta")
        assert text == final["output"][-1]["content"][0]["text"]
        events = s.stream("/v1/responses", {**body, "input": "What is the weather in Oslo?"})
        args = "".join(e["delta"] for n, e in events if n == "response.function_call_arguments.delta")
        assert json.loads(args) == {"city": "Oslo"} == json.loads(events[-1][1]["response"]["output"][0]["arguments"])
        for extra in [{"previous_response_id": "resp_1"}, {"conversation": "c"}, {"background": True}, {"input": [{"type": "computer_call"}]}]:
            status, _, answer = s.post("/v1/responses", {**body, **extra})
            assert status == 400 and answer["error"]["message"], (extra, answer)
        reply = s.post("/v1/responses", {"input": "What is the capital of France?", "max_output_tokens": 3, "temperature": 0})[2]
        assert reply["status"] == "incomplete" and reply["incomplete_details"]["reason"] == "max_output_tokens"


def test_no_template():
    with tempfile.TemporaryDirectory() as folder, Server(model=changed_demo(folder, tokenizer_config=lambda c: c.pop("chat_template"))) as s:
        for path, field in [("/v1/chat/completions", "messages"), ("/v1/responses", "input")]:
            status, _, answer = s.post(path, {field: QUESTION, "max_tokens": 1} if field == "messages" else {field: QUESTION})
            said = answer["error"]["message"]
            assert status == 400 and said.startswith(f"{field}: this model has no chat template"), (path, status, answer)


def test_responses_are_true():
    """A response says how it was asked for, which item the limit cut, and what went wrong."""
    tools = [FLAT_WEATHER, {"type": "web_search"}]
    form = {"type": "json_schema", "name": "x", "schema": {"type": "string", "maxLength": 5}}
    body = {"input": "Hello", "temperature": 0, "instructions": "Be \"brief\"\nand kind: ö.", "tools": tools, "tool_choice": "none",
            "text": {"format": form, "verbosity": "low"}, "reasoning": {"effort": "low", "summary": "auto"}}
    asked = {k: body[k] for k in ("instructions", "tools", "tool_choice", "text", "reasoning")}
    silent = {"instructions": None, "tools": [], "tool_choice": "auto", "text": {"format": {"type": "text"}}, "reasoning": {"effort": None, "summary": None}}
    picked = lambda response: {k: response[k] for k in asked}
    with Server() as s:
        for fields, expected in [(body, asked), ({"input": "Hello", "temperature": 0}, silent), ({"input": "Hello", "temperature": 0, **dict.fromkeys(asked)}, silent)]:
            assert picked(s.post("/v1/responses", json.dumps(fields, indent=2).encode())[2]) == expected, fields
            events = s.stream("/v1/responses", fields)
            assert [picked(e["response"]) for n, e in events if "response" in e] == [expected] * 3, fields
        spaced = json.dumps({**body, "stream": True}, indent=2).encode()
        lines = s.ask("POST", "/v1/responses", spaced)[2].decode().splitlines()
        assert all(line.startswith(("event: ", "data: ")) or not line for line in lines) and [json.loads(x[6:]) for x in lines if x.startswith("data: ")]

        cases = [({"input": "What is the capital of France?", "max_output_tokens": 3}, ["incomplete"]),
                 ({"input": "hi", "max_output_tokens": 5}, ["incomplete"]),
                 ({"input": "What is the capital of France?"}, ["completed"])]
        for fields, expected in cases:
            whole = s.post("/v1/responses", {"temperature": 0, **fields})[2]
            assert [item["status"] for item in whole["output"]] == expected and whole["status"] == expected[-1], whole
            events = s.stream("/v1/responses", {"temperature": 0, **fields})
            assert [e["item"]["status"] for n, e in events if n == "response.output_item.done"] == expected, events
            assert [item["status"] for item in events[-1][1]["response"]["output"]] == expected

        called = {"input": ASK_WEATHER, "tools": [FLAT_WEATHER], "temperature": 0}
        n = s.post("/v1/responses", called)[2]["usage"]["output_tokens"]
        cut = [s.post("/v1/responses", {**called, "max_output_tokens": k})[2] for k in range(n - 3, n)]
        kinds = [[(item["type"], item["status"]) for item in r["output"]] for r in cut]
        assert all(r["status"] == "incomplete" for r in cut) and [("function_call", "completed")] in kinds, kinds
        assert all(status == ("completed" if kind == "function_call" else "incomplete") for k in kinds for kind, status in k), kinds
        for k, expected in zip(range(n - 3, n), kinds):
            events = s.stream("/v1/responses", {**called, "max_output_tokens": k})
            assert [(e["item"]["type"], e["item"]["status"]) for name, e in events if name == "response.output_item.done"] == expected, expected

        large = {**body, "reasoning": {"summary": "x" * 1500000}, "stream": True}
        assert s.stream("/v1/responses", large)[-1][0] == "response.completed"

        said = [{"role": "assistant", "content": "one"}, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "two"}]}]
        n_joined = s.post("/v1/responses", {"input": QUESTION + said + QUESTION, "max_output_tokens": 1})[2]["usage"]["input_tokens"]
        message = {"role": "assistant", "content": "one\ntwo"}
        assert n_joined == s.chat(QUESTION + [message] + QUESTION, max_tokens=1)[1]["usage"]["prompt_tokens"]
    with tempfile.TemporaryDirectory() as folder:
        endless = lambda config: config.update(eos_token_id=0)
        model = changed_demo(folder, generation_config=endless, config=lambda c: endless(c["text_config"]), tokenizer_config=lambda c: c.pop("eos_token"))
        with Server(model=model) as s:  # which goes on behind the call until it is cut
            fields = {**called, "max_output_tokens": n + 15}
            whole = s.post("/v1/responses", fields)[2]["output"]
            streamed = s.stream("/v1/responses", fields)[-1][1]["response"]["output"]
            expected = [("function_call", "completed"), ("message", "incomplete")]
            assert sorted((item["type"], item["status"]) for item in whole) == expected, whole
            assert [(item["type"], item["status"]) for item in streamed] == expected, streamed
    with tempfile.TemporaryDirectory() as folder, Server(model=broken_demo(folder)) as s:
        events = s.stream("/v1/responses", body)
        failed = events[-1][1]["response"]
        assert events[-1][0] == "response.failed" and failed["status"] == "failed" and picked(failed) == asked, failed
        assert failed["error"]["code"] == "server_error" and failed["error"]["message"] and failed["output"] == [], failed
        assert failed["created_at"] == events[0][1]["response"]["created_at"] > 0 and failed["model"] == "broken", failed
        events = s.stream("/v1/completions", {"prompt": "Hello there, you", "echo": True, "logprobs": 2})  # each is JSON, and NaN is null
        assert "error" in events[-1][1] and [x for _, e in events[:-1] for x in e["choices"][0]["logprobs"]["top_logprobs"] if x] == [], events


def test_completions():
    with Server() as s:
        ids = s.post("/tokenize", {"content": "Once"})[2]["tokens"]
        by_text = s.post("/v1/completions", {"prompt": "Once", "temperature": 0, "max_tokens": 8})[2]
        by_ids = s.post("/v1/completions", {"prompt": ids, "temperature": 0, "max_tokens": 8})[2]
        both = s.post("/v1/completions", {"prompt": [ids, ids], "temperature": 0, "max_tokens": 8, "echo": True})[2]
        text = by_text["choices"][0]["text"]
        assert by_ids["choices"][0]["text"] == text and [c["text"] for c in both["choices"]] == ["Once" + text] * 2
        events = s.stream("/v1/completions", {"prompt": "Once", "temperature": 0, "max_tokens": 8})
        assert "".join(e["choices"][0]["text"] for _, e in events[:-1]) == text and events[-1][1] == "[DONE]"
        for body in [{}, {"prompt": []}, {"prompt": [1, "x"]}, {"prompt": [10**6]}, {"prompt": 5}, {"prompt": ["a"] * 9}, {"prompt": "a", "best_of": 3}, {"prompt": "a", "suffix": "b"}]:
            status, _, answer = s.post("/v1/completions", body)
            assert status == 400, (body, answer)


def test_looking_in():
    with Server() as s:
        models = s.ask("GET", "/v1/models")[2]
        model = models["data"][0]
        assert models["object"] == "list" and model["object"] == "model" and model["meta"]["n_ctx"] == model["context_length"] == 4096
        assert s.ask("GET", "/v1/models/" + model["id"])[2] == model
        status, _, answer = s.ask("GET", "/v1/models/other")
        assert status == 404 and answer["error"]["code"] == "model_not_found"
        text = "The capital of Österreich 🙂 <|im_end|>"
        tokens = s.post("/tokenize", {"content": text, "parse_special": False})[2]["tokens"]
        assert s.post("/detokenize", {"tokens": tokens})[2] == {"content": text}
        assert len(s.post("/tokenize", {"content": "<|im_end|>"})[2]["tokens"]) == 1 < len(s.post("/tokenize", {"content": "<|im_end|>", "parse_special": False})[2]["tokens"])
        pieces = s.post("/tokenize", {"content": "Paris", "with_pieces": True})[2]["tokens"]
        assert "".join(p["piece"] for p in pieces) == "Paris"
        prompt = s.post("/apply-template", {"messages": QUESTION})[2]["prompt"]
        assert prompt == "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
        assert s.post("/apply-template", {"messages": QUESTION, "add_generation_prompt": False})[2]["prompt"] == prompt.rsplit("<|im_start|>", 1)[0]
        assert s.ask("GET", "/props")[2]["total_slots"] == 4 == len(s.ask("GET", "/slots")[2])
        status, _, answer = s.post("/v1/embeddings", {"input": "x"})
        assert status == 501 and answer["error"]["type"] == "not_supported_error"
        for path, body in [("/detokenize", {"tokens": [10**9]}), ("/detokenize", {"tokens": ["a"]}), ("/tokenize", {}), ("/apply-template", {})]:
            assert s.post(path, body)[0] == 400
        s.chat()
        assert s.until(lambda: b'moxie_requests_finished_total{reason="stop"} 1' in s.ask("GET", "/metrics")[2])
        text = s.ask("GET", "/metrics")[2].decode()
        assert "moxie_generation_tokens_total 8\n" in text
        assert "moxie_time_to_first_token_seconds_count 1\n" in text and 'moxie_http_requests_total{status="400"}' in text


def test_paths_without_anything():
    """Errors have their API's shape also where that API has no such path here."""
    with Server() as s:
        for path in ("/v1/messages/batches", "/v1/messages/batches/b_1/results", "/v1/messages/"):
            status, headers, answer = s.post(path, {})
            assert status == 404 and answer["type"] == "error" and answer["error"]["type"] == "not_found_error", (path, answer)
            assert answer["request_id"] == "req_" + headers["request-id"], (path, answer)
        for path in ("/v1/messagesx", "/v1/audio/speech", "/v1/chat/completions/"):
            status, headers, answer = s.post(path, {})
            assert status == 404 and answer["error"]["type"] == "not_found_error" and "type" not in answer and not headers["request-id"], (path, answer)


def test_applied_template():
    """The prompt of a chat is shown as the chat makes it, of the same fields and with the same refusals."""
    with Server() as s:
        asked = lambda **fields: s.post("/apply-template", {"messages": QUESTION, **fields})
        prompt = asked()[2]["prompt"]
        assert asked(tools=[WEATHER])[2]["prompt"] != prompt == asked(tools=[WEATHER], tool_choice="none", max_tokens=3)[2]["prompt"]
        for form in [{"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}}}, {"json_schema": {"type": "integer"}}]:
            assert '{"type": "integer"}' in asked(**form)[2]["prompt"], form
        for on in [{"thinking": {"type": "enabled"}}, {"enable_thinking": True}, {"chat_template_kwargs": {"enable_thinking": True}}]:
            assert asked(**on)[2]["prompt"] == prompt + "<think>\n", on
            assert asked(**on)[2]["n_tokens"] == s.chat(**on, max_tokens=1)[1]["usage"]["prompt_tokens"]
        assert asked(reasoning_effort="none", reasoning={"effort": "none"})[2]["prompt"] == prompt
        for param, value in [("chat_template_kwargs", {"enable_thinking": 1}), ("reasoning_effort", "lots"), ("response_format", {"type": "yaml"}),
                             ("json_schema", {"not": {}}), ("tool_choice", "required")]:
            status, _, answer = asked(**{param: value})
            assert status == 400 and answer["error"]["param"] == param, (param, answer)


def test_progress_and_pings():
    with Server("-c", "4k") as s:
        events = s.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 1500}], "temperature": 0, "max_tokens": 2,
                                                   "return_progress": True})
        steps = [e["prompt_progress"] for _, e in events[:-1] if "prompt_progress" in e]
        assert steps and steps[-1]["processed"] == steps[-1]["total"] > 1500 and [x["processed"] for x in steps] == sorted(x["processed"] for x in steps)


def test_forms():
    """Replies that keep to a schema, a grammar or a call; what cannot be held is refused, never dropped."""
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "n": {"type": "integer", "minimum": 3, "maximum": 7}},
              "required": ["city", "n"], "additionalProperties": False}
    hot = {"temperature": 1.5, "top_k": 0, "top_p": 1, "max_tokens": 200}
    with Server() as s:
        for seed in range(5):
            for fields in [{"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}}, {"json_schema": schema}]:
                status, answer = s.chat(seed=seed, **hot, **fields)
                value = json.loads(answer["choices"][0]["message"]["content"])
                assert list(value) == ["city", "n"] and 3 <= value["n"] <= 7 and len(value["city"]) <= 12, value
            text = text_of(s.stream("/v1/chat/completions", {"messages": QUESTION, "seed": seed, **hot, "grammar": 'root ::= ("yes" | "no") " " [0-9]{3}'}))
            assert len(text.split()) == 2 and text.split()[0] in ("yes", "no") and text.split()[1].isdigit(), text
            reply = s.post("/v1/responses", {"input": "Hello", "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}, **{k: v for k, v in hot.items() if k != "max_tokens"}})[2]
            assert 3 <= json.loads(reply["output"][0]["content"][0]["text"])["n"] <= 7, reply
            reply = s.post("/v1/messages", {"messages": QUESTION, **hot, "output_config": {"format": {"type": "json_schema", "schema": schema}}})[2]
            assert 3 <= json.loads(reply["content"][0]["text"])["n"] <= 7, reply
        other = {"type": "function", "function": {"name": "set_timer", "description": "Start a timer.", "parameters": {
            "type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]}}}
        for choice, names in [("required", {"get_weather", "set_timer"}), ({"type": "function", "function": {"name": "set_timer"}}, {"set_timer"})]:
            answer = s.chat(tools=[WEATHER, other], tool_choice=choice, max_tokens=100)[1]["choices"][0]
            calls = answer["message"].get("tool_calls")
            assert calls and calls[0]["function"]["name"] in names and isinstance(json.loads(calls[0]["function"]["arguments"]), dict), answer
        reply = s.post("/v1/messages", {"messages": QUESTION, "max_tokens": 100, "temperature": 0, "tools": [CLAUDE_WEATHER], "tool_choice": {"type": "any"}})[2]
        assert reply["stop_reason"] == "tool_use" and isinstance(reply["content"][-1]["input"]["city"], str), reply
        for fields in [{"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}}, {"grammar": "root ::= ("}, {"grammar": "Root ::= \"a\""},
                       {"grammar": 'root ::= "a"', "json_schema": schema}, {"grammar": 'root ::= "a"', "tools": [WEATHER]}, {"tool_choice": "required"},
                       {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "absent"}}}, {"response_format": {"type": "json_schema"}}]:
            status, answer = s.chat(**fields)
            assert status == 400 and answer["error"]["message"], (fields, status, answer)


def test_forms_with_tools():
    """Beside tools a reply that must be JSON is that or calls, whichever API asks; and the results lead to an answer in JSON."""
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "celsius": {"type": "integer", "minimum": -50, "maximum": 50}},
              "required": ["city", "celsius"], "additionalProperties": False}
    forms = [{"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}, {"json_schema": schema},
             {"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_object", "schema": schema}}]
    with Server() as s:
        mark = s.post("/tokenize", {"content": "<tool_call>"})[2]["tokens"]
        assert len(mark) == 1
        never = {"logit_bias": [[mark[0], False]]}
        for form in forms:
            for single in (False, True):
                fields = {"tools": [WEATHER], "parallel_tool_calls": not single, "max_tokens": 200, **form}
                answer = s.chat(ASK_WEATHER, **fields)[1]["choices"][0]
                calls = answer["message"].get("tool_calls")
                assert answer["finish_reason"] == "tool_calls" and json.loads(calls[0]["function"]["arguments"]) == {"city": "Paris"}, answer
            result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": '{"city": "Paris", "sky": "sunny", "celsius": 21}'}
            for messages in [ASK_WEATHER, ASK_WEATHER + [answer["message"], result]]:
                answer = s.chat(messages, **fields, **never)[1]["choices"][0]
                value = json.loads(answer["message"]["content"])
                assert answer["finish_reason"] == "stop" and isinstance(value, dict), answer
                assert form == forms[2] or list(value) == ["city", "celsius"], (form, value)
        for tools, choice in [([WEATHER], "none"), ([], "auto"), (None, None)]:
            for fields in [{**forms[0], "tools": tools}, {"grammar": 'root ::= "{}"', "tools": tools}]:
                answer = s.chat(ASK_WEATHER, tool_choice=choice, max_tokens=100, **fields)[1]["choices"][0]["message"]
                assert isinstance(json.loads(answer["content"]), dict) and "tool_calls" not in answer, answer
        use = {"max_tokens": 100, "temperature": 0, "messages": ASK_WEATHER, "tools": [CLAUDE_WEATHER]}
        reply = s.post("/v1/messages", {**use, "output_config": {"format": {"type": "json_schema", "schema": schema}}})[2]
        assert reply["stop_reason"] == "tool_use" and reply["content"][-1]["input"] == {"city": "Paris"}, reply
        text = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
        reply = s.post("/v1/responses", {"input": ASK_WEATHER, "temperature": 0, "tools": [FLAT_WEATHER], "text": text})[2]
        assert reply["output"][-1]["type"] == "function_call" and json.loads(reply["output"][-1]["arguments"]) == {"city": "Paris"}, reply
        for wrong in ({"not": {}}, {"enum": []}):
            status, answer = s.chat(ASK_WEATHER, tools=[WEATHER], json_schema=wrong)
            assert status == 400 and answer["error"]["param"] == "json_schema", answer
        status, answer = s.chat(ASK_WEATHER, tools=[{"type": "web_search"}], **forms[0])  # the fault of the tools
        assert status == 400 and answer["error"]["param"] == "tools", answer
        circle = {"anyOf": [{"$ref": "#"}, {"type": "object"}]}
        for parameters in ({"enum": ["x" * 300000]}, circle):
            for fields in [*forms, {"tool_choice": "required"}]:
                wrong = {"type": "function", "function": {"name": "f", "parameters": parameters}}
                status, answer = s.chat(ASK_WEATHER, tools=[WEATHER, wrong], **fields)  # or of one of them
                assert status == 400 and answer["error"]["param"] == "tools" and "tool f: " in answer["error"]["message"], answer
        status, answer = s.chat(ASK_WEATHER, tools=[WEATHER], json_schema=circle)
        assert status == 400 and answer["error"]["param"] == "json_schema" and "begins with itself" in answer["error"]["message"], answer


def test_ambiguous_grammar():
    """A grammar that can be read in too many ways is the client's, found only while the reply is made."""
    fields = {"grammar": 'root ::= b{0,90} "y"\nb ::= [a-z]{0,50} | [a-z]{1,60} b | "aa" b', "temperature": 50, "top_k": 0, "top_p": 1, "seed": 1, "max_tokens": 500}
    with Server() as s:
        status, answer = s.chat(**fields)
        assert status == 400 and answer["error"]["param"] == "grammar" and "too many ways" in answer["error"]["message"], (status, answer)
        error = s.stream("/v1/chat/completions", {"messages": QUESTION, **fields})[-1][1]["error"]
        assert error["type"] == "invalid_request_error" and error["param"] == "grammar", error
        assert s.post("/v1/completions", {"prompt": "Hello", **fields})[0] == 400
        assert s.chat()[0] == 200


def test_queue():
    """One slot and a queue of two: the fourth request is told to come back later, and the rest are answered."""
    with Server("--parallel", "1", "--queue", "2", *SLOWLY) as s:
        with s.connect() as first:
            first.sendall(request_bytes(body={"messages": QUESTION, "stream": True, **ENDLESS}))
            assert s.until(lambda: s.metric("num_requests_running") == 1)
            waiting = [s.connect() for _ in range(2)]
            for c in waiting:
                c.sendall(request_bytes(Connection="close"))
            assert s.until(lambda: s.metric("num_requests_waiting") == 2)
            status, headers, answer = s.post("/v1/chat/completions", {"messages": QUESTION})
            assert status == 429 and int(headers["Retry-After"]) > 0 and answer["error"]["code"] == "queue_full", answer
            status, headers, answer = s.post("/v1/messages", {"messages": QUESTION, "max_tokens": 5})
            assert status == 429 and answer["error"]["type"] == "rate_limit_error"
            assert s.ask("GET", "/health")[0] == 200
        for c in waiting:
            assert status_of(drain(c)) == 200
            c.close()


def test_more_choices_than_room():
    """What could never be answered is the request's fault, and not a matter of coming back later."""
    with Server("--parallel", "1", "--queue", "2") as s:
        for n, expected in [(3, 200), (4, 400), (8, 400)]:
            status, answer = s.chat(n=n)
            assert status == expected, (n, answer)
        assert answer["error"]["param"] == "n" and "room for 3" in answer["error"]["message"], answer
        status, _, answer = s.post("/v1/completions", {"prompt": ["a"] * 4, "max_tokens": 1})
        assert status == 400 and answer["error"]["param"] == "prompt", answer
        assert s.post("/v1/completions", {"prompt": ["a"] * 3, "max_tokens": 1})[0] == 200


run_tests(globals())
