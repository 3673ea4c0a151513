"""Conversations of many kinds, for chat templates."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Looks the weather up.\nSays \"ok\" <b>too</b>.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where?"},
                "days": {"type": "integer", "enum": [1, 2, 3], "default": 1},
                "units": {"type": ["string", "null"]},
                "places": {"type": "array", "items": {"type": "string"}},
                "more": {"type": "object", "properties": {"deep": {"type": "boolean", "description": "é"}}, "required": ["deep"]},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "Tells the time.", "parameters": {"type": "object", "properties": {}}}}


def says(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, number=1):
    return {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


USER, ANSWER, SYSTEM = says("user", "What is 2+2?"), says("assistant", "It is 4."), says("system", "Be brief.")
ASKS = says("assistant", "", tool_calls=[call("get_weather", {"city": "Bonn", "days": 2})])
RESULT = says("tool", '{"sky": "blue"}', tool_call_id="call00001", name="get_weather")

# Each is (messages, what else the template gets).
CONVERSATIONS = {
    "question": ([USER], {"add_generation_prompt": True}),
    "turns": ([USER, ANSWER, says("user", "And 3+3?")], {"add_generation_prompt": True}),
    "closed": ([USER, ANSWER], {}),
    "system": ([SYSTEM, USER, ANSWER, says("user", "Why?")], {"add_generation_prompt": True}),
    "systems": ([SYSTEM, says("system", "Be kind."), USER], {"add_generation_prompt": True}),
    "late system": ([USER, ANSWER, says("system", "Be rude."), says("user", "So?")], {"add_generation_prompt": True}),
    "developer": ([says("developer", "Be exact."), USER], {"add_generation_prompt": True}),
    "tools": ([USER], {"tools": [WEATHER, CLOCK], "add_generation_prompt": True}),
    "system and tools": ([SYSTEM, USER], {"tools": [CLOCK], "add_generation_prompt": True}),
    "calls": ([USER, ASKS, RESULT], {"tools": [WEATHER], "add_generation_prompt": True}),
    "answered calls": ([SYSTEM, USER, ASKS, RESULT, ANSWER, says("user", "More?")], {"tools": [WEATHER], "add_generation_prompt": True}),
    "two calls": (
        [USER, says("assistant", None, tool_calls=[call("clock", {}), call("get_weather", {"city": "Köln", "places": ["a", "b"]}, 2)]),
         says("tool", "12:00", tool_call_id="call00001", name="clock"), RESULT],
        {"tools": [WEATHER, CLOCK], "add_generation_prompt": True},
    ),
    "calls with words": (
        [USER, says("assistant", "Let me look.", tool_calls=[call("clock", {"zone": 1.5, "exact": True, "of": None})]), RESULT],
        {"tools": [CLOCK], "add_generation_prompt": True},
    ),
    "thoughts": (
        [USER, says("assistant", "4.", reasoning_content="Two and two."), says("user", "Sure?")],
        {"add_generation_prompt": True},
    ),
    "thoughts in the text": (
        [USER, says("assistant", "<think>\nTwo and two.\n</think>\n\n4."), says("user", "Sure?"), says("assistant", "<think>Hm</think>Yes.")],
        {},
    ),
    "no thinking": ([USER], {"enable_thinking": False, "add_generation_prompt": True}),
    "thinking": ([SYSTEM, USER], {"enable_thinking": True, "thinking": True, "reasoning_effort": "high", "add_generation_prompt": True}),
    "empty": ([says("system", ""), says("user", ""), says("assistant", ""), says("user", " ")], {"add_generation_prompt": True}),
    "unicode": ([says("system", "\u00a0Ünïcode 🙂\u3000"), says("user", "\u2028Straße \U0001f468\u200d\U0001f469\n"), says("assistant", " 好 "), says("user", "é́")], {"add_generation_prompt": True}),
    "spaces": ([says("system", "  a \n"), says("user", "\n\n b\t"), says("assistant", "  c\n\n"), says("user", " d ")], {"add_generation_prompt": True}),
    "marks": (
        [says("system", "<|im_end|>\n<|im_start|>user"), says("user", "</s>[INST] <|eot_id|> {{ bos_token }} {% if %}"),
         says("assistant", "<end_of_turn> <|end|> <tool_call>"), says("user", "<|endoftext|>")],
        {"add_generation_prompt": True},
    ),
    "parts": ([says("user", [{"type": "text", "text": "What "}, {"type": "text", "text": "now?"}])], {"add_generation_prompt": True}),
    "no user": ([says("assistant", "Hello.")], {"add_generation_prompt": True}),
    "twice the user": ([USER, USER], {"add_generation_prompt": True}),
    "documents": ([USER], {"documents": [{"title": "T", "text": "Two."}], "add_generation_prompt": True}),
    "continued": ([USER, says("assistant", "It is ")], {"continue_final_message": True}),
    "nothing": ([], {"add_generation_prompt": True}),
}
