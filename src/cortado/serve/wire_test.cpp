#include "cortado/serve/wire.h"

#include <gtest/gtest.h>

#include "cortado/base/error.h"
#include "cortado/generate/defaults.h"
#include "cortado/models/state_growth.h"
#include "cortado/serve/wire_fields.h"
#include "cortado/testing/serving.h"

namespace cortado {
namespace {

using testing::chatty_engine;
using testing::events_of;
using testing::reply_to;

Json parsed(const std::string& text) { return parse_json(text, "test"); }

// Returns the status and the field of a refusal: "400 temperature".
std::string refused(const Engine& engine, const std::string& body, bool chat, const WireLimits& limits = {}) {
  return testing::refusal_of([&] {
    const Json json = parsed(body);
    if (chat) {
      read_chat(json, engine, limits);
    } else {
      read_completion(json, engine, limits);
    }
  });
}

TEST(Wire, WhatIsNotSaidIsSampledAsTheModelHasIt) {
  const SamplingOptions own{.temperature = 0.2, .top_k = 5, .top_p = 0.9, .min_p = 0.05, .repetition_penalty = 1.1};
  const auto engine = testing::untaught_engine(own);
  const auto sampling = [&](const char* fields) {
    const std::string body = concat(R"({"prompt": "a")", fields, "}");
    return read_completion(parsed(body), *engine, {}).requests.at(0).sampling;
  };
  const SamplingOptions asked = sampling("");
  EXPECT_EQ(sampling_json(asked), sampling_json(own));
  EXPECT_EQ(models_list(*engine).at("data")[0].at("sampling"), sampling_json(own));
  const SamplingOptions other =
      sampling(R"(, "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1)");
  EXPECT_EQ(sampling_json(other), sampling_json({}));
  EXPECT_EQ(sampling(R"(, "temperature": 0.7)").top_p, 0.9);
}

std::string joined(const Json& content) {
  std::string text;
  for (const Json& entry : content) text += entry.at("token").get<std::string>();
  return text;
}

// Letters are biased so that an answer begins with spaces, continues with letters and reaches its stop.
TEST(Wire, TheTextIsThatOfItsTokens) {
  const auto model = testing::wide_model(R"({"mixer": "latte"})");
  Engine spaced({{.name = "it", .model = model, .tokenizer = std::make_shared<testing::Spaced>()}}, {});
  const auto plain = chatty_engine();
  const std::string asked =
      R"({"messages": [{"role": "user", "content": "hi"}], "seed": 3, "temperature": 0, "logprobs": true,
      "max_tokens": 40, "logit_bias": {"32": 100, "97": 90, "98": 89}, "frequency_penalty": 2, "ignore_eos": true)";
  for (Engine* engine : {plain.get(), &spaced}) {
    size_t spaces = 0;
    for (const char* stop : {"}", R"(, "stop": "ab"})", R"(, "stop": [" a", "bb"]})"}) {
      const Json whole = reply_to(*engine, asked + stop, true).at("choices")[0];
      const std::string text = whole.at("message").at("content");
      EXPECT_EQ(joined(whole.at("logprobs").at("content")), text) << stop;
      spaces += text.starts_with(' ') ? 1 : 0;
      std::string streamed, scored;
      for (const Json& event : events_of(*engine, asked + R"(, "stream": true)" + stop, true)) {
        const Json& choice = event.at("choices")[0];
        streamed += choice.at("delta").value("content", "");
        if (!choice.at("logprobs").is_null()) scored += joined(choice.at("logprobs").at("content"));
        EXPECT_TRUE(streamed.starts_with(scored)) << stop;  // scores are never ahead of the text
      }
      EXPECT_EQ(streamed, text);
      EXPECT_EQ(scored, text);
    }
    EXPECT_EQ(spaces, 3u);  // the spaces are the model's own
  }
}

// The token that ends an answer is not part of its text.
TEST(Wire, MarksAreNotScored) {
  const auto engine = chatty_engine();
  const Json reply = reply_to(
      *engine, R"({"messages": [{"role": "user", "content": "hi"}], "logprobs": true, "logit_bias": {"0": 100}})",
      true);
  const Json& choice = reply.at("choices")[0];
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_EQ(joined(choice.at("logprobs").is_null() ? Json::array() : choice.at("logprobs").at("content")),
            choice.at("message").at("content"));
}

TEST(Wire, AnEchoHasNoMark) {
  Engine engine({{.name = "it",
                  .model = testing::wide_model(R"({"mixer": "latte"})"),
                  .tokenizer = std::make_shared<testing::Marked>()}},
                {});
  for (const char* prompt : {R"("Hi")", "[1, 72, 105]"}) {
    const std::string body = std::string(R"({"max_tokens": 0, "echo": true, "prompt": )") + prompt;
    EXPECT_EQ(reply_to(engine, body + "}", false).at("choices")[0].at("text"), "Hi");
    const Json scored =
        reply_to(engine, body + R"(, "logprobs": 1, "add_special_tokens": true})", false).at("choices")[0];
    EXPECT_EQ(scored.at("text"), "Hi");
    EXPECT_EQ(scored.at("logprobs").at("text_offset"), Json::array({0, 0, 1}));
    EXPECT_EQ(scored.at("logprobs").at("tokens")[1], "H");
  }
}

// Constant bytes and bytes per token, in the type of the caches.
TEST(Wire, BytesAreThoseOfTheState) {
  const Json json = parsed(R"({"vocabulary": 256, "dim": 64, "heads": 4, "positions": "rotary", "layers": [
      {"mixer": {"mixer": "latte"}}, {"mixer": {"mixer": "softmax"}}, {"mixer": {"mixer": "sliding_window", "window": 10}}],
      "feed_forward": {"type": "swiglu", "dim": 16}})");
  for (const auto type : {at::kHalf, at::kFloat}) {
    const auto model = std::make_shared<LanguageModel>(ModelConfig::from_json(json, "test"));
    model->eval();
    model->set_cache_type(type);
    Engine engine({{.name = "it", .model = model, .tokenizer = std::make_shared<testing::ChattyBytes>()}}, {});
    const Json entry = model_entry(engine.models()[0]);
    const int64_t per_token = entry.at("state_bytes_per_token"), constant = entry.at("state_constant_bytes");
    EXPECT_EQ(entry.at("kv_type"), type == at::kHalf ? "float16" : "float32");
    EXPECT_EQ(per_token, 2 * 64 * static_cast<int64_t>(c10::elementSize(type)));  // one layer
    EXPECT_EQ(entry.at("kv_cache_bytes_per_token"), 3 * per_token);
    EXPECT_EQ(entry.at("kv_cache_bytes"), 3 * 4096 * per_token);
    EXPECT_EQ(entry.at("state_bytes"), constant + 4096 * per_token);
    const c10::InferenceMode inference;
    ModelState state = model->zero_state(1);
    constexpr int64_t kTokens = 512;
    model->hidden(at::zeros({1, kTokens}, at::kLong), {}, &state);
    EXPECT_EQ(state.bytes(), constant + kTokens * per_token);
    const std::string body = R"({"prompt": ["abc", "d"], "n": 2, "max_tokens": 5, "ignore_eos": true})";
    const Json usage = reply_to(engine, body, false).at("usage");
    EXPECT_EQ(usage.at("kv_cache_bytes"), 3 * per_token * 2 * (8 + 6));
    EXPECT_EQ(usage.at("state_bytes"), 2 * (kept_bytes(*model, 8) + kept_bytes(*model, 6)));
    EXPECT_LE(usage.at("state_constant_bytes"), 4 * constant);
  }
}

TEST(Wire, RefusesWhatIsWrongByItsName) {
  const auto engine = chatty_engine();
  const std::vector<std::pair<std::string, std::string>> completions = {
      {R"({"prompt": "a", "temperature": "hot"})", "400 temperature"},
      {R"({"prompt": "a", "temperature": -1})", "400 temperature"},
      {R"({"prompt": "a", "max_tokens": 1.5})", "400 max_tokens"},
      {R"({"prompt": "a", "top_p": 2})", "400 top_p"},
      {R"({"prompt": "a", "n": 0})", "400 n"},
      {R"({"prompt": "a", "best_of": 2})", "400 best_of"},
      {R"({"prompt": "a", "stop": [1]})", "400 stop"},
      {R"({"prompt": "a", "logprobs": true})", "400 logprobs"},
      {R"({"prompt": "a", "logit_bias": {"x": 1}})", "400 logit_bias"},
      {R"({"prompt": "a", "logit_bias": {"1": 101}})", "400 logit_bias"},
      {R"({"prompt": "a", "stream": 1})", "400 stream"},
      {R"({"prompt": "a", "suffix": "b"})", "400 suffix"},
      {R"({"prompt": "a", "seed": 1e300})", "400 seed"},
      {R"({"prompt": "a", "response_format": {"type": "yaml"}})", "400 response_format.type"},
      {R"({"prompt": "a", "temprature": 1})", "400 temprature"},
      {R"({"prompt": ""})", "400 prompt"},
      {R"({})", "400 prompt"},
      {R"({"prompt": []})", "400 prompt"},
      {R"({"prompt": [1, "a"]})", "400 prompt"},
      {R"({"prompt": [[1], "a"]})", "400 prompt"},
      {R"({"prompt": [256]})", "400 prompt"},
      {R"({"prompt": [-1]})", "400 prompt"},
      {R"({"prompt": "a", "model": "other"})", "404 model"},
      {R"([])", "400 "}};
  for (const auto& [body, expected] : completions) EXPECT_EQ(refused(*engine, body, false), expected) << body;
  const std::string user = R"("messages": [{"role": "user", "content": "a"}])";
  const std::vector<std::pair<std::string, std::string>> chats = {
      {R"({"messages": []})", "400 messages"},
      {R"({"messages": [{"role": "user"}]})", "400 messages[0].content"},
      {R"({"messages": [{"role": "poet", "content": "a"}]})", "400 messages[0].role"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{}]}]})", "400 messages[0].tool_calls"},
      {"{" + user + R"(, "chat_template_kwargs": 1})", "400 chat_template_kwargs"},
      {"{" + user + R"(, "continue_final_message": true, "add_generation_prompt": true})",
       "400 continue_final_message"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "400 messages[0].content[0].type"},
      {"{" + user + R"(, "tools": [{}]})", "400 tools"},
      {"{" + user + R"(, "top_logprobs": 2})", "400 top_logprobs"},
      {"{" + user + R"(, "response_format": {"type": "json_schema"}})", "400 response_format.json_schema"}};
  for (const auto& [body, expected] : chats) EXPECT_EQ(refused(*engine, body, true), expected) << body;
  EXPECT_EQ(refused(*engine, "{" + user + R"(, "tools": [], "user": "x", "metadata": {"a": "b"}, "n": null})", true),
            "taken");
}

const std::string kUser = R"("messages": [{"role": "user", "content": "a"}])";

// Fields of other servers without effect here, and values out of range with a clear meaning, are accepted.
TEST(Wire, WhatChangesNothingIsTaken) {
  const auto engine = chatty_engine();
  const std::vector<std::string> quiet = {R"("stop": "")",
                                          R"("stop": ["", null, "b"])",
                                          R"("max_tokens": -1)",
                                          R"("max_tokens": 1e300)",
                                          R"("max_tokens": 18446744073709551615)",
                                          R"("n_predict": -1, "max_tokens": -1)",
                                          R"("stream_options": {})",
                                          R"("reasoning_effort": "none")",
                                          R"("reasoning": {"effort": null, "summary": "auto"})",
                                          R"("verbosity": "low")",
                                          R"("moderation": null)",
                                          R"("num_beams": 1.0)",
                                          R"("min_tokens": 0)",
                                          R"("prompt_cache_options": {"ttl": "30m"})",
                                          R"("typical_p": 1)",
                                          R"("mirostat": 0, "mirostat_tau": 5)",
                                          R"("options": {"num_ctx": 4096})",
                                          R"("think": false)",
                                          R"("repeat_penalty": 1.1, "repetition_penalty": 1.1)",
                                          R"("logit_bias": [])",
                                          R"("n": 100)",
                                          R"("n": null)",
                                          R"("something_else": {"of": "a client"})"};
  for (const std::string& field : quiet) {
    EXPECT_EQ(refused(*engine, R"({"prompt": "a", )" + field + "}", false), "taken") << field;
    EXPECT_EQ(refused(*engine, "{" + kUser + ", " + field + "}", true), "taken") << field;
    const std::string strict = refused(*engine, R"({"prompt": "a", )" + field + "}", false, {.strict = true});
    EXPECT_EQ(strict == "taken", field == R"("n": null)") << field;
  }
  const std::vector<std::pair<std::string, std::string>> loud = {{R"("max_tokens": -2)", "max_tokens"},
                                                                 {R"("n_predict": "5")", "n_predict"},
                                                                 {R"("repeat_penalty": 0)", "repeat_penalty"},
                                                                 {R"("n_predict": 3, "max_tokens": 4)", "n_predict"},
                                                                 {R"("num_predict": 3, "n_predict": 4)", "n_predict"},
                                                                 {R"("reasoning": {"effort": "high"})", "reasoning"},
                                                                 {R"("options": {"temperature": 0})", "options"},
                                                                 {R"("min_tokens": 1)", "min_tokens"},
                                                                 {R"("num_beams": 2)", "num_beams"},
                                                                 {R"("moderation": {})", "moderation"},
                                                                 {R"("n": 129)", "n"},
                                                                 {R"("min_token": null)", "min_token"}};
  for (const auto& [field, name] : loud) {
    EXPECT_EQ(refused(*engine, R"({"prompt": "a", )" + field + "}", false), "400 " + name) << field;
    EXPECT_EQ(refused(*engine, "{" + kUser + ", " + field + "}", true), "400 " + name) << field;
  }
}

TEST(Wire, OtherNamesMeanTheSame) {
  const auto engine = chatty_engine();
  const Json body = {{"prompt", "a"},      {"repeat_penalty", 1.5},     {"repeat_last_n", -1},
                     {"n_predict", 7},     {"random_seed", 11},         {"stop_sequences", "x"},
                     {"do_sample", false}, {"num_return_sequences", 3}, {"something", "else"}};
  const Call call = read_completion(body, *engine, {});
  const Request& request = call.requests.at(0);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5);
  EXPECT_GT(request.sampling.repetition_window, int64_t{1} << 40);
  EXPECT_EQ(request.sampling.seed, 11);
  EXPECT_EQ(request.sampling.temperature, 0);
  EXPECT_EQ(request.most_tokens, 7);
  EXPECT_EQ(request.choices, 3);
  EXPECT_EQ(request.stops, std::vector<std::string>{"x"});
  EXPECT_EQ(call.unknown, std::vector<std::string>{"something"});
  EXPECT_EQ(read_completion({{"prompt", "a"}, {"max_tokens", 1 << 20}}, *engine, {.answer_tokens = 9})
                .requests[0]
                .most_tokens,
            9);
}

// Checks every row of the table: its values are accepted, other values are not.
TEST(Wire, TheTableOfFieldsHolds) {
  const auto engine = chatty_engine();
  for (const Field& field : all_fields()) {
    Json values = Json::parse(field.values);
    values.push_back(nullptr);
    for (const auto& [place, chat] : {std::pair(kCompletion, false), std::pair(kChat, true)}) {
      if ((field.places & place) == 0) continue;
      const std::string start = chat ? "{" + kUser + ", " : R"({"prompt": "a", )";
      const std::string key = "\"" + std::string(field.name) + "\": ";
      if (start.find(key) != std::string::npos) continue;  // "prompt" and "messages"
      for (const Json& value : values) {
        EXPECT_EQ(refused(*engine, start + key + value.dump() + "}", chat), "taken") << field.name << value;
      }
      const Json odd = {{"certainly", {"not", "this"}}};
      const std::string found = refused(*engine, start + key + odd.dump() + "}", chat);
      if (field.use == Use::kAny) {
        EXPECT_EQ(found, "taken") << field.name;
      } else if (field.use == Use::kNeutral) {
        EXPECT_EQ(found, "400 " + std::string(field.name));
      } else if (field.use == Use::kSame) {
        EXPECT_TRUE(find_field(field.other, place)) << field.name;
      }
    }
  }
}

TEST(Wire, ToolsThatAreNotToBeUsedAreNotMissed) {
  const auto engine = chatty_engine();
  const std::string tools = "{" + kUser + R"(, "tools": [{"type": "function", "function": {"name": "f"}}])";
  EXPECT_EQ(refused(*engine, tools + R"(, "tool_choice": "none"})", true), "taken");
  EXPECT_EQ(refused(*engine, tools + R"(, "tool_choice": "auto"})", true), "400 tools");
  EXPECT_EQ(refused(*engine, tools + "}", true), "400 tools");
  EXPECT_EQ(refused(*engine, tools + R"(, "tool_choice": "none"})", true, {.strict = true}), "400 tools");
  EXPECT_EQ(refused(*engine, "{" + kUser + R"(, "tool_choice": "required"})", true), "400 tool_choice");
}

// If there are more choices than are generated at once, each has the seed that it would have otherwise.
TEST(Wire, ManyChoicesAreWrittenInTurns) {
  const auto all = chatty_engine({.rows = 8}), few = chatty_engine({.rows = 3, .waiting = 0});
  const std::string body =
      R"({"prompt": "Well", "echo": true, "logprobs": 1, "n": 7, "seed": 5, "max_tokens": 6, "ignore_eos": true)";
  const Json expected = reply_to(*all, body + "}", false);
  Json found = reply_to(*few, body + "}", false);
  ASSERT_EQ(found.at("choices").size(), 7u);
  EXPECT_EQ(found.at("choices"), expected.at("choices"));
  EXPECT_EQ(found.at("usage").at("total_tokens"), expected.at("usage").at("total_tokens"));
  std::vector<std::string> texts(7);
  for (const Json& event : events_of(*few, body + R"(, "stream": true})", false)) {
    const Json& choice = event.at("choices")[0];
    texts.at(choice.at("index").get<size_t>()) += choice.at("text").get<std::string>();
  }
  for (size_t i = 0; i < 7; ++i) EXPECT_EQ(texts[i], expected.at("choices")[i].at("text"));
}

TEST(Wire, CompletionsOfSeveralPromptsAndChoicesStandInOrder) {
  const auto engine = chatty_engine();
  const auto one = [&](const std::string& prompt, int64_t seed) {
    const Json body = {{"prompt", prompt}, {"seed", seed}, {"max_tokens", 8}};
    return reply_to(*engine, body.dump(), false).at("choices")[0].at("text").get<std::string>();
  };
  const Json reply = reply_to(*engine, R"({"prompt": ["First", "Second"], "n": 2, "seed": 5, "max_tokens": 8})", false);
  ASSERT_EQ(reply.at("choices").size(), 4u);
  const std::vector<std::string> expected = {one("First", 5), one("First", 6), one("Second", 5), one("Second", 6)};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(reply.at("choices")[i].at("index"), i);
    EXPECT_EQ(reply.at("choices")[i].at("text"), expected[i]);
    EXPECT_EQ(reply.at("choices")[i].at("finish_reason"), "length");
  }
  EXPECT_EQ(reply.at("usage").at("prompt_tokens"), 11);
  EXPECT_EQ(reply.at("usage").at("completion_tokens"), 32);
}

// lm-eval adds up these scores: one entry per token of the prompt, and one more.
TEST(Wire, EchoedPromptsHaveTheScoresOfTheirTokens) {
  const auto engine = chatty_engine();
  const Json reply = reply_to(
      *engine,
      R"({"prompt": [[72, 101, 108, 108, 111]], "echo": true, "logprobs": 1, "max_tokens": 1, "temperature": 0})",
      false);
  const Json& choice = reply.at("choices")[0];
  EXPECT_TRUE(choice.at("text").get<std::string>().starts_with("Hello"));
  const Json& scores = choice.at("logprobs");
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
    EXPECT_EQ(scores.at(list).size(), 6u) << list;
  EXPECT_TRUE(scores.at("token_logprobs")[0].is_null() && scores.at("top_logprobs")[0].is_null());
  EXPECT_EQ(scores.at("tokens")[4], "o");
  for (size_t i = 1; i < 6; ++i) {
    ASSERT_EQ(scores.at("top_logprobs")[i].size(), 1u);
    const double best = scores.at("top_logprobs")[i].begin().value();
    EXPECT_LE(scores.at("token_logprobs")[i].get<double>(), best);
    EXPECT_EQ(scores.at("text_offset")[i], i);
  }
  // The last token was chosen as the likeliest, so both numbers are equal to the last digit.
  EXPECT_EQ(scores.at("token_logprobs")[5], scores.at("top_logprobs")[5].begin().value());
}

TEST(Wire, AStreamSaysWhatTheWholeSays) {
  const auto engine = chatty_engine();
  const std::string start = R"({"messages": [{"role": "user", "content": "Hi"}], "seed": 3, "max_tokens": 20)";
  const Json whole = reply_to(*engine, start + "}", true);
  std::string text;
  const auto events =
      events_of(*engine, start + R"(, "stream": true, "stream_options": {"include_usage": true}})", true);
  for (const Json& event : events) {
    EXPECT_EQ(event.at("object"), "chat.completion.chunk");
    for (const Json& choice : event.at("choices")) text += choice.at("delta").value("content", "");
  }
  EXPECT_EQ(text, whole.at("choices")[0].at("message").at("content"));
  EXPECT_EQ(events.front().at("choices")[0].at("delta").at("role"), "assistant");
  EXPECT_EQ(events[events.size() - 2].at("choices")[0].at("finish_reason"), whole.at("choices")[0].at("finish_reason"));
  EXPECT_EQ(events.back().at("usage").at("completion_tokens"), whole.at("usage").at("completion_tokens"));
  EXPECT_EQ(events.back().at("choices").size(), 0u);
}

TEST(Wire, AStreamSaysHowFarItsPromptIsRead) {
  const auto engine = chatty_engine();
  const std::string start =
      R"({"prompt": ")" + std::string(3000, 'a') + R"(", "max_tokens": 2, "stream": true, "return_progress": true)";
  for (const int64_t cached : {0, 3000}) {
    std::vector<Json> told;
    bool words = false;
    for (const Json& event : events_of(*engine, start + "}", false)) {
      words |= event.contains("choices") && !event.at("choices").empty();
      if (!event.contains("prompt_progress")) continue;
      EXPECT_FALSE(words) << "progress behind the first words";
      told.push_back(event.at("prompt_progress"));
    }
    ASSERT_FALSE(told.empty());
    int64_t before = 0;
    for (const Json& progress : told) {
      EXPECT_EQ(progress.at("total"), 3000);
      EXPECT_EQ(progress.at("cache"), cached);
      EXPECT_GT(progress.at("processed").get<int64_t>(), before);
      EXPECT_GE(progress.at("time_ms").get<int64_t>(), 0);
      before = progress.at("processed").get<int64_t>();
    }
    EXPECT_EQ(before, 3000);
  }
  for (const Json& event : events_of(*engine, R"({"prompt": "a", "max_tokens": 2, "stream": true})", false)) {
    EXPECT_FALSE(event.contains("prompt_progress"));
  }
}

TEST(Wire, ConversationsGoOnFromWhatWasRead) {
  const auto engine = chatty_engine();
  const std::string first = R"({"role": "user", "content": "A question that is long enough to be worth keeping."})";
  const Json one = reply_to(*engine, R"({"messages": [)" + first + R"(], "max_tokens": 5, "temperature": 0})", true);
  EXPECT_EQ(one.at("usage").at("prompt_tokens_details").at("cached_tokens"), 0);
  const Json answer = one.at("choices")[0].at("message");
  const Json next = {{"messages",
                      {parsed(first),
                       {{"role", "assistant"}, {"content", answer.at("content")}},
                       {{"role", "user"}, {"content", "And?"}}}},
                     {"max_tokens", 5}};
  const Json two = reply_to(*engine, next.dump(), true);
  EXPECT_GE(two.at("usage").at("prompt_tokens_details").at("cached_tokens").get<int64_t>(),
            one.at("usage").at("prompt_tokens").get<int64_t>());
}

TEST(Wire, AReaderWhoGoesCancelsTheAnswer) {
  const auto engine = chatty_engine();
  const Json body = {{"prompt", "x"}, {"max_tokens", 4000}, {"stream", true}, {"logit_bias", {{"0", -100}}}};
  {
    Reply reply(read_completion(body, *engine, {}), *engine);
    int parts = 0;
    EXPECT_FALSE(reply.write_all([&](const std::string& part) { return part.empty() || ++parts < 3; }));
  }
  EXPECT_TRUE(engine->drain(10));
}

TEST(Wire, TextsAndTokensBothWays) {
  const auto engine = chatty_engine();
  EXPECT_EQ(tokenize(parsed(R"({"prompt": "ab"})"), *engine, {}).at("tokens"), parsed("[97, 98]"));
  EXPECT_EQ(detokenize(parsed(R"({"tokens": [97, 98]})"), *engine, {}).at("prompt"), "ab");
  EXPECT_THROW(detokenize(parsed(R"({"tokens": [300]})"), *engine, {}), WireError);
  EXPECT_EQ(tokenizer_info("", *engine).at("eos_token"), std::string(1, '\0'));
  EXPECT_EQ(models_list(*engine).at("data")[0].at("id"), "it");
}

// Without a model's name the first model is used. A tokenizer without an end token reports null.
TEST(Wire, TokensWithoutAModelAreTheFirsts) {
  const auto one = chatty_engine()->models()[0];
  const ServedModel plain{.name = "plain", .model = one.model, .tokenizer = make_tokenizer("byte", {})};
  const Engine engine({plain, one}, {});
  EXPECT_EQ(tokenize(parsed(R"({"prompt": "ab"})"), engine, {}).at("count"), 2);
  EXPECT_EQ(detokenize(parsed(R"({"tokens": [97]})"), engine, {}).at("content"), "a");
  EXPECT_EQ(tokenizer_info("", engine).at("model"), "plain");
  EXPECT_TRUE(tokenizer_info("", engine).at("eos_token").is_null());
  EXPECT_EQ(tokenizer_info("it", engine).at("eos_token"), std::string(1, '\0'));
  EXPECT_EQ(testing::refusal_of([&] { tokenizer_info("other", engine); }), "404 model");
  EXPECT_EQ(refused(engine, R"({"prompt": "a"})", false), "400 model");
}

}  // namespace
}  // namespace cortado
